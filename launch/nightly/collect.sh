#!/usr/bin/env bash
# The files of the spool into the store, by one process for the whole fleet; then what the night says.
#
#   SPOOL=/path/to/spool STORE=/path/to/store.sqlite bash launch/nightly/collect.sh
#
# The exit code is the largest of the commands: 1 if a file cannot be read, or if a node is slow, wrong,
# failed or missing. To change, as environment variables:
SPOOL=${SPOOL:-spool}             # a folder of result files
STORE=${STORE:-torchcoll.sqlite}  # SQLite, on a local disk only; or postgresql://USER@HOST/DATABASE
EXPECTED=${EXPECTED:-}            # a file with the nodes that should have a run, one per line
NIGHT_START=${NIGHT_START:-12:00} # UTC. No run should be under way at this time
NIGHTLY_ARGS=${NIGHTLY_ARGS:-}    # more options for torchcoll nightly, such as --format line
KEEP=${KEEP-400d}                 # older runs leave the store; empty: keep all. The files stay:
                                  # find SPOOL -name '*.jsonl' -mtime +400 -delete
PYTHON=${PYTHON:-}                # empty: .venv/bin/python of the current folder, else python3
set -uo pipefail

[ -n "$PYTHON" ] || { [ -x .venv/bin/python ] && PYTHON=$PWD/.venv/bin/python; } || PYTHON=python3
worst=0
torchcoll() {
    local code=0
    "$PYTHON" -m torchcoll "$@" || code=$?
    [ "$code" -le "$worst" ] || worst=$code
    echo
}

torchcoll collect "$SPOOL" --into "$STORE"
# shellcheck disable=SC2086  # NIGHTLY_ARGS holds several words
torchcoll nightly "$STORE" --night-start "$NIGHT_START" ${EXPECTED:+--expected-nodes "$EXPECTED"} $NIGHTLY_ARGS
[ -z "$KEEP" ] || torchcoll collect --into "$STORE" --prune "$KEEP"
exit "$worst"

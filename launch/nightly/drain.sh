#!/usr/bin/env bash
# Print the commands that would drain the nodes that are slow or gave wrong results.
# Nothing is run: read them, then run them.
#
#   STORE=/path/to/store.sqlite bash launch/nightly/drain.sh >drain.txt
#   cat drain.txt && bash drain.txt
#
# Nodes that Slurm has drained already are left out. If more than 10 % of the fleet is slow (two nodes
# are always allowed), only nodes with wrong results are listed: the cause is then not a node. To change:
STORE=${STORE:-torchcoll.sqlite}  # an SQLite file, or postgresql://USER@HOST/DATABASE
NIGHT=${NIGHT:-}                  # a date, or last; empty: the last night, which must not be old
COMMAND=${COMMAND:-'scontrol update nodename={node} state=drain reason={reason}'}
PYTHON=${PYTHON:-}                # empty: .venv/bin/python of the current folder, else python3
set -uo pipefail

[ -n "$PYTHON" ] || { [ -x .venv/bin/python ] && PYTHON=$PWD/.venv/bin/python; } || PYTHON=python3
# Without this list a node that is drained would be printed again, so that a failure ends the script.
drained=$(sinfo --noheader --Node --states=drain --format=%N) || exit
code=0
report=$("$PYTHON" -m torchcoll nightly "$STORE" --format json \
    ${NIGHT:+--night "$NIGHT"} --drain-command "$COMMAND" --drained <(printf '%s\n' "$drained")) ||
    code=$?
# 1: a node is slow, wrong, failed or missing; 2 with a report: there are too few nights yet
[ "$code" -le 1 ] || [ -n "$report" ] || exit "$code"
"$PYTHON" -c 'if 1:
    import json, sys
    drain = json.load(sys.stdin)["drain"]
    print("#", drain["headline"])
    for command in drain["commands"]:
        print(command)' <<<"$report"

#!/usr/bin/env bash
# Print the commands that would drain the nodes that were slow or wrong in 3 of the last 5 nights.
# Nothing is run: read them, then run them.
#
#   STORE=/path/to/store.sqlite bash launch/nightly/drain.sh >drain.txt
#   cat drain.txt && bash drain.txt
#
# Nodes that Slurm has drained already are left out. If more than 2 % of the fleet would be drained
# (one node is always allowed), there is no command: the cause is then not a node. To change:
STORE=${STORE:-torchcoll.sqlite}  # an SQLite file, or postgresql://USER@HOST/DATABASE
THRESHOLD=${THRESHOLD:-3%}        # the smallest slowdown that counts
NIGHT_START=${NIGHT_START:-12:00} # UTC, as in collect.sh
COMMAND=${COMMAND:-'scontrol update nodename={node} state=drain reason={reason}'}
PYTHON=${PYTHON:-}                # empty: .venv/bin/python of the current folder, else python3
set -uo pipefail

[ -n "$PYTHON" ] || { [ -x .venv/bin/python ] && PYTHON=$PWD/.venv/bin/python; } || PYTHON=python3
# Without this list a node that is drained would be printed again, so that a failure ends the script.
drained=$(sinfo --noheader --Node --states=drain --format=%N) || exit
code=0
report=$("$PYTHON" -m torchcoll fleet "$STORE" --threshold "$THRESHOLD" --format json \
    --night-start "$NIGHT_START" --drain-command "$COMMAND" --drained <(printf '%s\n' "$drained")) ||
    code=$?
[ "$code" -le 1 ] || exit "$code" # 1: the fleet has a node that is slow, failed or missing
"$PYTHON" -c 'if 1:
    import json, sys
    drain = json.load(sys.stdin)["drain"]
    print("#", drain["headline"])
    for command in drain["commands"]:
        print(command)' <<<"$report"

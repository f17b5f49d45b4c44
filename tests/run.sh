#!/usr/bin/env bash
# Install torchcoll and its test tools into .venv-test and check everything.
#   bash tests/run.sh [PYTEST ARGUMENTS...]
set -euo pipefail
# shellcheck source=launch/install.sh
source "$(dirname "${BASH_SOURCE[0]}")/../launch/install.sh"

# Some images set it: then each of the many processes of the tests compiles torchcoll again.
unset PYTHONDONTWRITEBYTECODE
# The parts below fill the cores: another thread for small matrices only takes time from them.
export OPENBLAS_NUM_THREADS=1
install_torchcoll "$ROOT/.venv-test" plot,store,docs,test,dev
cd "$ROOT"
status=0
step() {
    say "$*"
    "$VENV/bin/python" -m "$@" || {
        status=1
        say "FAILED: $*"
    }
}
step ruff check
step ruff format --check
# pytest comes last, so that its summary is the last line.
if [ $# -gt 0 ]; then
    step mypy
    say "pytest -q $*"
    "$VENV/bin/python" -m pytest -q "$@" || status=1
    exit $status
fi

# Tests with servers, a browser or a Jupyter kernel are steps of their own in .ci/run.
export PYTEST_ADDOPTS="-m 'not postgres and not slurm and not browser and not notebook'"
# Side by side, for tests wait as much as they compute: parts that take about the same CPU time, so
# that none runs on alone. The part with the most ranks is shown live.
rooms='tests/importers tests/machine tests/report tests/overview tests/training tests/verdict'
few='tests/fleet tests/store tests/contention tests/acceptance'
ranks='tests/bench tests/matrix tests/forcing tests/pairs'
others="tests --ignore tests/launch --ignore tests/test_readme.py"
for room in $rooms $few $ranks; do
    others+=" --ignore $room"
done
parts=(
    mypy
    "pytest -q -p no:cacheprovider tests/test_readme.py tests/launch $few"
    "pytest -q -p no:cacheprovider $rooms"
    "pytest -q -p no:cacheprovider $others"
)
live="pytest -q $ranks"
# Once, and not by each of the parts.
"$VENV/bin/python" -m compileall -q torchcoll
logs=$(mktemp -d)
# shellcheck disable=SC2046  # one word for each job
trap 'kill -INT $(jobs -p) 2>/dev/null || true; rm -rf "$logs"' EXIT
trap 'exit 130' INT
pids=()
for i in "${!parts[@]}"; do
    # shellcheck disable=SC2086  # a part is several words
    "$VENV/bin/python" -m ${parts[i]} >"$logs/$i" 2>&1 &
    pids+=($!)
done
failed=()
say "$live"
# shellcheck disable=SC2086
"$VENV/bin/python" -m $live 2>&1 | tee "$logs/live" || failed+=("$live")
for i in "${!parts[@]}"; do
    say "${parts[i]} (it ran meanwhile)"
    if wait "${pids[i]}"; then
        tail -n 1 "$logs/$i"
    else
        failed+=("${parts[i]}")
        cat "$logs/$i"
    fi
done
for part in "${failed[@]+"${failed[@]}"}"; do
    status=1
    say "FAILED: $part"
done
# The summaries of the four parts of pytest as one; a part that ended without any is an error.
tail -qn 1 "$logs"/{live,1,2,3} | awk -v took="$SECONDS" '
    sub(/ in [0-9.]+s.*/, "") {
        ended++
        gsub(",", "")
        for (i = 1; i < NF; i += 2) n[$(i + 1)] += $i
    }
    END {
        if (ended < 4) n["error"] += 4 - ended
        many = split("failed passed skipped deselected error errors warning warnings", names, " ")
        for (i = 1; i <= many; i++)
            if (names[i] in n) line = line (line ? ", " : "") n[names[i]] " " names[i]
        print line " in " took "s"
    }'
exit $status

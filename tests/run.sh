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
install_torchcoll "$ROOT/.venv-test" measure,plot,store,docs,test,dev
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

# Tests with servers, a browser, a Jupyter kernel or pip are steps of their own in .ci/run.
export PYTEST_ADDOPTS="-m 'not postgres and not slurm and not browser and not notebook and not install'"
# Side by side, for tests wait as much as they compute: parts that take about the same CPU time, so
# that none runs on alone. The part with the most ranks is shown live.
first='tests/bench tests/curves tests/core'
second='tests/test_readme.py tests/launch tests/experiments tests/contention tests/proof'
third='tests/fleet tests/training tests/reading tests/pairs tests/report tests/check'
fourth=tests
for folder in $first $second $third; do
    fourth+=" --ignore $folder"
done
parts=("$first" "$second" "$third" "$fourth")
# Once, and not by each of the parts.
"$VENV/bin/python" -m compileall -q torchcoll
logs=$(mktemp -d)
# shellcheck disable=SC2046  # one word for each job
trap 'kill -INT $(jobs -p) 2>/dev/null || true; rm -rf "$logs"' EXIT
trap 'exit 130' INT
"$VENV/bin/python" -m mypy >"$logs/mypy" 2>&1 &
mypy=$!
say "pytest -q ${parts[0]}"
"$VENV/bin/python" tests/side_by_side.py "$logs" "${parts[@]}" 2>&1 | tee "$logs/0" || true
codes=()
for i in 0 1 2 3; do
    # Without a code, pytest did not end by itself.
    codes[i]=$(cat "$logs/code$i" 2>/dev/null || echo 3)
done
for i in 1 2 3; do
    say "pytest -q ${parts[i]} (it ran meanwhile)"
    if [ "${codes[i]}" -eq 0 ]; then
        tail -n 1 "$logs/$i"
    else
        cat "$logs/$i"
    fi
done
say "mypy (it ran meanwhile)"
wait $mypy || {
    status=1
    say "FAILED: mypy"
}
cat "$logs/mypy"

# What failed beside other work may depend on how fast the machine was: once more, alone.
failed_in() {
    "$VENV/bin/python" -c "import json, pathlib, sys
path = pathlib.Path(sys.argv[1])
print(*json.loads(path.read_text()) if path.exists() else (), sep='\n')" \
        "$logs/cache$1/v/cache/lastfailed" | sed '/^$/d'
}
: >"$logs/flaky"
for i in 0 1 2 3; do
    [ "${codes[i]}" -ne 0 ] || continue
    failed_in $i >"$logs/failed"
    failures=$(wc -l <"$logs/failed")
    # 1: tests ran, and some failed. Twenty are no accident.
    if [ "${codes[i]}" -ne 1 ] || [ "$failures" -eq 0 ] || [ "$failures" -gt 20 ]; then
        status=1
        say "FAILED: pytest -q ${parts[i]} ended with ${codes[i]}, $failures failed"
        continue
    fi
    say "once more, alone: $failures of ${parts[i]}"
    # shellcheck disable=SC2086  # a part is several words
    "$VENV/bin/python" -m pytest -q -o cache_dir="$logs/cache$i" ${parts[$i]} --last-failed ||
        status=1
    failed_in $i | sed 's/^/FAILED: /'
    failed_in $i | grep -vxFf - "$logs/failed" >>"$logs/flaky" || true
done
sed 's/^/flaky: /' "$logs/flaky"
if [ "$(wc -l <"$logs/flaky")" -gt 3 ]; then
    status=1
    say "FAILED: more than three tests passed only alone"
fi
# The summaries of the four parts as one; a part that ended without any is an error. Tests that
# passed alone count as passed.
tail -qn 1 "$logs"/{0,1,2,3} | awk -v took="$SECONDS" -v flaky="$(wc -l <"$logs/flaky")" '
    sub(/ in [0-9.]+s.*/, "") {
        ended++
        gsub(",", "")
        for (i = 1; i < NF; i += 2) n[$(i + 1)] += $i
    }
    END {
        if (ended < 4) n["error"] += 4 - ended
        n["failed"] -= flaky
        n["passed"] += flaky
        if (n["failed"] <= 0) delete n["failed"]
        many = split("failed passed skipped deselected error errors warning warnings", names, " ")
        for (i = 1; i <= many; i++)
            if (names[i] in n) line = line (line ? ", " : "") n[names[i]] " " names[i]
        print line " in " took "s"
    }'
exit $status

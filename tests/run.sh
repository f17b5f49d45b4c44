#!/usr/bin/env bash
# Install torchcoll and its test tools into .venv-test and check everything.
#   bash tests/run.sh [PYTEST ARGUMENTS...]
set -euo pipefail
# shellcheck source=launch/install.sh
source "$(dirname "${BASH_SOURCE[0]}")/../launch/install.sh"

install_torchcoll "$ROOT/.venv-test" test,dev
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
step mypy
# pytest comes last, so that its summary is the last line.
say "pytest -q $*"
if [ $# -gt 0 ]; then
    "$VENV/bin/python" -m pytest -q "$@" || status=1
    exit $status
fi
# The README's commands install and launch for a minute, mostly waiting: beside the rest.
readme=$(mktemp)
trap 'rm -f "$readme"' EXIT
"$VENV/bin/python" -m pytest -q tests/test_readme.py -p no:cacheprovider >"$readme" 2>&1 &
"$VENV/bin/python" -m pytest -q --ignore tests/test_readme.py || status=1
wait $! || status=1
say 'pytest -q tests/test_readme.py (it ran meanwhile)'
cat "$readme"
exit $status

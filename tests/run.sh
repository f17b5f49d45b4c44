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
"$VENV/bin/python" -m pytest -q "$@" || status=1
exit $status

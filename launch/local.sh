#!/usr/bin/env bash
# Install torchcoll into .venv, if that is not done yet, and measure on this machine.
#
#   bash launch/local.sh [COLLECTIVE] [ARGUMENTS...]
#   bash launch/local.sh                              all_reduce, default sizes
#   bash launch/local.sh alltoall -b 1K -e 1M -n 20   ARGUMENTS go to torchcoll.alltoall
#   bash launch/local.sh allreduce --help             torchcoll's own options
#
# NPROC=4     ranks; without it one for each accelerator if there are two or more, else 2 on the CPU
# PYTHON=...  the python (3.10 or newer) to make .venv from; its torch is used if it has one
# pip's own settings (PIP_INDEX_URL, PIP_FIND_LINKS, ...) say where torch comes from.
set -euo pipefail
# shellcheck source=launch/install.sh
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"

case ${1:-} in
    -h | --help)
        sed -n 's/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed -e 1d -e '/^shellcheck/d'
        exit
        ;;
    '' | -*) module=allreduce ;;
    *)
        module_of "$1"
        shift
        ;;
esac
case ${NPROC:-2} in
    0* | *[!0-9]*) fail "NPROC: got '$NPROC', expected a whole number from 1. Correct or unset it" 2 ;;
esac

install_torchcoll "$ROOT/.venv" measure,plot

if [ -z "${NPROC:-}" ]; then
    devices=$("$VENV/bin/python" -W ignore -c 'if 1:
        import torch
        there = torch.accelerator.is_available()
        print(torch.accelerator.device_count() if there else 0)' | tail -n 1)
    NPROC=$((devices > 1 ? devices : 2))
    # Two ranks cannot share one accelerator, and one rank communicates with nobody.
    if [ "$devices" -eq 1 ] && [[ " $* " != *" --device"* && " $* " != *" --backend"* &&
        " $* " != *" --rehearse "* ]]; then
        say "one accelerator: two ranks measure gloo on the CPU (--rehearse: NCCL, without bandwidths)"
        set -- "$@" --device cpu
    fi
fi
# torchrun would set this as well, and print a paragraph about it.
[ "$NPROC" -eq 1 ] || export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
run=("$VENV/bin/python" -m torch.distributed.run --standalone --nproc-per-node "$NPROC"
    -m "torchcoll.$module" "$@")
say "$(printf '%q ' "${run[@]}")"
exec "${run[@]}"

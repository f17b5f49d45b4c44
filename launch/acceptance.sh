#!/usr/bin/env bash
# Prove torchcoll and this machine: at most 20 minutes, one table, one archive without secrets.
#
#   bash launch/acceptance.sh                      this host: all of its GPUs, or two ranks on its CPU
#   bash launch/acceptance.sh --backend gloo       options: python -m torchcoll.acceptance --help
#   sbatch --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 --exclusive launch/acceptance.sh
#   salloc ... bash launch/acceptance.sh           in a Slurm job, srun starts the ranks
#
# On Kubernetes, and wherever no launcher reaches all nodes, start it on each node with NNODES (their
# number), NODE_RANK or JOB_COMPLETION_INDEX (which it is, from 0) and MASTER_ADDR (node 0); node 0
# writes the archive. The folder of --output must be one that all nodes see where srun is used.
#
# NO_INSTALL=1  install nothing: PYTHON with its torch, as it is
# PYTHON=...    the python to use, or to make .venv from
# SRUN_ARGS=... more options for srun
#SBATCH --job-name=torchcoll-acceptance
#SBATCH --time=00:25:00
#SBATCH --signal=B:TERM@60
set -euo pipefail
# slurmd runs a copy of this file elsewhere: the checkout is then where sbatch was called.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -r "$HERE/install.sh" ] || HERE=${SLURM_SUBMIT_DIR:-$PWD}/launch
[ -r "$HERE/install.sh" ] || {
    echo "torchcoll: error: launch: got no install.sh in $HERE, expected it beside this script. \
Call sbatch in the folder above launch/." >&2
    exit 2
}
# shellcheck source=launch/install.sh
source "$HERE/install.sh"

case ${1:-} in
    -h | --help)
        sed -n 's/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed -e 1d -e '/^shellcheck/d' -e '/^slurmd/d'
        exit
        ;;
esac

# Without a checkout around launch/, torchcoll is the one that is installed.
if [ -n "${NO_INSTALL:-}" ] || [ ! -e "$ROOT/setup.cfg" ]; then
    find_python
    [ ! -e "$ROOT/torchcoll" ] || export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
else
    install_torchcoll "$ROOT/.venv" plot
    PYTHON=$VENV/bin/python
fi

options=()
if [ -n "${NNODES:-}" ] && [ "$NNODES" != 1 ]; then
    [ -n "${MASTER_ADDR:-}" ] || fail "MASTER_ADDR: got none with NNODES=$NNODES, expected node 0's" 2
    options=(--nodes "$NNODES" --node-rank "${NODE_RANK:-${JOB_COMPLETION_INDEX:-0}}"
        --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}")
elif [ -n "${SLURM_JOB_ID:-}" ] && [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ]; then
    options=(--launcher "srun --kill-on-bad-exit=1 ${SRUN_ARGS:-} $PYTHON -W ignore -m")
fi
run=("$PYTHON" -W ignore -m torchcoll.acceptance "${options[@]+"${options[@]}"}" "$@")
say "$(printf '%q ' "${run[@]}")"
exec "${run[@]}"

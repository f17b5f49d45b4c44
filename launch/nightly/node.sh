#!/usr/bin/env bash
# Measure this node alone, and put the result file into the spool: one run, of two minutes or so.
#
#   bash launch/nightly/node.sh
#
# slurm-nodes.sbatch starts it on every node; so can cron.
# To change, as environment variables:
SPOOL=${SPOOL:-spool}   # the folder that the collector reads, usually on a shared file system
LOCAL=${LOCAL:-}        # a folder on a local disk: the run writes here and its file is moved into
                        # SPOOL. What could not be moved is moved in the next night
STORE=${STORE:-}        # postgresql://USER@HOST/DATABASE: this node collects its files itself.
                        # Empty: one collector does (collect.sh), as it must with SQLite
GPUS=${GPUS:-8}         # ranks; in a Slurm job its tasks count
export COLLECTIVES=${COLLECTIVES:-all_reduce,all_gather,reduce_scatter,all_to_all}
export MIN_BYTES=${MIN_BYTES:-1M} MAX_BYTES=${MAX_BYTES:-1G} FACTOR=${FACTOR:-32} # 1M, 32M, 1G
export BACKEND=${BACKEND:-} # nccl, xccl, ccl, gloo; empty: what the node has
export ARGS=${ARGS:-}       # more options for torchcoll, the same on all nodes and in all nights
LABELS=${LABELS:-}          # facts by which slow nodes may be grouped, such as 'rack=r7 switch=s2'
LIMIT=${LIMIT:-20m}         # outside of Slurm: the run is ended after this time
LAUNCH=${LAUNCH:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}
PYTHON=${PYTHON:-}          # empty: .venv/bin/python of the current folder, else python3
set -uo pipefail

[ -n "$PYTHON" ] || { [ -x .venv/bin/python ] && PYTHON=$PWD/.venv/bin/python; } || PYTHON=python3
export PYTHON OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# The name by which the scheduler knows the node: drain.sh uses it.
node=${SLURMD_NODENAME:-${HOSTNAME%%.*}}
folder=${LOCAL:-$SPOOL}
mkdir -p "$folder" || exit

status=0
if [ -n "${SLURM_JOB_ID:-}" ]; then
    RUNS=1 RESULTS=$folder LABELS="node=$node $LABELS" bash "$LAUNCH/slurm.sbatch" || status=$?
else
    # shellcheck disable=SC2206  # the variables hold several words
    run=(timeout --kill-after=30 "$LIMIT" "$PYTHON" -m torch.distributed.run --standalone
        --nproc-per-node "$GPUS" -m torchcoll.suite --collectives "$COLLECTIVES"
        -b "$MIN_BYTES" -e "$MAX_BYTES" -f "$FACTOR" ${BACKEND:+--backend "$BACKEND"} $ARGS)
    for label in "node=$node" "kernel=$(uname -r)" $LABELS; do
        run+=(--label "$label")
    done
    run+=(-J "$folder/$node-$(date -u +%Y%m%dT%H%M%SZ).jsonl")
    echo "+ ${run[*]}"
    "${run[@]}" || status=$?
fi

if [ -n "$LOCAL" ]; then
    mkdir -p "$SPOOL"
    for file in "$LOCAL"/*.jsonl*; do
        name=${file##*/}
        [ -f "$file" ] || continue
        # torchcoll skips names that begin with a dot: the collector sees whole files only.
        if cp "$file" "$SPOOL/.$name" && mv -f "$SPOOL/.$name" "$SPOOL/$name"; then
            rm -f "$file"
        else
            [ "$status" -ne 0 ] || status=1
        fi
    done
fi
if [ -n "$STORE" ]; then
    "$PYTHON" -m torchcoll collect "$SPOOL" --into "$STORE" || status=$?
fi
exit "$status"

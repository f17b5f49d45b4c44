#!/usr/bin/env bash
# torchcoll on PBS with PALS' mpiexec, 12 ranks a node: the first all_reduce of a job against the
# second and third, in two mpiexec of one job (a cache left by the first would help the second).
#
#   qsub -A PROJECT -q QUEUE launch/pbs.sh
#   qsub -A PROJECT -q QUEUE -l select=64 launch/pbs.sh
#   NODES='1 2 4 8 16 32 64' bash launch/pbs.sh -A PROJECT -q QUEUE     one job for each number
#   BACKEND=ccl qsub -V -A PROJECT -q QUEUE launch/pbs.sh               variables: see below
#
# Another mpiexec (Intel MPI, Open MPI) inside a PBS job: launch/mpi.sh, which reads PBS_NODEFILE.
#
#PBS -N torchcoll
#PBS -l select=1
#PBS -l place=scatter
#PBS -l walltime=00:30:00
#PBS -j oe
set -euo pipefail

[ -z "${LAUNCHES:-}" ] || {
    echo "torchcoll: error: LAUNCHES: got $LAUNCHES, expected RUNS. Set RUNS=$LAUNCHES in its place." >&2
    exit 2
}

RANKS_PER_NODE=${RANKS_PER_NODE:-12}
# Cores of each rank of a node: two each, on the socket of its GPU (6 GPUs with 2 tiles, 2 x 52 cores)
CPU_BIND=${CPU_BIND:-list:1-2:9-10:17-18:25-26:33-34:41-42:52-53:60-61:68-69:76-77:84-85:92-93}
BACKEND=${BACKEND:-xccl} # or ccl: oneccl_bindings_for_pytorch
MODULE=${MODULE:-allreduce}
MIN_BYTES=${MIN_BYTES:-4}
MAX_BYTES=${MAX_BYTES:-2K} # 512 float32
FACTOR=${FACTOR:-2}
ARGS=${ARGS:-}         # more options for torchcoll; '-n 0' keeps to the cold calls
RUNS=${RUNS:-2} # mpiexec in this job
LABELS=${LABELS:-}
RESULTS=${RESULTS:-torchcoll-runs}
SETUP=${SETUP:-}       # a file to source first: module load frameworks
PYTHON=${PYTHON:-}     # empty: .venv/bin/python of the folder where you submit, else python3
# What every rank gets; an empty text sets nothing. FABRIC is for Slingshot alone, and is of the study
# that this script repeats. ONECCL is ALCF's advice for PyTorch over oneCCL. With BACKEND=ccl on CPUs
# add CCL_WORKER_OFFLOAD=0 where ranks have no second core: else each spins a worker on its only one.
SLINGSHOT='FI_PROVIDER=cxi FI_CXI_DEFAULT_CQ_SIZE=1048576 FI_CXI_RX_MATCH_MODE=software MPIR_CVAR_CH4_MT_MODEL=lockless FI_CXI_OVFLOW_BUF_SIZE=8388608 FI_CXI_CQ_FILL_PERCENT=20'
[ -e "${CXI_DEVICES:-/sys/class/cxi}" ] || SLINGSHOT=
FABRIC=${FABRIC-$SLINGSHOT}
ONECCL=${ONECCL-PALS_PMI=pmix CCL_PROCESS_LAUNCHER=pmix CCL_ATL_TRANSPORT=mpi CCL_KVS_MODE=mpi CCL_KVS_USE_MPI_RANKS=1 CCL_KVS_CONNECTION_TIMEOUT=600}
# Appended to rank 0's host name where it does not resolve to the fast network as it is.
MASTER_SUFFIX=${MASTER_SUFFIX:-}

fail() {
    printf 'torchcoll: error: %s\n' "$1" >&2
    exit 2
}

if [ -z "${PBS_JOBID:-}" ]; then
    [ -n "${NODES:-}" ] || fail "pbs.sh: got no PBS job, expected one. Start it with: qsub $0"
    for nodes in $NODES; do
        echo "+ qsub -V -l select=$nodes $* $0"
        qsub -V -l "select=$nodes" "$@" "$0"
    done
    exit
fi

cd "${PBS_O_WORKDIR:-.}"
if [ -n "$SETUP" ]; then
    # shellcheck source=/dev/null
    . "$SETUP"
fi
[ -n "$PYTHON" ] || { [ -x .venv/bin/python ] && PYTHON=$PWD/.venv/bin/python; } || PYTHON=python3
mkdir -p "$RESULTS"

nodes=$(sort -u "$PBS_NODEFILE" | wc -l)
ranks=$((nodes * RANKS_PER_NODE))
job=${PBS_JOBID%%[!0-9]*}
MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE")$MASTER_SUFFIX
echo "NUM_OF_NODES $nodes TOTAL_NUM_RANKS $ranks RANKS_PER_NODE $RANKS_PER_NODE"

status=0
for ((number = 1; number <= RUNS; number++)); do
    file=$RESULTS/pbs-${PBS_JOBID%%.*}-${ranks}ranks-$number.jsonl
    # PMIx gives the ranks no number of ranks: WORLD_SIZE does.
    settings=("MASTER_ADDR=$MASTER_ADDR" "MASTER_PORT=$((20000 + (10#${job:-0} * 10 + number) % 10000))"
        "WORLD_SIZE=$ranks" "OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}")
    this=(mpiexec --np "$ranks" -ppn "$RANKS_PER_NODE")
    [ -z "$CPU_BIND" ] || this+=(--cpu-bind "$CPU_BIND")
    for setting in $FABRIC $ONECCL "${settings[@]}"; do
        this+=(--env "$setting")
    done
    # shellcheck disable=SC2206  # ARGS holds several words
    this+=("$PYTHON" -m "torchcoll.$MODULE" --backend "$BACKEND"
        -b "$MIN_BYTES" -e "$MAX_BYTES" -f "$FACTOR" $ARGS --label "run=$number"
        -J "$file")
    for label in $LABELS; do
        this+=(--label "$label")
    done
    echo "+ ${this[*]}"
    code=0
    "${this[@]}" || code=$?
    # A launcher that ends the other ranks gives their exit code; the file has torchcoll's own. Where
    # it is complete a case may have failed, which says nothing about the next run.
    ended=$(sed -n '$s/^{"record":"end","status":"complete","exit_code":\([0-9]*\).*/\1/p' "$file" 2>/dev/null) || true
    code=${ended:-$code}
    [ "$code" -le "$status" ] || status=$code
    [ -n "$ended" ] || break
done
[ -n "${ended:-}" ] || [ "$status" -ne 0 ] || status=1
exit "$status"

#!/usr/bin/env bash
# torchcoll under mpirun or mpiexec of Open MPI, Intel MPI or MPICH: finds out which it is.
#
#   bash launch/mpi.sh [COLLECTIVE] [ARGUMENTS...]
#   NPROC=4 bash launch/mpi.sh alltoall -b 1K -e 1M             four ranks on this machine
#   NPROC=16 PPN=8 HOSTFILE=hosts bash launch/mpi.sh allreduce  eight on each of two hosts
#
# HOSTFILE is the one of that MPI (a host a line); inside a PBS or LSF job it is the job's.
set -euo pipefail

NPROC=${NPROC:-2}
PPN=${PPN:-}             # ranks a host; empty: as the MPI fills the hosts
HOSTFILE=${HOSTFILE:-${PBS_NODEFILE:-${LSB_DJOB_HOSTFILE:-}}}
MPIEXEC=${MPIEXEC:-}     # empty: mpirun, else mpiexec
MPI_ARGS=${MPI_ARGS:-}   # more options for it
PYTHON=${PYTHON:-}       # empty: .venv/bin/python of this folder, else python3. The same on all hosts

fail() {
    printf 'torchcoll: error: %s\n' "$1" >&2
    exit 2
}

case ${1:-} in
    '' | -*) module=allreduce ;;
    *)
        module=${1//_/} # torch writes all_reduce
        known='allreduce allgather allgatherv reducescatter reducescatterv alltoall alltoallv'
        known+=' broadcast reduce gather scatter sendrecv hypercube barrier suite pairs'
        case " $known " in
            *" $module "*) ;;
            *) fail "collective: got '$1', expected one of: $known" ;;
        esac
        shift
        ;;
esac
[[ $NPROC =~ ^[1-9][0-9]*$ ]] || fail "NPROC: got '$NPROC', expected a whole number from 1"
[[ -z $PPN || $PPN =~ ^[1-9][0-9]*$ ]] || fail "PPN: got '$PPN', expected a whole number from 1"
[[ -z $HOSTFILE || -r $HOSTFILE ]] || fail "HOSTFILE: got '$HOSTFILE', expected a file that can be read"
[ -n "$PYTHON" ] || { [ -x .venv/bin/python ] && PYTHON=$PWD/.venv/bin/python; } || PYTHON=python3
PYTHON=$(command -v "$PYTHON") || fail "PYTHON: got one that does not run, expected a python with torchcoll"
[ -n "$MPIEXEC" ] || MPIEXEC=$(command -v mpirun || command -v mpiexec) ||
    fail "mpirun: got none on PATH, expected Open MPI, Intel MPI or MPICH. Load its module, or set MPIEXEC"

settings=("OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}")
if [ -n "$HOSTFILE" ]; then
    # 'host slots=8' of Open MPI, 'host:8' of the others.
    host=$(awk 'NF && $1 !~ /^#/ {sub(/:.*/, "", $1); print $1; exit}' "$HOSTFILE")
    [ -n "$host" ] || fail "HOSTFILE: got no host in '$HOSTFILE', expected one a line"
    settings+=("MASTER_ADDR=${MASTER_ADDR:-$host}" "MASTER_PORT=${MASTER_PORT:-$((20000 + $$ % 10000))}")
fi
[ -t 1 ] || settings+=(TERM=dumb) # Open MPI gives the ranks a terminal even then

run=("$MPIEXEC" -n "$NPROC")
version=$("$MPIEXEC" --version 2>&1) || fail "$MPIEXEC --version: got an error: ${version%%$'\n'*}"
case $version in
    *'Open MPI'* | *OpenRTE* | *[Pp][Rr][Rr][Tt][Ee]*)
        # By default it binds two ranks to a core each: gloo's threads want more than one.
        map=${PPN:+ppr:$PPN:node}
        [ -n "$HOSTFILE" ] || map+=:OVERSUBSCRIBE
        run+=(--bind-to none ${map:+--map-by "$map"})
        [ "$(id -u)" -ne 0 ] || run+=(--allow-run-as-root)
        [ -z "$HOSTFILE" ] || run+=(--hostfile "$HOSTFILE")
        for setting in "${settings[@]}"; do run+=(-x "$setting"); done
        ;;
    *'Intel(R) MPI'* | *HYDRA*)
        [ -z "$HOSTFILE" ] || run+=(-f "$HOSTFILE")
        [ -z "$PPN" ] || run+=(-ppn "$PPN")
        for setting in "${settings[@]}"; do run+=(-genv "${setting%%=*}" "${setting#*=}"); done
        ;;
    *) fail "$MPIEXEC --version: got '${version%%$'\n'*}', expected Open MPI, Intel MPI or MPICH" ;;
esac
# shellcheck disable=SC2206  # MPI_ARGS holds several words
run+=($MPI_ARGS "$PYTHON" -m "torchcoll.$module" "$@")
echo "+ $(printf '%q ' "${run[@]}")" >&2
exec "${run[@]}"

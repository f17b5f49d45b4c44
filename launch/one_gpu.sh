#!/usr/bin/env bash
# Rehearse on one GPU: several real NCCL ranks share it. Everything runs as on a cluster, and what
# it measures says nothing about bandwidth.
#
#   bash launch/one_gpu.sh [-n RANKS] [COLLECTIVE] [ARGUMENTS...]
#   bash launch/one_gpu.sh -n 4 allreduce -b 1K -e 1M    ARGUMENTS go to torchcoll.allreduce
#   bash launch/one_gpu.sh -n 1 suite --mode graph    one rank is no rehearsal, but real
#   bash launch/one_gpu.sh --all                         every test that needs a GPU, and a
#                                                        demonstration, into one file of RESULTS
#
# -n RANKS      2 without it
# NO_INSTALL=1  install nothing: PYTHON with its torch, as it is (rich and pytest are not needed)
# PYTHON=...    the python to use, or to make .venv from
# RESULTS=...   folder for the file of --all (results)
set -euo pipefail
# shellcheck source=launch/install.sh
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"

ranks=2 all='' module=''
while [ $# -gt 0 ] && [ -z "$module" ]; do
    case $1 in
        -h | --help)
            sed -n 's/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed -e 1d -e '/^shellcheck/d'
            exit
            ;;
        -n)
            ranks=${2:-}
            case $ranks in
                '' | 0* | *[!0-9]*) fail "-n: got '$ranks', expected a whole number from 1" 2 ;;
            esac
            shift 2
            ;;
        --all)
            all=1
            shift
            [ $# -eq 0 ] || fail "--all: got '$*' after it, expected nothing" 2
            ;;
        -*) break ;; # the collective's own
        *)
            module_of "$1"
            shift
            ;;
    esac
done
module=${module:-allreduce}

if [ -n "${NO_INSTALL:-}" ]; then
    find_python
    export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
else
    install_torchcoll "$ROOT/.venv" plot
    PYTHON=$VENV/bin/python
fi

# The last line only: some builds print a greeting.
found=$("$PYTHON" -W ignore -c 'if 1:
    import torch
    there = torch.cuda.is_available() and torch.distributed.is_nccl_available()
    print("yes" if there else torch.__version__)' 2>/dev/null | tail -n 1) ||
    fail "torch of $PYTHON: got none, expected 2.6 or newer. Name a python that has it: PYTHON=..." 4
[ "$found" = yes ] || fail "GPU: got none that torch $found of $PYTHON can use with NCCL, \
expected one. python -m torchcoll doctor says why" 4

# One rank owns the GPU and is no rehearsal.
start() {
    local ranks=$1 module=$2 rehearse=(--rehearse)
    shift 2
    [ "$ranks" -gt 1 ] || rehearse=()
    run=("$PYTHON" -m torch.distributed.run --standalone --nproc-per-node "$ranks"
        -m "torchcoll.$module" --backend nccl "${rehearse[@]+"${rehearse[@]}"}" "$@")
    say "$(printf '%q ' "${run[@]}")"
}
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # torchrun would, and print a paragraph about it

if [ -z "$all" ]; then
    start "$ranks" "$module" "$@"
    exec "${run[@]}"
fi

# -- --all -------------------------------------------------------------------------------------

folder=${RESULTS:-$ROOT/results}
mkdir -p "$folder" 2>/dev/null || true
[ -w "$folder" ] || fail "$folder: cannot be written. Name another: RESULTS=/path/to/folder" 2
output=$folder/one-gpu-$(date -u +%Y-%m-%d).txt
number=2
while [ -e "$output" ]; do
    output=$folder/one-gpu-$(date -u +%Y-%m-%d)-$number.txt
    number=$((number + 1))
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

versions() {
    "$PYTHON" -W ignore - <<'END'
import platform, torch, torchcoll
properties = torch.cuda.get_device_properties(0)
print(f"GPU: {properties.name}, {properties.total_memory / 2**30:.0f} GiB; "
      f"{torch.cuda.device_count()} visible")
library = "RCCL" if torch.version.hip else "NCCL"
print(f"torchcoll {torchcoll.__version__}, torch {torch.__version__}, {library} "
      f"{'.'.join(map(str, torch.cuda.nccl.version()))}, Python {platform.python_version()}, "
      f"Linux {platform.release()}")
END
    nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null |
        awk 'NR == 1 { print "driver " $0 }' || true
    git -C "$ROOT" log -1 --format='commit %h of %cs' 2>/dev/null || true
}

# shown TITLE RANKS MODULE ARGUMENTS...: the table only; what was said on stderr where it failed.
shown() {
    local title=$1
    shift
    printf '\n== %s\n\n' "$title"
    local kept=(--no-output)
    [[ " $* " != *' --library-log '* ]] || kept=(-J forced.jsonl) # its logs lie next to the file
    (cd "$scratch" && rm -rf forced.jsonl*)
    start "$@" "${kept[@]}" 2>/dev/null
    printf '$ torchrun %s\n\n' "${run[*]:3}"
    (cd "$scratch" && timeout 240 "${run[@]}" 2>"$scratch/stderr") || {
        status=1
        printf 'FAILED\n'
        tail -n 20 "$scratch/stderr"
    }
}

# forced RANKS: did NCCL do as it was told? The column algorithm is from its log.
forced() {
    local ranks=$1
    for algorithm in ring tree; do
        (
            export NCCL_ALGO=$algorithm NCCL_PROTO=simple
            shown "rehearsal with $ranks ranks: NCCL_ALGO=$algorithm NCCL_PROTO=simple" "$ranks" \
                allreduce --library-log --sizes 4K,1M -n 20
            exit "$status"
        ) || status=1
    done
}

# NCCL's own topology of this machine, and how torchcoll reads it.
dumped() {
    printf '\n== topology as NCCL dumps it\n'
    start 2 allreduce --sizes 8 -n 1 --no-output 2>/dev/null
    (
        export NCCL_TOPO_DUMP_FILE=$scratch/topo.xml
        cd "$scratch" && timeout 240 "${run[@]}" >"$scratch/stderr" 2>&1
    ) || {
        status=1
        printf 'FAILED\n'
        tail -n 20 "$scratch/stderr"
    }
    cat "$scratch/topo.xml" || status=1
    # Without defusedxml it says so.
    "$PYTHON" -m torchcoll log "$scratch/topo.xml" || true
}

everything() {
    printf 'one GPU, shared: bandwidth of several ranks says nothing about any machine\n'
    date -u '+%Y-%m-%d %H:%M:%S UTC'
    versions
    status=0
    printf '\n== torchcoll doctor\n\n'
    "$PYTHON" -W ignore -m torchcoll doctor || true # what it finds is not what fails here
    printf '\n== tests marked cuda\n\n'
    # The tests start their own ranks, each with the variables of a launcher. Without pytest, which
    # would load what every other test needs too.
    "$PYTHON" -W ignore "$ROOT/tests/test_cuda.py" || status=1
    shown 'one rank: all collectives, verified' 1 suite --sizes 4K,16M,256M --max-time 0.3
    for mode in synchronized back-to-back blocking graph; do
        shown "one rank: $mode" 1 allreduce --mode "$mode" --op avg --sizes 4K,1M,256M -n 200
    done
    shown 'one rank: flushed caches' 1 allreduce --buffer-reuse flush --op avg --sizes 4K,64M -n 50
    shown 'one rank: misaligned buffers' 1 allreduce --misalign 4 --op avg --sizes 4K,64M -n 50
    shown 'rehearsal with 2 ranks: a policy of CTAs' 2 allreduce --communicator-config cta_policy=efficiency --sizes 64K,4M -n 20
    for ranks in 2 4; do
        shown "rehearsal with $ranks ranks" "$ranks" suite --sizes 4K,1M -n 20 -r 1
    done
    for init in lazy eager; do
        shown "rehearsal with 2 ranks: $init" 2 allreduce --init "$init" --sizes 64K -n 20
    done
    for ranks in 2 4; do
        forced "$ranks"
    done
    shown 'rehearsal with 3 ranks: pairs' 3 pairs --sizes 64K -n 5
    for buffers in registered symmetric; do
        shown "one rank: $buffers buffers" 1 allreduce --buffers "$buffers" --op avg --sizes 64M -n 50
    done
    implementations=own,one_shot,two_shot,multimem,multimem_one_shot
    for ranks in 1 2; do
        shown "$ranks of 1 GPU: torch's symmetric memory" "$ranks" suite --sizes 64K,16M -n 50 \
            --collectives all_reduce,all_gather,reduce_scatter --implementation "$implementations"
    done
    shown 'one rank: asynchronous' 1 allreduce --async --op avg --sizes 4K,64M -n 50
    shown 'one rank: in groups of 4' 1 allgather --coalesce 4 --sizes 4K,64M -n 50
    for ranks in 1 2; do
        shown "$ranks of 1 GPU: concurrent with a matrix product" "$ranks" allreduce --op avg \
            --concurrent matmul:64M --sizes 1M,256M -n 20
    done
    shown 'one rank: concurrent with a copy' 1 allreduce --op avg --concurrent copy:256M --sizes 256M -n 20
    dumped
    printf '\n'
    if [ "$status" -ne 0 ]; then
        printf 'something FAILED, see above\n'
        return 1
    fi
    printf 'all passed\n'
}

say "to $output"
{ everything 2>&1 || touch "$scratch/failed"; } | tee "$output"
[ ! -e "$scratch/failed" ]

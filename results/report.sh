#!/usr/bin/env bash
# Makes the report of one folder here, or of all: bash results/report.sh [FOLDER [OUT]]
# Without OUT in place of the one that is kept. A folder that has about.md and claims.md gets them below
# its title and at its end: what its figures are, and what the document it is of claims, beside ours.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=results
[ $# -lt 2 ] || out=$(realpath "$2")
cd "$here/.."
make() {
    local name=$1 page
    shift
    page=$out/$name/report.md
    mkdir -p "$out/$name"
    "${PYTHON:-python3}" -m torchcoll report "$@" -o "$page" --force
    [ -f "results/$name/claims.md" ] || return 0
    {
        head -n 2 "$page"
        cat "results/$name/about.md"
        tail -n +2 "$page"
        echo
        cat "results/$name/claims.md"
    } > "$page.new"
    mv "$page.new" "$page"
}
for name in ${1:-gloo-oneccl-2ranks h200-8gpu-kernels a100-8gpu-baseline nccl-transitions \
    oneccl-cold-scaling simulator-hgx-h100}; do
    case $name in
    h200-8gpu-kernels)
        make "$name" "generic=results/$name/generic.jsonl" "nvidia=results/$name/nvidia.jsonl" ;;
    a100-8gpu-baseline)
        make "$name" "results/$name/curve.jsonl" "results/$name/curve-3gpu.jsonl" ;;
    nccl-transitions)
        make "$name" "results/$name/a100-8gpu.jsonl" ;;
    oneccl-cold-scaling)
        make "$name" results/"$name"/synthetic-*ranks.txt ;;
    simulator-hgx-h100)
        make "$name" measured=results/h200-8gpu-kernels/generic.jsonl \
            "model=results/$name/analytical.csv" --filter collective=all_reduce ;;
    *)
        make "$name" "results/$name" ;;
    esac
done

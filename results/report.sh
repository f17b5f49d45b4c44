#!/usr/bin/env bash
# Makes the report of one folder here, or of all: bash results/report.sh [FOLDER [OUT]]
# Without OUT in place of the one that is kept.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=results
[ $# -lt 2 ] || out=$(realpath "$2")
cd "$here/.."
make() {
    local name=$1
    shift
    mkdir -p "$out/$name"
    "${PYTHON:-python3}" -m torchcoll report "$@" -o "$out/$name/report.md" --force
}
for name in ${1:-gloo-oneccl-2ranks h200-8gpu-kernels a100-8gpu-baseline}; do
    case $name in
    h200-8gpu-kernels)
        make "$name" "generic=results/$name/generic.jsonl" "nvidia=results/$name/nvidia.jsonl" ;;
    a100-8gpu-baseline)
        make "$name" "results/$name/curve.jsonl" "results/$name/curve-3gpu.jsonl" ;;
    *)
        make "$name" "results/$name" ;;
    esac
done

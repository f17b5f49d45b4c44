#!/usr/bin/env bash
# Makes the result files of this folder from the published tables beside them: bash results/import.sh DIR
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?usage: bash results/import.sh DIR}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$here/h200-8gpu-kernels"
for kernel in generic nvidia; do
    release=6.8.0-51-generic
    [ "$kernel" = generic ] || release=6.8.0-1019-nvidia
    "${PYTHON:-python3}" -m torchcoll convert tables.md --from plain \
        --map "size=Size,algbw=Algbw (GB/s) - ${kernel^} Kernel" \
        --ranks 8 --backend nccl --statistic mean \
        --label "kernel=$release" --label "machine=one server, 8 H200" --label gpu=H200 --label hosts=1 \
        -o "$out/$kernel.jsonl"
done
cd "$here/a100-8gpu-baseline"
for curve in curve:8 curve-3gpu:3; do
    "${PYTHON:-python3}" -m torchcoll convert "${curve%:*}.csv" --from plain \
        --ranks "${curve#*:}" --backend nccl --statistic mean \
        --label gpu=A100-SXM4-80GB --label hosts=1 --label machine=skampere1 \
        -o "$out/${curve%:*}.jsonl"
done
cd "$here/nccl-transitions"
"${PYTHON:-python3}" -m torchcoll convert a100-8gpu.csv --from plain --backend nccl --statistic mean \
    --label gpu=A100-SXM4-40GB --label hosts=1 --label "machine=one host of SuperBench's tests" \
    -o "$out/a100-8gpu.jsonl"

# ruff: noqa: E501
"""Plans of trainings that others have published, against the speed and memory that they measured.

    python tests/benchmarks/published_runs.py [find [FIRST END]]

find: each layout beside the best one of a search with the batch of the run (minutes).

Each run is planned with the default range of its GPU. The figures are partly fitted: these two
ranges (H100, A100) were chosen with all dense runs in view; the bytes of a logit, the inputs that
DTensor gathers, latent experts, layers without attention, and what Megatron-LM and DeepEP hide were
corrected after the rows had been seen. The seven virtual stages of [3] are assumed. The speed of runs with 8-bit
matrices is left out, because a plan has the peak of 16 bits. ``ratio``: tokens per second of a GPU,
planned / published; ``inside``: whether the published speed is in the plan's interval. Published
memory is what torch's allocator reserves; a plan has the memory with fused kernels, and without.

Sources: [1] pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md (H100 of 500 W),
[2] pytorch/torchtitan docs/performance.md, [3] arXiv 2407.21783 table 4 (operations / s of a GPU),
[4] NVIDIA-NeMo/Automodel docs/performance-summary.md of 2025-10, [5] the same of 26.02,
[6] NVIDIA-NeMo/Megatron-Bridge docs/performance-summary-archive.md (tokens forced to balance),
[7] pytorch/torchtitan benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md (vanilla TP, compiled),
[8] pytorch/torchtitan docs/performance.md of 2024 (405B on 128 H100 of 94 GB),
[9] NVIDIA/dgxc-benchmarking llama3.1/README_8b.md, _70b.md, _405b.md, nemo_megatron/README_175b.md,
nemotron/README_15b.md, _340b.md (NeMo 24.09 and 24.11, DGX H100; fewest and most GPUs),
[10] mosaicml/llm-foundry scripts/train/benchmarking/README.md (H100 80 GB; MPT planned as GPT-2).
Layouts of [4] and [5] have the activation checkpointing and DeepEP of their recipes, in
NVIDIA-NeMo/Automodel examples/benchmark/configs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torchcoll
from torchcoll.parts.training import planning
from torchcoll.parts.training.architectures import parse_config, read_architecture
from torchcoll.parts.training.layouts import parse_batch, parse_layout

PUBLIC = Path(__file__).parents[1] / "training" / "public_configs.json"
# hidden, feed-forward, layers, heads, key/value heads, vocabulary; of the model type in front.
WIDTHS = {
    "llama-2-13b": ("llama", 5120, 13824, 40, 40, 40, 32000),
    "llama-2-70b": ("llama", 8192, 28672, 80, 64, 8, 32000),
    "gpt-3-175b": ("gpt2", 12288, 49152, 96, 96, 96, 51200),
    "nemotron-4-15b": ("nemotron", 6144, 24576, 32, 48, 8, 256000),
    "nemotron-4-340b": ("nemotron", 18432, 73728, 96, 96, 8, 256000),
    "mpt-3b": ("gpt2", 2560, 10240, 32, 32, 32, 50368),
    "mpt-7b": ("gpt2", 4096, 16384, 32, 32, 32, 50368),
    "mpt-13b": ("gpt2", 5120, 20480, 40, 40, 40, 50368),
    "mpt-30b": ("gpt2", 7168, 28672, 48, 64, 64, 50368),
    "mpt-70b": ("gpt2", 8192, 32768, 80, 64, 64, 50368),
}
NAMES = {
    "gpt2": ("n_embd", "n_inner", "n_layer", "n_head", "", "vocab_size"),
    "": (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
    ),
}
MIXED = {"dtype": "float32", "param_dtype": "bfloat16", "reduce_dtype": "float32"}
# FSDP's PURE of MosaicML: gradients are reduced in bfloat16.
PURE = {"dtype": "float32", "param_dtype": "bfloat16", "reduce_dtype": "bfloat16"}
MEGATRON: dict[str, str] = {"dtype": "bfloat16"}
NEMO = {"dtype": "bfloat16", "reduce_dtype": "bfloat16"}  # grad_sync_dtype of its recipes
# FLOP/s of torchtitan's H100 of 500 W: between those of the SXM and the NVL card (note 2 of [1]).
OF_500_WATTS = (1, 7, 8)
LIMITED = (989e12 + 835e12) / 2


@dataclass(frozen=True)
class Published:
    """A run: tokens_s of a GPU (or flops of a GPU), memory in GiB; None if not stated."""

    source: int
    model: str
    machine: str
    layout: str
    batch: str
    tokens_s: float | None = None
    flops: float | None = None
    gib: float | None = None
    dtypes: Mapping[str, str] = field(default_factory=lambda: MIXED)
    remark: str = ""


RUNS = [
    Published(1, "llama-3-8b", "8xH100", "fsdp=8,sac", "2x8192", 5762, None, 82.4),
    Published(1, "llama-3-8b", "8xH100", "fsdp=8,sac", "2x8192", 6667, None, 77.0, remark="compiled"),
    Published(1, "llama-3-8b", "8xH100", "fsdp=128,sac", "2x8192", 5605, None, 67.0),
    Published(1, "llama-3-8b", "8xH100", "fsdp=128,sac", "2x8192", 6514, None, 62.0, remark="compiled"),
    Published(1, "llama-3-8b", "8xH100", "fsdp=8,ckpt", "1x32768", None, None, 83.9, remark="8 bits"),
    Published(1, "llama-3-8b", "8xH100", "fsdp=4,cp=2,ckpt", "1x65536", None, None, 84.2, remark="8 bits"),
    Published(1, "llama-3-8b", "8xH100", "fsdp=2,cp=4,ckpt", "1x131072", None, None, 84.0, remark="8 bits"),
    Published(1, "llama-3-70b", "8xH100", "fsdp=32,tp=8,sp,ckpt", "16x8192", None, None, 71.9, remark="8 bits"),
    Published(1, "llama-3-405b", "8xH100", "fsdp=8,tp=8,pp=8,sp,ckpt", "32x1x8192", None, None, 82.5, remark="8 bits"),
    Published(1, "llama-3-405b", "8xH100", "fsdp=8,tp=8,pp=8x2,sp,ckpt", "32x1x8192", None, None, 72.7, remark="8 bits"),
    Published(1, "llama-3-405b", "8xH100", "fsdp=8,tp=8,pp=8,sp,ckpt", "8x1x32768", None, None, 75.3, remark="8 bits"),
    Published(2, "llama-3-8b", "aws-p4de", "fsdp=64,sac", "1x8192", 2973),
    Published(2, "llama-3-70b", "aws-p4de", "fsdp=64,ckpt", "1x8192", 331),
    Published(2, "llama-2-13b", "aws-p4de", "fsdp=64", "2x4096", 2162),
    Published(2, "llama-2-13b", "aws-p4de", "fsdp=64,sac", "2x4096", 1904),
    Published(2, "llama-2-70b", "aws-p4de", "fsdp=64,sac", "1x4096", 355),
    Published(2, "llama-2-70b", "aws-p4de", "fsdp=64,ckpt", "2x4096", 353),
    Published(3, "llama-3-405b", "8xH100", "zero2=64,tp=8,pp=16x7,sp", "32x1x8192", None, 430e12, dtypes=MEGATRON),
    Published(3, "llama-3-405b", "8xH100", "zero2=128,tp=8,pp=16x7,sp", "16x1x8192", None, 400e12, dtypes=MEGATRON),
    Published(3, "llama-3-405b", "8xH100", "zero2=8,tp=8,pp=16x7,cp=16,sp", "16x1x131072", None, 380e12, dtypes=MEGATRON),
    Published(4, "DeepSeek-R1", "8xH100", "fsdp=256,pp=4x8,ep=64,deepep,ckpt", "32x1x4096", 865),
    Published(4, "DeepSeek-R1", "8xH100", "fsdp=64,pp=4x8,ep=64,deepep,ckpt", "8x1x4096", 1002),
    Published(4, "Kimi-K2-Instruct", "8xH100", "fsdp=32,pp=8x4,ep=32,deepep,ckpt", "16x1x4096", 924),
    Published(4, "Qwen3-30B-A3B-FP8", "8xH100", "fsdp=8,ep=8,deepep,ckpt", "16x4x4096", 12040),
    Published(4, "gpt-oss-20b", "8xH100", "fsdp=8,ep=8,deepep", "16x2x4096", 13058),
    Published(4, "gpt-oss-120b", "8xH100", "fsdp=64,ep=64,deepep", "4x2x4096", 7626),
    Published(5, "NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "8xH100", "fsdp=64,ep=64,deepep,ckpt", "4x2x4096", 4497),
    Published(5, "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "8xH100", "fsdp=8,ep=8,deepep,ckpt", "16x4x4096", 16789),
    Published(6, "gpt-oss-120b", "8xH100", "zero1=16,pp=4,ep=8", "8x4x4096", 5630, dtypes=MEGATRON),
    Published(6, "gpt-oss-120b", "8xH100", "zero1=16,pp=4,ep=8", "80x1x4096", 5993, dtypes=MEGATRON),
    Published(1, "llama-3-8b", "8xH100", "fsdp=1,cp=8,ckpt", "1x262144", None, None, 84.5, remark="8 bits"),
    Published(1, "llama-3-405b", "8xH100", "fsdp=4,tp=8,pp=8,cp=2,sp,ckpt", "8x1x65536", None, None, 75.9, remark="8 bits"),
    Published(1, "llama-3-405b", "8xH100", "fsdp=2,tp=8,pp=8,cp=4,sp,ckpt", "8x1x131072", None, None, 77.1, remark="8 bits"),
    Published(1, "llama-3-405b", "8xH100", "fsdp=1,tp=8,pp=8,cp=8,sp,ckpt", "8x1x262144", None, None, 84.9, remark="8 bits"),
    Published(7, "llama-3-70b", "8xH100", "fsdp=32,tp=8,sp,ckpt", "16x8192", 597.3),
    Published(7, "llama-3-8b", "8xH100", "fsdp=8,tp=8,sp,sac", "12x8192", 4378),
    Published(8, "llama-3-405b", "8xH100", "fsdp=16,tp=8,sp,ckpt", "2x8192", 109),
    Published(9, "llama-3-8b", "8xH100", "zero1=4,cp=2", "32x1x8192", 10153, dtypes=NEMO),
    Published(9, "llama-3-8b", "8xH100", "zero1=64,cp=2", "32x1x8192", 10005, dtypes=NEMO),
    Published(9, "llama-3-70b", "8xH100", "zero1=2,tp=4,pp=4x5,cp=2,sp,tp-overlap", "64x1x8192", 1113, dtypes=NEMO),
    Published(9, "llama-3-70b", "8xH100", "zero1=64,tp=4,pp=4x5,cp=2,sp,tp-overlap", "64x1x8192", 1098, dtypes=NEMO),
    Published(9, "llama-3-405b", "8xH100", "zero1=4,tp=8,pp=9x7,cp=2,sp,tp-overlap", "63x1x8192", 208.4, dtypes=NEMO),
    Published(9, "llama-3-405b", "8xH100", "zero1=16,tp=8,pp=9x7,cp=2,sp,tp-overlap", "63x1x8192", 203.4, dtypes=NEMO),
    Published(9, "gpt-3-175b", "8xH100", "zero1=4,tp=4,pp=8x12,sp,tp-overlap", "64x1x2048", 493.0, dtypes=NEMO),
    Published(9, "gpt-3-175b", "8xH100", "zero1=64,tp=4,pp=8x12,sp,tp-overlap", "64x1x2048", 482.4, dtypes=NEMO),
    Published(9, "nemotron-4-15b", "8xH100", "zero1=4,tp=4,sp,tp-overlap", "4x4x4096", 5826, dtypes=NEMO),
    Published(9, "nemotron-4-15b", "8xH100", "zero1=512,tp=4,sp,tp-overlap", "4x4x4096", 5675, dtypes=NEMO),
    Published(9, "nemotron-4-340b", "8xH100", "zero1=2,tp=8,pp=8x12,sp,tp-overlap", "16x1x4096", 222.1, dtypes=NEMO),
    Published(9, "nemotron-4-340b", "8xH100", "zero1=32,tp=8,pp=8x12,sp,tp-overlap", "16x1x4096", 211.6, dtypes=NEMO),
    Published(10, "mpt-70b", "8xH100", "fsdp=64,ckpt", "4x8x2048", 1039, dtypes=PURE),
    Published(10, "mpt-30b", "8xH100", "fsdp=32,ckpt", "3x14x2048", 2308, dtypes=PURE),
    Published(10, "mpt-13b", "8xH100", "fsdp=64", "2x2048", 4800, dtypes=PURE),
    Published(10, "mpt-7b", "8xH100", "fsdp=8", "6x2048", 10643, dtypes=PURE),
    Published(10, "mpt-7b", "8xH100", "fsdp=8,ckpt", "2x8x8192", 6935, dtypes=PURE),
    Published(10, "mpt-3b", "8xH100", "fsdp=64", "3x6x2048", 22525, dtypes=PURE),
]  # fmt: skip


def config_of(name: str, folder: Path) -> str:
    """A bundled name, or the path of the model's config."""
    if name.startswith("llama-3"):
        return name
    if name in WIDTHS:
        kind, *widths = WIDTHS[name]
        names = NAMES.get(str(kind), NAMES[""])
        config: dict[str, Any] = {"model_type": kind, **dict(zip(names, widths, strict=True))}
        config["n_positions"] = 4096
    else:
        public = json.loads(PUBLIC.read_text())
        config = public[name]["config"]
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return str(path)


def of_500_watts(run: Published) -> Any:
    """Patches the peak of the GPU where it is that of 500 W."""
    limited = run.source in OF_500_WATTS and run.machine == "8xH100"
    return mock.patch.dict(planning._PEAK, {"H100": LIMITED} if limited else {})


def planned(run: Published, folder: Path) -> Any:
    config = config_of(run.model, folder)
    with of_500_watts(run):
        return torchcoll.plan(
            config, run.layout, batch=run.batch, machine=run.machine, **run.dtypes
        )


def find(first: int, end: int) -> None:
    """Prints for each of these runs its layout beside the best one that --find finds."""
    near = total = 0
    with tempfile.TemporaryDirectory() as name:
        for run in RUNS[first:end]:
            layout, batch = parse_layout(run.layout), parse_batch(run.batch)
            sequences = batch.micro_batches * batch.sequences * layout.replicas * layout.shards
            memory_gb = 96 if run.source in OF_500_WATTS and "H100" in run.machine else None
            with of_500_watts(run):
                best = torchcoll.compare_plans(
                    config_of(run.model, Path(name)),
                    "find",
                    ranks=layout.ranks,
                    batch=f"{sequences}x{batch.tokens:g}",
                    machine=run.machine,
                    memory_gb=memory_gb,
                    **run.dtypes,
                ).rows[0]
            step = planned(run, Path(name)).step
            ratio = step.step_ns[0] / best.step.step_ns[0]
            near, total = near + (ratio <= 1.1), total + 1
            texts = (f"[{run.source}]", run.model, run.layout, run.batch, f"{ratio:.2f}")
            print(*texts, f"{step.memory.total / 1e9:.0f} GB", best.layout.name, flush=True)
    print(f"the published layout is within 10 % of the best one in {near} of {total}")


def rows(folder: Path) -> Iterator[tuple[Published, Any, float | None]]:
    for run in RUNS:
        plan = planned(run, folder)
        compute = plan.step.compute
        published = run.tokens_s
        if run.flops:
            config = config_of(run.model, folder)
            path = Path(config)
            read = parse_config(json.loads(path.read_text()), "x") if path.exists() else None
            model = read or read_architecture(config)
            tokens = float(run.batch.split("x")[-1])
            published = run.flops / model.flops_of_token(tokens)
        yield run, plan.step, published if compute else None


WIDTH = (6, 40, 34, 12, 8, 8, 8, 8, 5, 6, 5, 5, 7, 5, 8)


def show(texts: Sequence[str]) -> None:
    cells = zip(texts, WIDTH, strict=False)
    print("  ".join(text.ljust(width) for text, width in cells).rstrip())


def main() -> None:
    heads = ("source", "model", "layout", "batch", "tokens/s", "planned", "low", "high", "ratio")
    show((*heads, "inside", "GiB", "fused", "unfused", "ratio"))
    near = inside = timed = fits = sized = 0
    with tempfile.TemporaryDirectory() as name:
        for run, step, published in rows(Path(name)):
            texts = [f"[{run.source}]", run.model, run.layout, run.batch]
            if published:
                tokens = step.compute.tokens
                value, low, high = (tokens / end * 1e9 for end in step.step_ns)
                ratio, within = value / published, high <= published <= low
                timed, near, inside = timed + 1, near + (abs(ratio - 1) <= 0.15), inside + within
                texts += [f"{published:,.0f}", f"{value:,.0f}", f"{high:,.0f}", f"{low:,.0f}"]
                texts += [f"{ratio:.2f}", "yes" if within else "no"]
            else:
                texts += ["-"] * 6
            if run.gib:
                fused, unfused = step.memory.total / 2**30, step.memory.most / 2**30
                middle = (fused + unfused) / 2 / run.gib
                sized, fits = sized + 1, fits + (abs(middle - 1) <= 0.2)
                texts += [f"{run.gib}", f"{fused:.1f}", f"{unfused:.1f}", f"{middle:.2f}"]
            texts += ["-"] * (14 - len(texts))
            show((*texts, run.remark))
            sys.stdout.flush()
    print(f"speed: {near} of {timed} within 15 %, {inside} of {timed} in the interval of the plan")
    print(f"memory: {fits} of {sized} within 20 % (of the middle of fused and unfused)")


if __name__ == "__main__":
    if sys.argv[1:2] == ["find"]:
        find(*map(int, sys.argv[2:] or (0, len(RUNS))))
    else:
        main()

# ruff: noqa: E501
"""Plans of trainings that others have published, against the speed and memory that they measured.

    python tests/benchmarks/published_runs.py

Each run is planned with the default range of MFU of its GPU. The figures are partly fitted: these
two ranges (H100, A100) were chosen with the runs [1] to [3] in view, and the bytes of a logit, the
inputs that DTensor gathers and the latent experts were corrected after the rows [1] and [5] had
been seen. The seven virtual stages of [3] are assumed. The speed of runs with 8-bit
matrices is left out, because a plan has the peak of 16 bits. ``ratio``: tokens per second of a GPU,
planned / published; ``inside``: whether the published speed is in the plan's interval. Published
memory is what torch's allocator reserves; a plan has the memory with fused kernels, and without.

Sources: [1] pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md (H100 of 500 W),
[2] pytorch/torchtitan docs/performance.md, [3] arXiv 2407.21783 table 4 (operations / s of a GPU),
[4] NVIDIA-NeMo/Automodel docs/performance-summary.md of 2025-10, [5] the same of 26.02,
[6] NVIDIA-NeMo/Megatron-Bridge docs/performance-summary-archive.md (tokens forced to balance).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torchcoll
from torchcoll.parts.training.architectures import parse_config, read_architecture

PUBLIC = Path(__file__).parents[1] / "training" / "public_configs.json"
LLAMA_2 = {"model_type": "llama", "vocab_size": 32000}
WIDTHS = {
    "llama-2-13b": (5120, 13824, 40, 40, 40),
    "llama-2-70b": (8192, 28672, 80, 64, 8),
}
MIXED = {"dtype": "float32", "param_dtype": "bfloat16", "reduce_dtype": "float32"}


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
    mixed: bool = True
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
    Published(3, "llama-3-405b", "8xH100", "zero2=64,tp=8,pp=16x7,sp", "32x1x8192", None, 430e12, mixed=False),
    Published(3, "llama-3-405b", "8xH100", "zero2=128,tp=8,pp=16x7,sp", "16x1x8192", None, 400e12, mixed=False),
    Published(3, "llama-3-405b", "8xH100", "zero2=8,tp=8,pp=16x7,cp=16,sp", "16x1x131072", None, 380e12, mixed=False),
    Published(4, "DeepSeek-R1", "8xH100", "fsdp=256,pp=4x8,ep=64", "32x1x4096", 865),
    Published(4, "DeepSeek-R1", "8xH100", "fsdp=64,pp=4x8,ep=64", "8x1x4096", 1002),
    Published(4, "Kimi-K2-Instruct", "8xH100", "fsdp=32,pp=8x4,ep=32", "16x1x4096", 924),
    Published(4, "Qwen3-30B-A3B-FP8", "8xH100", "fsdp=8,ep=8", "16x4x4096", 12040),
    Published(4, "gpt-oss-20b", "8xH100", "fsdp=8,ep=8", "16x2x4096", 13058),
    Published(4, "gpt-oss-120b", "8xH100", "fsdp=64,ep=64", "4x2x4096", 7626),
    Published(5, "NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "8xH100", "fsdp=64,ep=64", "4x2x4096", 4497),
    Published(5, "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "8xH100", "fsdp=8,ep=8", "16x4x4096", 16789),
    Published(6, "gpt-oss-120b", "8xH100", "zero1=16,pp=4,ep=8", "8x4x4096", 5630, mixed=False),
    Published(6, "gpt-oss-120b", "8xH100", "zero1=16,pp=4,ep=8", "80x1x4096", 5993, mixed=False),
]  # fmt: skip


def config_of(name: str, folder: Path) -> str:
    """A bundled name, or the path of the model's config."""
    if name.startswith("llama-3"):
        return name
    if name in WIDTHS:
        names = ("hidden_size", "intermediate_size", "num_hidden_layers")
        names += ("num_attention_heads", "num_key_value_heads")
        config: dict[str, Any] = {**LLAMA_2, **dict(zip(names, WIDTHS[name], strict=True))}
    else:
        public = json.loads(PUBLIC.read_text())
        config = public[name]["config"]
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return str(path)


def planned(run: Published, folder: Path) -> Any:
    options = MIXED if run.mixed else {}
    config = config_of(run.model, folder)
    return torchcoll.plan(config, run.layout, batch=run.batch, machine=run.machine, **options)


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
    main()

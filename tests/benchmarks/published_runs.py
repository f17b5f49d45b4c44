"""Plans of trainings that others have published, against the speed and memory that they measured.

    python tests/benchmarks/published_runs.py [find [FIRST END]]

find: each layout beside the best ones of two searches with the batch of the run (minutes of CPU):
of all that --find searches, and of what the program of the publication could do (PROGRAMS).

Each run is planned with the default range of its GPU. The figures are partly fitted: these two
ranges (H100, A100) were chosen with all dense runs in view; the bytes of a logit, the inputs that
DTensor gathers, latent experts, layers without attention, and what Megatron-LM and DeepEP hide were
corrected after the rows had been seen. The stages of [3]: the first has the embedding alone, the
last the head (section 3.3.2), which are 16 x 8 of 126 layers. The speed of
runs with 8-bit matrices is left out, because a plan has the peak of 16 bits. ``ratio``: tokens per
second of a GPU, planned / published; ``inside``: whether the published speed is in the plan's
interval. Published memory is what torch's allocator reserves; a plan has the memory with fused
kernels, and without. published_runs.csv has the runs, published_models.csv the widths of models.

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
NVIDIA-NeMo/Automodel examples/benchmark/configs. Their gate is no router: it sends each token to
top_k neighbouring experts (fake_balanced_gate; nemo_automodel/components/moe/layers.py,
FakeBalancedGate), mostly on one host, where a router's are on several (``_neighbouring_copies``).
The runs of [1] with pp have as many micro-batches as stages: torchtitan's default then
(torchtitan/parallelisms/pipelining_utils.py, build_pipeline_schedule).
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torchcoll
from torchcoll.parts.training import config_projection, layouts, planning
from torchcoll.parts.training.architectures import Architecture, parse_config, read_architecture
from torchcoll.parts.training.config_projection import LayoutComparison
from torchcoll.parts.training.layouts import (
    SELECTIVE,
    Batch,
    ParallelLayout,
    parse_batch,
    parse_layout,
)
from torchcoll.parts.training.projection import FITS, UNSURE

PUBLIC = Path(__file__).parents[1] / "training" / "public_configs.json"
# Keys of a config.json for the columns of published_models.csv.
LLAMA = {
    "hidden": "hidden_size",
    "feed_forward": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "key_heads": "num_key_value_heads",
    "vocabulary": "vocab_size",
}
GPT_2 = {"hidden": "n_embd", "feed_forward": "n_inner", "layers": "n_layer", "heads": "n_head"}
DTYPES = {
    "mixed": {"dtype": "float32", "param_dtype": "bfloat16", "reduce_dtype": "float32"},
    # Of MosaicML's FSDP.
    "pure": {"dtype": "float32", "param_dtype": "bfloat16", "reduce_dtype": "bfloat16"},
    "megatron": {"dtype": "bfloat16"},
    "nemo": {"dtype": "bfloat16", "reduce_dtype": "bfloat16"},  # grad_sync_dtype of its recipes
    # from_config of nemo_automodel/_transformers/auto_model.py, and the mp_policy of its config.py.
    "automodel": {"dtype": "bfloat16", "reduce_dtype": "float32"},
}


@dataclass(frozen=True)
class Program:
    """What the program of a publication could not do at its commit, and --find searches.

    - accumulates: whether a step has several micro-batches outside of a pipeline.
    - lacks: degrees and kinds of checkpointing.
    """

    accumulates: bool = True
    lacks: tuple[str, ...] = ()


# torchtitan accumulates gradients since 2025-06-05 (#1238; 'we will not natively implement gradient
# accumulation in torchtitan for now', #292 of 2024-11-05), has cp since 2024-10-22 (#592) and pp
# since 2024-05-21 (aafe0e870); [2] was measured in 2024-04, [8] in 2024-08, [1] on 2024-12-26.
# AutoModel asserts tp = 1 (and in 2025-10 cp = 1) for models with experts, and checkpoints whole
# layers of them until 2026-06 (nemo_automodel/components/moe/parallelizer.py at 2c236e081 and
# a652fb445). MosaicML's Composer has FSDP alone, and checkpoints whole layers.
PROGRAMS = {
    1: Program(accumulates=False),
    2: Program(accumulates=False, lacks=("cp", "pp")),
    4: Program(lacks=("tp", "cp", SELECTIVE)),
    5: Program(lacks=("tp", SELECTIVE)),
    8: Program(accumulates=False, lacks=("cp",)),
    10: Program(lacks=("tp", "pp", "cp", SELECTIVE)),
}
# FLOP/s of torchtitan's H100 of 500 W: between those of the SXM and the NVL card (note 2 of [1]).
OF_500_WATTS = (1, 7, 8)
OF_FAKE_GATES = (4, 5)
LIMITED = (989e12 + 835e12) / 2
MEMORY_GB = {1: 102, 8: 100}


@dataclass(frozen=True)
class Published:
    """A run: tokens_s of a GPU (or flops of a GPU), memory in GiB; None if not stated."""

    source: int
    model: str
    machine: str
    layout: str
    batch: str
    dtypes: Mapping[str, str]
    tokens_s: float | None
    flops: float | None
    gib: float | None
    remark: str


def read_csv(name: str) -> list[dict[str, str]]:
    with open(Path(__file__).with_name(name), encoding="utf-8") as file:
        return list(csv.DictReader(file))


def as_run(row: Mapping[str, str]) -> Published:
    numbers = [float(row[name]) if row[name] else None for name in ("tokens_s", "flops", "gib")]
    texts = (row["model"], row["machine"], row["layout"], row["batch"])
    return Published(
        int(row["source"]), *texts, DTYPES[row["dtypes"]], *numbers, remark=row["remark"]
    )


RUNS = [as_run(row) for row in read_csv("published_runs.csv")]
MODELS = {row["model"]: row for row in read_csv("published_models.csv")}


def config_of(name: str, folder: Path) -> str:
    """A bundled name, or the path of the model's config."""
    if name.startswith("llama-3"):
        return name
    if name in MODELS:
        row = MODELS[name]
        names = LLAMA | (GPT_2 if row["model_type"] == "gpt2" else {})
        config: dict[str, Any] = {names[key]: int(row[key]) for key in names}
        config |= {"model_type": row["model_type"], "n_positions": 4096}
    else:
        public = json.loads(PUBLIC.read_text())
        config = public[name]["config"]
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return str(path)


def as_run_there(run: Published) -> ExitStack:
    """Patches the peak of the GPU where it is that of 500 W, and what a fake gate sends."""
    patches = ExitStack()
    limited = run.source in OF_500_WATTS and run.machine == "8xH100"
    rates = {"H100": (LIMITED, planning._RATES["H100"][1])} if limited else {}
    patches.enter_context(mock.patch.dict(planning._RATES, rates))
    if run.source in OF_FAKE_GATES:
        patches.enter_context(mock.patch.object(layouts, "_copies", _neighbouring_copies))
    return patches


def _neighbouring_copies(architecture: Architecture, layout: ParallelLayout) -> float:
    """As ``layouts._copies``, where token n visits the top_k experts from n * top_k on."""
    places = layout.ep // layouts.LINKED if layout.ep > layouts.LINKED else layout.ep
    each, top_k = architecture.experts // places, architecture.top_k
    starts = range(0, architecture.experts * top_k, top_k)
    visited = [(start + top_k - 1) // each - start // each + 1 for start in starts]
    return sum(visited) / len(visited) * (1 - 1 / places) / (1 - 1 / layout.ep)


def planned(run: Published, folder: Path) -> Any:
    config = config_of(run.model, folder)
    with as_run_there(run):
        return torchcoll.plan(
            config, run.layout, batch=run.batch, machine=run.machine, **run.dtypes
        )


def search(run: Published, config: str, program: Program) -> LayoutComparison:
    """Returns the layouts for the GPUs and the tokens of a run that a program can have."""
    layout, batch = parse_layout(run.layout), parse_batch(run.batch)
    sequences = batch.micro_batches * batch.sequences * layout.replicas * layout.shards
    candidates, shared, modes = (
        planning.candidate_layouts,
        config_projection._shared_batches,
        config_projection.checkpoint_modes,
    )

    def possible_layouts(*arguments: Any) -> list[ParallelLayout]:
        return [each for each in candidates(*arguments) if not set(program.lacks) & set(each.words)]

    def possible_batches(each: ParallelLayout, *arguments: Any) -> list[Batch]:
        batches = shared(each, *arguments)
        if each.megatron or each.pp > 1 or program.accumulates:
            return batches
        return [batch for batch in batches if batch.micro_batches == 1]

    def possible_modes(each: ParallelLayout) -> list[str]:
        return [mode for mode in modes(each) if mode not in program.lacks]

    with as_run_there(run) as patches:
        for module, name, replaced in (
            (planning, "candidate_layouts", possible_layouts),
            (config_projection, "_shared_batches", possible_batches),
            (config_projection, "checkpoint_modes", possible_modes),
        ):
            patches.enter_context(mock.patch.object(module, name, replaced))
        return torchcoll.compare_plans(
            config,
            "find",
            ranks=layout.ranks,
            batch=f"{sequences}x{batch.tokens:g}",
            machine=run.machine,
            memory_gb=MEMORY_GB.get(run.source),
            **run.dtypes,
        )


def find(first: int, end: int) -> None:
    """Prints for each of these runs its layout beside the best ones that --find finds.

    all, same, could: the step of the published layout / that of the best one found, of both
    programs, of the same one (torch or Megatron-LM), and of those that the program could have then
    and that fit as surely. fits: whether the published layout fits by its plan.
    """
    near: Counter[str] = Counter()
    names = ("all", "same", "could")
    heads = ("source", "model", "layout", "batch", *names, "fits", "memory", "CPU")
    show((*heads, "best that it could", "batch", "memory"), FOUND)
    with tempfile.TemporaryDirectory() as name:
        runs = {layout_of(run): run for run in RUNS[first:end]}.values()
        for run in runs:
            megatron = parse_layout(run.layout).megatron
            config, started = config_of(run.model, Path(name)), time.process_time()
            found = search(run, config, Program())
            seconds = time.process_time() - started
            possible = found
            if run.source in PROGRAMS:
                possible = search(run, config, PROGRAMS[run.source])
            plan = planned(run, Path(name))
            step, memory = plan.step, plan.step.memory
            fits = memory.total <= (1 + UNSURE) * found.memory_bytes
            sure = (1 + UNSURE) * memory.most <= found.memory_bytes
            same, could = (
                [row for row in rows.rows if row.layout.megatron == megatron]
                for rows in (found, possible)
            )
            could = [row for row in could if row.fits == FITS or not sure] or could
            best = (found.rows[0], same[0], could[0])
            ratios = [step.step_ns[0] / row.step.step_ns[0] for row in best]
            near.update(
                [kind for kind, ratio in zip(names, ratios, strict=True) if fits and ratio <= 1.1]
            )
            texts = [f"[{run.source}]", run.model, run.layout, run.batch]
            texts += [f"{ratio:.2f}" for ratio in ratios] + ["yes" if fits else "no"]
            texts += [f"{memory.total / 1e9:.0f} GB", f"{seconds:.1f} s"]
            texts += [best[2].layout.name, best[2].batch.text.replace(" tokens", "")]
            show([*texts, f"{best[2].memory_bytes / 1e9:.0f} GB {best[2].fits}"], FOUND)
            sys.stdout.flush()
    for kind in names:
        print(f"fits, and is within 10 % of the best: {near[kind]} of {len(runs)} ({kind})")


def layout_of(run: Published) -> tuple[str, ...]:
    return run.model, run.machine, run.layout, run.batch


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
FOUND = (6, 38, 41, 12, 5, 5, 5, 4, 6, 6, 40, 34, 12)


def show(texts: Sequence[str], widths: Sequence[int] = WIDTH) -> None:
    cells = zip(texts, widths, strict=False)
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

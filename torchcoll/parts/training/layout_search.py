"""The layouts that ``plan --find`` searches, and their flags for torchtitan and Megatron-LM.

Names of flags: torchtitan 0.3.0, torchtitan/config/configs.py; activation checkpointing is a
subcommand there and comes last (torchtitan/distributed/activation_checkpoint.py). Megatron-LM,
megatron/training/arguments.py, and the fields of TransformerConfig and ModelParallelConfig.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchcoll.core.errors import UsageError
from torchcoll.parts.curves.predictor import Predictor
from torchcoll.parts.curves.published_machine import PublishedMachine
from torchcoll.parts.training.architectures import Architecture
from torchcoll.parts.training.layouts import (
    DEEPEP,
    FSDP,
    FULL,
    HSDP,
    LINKED,
    SELECTIVE,
    ZERO1,
    Batch,
    ParallelLayout,
    check_layout,
)

FIND = "find"
_DEEPEST = 32  # stages of a pipeline
_LEAST_TOKENS = 4096  # of a sequence on each rank of cp
_VIRTUAL = (4, 12)  # of the virtual stages up to these the most are searched
_DATA = (FSDP, HSDP, ZERO1)


def candidate_layouts(
    architecture: Architecture, ranks: int, machine: Predictor | None, tokens: float
) -> list[ParallelLayout]:
    """Returns the layouts that the model can have on so many ranks.

    tp is within a host, with sp, and in Megatron-LM with tp-overlap. Pipelines have virtual stages
    that torchtitan and Megatron-LM accept. On GPUs of NVIDIA, experts exchange their tokens also by
    DeepEP. None has checkpointing: ``compare_layouts`` adds it to layouts that do not fit.

    - tokens: of a sequence, which cp splits.

    Raises UsageError if there is none.
    """
    most = machine.ranks_per_host if machine is not None else None
    linked = int(most or LINKED)
    nvidia = isinstance(machine, PublishedMachine) and not machine.links.gpu.startswith("MI")
    layouts = []
    for layout in _combinations(architecture, ranks, linked, tokens):
        try:
            check_layout(layout, architecture, layout.pp)
        except UsageError:
            continue
        layouts.append(layout)
        if nvidia and layout.ep > 1:
            layouts.append(replace(layout, dispatch=DEEPEP))
    if not layouts:
        raise UsageError("ranks", ranks, f"a number on which {architecture.source} can be laid out")
    return layouts


def _combinations(
    architecture: Architecture, ranks: int, linked: int, tokens: float
) -> Iterator[ParallelLayout]:
    powers = [1 << n for n in range(20)]
    layers = len(architecture.layers)
    divided = bool(architecture.heads)
    split = [n for n in powers if n <= linked and ranks % n == 0] if divided else [1]
    contexts = [n for n in powers if n == 1 or (divided and n * _LEAST_TOKENS <= tokens)]
    pipelines = [
        (pp, virtual)
        for pp in range(1, min(_DEEPEST, layers) + 1 if divided else 2)
        for virtual in _virtual_stages(layers, pp)
    ]
    for tp in split:
        for cp in contexts:
            for pp, virtual in pipelines:
                count, rest = divmod(ranks, tp * cp * pp)
                if rest or not count:
                    continue
                experts = [1]
                if architecture.experts:
                    within = min(count * cp, 64)
                    experts += [n for n in powers[1:] if n <= within and count * cp % n == 0]
                for data in _DATA:
                    shards = max(1, linked // tp) if data == HSDP else count
                    if data == HSDP and (cp > 1 or count % shards or not 1 < shards < count):
                        continue
                    if data == ZERO1 and not _even_layers(layers, pp):
                        continue
                    for ep in experts:
                        # torchtitan takes the ranks of tp for ep, which is not planned.
                        if ep > 1 and tp > 1 and data != ZERO1:
                            continue
                        yield ParallelLayout(
                            data=data,
                            replicas=count // shards,
                            shards=shards,
                            tp=tp,
                            pp=pp,
                            virtual=virtual,
                            cp=cp,
                            ep=ep,
                            sequence_parallel=tp > 1,
                            tp_overlap=tp > 1 and data == ZERO1,
                        )


def _virtual_stages(layers: int, pp: int) -> list[int]:
    """Returns the numbers of virtual stages of a rank that are searched, without one first."""
    most = layers // pp if pp > 1 else 1
    even = [n for n in range(2, most + 1) if _even_layers(layers, pp * n)]
    largest = [max((n for n in even if n <= most), default=1) for most in _VIRTUAL]
    return sorted({1, *largest})


def _even_layers(layers: int, stages: int) -> int:
    """Returns the layers of a stage if all stages have as many, where the embedding and the head
    may count as one layer each; else 0.
    """
    return next((n // stages for n in (layers, layers + 2) if n % stages == 0), 0)


def launch_flags(layout: ParallelLayout, batch: Batch, layers: int) -> str:
    """Returns the flags of the layout for torchtitan, or for Megatron-LM with zero1; '' if neither
    has the layout.

    - layers: of the model.
    """
    stages = layout.pp * layout.virtual
    everywhere = batch.micro_batches * batch.sequences * layout.ranks // layout.inner
    flags: dict[str, object]
    if layout.data == ZERO1:
        # The embedding and the head count as layers if the layers do not divide.
        counted = "" if layers % stages else None
        full = layout.checkpoint == FULL
        flags = {
            "--tensor-model-parallel-size": layout.tp,
            "--pipeline-model-parallel-size": layout.pp,
            "--num-virtual-stages-per-pipeline-rank": _several(layout.virtual),
            "--account-for-embedding-in-pipeline-split": counted,
            "--account-for-loss-in-pipeline-split": counted,
            "--context-parallel-size": _several(layout.cp),
            "--expert-model-parallel-size": _several(layout.ep),
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend": layout.dispatch
            or None,
            "--sequence-parallel": "" if layout.sequence_parallel else None,
            "--tp-comm-overlap": "" if layout.tp_overlap else None,
            "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather": "",
            "--recompute-granularity": "full" if full else None,
            "--recompute-method uniform --recompute-num-layers": 1 if full else None,
            "--micro-batch-size": batch.sequences,
            "--seq-length": f"{batch.tokens:g}",
            "--global-batch-size": everywhere,
        }
        return f"Megatron-LM: {_written(flags)}"
    if not layout.sharded:
        return ""
    several, virtual = layout.pp > 1, layout.virtual > 1
    uncounted = 0 if virtual and layers % stages == 0 else None
    local = batch.sequences * (batch.micro_batches if several else 1)
    degrees = {
        "data_parallel_replicate_degree": layout.replicas,
        "data_parallel_shard_degree": layout.shards,
        "tensor_parallel_degree": layout.tp,
        "pipeline_parallel_degree": _several(layout.pp),
        "pipeline_parallel_microbatch_size": batch.sequences if several else None,
        "pipeline_parallel_schedule": "Interleaved1F1B" if virtual else None,
        "pipeline_parallel_layers_per_stage": _even_layers(layers, stages) if virtual else None,
        "pipeline_parallel_first_stage_less_layers": uncounted,
        "pipeline_parallel_last_stage_less_layers": uncounted,
        "context_parallel_degree": _several(layout.cp),
        "expert_parallel_degree": _several(layout.ep),
    }
    flags = {
        **{f"--parallelism.{name}": value for name, value in degrees.items()},
        "--training.local_batch_size": local,
        "--training.global_batch_size": everywhere,
        "--training.seq_len": f"{batch.tokens:g}",
    }
    mode = {FULL: "full", SELECTIVE: "selective"}.get(layout.checkpoint, "none")
    text = f"torchtitan: {_written(flags)} activation_checkpoint:{mode}"
    # No flag of torchtitan 0.3.0: its models' config_registry.py says it.
    return f'{text}, and moe_comm_backend="deepep" in its config' if layout.dispatch else text


def _several(degree: int) -> int | None:
    return degree if degree > 1 else None


def _written(flags: Mapping[str, object]) -> str:
    """Returns the flags that have a value."""
    return " ".join(f"{flag} {value}".strip() for flag, value in flags.items() if value is not None)

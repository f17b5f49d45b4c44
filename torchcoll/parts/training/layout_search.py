"""The layouts that ``plan --find`` searches, and their flags for torchtitan and Megatron-LM."""

from __future__ import annotations

from collections.abc import Iterator

from torchcoll.core.errors import UsageError
from torchcoll.parts.curves.predictor import Predictor
from torchcoll.parts.training.architectures import Architecture
from torchcoll.parts.training.layouts import (
    DP,
    FSDP,
    FULL,
    HSDP,
    SELECTIVE,
    ZERO1,
    Batch,
    ParallelLayout,
    check_layout,
)

FIND = "find"
_LINKED = 8  # ranks of a host where the machine does not tell
_DEEPEST = 32  # stages of a pipeline
_DATA = (FSDP, HSDP, ZERO1)
_CHECKPOINTS = ("", SELECTIVE, FULL)


def candidate_layouts(
    architecture: Architecture, ranks: int, machine: Predictor | None
) -> list[ParallelLayout]:
    """Returns the layouts that the model can have on so many ranks: tp within a host, always with
    sp; pp in powers of two; experts within the data-parallel ranks; each kind of checkpointing.

    Raises UsageError if there is none.
    """
    most = machine.ranks_per_host if machine is not None else None
    linked = int(most or _LINKED)
    layouts = []
    for layout in _combinations(architecture, ranks, linked):
        try:
            check_layout(layout, architecture, layout.pp)
        except UsageError:
            continue
        layouts.append(layout)
    if not layouts:
        raise UsageError("ranks", ranks, f"a number on which {architecture.source} can be laid out")
    return layouts


def _combinations(architecture: Architecture, ranks: int, linked: int) -> Iterator[ParallelLayout]:
    powers = [1 << n for n in range(20)]
    split = [n for n in powers if n <= linked and ranks % n == 0] if architecture.heads else [1]
    stages = [n for n in powers if n <= min(_DEEPEST, len(architecture.layers))]
    for tp in split:
        for pp in stages if architecture.heads else [1]:
            count = ranks // tp // pp
            if count < 1 or count * tp * pp != ranks:
                continue
            experts = [1]
            if architecture.experts:
                experts += [n for n in powers[1:] if n <= min(count, 64) and count % n == 0]
            for data in _DATA:
                shards = max(1, linked // tp) if data == HSDP else count
                if data == HSDP and (count % shards or count == shards or shards < 2):
                    continue
                for ep in experts:
                    for checkpoint in _CHECKPOINTS if architecture.hidden else ("",):
                        yield ParallelLayout(
                            data=data,
                            replicas=count // shards,
                            shards=shards,
                            tp=tp,
                            pp=pp,
                            ep=ep,
                            sequence_parallel=tp > 1,
                            checkpoint=checkpoint,
                        )


def launch_flags(layout: ParallelLayout, batch: Batch) -> list[str]:
    """Returns the flags of the layout for torchtitan, or for Megatron-LM with zero1."""
    if layout.data == ZERO1:
        flags = [
            f"--tensor-model-parallel-size {layout.tp}",
            f"--pipeline-model-parallel-size {layout.pp}",
            f"--context-parallel-size {layout.cp}" if layout.cp > 1 else "",
            f"--expert-model-parallel-size {layout.ep}" if layout.ep > 1 else "",
            "--sequence-parallel" if layout.sequence_parallel else "",
            "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
            {
                FULL: "--recompute-granularity full",
                SELECTIVE: "--recompute-granularity selective",
            }.get(layout.checkpoint, ""),
            f"--micro-batch-size {batch.sequences} --seq-length {batch.tokens:g}",
            f"--global-batch-size {_all_sequences(layout, batch)}",
        ]
        return ["Megatron-LM: " + " ".join(filter(None, flags))]
    if layout.data == DP or not layout.sharded:
        return []
    mode = {FULL: "full", SELECTIVE: "selective"}.get(layout.checkpoint, "none")
    flags = [
        f"--parallelism.data_parallel_replicate_degree {layout.replicas}",
        f"--parallelism.data_parallel_shard_degree {layout.shards}",
        f"--parallelism.tensor_parallel_degree {layout.tp}",
        f"--parallelism.pipeline_parallel_degree {layout.pp}" if layout.pp > 1 else "",
        f"--parallelism.context_parallel_degree {layout.cp}" if layout.cp > 1 else "",
        f"--parallelism.expert_parallel_degree {layout.ep}" if layout.ep > 1 else "",
        f"--activation_checkpoint.mode {mode}",
        f"--training.local_batch_size {batch.micro_batches * batch.sequences}",
        f"--training.seq_len {batch.tokens:g}",
    ]
    return ["torchtitan: " + " ".join(filter(None, flags))]


def _all_sequences(layout: ParallelLayout, batch: Batch) -> int:
    return batch.micro_batches * batch.sequences * layout.ranks // layout.inner

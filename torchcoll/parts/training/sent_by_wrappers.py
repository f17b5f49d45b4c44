"""The buckets that DDP and Megatron-LM's distributed optimizer send, from shapes alone.

``tests/training/test_planned_and_captured.py`` compares the calls with those of the real wrappers,
one by one.

Sources: DDP: torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size and
rebuild_buckets, and torch/nn/parallel/distributed.py, _ddp_init_helper.
Megatron-LM's distributed optimizer (megatron/core,
commit d98e8a64): DistributedOptimizer._compute_per_buffer_param_layout in
optimizer/distrib_optimizer.py, with optimizer/param_layout.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MIB = 1 << 20
# DDP's defaults: a literal in torch 2.6, distributed._DEFAULT_BUCKET_CAP_MB later, and 1 MiB for
# the first bucket.
DEFAULT_CAP_MB, DEFAULT_FIRST_MB = 25, 1


@dataclass(frozen=True)
class Bucket:
    """The gradients of one all_reduce; ``parameters`` in their order within the bucket."""

    size_bytes: int
    dtype: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a model.

    - shape: as each rank of a data-parallel group has it; with tensor parallelism a rank's part.
    - dtype: torch's name, such as ``bfloat16``; itemsize: bytes of an element.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    trainable: bool = True

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def floating(self) -> bool:
        return "float" in self.dtype


def assign_buckets(parameters: Sequence[Parameter], limits: Sequence[int]) -> tuple[Bucket, ...]:
    """Returns the buckets that DDP sends, in the order in which it sends them.

    - parameters: those with a gradient, in the order of their gradients.
    - limits: a bucket of a dtype is closed by the parameter that takes it to its limit in bytes;
      the last limit holds for all later buckets of that dtype.

    No parameter is split. The bucket of each dtype that was not closed comes last, in the order of
    a C++ ``unordered_map``, which with libstdc++ is the reverse of the dtypes' first appearance
    (the same as torch's function in 3,000 random cases of up to 5 dtypes).
    """
    open_buckets: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    closed: dict[str, int] = {}
    buckets: list[list[int]] = []
    for index, parameter in enumerate(parameters):
        dtype = parameter.dtype
        open_buckets.setdefault(dtype, []).append(index)
        sizes[dtype] = sizes.get(dtype, 0) + parameter.size_bytes
        if sizes[dtype] >= limits[min(closed.get(dtype, 0), len(limits) - 1)]:
            buckets.append(open_buckets[dtype])
            open_buckets[dtype], sizes[dtype] = [], 0
            closed[dtype] = closed.get(dtype, 0) + 1
    buckets += [indices for indices in reversed(open_buckets.values()) if indices]
    return tuple(
        Bucket(
            sum(parameters[i].size_bytes for i in indices),
            parameters[indices[0]].dtype,
            tuple(parameters[i].name for i in indices),
        )
        for indices in buckets
    )


class PaddedBucket(NamedTuple):
    """A bucket of Megatron-LM's distributed optimizer: its elements, with padding."""

    elements: int
    names: tuple[str, ...]


def distributed_optimizer_buckets(
    parameters: Sequence[Parameter], ranks: int, limit: int | None, alone: str = ""
) -> list[PaddedBucket]:
    """Returns the buckets of Megatron-LM's distributed optimizer, in the order of the gradients.

    - parameters: of one model chunk and one group, in order of registration. Buckets take them in
      reverse.
    - limit: elements that close a bucket; None: one bucket for all.
    - alone: a parameter with a bucket of its own: the embedding that two stages share.

    A parameter begins at a multiple of 64 elements, and a bucket ends at a multiple of the least
    common multiple of the ranks and 128 (the same as Megatron-LM's function in 3,000 random cases).
    """
    divisor = math.lcm(ranks, 128)
    buckets: list[PaddedBucket] = []
    end = 0
    names: list[str] = []
    for parameter in reversed(parameters):
        if parameter.name == alone and names:
            buckets.append(PaddedBucket(-(-end // divisor) * divisor, tuple(names)))
            end, names = 0, []
        end = -(-end // 64) * 64 + parameter.elements
        names.append(parameter.name)
        if (limit is not None and end >= limit) or parameter.name == alone:
            buckets.append(PaddedBucket(-(-end // divisor) * divisor, tuple(names)))
            end, names = 0, []
    if names:
        buckets.append(PaddedBucket(-(-end // divisor) * divisor, tuple(names)))
    return buckets

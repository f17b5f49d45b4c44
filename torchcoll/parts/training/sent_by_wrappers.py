"""The buckets that wrappers of a model send, from shapes alone: DDP, Megatron-LM's distributed
optimizer, and DeepSpeed's ZeRO 1 and 2.

``tests/training/test_planned_and_captured.py`` compares the calls with those of the real wrappers,
one by one.

Sources: DDP: torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size and
rebuild_buckets, and torch/nn/parallel/distributed.py, _ddp_init_helper.
Megatron-LM's distributed optimizer (megatron/core,
commit d98e8a64): DistributedOptimizer._compute_per_buffer_param_layout in
optimizer/distrib_optimizer.py, with optimizer/param_layout.py.
DeepSpeed 0.19.6 (commit edaa7221): DeepSpeedZeroOptimizer in deepspeed/runtime/zero/
stage_1_and_2.py, with the defaults of deepspeed/runtime/zero/config.py.
"""

from __future__ import annotations

import itertools
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


def assign_buckets(
    parameters: Sequence[Parameter], limits: Sequence[int], in_order_of_gradients: bool
) -> tuple[Bucket, ...]:
    """Returns the buckets that DDP sends, in the order in which it sends them.

    - parameters: those with a gradient, in the order of their gradients, or, for the buckets that
      DDP makes before it has seen one (``in_order_of_gradients`` False), in order of registration.
    - limits: a bucket of a dtype is closed by the parameter that takes it to its limit in bytes;
      the last limit holds for all later buckets of that dtype.

    No parameter is split. The bucket of each dtype that was not closed comes last. Where the order
    is that of the gradients, torch takes these in the order of a C++ ``unordered_map``, which with
    libstdc++ is the reverse of the dtypes' first appearance (the same as torch's function in 3,000
    random cases of up to 5 dtypes).
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
    if not in_order_of_gradients:
        buckets = sorted(buckets, key=min)[::-1]
    return tuple(
        Bucket(
            sum(parameters[i].size_bytes for i in indices),
            parameters[indices[0]].dtype,
            tuple(parameters[i].name for i in indices),
        )
        for indices in buckets
    )


class PaddedBucket(NamedTuple):
    """A bucket of Megatron-LM's distributed optimizer or of DeepSpeed: its elements, of the former
    with padding, and its parameters.
    """

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


DEEPSPEED_BUCKET = 500_000_000  # elements: the default of reduce_bucket_size
_DEEPSPEED_ALIGNMENT = 2  # elements: nccl_start_alignment_factor


def deepspeed_elements(parameters: Sequence[Parameter], ranks: int) -> int:
    """Returns the elements of DeepSpeed's flat buffer of these parameters, with padding to equal
    partitions (flatten_dense_tensors_aligned). ZeRO 1 and 2 gather it in one call after each step:
    allgather_bucket_size has no effect where torch has all_gather_into_tensor
    (deepspeed/runtime/utils.py, all_gather_dp_groups).
    """
    multiple = _DEEPSPEED_ALIGNMENT * ranks
    return -(-sum(parameter.elements for parameter in parameters) // multiple) * multiple


def deepspeed_buckets(
    parameters: Sequence[Parameter],
    ranks: int,
    registered: Sequence[Parameter],
    limit: int = DEEPSPEED_BUCKET,
) -> list[PaddedBucket]:
    """Returns the buckets that DeepSpeed's ZeRO 1 and 2 reduce by all_reduce, in their order.

    - parameters: in the order in which their gradients are taken.
    - registered: the same in the order of the flat buffer.
    - limit: reduce_bucket_size, in elements.

    A bucket is reduced before a gradient that would take it beyond the limit
    (reduce_independent_p_g_buckets_and_remove_grads). A parameter that is larger than the limit is
    reduced alone, and where it lies on several ranks' partitions of the flat buffer, in calls that
    end with the first of these that takes them beyond the limit (average_tensor,
    allreduce_and_scatter).
    """
    buckets: list[PaddedBucket] = []
    totals = itertools.accumulate(parameter.elements for parameter in registered)
    starts = {p.name: end - p.elements for p, end in zip(registered, totals, strict=True)}
    names: list[str] = []
    elements = 0
    for parameter in parameters:
        if names and elements + parameter.elements > limit:
            buckets.append(PaddedBucket(elements, tuple(names)))
            names, elements = [], 0
        if parameter.elements <= limit:
            names.append(parameter.name)
            elements += parameter.elements
            continue
        start = starts[parameter.name]
        end = start + parameter.elements
        partition = deepspeed_elements(registered, ranks) // ranks
        cuts = [*range((start // partition + 1) * partition, end, partition), end]
        for cut in cuts:
            if cut == end or cut - start > limit:
                buckets.append(PaddedBucket(cut - start, (parameter.name,)))
                start = cut
    if names:
        buckets.append(PaddedBucket(elements, tuple(names)))
    return buckets

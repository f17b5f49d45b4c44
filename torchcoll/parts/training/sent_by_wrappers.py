"""What the wrappers of a model send in a step, from shapes alone: DDP, FSDP2 with HSDP,
Megatron-LM's distributed optimizer, and DeepSpeed's ZeRO 1 and 2.

``torchcoll plan`` takes its calls from here. A model comes from its modules
(training/meta_model.py) or from its config.json (training/architectures.py).
``tests/training/test_planned_and_captured.py`` compares the calls
with those of the real wrappers, one by one.

Sources: DDP: torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size and
rebuild_buckets, and torch/nn/parallel/distributed.py, _ddp_init_helper. FSDP2:
torch/distributed/fsdp/_fully_shard: _fsdp_collectives.py for the sizes, _fsdp_param_group.py and
_fsdp_state.py for the order. Megatron-LM's distributed optimizer (megatron/core,
commit d98e8a64): DistributedOptimizer._compute_per_buffer_param_layout in
optimizer/distrib_optimizer.py, with optimizer/param_layout.py.
DeepSpeed 0.19.6 (commit edaa7221): DeepSpeedZeroOptimizer in deepspeed/runtime/zero/
stage_1_and_2.py, with the defaults of deepspeed/runtime/zero/config.py.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torchcoll.core.collectives import find_dtype
from torchcoll.core.traffic import ROOT, TrafficCall
from torchcoll.parts.training.step_program import BACKWARD, FORWARD, SEND, UNSHARD, USE, UnitAct

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


@functools.cache
def torch_version() -> tuple[int, int]:
    """Returns the version of the installed torch, such as (2, 13)."""
    major, minor = importlib.metadata.version("torch").split(".")[:2]
    return int(major), int(minor)


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


@dataclass(eq=False)
class ShardUnit:
    """A unit of FSDP2: the root or a wrapped module, with the parameters that no inner unit has.

    - inner: its inner units.
    - body: the numbers of elements of its own parameters, and its inner units, in registration
      order.
    - gradient_in, gradient_out: whether its input and its output need a gradient.
    - group: suffix of the names of its groups, for units that are sharded over fewer ranks than
      the others (the experts of expert parallelism); shards: their number, 0 for that of the step.
    """

    name: str
    parameters: dict[str, Parameter] = field(default_factory=dict)
    inner: list[ShardUnit] = field(default_factory=list)
    body: list[int | ShardUnit] = field(default_factory=list)
    gradient_in: bool = False
    gradient_out: bool = False
    group: str = ""
    shards: int = 0

    def walk(self) -> Iterator[ShardUnit]:
        yield self
        for unit in self.inner:
            yield from unit.walk()

    @property
    def trainable(self) -> list[Parameter]:
        return [p for p in self.parameters.values() if p.trainable]


@dataclass
class ShardStep:
    """The calls of one step of FSDP2, in the order in which fully_shard's hooks issue them.

    - shards, replicas: the ranks that the parameters are sharded over, and copies of the model
      (HSDP).
    - param_dtype, reduce_dtype: names of torch's dtypes, as in MixedPrecisionPolicy.
    - reshard: reshard_after_forward of fully_shard; None reshards all units but the root.
    - acts: the calls and the acts around them.
    - peak_bytes: the largest number of bytes that a rank holds of whole parameters, whole
      gradients, and what is being gathered or reduced. The output of an all_gather is copied out,
      and in the forward pass freed after the copy of the next one (_fsdp_param_group.py,
      wait_for_unshard).
    """

    shards: int
    replicas: int = 1
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    reshard: bool | None = None
    calls: list[TrafficCall] = field(default_factory=list)
    acts: list[UnitAct] = field(default_factory=list)
    peak_bytes: int = 0

    def run(self, root: ShardUnit) -> None:
        """Adds the calls and acts of one forward and backward pass."""
        numbers = {unit: number for number, unit in enumerate(root.walk())}
        unsharded: set[ShardUnit] = set()
        ended: list[
            ShardUnit
        ] = []  # in the order of their forwards; backward prefetches in reverse
        # reshard_after_forward=True includes the root since its default became None.
        root_too = self.reshard and torch_version() >= (2, 8)
        held: dict[ShardUnit, int] = {}
        sending = 0  # input bytes of the last reduce_scatter, kept until the next one is issued
        received: dict[ShardUnit, int] = {}  # bytes of all_gathers that are not copied out
        copied = 0  # bytes of the last one that was copied out in the forward pass

        def act(kind: str, unit: ShardUnit, calls: int = 0, elements: int = 0) -> None:
            indices = tuple(range(len(self.calls) - calls, len(self.calls)))
            self.acts.append(UnitAct(kind, numbers[unit], indices, elements))

        def note(more: int = 0) -> None:
            total = sum(held.values()) + sum(received.values()) + copied + sending + more
            self.peak_bytes = max(self.peak_bytes, total)

        def gather(unit: ShardUnit) -> None:
            if unit.parameters and unit not in unsharded:
                call = self._all_gather(unit)
                self.calls.append(call)
                act(UNSHARD, unit, 1)
                unsharded.add(unit)
                received[unit] = call.bytes_out
                note()

        def use(unit: ShardUnit, in_forward: bool = False) -> None:
            nonlocal copied
            if unit.parameters:
                act(USE, unit)
                whole = self._gathered_bytes(unit)
                if unit in received:
                    note(whole)
                    output = received.pop(unit)
                    copied = output if in_forward else 0
                held[unit] = whole

        def forward(unit: ShardUnit) -> None:
            gather(unit)
            use(unit, in_forward=True)
            for entry in unit.body:
                if isinstance(entry, ShardUnit):
                    forward(entry)
                else:
                    act(FORWARD, unit, elements=entry)
            if unit.parameters:
                ended.append(unit)
            if root_too if unit is root else self.reshard is not False:
                unsharded.discard(unit)
                held[unit] = 0

        def backward(unit: ShardUnit) -> None:
            if unit.parameters and unit.gradient_out:
                gather(unit)
                use(unit)
                index = ended.index(unit)
                if index:
                    gather(ended[index - 1])
            for entry in reversed(unit.body):
                if isinstance(entry, ShardUnit):
                    backward(entry)
                elif unit.gradient_out:
                    act(BACKWARD, unit, elements=entry)
            if unit.gradient_in:
                reduce(unit)

        def reduce(unit: ShardUnit) -> None:
            nonlocal sending
            gradients = self._gradient_bytes(unit)
            note(gradients)
            held[unit] = 0
            calls = list(self._reduce(unit))
            self.calls.extend(calls)
            if calls:
                act(SEND, unit, len(calls))
                sending = calls[0].bytes_in
                note(gradients)

        forward(root)
        copied = 0
        backward(root)
        # If no gradient reaches the input, a callback at the end of the backward pass reduces.
        for unit in root.walk():
            if not unit.gradient_in:
                reduce(unit)

    def kept_bytes(self, root: ShardUnit, trainable: bool = False) -> int:
        """Returns the bytes of a rank's shards with their padding: of all parameters, or of those
        with a gradient.
        """
        return sum(
            self._shard_elements(p, unit) * p.itemsize
            for unit in root.walk()
            for p in (unit.trainable if trainable else unit.parameters.values())
        )

    def _shards(self, unit: ShardUnit) -> int:
        return unit.shards or self.shards

    def _gathered_bytes(self, unit: ShardUnit) -> int:
        """Returns the bytes of the unit's whole parameters after an all_gather."""
        return self._all_gather(unit).bytes_out if unit.parameters else 0

    def _gradient_bytes(self, unit: ShardUnit) -> int:
        """Returns the bytes of the unit's gradients before the reduction, in the compute dtype."""
        itemsize = find_dtype(self.param_dtype).itemsize if self.param_dtype else 0
        return sum(p.elements * (itemsize or p.itemsize) for p in unit.trainable)

    def _all_gather(self, unit: ShardUnit) -> TrafficCall:
        cast = find_dtype(self.param_dtype) if self.param_dtype else None
        dtypes, size_bytes = set(), 0
        for parameter in unit.parameters.values():
            dtype, itemsize = parameter.dtype, parameter.itemsize
            if cast and parameter.floating:
                dtype, itemsize = cast.name, cast.itemsize
            dtypes.add(dtype)
            size_bytes += self._shard_elements(parameter, unit) * itemsize
        shards = self._shards(unit)
        size_bytes *= shards
        return TrafficCall(
            "all_gather",
            size_bytes // shards,
            size_bytes,
            dtypes.pop() if len(dtypes) == 1 else "uint8",  # mixed dtypes are sent as bytes
            group="shard" + unit.group,
            asynchronous=False,
            module=unit.name or ROOT,
        )

    def _reduce(self, unit: ShardUnit) -> Iterator[TrafficCall]:
        """Yields the reduce_scatter of the unit's gradients, and with replicas the all_reduce."""
        parameters = unit.trainable
        if not parameters:
            return
        dtype, itemsize = parameters[0].dtype, parameters[0].itemsize
        reduced = self.reduce_dtype
        # torch 2.15: without reduce_dtype gradients are reduced in the parameter's own dtype.
        if not reduced and parameters[0].floating and torch_version() < (2, 15):
            reduced = self.param_dtype
        if reduced:
            dtype, itemsize = reduced, find_dtype(reduced).itemsize
        # _get_gradient_divide_factors: other dtypes could overflow; they are divided before and
        # after.
        op = "avg" if dtype in ("float32", "bfloat16") else "sum"
        shard = sum(self._shard_elements(p, unit) for p in parameters) * itemsize
        sizes = {"reduce_scatter": (shard * self._shards(unit), shard, "shard")}
        if self.replicas > 1:
            sizes["all_reduce"] = (shard, shard, "replicate")
        for collective, (bytes_in, bytes_out, group) in sizes.items():
            yield TrafficCall(
                collective,
                bytes_in,
                bytes_out,
                dtype,
                op,
                group=group + unit.group,
                asynchronous=False,
                module=unit.name or ROOT,
            )

    def _shard_elements(self, parameter: Parameter, unit: ShardUnit) -> int:
        """Returns the elements of one rank's shard; dimension 0 is padded to a multiple of the
        ranks.
        """
        rows, *other_dimensions = parameter.shape
        return -(-rows // self._shards(unit)) * math.prod(other_dimensions)

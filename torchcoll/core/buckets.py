"""The buckets in which DistributedDataParallel sends a model's gradients, as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.units import whole_number

MIB = 1 << 20
# What DDP does where bucket_cap_mb is left alone: a literal in torch 2.6,
# distributed._DEFAULT_BUCKET_CAP_MB later, and 1 MiB for the first bucket.
DEFAULT_CAP_MB, DEFAULT_FIRST_MB = 25, 1


def planned(
    calls: Iterable[TrafficCall], ranks: int, groups: Iterable[Group], notes: Iterable[str]
) -> Traffic:
    """One step of rank 0, which stands for all: each rank makes the same calls.

    The calls are numbered here, group by group.
    """
    numbered: list[TrafficCall] = []
    made: dict[str, int] = {}
    for call in calls:
        made[call.group] = made.get(call.group, -1) + 1
        numbered.append(replace(call, sequence=made[call.group]))
    return Traffic(
        source="plan",
        ranks=ranks,
        calls={0: numbered},
        groups={group.name: group for group in groups},
        notes=list(notes),
    )


@dataclass(frozen=True)
class Bucket:
    """Gradients that one all_reduce sends; ``parameters`` in the order in which they lie in it."""

    nbytes: int
    dtype: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class BucketPlan:
    """What DistributedDataParallel sends for a model's gradients.

    buckets: of each step but the first, in the order in which they are sent. first_step: of the
    first, before DDP knows the order of the gradients.
    order: ``from step`` (learned from a backward), ``assumed`` (the reverse of registration), or
    ``registered`` (find_unused: DDP never learns it).
    bucket_cap_mb: as asked, in MiB; None is DDP's default. unused: parameters without a gradient in
    the step, which find_unused sends as zeros. notes: what is assumed or left out, a sentence each.
    """

    buckets: tuple[Bucket, ...]
    first_step: tuple[Bucket, ...]
    order: str
    bucket_cap_mb: float | tuple[float, ...] | None = None
    find_unused: bool = False
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients: the same in each step."""
        return sum(bucket.nbytes for bucket in self.buckets)

    @property
    def used_map_nbytes(self) -> int:
        """Bytes of the int32 a parameter that find_unused sends after the buckets, each step."""
        return 4 * sum(len(bucket.parameters) for bucket in self.buckets) * self.find_unused

    def traffic(self, ranks: int, first_step: bool = False) -> Traffic:
        """The all_reduce calls of a steady step on so many ranks, or of the first.

        Raises UsageError for ``ranks`` below 1.
        """
        whole_number(ranks, "ranks", 1)
        world = Group("data", tuple(range(ranks)), description="DistributedDataParallel")
        sent = [(b.nbytes, b.dtype) for b in (self.first_step if first_step else self.buckets)]
        if self.find_unused:
            sent.append((self.used_map_nbytes, "int32"))
        calls = [
            # DDP divides before it sends: the op is a sum.
            TrafficCall("all_reduce", n, n, dtype, "sum", group=world.name, asynchronous=True)
            for n, dtype in sent
        ]
        return planned(calls, ranks, [world], self.notes)

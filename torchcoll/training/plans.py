"""The buckets in which DistributedDataParallel sends a model's gradients, as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from torchcoll.core.display import Displayed
from torchcoll.core.summary import HIGH, LOW, geometric_interval, median, quantile
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.units import whole_number

THRESHOLD = 0.02  # as in a comparison: a change below it is nothing that anyone would act on
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

    size_bytes: int
    dtype: str
    parameters: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class BucketPlan(Displayed):
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
    def size_bytes(self) -> int:
        """Bytes of all gradients: the same in each step."""
        return sum(bucket.size_bytes for bucket in self.buckets)

    @property
    def used_map_bytes(self) -> int:
        """Bytes of the int32 a parameter that find_unused sends after the buckets, each step."""
        return 4 * sum(len(bucket.parameters) for bucket in self.buckets) * self.find_unused

    def traffic(self, ranks: int, first_step: bool = False) -> Traffic:
        """The all_reduce calls of a steady step on so many ranks, or of the first.

        Raises UsageError for ``ranks`` below 1.
        """
        whole_number(ranks, "ranks", 1)
        world = Group("data", tuple(range(ranks)), description="DistributedDataParallel")
        sent = [(b.size_bytes, b.dtype) for b in (self.first_step if first_step else self.buckets)]
        if self.find_unused:
            sent.append((self.used_map_bytes, "int32"))
        calls = [
            # DDP divides before it sends: the op is a sum.
            TrafficCall("all_reduce", n, n, dtype, "sum", group=world.name, asynchronous=True)
            for n, dtype in sent
        ]
        return planned(calls, ranks, [world], self.notes)


@dataclass(frozen=True)
class Tried:
    """The steps with one bucket_cap_mb.

    cap_mb: in MiB; None: not set, DDP's default. times_ns[round][step]: until the slowest rank had
    done the step. base_ns: the same of the first cap, with which the rounds are paired.
    """

    cap_mb: float | None
    times_ns: Sequence[Sequence[int]]
    base_ns: Sequence[Sequence[int]]

    @property
    def name(self) -> str:
        return "default" if self.cap_mb is None else f"{self.cap_mb:g}"

    @property
    def steps(self) -> int:
        return sum(map(len, self.times_ns))

    @property
    def median_ns(self) -> float:
        return self._quantile(0.5)

    @property
    def low_ns(self) -> float:
        """5th percentile of the steps: a spread within the run, no interval."""
        return self._quantile(LOW)

    @property
    def high_ns(self) -> float:
        return self._quantile(HIGH)

    def _quantile(self, q: float) -> float:
        return quantile(sorted(ns for own in self.times_ns for ns in own), q)

    @property
    def ratio(self) -> tuple[float, float | None, float | None]:
        """(ratio, low, high) of the medians of paired rounds, this over the first cap; 95 %, within
        this run.
        """
        pairs = zip(self.times_ns, self.base_ns, strict=True)
        return geometric_interval([median(own) / median(base) for own, base in pairs])

    @property
    def result(self) -> str:
        """Against the first cap, in this run."""
        ratio, low, high = self.ratio
        if self.times_ns is self.base_ns:
            return "base"
        if low is None or high is None or low <= 1 <= high:
            return "within noise"
        if abs(ratio - 1) <= THRESHOLD:
            return "within 2 %"
        return "faster" if ratio < 1 else "slower"


@dataclass(repr=False)
class Trial(Displayed):
    """What one run tells: one replicate, however many rounds it had.

    rows: in the order in which the caps were given. rounds, steps, skip, seed: as asked.
    """

    rows: list[Tried]
    ranks: int
    backend: str
    device: str
    rounds: int
    steps: int
    skip: int
    seed: int
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> Tried:
        """The least ratio, as the rounds are paired: the least median may be another's. Whether it
        differs from the first is another question, see ``result``.
        """
        return min(self.rows, key=lambda row: row.ratio[0])

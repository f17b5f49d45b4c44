"""The buckets in which DistributedDataParallel sends a model's gradients, as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from torchcoll.core.display import Displayed
from torchcoll.core.summary import HIGH, LOW, geometric_interval, median, quantile
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.units import whole_number
from torchcoll.parts.training.ddp_buckets import bucket_names

THRESHOLD = 0.02  # as in a comparison: nobody would act on a smaller change
MIB = 1 << 20
# DDP's defaults: a literal in torch 2.6, distributed._DEFAULT_BUCKET_CAP_MB later, and 1 MiB for
# the first bucket.
DEFAULT_CAP_MB, DEFAULT_FIRST_MB = 25, 1


def traffic_from_calls(
    calls: Iterable[TrafficCall], ranks: int, groups: Iterable[Group], notes: Iterable[str]
) -> Traffic:
    """Returns the Traffic of one step of rank 0, which stands for all: each rank makes the same
    calls.

    Numbers the calls of each group.
    """
    numbered: list[TrafficCall] = []
    last_numbers: dict[str, int] = {}
    for call in calls:
        last_numbers[call.group] = last_numbers.get(call.group, -1) + 1
        numbered.append(replace(call, sequence=last_numbers[call.group]))
    return Traffic(
        source="plan",
        ranks=ranks,
        calls={0: numbered},
        groups={group.name: group for group in groups},
        notes=list(notes),
    )


@dataclass(frozen=True)
class Bucket:
    """The gradients of one all_reduce; ``parameters`` in their order within the bucket."""

    size_bytes: int
    dtype: str
    parameters: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class BucketPlan(Displayed):
    """The buckets that DistributedDataParallel sends for a model's gradients.

    - buckets: those of every step but the first, in the order in which they are sent.
    - first_step: those of the first step, before DDP has seen the order of the gradients.
    - order: ``from step`` (seen in a backward pass), ``assumed`` (the reverse of registration), or
      ``registered`` (with find_unused, where DDP keeps it).
    - bucket_cap_mb: the requested cap in MiB; None for DDP's default.
    - unused: parameters without a gradient in the step, which find_unused sends as zeros.
    - notes: assumptions and omissions, one sentence each.
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
        """Bytes of all gradients, the same in each step."""
        return sum(bucket.size_bytes for bucket in self.buckets)

    @property
    def used_map_bytes(self) -> int:
        """Bytes of the used-parameter map: find_unused sends one int32 per parameter in each step,
        after the buckets.
        """
        return 4 * sum(len(bucket.parameters) for bucket in self.buckets) * self.find_unused

    def traffic(self, ranks: int, first_step: bool = False) -> Traffic:
        """Returns the all_reduce calls of a steady step, or of the first step, on ``ranks`` ranks.

        Raises UsageError for ``ranks`` below 1.
        """
        whole_number(ranks, "ranks", 1)
        world = Group("data", tuple(range(ranks)), description="DistributedDataParallel")
        buckets = self.first_step if first_step else self.buckets
        in_order = (name for bucket in self.first_step[::-1] for name in bucket.parameters)
        registered = {name: i for i, name in enumerate(in_order)}
        contents = [sorted(b.parameters, key=lambda name: registered.get(name, 0)) for b in buckets]
        modules = bucket_names(contents)
        sent = [(b.size_bytes, b.dtype, m) for b, m in zip(buckets, modules, strict=True)]
        if self.find_unused:
            sent.append((self.used_map_bytes, "int32", ""))
        calls = [
            # DDP divides before it sends: the op is a sum.
            TrafficCall(
                "all_reduce", n, n, dtype, "sum", group=world.name, asynchronous=True, module=module
            )
            for n, dtype, module in sent
        ]
        traffic = traffic_from_calls(calls, ranks, [world], self.notes)
        traffic.parameters = dict(zip(modules, map(tuple, contents), strict=True))
        return traffic


@dataclass(frozen=True)
class TrialRow:
    """The measured steps with one bucket_cap_mb.

    - cap_mb: in MiB; None: not set, DDP's default.
    - times_ns: times_ns[round][step], the duration until the slowest rank finished the step.
    - base_ns: the same for the first cap, with which the rounds are paired.
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
        """5th percentile of the steps: a spread within the run, not a confidence interval."""
        return self._quantile(LOW)

    @property
    def high_ns(self) -> float:
        return self._quantile(HIGH)

    def _quantile(self, q: float) -> float:
        return quantile(sorted(ns for round_ns in self.times_ns for ns in round_ns), q)

    @property
    def ratio(self) -> tuple[float, float | None, float | None]:
        """(ratio, low, high) of this cap over the first, from the medians of paired rounds; a 95 %
        interval within this run.
        """
        pairs = zip(self.times_ns, self.base_ns, strict=True)
        return geometric_interval([median(round_ns) / median(base) for round_ns, base in pairs])

    @property
    def result(self) -> str:
        """The comparison with the first cap, in this run."""
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
    """The result of ``try_buckets`` in one run, which is one replicate however many rounds it has.

    - rows: one for each cap, in the order given.
    - rounds, steps, skip, seed: the arguments of ``try_buckets``.
    """

    rows: list[TrialRow]
    ranks: int
    backend: str
    device: str
    rounds: int
    steps: int
    skip: int
    seed: int
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> TrialRow:
        """The row with the smallest ratio of paired rounds; another row may have the smallest
        median.

        Whether it differs from the first row is a separate question, see ``result``.
        """
        return min(self.rows, key=lambda row: row.ratio[0])

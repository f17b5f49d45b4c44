"""The buckets in which DistributedDataParallel sends a model's gradients, as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from torchcoll.core.answer import CANNOT_TELL, PROBABLY, Answer
from torchcoll.core.display import Displayed
from torchcoll.core.summary import HIGH, LOW, geometric_interval, median, quantile
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.units import format_bytes, format_change, format_factor, whole_number
from torchcoll.parts.training.ddp_buckets import bucket_names
from torchcoll.stats.power import ACT_ON_STEP

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


def summarise_buckets(buckets: Sequence[Bucket]) -> str:
    """Returns for example ``3 buckets of 1 MiB to 25 MiB``."""
    sizes = [bucket.size_bytes for bucket in buckets]
    if len(sizes) == 1:
        return f"1 bucket of {format_bytes(sizes[0])}"
    least, most = format_bytes(min(sizes)), format_bytes(max(sizes))
    return f"{len(sizes)} buckets of {least if least == most else f'{least} to {most}'}"


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

    @property
    def answer(self) -> Answer:
        """How many buckets a step sends."""
        return Answer(
            f"bucket_cap_mb {cap_text(self)}", verb=f"makes {summarise_buckets(self.buckets)}"
        )

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


def cap_text(plan: BucketPlan) -> str:
    """Returns for example ``25`` or ``1,25``, or what DDP does if no cap is set."""
    cap = plan.bucket_cap_mb
    if cap is None:
        first, later = DEFAULT_FIRST_MB, DEFAULT_CAP_MB
        return f"not set ({first} MiB for the first bucket, {later} MiB after it)"
    return ",".join(f"{value:g}" for value in (cap if isinstance(cap, tuple) else (cap,)))


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

    @property
    def answer(self) -> Answer:
        """Whether to leave the first cap. A run is one replicate, so a faster cap is probable."""
        base, best = self.rows[0], self.best
        if best.result == "faster":
            return Answer(
                f"bucket_cap_mb={best.name}",
                verb=f"is {{}} faster than {base.name}",
                size=1 / best.ratio[0],
                unit="x",
                scope=f"({_interval_text(best)}, one run)",
                certainty=PROBABLY,
                next_step="repeat the run to be certain",
                details=tuple(_row_text(row) for row in self.rows[1:] if row is not best),
            )
        first = next((row for row in self.rows[1:] if _may_be_faster(row)), None)
        if first is None:
            keep = f"keep bucket_cap_mb={base.name}"
            return Answer(keep, "good", details=tuple(map(_row_text, self.rows[1:])))
        return Answer(
            f"bucket_cap_mb={first.name}",
            "doubt",
            verb=f"is faster than {base.name}",
            scope=f"(it was {format_change(first.ratio[0])}, {_interval_text(first)})",
            certainty=CANNOT_TELL,
            next_step=f"try_buckets with rounds={4 * self.rounds}",
            details=tuple(_row_text(row) for row in self.rows[1:] if row is not first),
        )


def _may_be_faster(row: TrialRow) -> bool:
    """Whether steps with this cap may be so much faster that a user acts on it."""
    low = row.ratio[1]
    return row.result == "within noise" and (low is None or low < 1 / (1 + ACT_ON_STEP))


def _interval_text(row: TrialRow) -> str:
    ratio, low, high = row.ratio
    if low is None or high is None:
        return "one round: no interval"
    ends = (1 / high, 1 / low) if ratio < 1 else (low, high)
    text = f"95 %: {' to '.join(dict.fromkeys(map(format_factor, ends)))}"
    return f"{text}, not significant" if row.result == "within noise" else text


def _row_text(row: TrialRow) -> str:
    return f"{row.name} was {format_change(row.ratio[0])} ({_interval_text(row)}, one run)"

"""Trials of DDP's bucket sizes as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torchcoll.core.answer import CANNOT_TELL, PROBABLY, Answer
from torchcoll.core.display import Displayed
from torchcoll.core.summary import geometric_interval, median
from torchcoll.core.units import format_change, format_factor
from torchcoll.stats.power import ACT_ON_STEP

THRESHOLD = 0.02  # as in a comparison: nobody would act on a smaller change


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
    def median_ns(self) -> float:
        return median([ns for round_ns in self.times_ns for ns in round_ns])

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
        """The row with the smallest ratio of paired rounds."""
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
            )
        first = next((row for row in self.rows[1:] if _may_be_faster(row)), None)
        if first is None:
            keep = f"keep bucket_cap_mb={base.name}"
            return Answer(
                keep,
                "good",
                details=tuple(
                    f"{row.name} was {format_change(row.ratio[0])} ({_interval_text(row)}, one run)"
                    for row in self.rows[1:]
                ),
            )
        return Answer(
            f"bucket_cap_mb={first.name}",
            "doubt",
            verb=f"is faster than {base.name}",
            scope=f"(it was {format_change(first.ratio[0])}, {_interval_text(first)})",
            certainty=CANNOT_TELL,
            next_step=f"try_buckets with rounds={4 * self.rounds}",
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

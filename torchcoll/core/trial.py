"""Real training steps with several bucket sizes: what ``try_buckets`` measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torchcoll.core.summary import HIGH, LOW, median, paired_ratio, quantile

THRESHOLD = 0.02  # as in a comparison: a change below it is nothing that anyone would act on


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
        """5th percentile of the steps: a spread within the launch, no interval."""
        return self._quantile(LOW)

    @property
    def high_ns(self) -> float:
        return self._quantile(HIGH)

    def _quantile(self, q: float) -> float:
        return quantile(sorted(ns for own in self.times_ns for ns in own), q)

    @property
    def ratio(self) -> tuple[float, float | None, float | None]:
        """(ratio, low, high) of the medians of paired rounds, this over the first cap; 95 %, within
        this launch.
        """
        pairs = zip(self.times_ns, self.base_ns, strict=True)
        return paired_ratio([median(own) / median(base) for own, base in pairs])

    @property
    def verdict(self) -> str:
        """Against the first cap, in this launch."""
        ratio, low, high = self.ratio
        if self.times_ns is self.base_ns:
            return "base"
        if low is None or high is None or low <= 1 <= high:
            return "within noise"
        if abs(ratio - 1) <= THRESHOLD:
            return "within 2 %"
        return "faster" if ratio < 1 else "slower"


@dataclass
class Trial:
    """What one launch tells: one replicate, however many rounds it had.

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
        """The least median; whether it differs is another question, see ``verdict``."""
        return min(self.rows, key=lambda row: row.median_ns)

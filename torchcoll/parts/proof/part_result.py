"""What a part of a proof came to: the status, why, and the figures that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

PROVEN, FAILED, NOT_SHOWN, NOT_RUN = "proven", "failed", "cannot be shown here", "not run"
STATUSES = (PROVEN, FAILED, NOT_SHOWN, NOT_RUN)


@dataclass(frozen=True)
class Figure:
    """A number that a part measured.

    low, high: the interval around ``value``; None where it is a count or a fact.
    least, most: the tolerance; None where there is no such limit.
    source: where the tolerance comes from, in a few words.
    """

    name: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    least: float | None = None
    most: float | None = None
    source: str = ""

    @property
    def inside(self) -> bool:
        """Whether the whole interval lies within the tolerance."""
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        return (self.least is None or low >= self.least) and (
            self.most is None or high <= self.most
        )

    @property
    def outside(self) -> bool:
        """Whether no value of the interval lies within the tolerance."""
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        return (self.least is not None and high < self.least) or (
            self.most is not None and low > self.most
        )


@dataclass(frozen=True)
class PartResult:
    """One part. ``reason``: a clause that says why."""

    name: str
    status: str
    reason: str
    figures: tuple[Figure, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def worst(statuses: Sequence[str]) -> str:
    """The status of a part whose pieces have these."""
    return next((s for s in (FAILED, NOT_RUN, NOT_SHOWN) if s in statuses), PROVEN)

"""What a part of the acceptance kit came to: the status, why, and the figures that show it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
    """One part. ``reason``: a clause that says why; ``files``: within the archive."""

    name: str
    status: str
    reason: str
    figures: tuple[Figure, ...] = ()
    seconds: float = 0.0
    files: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PartResult:
        """Unknown fields are ignored. Raises TypeError, KeyError or ValueError on a broken one."""
        texts = [data["name"], data["reason"], *data["files"]]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("not a text")
        if data["status"] not in STATUSES:
            raise ValueError("no status")
        figures = tuple(map(_read_figure, data["figures"]))
        seconds = _finite(data["seconds"])
        return cls(texts[0], data["status"], texts[1], figures, seconds, tuple(texts[2:]))


def _read_figure(data: Mapping[str, Any]) -> Figure:
    texts = [data["name"], data.get("unit", ""), data.get("source", "")]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("not a text")
    low, high, least, most = (
        None if data.get(name) is None else _finite(data[name])
        for name in ("low", "high", "least", "most")
    )
    name, unit, source = texts
    return Figure(name, _finite(data["value"]), unit, low, high, least, most, source)


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError("no number")
    return value


def worst(statuses: Sequence[str]) -> str:
    """The status of a part whose pieces have these."""
    return next((s for s in (FAILED, NOT_RUN, NOT_SHOWN) if s in statuses), PROVEN)

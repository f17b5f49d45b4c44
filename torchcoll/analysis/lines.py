"""Result files -> lines over sizes, as a picture draws them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.analysis.cases import is_right
from torchcoll.analysis.conditions import conditions
from torchcoll.analysis.environments import hidden_among, hidden_note, kept_apart
from torchcoll.analysis.matching import NAMES, value_of
from torchcoll.analysis.sides import Measured, Reading, Side, known_of, value_of_fact
from torchcoll.analysis.stats import geometric
from torchcoll.core.errors import UsageError
from torchcoll.core.summary import Row


@dataclass(frozen=True)
class Point:
    """One size of a line; times in ns, busbw in GB/s.

    low_ns, high_ns: of one launch the 5th and 95th percentile of its calls, of several the least
    and the largest of their medians; None where a source does not tell them. busbw: None where
    nothing was communicated.
    """

    nbytes: int
    time_ns: float
    low_ns: float | None
    high_ns: float | None
    busbw_gbps: float | None
    launches: int


@dataclass
class Line:
    """Cases of one side that differ in nothing but the size.

    values: what they are, and the variables and labels that make lines of a side.
    doubted: those whose figure is not possible, or whose result was wrong: drawn, never joined.
    rows: what the points were read from.
    """

    side: str
    values: dict[str, Any]
    points: list[Point] = field(default_factory=list)
    doubted: list[Point] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


@dataclass
class Picture:
    """The lines of each collective, in the order measured, and what must stand beside them."""

    panels: dict[str, list[Line]]
    notes: list[str]


def picture_of(sides: Sequence[Side], over_ranks: str = "max", filter: str = "") -> Picture:
    """Raises UsageError where no case has a time and a size."""
    wanted = conditions(filter)
    panels: dict[str, dict[str, Line]] = {}
    notes = []
    for side in sides:
        which = f"{side.name}: " if side.name else ""
        facts = [(part.ranks, known_of(part)) for part in side.parts]
        apart = kept_apart(facts)
        launches = f"the launches of {side.name}" if side.name else "the launches"
        notes.append(hidden_note(hidden_among([own for _, own in facts], apart), launches))
        groups: dict[str, tuple[dict[str, Any], list[Measured]]] = {}
        missing: Counter[str] = Counter()
        for item in side.measured("time", Reading(over_ranks)):
            if not all(one.holds(item) for one in wanted):
                continue
            if not item.figure:
                missing[item.row.status] += 1
            elif item.row.nbytes:  # a barrier has no size
                values = {name: value_of(item, name) for name in NAMES}
                values |= {name: value_of_fact(item.facts, name) for name in apart}
                values["statistic"] = item.row.statistic
                groups.setdefault(repr(values), (values, []))[1].append(item)
        for status, count in missing.items():
            notes.append(f"{which}{count} case{'s' * (count > 1)} not drawn: {status}, no time")
        for key, (values, items) in groups.items():
            panel = panels.setdefault(values["collective"], {})
            panel[f"{side.name} {key}"] = _line(side.name, values, items)
    if not panels:
        such = f" with {filter}" if filter else ""
        raise UsageError("cases", f"none with a time and a size{such}", "at least one")
    between = [known_of(part) for side in sides for part in side.parts[:1]]
    if len(sides) > 1 and (text := hidden_among(between, ())):
        notes.append(f"the sides are not alike in {text}")
    notes += dict.fromkeys(side.rehearsal_note for side in sides)
    lines = {name: list(own.values()) for name, own in panels.items()}
    return Picture(lines, [note for note in notes if note])


def _line(side: str, values: dict[str, Any], items: Sequence[Measured]) -> Line:
    line = Line(side, values, rows=[item.row for item in items])
    for nbytes in sorted({item.row.nbytes for item in items}):
        own = [item for item in items if item.row.nbytes == nbytes]
        right = [item for item in own if is_right(item)]
        if right:
            line.points.append(_point(nbytes, right))
        if len(right) < len(own):
            line.doubted.append(_point(nbytes, [item for item in own if not is_right(item)]))
    return line


def _point(nbytes: int, items: Sequence[Measured]) -> Point:
    by_launch: dict[int, list[float]] = {}
    for item in items:
        by_launch.setdefault(item.launch, []).append(item.figure or 0.0)
    medians = [geometric(own) or 0.0 for own in by_launch.values()]
    low: float | None
    high: float | None
    if len(medians) > 1:
        low, high = min(medians), max(medians)
    else:
        lows = [item.row.low_ns for item in items]
        highs = [item.row.high_ns for item in items]
        low = None if None in lows else min(x for x in lows if x is not None)
        high = None if None in highs else max(x for x in highs if x is not None)
    busbw = geometric([item.row.busbw_gbps for item in items])
    time_ns = geometric(medians) or 0.0
    return Point(nbytes, time_ns, low, high, busbw or None, len(medians))

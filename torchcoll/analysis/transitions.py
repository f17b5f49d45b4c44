"""Where the behaviour of a collective changes with size: from its times, and from the algorithm.

Independent witnesses. The times alone give zones between regimes (analysis/regimes.py). The
library's own log, where one was kept, gives the hand-over between two sizes; forced cells give the
size from which another one is the best. They stand side by side; none corrects another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.analysis.algorithms import algorithms
from torchcoll.analysis.environments import hidden_among, hidden_note, kept_apart
from torchcoll.analysis.fit import counted_share
from torchcoll.analysis.matching import NAMES, value_of
from torchcoll.analysis.misfit import Fall, disagreeing, falls_of, note_of
from torchcoll.analysis.regimes import FEWEST, Boundary, Curve, Regime, find_regimes
from torchcoll.analysis.scatter import Known, known_scatter
from torchcoll.analysis.sides import (
    UNTOLD,
    Measured,
    Reader,
    Reading,
    Side,
    Source,
    known_of,
    side,
    value_of_fact,
)
from torchcoll.analysis.stats import geometric
from torchcoll.core.errors import UsageError
from torchcoll.core.plausibility import IMPLAUSIBLE
from torchcoll.core.records import load_all
from torchcoll.core.result import Run
from torchcoll.libraries.forcing import FORCING

CLIFF = 1.1  # time that grows by so much from one size to the next, at once
REFINING = 6  # sizes proposed inside a zone
REACH = 4  # times a zone's end: at least so far sizes are proposed where too few are beside it
MOST_POINTS = 1000  # of a curve: time and memory grow with their square
_ALIGN = 256  # bytes: proposed sizes divide among ranks and types
_STEP = 4  # where sizes are too small for that


@dataclass(frozen=True)
class Point:
    """One size: of the launches' medians the median (of two their geometric mean; a launch that was
    slow once moves a mean, and the law with it). algorithm: as the log names it. error: relative,
    standard, as the launches or their calls tell it; 0 where nothing does.
    """

    nbytes: int
    time_ns: float
    launches: int
    algorithm: str | None
    error: float = 0.0


@dataclass(frozen=True)
class Handover:
    """Another algorithm between two neighbouring sizes: of the log, or the best forced cell."""

    low_nbytes: int
    high_nbytes: int
    before: str
    after: str


@dataclass(frozen=True)
class Transition:
    """A change of regime between low_nbytes and high_nbytes, as the times show it.

    kind: ``cliff`` (time jumps up at once), ``drop`` (down: the library switched late), ``kink``
    (only the slope changes), ``unclear`` (too few sizes before or after it, or both: no law there,
    no jump). jump: time after over before, both laws at the best place.
    handover: what the log says there; agreement: whether the two agree, in words.
    """

    low_nbytes: int
    high_nbytes: int
    before: Regime | None
    after: Regime | None
    jump: float | None
    kind: str
    handover: Handover | None = None
    agreement: str = ""


@dataclass
class Regimes:
    """One curve: what is constant over it, its points, regimes, transitions and what the log says.

    note: why there is no more to say ('too few sizes'), or ''. sizes: how many were measured; of
    more than MOST_POINTS each k-th is a point. doubt: why its figures are not possible, or ''.
    share: of the size, what algbw counts, None where that is not known. known: of the noise, None
    where nothing tells it.
    """

    common: dict[str, Any]
    points: list[Point]
    curve: Curve
    transitions: list[Transition] = field(default_factory=list)
    handovers: list[Handover] = field(default_factory=list)
    forced: list[Handover] = field(default_factory=list)  # of AUTO's curve: the best cells
    note: str = ""
    doubt: str = ""
    sizes: int = 0
    share: float | None = 1.0
    known: Known | None = None
    falls: list[Fall] = field(default_factory=list)
    disagreeing: list[Point] = field(default_factory=list)  # launches of these weigh little

    def algbw_gbps(self, regime: Regime) -> float | None:
        """As ``show`` counts it, which is not S over time for every collective."""
        gbps = regime.bandwidth_gbps
        return None if gbps is None or self.share is None else self.share * gbps

    @property
    def refining(self) -> list[int]:
        """Sizes that would narrow the zones or give too few beside one a law; none measured yet."""
        measured = [point.nbytes for point in self.points]
        zones = [(one.low_nbytes, one.high_nbytes) for one in self.transitions]
        few = [one.before is None for one in self.transitions]
        few.append(bool(zones) and self.transitions[-1].after is None)
        # Sizes apart at an end may be the first of a law of their own.
        dips, last_one = self.curve.dips, len(measured) - 1
        after = next(i for i in range(last_one, -2, -1) if i not in dips)
        before = next(i for i in range(last_one + 2) if i not in dips)
        if 0 <= after < last_one:
            zones, few = [*zones, (measured[after], measured[after + 1])], [*few, True]
        if 0 < before <= last_one:
            zones, few = [(measured[before - 1], measured[before]), *zones], [True, *few]
        if not zones:
            return []
        lows, highs = [low for low, _ in zones], [high for _, high in zones]
        # Beyond what was measured, where a change is at its very end.
        first, last = measured[0], measured[-1]
        if few[0]:
            first = min(first, max(_STEP, _whole(lows[0] / REACH)))
        if few[-1]:
            last = max(last, _whole(highs[-1] * REACH))
        sizes = {first, last}
        for low, high in zip(lows, highs, strict=True):
            sizes.update(_between(low, high, REFINING))
        for lacking, low, high in zip(few, [first, *highs], [*lows, last], strict=True):
            sizes.update(_between(low, high, FEWEST - 1) if lacking else ())
        return sorted(sizes - set(measured))


@dataclass
class Transitions:
    """What ``transitions`` found: the curves of some launches."""

    runs: list[Run]
    curves: list[Regimes]
    notes: list[str] = field(default_factory=list)


def transitions(
    sources: Source | Sequence[Source],
    *,
    over_ranks: str = "max",
    reader: Reader = load_all,
) -> Transitions:
    """The regimes of every curve of a folder, files or Runs: cases that differ in nothing but the
    size; of launches the median counts (see Point). ``show`` prints it.

    reader: ``torchcoll.importers.registry.read_all`` takes output of other tools too. Raises
    UsageError where no case has a time and a size, UnreadableError for a file.
    """
    files = side("files", sources, reader)
    apart = kept_apart((part.ranks, known_of(part)) for part in files.parts)
    curves = _curves(files, over_ranks, apart)
    _add_forced(files, over_ranks, curves)
    return Transitions(files.runs, curves, _notes(files, apart))


def _add_forced(files: Side, over_ranks: str, curves: Sequence[Regimes]) -> None:
    """Where the best forced cell changes, on the curves of AUTO; nothing where none was forced."""
    try:
        tables = algorithms(files.runs, over_ranks=over_ranks).tables
    except UsageError:  # no forced cells, or none that was right
        return
    for table in tables:
        changes = [
            Handover(one.high_nbytes, other.low_nbytes, one.winner.name, other.winner.name)
            for one, other in itertools.pairwise(table.ranges)
        ]
        for curve in curves:
            auto = all(curve.common.get(name, "unset") in ("unset", UNTOLD) for name in FORCING)
            same = (curve.common.get(name) == table.common.get(name) for name in NAMES)
            if auto and all(same):
                curve.forced = changes


def _notes(files: Side, apart: Sequence[str]) -> list[str]:
    """What the pooled launches differ in: a step may be theirs."""
    alike: dict[int, list[dict[str, str]]] = {}  # each number of ranks is a curve of its own
    for part in files.parts:
        alike.setdefault(part.ranks, []).append(known_of(part))
    texts = dict.fromkeys(hidden_note(hidden_among(facts, apart)) for facts in alike.values())
    return list(filter(None, (*texts, files.rehearsal_note)))


def _curves(side: Side, over_ranks: str, apart: Sequence[str]) -> list[Regimes]:
    groups: dict[str, tuple[dict[str, Any], list[Measured]]] = {}
    for item in side.measured("time", Reading(over_ranks)):
        row = item.row
        # Of figures that are not possible the shape is still of interest: it may be a copy's.
        timed = row.status in ("ok", IMPLAUSIBLE) and item.figure and row.nbytes
        if not timed or row.verified == "wrong":
            continue
        common = {name: value_of(item, name) for name in NAMES}
        common |= {name: value_of_fact(item.facts, name) for name in apart}
        common |= {"cell": side.runs[item.launch].labels.get("cell")}
        groups.setdefault(repr(common), (common, []))[1].append(item)
    if not groups:
        raise UsageError("cases", "none with a time and a size", "at least one")
    return [_regimes(common, items) for common, items in groups.values()]


def _regimes(common: dict[str, Any], items: Sequence[Measured]) -> Regimes:
    known = _known(items)
    points = _points(items, known)
    measured = len(points)
    points = points[:: -(-measured // MOST_POINTS)]
    curve = find_regimes(
        [p.nbytes for p in points], [p.time_ns for p in points], [p.error for p in points]
    )
    doubts = dict.fromkeys(m.row.reason for m in items if m.row.status == IMPLAUSIBLE)
    found = Regimes(common, points, curve, handovers=_handovers(points), known=known)
    found.sizes, found.doubt = measured, "; ".join(doubts)
    found.share = counted_share(common["collective"], common.get("ranks") or 0)
    found.transitions = [
        _transition(points, curve, boundary, found.handovers) for boundary in curve.boundaries
    ]
    found.falls, found.disagreeing = falls_of(found), disagreeing(found)
    found.note = note_of(found)
    return found


def _known(items: Sequence[Measured]) -> Known | None:
    by_size = [_by_launch(own) for _, own in _by_size(items)]
    calls = [
        (row.low_ns, row.high_ns, row.calls)
        for row in (item.row for item in items)
        if row.low_ns and row.high_ns
    ]
    return known_scatter(by_size, calls)


def _by_size(items: Sequence[Measured]) -> list[tuple[int, list[Measured]]]:
    by_size: dict[int, list[Measured]] = {}
    for item in items:
        by_size.setdefault(item.row.nbytes, []).append(item)
    return sorted(by_size.items())


def _by_launch(items: Sequence[Measured]) -> dict[int, float]:
    """A launch may have run a case twice."""
    launches: dict[int, list[float]] = {}
    for item in items:
        launches.setdefault(item.launch, []).append(item.figure or 0.0)
    return {launch: geometric(own) or 0.0 for launch, own in launches.items()}


def _points(items: Sequence[Measured], known: Known | None) -> list[Point]:
    points = []
    for index, (nbytes, own) in enumerate(_by_size(items)):
        names = list(dict.fromkeys(m.row.algorithm for m in own if m.row.algorithm))
        figures = _by_launch(own)
        every = sorted(figures.values())
        # An even number has two in its middle. No logarithm of one: a figure stays what it is.
        time = geometric(every[(len(every) - 1) // 2 : len(every) // 2 + 1]) or 0.0
        error = known.errors[index] if known else 0.0
        points.append(Point(nbytes, time, len(figures), ", ".join(names) or None, error))
    return points


def _handovers(points: Sequence[Point]) -> list[Handover]:
    named = [(p.nbytes, p.algorithm) for p in points if p.algorithm]
    return [
        Handover(low, high, before, after)
        for (low, before), (high, after) in itertools.pairwise(named)
        if before != after
    ]


def _transition(
    points: Sequence[Point],
    curve: Curve,
    boundary: Boundary,
    handovers: Sequence[Handover],
) -> Transition:
    low, high = points[boundary.low].nbytes, points[boundary.high].nbytes
    jump = boundary.jump
    if jump is None:
        kind = "unclear"
    else:
        kind = "cliff" if jump >= CLIFF else "drop" if jump <= 1 / CLIFF else "kink"
    inside = [h for h in handovers if h.low_nbytes < high and h.high_nbytes > low]
    named = any(point.algorithm for point in points)
    agreement = "the log agrees" if inside else "the log names no change here" if named else ""
    before = None if boundary.before is None else curve.regimes[boundary.before]
    after = None if boundary.after is None else curve.regimes[boundary.after]
    handover = inside[0] if inside else None
    return Transition(low, high, before, after, jump, kind, handover, agreement)


def _between(low: int, high: int, count: int) -> list[int]:
    """Sizes at even ratios between two; fewer where the step cannot be cut so often."""
    ratio = (high / low) ** (1 / (count + 1))
    sizes = [_whole(low * ratio**k) for k in range(1, count + 1)]
    return [size for size in sizes if low < size < high]


def _whole(size: float) -> int:
    step = _ALIGN if size >= 64 * _ALIGN else _STEP
    return math.floor(size / step + 0.5) * step

"""Find the sizes at which the behaviour of a collective changes, from times and logs.

The two sources are independent, and none corrects the other. The times give transitions between
ranges (curves/ranges.py). The library's log, if it was kept, gives hand-overs: another algorithm
between two sizes.

If the times of a curve contradict its ranges, this may be noise. It is called noise only if several
runs, or the calls of a single run, show it; a size that is slow in every run scatters about its law
too.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.display import Displayed
from torchcoll.core.errors import UnusableError
from torchcoll.core.plausibility import IMPLAUSIBLE
from torchcoll.core.result import Run
from torchcoll.core.units import counted, format_size
from torchcoll.parts.curves import ranges
from torchcoll.parts.curves.ranges import CurveScatter, estimate_scatter
from torchcoll.reading.inputs import Source
from torchcoll.stats.differences import hidden_among, hidden_note, kept_separate
from torchcoll.stats.matching import NAMES, value_of
from torchcoll.stats.ratios import geometric
from torchcoll.stats.sides import Measured, Reading, Side, known_of, side, value_of_fact

NOISY = 0.2  # scatter about the law; with more, no boundary can be found
POOR = 0.15  # deviation of a point; if it is larger, and larger than noise, the law does not fit
_LEAST_SIZES = 3  # a line through two points shows nothing
FEW = 16  # sizes: with fewer, scatter about a law may be misfit rather than noise
FALL = 0.1  # a fall of the time from one size to the next; nobody would act on less
_UNKNOWN = 0.04  # noise assumed for few sizes if it is unknown: a fall has to be at least 1.25x
_FAR = 4  # standard errors: noise rarely deviates by so many


@dataclass(frozen=True)
class Fall:
    """A larger size that takes less time. ratio: time at low_bytes over time at high_bytes."""

    low_bytes: int
    high_bytes: int
    low_ns: float
    high_ns: float

    @property
    def ratio(self) -> float:
        return self.low_ns / self.high_ns


def find_falls(curve_ranges: CurveRanges) -> list[Fall]:
    """Falls of the time that exceed the noise and are not explained by a slow size or a drop."""
    from_runs = curve_ranges.scatter and curve_ranges.scatter.from_runs
    noise = curve_ranges.curve.noise if len(curve_ranges.points) >= FEW else _UNKNOWN

    kept = [p for i, p in enumerate(curve_ranges.points) if i not in curve_ranges.curve.slow_sizes]
    spans = [(t.low_bytes, t.high_bytes) for t in curve_ranges.transitions if t.kind == "drop"]
    falls = []
    for a, b in itertools.pairwise(kept):
        errors = (a.error, b.error) if from_runs else (noise, noise)
        least = max(math.log1p(FALL), _FAR * math.hypot(*errors))
        seen = any(low <= a.size_bytes and b.size_bytes <= high for low, high in spans)
        if math.log(a.time_ns / b.time_ns) > least and not seen:
            falls.append(Fall(a.size_bytes, b.size_bytes, a.time_ns, b.time_ns))
    return falls


def disagreeing_sizes(curve_ranges: CurveRanges) -> list[SizePoint]:
    """Sizes that weigh less because their runs differ much more than at most other sizes."""
    if not (curve_ranges.scatter and curve_ranges.scatter.from_runs):
        return []
    usual = statistics.median(point.error for point in curve_ranges.points)
    return [p for p in curve_ranges.points if p.error > max(POOR, ranges.DISAGREEING * usual)]


def fit_note(curve_ranges: CurveRanges) -> str:
    """What contradicts the ranges of a curve, or why none could be found; '' if nothing does."""
    points, curve = curve_ranges.points, curve_ranges.curve
    too_few = len(points) < 2 * ranges.FEWEST
    scatter = curve_ranges.scatter
    from_runs = bool(scatter and scatter.from_runs)
    if curve.noise > NOISY:
        # Compare with the scatter of the runs at one size, or of the calls of a single run.
        scatter_text = f"times scatter by {100 * curve.noise:.0f} % about any law of this kind"
        if scatter and scatter.point_error > curve.noise / 2:
            replicates = "runs" if from_runs else "calls"
            return (
                f"too noisy: {scatter_text}, and {replicates} of one size as much; repeat the runs"
            )
        if len(points) >= FEW and not from_runs:
            return f"{scatter_text}; one run cannot tell noise from what each size takes: repeat it"
    if not curve.ranges:  # each has too few sizes
        return ""
    worst = max(curve.ranges, key=lambda r: r.misfit)
    point = points[worst.misfit_at]
    # Among many sizes the furthest from the law is expected to be far: compare with their scatter.
    scatter_noise = curve.noise if len(points) >= FEW else 0.0
    noise = point.error if from_runs else scatter_noise
    size = format_size(point.size_bytes)
    text = f"one law fits all within {100 * worst.misfit:.1f} % ({size})"
    poor = worst.misfit > max(POOR, _FAR * noise)
    ratio = point.time_ns / worst.time_ns(point.size_bytes)
    if worst.misfit > POOR and not poor and len(points) < FEW:
        return f"too noisy: {size} takes {ratio:.2f}x the fitted time; repeat the runs"
    if poor and curve.boundaries:
        number = curve.ranges.index(worst) + 1
        text = f"the law of range {number} does not fit: {size} takes"
        return f"{text} {ratio:.2f}x the fitted time{_agreement(curve_ranges)}"
    if poor:
        text = f"one law does not fit: {size} takes {ratio:.2f}x the fitted time"
        text += "; too few sizes to say more" if len(points) < FEW and not too_few else ""
        if len(points) >= 2 * ranges.FEWEST:
            return text + _agreement(curve_ranges)
    if too_few:
        return (
            f"too few sizes to find a boundary: {len(points)}, and {ranges.FEWEST} on each side "
            f"are needed; {text}"
        )
    return ""


def _agreement(curve_ranges: CurveRanges) -> str:
    """A text on how much the runs of one size scatter, for a law that does not fit."""
    scatter = curve_ranges.scatter
    if scatter and scatter.from_runs:
        return f" (runs of one size scatter by {100 * scatter.run_error:.1f} %)"
    return " (1 run: whether that is noise is not known)"


CLIFF = 1.1  # ratio of the times of both laws at a transition: a jump
REFINING = 6  # sizes proposed inside a transition
# If there are too few sizes beyond a transition, sizes up to so many times its end are proposed.
REACH = 4
MOST_POINTS = 1000  # of a curve: run time and memory grow with their square
_ALIGN = 256  # bytes: proposed sizes can be divided among ranks and types
_STEP = 4  # the same for small sizes


@dataclass(frozen=True)
class SizePoint:
    """One size of a curve.

    time_ns: the median over the runs (of two runs the geometric mean). Not the mean, because a
        single slow run would move it, and the law with it.
    algorithm: as the library's log names it.
    error: relative standard error from the runs or their calls; 0 if unknown.
    """

    size_bytes: int
    time_ns: float
    runs: int
    algorithm: str | None
    error: float = 0.0


@dataclass(frozen=True)
class Handover:
    """A change of the algorithm in the log between two sizes."""

    low_bytes: int
    high_bytes: int
    before: str
    after: str


@dataclass(frozen=True)
class Transition:
    """A change of range between low_bytes and high_bytes, as the times show it.

    kind: ``cliff`` (the time jumps up), ``drop`` (it jumps down: the library switched too late),
        ``kink`` (only the slope changes) or ``inconclusive`` (too few sizes on a side for a law).
    jump: time of the law after it over the law before it, at the best position.
    handover: the change of algorithm in the log there; agreement: a text on whether they agree.
    """

    low_bytes: int
    high_bytes: int
    before: ranges.SizeRange | None
    after: ranges.SizeRange | None
    jump: float | None
    kind: str
    handover: Handover | None = None
    agreement: str = ""


_LEAP = 1.1  # growth of the time over growth of the size


@dataclass(frozen=True)
class Leap:
    """Two neighbouring sizes of a curve, and the time of the larger over that of the smaller."""

    low_bytes: int
    high_bytes: int
    factor: float

    @property
    def steepness(self) -> float:
        """Growth of the time over growth of the size."""
        return self.factor * self.low_bytes / self.high_bytes


@dataclass
class CurveRanges:
    """One curve with its ranges and transitions.

    common: the fields that are the same for all its cases.
    points: its sizes; if more than MOST_POINTS were measured, every k-th.
    handovers: changes of the algorithm in the library's log.
    note: what contradicts the ranges, or why there are none; or ''.
    doubt: why its times are not plausible, or ''.
    sizes: how many were measured.
    share: the share of the size that algbw counts; None if unknown.
    scatter: the noise of the points; None if unknown.
    disagreeing_sizes: sizes that weigh little because their runs disagree.
    """

    common: dict[str, Any]
    points: list[SizePoint]
    curve: ranges.FittedCurve
    transitions: list[Transition] = field(default_factory=list)
    handovers: list[Handover] = field(default_factory=list)
    note: str = ""
    doubt: str = ""
    sizes: int = 0
    share: float | None = 1.0
    scatter: CurveScatter | None = None
    falls: list[Fall] = field(default_factory=list)
    disagreeing_sizes: list[SizePoint] = field(default_factory=list)

    def algbw_gbps(self, size_range: ranges.SizeRange) -> float | None:
        """The algorithm bandwidth as in ``show``; for some collectives it is not size / time."""
        gbps = size_range.bandwidth_gbps
        return None if gbps is None or self.share is None else self.share * gbps

    def leap(self, transition: Transition) -> Leap | None:
        """Where in a transition the time grows fastest, if it grows faster there than the size,
        which no law of a range allows. None of a cliff or drop, which has a jump of its own.
        """
        inside = [
            point
            for index, point in enumerate(self.points)
            if transition.low_bytes <= point.size_bytes <= transition.high_bytes
            and index not in self.curve.slow_sizes
        ]
        leaps = [
            Leap(low.size_bytes, high.size_bytes, high.time_ns / low.time_ns)
            for low, high in itertools.pairwise(inside)
        ]
        if transition.kind not in ("kink", "inconclusive") or not leaps:
            return None
        steepest = max(leaps, key=lambda leap: leap.steepness)
        return steepest if steepest.steepness > _LEAP else None

    @property
    def refining(self) -> list[int]:
        """Sizes not measured yet that would narrow the transitions, or complete a law."""
        measured = [point.size_bytes for point in self.points]
        spans = [(transition.low_bytes, transition.high_bytes) for transition in self.transitions]
        lacks_law = [transition.before is None for transition in self.transitions]
        lacks_law.append(bool(spans) and self.transitions[-1].after is None)
        # Slow sizes at an end may be the first of another law: propose sizes there too.
        slow_sizes, last_one = self.curve.slow_sizes, len(measured) - 1
        after = next(i for i in range(last_one, -2, -1) if i not in slow_sizes)
        before = next(i for i in range(last_one + 2) if i not in slow_sizes)
        if 0 <= after < last_one:
            spans, lacks_law = [*spans, (measured[after], measured[after + 1])], [*lacks_law, True]
        if 0 < before <= last_one:
            spans = [(measured[before - 1], measured[before]), *spans]
            lacks_law = [True, *lacks_law]
        if not spans:
            return []
        lows, highs = [low for low, _ in spans], [high for _, high in spans]
        # Propose sizes beyond the measured ones if a transition is at their end.
        first, last = measured[0], measured[-1]
        if lacks_law[0]:
            first = min(first, max(_STEP, _whole(lows[0] / REACH)))
        if lacks_law[-1]:
            last = max(last, _whole(highs[-1] * REACH))
        sizes = {first, last}
        for low, high in zip(lows, highs, strict=True):
            sizes.update(_between(low, high, REFINING))
        for lacking, low, high in zip(lacks_law, [first, *highs], [*lows, last], strict=True):
            sizes.update(_between(low, high, ranges.FEWEST - 1) if lacking else ())
        return sorted(sizes - set(measured))


@dataclass(repr=False)
class Transitions(Displayed):
    """The result of ``transitions``: the curves of some runs."""

    runs: list[Run]
    curves: list[CurveRanges]
    notes: list[str] = field(default_factory=list)


def transitions(sources: Source | Sequence[Source], *, over_ranks: str = "max") -> Transitions:
    """The ranges of every curve of a folder, files or Runs. ``show`` prints it.

    A curve consists of cases that differ only in their size; the time of a size is the median over
    the runs (see SizePoint).
    Raises UsageError if no case has a time and a size; UnreadableError for a file that cannot be
    read.
    """
    files = side("files", sources)
    separate = kept_separate((run.ranks, known_of(run)) for run in files.parts)
    curves = _curves(files, over_ranks, separate)
    return Transitions(files.runs, curves, _notes(files, separate))


def _notes(files: Side, separate: Sequence[str]) -> list[str]:
    """Notes on how the pooled runs differ, because this may explain a step in a curve."""
    # Each number of ranks is a curve of its own.
    facts_by_ranks: dict[int, list[dict[str, str]]] = {}
    for run in files.parts:
        facts_by_ranks.setdefault(run.ranks, []).append(known_of(run))
    texts = dict.fromkeys(hidden_note(hidden_among(f, separate)) for f in facts_by_ranks.values())
    return list(filter(None, (*texts, files.rehearsal_note)))


def _curves(side: Side, over_ranks: str, separate: Sequence[str]) -> list[CurveRanges]:
    groups: dict[str, tuple[dict[str, Any], list[Measured]]] = {}
    for item in side.measured("time", Reading(over_ranks)):
        row = item.row
        # Implausible times are kept: the shape of their curve is useful, it may be that of a copy.
        timed = row.outcome in ("ok", IMPLAUSIBLE) and item.figure and row.size_bytes
        if not timed:
            continue
        common = {name: value_of(item, name) for name in NAMES}
        common |= {name: value_of_fact(item.facts, name) for name in separate}
        common |= {"cell": side.runs[item.run].labels.get("cell")}
        groups.setdefault(repr(common), (common, []))[1].append(item)
    if not groups:
        first_calls = "Rows of -i 1 -w 0 are first calls: torchcoll cold reads them."
        raise UnusableError("cases", "none with a time and a size", "at least one", first_calls)
    sizes = [len({item.row.size_bytes for item in items}) for _, items in groups.values()]
    if max(sizes) < _LEAST_SIZES:
        most = counted(max(sizes), "size")
        expected = f"one with {_LEAST_SIZES} sizes or more"
        raise UnusableError("curves", f"{len(sizes)} with at most {most} each", expected)
    return [
        _ranges(common, items)
        for (common, items), number in zip(groups.values(), sizes, strict=True)
        if number >= _LEAST_SIZES
    ]


def _ranges(common: dict[str, Any], items: Sequence[Measured]) -> CurveRanges:
    scatter = _scatter(items)
    points = _points(items, scatter)
    measured = len(points)
    points = points[:: -(-measured // MOST_POINTS)]
    curve = ranges.find_ranges(
        [p.size_bytes for p in points], [p.time_ns for p in points], [p.error for p in points]
    )
    doubts = dict.fromkeys(m.row.reason for m in items if m.row.status == IMPLAUSIBLE)
    named = [(p.size_bytes, p.algorithm) for p in points if p.algorithm]
    handovers = [
        Handover(low, high, before, after)
        for (low, before), (high, after) in itertools.pairwise(named)
        if before != after
    ]
    curve_ranges = CurveRanges(common, points, curve, handovers=handovers, scatter=scatter)
    curve_ranges.sizes, curve_ranges.doubt = measured, "; ".join(doubts)
    curve_ranges.share = _counted_share(common["collective"], common.get("ranks") or 0)
    for boundary in curve.boundaries:
        low, high = points[boundary.low].size_bytes, points[boundary.high].size_bytes
        jump = boundary.jump
        if jump is None:
            kind = "inconclusive"
        else:
            kind = "cliff" if jump >= CLIFF else "drop" if jump <= 1 / CLIFF else "kink"
        inside = [h for h in handovers if h.low_bytes < high and h.high_bytes > low]
        agreement = "the log agrees" if inside else "the log names no change here" if named else ""
        transition = Transition(
            low,
            high,
            None if boundary.before is None else curve.ranges[boundary.before],
            None if boundary.after is None else curve.ranges[boundary.after],
            jump,
            kind,
            inside[0] if inside else None,
            agreement,
        )
        curve_ranges.transitions.append(transition)
    curve_ranges.falls = find_falls(curve_ranges)
    curve_ranges.disagreeing_sizes = disagreeing_sizes(curve_ranges)
    curve_ranges.note = fit_note(curve_ranges)
    return curve_ranges


def _scatter(items: Sequence[Measured]) -> CurveScatter | None:
    by_size = [_by_run(cases) for _, cases in _by_size(items)]
    rows = [item.row for item in items]
    calls = [(row.low_ns, row.high_ns, row.calls) for row in rows if row.low_ns and row.high_ns]
    return estimate_scatter(by_size, calls)


def size_points(items: Sequence[Measured]) -> list[SizePoint]:
    """The points of one curve. items: its cases of any runs, each with a time and a size."""
    return _points(items, _scatter(items))


def _by_size(items: Sequence[Measured]) -> list[tuple[int, list[Measured]]]:
    by_size: dict[int, list[Measured]] = {}
    for item in items:
        by_size.setdefault(item.row.size_bytes, []).append(item)
    return sorted(by_size.items())


def _by_run(items: Sequence[Measured]) -> dict[int, float]:
    """The time of each run; the geometric mean if it has the same case twice."""
    runs: dict[int, list[float]] = {}
    for item in items:
        runs.setdefault(item.run, []).append(item.figure or 0.0)
    return {run: geometric(times) or 0.0 for run, times in runs.items()}


def _points(items: Sequence[Measured], scatter: CurveScatter | None) -> list[SizePoint]:
    points = []
    for index, (size_bytes, cases) in enumerate(_by_size(items)):
        names = list(dict.fromkeys(m.row.algorithm for m in cases if m.row.algorithm))
        figures = _by_run(cases)
        times = sorted(figures.values())
        # The middle one, or the geometric mean of the middle two; of a single one it is exact.
        time = geometric(times[(len(times) - 1) // 2 : len(times) // 2 + 1]) or 0.0
        error = scatter.errors[index] if scatter else 0.0
        points.append(SizePoint(size_bytes, time, len(figures), ", ".join(names) or None, error))
    return points


def _between(low: int, high: int, count: int) -> list[int]:
    """``count`` sizes at equal ratios between two; fewer if they are too close."""
    ratio = (high / low) ** (1 / (count + 1))
    sizes = [_whole(low * ratio**k) for k in range(1, count + 1)]
    return [size for size in sizes if low < size < high]


def _whole(size: float) -> int:
    step = _ALIGN if size >= 64 * _ALIGN else _STEP
    return math.floor(size / step + 0.5) * step


def _counted_share(collective: str, ranks: int) -> float | None:
    """What algbw counts of size / time (nccl-tests doc/PERFORMANCE.md); None where that depends on
    a number of ranks that is not known, or is 1.
    """
    entry = COLLECTIVES[collective]
    if ranks < 2:
        return None if entry.moved(2) != 1 else 1.0
    return entry.moved(ranks)

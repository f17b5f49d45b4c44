"""Find the ranges of a curve of time over size: where the law latency + size / bandwidth changes.

Dynamic programming over all segmentations of the curve (R. Bellman, Comm. ACM 4 (1961) 284). A
Bayesian information criterion chooses the number of cuts; for each cut all positions are kept that
the data cannot tell from the best one. Pure numbers: sizes in bytes, times in nanoseconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy

from torchcoll.parts.curves.slow_sizes import LEAST, Floats, Indexes, LawFit, find_slow_sizes
from torchcoll.stats.distributions import chi2_median, mad_scale

FEWEST = 4  # points of a range with a law: two parameters and two degrees of freedom
MOST_RANGES = 8
# Clocks and rounding alone cause relative deviations of this size.
FLOOR = 0.005
# The penalty of a boundary in units of log(points), in addition to the two parameters of its range.
# The position of a boundary is no ordinary parameter, as it is the best of all positions. With this
# value at most 2 % of curves with one range show a boundary:
# results/benchmarks/transitions-2026-11-28.txt.
BOUNDARY_COST = 3.0
# A point weighs less if its runs disagree by more than so many times the usual standard error.
DISAGREEING = 4
# The least time of a law at the first size of its range, as a share of the measured time: a steep
# line may reach zero below its range, but not inside.
POSITIVE = 0.1
# A position belongs to the transition if its likelihood ratio is at most this. The probability to
# miss the true position of a jump is P = 1 - (1 - exp(-c / 2))^2, 5 % at 7.35 (D. Siegmund,
# Confidence sets in change-point problems, Int. Stat. Rev. 56 (1988) 31). The ratio uses degrees of
# freedom instead of points: with points, transitions among 10 points missed in up to 6 %.
TRANSITION_RATIO = 7.35


@dataclass(frozen=True)
class SizeRange:
    """Sizes first to last (indexes, inclusive) that follow latency_ns + size / bandwidth_gbps.

    latency_ns: the intercept of the line. It is below 0, and then no latency, if the slope is
        steeper than in the range before (beyond a cache).
    bandwidth_gbps: bytes of the size per nanosecond; None if the time does not grow.
    misfit: the largest relative deviation of a point; misfit_at: the index of this point.
    """

    first: int
    last: int
    latency_ns: float
    bandwidth_gbps: float | None
    misfit: float
    misfit_at: int

    def time_ns(self, size_bytes: float) -> float:
        return self.latency_ns + (size_bytes / self.bandwidth_gbps if self.bandwidth_gbps else 0.0)


@dataclass(frozen=True)
class Boundary:
    """A change of the law between two sizes: after ``low``, at the latest at ``high`` (indexes).

    jump: time of the law after the change over the law before it, at the best position; 1 if the
        two laws meet inside the transition; None if a side has no law.
    before, after: the indexes of the ranges on both sides; None for a side that may have fewer than
        FEWEST points, and so has no law.
    """

    low: int
    high: int
    jump: float | None
    before: int | None
    after: int | None


@dataclass(frozen=True)
class FittedCurve:
    """The ranges of one curve, the boundaries between them, and single slow sizes.

    ranges: those that have a law, in order. Empty if each may have fewer than FEWEST points.
    slow_sizes: index -> time over the law's time; these sizes are in no fit.
    noise: relative standard deviation of the points about their laws.
    """

    ranges: tuple[SizeRange, ...]
    boundaries: tuple[Boundary, ...]
    slow_sizes: dict[int, float]
    noise: float


def find_ranges(
    sizes: Sequence[float], times: Sequence[float], noise: float | Sequence[float] = 0.0
) -> FittedCurve:
    """Find the ranges of a curve. With fewer than 2 x FEWEST points there is one range.

    sizes: ascending.
    noise: relative standard error of all times or of each one. A point that deviates by less is no
        slow size, and a point that is far more uncertain than most weighs less.

    A stretch of 1 to 3 points between boundaries has no law, but is searched for like any other.
    Otherwise the boundaries would be placed such that 4 points remain, and their transitions would
    not contain the true position.
    """
    size, time = numpy.asarray(sizes, dtype=float), numpy.asarray(times, dtype=float)
    error = numpy.maximum(numpy.broadcast_to(numpy.asarray(noise, dtype=float), size.shape), FLOOR)
    usual = float(numpy.median(error))
    weight = numpy.where(error > DISAGREEING * usual, usual / error, 1.0)
    points = _Points(size, time, weight)
    slow_sizes = find_slow_sizes(size, time, points.fit, error)
    fitted = _curve(points, slow_sizes)
    # A slow size within a transition may belong to a neighbouring law, or to a third law in between
    # that has too few points: then a fit that includes it shows this. If it is still far from its
    # law in this fit, it remains a slow size.
    between = [i for i in slow_sizes if any(b.low < i < b.high for b in fitted.boundaries)]
    while between:
        fitted = _curve(points, [i for i in slow_sizes if i not in between])
        hidden = []
        for i in between:
            laws = [r for r in fitted.ranges if r.first <= i <= r.last]
            distances = [abs(math.log(float(time[i]) / r.time_ns(float(size[i])))) for r in laws]
            if any(distance > math.log1p(LEAST) for distance in distances):
                hidden.append(i)
        if not hidden:
            return fitted
        between = [i for i in between if i not in hidden]
    return _curve(points, slow_sizes)


@dataclass(frozen=True)
class _Points:
    """The points of a curve. weight: of the relative deviation, 1 for most points."""

    size: Floats
    time: Floats
    weight: Floats

    def fit(self, kept: Indexes) -> LawFit:
        fits, forward, cuts = _segmented(self, kept, FEWEST)
        ranges = [fits.size_range(a, b) for a, b in itertools.pairwise([0, *cuts, len(kept)])]
        laws = [
            (r.first, r.last, r.latency_ns, 1 / r.bandwidth_gbps if r.bandwidth_gbps else 0.0)
            for r in ranges
        ]
        return LawFit(tuple(laws), max(0.0, float(forward[len(cuts)][-1])))


def _curve(points: _Points, slow_sizes: Sequence[int]) -> FittedCurve:
    size, time = points.size, points.time
    kept = numpy.array([i for i in range(len(size)) if i not in slow_sizes], dtype=int)
    fits, forward, cuts = _segmented(points, kept, 1)
    n, chosen = len(kept), len(cuts) + 1
    ranges = [fits.size_range(a, b) for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    # [k - 1][a]: least cost of points a to the end in k ranges.
    backward = [fits.cost[:, -1].copy()]
    for _ in range(1, chosen):
        backward.append(numpy.min(fits.cost + backward[-1][None, :], axis=1))
    best = _deviance(forward[chosen - 1][n], n)
    free = max(1, n - 2 * chosen)
    spans = []
    for number in range(1, chosen):
        # The cost for each position of this boundary, with all other boundaries at their best.
        profile = forward[number - 1] + backward[chosen - number - 1]
        ratio = numpy.array([free * math.log(_deviance(c, n) / best) for c in profile])
        inside = numpy.flatnonzero(ratio <= TRANSITION_RATIO)
        spans.append((int(inside[0] - 1), int(inside[-1])))
    names = _named(cuts, spans, n)
    boundaries = []
    for number, (cut, (low, high)) in enumerate(zip(cuts, spans, strict=True)):
        before, after = names[number], names[number + 1]
        jump = None
        if before is not None and after is not None:
            ends = float(fits.size[low]), float(fits.size[high])
            boundary_bytes = math.sqrt(fits.size[cut - 1] * fits.size[cut])
            if (
                ranges[number + 1].time_ns(boundary_bytes) <= 0
            ):  # steep: it begins at its first size
                boundary_bytes = float(fits.size[cut])
            first, second = ranges[number], ranges[number + 1]
            differences = [second.time_ns(end) - first.time_ns(end) for end in ends]
            # 1 where the two laws meet inside the transition.
            meet = differences[0] * differences[1] <= 0
            jump = 1.0 if meet else second.time_ns(boundary_bytes) / first.time_ns(boundary_bytes)
        boundaries.append(Boundary(int(kept[low]), int(kept[high]), jump, before, after))
    original = [
        replace(
            r, first=int(kept[r.first]), last=int(kept[r.last]), misfit_at=int(kept[r.misfit_at])
        )
        for r in ranges
    ]
    noise = math.sqrt(max(0.0, float(forward[chosen - 1][n])) / free)
    separate = {i: float(time[i]) / _expected(original, i, size) for i in slow_sizes}
    lawful = tuple(r for r, name in zip(original, names, strict=True) if name is not None)
    return FittedCurve(lawful, tuple(boundaries), separate, noise)


def _segmented(
    points: _Points, kept: Indexes, fewest: int
) -> tuple[_Segments, list[Floats], list[int]]:
    """Choose the segmentation of the kept points into ranges of at least ``fewest`` points.

    Returns the fits of all stretches, the least costs ([k - 1][b]: points 0 to b - 1 in k ranges),
    and the chosen cuts.
    """
    fits = _Segments(points.size[kept], points.time[kept], points.weight[kept], fewest)
    n = len(kept)
    most = MOST_RANGES if n >= 2 * FEWEST else 1
    forward = [fits.cost[0].copy()]
    for _ in range(1, most):
        forward.append(numpy.min(forward[-1][:, None] + fits.cost, axis=0))
    chosen = min(range(1, most + 1), key=lambda k: _criterion(forward[k - 1][n], n, k))
    cuts: list[int] = []
    end = n
    for k in range(chosen - 1, 0, -1):
        end = int(numpy.argmin(forward[k - 1] + fits.cost[:, end]))
        cuts.insert(0, end)
    return fits, forward, cuts


def _named(cuts: Sequence[int], spans: Sequence[tuple[int, int]], n: int) -> list[int | None]:
    """For each range its number among those with a law, or None.

    A range has a law if it has FEWEST points wherever one of its boundaries lies in its transition,
    with the other boundary at its best position.
    """
    starts, ends = [0, *cuts], [*cuts, n]
    latest = [0, *(high for _, high in spans)]
    earliest = [*(low + 1 for low, _ in spans), n]
    names: list[int | None] = []
    count = 0
    for start, end, late, early in zip(starts, ends, latest, earliest, strict=True):
        lawful = not cuts or min(early - start, end - late) >= FEWEST
        names.append(count if lawful else None)
        count += lawful
    return names


def _deviance(cost: float, n: int) -> float:
    """Mean square of the relative deviations, at least that of clocks and rounding."""
    return max(float(cost), 0.0) / n + FLOOR**2


def _criterion(cost: float, n: int, ranges: int) -> float:
    if not math.isfinite(cost):
        return math.inf
    figures = 2 * ranges + BOUNDARY_COST * (ranges - 1)
    free = n - 2 * ranges - 1
    if free < 1:  # only the first choice is left: the fewest ranges
        return math.inf if ranges > 1 else 0.0
    # Few points are overfitted: AIC's small-sample factor n / free (Hurvich and Tsai, Biometrika 76
    # (1989) 297), applied to this penalty.
    return n * math.log(_deviance(cost, n)) + figures * math.log(n) * n / free


class _Segments:
    """Least squares of every stretch of points, from prefix sums.

    The relative error of latency + size x slope is least: with w = 1 / time the problem is linear.
    ``cost[a, b]``: sum of squares of points a to b - 1; infinite for fewer than ``fewest``.
    """

    def __init__(self, size: Floats, time: Floats, weight: Floats, fewest: int) -> None:
        self.size, self.time = size, time
        self._unit = float(size.max())
        w, v = 1 / time, size / self._unit / time
        # Scaled by the smallest time: sums of numbers near 1.
        self._scale = float(time.min())
        w = w * self._scale * weight
        v = v * self._scale * weight
        self._columns = numpy.column_stack(
            (w * w, w * v, v * v, w * weight, v * weight, weight * weight)
        )
        n = len(size)
        a, b = numpy.meshgrid(numpy.arange(n + 1), numpy.arange(n + 1), indexing="ij")
        self.cost = numpy.full((n + 1, n + 1), numpy.inf)
        long = b - a >= FEWEST
        sums = numpy.vstack((numpy.zeros(6), numpy.cumsum(self._columns, axis=0)))
        self.cost[long] = self._solve(sums[b[long]] - sums[a[long]], a[long])[2]
        # For fewer points, a difference of two long sums would be mostly rounding error.
        for length in range(fewest, min(FEWEST, n + 1)):
            starts = numpy.arange(n + 1 - length)
            stretch_sums = numpy.add.reduce([self._columns[starts + k] for k in range(length)])
            self.cost[starts, starts + length] = self._solve(stretch_sums, starts)[2]

    def _solve(self, sums: Floats, starts: Indexes) -> tuple[Floats, ...]:
        """Latency, slope (both scaled) and sum of squares of stretches that begin at ``starts``.

        The slope is at least 0, and the law is positive at the first size of the stretch.
        """
        ww, wv, vv, w, v, n = sums.T
        with numpy.errstate(divide="ignore", invalid="ignore"):
            determinant = ww * vv - wv * wv
            latency = (w * vv - v * wv) / determinant
            slope = (v * ww - w * wv) / determinant
            flat, steep = w / ww, v / vv
            begin = latency + slope * self.size[starts] / self._unit
        singular = ~numpy.isfinite(latency) | (determinant <= 1e-12 * ww * vv)
        only_flat = singular | (slope < 0)
        least = POSITIVE * self.time[starts] / self._scale
        only_steep = ~only_flat & (latency < 0) & (begin < least)
        latency = numpy.where(only_flat, flat, numpy.where(only_steep, 0.0, latency))
        slope = numpy.where(only_flat, 0.0, numpy.where(only_steep, steep, slope))
        square = (
            n
            + latency**2 * ww
            + slope**2 * vv
            + 2 * latency * slope * wv
            - 2 * latency * w
            - 2 * slope * v
        )
        return latency, slope, numpy.maximum(square, 0.0)

    def size_range(self, a: int, b: int) -> SizeRange:
        sums = numpy.add.reduce(self._columns[a:b], axis=0, keepdims=True)
        latency, slope, _ = self._solve(sums, numpy.array([a]))
        latency_ns = float(latency[0]) * self._scale
        per_byte = float(slope[0]) * self._scale / self._unit
        law = latency_ns + per_byte * self.size[a:b]
        away = abs(self.time[a:b] / law - 1)
        worst = int(away.argmax())
        bandwidth = 1 / per_byte if per_byte > 0 else None
        return SizeRange(a, b - 1, latency_ns, bandwidth, float(away[worst]), a + worst)


def _expected(ranges: Sequence[SizeRange], index: int, size: Floats) -> float:
    """The time of the law at a size that is in no fit."""
    law = next((r for r in ranges if index <= r.last), ranges[-1])
    time = law.time_ns(float(size[index]))
    # A steep law may be negative below its first size: then its time there counts.
    return time if time > 0 else law.time_ns(float(size[law.first]))


_90 = 3.29  # standard deviations from the 5th to the 95th percentile of normal noise
_MEDIAN = 1.25  # the standard error of a median over that of a mean
_ENOUGH = 6  # sizes: from so many on the median is used, below it the mean square


@dataclass(frozen=True)
class CurveScatter:
    """Relative standard errors of the times of a curve.

    run_error: of the time of one run at one size.
    point_error: of a point, the median of several runs at one size.
    from_runs: whether several runs were compared. If False, the errors come from the calls of one
        run; they are a lower bound, because another run may take another time.
    errors: of the point of each size, from its own runs; never below point_error.
    """

    run_error: float
    point_error: float
    from_runs: bool
    errors: tuple[float, ...]


def estimate_scatter(
    figures: Sequence[Mapping[int, float]], calls: Sequence[tuple[float, float, int]]
) -> CurveScatter | None:
    """Estimate the standard errors of a curve; None if neither runs nor calls allow it.

    A run that is slower at all sizes by the same factor does not move any point relative to the
    others, so the median deviation of each run is subtracted first. The estimates use medians, so
    that a run that was slow at a single size does not change those of the other sizes.

    figures: for each size, the time of each run.
    calls: (5th percentile, 95th percentile, number of calls) of each case.
    """
    all_logs = [{k: math.log(ns) for k, ns in by_run.items() if ns > 0} for by_run in figures]
    logs = [by_run for by_run in all_logs if len(by_run) > 1]
    runs = {k for by_run in logs for k in by_run}
    free = sum(len(by_run) - 1 for by_run in logs) - (len(runs) - 1)
    if logs and free > 0:
        middles = [float(numpy.median(list(by_run.values()))) for by_run in logs]
        slower = {
            k: numpy.median(
                [by_run[k] - m for by_run, m in zip(logs, middles, strict=True) if k in by_run]
            )
            for k in runs
        }
        deviations = [[y - slower[k] for k, y in by_run.items()] for by_run in logs]
        squares = [(len(by_run) - 1) * float(numpy.var(by_run, ddof=1)) for by_run in deviations]
        if len(deviations) < _ENOUGH:
            run_error = math.sqrt(sum(squares) / free)
        else:
            share = free / sum(
                len(values) - 1 for values in deviations
            )  # the share of the degrees of freedom that remains
            run_error = math.sqrt(
                numpy.median(
                    [
                        s / chi2_median(len(values) - 1)
                        for s, values in zip(squares, deviations, strict=True)
                    ]
                )
                / share
            )
        point_error = run_error / math.sqrt(numpy.mean([len(by_run) for by_run in logs]))
        errors = [
            _median_error([y - slower[k] for k, y in by_run.items() if k in slower])
            for by_run in all_logs
        ]
        errors_of_points = tuple(max(point_error, error) for error in errors)
        return CurveScatter(run_error, point_error, True, errors_of_points)
    variances = [
        (math.log(high / low) / _90 * _MEDIAN) ** 2 / count
        for low, high, count in calls
        if low > 0 and high >= low and count > 1
    ]
    if not variances:
        return None
    error = math.sqrt(float(numpy.mean(variances)))
    return CurveScatter(error, error, False, (error,) * len(figures))


def _median_error(logs: Sequence[float]) -> float:
    """The standard error of the median of some runs, given as logarithms; 0 for a single run."""
    if len(logs) < 2:
        return 0.0
    return mad_scale(numpy.asarray(logs) - numpy.median(logs)) / math.sqrt(len(logs))

"""Find single sizes that contradict the law of all other sizes, by an outlier test.

The law is fitted without the size, and the distance of the size from this law is divided by the
scatter of the other sizes. This is the externally studentized residual, which is distributed as
Student's t (R. D. Cook and S. Weisberg, Residuals and Influence in Regression (1982), section 2.2).
Bonferroni's correction accounts for testing every size. The size under test must not contribute to
the scatter: an outlier would hide itself. Pure numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray
from scipy import optimize

from torchcoll.stats.distributions import mad_scale, t_quantile

Floats = NDArray[numpy.float64]

Indexes = NDArray[numpy.int64]

LEAST = 0.15  # relative deviation from the law; nobody would act on less
_LEVEL = 0.01  # for all sizes of a curve: see results/benchmarks/transitions-2026-11-28.txt
_FEWEST = 6  # sizes: a law through the five others leaves three degrees of freedom
_LOOKED_AT = 3  # candidates: the sizes furthest from the law, and those furthest from neighbours
_MANY = 64  # sizes: of so many a single one hardly moves the law of the others
# At most one size in so many may be slow: with more, the others do not follow a law.
_SHARE = 4
_ENOUGH = 10  # sizes: from so many on the scatter is a median


@dataclass(frozen=True)
class LawFit:
    """The laws of some points.

    laws: (first index, last index (inclusive), latency_ns, ns per byte) of each law.
    squares: sum of squares of the relative deviations of all points.
    """

    laws: tuple[tuple[int, int, float, float], ...]
    squares: float


def find_slow_sizes(
    size: Floats, time: Floats, fit: Callable[[Indexes], LawFit], noise: Floats
) -> list[int]:
    """Indexes of the sizes that contradict the law of the others, ascending.

    The most significant size is removed first, then the rest is tested again: two slow sizes make
    each other less significant. A size between others can only be slow, not fast: a size below the
    law is also what a law that bends sharply leaves.

    fit: returns the laws of the points with the given indexes.
    noise: for each size, a relative deviation that noise alone explains.
    """
    kept = numpy.arange(len(size))
    slow: list[int] = []
    while len(kept) >= _FEWEST and len(slow) < max(1, len(size) // _SHARE):
        clearest, clearest_index = 1.0, None
        for candidate in _candidates(size[kept], time[kept], fit(kept)):
            # At an end, next to a size that was left out, the law of the others does not reach so
            # far.
            inner = 1 if candidate == 0 else candidate - 1
            at_end = candidate in (0, len(kept) - 1)
            if at_end and abs(int(kept[candidate] - kept[inner])) > 1:
                continue
            significance = _significance(size, time, kept, candidate, fit, noise)
            if significance > clearest:
                clearest, clearest_index = significance, candidate
        if clearest_index is None:
            break
        slow.append(int(kept[clearest_index]))
        kept = numpy.delete(kept, clearest_index)
    return sorted(slow)


def _candidates(size: Floats, time: Floats, fitted: LawFit) -> list[int]:
    """Indexes of the sizes to test. Each test costs a new fit, so only a few sizes are tested."""
    y = numpy.log(time)
    law = numpy.empty(len(size))
    for first, last, latency, per_byte in fitted.laws:
        law_sizes = slice(first, last + 1)
        law[law_sizes] = numpy.log(latency + per_byte * size[law_sizes])
    # A point pulls its law towards itself; the end of a short curve does by over half its distance.
    least = math.log1p(LEAST) * (0.8 if len(size) > _MANY else 0.3)
    x = numpy.log(size)
    indexes = numpy.arange(len(size))
    a, b = numpy.maximum(indexes - 1, 0), numpy.minimum(indexes + 1, len(size) - 1)
    a[0], b[-1] = 2, len(size) - 3
    between = y[a] + (y[b] - y[a]) * (x - x[a]) / (x[b] - x[a])
    chosen: list[int] = []
    for distances, limit in ((abs(y - law), least), (abs(y - between), math.log1p(LEAST))):
        if len(size) > _MANY:  # among many sizes, test only those beyond the usual scatter
            limit = max(limit, 5 * float(numpy.median(distances)))
        chosen += [int(i) for i in numpy.argsort(-distances)[:_LOOKED_AT] if distances[i] > limit]
    return list(dict.fromkeys(chosen))


def _significance(
    size: Floats,
    time: Floats,
    kept: Indexes,
    index: int,
    fit: Callable[[Indexes], LawFit],
    noise: Floats,
) -> float:
    """t of a size over the critical t: above 1 is significant; 0 for a deviation below LEAST.

    index: the position of the size in ``kept``. A size between two laws may belong to either of
    them; the law that it deviates less from counts.
    """
    remaining, candidate = numpy.delete(kept, index), kept[index]
    other_sizes, other_times = size[remaining], time[remaining]
    fitted = fit(remaining)
    free = len(other_sizes) - 2 * len(fitted.laws)
    if free < 1:
        return 0.0
    spread = max(_spread(fitted, other_sizes, other_times, index), float(noise[candidate]))
    critical_t = t_quantile(1 - _LEVEL / 2 / len(kept), free)
    # The law of the point before, and that of the point after.
    end = fitted.laws[-1][1]
    near = {min(max(index - 1, 0), end), min(index, end)}
    unit = float(other_sizes.max())
    scores = []
    for first, last, latency, per_byte in fitted.laws:
        expected = latency + per_byte * float(size[candidate])
        # A law with a negative intercept has no positive time far below its own sizes.
        if expected <= 0 or not any(first <= i <= last for i in near):
            continue
        distance = math.log(float(time[candidate]) / expected)
        if abs(distance) < math.log1p(LEAST):
            scores.append(0.0)
            continue
        of_law = slice(first, last + 1)
        rows = numpy.column_stack(
            (1 / other_times[of_law], other_sizes[of_law] / unit / other_times[of_law])
        )
        point = numpy.array([1.0, float(size[candidate]) / unit]) / expected
        # The variance of the law at this size, which is large if the law is extrapolated.
        leverage = float(point @ numpy.linalg.pinv(rows.T @ rows) @ point)
        scores.append(distance / spread / math.sqrt(1 + leverage))
    if not scores:
        return 0.0
    if 0 < index < len(kept) - 1 and min(scores) < 0:
        return 0.0
    return min(map(abs, scores)) / critical_t


def _spread(fitted: LawFit, size: Floats, time: Floats, index: int) -> float:
    """Relative scatter of some sizes about their laws.

    With at least _ENOUGH sizes it is based on the median deviation, because another slow size would
    inflate the mean square, and two slow sizes would hide each other. If the neighbours of
    ``index`` deviate as well, they are a stretch of slow sizes rather than a single one, and the
    mean square is used.
    """
    free = len(size) - 2 * len(fitted.laws)
    square = math.sqrt(fitted.squares / free)
    if len(size) < _ENOUGH:
        return square
    deviations_by_law = [
        abs(time[first : last + 1] / (latency + per_byte * size[first : last + 1]) - 1)
        for first, last, latency, per_byte in fitted.laws
    ]
    deviations = numpy.concatenate(deviations_by_law)
    if deviations[max(index - 1, 0) : index + 1].max() > LEAST:
        return square
    middle = mad_scale(deviations)
    # Two standard errors above the estimate, for normal noise: a scatter that is too small would
    # make noise look like slow sizes.
    middle *= math.sqrt(len(size) / free) * (1 + 2 * 1.17 / math.sqrt(len(size)))
    return min(square, middle)


def fit_line(sizes: Floats, times: Floats) -> tuple[float, float]:
    """Fit (latency in ns, ns per byte) to times in ns over sizes in bytes, neither below 0.

    Least squares of the relative deviations: otherwise the largest sizes alone would decide.
    """
    largest = float(sizes.max())
    columns = numpy.column_stack((1 / times, sizes / largest / times))
    (latency_ns, slope), _ = optimize.nnls(columns, numpy.ones(len(times)))
    return float(latency_ns), float(slope) / largest

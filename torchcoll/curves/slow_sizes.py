"""Single sizes that contradict the law of all others, as an outlier test tells them.

The law is fitted without the size, and its distance is measured by the scatter of the others: the
externally studentized residual, which is Student's t (R. D. Cook and S. Weisberg, Residuals and
Influence in Regression (1982), section 2.2), with Bonferroni's correction for looking at every
size. A spread that holds the size itself, or its neighbours on lines through it, is inflated by
the very thing that is looked for. Pure numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray
from scipy import stats

from torchcoll.stats.line import Floats

Places = NDArray[numpy.int64]

LEAST = 0.15  # so much slower (or faster) than the law, or nobody would act on it
_LEVEL = 0.01  # for all sizes of a curve: see tests/benchmarks/transitions.py
_FEWEST = 6  # sizes: the law of five others has three to contradict it
_LOOKED_AT = 3  # the furthest from the law, and as many of those furthest from their neighbours
_MANY = 64  # sizes, of which one moves the law of the others by nothing worth a new fit
# One in so many may be left out: beyond, the others are no law.
_SHARE = 4
_ENOUGH = 10  # sizes of which a median is taken


@dataclass(frozen=True)
class LawFit:
    """Laws of points: of each (first, last, latency_ns, ns a byte), by index, inclusive; the sum of
    squares of the relative deviations.
    """

    laws: tuple[tuple[int, int, float, float], ...]
    squares: float


def find_slow_sizes(
    size: Floats, time: Floats, fit: Callable[[Places], LawFit], noise: Floats
) -> list[int]:
    """Indexes of the sizes that contradict, in order.

    fit: the laws of the points with these indexes. noise: of each a deviation that is none.

    One after the other, the clearest first: of two, each makes the other one less clear. Between
    others a size is slow; faster than its law is what is left where a law bends more sharply.
    """
    kept = numpy.arange(len(size))
    found: list[int] = []
    while len(kept) >= _FEWEST and len(found) < max(1, len(size) // _SHARE):
        clearest, place = 1.0, None
        for candidate in _candidates(size[kept], time[kept], fit(kept)):
            # At an end, next to a size that was left out, the law of the others does not reach so
            # far.
            inner = 1 if candidate == 0 else candidate - 1
            at_end = candidate in (0, len(kept) - 1)
            if at_end and abs(int(kept[candidate] - kept[inner])) > 1:
                continue
            clear = _clear(size, time, kept, candidate, fit, noise)
            if clear > clearest:
                clearest, place = clear, candidate
        if place is None:
            break
        found.append(int(kept[place]))
        kept = numpy.delete(kept, place)
    return sorted(found)


def _candidates(size: Floats, time: Floats, fitted: LawFit) -> list[int]:
    """Where to look: a new fit without each of them is what the test costs."""
    y = numpy.log(time)
    law = numpy.empty(len(size))
    for first, last, latency, per_byte in fitted.laws:
        own = slice(first, last + 1)
        law[own] = numpy.log(latency + per_byte * size[own])
    # The law leans toward a point, at the end of few by more than half of its distance.
    least = math.log1p(LEAST) * (0.8 if len(size) > _MANY else 0.3)
    x = numpy.log(size)
    places = numpy.arange(len(size))
    a, b = numpy.maximum(places - 1, 0), numpy.minimum(places + 1, len(size) - 1)
    a[0], b[-1] = 2, len(size) - 3
    between = y[a] + (y[b] - y[a]) * (x - x[a]) / (x[b] - x[a])
    chosen: list[int] = []
    for away, limit in ((abs(y - law), least), (abs(y - between), math.log1p(LEAST))):
        if len(size) > _MANY:  # then what is not beyond the others' scatter is not worth a look
            limit = max(limit, 5 * float(numpy.median(away)))
        chosen += [int(i) for i in numpy.argsort(-away)[:_LOOKED_AT] if away[i] > limit]
    return list(dict.fromkeys(chosen))


def _clear(
    size: Floats,
    time: Floats,
    kept: Places,
    place: int,
    fit: Callable[[Places], LawFit],
    noise: Floats,
) -> float:
    """How many times the t that is asked for; 0 where the law is nearer than anybody would act on.

    Between two laws it may belong to either.
    """
    rest, own = numpy.delete(kept, place), kept[place]
    others, ours = size[rest], time[rest]
    fitted = fit(rest)
    free = len(others) - 2 * len(fitted.laws)
    if free < 1:
        return 0.0
    spread = max(_spread(fitted, others, ours, place), float(noise[own]))
    asked = float(stats.t.isf(_LEVEL / 2 / len(kept), free))
    # The law of the point before, and that of the point after.
    end = fitted.laws[-1][1]
    near = {min(max(place - 1, 0), end), min(place, end)}
    unit = float(others.max())
    away = []
    for first, last, latency, per_byte in fitted.laws:
        expected = latency + per_byte * float(size[own])
        # A law with a negative intercept does not reach far before its own sizes.
        if expected <= 0 or not any(first <= index <= last for index in near):
            continue
        distance = math.log(float(time[own]) / expected)
        if abs(distance) < math.log1p(LEAST):
            away.append(0.0)
            continue
        of_law = slice(first, last + 1)
        rows = numpy.column_stack((1 / ours[of_law], others[of_law] / unit / ours[of_law]))
        point = numpy.array([1.0, float(size[own]) / unit]) / expected
        # How uncertain the law is there: much, where it is extrapolated.
        leverage = float(point @ numpy.linalg.pinv(rows.T @ rows) @ point)
        away.append(distance / spread / math.sqrt(1 + leverage))
    if not away:
        return 0.0
    if 0 < place < len(kept) - 1 and min(away) < 0:
        return 0.0
    return min(map(abs, away)) / asked


def _spread(fitted: LawFit, size: Floats, time: Floats, place: int) -> float:
    """Of the others about their laws; of enough of them by a median: another slow size among them
    would inflate a mean square, and two would hide each other. Neighbours that are far off
    together are a stretch, and none of them is alone.
    """
    free = len(size) - 2 * len(fitted.laws)
    square = math.sqrt(fitted.squares / free)
    if len(size) < _ENOUGH:
        return square
    parts = [
        abs(time[first : last + 1] / (latency + per_byte * size[first : last + 1]) - 1)
        for first, last, latency, per_byte in fitted.laws
    ]
    away = numpy.concatenate(parts)
    if away[max(place - 1, 0) : place + 1].max() > LEAST:
        return square
    middle = 1.4826 * float(numpy.median(away))
    # Two standard errors above, for normal noise: too little finds slow sizes in noise.
    middle *= math.sqrt(len(size) / free) * (1 + 2 * 1.17 / math.sqrt(len(size)))
    return min(square, middle)

"""Fit the laws of a model over sizes, for each kind of case and number of ranks, with intervals.

The interval of a prediction is the jackknife+ (see size_law.py), reduced to two factors for each
curve: the predictions of the laws without one size, each with its own left-out error. A curve of 8
sizes has too few errors for a 90th percentile, so the errors of all curves are pooled, each divided
by the mean error of its curve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy

from torchcoll.parts.curves import model
from torchcoll.parts.curves.rank_laws import step_laws
from torchcoll.parts.curves.size_law import FEWEST_SIZES, TAIL, Fit, fit_form, fit_piece
from torchcoll.parts.curves.slow_sizes import Floats
from torchcoll.stats.distributions import normal_quantile

LEVEL = 0.9
LEAST = 0.002  # the smallest half-width of an interval: clocks and rounding reach it
# Left-out errors, by which a curve's own mean counts as much as that of all curves.
_PRIOR_POINTS = 4


@dataclass(frozen=True)
class Curve:
    """The times of one kind of case on one number of ranks: what a model is fitted to."""

    ranks: int
    hosts: int
    sizes: Floats
    times: Floats
    errors: tuple[float, ...]


Kinds = list[tuple[dict[str, Any], list[Curve]]]


def over_sizes(
    curve: Curve, fit: Fit, spread: model.Spread, shared: SharedSlope | None
) -> model.OverSizes:
    """The law of one curve, above its largest size with the shared slope if there is one."""
    law = fit.law
    if shared:
        law = replace(law, beyond_ns_per_byte=shared.ns_per_byte)
    return model.OverSizes(
        curve.ranks,
        curve.hosts,
        round(curve.sizes[0]),
        round(curve.sizes[-1]),
        len(curve.sizes),
        law,
        shared.collectives if shared else 1,
        spread,
    )


_FEWEST_TOGETHER = 3  # collectives: of so many, one can be told as an outlier
_APART = 3.5  # modified z-score: B. Iglewicz and D. C. Hoaglin, How to Detect ... Outliers (1993)
_BY_COLLECTIVE = ("collective", "op", "root", "dtype", "in_place")


@dataclass(frozen=True)
class SharedSlope:
    """The slope of a curve beyond its largest size, estimated from several collectives together.

    ns_per_byte: per byte of the size of this curve.
    collectives: how many collectives were used.
    """

    ns_per_byte: float
    collectives: int


def shared_slopes(kinds: Kinds) -> list[SharedSlope | None]:
    """The shared slope of each curve, in order; None where the curve's own last sizes are better.

    Above the sizes where protocols change, the wire carries the bytes of all collectives at the
    same rate: as many bytes as a rank sends in a ring. A curve that ends below these sizes has a
    slope that is too steep or too flat, and the median of several collectives is closer. The shared
    slope is used only if it predicts the left-out sizes of all curves better than their own slopes
    do, both for the largest third of the sizes and for the largest size. An outlier among the
    collectives keeps its own slope.
    """
    flat = [(kind, curve) for kind, curves in kinds for curve in curves]
    groups: dict[str, list[int]] = {}
    for index, (kind, curve) in enumerate(flat):
        conditions = {name: value for name, value in kind.items() if name not in _BY_COLLECTIVE}
        groups.setdefault(repr((curve.ranks, curve.hosts, conditions)), []).append(index)
    slopes: list[SharedSlope | None] = [None] * len(flat)
    for indices in groups.values():
        names = {flat[index][0]["collective"] for index in indices}
        if len(names) < _FEWEST_TOGETHER:
            continue
        shares = [
            step_laws(flat[index][0]["collective"])[0].share(flat[index][1].ranks)
            for index in indices
        ]
        curves = [flat[index][1] for index in indices]
        if not _shared_predicts_better(curves, shares):
            continue
        curve_slopes = [_slope(c, len(c.sizes)) / s for c, s in zip(curves, shares, strict=True)]
        wire, alike = _wire(curve_slopes)
        for index, share, agrees in zip(indices, shares, alike, strict=True):
            if agrees:
                slopes[index] = SharedSlope(wire * share, len(names))
    return slopes


def _slope(curve: Curve, number: int) -> float:
    """ns per byte of the last TAIL of the first ``number`` sizes."""
    last = slice(max(0, number - TAIL), number)
    return fit_piece(curve.sizes[last], curve.times[last]).ns_per_byte


def _wire(slopes: Sequence[float]) -> tuple[float, list[bool]]:
    """The median slope in logarithms, and for each slope whether it is no outlier."""
    logs = numpy.log(numpy.maximum(slopes, 1e-12))
    middle = float(numpy.median(logs))
    deviations = numpy.abs(logs - middle)
    limit = _APART * max(float(numpy.median(deviations)), LEAST) / normal_quantile(0.75)
    return math.exp(middle), (deviations <= limit).tolist()


def _shared_predicts_better(curves: Sequence[Curve], shares: Sequence[float]) -> bool:
    """Whether the shared slope predicts left-out sizes better than the curves' own slopes do, both
    for the largest third of the sizes and for the largest size.
    """
    numbers = [len(curve.sizes) for curve in curves]
    for kept in ([n - max(1, n // 3) for n in numbers], [n - 1 for n in numbers]):
        used = [i for i, number in enumerate(kept) if number >= FEWEST_SIZES]
        if not used:
            return False
        slopes = [_slope(curves[i], kept[i]) / shares[i] for i in used]
        wire, alike = _wire(slopes)
        errors = numpy.zeros(2)
        for i, slope, agrees in zip(used, slopes, alike, strict=True):
            curve, last = curves[i], kept[i] - 1
            beyond = shares[i] * (curve.sizes[last + 1 :] - curve.sizes[last])
            for column, each in enumerate((slope, wire if agrees else slope)):
                predicted = numpy.log(curve.times[last] + each * beyond)
                errors[column] += numpy.abs(predicted - numpy.log(curve.times[last + 1 :])).sum()
        if errors[1] >= errors[0]:
            return False
    return True


def quantile(values: Floats, points: int) -> float:
    """The (1 - a)(points + 1)-th of ``points`` values, as in the jackknife+.

    Fewer than 9 points have no such value; then the largest one is scaled up in proportion.
    """
    rank = math.ceil(LEVEL * (points + 1)) / points
    if rank <= 1:
        return float(numpy.quantile(values, rank - 1e-9, method="inverted_cdf"))
    return float(values.max()) * rank


@dataclass(frozen=True)
class LeftOut:
    """The errors of one curve when its sizes are left out, in logarithms.

    inner: the errors of sizes between the ends.
    up, down: the distances of the ends of the jackknife+ from the law.
    below, above: the errors of sizes left out at this end, and how many doublings they were
        outside of the rest.
    """

    inner: Floats
    up: Floats
    down: Floats
    below: tuple[Floats, Floats]
    above: tuple[Floats, Floats]


def leave_one_out(curve: Curve, fit: Fit) -> LeftOut:
    n = len(fit.missed)
    places = range(1, n - 1) if n > _PRIOR_POINTS else range(n)
    law = fit.law.logs(curve.sizes)
    up, down = [], []
    for index in places:
        moved = fit.without[index].logs(curve.sizes) - law
        error = abs(float(fit.missed[index]))
        up.append(error + moved)
        down.append(error - moved)
    return LeftOut(
        numpy.abs(fit.missed[places.start : places.stop]),
        numpy.concatenate(up),
        numpy.concatenate(down),
        _beyond_end(curve, fit, 0),
        _beyond_end(curve, fit, -1),
    )


def _beyond_end(curve: Curve, fit: Fit, end: int) -> tuple[Floats, Floats]:
    """Errors and distances (in doublings) when up to a third of the sizes is left out at an end."""
    errors, distances = [numpy.zeros(0)], [numpy.zeros(0)]
    for sizes, times, left, taken in _ends(curve, end):
        law = fit_form(sizes, times, fit.form).logs(left)
        errors.append(numpy.abs(numpy.log(taken) - law))
        distances.append(numpy.abs(numpy.log2(left / sizes[end])))
    return numpy.concatenate(errors), numpy.concatenate(distances)


def size_spreads(left_out_curves: Sequence[LeftOut]) -> list[model.Spread]:
    """The interval of each curve.

    The 90th percentile comes from the errors of all curves, each divided by the mean error of its
    curve. The mean error of a curve with few sizes is shrunk towards that of all curves.
    """
    count = sum(len(curve.inner) for curve in left_out_curves)
    usual = float(numpy.median([curve.inner.mean() for curve in left_out_curves]))
    scales = [
        (float(curve.inner.sum()) + _PRIOR_POINTS * usual) / (len(curve.inner) + _PRIOR_POINTS)
        + 1e-9
        for curve in left_out_curves
    ]
    scaled_curves = list(zip(left_out_curves, scales, strict=True))
    high = max(0.0, quantile(numpy.concatenate([c.up / s for c, s in scaled_curves]), count))
    low = max(0.0, quantile(numpy.concatenate([c.down / s for c, s in scaled_curves]), count))
    # The 90th percentile of the error growth per doubling, for sizes left out at each end.
    widening = []
    for ends in (
        [curve.below for curve in left_out_curves],
        [curve.above for curve in left_out_curves],
    ):
        rates = numpy.concatenate([errors / distances for errors, distances in ends])
        widening.append(quantile(rates, len(rates)) if len(rates) else 0.0)
    below, above = widening
    return [
        model.Spread(
            math.exp(-max(LEAST, low * s)),
            math.exp(max(LEAST, high * s)),
            math.exp(below),
            math.exp(above),
            count,
        )
        for s in scales
    ]


def _ends(curve: Curve, end: int) -> Iterable[tuple[Floats, Floats, Floats, Floats]]:
    """Yields (kept sizes, kept times, left-out sizes, left-out times)."""
    n = len(curve.sizes)
    for count in range(1, min(n - 2, max(1, n // 3)) + 1):
        keep = slice(count, None) if end == 0 else slice(None, n - count)
        drop = slice(None, count) if end == 0 else slice(n - count, None)
        yield curve.sizes[keep], curve.times[keep], curve.sizes[drop], curve.times[drop]

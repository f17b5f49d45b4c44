"""Fit the laws of a model over sizes, for each kind of case and number of ranks, with intervals.

The interval of a prediction is the jackknife+ (see size_law.py), reduced to two factors for each
curve: the predictions of the laws without one size, each with its own left-out error. A curve of 8
sizes has too few errors for a 90th percentile, so the errors of all curves are pooled, each divided
by the mean error of its curve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from torchcoll.parts.curves import model
from torchcoll.parts.curves.size_law import Fit, fit_form
from torchcoll.parts.curves.slow_sizes import Floats

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


def over_sizes(curve: Curve, fit: Fit, spread: model.Spread) -> model.OverSizes:
    """The law of one curve, with the interval of its predictions."""
    return model.OverSizes(
        curve.ranks,
        curve.hosts,
        round(curve.sizes[0]),
        round(curve.sizes[-1]),
        len(curve.sizes),
        fit.law,
        spread,
    )


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

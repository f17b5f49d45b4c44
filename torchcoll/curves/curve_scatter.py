"""How uncertain the times of a curve are, as its runs or their calls tell it: the only witness
that scatter about a law is noise. Pure numbers.

By medians: a run that was slow at one size only tells nothing of the other sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy
from scipy import stats

_90 = 3.29  # standard deviations from the 5th to the 95th percentile of normal noise
_MEDIAN = 1.25  # the error of a median over that of a mean
_DEVIATION = 1.4826  # a standard deviation over the median absolute deviation, of normal noise
_ENOUGH = 6  # sizes of which a median is taken


@dataclass(frozen=True)
class Known:
    """Relative standard errors: of one run, and of a point, the middle of several.

    runs: False where one run alone tells it, by its calls: what another would take is not
    in it, so it is the least. errors: that of each size's point, as its own runs tell it, and
    at least that of all.
    """

    one: float
    point: float
    runs: bool
    errors: tuple[float, ...]


def known_scatter(
    figures: Sequence[Mapping[int, float]], calls: Sequence[tuple[float, float, int]]
) -> Known | None:
    """figures: of each size run -> time. calls: (5th, 95th percentile, how many) of each case.

    What makes a run slower at all sizes alike moves no point against the others: each run's
    median deviation is taken off. None where nothing tells it.
    """
    every = [{k: math.log(ns) for k, ns in own.items() if ns > 0} for own in figures]
    logs = [own for own in every if len(own) > 1]
    runs = {k for own in logs for k in own}
    free = sum(len(own) - 1 for own in logs) - (len(runs) - 1)
    if logs and free > 0:
        middles = [float(numpy.median(list(own.values()))) for own in logs]
        slower = {
            k: numpy.median([own[k] - m for own, m in zip(logs, middles, strict=True) if k in own])
            for k in runs
        }
        rest = [[y - slower[k] for k, y in own.items()] for own in logs]
        squares = [(len(own) - 1) * float(numpy.var(own, ddof=1)) for own in rest]
        if len(rest) < _ENOUGH:
            one = math.sqrt(sum(squares) / free)
        else:
            share = free / sum(len(own) - 1 for own in rest)  # of the freedom the runs left
            one = math.sqrt(
                numpy.median(
                    [
                        s / stats.chi2.median(len(own) - 1)
                        for s, own in zip(squares, rest, strict=True)
                    ]
                )
                / share
            )
        point = one / math.sqrt(numpy.mean([len(own) for own in logs]))
        errors = [_own([y - slower[k] for k, y in own.items() if k in slower]) for own in every]
        return Known(one, point, True, tuple(max(point, error) for error in errors))
    known = [
        (math.log(high / low) / _90 * _MEDIAN) ** 2 / count
        for low, high, count in calls
        if low > 0 and high >= low and count > 1
    ]
    if not known:
        return None
    error = math.sqrt(float(numpy.mean(known)))
    return Known(error, error, False, (error,) * len(figures))


def _own(logs: Sequence[float]) -> float:
    """The standard error of the middle, of what its runs show; 0 where there is only one."""
    if len(logs) < 2:
        return 0.0
    away = numpy.abs(numpy.asarray(logs) - numpy.median(logs))
    return _DEVIATION * float(numpy.median(away)) / math.sqrt(len(logs))

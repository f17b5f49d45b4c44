"""How uncertain the times of a curve are, as its launches or their calls tell it: the only witness
that scatter about a law is noise. Pure numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy

_90 = 3.29  # standard deviations from the 5th to the 95th percentile of normal noise
_MEDIAN = 1.25  # the error of a median over that of a mean


@dataclass(frozen=True)
class Known:
    """Relative standard errors: of one launch, and of a point, the mean of several.

    launches: False where one launch alone tells it, by its calls: what another would take is not
    in it, so it is the least.
    """

    one: float
    point: float
    launches: bool


def known_scatter(
    figures: Sequence[Mapping[int, float]], calls: Sequence[tuple[float, float, int]]
) -> Known | None:
    """figures: of each size launch -> time. calls: (5th, 95th percentile, how many) of each case.

    What makes a launch slower at all sizes alike moves no point against the others: each launch's
    mean deviation is taken off. None where nothing tells it.
    """
    logs = [{k: math.log(ns) for k, ns in own.items() if ns > 0} for own in figures]
    logs = [own for own in logs if len(own) > 1]
    launches = {k for own in logs for k in own}
    free = sum(len(own) - 1 for own in logs) - (len(launches) - 1)
    if logs and free > 0:
        away = [{k: y - sum(own.values()) / len(own) for k, y in own.items()} for own in logs]
        mean = {k: numpy.mean([own[k] for own in away if k in own]) for k in launches}
        squares = sum((d - mean[k]) ** 2 for own in away for k, d in own.items())
        one = math.sqrt(float(squares) / free)
        return Known(one, one / math.sqrt(numpy.mean([len(own) for own in logs])), True)
    known = [
        (math.log(high / low) / _90 * _MEDIAN) ** 2 / count
        for low, high, count in calls
        if low > 0 and high >= low and count > 1
    ]
    if not known:
        return None
    error = math.sqrt(float(numpy.mean(known)))
    return Known(error, error, False)

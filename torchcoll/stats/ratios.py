"""Ratios of runs on logarithms: Student's t, and pairs.

The model in which the runs stand in time is in stats/statistics.py; how many runs a result
takes is in stats/needed.py.

The replicate is the run: each gives one figure. The calls of one run are no replicates;
taken for such they find a difference between identical systems four times in five. Logarithms,
because noise is a share of the duration, and because a ratio is what is asked for.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy

from torchcoll.stats.distributions import t_p_value, t_quantile

LEVEL = 0.05  # family-wise error of a comparison; its intervals are 95 %
# Logarithms closer than this are equal: doubles of nanoseconds have 16 digits.
NO_SPREAD = 1e-9
_LARGEST = math.log(sys.float_info.max)


@dataclass(frozen=True)
class Design:
    """What N runs a side (or N pairs) would tell: ``figures`` N - ``parameters`` degrees of
    freedom. in_order: the run number is a parameter, and the runs alternate. degrees_share:
    the share of the degrees that is left where one side is noisier; 1 / 2 where one has all of
    the noise.
    """

    figures: int
    parameters: int
    in_order: bool = False
    degrees_share: float = 1.0

    def degrees(self, runs: int) -> float:
        return self.degrees_share * (self.figures * runs - self.parameters)

    def error(self, runs: int) -> float:
        """The error of the difference, as a share of the spread of one run.

        Under strict A B A B ... of n = 2 N runs the squared correlation of side and number is
        3 / (n^2 - 1): the side is known a little worse for it.
        """
        correction = 1 - 3 / (4 * runs**2 - 1) if self.in_order else 1.0
        return math.sqrt(2 / runs / correction)


PAIRED = Design(1, 1)
ONE_NOISE = Design(2, 2)
ORDERED = Design(2, 3, in_order=True)


def geometric(values: Iterable[float | None]) -> float | None:
    """The geometric mean of what is known; None of nothing."""
    positive = [value for value in values if value]
    if len(set(positive)) < 2:
        return positive[0] if positive else None
    return math.exp(sum(map(math.log, positive)) / len(positive))


@dataclass(frozen=True)
class Ratio:
    """new / base of two sets of runs.

    ``low`` and ``high`` bound it with 95 %, ``low_90`` and ``high_90`` with 90 %; both and
    ``p_value`` are None with one run on a side, and where no run differs from another.
    ``spread``: the standard deviation of the logarithm of one run, pooled over the sides;
    ``error`` that of the logarithm of the ratio, on so many ``degrees`` of freedom.
    """

    ratio: float
    low: float | None = None
    high: float | None = None
    low_90: float | None = None
    high_90: float | None = None
    p_value: float | None = None
    spread: float | None = None
    error: float | None = None
    degrees: float = 0.0
    design: Design = ONE_NOISE

    def beyond(self, error_rate: float) -> float | None:
        """What the ratio exceeds but for ``error_rate``; None where there is no interval."""
        if self.error is None:
            return None
        return exp(math.log(self.ratio) - t_quantile(1 - error_rate, self.degrees) * self.error)


def paired_ratio(base: Sequence[float], new: Sequence[float]) -> Ratio:
    """The geometric mean of the pairs' ratios new / base, with the interval and p of Student's t on
    their logarithms: the pair is the replicate, what both of a pair share cancels.

    All figures are above 0. ``spread`` is that of one of a pair.
    """
    logs = numpy.log(new) - numpy.log(base)
    mean = float(logs.mean())
    if len(logs) < 2:
        return Ratio(exp(mean))
    deviation = float(logs.std(ddof=1))
    error = deviation / math.sqrt(len(logs))
    if error < NO_SPREAD:
        return Ratio(exp(mean))
    return ratio_of(mean, error, len(logs) - 1, deviation / math.sqrt(2), PAIRED)


def ratio_of(
    difference: float,
    error: float,
    degrees: float,
    spread: float,
    design: Design = ONE_NOISE,
) -> Ratio:
    """By Student's t, from a difference of mean logarithms and its standard error."""
    t_95, t_90 = (t_quantile(share, degrees) for share in (0.975, 0.95))
    return Ratio(
        exp(difference),
        low=exp(difference - t_95 * error),
        high=exp(difference + t_95 * error),
        low_90=exp(difference - t_90 * error),
        high_90=exp(difference + t_90 * error),
        p_value=t_p_value(difference / error, degrees),
        spread=spread,
        error=error,
        degrees=degrees,
        design=design,
    )


def exp(logarithm: float) -> float:
    """As math.exp, at most the largest float: files may hold any figures, and no interval of three
    runs is too wide for them.
    """
    return sys.float_info.max if logarithm >= _LARGEST else math.exp(logarithm)  # NaN stays NaN

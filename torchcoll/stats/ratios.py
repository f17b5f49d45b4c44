"""Ratios of runs on logarithms: Student's t, and pairs.

The replicate is the run: with calls as replicates, identical systems differ four times in five.
Logarithms, because noise is a share of the duration.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torchcoll.stats.distributions import t_p_value, t_quantile

LEVEL = 0.05  # family-wise error of a comparison; its intervals are 95 %
# Logarithms closer than this are equal: doubles of nanoseconds have 16 digits.
NO_SPREAD = 1e-9
_LARGEST = math.log(sys.float_info.max)


@dataclass(frozen=True)
class Design:
    """N runs a side (or N pairs) have ``figures`` x N - ``parameters`` degrees of freedom.

    in_order: whether the run number is a parameter, and the runs alternate. degrees_share: the
    share of the degrees that remains if one side is noisier.
    """

    figures: int
    parameters: int
    in_order: bool = False
    degrees_share: float = 1.0

    def degrees(self, runs: int) -> float:
        return self.degrees_share * (self.figures * runs - self.parameters)

    def error(self, runs: int) -> float:
        """The error of the difference over the spread of one run. Alternating runs correlate with
        their number: 3 / (n^2 - 1) for n = 2 N.
        """
        correction = 1 - 3 / (4 * runs**2 - 1) if self.in_order else 1.0
        return math.sqrt(2 / runs / correction)


ONE_NOISE = Design(2, 2)
ORDERED = Design(2, 3, in_order=True)


def geometric(values: Iterable[float | None]) -> float | None:
    """The geometric mean without None and 0; None if nothing is left."""
    positive = [value for value in values if value]
    if len(set(positive)) < 2:
        return positive[0] if positive else None
    return math.exp(sum(map(math.log, positive)) / len(positive))


@dataclass(frozen=True)
class Ratio:
    """new / base of two sets of runs, with its 95 % interval (low, high), its 90 % interval and p.

    These are None with one run on a side, or without any spread. spread: the standard deviation of
    the logarithm of one run, pooled over the sides; error: of the logarithm of the ratio, with
    ``degrees`` of freedom.
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
        """What the ratio exceeds, except with ``error_rate``; None without an interval."""
        if self.error is None:
            return None
        return exp(math.log(self.ratio) - t_quantile(1 - error_rate, self.degrees) * self.error)


def ratio_of(
    difference: float, error: float, degrees: float, spread: float, design: Design = ONE_NOISE
) -> Ratio:
    """A ratio by Student's t, from a difference of mean logarithms and its standard error."""
    width, width_90 = (t_quantile(share, degrees) * error for share in (0.975, 0.95))
    ends = exp(difference - width), exp(difference + width)
    ends_90 = exp(difference - width_90), exp(difference + width_90)
    p_value = t_p_value(difference / error, degrees)
    return Ratio(exp(difference), *ends, *ends_90, p_value, spread, error, degrees, design)


def ratio_of_both(means: Ratio, other: Ratio) -> Ratio:
    """The ratio of the means, with an interval and a p that satisfy both models."""
    p_values = [ratio.p_value for ratio in (means, other) if ratio.p_value is not None]
    agree = (means.ratio > 1) == (other.ratio > 1)
    farther = max(means, other, key=lambda ratio: ratio.error or 0.0)
    values: dict[str, Any] = {"ratio": means.ratio, "p_value": max(p_values) if agree else 1.0}
    for end, choose in (("low", min), ("high", max), ("low_90", min), ("high_90", max)):
        values[end] = choose(getattr(means, end), getattr(other, end))
    return replace(farther, degrees=min(means.degrees, other.degrees), **values)


def exp(logarithm: float) -> float:
    """As math.exp, at most the largest float: files may have any figures."""
    return sys.float_info.max if logarithm >= _LARGEST else math.exp(logarithm)  # NaN stays NaN

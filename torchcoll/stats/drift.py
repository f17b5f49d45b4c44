"""Whether repeated measurements became slower with time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchcoll.stats.distributions import line_through, t_p_value, t_quantile
from torchcoll.stats.power import detectable_change

LEVEL = 0.9  # of the interval
STRETCHES = 8  # of time; with fewer values nothing is said of drift
LEAST = 0.02  # a drift below it is not spoken of
SURE = 0.05  # p up to which one is


@dataclass(frozen=True)
class TimeDrift:
    """By how much the last quarter of the time is slower than the first, as a share, with its 90 %
    interval and the p of no drift.

    Means of the logarithms over eight stretches, which are nearly independent (batch means: Law and
    Carson, Operations Research 27, 1979). The error is their scatter about a line.
    """

    value: float
    low: float
    high: float
    p: float

    def detectable(self, tests: int) -> float | None:
        half = (math.log1p(self.high) - math.log1p(self.low)) / 2
        error = half / t_quantile((1 + LEVEL) / 2, STRETCHES - 2)
        return detectable_change(error, STRETCHES - 2, SURE / tests, LEAST)


def drift_of(values: Sequence[float]) -> TimeDrift | None:
    """values: in the order of time. None for fewer than eight values, or if one is not above 0."""
    if len(values) < STRETCHES or min(values) <= 0:
        return None
    logs, count = [math.log(value) for value in values], len(values)
    edges = [round(k * count / STRETCHES) for k in range(STRETCHES + 1)]
    means = [math.fsum(logs[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    slope, intercept = line_through(range(STRETCHES), means)
    off = [mean - intercept - slope * k for k, mean in enumerate(means)]
    free = STRETCHES - 2
    # The difference of two means of two: its variance is that of one.
    error = math.sqrt(math.fsum(residual * residual for residual in off) / free)
    change = (means[-1] + means[-2] - means[0] - means[1]) / 2
    half = t_quantile((1 + LEVEL) / 2, free) * error
    p = t_p_value(change / error, free) if error else float(not change)
    value, low, high = (math.expm1(x) for x in (change, change - half, change + half))
    return TimeDrift(value, low, high, p)


def drift_text(drift: TimeDrift | None) -> str:
    if drift is None:
        return "-"
    return f"{drift.value:+.1%} [{drift.low:+.1%}, {drift.high:+.1%}]"

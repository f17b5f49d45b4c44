"""Finds out whether the times of a case have two modes, so that the median may be in either."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torchcoll.core.summary import HIGH, LOW, quantile

LEAST_CALLS = 20
LEAST_SHARE = 0.1  # of the calls, in either mode
APART = 1.5  # least ratio of the medians of the modes: nearer ones change no conclusion
# Otsu's criterion (1979): the share of the variance that lies between the two groups: 0.64 for a
# normal distribution, 0.75 for a uniform one. Of few calls chance parts too.
SEPARATION, CHANCE = 0.85, 1.0


@dataclass(frozen=True)
class Modes:
    """Two modes. share: of slow calls. slow, fast: (p5, p95) of the calls of the mode, in ns."""

    share: float
    slow: tuple[float, float]
    fast: tuple[float, float]


def two_modes(times_ns: Sequence[float]) -> Modes | None:
    """The two modes of these times by Otsu's criterion for their logarithms; None if there is one,
    or if there are too few calls.

    Values outside the 5th and the 95th percentile are set to these, because a few calls that take
    very long are no mode, and would hide one.
    """
    ordered = sorted(times_ns)
    n = len(ordered)
    if n < LEAST_CALLS or ordered[0] <= 0:
        return None
    low, high = math.log(quantile(ordered, LOW)), math.log(quantile(ordered, HIGH))
    logs = [min(max(math.log(time), low), high) for time in ordered]
    k = parted(logs, math.ceil(LEAST_SHARE * n))
    if k is None:
        return None
    fast, slow = ordered[:k], ordered[k:]
    if quantile(slow, 0.5) / quantile(fast, 0.5) < APART:
        return None
    spans = ((quantile(mode, LOW), quantile(mode, HIGH)) for mode in (slow, fast))
    return Modes(len(slow) / n, *spans)


def parted(ordered: Sequence[float], least: int) -> int | None:
    """The size of the lower of two groups (Otsu's criterion), at least ``least``; None for one."""
    n = len(ordered)
    mean = sum(ordered) / n
    total = sum((x - mean) ** 2 for x in ordered)
    sums = list(accumulate(ordered))

    def between(k: int) -> float:
        """n times the variance between the k lowest values and the others."""
        return (sums[k - 1] - k * mean) ** 2 * n / (k * (n - k))

    k = max(range(least, n - least + 1), key=between)
    return k if total and between(k) >= (SEPARATION + CHANCE / n) * total else None

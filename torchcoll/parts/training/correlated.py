"""Is the mean of values that follow each other in time above 0, if neighbours may be alike?

The values are taken for a first-order autoregressive process. The variance of their mean and the
degrees of freedom of their scatter follow from its correlation, of which only an estimate exists:
20 values with a correlation of 0.9 look like values with one of 0.6. The test therefore uses an
upper bound of the correlation (99.5 %, at most ``HIGHEST``). Many series count as at most two,
because a slow drift below fast noise is alike in all. Standard library only: for rank 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean

HIGHEST = 0.97
_MOST_SERIES = 2  # that count as independent
_Z = 2.58  # the 99.5 % quantile of the normal distribution
_POWER_Z = 1.2816  # its 90 % quantile

# Values in the order of time, in one or several segments: each is centred by itself.
Segments = Sequence[Sequence[float]]


def correlation_bounds(series: Sequence[Segments]) -> list[float]:
    """Returns an upper bound of the correlation of neighbouring values for each of two or more
    series of segments of at least four values, whose sum is 0 at any time.
    """
    count = sum(map(len, series[0]))
    length = count / len(series[0])
    estimates = [_correlation(segments) for segments in series]
    common = fmean(estimates)
    independent = min(len(series) - 1, _MOST_SERIES)
    # The grid is one of hundredths, so that the functions below are called for few correlations.
    grid = [k / 100 for k in range(round(100 * HIGHEST), 0, -1)]
    least = [_least(value, count, length, independent) for value in grid]
    bounds = []
    for estimate in estimates:
        higher = max(estimate, common)
        possible = (value for value, at in zip(grid, least, strict=True) if at <= higher)
        bounds.append(next(possible, 0.0))
    return bounds


def _correlation(segments: Segments) -> float:
    """Returns the first autocorrelation; 0 for constant values."""
    products = squares = 0.0
    for segment in segments:
        mean = fmean(segment)
        centred = [value - mean for value in segment]
        products += sum([a * b for a, b in itertools.pairwise(centred)])
        squares += sum([value * value for value in centred])
    return products / squares if squares else 0.0


@lru_cache(4096)
def _least(correlation: float, count: int, length: float, series: int) -> float:
    """Returns the 0.5 % quantile of the estimate from ``series`` independent series of ``count``
    values in segments of ``length``, whose bias is -(1 + 3 r) / length (Kendall, Biometrika 41,
    1954).
    """
    mean = correlation - (1 + 3 * correlation) / length
    return mean - _Z * math.sqrt((1 - mean * mean) / (count * series))


def chance_of_mean(values: Sequence[float], correlation: float) -> float:
    """Returns the one-sided p of a mean of two or more values, if the true mean is 0."""
    error, degrees = _error_of_mean(values, correlation)
    mean = fmean(values)
    if not error:
        return 0.0 if mean > 0 else 1.0
    return student_tail(mean / error, degrees)


def detectable_mean(values: Sequence[float], correlation: float, error: float) -> float:
    """Returns the mean that ``chance_of_mean`` finds below the p ``error`` 9 times in 10."""
    of_mean, degrees = _error_of_mean(values, correlation)
    low, high = 0.0, 1e6
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if student_tail(middle, degrees) > error:
            low = middle
        else:
            high = middle
    return (high + _POWER_Z) * of_mean


def _error_of_mean(values: Sequence[float], correlation: float) -> tuple[float, int]:
    """Returns the standard error of the mean and its degrees of freedom."""
    mean, count = fmean(values), len(values)
    variance = sum([(value - mean) ** 2 for value in values]) / (count - 1)
    _, ratio, degrees = _autoregressive(count, correlation)
    return math.sqrt(variance * ratio), max(1, int(degrees))


def independent_values(count: int, correlation: float) -> float:
    """Returns how many independent values have a mean of the same variance."""
    return 1 / _autoregressive(count, correlation)[0]


@lru_cache(4096)
def _autoregressive(count: int, correlation: float) -> tuple[float, float, float]:
    """Returns, for ``count`` values of variance 1, the variance of their mean, its ratio to the
    expected sample variance, and the degrees of freedom of the sample variance (Satterthwaite).
    """
    powers = [correlation**k for k in range(count)]
    rows = [sum(powers[: i + 1]) + sum(powers[1 : count - i]) for i in range(count)]
    of_mean = sum(rows) / count**2
    squares = count + 2 * sum((count - k) * powers[k] ** 2 for k in range(1, count))
    trace = count - count * of_mean
    trace_of_square = squares - 2 * sum(row * row for row in rows) / count + (count * of_mean) ** 2
    return of_mean, of_mean * (count - 1) / trace, trace**2 / trace_of_square


def student_tail(t: float, degrees: int) -> float:
    """Returns the probability that Student's t is above ``t``; within 1e-12.

    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(degrees))
    cos2, term, total = math.cos(angle) ** 2, 1.0, 0.0
    odd = degrees % 2
    for k in range(degrees // 2):
        total += term
        term *= cos2 * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    if odd:
        inside = 2 / math.pi * (angle + math.sin(angle) * math.cos(angle) * total)
    else:
        inside = math.sin(angle) * total
    return min(1.0, max(0.0, (1 - inside) / 2))

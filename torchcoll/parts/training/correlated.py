"""Is the mean of values that follow each other in time above 0, if neighbours may be alike?

The values are taken for a first-order autoregressive process. The variance of their mean and the
degrees of freedom of their scatter follow from its correlation, of which only an estimate exists:
20 values with a correlation of 0.9 look like values with one of 0.6. The test therefore uses an
upper bound of the correlation (99.5 %, at most ``HIGHEST``). Many series count as at most two,
because a slow drift below fast noise is alike in all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy

from torchcoll.stats.distributions import t_p_value, t_quantile

HIGHEST = 0.97
_MOST_SERIES = 2  # that count as independent
_Z = 2.58  # the 99.5 % quantile of the normal distribution
_POWER_Z = 1.2816  # its 90 % quantile
# Bounds are of hundredths, so that the functions below are called for few correlations.
_GRID = numpy.arange(round(100 * HIGHEST), 0, -1) / 100


def correlation_bounds(segments: Sequence[numpy.ndarray]) -> numpy.ndarray:
    """Returns an upper bound of the correlation of neighbouring values for each of two or more
    series, whose sum is 0 at any time.

    - segments: of all series, one after another in time: arrays of (series, four or more values),
      each of which is centred by itself.

    The 99.5 % bound is of the mean of independent series: the bias of an estimate from segments of
    so many values is -(1 + 3 r) / values (Kendall, Biometrika 41, 1954).
    """
    products, squares = numpy.zeros((2, len(segments[0])))
    for segment in segments:
        centred = _centred(segment)
        products += (centred[:, :-1] * centred[:, 1:]).sum(axis=1)
        squares += (centred**2).sum(axis=1)
    estimates = numpy.where(squares > 0, products / numpy.where(squares > 0, squares, 1.0), 0.0)
    count = sum(segment.shape[1] for segment in segments)
    means = _GRID - (1 + 3 * _GRID) * len(segments) / count
    independent = min(len(estimates) - 1, _MOST_SERIES)
    least = means - _Z * numpy.sqrt((1 - means**2) / (count * independent))
    possible = least[:, None] <= numpy.maximum(estimates, estimates.mean())
    return numpy.where(possible.any(axis=0), _GRID[possible.argmax(axis=0)], 0.0)


def _centred(values: numpy.ndarray) -> numpy.ndarray:
    """Returns the differences from the mean of each row, exactly 0 for constant values."""
    centred = values - values.mean(axis=-1, keepdims=True)
    rounding = 1e-12 * numpy.abs(values).max(axis=-1, keepdims=True)
    return numpy.where(numpy.abs(centred) > rounding, centred, 0.0)


def chance_of_mean(values: numpy.ndarray, correlation: float) -> float:
    """Returns the one-sided p of a mean of two or more values, if the true mean is 0."""
    error, degrees = _error_of_mean(values, correlation)
    mean = float(values.mean())
    if not error:
        return 0.0 if mean > 0 else 1.0
    two_sided = t_p_value(mean / error, degrees)
    return two_sided / 2 if mean > 0 else 1 - two_sided / 2


def detectable_mean(values: numpy.ndarray, correlation: float, level: float) -> float:
    """Returns the mean that ``chance_of_mean`` finds below the p ``level`` 9 times in 10."""
    error, degrees = _error_of_mean(values, correlation)
    return (t_quantile(1 - level, degrees) + _POWER_Z) * error


def _error_of_mean(values: numpy.ndarray, correlation: float) -> tuple[float, int]:
    """Returns the standard error of the mean and its degrees of freedom."""
    variance = float((_centred(values) ** 2).sum()) / (len(values) - 1)
    _, ratio, degrees = _autoregressive(len(values), correlation)
    return math.sqrt(variance * ratio), max(1, int(degrees))


def independent_values(count: int, correlation: float) -> float:
    """Returns how many independent values have a mean of the same variance."""
    return 1 / _autoregressive(count, correlation)[0]


@lru_cache(4096)
def _autoregressive(count: int, correlation: float) -> tuple[float, float, float]:
    """Returns, for ``count`` values of variance 1, the variance of their mean, its ratio to the
    expected sample variance, and the degrees of freedom of the sample variance (Satterthwaite).
    """
    index = numpy.arange(count)
    covariance = correlation ** numpy.abs(index[:, None] - index)
    of_mean = float(covariance.mean())
    centred = covariance - covariance.mean(axis=0) - covariance.mean(axis=1)[:, None] + of_mean
    trace = float(centred.trace())
    return of_mean, of_mean * (count - 1) / trace, trace**2 / float((centred**2).sum())

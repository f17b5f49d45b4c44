"""Distributions on scipy.special: scipy.stats takes longer to import than commands compute."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy
from numpy.typing import ArrayLike
from scipy import special

_MOST_STEPS = 200  # of ``root_between``
_PRECISION = 1e-13
MAD_TO_SIGMA = 1.4826  # standard deviation over median absolute deviation, of normal noise


def mad_scale(deviations: ArrayLike) -> float:
    """The standard deviation by the median absolute deviation; outliers do not spoil it."""
    return MAD_TO_SIGMA * float(numpy.median(numpy.abs(deviations)))


def t_quantile(share: float, degrees: float) -> float:
    """The value that Student's t with so many degrees of freedom stays below with ``share``."""
    return float(special.stdtrit(degrees, share))


def t_p_value(t: float, degrees: float) -> float:
    return float(2 * special.stdtr(degrees, -abs(t)))


def two_sample_p(first: ArrayLike, second: ArrayLike) -> float:
    """The two-sided p of Student's t of two samples with one variance, two values each at least."""
    sides = [numpy.asarray(side, dtype=float) for side in (first, second)]
    degrees = sum(map(len, sides)) - 2
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in sides)
    error = math.sqrt(squares / degrees * sum(1 / len(side) for side in sides))
    difference = float(sides[0].mean() - sides[1].mean())
    return t_p_value(difference / error, degrees) if error else float(difference == 0)


def f_quantile(share: float, upper: float, lower: float) -> float:
    """Of the F distribution; upper, lower: degrees of freedom."""
    return float(special.fdtri(upper, lower, share))


def f_p_value(f: float, upper: float, lower: float) -> float:
    """The upper tail of the F distribution."""
    return float(special.fdtrc(upper, lower, f))


def normal_quantile(share: float) -> float:
    return float(special.ndtri(share))


def chi2_median(degrees: float) -> float:
    return float(special.chdtri(degrees, 0.5))


def line_through(x: ArrayLike, y: ArrayLike) -> tuple[float, float]:
    """(slope, intercept) of the least squares."""
    across = numpy.asarray(x, dtype=float)
    up = numpy.asarray(y, dtype=float)
    off = across - across.mean()
    slope = float(off @ up / (off @ off))
    return slope, float(up.mean() - slope * across.mean())


def kendall_p(x: ArrayLike, y: ArrayLike) -> float:
    """The two-sided p of Kendall's rank correlation; 1.0 if all values of x or of y are equal."""
    from scipy import stats

    p = float(stats.kendalltau(x, y).pvalue)
    return 1.0 if math.isnan(p) else p


@functools.lru_cache(maxsize=8)
def gauss_legendre(count: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Nodes and weights of the integral from -1 to 1; to compute 400 takes 20 ms."""
    return numpy.polynomial.legendre.leggauss(count)


def root_between(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function whose signs at both ends differ is 0, by the Illinois rule (Dowell and
    Jarratt, BIT 11 (1971) 168): scipy.optimize is slow to import.
    """
    at_low, at_high = function(low), function(high)
    moved, previous = 0, math.nan
    for _ in range(_MOST_STEPS):
        middle = low if at_low == at_high else (low * at_high - high * at_low) / (at_high - at_low)
        value = function(middle)
        if value == 0 or abs(middle - previous) <= _PRECISION * abs(middle):
            break
        previous = middle
        if (value > 0) == (at_high > 0):
            high, at_high = middle, value
            at_low, moved = at_low / 2 if moved == 1 else at_low, 1
        else:
            low, at_low = middle, value
            at_high, moved = at_high / 2 if moved == -1 else at_high, -1
    return middle

"""The distributions and small estimators that the tests need, on scipy.special alone.

``scipy.stats`` takes up to a second to import, several times as long as most commands compute.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy
from numpy.typing import ArrayLike
from scipy import special

_EXACT_KENDALL = 33  # values up to which the exact distribution is used, as scipy does
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


def median_slope(x: ArrayLike, y: ArrayLike) -> float:
    """The median of the slopes of all pairs (Theil 1950, Sen 1968)."""
    across = numpy.asarray(x, dtype=float)
    up = numpy.asarray(y, dtype=float)
    first, second = numpy.triu_indices(len(across), 1)
    run = across[second] - across[first]
    apart = run != 0
    return float(numpy.median((up[second] - up[first])[apart] / run[apart]))


def kendall_p(x: ArrayLike, y: ArrayLike) -> float:
    """The two-sided p of Kendall's rank correlation (M. G. Kendall, Rank Correlation Methods).

    Exact for up to 33 values without ties, otherwise by the normal approximation with ties. 1.0
    where all values of x or of y are equal.
    """
    across, up = numpy.asarray(x, dtype=float), numpy.asarray(y, dtype=float)
    n = len(across)
    first, second = numpy.triu_indices(n, 1)
    signs = numpy.sign(across[second] - across[first]) * numpy.sign(up[second] - up[first])
    balance = float(signs.sum())
    ties = [numpy.unique(values, return_counts=True)[1].astype(float) for values in (across, up)]
    if min(map(len, ties)) < 2:
        return 1.0
    if n <= _EXACT_KENDALL and all(len(counts) == n for counts in ties):
        return _exact_kendall(n, round((len(signs) - abs(balance)) / 2))
    total = n * (n - 1.0)
    pairs, threes, weighted = zip(
        *(
            ((t * (t - 1)).sum(), (t * (t - 1) * (t - 2)).sum(), (t * (t - 1) * (2 * t + 5)).sum())
            for t in ties
        ),
        strict=True,
    )
    variance = (total * (2 * n + 5) - sum(weighted)) / 18
    variance += pairs[0] * pairs[1] / (2 * total)
    variance += threes[0] * threes[1] / (9 * total * (n - 2)) if n > 2 else 0.0
    return float(2 * special.ndtr(-abs(balance) / math.sqrt(variance)))


def _exact_kendall(n: int, discordant: int) -> float:
    """discordant: the smaller number of the two kinds of pairs."""
    if 4 * discordant >= n * (n - 1):
        return 1.0
    counts = numpy.zeros(discordant + 1)  # permutations of k values with so many inversions,
    counts[0] = 1.0  # as a share of all of them
    for k in range(2, n + 1):
        sums = numpy.cumsum(counts)
        sums[k:] -= sums[:-k].copy()
        counts = sums / k
    return min(1.0, 2 * float(counts.sum()))


@functools.lru_cache(maxsize=8)
def gauss_legendre(count: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Nodes and weights of the integral from -1 to 1; to compute 400 takes 20 ms."""
    return numpy.polynomial.legendre.leggauss(count)


def root_between(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a continuous function whose signs at both ends differ is 0.

    The Illinois rule of false position (M. Dowell and P. Jarratt, BIT 11 (1971) 168): a few more
    calls than Brent's, and no import of scipy.optimize.
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

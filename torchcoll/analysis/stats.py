"""Ratios of launches: Welch's t on logarithms, Holm, Mann-Whitney, and how many launches it takes.

The replicate is the launch: each gives one figure. The calls of one launch are no replicates;
taken for such they find a difference between identical systems four times in five. Logarithms,
because noise is a share of the duration, and because a ratio is what is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy
from scipy import stats

LEVEL = 0.05  # family-wise error of a comparison; its intervals are 95 %
POWER = 0.9  # with which `launches_needed` settles a case
MOST_LAUNCHES = 1000  # beyond, the answer is 'never' rather than a number
# Logarithms closer than this are equal: doubles of nanoseconds have 16 digits.
_NO_SPREAD = 1e-9


def geometric(values: Iterable[float | None]) -> float | None:
    """The geometric mean of what is known; None of nothing."""
    known = [value for value in values if value]
    if len(set(known)) < 2:
        return known[0] if known else None
    return math.exp(sum(map(math.log, known)) / len(known))


@dataclass(frozen=True)
class Ratio:
    """new / base of two sets of launches.

    ``low`` and ``high`` bound it with 95 %, ``low_90`` and ``high_90`` with 90 %; both and
    ``p_value`` are None with one launch on a side, and where no launch differs from another.
    ``spread``: the standard deviation of the logarithm of one launch, pooled over the sides.
    """

    ratio: float
    low: float | None = None
    high: float | None = None
    low_90: float | None = None
    high_90: float | None = None
    p_value: float | None = None
    spread: float | None = None


def welch_ratio(base: Sequence[float], new: Sequence[float]) -> Ratio:
    """The ratio of geometric means, with the interval and p of Welch's t on the logarithms.

    All figures are above 0. Source: B. L. Welch, Biometrika 34 (1947) 28; the degrees of freedom
    are Satterthwaite's. scipy's ttest_ind has the same p (tested) and, before 1.11, no interval.
    """
    difference, error, degrees = _welch(base, new)
    if error is None:
        return Ratio(math.exp(difference))
    variances = float(numpy.log(base).var(ddof=1)), float(numpy.log(new).var(ddof=1))
    return _ratio(difference, error, degrees, math.sqrt(sum(variances) / 2))


def welch_low(base: Sequence[float], new: Sequence[float], error_rate: float) -> float | None:
    """What new / base exceeds but for ``error_rate``; None where there is no interval."""
    difference, error, degrees = _welch(base, new)
    if error is None:
        return None
    return math.exp(difference - float(stats.t.isf(error_rate, degrees)) * error)


def _welch(base: Sequence[float], new: Sequence[float]) -> tuple[float, float | None, float]:
    """Difference of the mean logarithms, its standard error (None: unknown), its degrees."""
    b, n = numpy.log(base), numpy.log(new)
    difference = float(n.mean() - b.mean())
    if min(len(b), len(n)) < 2:
        return difference, None, 0.0
    squares = float(b.var(ddof=1)) / len(b), float(n.var(ddof=1)) / len(n)
    error = math.sqrt(sum(squares))
    if error < _NO_SPREAD:
        return difference, None, 0.0
    degrees = sum(squares) ** 2 / (squares[0] ** 2 / (len(b) - 1) + squares[1] ** 2 / (len(n) - 1))
    return difference, error, degrees


def paired_ratio(base: Sequence[float], new: Sequence[float]) -> Ratio:
    """The geometric mean of the pairs' ratios new / base, with the interval and p of Student's t on
    their logarithms: the pair is the replicate, what both of a pair share cancels.

    All figures are above 0. ``spread`` is that of one of a pair, so that ``launches_needed`` gives
    the number of pairs.
    """
    logs = numpy.log(new) - numpy.log(base)
    mean = float(logs.mean())
    if len(logs) < 2:
        return Ratio(math.exp(mean))
    deviation = float(logs.std(ddof=1))
    error = deviation / math.sqrt(len(logs))
    if error < _NO_SPREAD:
        return Ratio(math.exp(mean))
    return _ratio(mean, error, len(logs) - 1, deviation / math.sqrt(2))


def _ratio(difference: float, error: float, degrees: float, spread: float) -> Ratio:
    """By Student's t, from a difference of mean logarithms and its standard error."""
    t_95, t_90 = (float(q) for q in stats.t.ppf((0.975, 0.95), degrees))
    return Ratio(
        math.exp(difference),
        low=math.exp(difference - t_95 * error),
        high=math.exp(difference + t_95 * error),
        low_90=math.exp(difference - t_90 * error),
        high_90=math.exp(difference + t_90 * error),
        p_value=float(2 * stats.t.sf(abs(difference) / error, degrees)),
        spread=spread,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for their number, in their order.

    Source: S. Holm, Scandinavian Journal of Statistics 6 (1979) 65. Rejecting what is below LEVEL
    keeps the chance of any false alarm below it, however the cases depend on each other; they do.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def mann_whitney(base: Sequence[float], new: Sequence[float]) -> float:
    """The two-sided p of Mann and Whitney's test: no word on how the noise is distributed."""
    return float(stats.mannwhitneyu(base, new, alternative="two-sided").pvalue)


def least_mann_whitney(base: int, new: int) -> float:
    """The smallest two-sided p that so many launches can reach: 0.00216 for 6 against 6."""
    return 2 / math.comb(base + new, base)


def launches_needed(ratio: Ratio, cases: int, threshold: float) -> int | None:
    """Launches a side that would settle a case of this ratio and spread, with POWER.

    An estimate beyond the threshold is settled as a difference, at the level that Holm leaves the
    smallest of ``cases`` p values; one within it as the same, by its 90 % interval. None where
    there is no spread, or more than MOST_LAUNCHES: the ratio is at the threshold. By the normal
    approximation, with a quarter of z squared for t (W. C. Guenther, American Statistician 35
    (1981) 243).
    """
    if ratio.spread is None:
        return None
    difference, limit = abs(math.log(ratio.ratio)), math.log1p(threshold)
    z_power = float(stats.norm.ppf(POWER))
    margin = abs(difference - limit)
    if margin < _NO_SPREAD:
        return None
    if difference > limit:
        z = float(stats.norm.ppf(1 - LEVEL / (2 * max(cases, 1))))
        # Significant, and the estimate beyond the threshold.
        needed = _normal(z + z_power, ratio.spread, difference) + z * z / 4
        needed = max(needed, _normal(z_power, ratio.spread, margin))
    else:
        z = float(stats.norm.ppf(0.95))
        if difference < margin / 10:  # both bounds can fail
            z_power = float(stats.norm.ppf((1 + POWER) / 2))
        needed = _normal(z + z_power, ratio.spread, margin) + z * z / 4
    return max(2, math.ceil(needed)) if needed <= MOST_LAUNCHES else None


def launches_to_bound(ratio: Ratio, threshold: float) -> int | None:
    """Launches a side for which the 95 % interval of a ratio ends below 1 + ``threshold`` with
    POWER; None as in ``launches_needed``, and where the ratio itself is beyond.
    """
    margin = math.log1p(threshold) - math.log(ratio.ratio)
    if ratio.spread is None or margin < _NO_SPREAD:
        return None
    z = float(stats.norm.ppf(0.975))
    needed = _normal(z + float(stats.norm.ppf(POWER)), ratio.spread, margin) + z * z / 4
    return max(2, math.ceil(needed)) if needed <= MOST_LAUNCHES else None


def _normal(z: float, spread: float, distance: float) -> float:
    """Launches a side for which the error of a difference is ``distance`` / z."""
    return 2 * (z * spread / distance) ** 2

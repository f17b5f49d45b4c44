"""How much slower each node is than its peers, over all cases together, and from which deviation on
it is no longer one of them.

The logarithm of a time is modelled as a level of the case, plus an effect of the node, plus noise.
Both are estimated by medians in turn (Tukey's median polish, Exploratory Data Analysis, 1977), with
the cases weighted by their precision, so that one bad node or one noisy case moves no other. A last
step takes means of clipped deviations (Huber 1964).

A deviation is measured in robust standard deviations of the nodes. Node effects of real clusters
have heavier tails than a normal distribution, and a few nodes cannot show how heavy: so a Student t
distribution with 4 degrees of freedom is assumed. From 128 nodes on, their middle 96 % may prove
lighter tails. The family-wise error: results/benchmarks/fleet-error-2026-11-23.txt.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special  # scipy.stats takes a second to import

from torchcoll.stats.distributions import MAD_TO_SIGMA, mad_scale

Floats = npt.NDArray[np.float64]
_ROUNDS = 10
_QN_TO_SIGMA = 2.2219
_CLIPPED = 2.0  # robust standard deviations of a case's residuals
_QN_SMALL = {2: 0.399, 3: 0.994, 4: 0.512, 5: 0.844, 6: 0.611, 7: 0.857, 8: 0.669, 9: 0.872}
_PAIRS_NODES = 3000  # above, the pairs of nodes take too much memory: the MAD is used instead


@dataclass(frozen=True)
class TwoWay:
    """log_times[n, c] = levels[c] + effects[n] + residuals[n, c], in natural logarithms.

    scales [C]: robust standard deviation of a case over the nodes. effects have median 0; NaN for a
    node without any case.
    """

    effects: Floats
    levels: Floats
    residuals: Floats
    scales: Floats


def nan_median(values: npt.NDArray[np.floating[Any]], axis: int | None = 0) -> Any:
    """np.nanmedian, NaN where nothing is known, and ten times as fast where nothing is missing."""
    if np.isfinite(values).all() and values.size:
        return np.median(values, axis=axis)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of an empty slice
        return np.nanmedian(values, axis=axis)


def mad_scales(deviations: npt.NDArray[np.floating[Any]]) -> Any:
    """``mad_scale`` of each column; NaN entries are left out."""
    return MAD_TO_SIGMA * nan_median(np.abs(deviations), axis=0)


def nan_mean(values: npt.NDArray[np.floating[Any]], axis: int | tuple[int, ...]) -> Any:
    """np.nanmean, NaN where nothing is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of an empty slice
        return np.nanmean(values, axis=axis)


def weighted_median(values: Floats, weights: Floats) -> Floats:
    """The weighted median of each row [N, C] with weights [C]; NaN entries are left out."""
    weight = np.where(np.isnan(values), 0.0, np.broadcast_to(weights, values.shape))
    order = np.argsort(values, axis=1)  # NaN sorts last, with weight 0
    ordered = np.take_along_axis(values, order, axis=1)
    cumulated = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
    half = cumulated[:, -1:] / 2
    rows = np.arange(len(values))
    low = np.argmax(cumulated >= half * (1 - 1e-12), axis=1)
    high = np.argmax(cumulated > half * (1 + 1e-12), axis=1)
    medians: Floats = (ordered[rows, low] + ordered[rows, high]) / 2
    return medians


def two_way(log_times: Floats) -> TwoWay:
    """Node effects and case levels of log times [N, C]; NaN where a node lacks a case."""
    effects = np.zeros(len(log_times))
    levels = nan_median(log_times, axis=0)
    deviations = log_times - levels
    scales = mad_scales(deviations)
    smallest = max(1e-6, float(np.median(scales)) / 10)  # no case decides alone
    weights = 1 / np.maximum(scales, smallest) ** 2
    for _ in range(_ROUNDS):
        before = effects
        effects = weighted_median(log_times - levels, weights)
        effects = effects - nan_median(effects)
        levels = nan_median(log_times - effects[:, None], axis=0)
        if np.nanmax(np.abs(effects - before), initial=0.0) < 1e-9:
            break
    # A mean of clipped deviations has less noise than a median, and no ties between a few nodes.
    residuals = log_times - levels - effects[:, None]
    limits = _CLIPPED * np.maximum(mad_scales(residuals), 1e-9)
    clipped = np.clip(residuals, -limits, limits)
    present = np.where(np.isnan(clipped), 0.0, weights)
    with np.errstate(invalid="ignore"):  # a node without any case has no weight
        effects = effects + np.nansum(clipped * present, axis=1) / present.sum(axis=1)
    effects = effects - nan_median(effects)
    residuals = log_times - levels - effects[:, None]
    return TwoWay(effects, levels, residuals, scales)


@lru_cache(maxsize=1)
def _pairs(count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The indexes of all pairs of values; a report needs them for each subset of its cases."""
    return np.triu_indices(count, 1)


def robust_scale(values: Floats) -> float:
    """A standard deviation that half of the values cannot spoil: Qn with the factors for small
    samples of Croux and Rousseeuw (1992); the MAD above 3,000 values. values: 2 or more.
    """
    count = len(values)
    if count > _PAIRS_NODES:
        return mad_scale(values - np.median(values))
    first, second = _pairs(count)
    half = count // 2 + 1
    rank = half * (half - 1) // 2
    distances = np.abs(values[first] - values[second])
    correction = _QN_SMALL.get(count) or count / (count + (1.4 if count % 2 else 3.8))
    return float(correction * _QN_TO_SIGMA * np.partition(distances, rank - 1)[rank - 1])


def common_cases(present: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.intp]]:
    """The sets of nodes that are connected by common cases, largest first. present: [N, C]."""
    unseen = np.ones(len(present), dtype=bool)
    sets = []
    while unseen.any():
        members = np.zeros(len(present), dtype=bool)
        cases = np.zeros(present.shape[1], dtype=bool)
        reached = np.argmax(unseen, keepdims=True)  # nodes whose cases have not been followed yet
        while len(reached):
            members[reached] = True
            new_cases = np.flatnonzero(present[reached].any(axis=0) & ~cases)
            cases[new_cases] = True
            reached = np.flatnonzero(present[:, new_cases].any(axis=1) & ~members)
        unseen &= ~members
        sets.append(np.flatnonzero(members))
    return sorted(sets, key=len, reverse=True)


def grouped_medians(
    groups: npt.NDArray[np.integer[Any]], values: Floats
) -> tuple[npt.NDArray[np.integer[Any]], Floats]:
    """The groups that occur, ascending, and the median of the values of each."""
    order = np.lexsort((values, groups))
    ordered, groups = values[order], groups[order]
    begins = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]) if len(groups) else order
    counts = np.diff(np.r_[begins, len(groups)])
    medians = (ordered[begins + (counts - 1) // 2] + ordered[begins + counts // 2]) / 2
    return groups[begins], medians


HEAVIEST = 4.0  # degrees of freedom assumed of a few nodes
_DEGREES = (HEAVIEST, 5.0, 6.0, 8.0, 12.0, 20.0, 1e6)
_PROVEN_BY = 6.6  # twice the log likelihood ratio: 99.5 % one-sided, chi-squared with 1 degree
_FEWEST = 128  # nodes that may prove lighter tails
_SMALLEST = 1e-300  # probability: its logarithm stays finite
_CENSORED = 0.02  # of the nodes at each end: the slow ones must not define the tails


# Critical values of max |effect| / Qn of N effects from t4, divided by the quantile of t4 with
# Bonferroni: simulated with 20,000 to 300,000 samples for N from 9 to 65, errors from 5 to 0.1 %.
# They are at most 0.85 + 20 / N^2 for every N (Qn of t4 is 1.19); estimating the levels of cases
# adds to the error for N below 16.
def _t4_factor(nodes: int) -> float:
    return 0.85 + 40 / nodes**2


def student_quantile(degrees: float, probability: float) -> float:
    """The quantile of Student's t."""
    return float(special.stdtrit(degrees, probability))


def _log_density(values: Floats, degrees: float) -> Floats:
    """Of Student's t."""
    half = (degrees + 1) / 2
    constant = special.gammaln(half) - special.gammaln(degrees / 2) - np.log(degrees * np.pi) / 2
    density: Floats = constant - half * np.log1p(values**2 / degrees)
    return density


def degrees_of_freedom(effects: Floats) -> float:
    """The heaviest tail, as degrees of freedom of Student's t, that the effects do not exclude.

    Compares the likelihood of the middle 96 % (the rest is censored) at the same interquartile
    range. Below 128 nodes always HEAVIEST.
    """
    count = len(effects)
    if count < _FEWEST:
        return HEAVIEST
    ordered = np.sort(effects - np.median(effects))
    censored = int(np.ceil(_CENSORED * count))
    low, high = np.quantile(ordered, [0.25, 0.75])
    middle = ordered[censored : count - censored]
    if high <= low:
        return HEAVIEST
    likelihoods = []
    for degrees in _DEGREES:
        scale = (high - low) / (2 * student_quantile(degrees, 0.75))
        tails = special.stdtr(degrees, [middle[0] / scale, -middle[-1] / scale])
        ends = float(np.log(np.maximum(tails, _SMALLEST)).sum())
        inside = _log_density(middle / scale, degrees).sum() - len(middle) * np.log(scale)
        likelihoods.append(inside + censored * ends)
    best = max(likelihoods)
    return next(
        degrees
        for degrees, likelihood in zip(_DEGREES, likelihoods, strict=True)
        if 2 * (best - likelihood) <= _PROVEN_BY
    )


def critical_value(nodes: int, tests: int, error: float, degrees: float = HEAVIEST) -> float:
    """The deviation, in robust standard deviations, that the largest of ``tests`` two-sided tests
    on ``nodes`` nodes exceeds with at most the probability ``error``.
    """
    quantile = student_quantile(degrees, 1 - error / (2 * tests))
    # The factor is between 0.85 and 1 for lighter tails: 1 is on the safe side.
    return quantile * (1.0 if degrees > HEAVIEST else _t4_factor(nodes))

"""From which deviation on a node is no longer one of its peers.

A deviation is measured in robust standard deviations of the nodes. Node effects of real clusters
have heavier tails than a normal distribution, and a few nodes cannot show how heavy: so a Student t
distribution with 4 degrees of freedom is assumed. From 128 nodes on, their middle 96 % may prove
lighter tails. The family-wise error: results/benchmarks/fleet-error-2026-11-23.txt.
"""

from __future__ import annotations

import numpy as np
from scipy import special  # scipy.stats takes a second to import

from torchcoll.parts.fleet.effects import Floats
from torchcoll.stats.distributions import t_quantile

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
        scale = (high - low) / (2 * t_quantile(0.75, degrees))
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
    quantile = t_quantile(1 - error / (2 * tests), degrees)
    # The factor is between 0.85 and 1 for lighter tails: 1 is on the safe side.
    return quantile * (1.0 if degrees > HEAVIEST else _t4_factor(nodes))

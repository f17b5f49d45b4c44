"""Nodes that are slower than their peers: in one night, or in their usual times.

The nodes of a fleet differ. A node is slower than its peers if it is slower than the median by more
than the spread of the nodes explains: Student's t for their number, so that the limit grows
smoothly where the nodes are few.
"""

from __future__ import annotations

import numpy as np

from torchcoll.parts.fleet.noise import Floats, Ints, SeriesNoise, quiet_median
from torchcoll.stats.distributions import mad_scale, t_quantile

FEWEST = 4  # nodes
ERROR = 1e-3  # probability that a fleet of equal nodes has one that is named
_SMALLEST = 0.003  # log time: nodes that are more alike than this are alike
_MOST_PAIRS = 500  # nodes: of more, the median absolute deviation is used
_EFFICIENCY = 0.8  # of the scale: its degrees of freedom, out of those of the nodes
_QN_TO_SIGMA = 2.2219
_QN_SMALL = {4: 0.512, 5: 0.844, 6: 0.611, 7: 0.857, 8: 0.669, 9: 0.872}


def robust_scale(values: Floats) -> float:
    """A standard deviation that half of the values cannot spoil: Qn with the factors for small
    samples of Croux and Rousseeuw (1992). values: 4 or more.
    """
    count = len(values)
    if count > _MOST_PAIRS:
        return mad_scale(values - np.median(values))
    first, second = np.triu_indices(count, 1)
    half = count // 2 + 1
    rank = half * (half - 1) // 2 - 1
    distances = np.abs(values[first] - values[second])
    correction = _QN_SMALL.get(count) or count / (count + (1.4 if count % 2 else 3.8))
    return float(correction * _QN_TO_SIGMA * np.partition(distances, rank)[rank])


def outlying(values: Floats, error: float = ERROR) -> Floats:
    """How far each of N nodes lies above the median, as a share of the limit [N].

    values [N]: NaN where a node has none.
    """
    has_usual = np.flatnonzero(np.isfinite(values))
    ratio = np.zeros(len(values))
    if len(has_usual) < FEWEST:
        return ratio
    numbers = values[has_usual]
    limit = t_quantile(1 - error / len(has_usual), _EFFICIENCY * (len(has_usual) - 2))
    spread = max(robust_scale(numbers), _SMALLEST)
    ratio[has_usual] = (numbers - np.median(numbers)) / (limit * spread)
    return ratio


def slower_than_peers(
    over: Floats, usual: Floats, new: Ints, noise: SeriesNoise | None, least: float
) -> list[tuple[int, int, Floats]]:
    """The nodes of ``new`` whose usual times are slower than those of their peers.

    over [N, S], usual [N, C]: usual log times. Returns node, subset of cases, and by how much the
    node is slower in each case [C].
    """
    results = []
    middle = quiet_median(usual)
    levels = over - quiet_median(over)
    subsets = levels.shape[1]
    ratios = np.stack([outlying(levels[:, s], ERROR / subsets) for s in range(subsets)], axis=1)
    for node in new.tolist():
        night = 0.0 if noise is None else float(noise.scale[node, 0]) / np.sqrt(7)
        for subset in np.argsort(-ratios[node], kind="stable").tolist():
            level = levels[node, subset]
            if ratios[node, subset] > 1 and level > max(least, 4 * night):
                results.append((node, subset, np.asarray(usual[node] - middle)))
                break
    return results

"""What several tests find together (Holm's correction), and what an answer would have found: if
that is more than a user acts on, the answer is 'cannot tell'. Rank 0 of a training uses this file:
it imports the standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# Shares of the time from which on a user acts.
ACT_ON_CASE = 0.5  # a case is 1.5 times slower
ACT_ON_ALL = 0.05  # a node is 5 % slower in all cases
ACT_ON_STEP = 0.1  # a training step is 10 % longer

POWER = 0.9  # how often what is called detectable is found
_MOST = 9.0  # a test that only finds more than ten times is said to find nothing


def detectable_change(
    error: float, degrees: float, level: float, least: float = 0.0
) -> float | None:
    """The smallest change that Student's t finds in 9 of 10 repetitions, as a share of the time;
    None if it is above 900 %.

    - error: of the logarithm of the change, with so many degrees of freedom.
    - level: the p below which a change is found, after all corrections.
    - least: a smaller estimate is not reported.
    """
    from torchcoll.stats.distributions import t_quantile

    of_level = max(t_quantile(1 - level / 2, degrees) * error, math.log1p(least))
    change = of_level + t_quantile(POWER, degrees) * error
    return math.expm1(change) if change <= math.log1p(_MOST) else None


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for their number (S. Holm 1979); for dependent cases too."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def holm_levels(p_values: Sequence[float], level: float) -> list[float]:
    """The level of each p value, given the others: Holm rejects k of them, in order, below level /
    n, level / (n - 1), ...; then level / (n - k) is left.
    """
    levels = []
    for i in range(len(p_values)):
        others = sorted([*p_values[:i], *p_values[i + 1 :]])
        rejected = 0
        while rejected < len(others) and others[rejected] < level / (len(p_values) - rejected):
            rejected += 1
        levels.append(level / (len(p_values) - rejected))
    return levels

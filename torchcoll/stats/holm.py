"""Holm's correction of several tests. Standard library only: rank 0 of a training uses it."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the p values adjusted for their number (S. Holm, Scandinavian Journal of Statistics 6
    (1979) 65). It holds for dependent cases too.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def holm_levels(p_values: Sequence[float], level: float) -> list[float]:
    """The level that each p value must be below to be rejected, given the others.

    Holm rejects k of the others, as far as they are below level / n, level / (n - 1), ... in order;
    then level / (n - k) is left. level: of all tests together.
    """
    levels = []
    for i in range(len(p_values)):
        others = sorted([*p_values[:i], *p_values[i + 1 :]])
        rejected = 0
        while rejected < len(others) and others[rejected] < level / (len(p_values) - rejected):
            rejected += 1
        levels.append(level / (len(p_values) - rejected))
    return levels

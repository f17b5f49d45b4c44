"""--bisect: which half of the ranks (nodes) is slow, and which half of that, until it is small.

Pure: what a step costs is told by a function, the real one of bench/bisect.py or a test's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Group = tuple[int, ...]
# Of both halves at once, in order: how fast each is. The rest of the units do as they like.
Speeds = Callable[[Group, Group], tuple[float, float]]

Comparable = Callable[[Group, Group], bool]

LEAST = 2  # units of a group that has anything to communicate


@dataclass(frozen=True)
class Step:
    halves: tuple[Group, Group]
    speeds: tuple[float, float]


@dataclass(frozen=True)
class Halving:
    """``group``: the smallest one that is slower than its other half; () where there is none.

    ``ratio``: its speed over that of the other half.
    """

    group: Group
    ratio: float
    steps: tuple[Step, ...]


def halve(
    units: Sequence[int],
    speeds: Speeds,
    threshold: float,
    comparable: Comparable = lambda first, second: True,
) -> Halving:
    """Go on with the slower half while it is slower by ``threshold`` (a share) and has two halves
    that can communicate. Where both halves are alike, the fault is in both, between them, or
    nowhere: halving ends. So it does where the halves are not ``comparable``.

    Both halves have the same number of units, for busbw depends on it where latency counts (a ring
    of three takes twice the steps of one of two): of an odd number the last is left out first, and
    where the others are alike, the first.
    """
    group: Group = tuple(units)
    found: Group = ()
    ratio, steps = 1.0, []
    while len(group) >= 2 * LEAST:
        middle = len(group) // 2
        slower: Group = ()
        for start in range(1 + len(group) % 2):
            halves = group[start : start + middle], group[start + middle : start + 2 * middle]
            if not comparable(*halves):
                continue
            told = speeds(*halves)
            steps.append(Step(halves, told))
            slow = 0 if told[0] < told[1] else 1
            if told[slow] < (1 - threshold) * told[1 - slow]:
                slower, ratio = halves[slow], told[slow] / told[1 - slow]
                break
        if not slower:
            break
        group = found = slower
    return Halving(found, ratio, tuple(steps))

"""Which rank came last to the collectives of a training, and what the others waited for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from torchcoll.analysis.joined import Joined
from torchcoll.analysis.lateness import LATENESS_NS, heard_late
from torchcoll.core.summary import median


@dataclass(frozen=True)
class LateRank:
    """How often a rank came last.

    calls: collectives that could be split, of this rank. last: those in which its own time was the
    shortest, by more than the error of ends that are stamped late; share: of the calls. expected:
    the share if all ranks came last equally often. waited_ns: the longest wait of the others, the
    median over the calls in which it came last.
    """

    rank: int
    calls: int
    last: int
    share: float
    expected: float
    waited_ns: float | None


def error_ns(one: Joined, source: str) -> int:
    """By how much the time of a call on a rank may be too long."""
    return LATENESS_NS if any(heard_late(c, source) for c in one.calls.values()) else 0


def late_ranks(split: Iterable[Joined], source: str) -> tuple[list[LateRank], int]:
    """A row for each rank, and of how many calls it cannot be told. source: of the traffic."""
    waits: dict[int, list[int]] = defaultdict(list)  # rank -> the waits that it caused
    shares: dict[int, list[float]] = defaultdict(list)  # rank -> 1 / ranks of each of its calls
    ties = 0
    for one in split:
        times = one.times_ns
        near = min(times.values()) + max(1, error_ns(one, source))
        shortest = [rank for rank, time in times.items() if time < near]
        for rank in times:
            shares[rank].append(1 / len(times))
        if len(shortest) > 1:
            ties += 1
        else:
            waits[shortest[0]].append(max(times.values()) - min(times.values()))
    rows = [
        LateRank(
            rank,
            len(own),
            len(waits[rank]),
            len(waits[rank]) / len(own),
            sum(own) / len(own),
            median(waits[rank]) if waits[rank] else None,
        )
        for rank, own in sorted(shares.items())
    ]
    return rows, ties

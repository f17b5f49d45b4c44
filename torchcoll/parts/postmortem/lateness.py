"""Ranks that came late to a call for a reason of their own, from the times at which the ranks of a
group issued the same calls.

Clocks of hosts differ. The usual difference between a rank and the others of its group, over the
calls before, is subtracted where there are enough calls; between ranks of one host the clocks are
the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from torchcoll.parts.postmortem.evidence import CallSeen
from torchcoll.parts.postmortem.standing import GroupStanding, Standings

_LEAST_NS = 1_000_000_000  # smaller delays stop no job
_FEWEST_CALLS = 5  # that tell the difference between two clocks
_TIMES_USUAL = 10  # the spread of the calls before
_MANY = 16  # ranks: whether the median is taken with or without one of them makes no difference
_EXPLAINED = 0.5  # of a delay, by another rank that came late to the call before


@dataclass(frozen=True)
class LateCall:
    """A rank that issued a call ``late_ns`` after the others of the group."""

    rank: int
    group: GroupStanding
    number: int
    late_ns: int
    call: CallSeen


def late_ranks(standings: Standings, nodes: Mapping[int, str]) -> list[LateCall]:
    """Ranks that came late to the last call of a group, and were not held up by another rank in
    their own call before.
    """
    late_calls: list[LateCall] = []
    offsets = {key: _usual_lateness(g, nodes) for key, g in standings.groups.items()}
    before = _calls_before(standings)
    for key, group in standings.groups.items():
        if len(group.calls) < 2:
            continue
        number = max(group.last.values())
        times = _times(group, number)
        for rank, lateness_ns in sorted(_lateness(times).items()):
            if rank not in offsets[key]:
                continue
            usual, spread = offsets[key][rank]
            late_ns = lateness_ns - usual
            if late_ns < max(_LEAST_NS, _TIMES_USUAL * spread):
                continue
            call = group.calls[rank][number]
            previous = before.get(id(call))
            if previous is not None and _was_held_up(previous, late_ns, standings, offsets):
                continue
            late_calls.append(LateCall(rank, group, number, round(late_ns), call))
    return late_calls


def _times(group: GroupStanding, number: int) -> dict[int, int]:
    return {
        rank: calls[number].created_ns or 0
        for rank, calls in group.calls.items()
        if number in calls and calls[number].created_ns
    }


def _lateness(times: Mapping[int, int]) -> dict[int, float]:
    """How long each rank came after the others; negative if before them. {} for one rank."""
    if len(times) < 2:
        return {}
    if len(times) > _MANY:
        middle = median(times.values())
        return {rank: time - middle for rank, time in times.items()}
    return {
        rank: time - median(t for other, t in times.items() if other != rank)
        for rank, time in times.items()
    }


def _usual_lateness(
    group: GroupStanding, nodes: Mapping[int, str]
) -> dict[int, tuple[float, float]]:
    """Rank -> (its median lateness, the median deviation from it) over all calls but the last."""
    last = max(group.last.values(), default=0)
    numbers = sorted({n for calls in group.calls.values() for n in calls if n < last})[-50:]
    seen: dict[int, list[float]] = defaultdict(list)
    for number in numbers:
        times = _times(group, number)
        if len(times) == len(group.calls) and len(times) > 1:
            for rank, lateness_ns in _lateness(times).items():
                seen[rank].append(lateness_ns)
    hosts = {nodes.get(rank) for rank in group.calls}
    same_host = len(hosts) == 1 and None not in hosts
    usual = {}
    for rank in group.calls:
        values = seen[rank]
        if len(values) >= _FEWEST_CALLS:
            middle = median(values)
            usual[rank] = (middle, median(abs(value - middle) for value in values))
        elif same_host:
            usual[rank] = (0.0, 0.0)
    return usual


def _calls_before(standings: Standings) -> dict[int, CallSeen]:
    """id of a call -> the call that its rank issued before it, in whatever group."""
    of_rank: dict[int, list[CallSeen]] = defaultdict(list)
    for group in standings.groups.values():
        for rank, calls in group.calls.items():
            of_rank[rank] += [call for call in calls.values() if call.created_ns is not None]
    before = {}
    for calls_of_rank in of_rank.values():
        calls_of_rank.sort(key=lambda call: call.created_ns or 0)
        for previous, call in pairwise(calls_of_rank):
            before[id(call)] = previous
    return before


def _was_held_up(
    previous: CallSeen,
    late_ns: float,
    standings: Standings,
    offsets: Mapping[str, Mapping[int, Sequence[float]]],
) -> bool:
    """Whether another rank came so late to the call before that it explains the delay."""
    group = standings.groups[previous.group]
    rank = previous.rank
    if any(last < previous.number for last in group.last.values()):
        return True
    times = _times(group, previous.number)
    usual = offsets[previous.group]
    for other, time in times.items():
        if other != rank and rank in times:
            offset = usual[other][0] - usual[rank][0] if other in usual and rank in usual else 0
            if time - times[rank] - offset > _EXPLAINED * late_ns:
                return True
    return False

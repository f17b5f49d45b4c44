"""Joins the calls of a Traffic across ranks, by group and sequence number."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.units import format_ranges

Key = tuple[str, int, int]  # group, sequence, index among the calls with this number


@dataclass(frozen=True, eq=False)
class JoinedCall:
    """One collective as the recorded ranks saw it.

    - calls: rank of the world -> the call of that rank.
    - members: all ranks of the group; () for a call that was not joined with those of other ranks.
    """

    calls: Mapping[int, TrafficCall]
    members: tuple[int, ...] = ()

    @cached_property
    def times_ns(self) -> dict[int, int]:
        """Rank -> duration of the call on that rank, for the ranks that recorded one."""
        return {r: c.time_ns for r, c in self.calls.items() if c.time_ns is not None}

    @cached_property
    def completion_ns(self) -> int | None:
        """The duration on the slowest rank, as everywhere in torchcoll; None if a rank has none."""
        times = self.times_ns
        return max(times.values()) if len(times) == len(self.calls) else None


def join_ranks(traffic: Traffic) -> tuple[dict[int, list[JoinedCall]], list[str]]:
    """Returns the JoinedCall of each call, by rank and in the order of ``traffic.calls``, and notes
    on the calls that were not joined.

    send and recv are not joined, because their two sides do different things. Neither are calls of
    groups whose ranks are unknown, nor of groups in which one sequence number means different calls
    on different ranks: the ranks did not start counting at the same call, so no pair of that group
    can be trusted.
    """
    keys: dict[int, list[Key | None]] = {}  # by rank; None for a call that is not joined
    by_key: dict[Key, dict[int, TrafficCall]] = defaultdict(dict)
    for rank, calls in traffic.calls.items():
        keys[rank] = []
        shared: Counter[tuple[str, int]] = Counter()  # calls of one coalesced group share a number
        for call in calls:
            group = traffic.groups.get(call.group)
            if call.point_to_point or group is None or rank not in group.ranks:
                keys[rank].append(None)
                continue
            number = (call.group, call.sequence)
            key = (*number, shared[number])
            shared[number] += 1
            keys[rank].append(key)
            by_key[key][rank] = call
    separate: dict[str, str] = {}
    for key, by_rank in by_key.items():
        if len({(call.collective, call.dtype, call.step) for call in by_rank.values()}) > 1:
            separate.setdefault(key[0], _disagreement(traffic, key, by_rank))
    together = {
        key: JoinedCall(by_rank, traffic.groups[key[0]].ranks)
        for key, by_rank in by_key.items()
        if key[0] not in separate
    }
    joined = {
        rank: [
            (together.get(key) if key else None) or JoinedCall({rank: call})
            for key, call in zip(keys[rank], calls, strict=True)
        ]
        for rank, calls in traffic.calls.items()
    }
    notes = list(separate.values())
    if len(traffic.calls) > 1:
        collectives = [c for calls in traffic.calls.values() for c in calls if not c.point_to_point]
        groups = {name for name, group in traffic.groups.items() if group.ranks}
        count = sum(call.group not in groups for call in collectives)
        if count:
            notes.append(
                f"{count} of {len(collectives)} collectives do not tell the ranks of their group: "
                "they are not put together over the ranks, and their times are each rank's own"
            )
    return joined, notes


def _disagreement(traffic: Traffic, key: Key, by_rank: Mapping[int, TrafficCall]) -> str:
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, call in by_rank.items():
        step = "" if call.step is None else f" in step {call.step}"
        ranks_of[f"{call.collective} {call.dtype or ''}".strip() + step].append(rank)
    differences = ", ".join(
        f"{text} on rank {format_ranges(ranks)}" for text, ranks in ranks_of.items()
    )
    label = traffic.groups[key[0]].label
    group = key[0] if label == key[0] else f"{label} ({key[0]})"
    return (
        f"group {group}: call {key[1]} is {differences}: the ranks do not count alike: its "
        "calls are not put together, and times are each rank's own"
    )


def unsplit_reason(joined: JoinedCall) -> str:
    """Returns why the duration of a call cannot be split into wait and transfer; '' if it can."""
    call = next(iter(joined.calls.values()))
    if call.point_to_point:
        return "a message between two ranks: its two sides are not put together"
    if call.collective not in COLLECTIVES:
        return f"{call.collective} is not in the table of collectives"
    if COLLECTIVES[call.collective].has_root:
        return "rooted: ranks leave at different times, so that the shortest need not be the last"
    if not joined.members:
        return "the calls of the ranks were not put together"
    if len(joined.members) == 1:
        return "a group of one rank"
    if len(joined.calls) < len(joined.members):
        return f"{len(joined.calls)} of the {len(joined.members)} ranks of its group were recorded"
    if joined.completion_ns is None:
        return "no time"
    if len({each.clock for each in joined.calls.values()}) > 1:
        return "the times of its ranks are of different clocks"
    return ""

"""The calls of a Traffic put together over the ranks, by group and sequence number."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.units import format_ranges

Key = tuple[str, int, int]  # group, sequence, which of the calls that share the number


@dataclass(frozen=True)
class Joined:
    """One collective as those ranks saw it that were recorded.

    calls: rank of the world -> its own call. members: all ranks of the group; () for a call that
    was not put together with those of other ranks.
    """

    calls: Mapping[int, TrafficCall]
    members: tuple[int, ...] = ()

    @cached_property
    def times_ns(self) -> dict[int, int]:
        """Rank -> how long it took there, of the ranks that know."""
        return {r: c.time_ns for r, c in self.calls.items() if c.time_ns is not None}

    @cached_property
    def completion_ns(self) -> int | None:
        """The longest of the ranks, as everywhere in torchcoll; None where one does not know."""
        times = self.times_ns
        return max(times.values()) if len(times) == len(self.calls) else None


def join_ranks(traffic: Traffic) -> tuple[dict[int, list[Joined]], list[str]]:
    """The Joined of each call, by rank and in the order of ``traffic.calls``; and what is apart.

    send and recv stay alone: their two sides do different things. So do calls of groups whose ranks
    are not told, and of groups in which one number means different calls on different ranks: their
    numbers do not begin at the same call, so that no pair of that group can be trusted.
    """
    keys = {rank: _keys(rank, calls, traffic) for rank, calls in traffic.calls.items()}
    found: dict[Key, dict[int, TrafficCall]] = defaultdict(dict)
    for rank, calls in traffic.calls.items():
        for key, call in zip(keys[rank], calls, strict=True):
            if key:
                found[key][rank] = call
    apart: dict[str, str] = {}
    for key, own in found.items():
        if len({(call.collective, call.dtype, call.step) for call in own.values()}) > 1:
            apart.setdefault(key[0], _disagreement(key, own))
    together = {
        key: Joined(own, traffic.groups[key[0]].ranks)
        for key, own in found.items()
        if key[0] not in apart
    }
    joined = {
        rank: [
            (together.get(key) if key else None) or Joined({rank: call})
            for key, call in zip(keys[rank], calls, strict=True)
        ]
        for rank, calls in traffic.calls.items()
    }
    return joined, [*apart.values(), *_not_told(traffic)]


def _keys(rank: int, calls: Sequence[TrafficCall], traffic: Traffic) -> list[Key | None]:
    """None for what is not put together. Calls of one coalesced group may share their number."""
    seen: Counter[tuple[str, int]] = Counter()
    keys: list[Key | None] = []
    for call in calls:
        group = traffic.groups.get(call.group)
        if call.point_to_point or group is None or rank not in group.ranks:
            keys.append(None)
            continue
        number = (call.group, call.sequence)
        keys.append((*number, seen[number]))
        seen[number] += 1
    return keys


def _disagreement(key: Key, own: Mapping[int, TrafficCall]) -> str:
    said: dict[str, list[int]] = defaultdict(list)
    for rank, call in own.items():
        step = "" if call.step is None else f" in step {call.step}"
        said[f"{call.collective} {call.dtype or ''}".strip() + step].append(rank)
    words = ", ".join(f"{text} on rank {format_ranges(ranks)}" for text, ranks in said.items())
    return (
        f"group {key[0]}: call {key[1]} is {words}: the ranks do not count alike: its "
        "calls are not put together, and times are each rank's own"
    )


def _not_told(traffic: Traffic) -> list[str]:
    if len(traffic.calls) < 2:
        return []
    calls = [call for own in traffic.calls.values() for call in own if not call.point_to_point]
    known = {name for name, group in traffic.groups.items() if group.ranks}
    count = sum(call.group not in known for call in calls)
    if not count:
        return []
    return [
        f"{count} of {len(calls)} collectives do not tell the ranks of their group: they are not "
        "put together over the ranks, and their times are each rank's own"
    ]

"""The calls of a Traffic put together over the ranks, by group and sequence number."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.summary import median
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.units import format_ranges

Key = tuple[str, int, int]  # group, sequence, which of the calls that share the number


@dataclass(frozen=True, eq=False)
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
    are not known, and of groups in which one number means different calls on different ranks: their
    numbers do not begin at the same call, so that no pair of that group can be trusted.
    """
    keys = {rank: _keys(rank, calls, traffic) for rank, calls in traffic.calls.items()}
    found: dict[Key, dict[int, TrafficCall]] = defaultdict(dict)
    for rank, calls in traffic.calls.items():
        for key, call in zip(keys[rank], calls, strict=True):
            if key:
                found[key][rank] = call
    separate: dict[str, str] = {}
    for key, own in found.items():
        if len({(call.collective, call.dtype, call.step) for call in own.values()}) > 1:
            separate.setdefault(key[0], _disagreement(key, own))
    together = {
        key: Joined(own, traffic.groups[key[0]].ranks)
        for key, own in found.items()
        if key[0] not in separate
    }
    joined = {
        rank: [
            (together.get(key) if key else None) or Joined({rank: call})
            for key, call in zip(keys[rank], calls, strict=True)
        ]
        for rank, calls in traffic.calls.items()
    }
    return joined, [*separate.values(), *_not_stated(traffic)]


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
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank, call in own.items():
        step = "" if call.step is None else f" in step {call.step}"
        ranks_of[f"{call.collective} {call.dtype or ''}".strip() + step].append(rank)
    words = ", ".join(f"{text} on rank {format_ranges(ranks)}" for text, ranks in ranks_of.items())
    return (
        f"group {key[0]}: call {key[1]} is {words}: the ranks do not count alike: its "
        "calls are not put together, and times are each rank's own"
    )


def _not_stated(traffic: Traffic) -> list[str]:
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


def not_split(one: Joined) -> str:
    """Why the time of a call cannot be divided into wait and transfer; '' where it can."""
    call = next(iter(one.calls.values()))
    if call.point_to_point:
        return "a message between two ranks: its two sides are not put together"
    if call.collective not in COLLECTIVES:
        return f"{call.collective} is not in the table of collectives"
    if COLLECTIVES[call.collective].has_root:
        return "rooted: ranks leave at different times, so that the shortest need not be the last"
    if not one.members:
        return "the calls of the ranks were not put together"
    if len(one.members) == 1:
        return "a group of one rank"
    if len(one.calls) < len(one.members):
        return f"{len(one.calls)} of the {len(one.members)} ranks of its group were recorded"
    if one.completion_ns is None:
        return "no time"
    return ""


# -------------------------------------------------------------------------------------------------
# Asynchronous calls on CPUs, whose ends a capture knows only when Python hears of them.
#
# Their times are too long, never too short: by up to 5 ms where another thread keeps Python busy.

LATENESS_NS = 5_000_000  # sys.getswitchinterval: so long a thread may go on while others wait
LATE = "end when Python hears of it, up to 5 ms late"


def heard_late(call: TrafficCall, source: str) -> bool:
    """Whether the end of the call may have been stamped late. source: of its Traffic."""
    known = call.time_ns is not None and call.clock == "host"
    return source == "capture" and known and call.asynchronous is not False


def cut_at_marks(
    traffic: Traffic, alone: Callable[[TrafficCall], float | None] = lambda call: None
) -> Traffic:
    """The traffic with ends that were heard of after the mark of their step put at the mark.

    DDP waits for its calls within the step, so an end just after its mark is lateness. One that is
    further after it than that is none: the call is in flight in the next step too, and stays so.
    So does one that would end sooner than any other of its kind took: a program's own calls may
    overlap steps. alone: what such a call took by itself, in ns, where that is known.
    """
    if traffic.source != "capture":
        return traffic
    left = {
        rank: [_left(call, traffic.steps.get(rank, ())) for call in calls]
        for rank, calls in traffic.calls.items()
    }
    shortest: dict[tuple[object, ...], int] = {}
    for rank, calls in traffic.calls.items():
        for call, until in zip(calls, left[rank], strict=True):
            if until is None and call.time_ns is not None and call.clock == "host":
                kind = _kind(call)
                shortest[kind] = min(call.time_ns, shortest.get(kind, call.time_ns))

    def cut(call: TrafficCall, until: int | None) -> TrafficCall:
        if until is None:
            return call
        known = [ns for ns in (shortest.get(_kind(call)), alone(call)) if ns is not None]
        return call if known and until < min(known) else dataclasses.replace(call, time_ns=until)

    ended = {rank: list(map(cut, own, left[rank])) for rank, own in traffic.calls.items()}
    return dataclasses.replace(traffic, calls=ended)


def _kind(call: TrafficCall) -> tuple[object, ...]:
    return (call.collective, call.bytes_in, call.bytes_out, call.dtype, call.op, call.group)


def _left(call: TrafficCall, spans: Sequence[tuple[int, int]]) -> int | None:
    """What is left of the step of a call that may have been heard of late after it; else None."""
    late = heard_late(call, "capture") and call.step is not None and call.step < len(spans)
    if not late or call.start_ns is None:
        return None
    left = spans[call.step or 0][1] - call.start_ns
    return left if 0 <= left < (call.time_ns or 0) <= left + LATENESS_NS else None


# -------------------------------------------------------------------------------------------------
# Which rank came last to the collectives of a training, and what the others waited for it.


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
    """A row for each rank, and of how many calls it cannot be known. source: of the traffic."""
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

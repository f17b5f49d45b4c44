"""Joins the calls of a Traffic across ranks, by group and sequence number; says which of their end
stamps may be late, and measures the offsets between the clocks of ranks from them.

A capture learns of the end of an asynchronous call on a CPU only when Python runs the callback. The
recorded duration is therefore never too short, but up to 5 ms too long while another thread keeps
Python busy.

Clocks: a collective in which every rank needs all others ends on no rank before all have begun it,
which bounds the offset between the clocks of two ranks from both sides: F. Cristian's bound
(Probabilistic clock synchronization, 1989), with a collective in place of a message and its reply.
The bounds of many calls are intersected. Within them, the offset is the median of the differences
of the ends. Its error is the distance to the farther bound. The only assumption is that the clocks
run at the same rate meanwhile.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from torchcoll.core.backends import backend_of
from torchcoll.core.collectives import COLLECTIVES, has_splits
from torchcoll.core.summary import median
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.units import format_ns, format_ranges

Key = tuple[str, int, int]  # group, sequence, index among the calls with this number


@dataclass(eq=False)
class JoinedCall:
    """One collective as the recorded ranks saw it; the ledger adds the figures.

    - calls: rank of the world -> the call of that rank.
    - members: all ranks of the group; () for a call that was not joined with those of other ranks.
    - reason: why its time does not split into wait and transfer; '' if it does.
    - service_ns: rank -> the time since it began there; the ranks with a duration.
    - transfer_ns: None if the time does not split.
    - waits_ns: rank -> how long it waited for the last rank; {} if unknown.
    - last: the rank that came last; None if several did, as far as the stamps tell.
    - error_ns: by how much a wait may be wrong.
    """

    calls: Mapping[int, TrafficCall]
    members: tuple[int, ...] = ()
    reason: str = ""
    service_ns: dict[int, int] = field(default_factory=dict)
    transfer_ns: int | None = None
    waits_ns: dict[int, int] = field(default_factory=dict)
    last: int | None = None
    error_ns: int = 0

    @property
    def first(self) -> TrafficCall:
        """The call on the lowest rank."""
        return self.calls[min(self.calls)]

    @property
    def group(self) -> str:
        """The name of its group."""
        return self.first.group

    @cached_property
    def completion_ns(self) -> int | None:
        """The duration on the slowest rank, as everywhere in torchcoll; None if a rank has none."""
        times = [call.time_ns for call in self.calls.values()]
        return None if None in times else max(time for time in times if time is not None)

    def wait_for_last_ns(self, rank: int) -> int:
        """Returns how long the rank waited for the one that came last; 0 if that is not known."""
        return 0 if self.last in (None, rank) else self.waits_ns[rank]

    @property
    def caused_ns(self) -> int:
        """How long all other ranks waited for the one that came last; 0 if that is not known."""
        return sum(map(self.wait_for_last_ns, self.waits_ns))


def join_ranks(traffic: Traffic) -> tuple[dict[int, list[JoinedCall]], list[str]]:
    """Returns the JoinedCall of each call, by rank and in the order of ``traffic.calls``, and notes
    on the calls that were not joined.

    send and recv are not joined, because their two sides do different things. Neither are calls of
    groups whose ranks are unknown, or whose ranks did not start counting at the same call.
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
        if len(set(map(_content, by_rank.values()))) > 1:
            separate.setdefault(key[0], _disagreement(traffic, key))
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


def _disagreement(traffic: Traffic, key: Key) -> str:
    label = traffic.groups[key[0]].label
    group = key[0] if label == key[0] else f"{label} ({key[0]})"
    return (
        f"group {group}: call {key[1]} is not of one collective, dtype and step on all ranks: the "
        "ranks do not count alike: its calls are not put together, and times are each rank's own"
    )


_content = attrgetter("collective", "dtype", "step")


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


MAX_LATENESS_NS = 5_000_000  # sys.getswitchinterval: how long a thread may keep others waiting
LATE = "recorded up to 5 ms late"
# Calls that agree in these fields are of the same kind.
_kind = attrgetter("collective", "bytes_in", "bytes_out", "dtype", "op", "group")


def may_end_late(call: TrafficCall, source: str) -> bool:
    """Returns whether the end of the call may have been stamped late.

    - source: the source of its Traffic; only captures stamp ends late.
    """
    timed = call.time_ns is not None and call.clock == "host"
    return source == "capture" and timed and call.asynchronous is not False


def cut_at_marks(traffic: Traffic) -> Traffic:
    """Returns the traffic with late end stamps moved back to the mark of their step.

    DDP waits for its calls within the step, so an end shortly after the mark is a late stamp. A
    call keeps its end if cutting would make it shorter than any other call of its kind.
    """
    if traffic.source != "capture":
        return traffic
    left = {
        rank: [_time_until_mark(call, traffic.steps.get(rank, ())) for call in calls]
        for rank, calls in traffic.calls.items()
    }
    shortest: dict[tuple[object, ...], int] = {}
    for rank, calls in traffic.calls.items():
        for call, until in zip(calls, left[rank], strict=True):
            if until is None and call.time_ns is not None and call.clock == "host":
                kind = _kind(call)
                shortest[kind] = min(call.time_ns, shortest.get(kind, call.time_ns))

    def cut(call: TrafficCall, until: int | None) -> TrafficCall:
        if until is None or until < shortest.get(_kind(call), 0):
            return call
        exposed_ns = None if call.exposed_ns is None else min(call.exposed_ns, until)
        return dataclasses.replace(call, time_ns=until, exposed_ns=exposed_ns)

    ended = {rank: list(map(cut, calls, left[rank])) for rank, calls in traffic.calls.items()}
    return dataclasses.replace(traffic, calls=ended)


def _time_until_mark(call: TrafficCall, spans: Sequence[tuple[int, int]]) -> int | None:
    """Returns the time from issue to the mark for a call that may end late, otherwise None."""
    late = may_end_late(call, "capture") and call.step is not None and call.step < len(spans)
    if not late or call.start_ns is None:
        return None
    left = spans[call.step or 0][1] - call.start_ns
    return left if 0 <= left < (call.time_ns or 0) <= left + MAX_LATENESS_NS else None


def begun_ns(traffic: Traffic) -> tuple[dict[int, int], dict[int, int]]:
    """Returns when each call that has a span could begin on its rank, by the call's id: issued, and
    its group had a worker for it. And by how much (ns) earlier it may have begun, by the id of
    those that waited for an end that may be stamped late.

    A group with one worker begins a call when the call before it has ended. Messages between two
    ranks neither wait for a worker nor take one.
    """
    begun: dict[int, int] = {}
    errors: dict[int, int] = {}
    workers = {name: backend_of(group.backend).workers for name, group in traffic.groups.items()}
    for calls in traffic.calls.values():
        # By group, a heap of when its workers are free, and whether these ends may be stamped late.
        ends_of: dict[str, list[tuple[int, bool]]] = defaultdict(list)
        for call in calls:
            if call.span is None:
                continue
            start, end = call.span
            begun[id(call)] = start
            if call.point_to_point:
                continue
            ends = ends_of[call.group]
            its_end = (end, may_end_late(call, traffic.source))
            if len(ends) < workers.get(call.group, 1):
                heapq.heappush(ends, its_end)
                continue
            before = ends[0][0]
            begun[id(call)] = min(end, max(start, before))
            least = min(ns - MAX_LATENESS_NS * late for ns, late in ends)
            if least < before and start < before:
                errors[id(call)] = before - max(start, least)
            heapq.heappushpop(ends, its_end)
    return begun, errors


@dataclass(frozen=True)
class Offsets:
    """The offset to add to each rank's stamps to get those of the first rank, in ns.

    - added_ns: rank -> offset; a rank that cannot be aligned is missing.
    - error_ns: rank -> maximum error of the offset.
    - text: the method, in a sentence.
    - problem: why ranks are missing, or ''.
    """

    added_ns: dict[int, int]
    error_ns: dict[int, int]
    text: str
    problem: str = ""


@dataclass
class _Bound:
    """Bounds of the offset of one rank relative to another, and the differences of their ends.

    low <= offset <= high.
    """

    low: float
    high: float
    ends: list[int]


def measure_offsets(traffic: Traffic, calls: Iterable[JoinedCall]) -> Offsets:
    """Returns the clock offsets of all ranks of the traffic.

    - calls: the calls to measure with. If all ranks name one clock, none are needed.
    """
    ranks = sorted(traffic.calls)
    if len(ranks) < 2:
        return Offsets(dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0), "")
    clocks = [traffic.clocks.get(rank) for rank in ranks]
    names = {clock[0] if clock else "" for clock in clocks}
    if len(names) == 1 and "" not in names:
        zeros = {rank: traffic.clocks[rank][1] for rank in ranks}
        added = {rank: zero - zeros[ranks[0]] for rank, zero in zeros.items()}
        return Offsets(added, dict.fromkeys(ranks, 0), "one host, one clock: no error")
    bounds = _bounds(calls)
    # Ranks are aligned starting from the first, through calls shared with an aligned rank.
    added, error = {ranks[0]: 0}, {ranks[0]: 0}
    neighbours: dict[int, list[int]] = defaultdict(list)
    contradicting: set[int] = set()
    for first, peer in bounds:
        neighbours[first].append(peer)
    waiting = [ranks[0]]
    for rank in waiting:  # the loop appends to it
        for peer in sorted(neighbours[rank]):
            bound = bounds[rank, peer]
            if peer in added:
                continue
            if bound.low > bound.high:
                contradicting.add(peer)
                continue
            middle = min(max(median(bound.ends), bound.low), bound.high)
            added[peer] = added[rank] + round(middle)
            farther = max(bound.high - middle, middle - bound.low)
            error[peer] = error[rank] + round(farther)
            waiting.append(peer)
    missing = [rank for rank in ranks if rank not in added]
    text = problem = ""
    if len(added) > 1:
        text = (
            "clocks aligned by calls that ranks made together, at most "
            f"{format_ns(max(error.values()), 3)} off: no rank leaves such a call before all have "
            "begun it"
        )
    if missing:
        which = f"rank{'s' * (len(missing) > 1)} {format_ranges(missing)}"
        why = "no collective with other ranks has its begin and end recorded"
        if contradicting & set(missing):
            why = (
                "no one offset fits all calls (a clock that was set or drifts, or traces that are "
                "not of one run)"
            )
        problem = f"the clocks of {which} cannot be aligned with rank {ranks[0]}: {why}"
    return Offsets(added, error, text, problem)


def _bounds(calls: Iterable[JoinedCall]) -> dict[tuple[int, int], _Bound]:
    """Returns (rank, peer) -> bounds of the offset to add to the stamps of the peer.

    Each call gives the bounds of its first rank with each of its other ranks, in both directions.
    """
    bounds: dict[tuple[int, int], _Bound] = {}
    for joined in calls:
        # Only collectives in which every rank needs all others, with begin and end on each rank.
        collective = next(iter(joined.calls.values())).collective
        entry = COLLECTIVES.get(collective)
        if entry is None or entry.has_root or has_splits(collective) or len(joined.calls) < 2:
            continue
        if not all(call.span for call in joined.calls.values()):
            continue
        first, *peers = sorted(joined.calls)
        begin, end = joined.calls[first].span or (0, 0)
        for peer in peers:
            start, stop = joined.calls[peer].span or (0, 0)
            bound = bounds.setdefault((first, peer), _Bound(float("-inf"), float("inf"), []))
            bound.low, bound.high = max(bound.low, begin - stop), min(bound.high, end - start)
            bound.ends.append(end - stop)
    for (first, peer), bound in list(bounds.items()):
        bounds[peer, first] = _Bound(-bound.high, -bound.low, [-gap for gap in bound.ends])
    return bounds

"""Which end stamps of a capture may be late, and by how much.

A capture learns of the end of an asynchronous call on a CPU only when Python runs the callback. The
recorded duration is therefore never too short, but up to 5 ms too long while another thread keeps
Python busy.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from torchcoll.core.backends import backend_of
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.parts.training.joined import JoinedCall

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


def cut_at_marks(
    traffic: Traffic, alone: Callable[[TrafficCall], float | None] = lambda call: None
) -> Traffic:
    """Returns the traffic with late end stamps moved back to the mark of their step.

    - alone: returns the duration (ns) of such a call measured by itself, or None if unknown.

    DDP waits for its calls within the step, so an end shortly after the mark is a late stamp. An
    end further after it is not: that call is in flight in the next step too, and keeps its end. A
    call also keeps its end if cutting would make it shorter than any other call of its kind,
    because a program's own calls may overlap steps.
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
        if until is None:
            return call
        durations_ns = [ns for ns in (shortest.get(_kind(call)), alone(call)) if ns is not None]
        return (
            call
            if durations_ns and until < min(durations_ns)
            else dataclasses.replace(
                call,
                time_ns=until,
                exposed_ns=None if call.exposed_ns is None else min(call.exposed_ns, until),
            )
        )

    ended = {rank: list(map(cut, calls, left[rank])) for rank, calls in traffic.calls.items()}
    return dataclasses.replace(traffic, calls=ended)


def _time_until_mark(call: TrafficCall, spans: Sequence[tuple[int, int]]) -> int | None:
    """Returns the time from issue to the mark for a call that may end late, otherwise None."""
    late = may_end_late(call, "capture") and call.step is not None and call.step < len(spans)
    if not late or call.start_ns is None:
        return None
    left = spans[call.step or 0][1] - call.start_ns
    return left if 0 <= left < (call.time_ns or 0) <= left + MAX_LATENESS_NS else None


def error_ns(joined: JoinedCall, source: str) -> int:
    """Returns by how much (ns) a rank's duration of the call may be too long.

    - source: the source of the traffic.
    """
    return MAX_LATENESS_NS if any(may_end_late(c, source) for c in joined.calls.values()) else 0


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


def times_since_begun_ns(joined: JoinedCall, begun: Mapping[int, int]) -> dict[int, int]:
    """Returns the time of a call on each rank that recorded one, without that in the queue.

    - begun: as ``begun_ns`` returns it. A call without a span has its duration.
    """
    return {
        rank: call.span[1] - begun[id(call)] if call.span else joined.times_ns[rank]
        for rank, call in joined.calls.items()
        if rank in joined.times_ns
    }

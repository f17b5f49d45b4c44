"""Which rank came last to the collectives of a training, and which ends were heard of late.

A capture knows the end of an asynchronous call on a CPU only when Python hears of it. So its time
is too long, never too short: by up to 5 ms where another thread keeps Python busy.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from torchcoll.core.summary import median
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.training.joined import JoinedCall

LATENESS_NS = 5_000_000  # sys.getswitchinterval: so long a thread may go on while others wait
LATE = "end when Python hears of it, up to 5 ms late"
# What calls that are alike have in common.
_kind = attrgetter("collective", "bytes_in", "bytes_out", "dtype", "op", "group")


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


def _left(call: TrafficCall, spans: Sequence[tuple[int, int]]) -> int | None:
    """What is left of the step of a call that may have been heard of late after it; else None."""
    late = heard_late(call, "capture") and call.step is not None and call.step < len(spans)
    if not late or call.start_ns is None:
        return None
    left = spans[call.step or 0][1] - call.start_ns
    return left if 0 <= left < (call.time_ns or 0) <= left + LATENESS_NS else None


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


def error_ns(one: JoinedCall, source: str) -> int:
    """By how much the time of a call on a rank may be too long."""
    return LATENESS_NS if any(heard_late(c, source) for c in one.calls.values()) else 0


def late_ranks(split: Iterable[JoinedCall], source: str) -> tuple[list[LateRank], int]:
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

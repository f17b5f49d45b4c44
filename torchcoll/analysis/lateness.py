"""Asynchronous calls on CPUs, whose ends a capture knows only when Python hears of them.

Their times are too long, never too short: by up to 5 ms where another thread keeps Python busy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torchcoll.core.traffic import Traffic, TrafficCall

LATENESS_NS = 5_000_000  # sys.getswitchinterval: so long a thread may go on while others wait
LATE = "end when Python hears of it, up to 5 ms late"


def heard_late(call: TrafficCall, source: str) -> bool:
    """Whether the end of the call may have been stamped late. source: of its Traffic."""
    known = call.time_ns is not None and call.clock == "host"
    return source == "capture" and known and call.asynchronous is not False


def cut_at_marks(traffic: Traffic) -> Traffic:
    """The traffic with ends that were heard of after the mark of their step put at the mark.

    DDP waits for its calls within the step, so an end just after its mark is lateness. One that is
    further after it than that is none: the call is in flight in the next step too, and stays so.
    """
    if traffic.source != "capture":
        return traffic
    cut = dataclasses.replace(traffic, calls={**traffic.calls})
    for rank, calls in traffic.calls.items():
        spans = traffic.steps.get(rank, ())
        cut.calls[rank] = [_cut(call, spans) for call in calls]
    return cut


def _cut(call: TrafficCall, spans: Sequence[tuple[int, int]]) -> TrafficCall:
    late = heard_late(call, "capture") and call.step is not None and call.step < len(spans)
    if not late or call.start_ns is None:
        return call
    left = spans[call.step or 0][1] - call.start_ns
    if 0 <= left < (call.time_ns or 0) <= left + LATENESS_NS:
        return dataclasses.replace(call, time_ns=left)
    return call

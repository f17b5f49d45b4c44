"""The calls of a training as a trace for Perfetto."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.traffic import TrafficCall
from torchcoll.core.units import format_size
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.steps import group_labels

UNKNOWN_CALLS = "unknown call"  # communication that belongs to no recorded call
_US = 1e3  # ns; the format counts microseconds
_NOT_SHOWN = {"start_ns", "time_ns", "began_ns", "logged_ns", "tensors", "splits"}


def traffic_trace(ledger: Ledger) -> tuple[str, list[str]]:
    """Returns the trace of all steps for Perfetto (Trace Event Format) and notes on its clocks.

    Each rank is a process with tracks for its steps, its computation and the calls of each group;
    overlapping calls are on separate tracks. Raises UsageError if no call has begin and end.
    """
    traffic, offsets = ledger.traffic, ledger.offsets
    if not any(call.span for calls in traffic.calls.values() for call in calls):
        raise UsageError("perfetto", "no call with times", "a capture or a trace")
    events: list[dict[str, Any]] = []
    for rank, calls in traffic.calls.items():
        tracks = _Tracks(rank, offsets.added_ns.get(rank, 0), events)
        for number, (start, end) in enumerate(traffic.steps.get(rank, ())):
            tracks.add("steps", f"step {number}", "step", start, end)
        for start, end in traffic.computing.get(rank, ()):
            tracks.add("computing", "computing", "computing", start, end)
        for start, end in traffic.apart.get(rank, ()):
            tracks.add(UNKNOWN_CALLS, UNKNOWN_CALLS, "communication", start, end)
        labels = group_labels(traffic.groups, (call.group for call in calls))
        spans = [(call.span, number, call) for number, call in enumerate(calls) if call.span]
        for (start, end), number, call in sorted(spans, key=lambda entry: entry[:2]):
            args = {
                **{name: value for name, value in call.to_json().items() if name not in _NOT_SHOWN},
                "wait_ns": ledger.wait_ns(rank, number),
                "error_ns": offsets.error_ns.get(rank),
            }
            kept = {name: value for name, value in args.items() if value is not None}
            track = f"group {one_line(labels[call.group])}"
            tracks.add(track, _call_text(call), "communication", start, end, kept)
    text = offsets.text
    if offsets.problem:
        text = f"{offsets.problem}; their events are right among themselves only"
    clocks = [text] if text else []
    about = {"clocks": list(dict.fromkeys(clocks))}  # a sentence each
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}), clocks


def _call_text(call: TrafficCall) -> str:
    """Returns for example ``all_gather 1M layers.3``."""
    size = call.bytes_in or call.bytes_out
    texts = (call.collective, format_size(size) if size else "", call.module)
    return one_line(" ".join(filter(None, texts)))


class _Tracks:
    """The threads of a process, without overlapping events on any of them: Perfetto cannot show
    those.

    - shift_ns: added to each time.
    """

    def __init__(self, process: int, shift_ns: int, events: list[dict[str, Any]]) -> None:
        self._process, self._shift, self._events = process, shift_ns, events
        self._ends: dict[str, dict[int, int]] = defaultdict(dict)  # name -> thread -> its last end
        self._count = 0
        self._name("process_name", f"rank {process}", 0)

    def add(
        self,
        track: str,
        name: str,
        category: str,
        start: int,
        end: int,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds an event to a thread of the track; events must come in the order of their start."""
        event = {
            "ph": "X",
            "name": name,
            "cat": category,
            "pid": self._process,
            "tid": self._thread(track, start, end),
            "ts": (start + self._shift) / _US,
            "dur": (end - start) / _US,
            "args": dict(args or {}),
        }
        self._events.append(event)

    def _thread(self, track: str, start: int, end: int) -> int:
        threads = self._ends[track]
        thread = next((thread for thread, last in threads.items() if last <= start), None)
        if thread is None:
            self._count += 1
            thread = self._count
            text = f"{track} ({len(threads) + 1})" if threads else track
            self._name("thread_name", text, thread)
        threads[thread] = end
        return thread

    def _name(self, kind: str, name: str, thread: int) -> None:
        named = {"ph": "M", "name": kind, "pid": self._process, "tid": thread}
        self._events.append({**named, "args": {"name": name}})

"""The calls of a training as a trace for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.traffic import TrafficCall
from torchcoll.core.units import format_size
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.steps import group_labels

UNKNOWN_CALLS = "unknown call"  # communication that belongs to no recorded call
_US = 1e3  # ns; the format counts microseconds
_FIELDS = {
    *("collective", "bytes_in", "bytes_out", "dtype", "op", "root", "peer", "group", "sequence"),
    *("step", "asynchronous", "clock", "exposed_ns", "algorithm", "module"),
}


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
        shift = offsets.added_ns.get(rank, 0)
        events.append(_named_track("process_name", rank, f"rank {rank}"))
        tracks = _Tracks(rank, events)
        steps = traffic.steps.get(rank, ())
        plain = [
            *(("steps", f"step {number}", "step", span) for number, span in enumerate(steps)),
            *(("computing",) * 3 + (span,) for span in traffic.computing.get(rank, ())),
            *(
                (UNKNOWN_CALLS, UNKNOWN_CALLS, "communication", span)
                for span in traffic.apart.get(rank, ())
            ),
        ]
        for track, name, category, (start, end) in plain:
            thread = tracks.assign_thread(track, start, end)
            event = _complete_event(name, category, rank, start + shift, end - start, {})
            events.append({**event, "tid": thread})
        labels = group_labels(traffic.groups, (call.group for call in calls))
        spans = [(call.span, number, call) for number, call in enumerate(calls) if call.span]
        for (start, end), number, call in sorted(spans, key=lambda entry: entry[:2]):
            thread = tracks.assign_thread(f"group {one_line(labels[call.group])}", start, end)
            fields = {name: value for name, value in call.to_json().items() if name in _FIELDS}
            args = {
                **fields,
                "wait_ns": ledger.wait_ns(rank, number),
                "error_ns": offsets.error_ns.get(rank),
            }
            kept = {name: value for name, value in args.items() if value is not None}
            call_event = _complete_event(
                _call_text(call), "communication", rank, start + shift, end - start, kept, thread
            )
            events.append(call_event)
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
    """

    def __init__(self, process: int, events: list[dict[str, Any]]) -> None:
        self._process, self._events = process, events
        self._ends: dict[str, list[tuple[int, int]]] = {}  # name -> (thread, its last end)
        self._count = 0

    def assign_thread(self, name: str, start: int, end: int) -> int:
        """Returns a thread for the event; events must come in the order of their start."""
        threads = self._ends.setdefault(name, [])
        for index, (thread, last) in enumerate(threads):
            if last <= start:
                threads[index] = (thread, end)
                return thread
        self._count += 1
        threads.append((self._count, end))
        text = name if len(threads) == 1 else f"{name} ({len(threads)})"
        self._events.append(_named_track("thread_name", self._process, text, self._count))
        return self._count


def _named_track(kind: str, process: int, name: str, thread: int = 0) -> dict[str, Any]:
    """kind: ``process_name`` or ``thread_name``."""
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _complete_event(
    name: str,
    category: str,
    process: int,
    start_ns: float,
    time_ns: float,
    args: Mapping[str, Any],
    thread: int = 0,
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": start_ns / _US,
        "dur": time_ns / _US,
        "args": dict(args),
    }

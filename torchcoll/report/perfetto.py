"""The JSON object format of the Trace Event Format, which Perfetto and chrome://tracing show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_US = 1e3


def named_track(kind: str, process: int, name: str, thread: int = 0) -> dict[str, Any]:
    """kind: ``process_name`` or ``thread_name``."""
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def complete_event(
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


def trace_document(events: Sequence[Mapping[str, Any]], clocks: Sequence[str]) -> str:
    """clocks: how the times of the ranks were put together, a sentence each."""
    about = {"clocks": list(dict.fromkeys(clocks))}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about})

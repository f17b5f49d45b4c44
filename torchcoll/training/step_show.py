"""One step of a training: its tables and its records; and all steps as a trace for Perfetto."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TextIO

from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.traffic import Traffic, TrafficCall, Union
from torchcoll.core.units import format_ranges, format_size, format_time, time_text
from torchcoll.report.formats import Forms, picked, show_found
from torchcoll.report.grid import Grid, Head, filled
from torchcoll.report.perfetto import complete_event, named_track, trace_document
from torchcoll.training.clocks import Offsets
from torchcoll.training.joined import join_ranks
from torchcoll.training.late import cut_at_marks
from torchcoll.training.whole_step import (
    COMPUTING,
    EXPOSED,
    IDLE,
    UNTOLD,
    RankStep,
    WholeStep,
    step_offsets,
    wait_of,
)

STEP_SCHEMA = "torchcoll-step/1"
_FIGURES = (
    "computing + exposed + idle = the step, of each rank on its own clock; exposed: communication "
    "with no computation beside it; wait: what calls took longer than on the rank that came last, "
    "while none of the group was moving"
)
_UNTOLD = (
    "communicating: some call was in flight; wait: what calls took longer than on the rank that "
    "came last, while none of the group was moving"
)
_WAITED = "exposed: the program waited for every call, so that all of it is"
_LAST = "last: of all steady steps' calls those in which the rank came last; even: if all did alike"
_PATH = "path: its share of the critical path, from the end of the step back to its begin"


def show_step(found: WholeStep, format: str = "table", file: TextIO | None = None) -> None:
    """Print it. Raises UsageError for an unknown format."""
    show_found([Forms(_grids(found), _object(found))], format, file)


def step_title(found: WholeStep, brief: bool = False) -> str:
    """brief: the file without its folders."""
    who = f"{len(found.ranks)} of {found.world} ranks" if len(found.ranks) < found.world else ""
    which = f"step {found.number} of {found.total}" if found.marked else "one step, not marked"
    longest = max(one.step_ns for one in found.ranks)
    words = [one_line(found.source), who or f"{found.world} ranks", which]
    name = os.path.basename(found.traffic) if brief else found.traffic
    slowest = " (slowest rank)" * (len(found.ranks) > 1)
    return f"{one_line(name)}: {', '.join(words)}, {time_text(longest, 3)}{slowest}"


def answer_lines(found: WholeStep) -> list[str]:
    """What the step is made of, who came last, and the critical path."""
    lines = []
    total = sum(one.step_ns for one in found.ranks)
    if found.known and total:
        parts = {
            "computing": sum(one.computing_ns or 0 for one in found.ranks),
            "exposed communication": sum(one.exposed_ns or 0 for one in found.ranks),
            "idle": sum(one.idle_ns or 0 for one in found.ranks),
        }
        words = [f"{_percent(ns / total)} {name}" for name, ns in parts.items()]
        lines.append(f"{', '.join(words)} (of all ranks' time)")
    elif total:
        share = sum(one.communicating_ns for one in found.ranks) / total
        lines.append(f"{_percent(share)} communicating (of all ranks' time); the rest is not told")
    for one in found.ranks:
        if one.late:
            lines.append(f"rank {one.rank} came last most often in {one.late} steps")
    if found.path:
        names = {EXPOSED: "communication", IDLE: "idle", "": "not told (computation or idle)"}
        order = sorted(found.path.items(), key=lambda pair: -pair[1])
        words = [f"{_percent(share)} {names.get(kind, kind)}" for kind, share in order]
        longest = max(found.ranks, key=lambda one: one.path or 0)
        on = f"; {_percent(longest.path)} of it on rank {longest.rank}" * (len(found.ranks) > 1)
        lines.append(f"critical path: {', '.join(words)}{on}")
    return lines


def _grids(found: WholeStep) -> list[Grid]:
    above = [step_title(found), *answer_lines(found), _FIGURES if found.known else _UNTOLD]
    told = any(one.exposed_ns is not None for one in found.ranks)
    above += [_WAITED] * (told and not found.known)
    above += [_LAST] * any(one.last is not None for one in found.ranks)
    above += [_PATH] * (bool(found.path) and len(found.ranks) > 1)
    columns: list[tuple[Head, Callable[[RankStep], str]]] = [
        (Head("rank", repeat=True), lambda one: str(one.rank)),
        (Head("step"), lambda one: format_time(one.step_ns)),
        (Head("computing"), lambda one: format_time(one.computing_ns)),
        (Head("communicating", drop=1), lambda one: format_time(one.communicating_ns)),
        (Head("hidden", drop=2), lambda one: format_time(one.hidden_ns)),
        (Head("exposed"), lambda one: format_time(one.exposed_ns)),
        (Head("idle"), lambda one: format_time(one.idle_ns)),
        (Head("wait"), lambda one: format_time(one.wait_ns)),
        (Head("last"), lambda one: _percent(one.last)),
        (Head("even", drop=3), lambda one: _percent(one.even)),
        (Head("path"), lambda one: _percent(one.path) if len(found.ranks) > 1 else "-"),
    ]
    return [
        filled(columns, found.ranks, above),
        _group_grid(found),
        Grid([], [], below=[one_line(note) for note in found.notes]),
    ]


def _group_grid(found: WholeStep) -> Grid:
    """Communication by group, of the rank with most of it."""
    names = list(dict.fromkeys(c.call.group for one in found.ranks for c in one.calls))
    heads = [Head("group", left=True), Head("ranks", left=True), Head("calls"), Head("in flight")]
    heads += [Head("exposed")] * found.known
    rows = []
    for name in names:
        own = {one.rank: [c for c in one.calls if c.call.group == name] for one in found.ranks}
        flight, exposed = [], []
        for one in found.ranks:
            spans = [(max(c.start, one.start), min(c.end, one.end)) for c in own[one.rank]]
            union = Union(spans)
            computing = one.computing or []
            both = Union([*spans, *computing]).total - Union(computing).total
            flight.append(union.total)
            exposed.append(both)
        ranks = format_ranges(rank for rank, calls in own.items() if calls)
        calls = max(map(len, own.values()))
        cells = [one_line(found.groups.get(name) or name or "-"), ranks, str(calls)]
        cells += [format_time(max(flight)), *[format_time(max(exposed))] * found.known]
        rows.append(cells)
    above = ["communication by group: calls and times of the rank with most"]
    return Grid(heads, rows, above)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


_RANK = (
    "rank step_ns computing_ns communicating_ns hidden_ns exposed_ns idle_ns wait_ns "
    "came_last=last even late? path"
)


def _object(found: WholeStep) -> dict[str, Any]:
    names = {COMPUTING: COMPUTING, EXPOSED: "communication", IDLE: IDLE, "": "not_told"}
    return {
        "schema": STEP_SCHEMA,
        **picked(found, "traffic source step=number steps=total marked"),
        "critical_path": {names[kind]: share for kind, share in found.path.items()},
        "clocks": {
            **picked(found.offsets, "text problem? agree_ns"),
            "added_ns": {str(rank): ns for rank, ns in found.offsets.added_ns.items()},
            "error_ns": {str(rank): ns for rank, ns in found.offsets.error_ns.items()},
        },
        "notes": found.notes,
        "rows": [picked(one, _RANK) for one in found.ranks],
    }


# -------------------------------------------------------------------------------------------------
# All of a traffic for Perfetto.


def call_text(call: TrafficCall) -> str:
    size = call.bytes_in or call.bytes_out
    return one_line(f"{call.collective} {format_size(size)}" if size else call.collective)


def traffic_trace(traffic: Traffic) -> tuple[str, list[str]]:
    """The document, and what must be said of it. A process a rank: its steps, its computation and
    each group's calls, those that overlap below each other. Raises UsageError where no call tells
    when it ran.
    """
    offsets = step_offsets(traffic, None)
    traffic = cut_at_marks(traffic)
    if not any(call.span for calls in traffic.calls.values() for call in calls):
        raise UsageError("perfetto", "no call that tells when it ran", "a capture or a trace")
    joined, _ = join_ranks(traffic)
    events: list[dict[str, Any]] = []
    for rank, calls in traffic.calls.items():
        shift = offsets.added_ns.get(rank, 0)
        events.append(named_track("process_name", rank, f"rank {rank}"))
        tracks = _Tracks(rank, events)
        for number, (start, end) in enumerate(traffic.steps.get(rank, ())):
            place = tracks.of("steps", start, end)
            step = complete_event(f"step {number}", "step", rank, start + shift, end - start, {})
            events.append({**step, "tid": place})
        for start, end in traffic.computing.get(rank, ()):
            place = tracks.of("computing", start, end)
            busy = complete_event("computing", "computing", rank, start + shift, end - start, {})
            events.append({**busy, "tid": place})
        for start, end in traffic.apart.get(rank, ()):
            place = tracks.of(UNTOLD, start, end)
            untold = complete_event(UNTOLD, "communication", rank, start + shift, end - start, {})
            events.append({**untold, "tid": place})
        spans = [
            (call.span, number, call, one)
            for number, (call, one) in enumerate(zip(calls, joined[rank], strict=True))
            if call.span
        ]
        for (start, end), _, call, one in sorted(spans, key=lambda own: own[:2]):
            place = tracks.of(f"group {one_line(call.group)}", start, end)
            told = {name: value for name, value in call.to_json().items() if name in _TOLD}
            args = {**told, "wait_ns": wait_of(call, one), "error_ns": offsets.error_ns.get(rank)}
            kept = {name: value for name, value in args.items() if value is not None}
            made = complete_event(
                call_text(call), "communication", rank, start + shift, end - start, kept, place
            )
            events.append(made)
    clocks = list(filter(None, [_said(offsets)]))
    return trace_document(events, clocks), clocks


_TOLD = {
    *("collective", "bytes_in", "bytes_out", "dtype", "op", "root", "peer", "group", "sequence"),
    *("step", "asynchronous", "clock", "exposed_ns", "algorithm"),
}


def _said(offsets: Offsets) -> str:
    if offsets.problem:
        return f"{offsets.problem}; their events are right among themselves only"
    return offsets.text


class _Tracks:
    """Threads of a process, on each of which no two events overlap: Perfetto shows none that do."""

    def __init__(self, process: int, events: list[dict[str, Any]]) -> None:
        self._process, self._events = process, events
        self._ends: dict[str, list[tuple[int, int]]] = {}  # name -> (thread, its last end)
        self._count = 0

    def of(self, name: str, start: int, end: int) -> int:
        """A thread for the event; starts ascend."""
        own = self._ends.setdefault(name, [])
        for place, (thread, last) in enumerate(own):
            if last <= start:
                own[place] = (thread, end)
                return thread
        self._count += 1
        own.append((self._count, end))
        text = name if len(own) == 1 else f"{name} ({len(own)})"
        self._events.append(named_track("thread_name", self._process, text, self._count))
        return self._count

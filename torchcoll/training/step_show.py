"""One step of a training: its tables and its records."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TextIO

from torchcoll.core.errors import one_line
from torchcoll.core.intervals import Union
from torchcoll.core.traffic import TrafficCall
from torchcoll.core.units import format_ranges, format_size, format_time, time_text
from torchcoll.report.formats import Forms, picked, show_found
from torchcoll.report.grid import Grid, Head, filled
from torchcoll.training.whole_step import (
    COMPUTING,
    EXPOSED,
    IDLE,
    RankStep,
    WholeStep,
)

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
    names = {COMPUTING: COMPUTING, EXPOSED: "communication", IDLE: IDLE, "": "not_told"}
    thing = {
        "schema": "torchcoll-step/1",
        **picked(found, "traffic source step=number steps=total marked"),
        "critical_path": {names[kind]: share for kind, share in found.path.items()},
        "clocks": {
            **picked(found.offsets, "text problem? agree_ns"),
            "added_ns": {str(rank): ns for rank, ns in found.offsets.added_ns.items()},
            "error_ns": {str(rank): ns for rank, ns in found.offsets.error_ns.items()},
        },
        "notes": found.notes,
        "rows": [
            picked(
                rank,
                "rank step_ns computing_ns communicating_ns hidden_ns exposed_ns idle_ns wait_ns "
                "came_last=last even late? path",
            )
            for rank in found.ranks
        ],
    }
    show_found([Forms(_grids(found), thing)], format, file)


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
    # Communication by group, of the rank with most of it.
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
    by_group = ["communication by group: calls and times of the rank with most"]
    return [
        filled(columns, found.ranks, above),
        Grid(heads, rows, by_group),
        Grid([], [], below=[one_line(note) for note in found.notes]),
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def call_text(call: TrafficCall) -> str:
    size = call.bytes_in or call.bytes_out
    return one_line(f"{call.collective} {format_size(size)}" if size else call.collective)

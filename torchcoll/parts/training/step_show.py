"""Shows one step of a training as tables and as records."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TextIO

from torchcoll.core.errors import one_line
from torchcoll.core.intervals import Union
from torchcoll.core.traffic import TrafficCall
from torchcoll.core.units import format_ns, format_ranges, format_size, format_time
from torchcoll.parts.training.whole_step import (
    COMPUTING,
    EXPOSED,
    IDLE,
    RankStep,
    WholeStep,
)
from torchcoll.report.formats import Forms, print_results, select_fields
from torchcoll.report.grid import Grid, Head, make_grid

_FIGURES = (
    "computing + exposed + idle = the step, of each rank on its own clock; exposed: communication "
    "with no computation running meanwhile; wait: how much longer a call took than on the rank "
    "that came last, while no rank of the group was moving data"
)
_FIGURES_WITHOUT_COMPUTATION = (
    "communicating: some call was in flight; wait: what calls took longer than on the rank that "
    "came last, while none of the group was moving"
)
_ALL_EXPOSED_TEXT = "exposed: the program waited for every call, so that all of it is"
_LAST_TEXT = (
    "last: of all steady steps' calls those in which the rank came last; even: if all did alike; "
    "caused: the waiting of all other ranks in these calls"
)
_PATH_TEXT = "path: its share of the critical path, from the end of the step back to its begin"


def show_step(step: WholeStep, format: str = "table", file: TextIO | None = None) -> None:
    """Prints the step. Raises UsageError for an unknown format."""
    names = {COMPUTING: COMPUTING, EXPOSED: "communication", IDLE: IDLE, "": "not_told"}
    document = {
        "schema": "torchcoll-step/1",
        **select_fields(step, "traffic source step=number steps=total marked"),
        "critical_path": {names[kind]: share for kind, share in step.path.items()},
        "clocks": {
            **select_fields(step.offsets, "text problem? agree_ns"),
            "added_ns": {str(rank): ns for rank, ns in step.offsets.added_ns.items()},
            "error_ns": {str(rank): ns for rank, ns in step.offsets.error_ns.items()},
        },
        "notes": step.notes,
        "rows": [
            select_fields(
                rank,
                "rank step_ns computing_ns communicating_ns hidden_ns exposed_ns idle_ns wait_ns "
                "came_last=last even caused_ns path",
            )
            for rank in step.ranks
        ],
        "late_ranks": [row.rank for row in step.arrivals.late] if step.arrivals else None,
    }
    print_results([Forms(_grids(step), document)], format, file)


def step_title(step: WholeStep, brief: bool = False) -> str:
    """Returns the title of the step.

    - brief: name the file without its folders.
    """
    who = f"{len(step.ranks)} of {step.world} ranks" if len(step.ranks) < step.world else ""
    which = f"step {step.number} of {step.total}" if step.marked else "one step, not marked"
    longest = max(rank.step_ns for rank in step.ranks)
    facts = [one_line(step.source), who or f"{step.world} ranks", which]
    name = os.path.basename(step.traffic) if brief else step.traffic
    slowest = " (slowest rank)" * (len(step.ranks) > 1)
    return f"{one_line(name)}: {', '.join(facts)}, {format_ns(longest, 3)}{slowest}"


def answer_lines(step: WholeStep) -> list[str]:
    """Returns sentences on what the step consists of, who came last, and the critical path."""
    lines = []
    total = sum(rank.step_ns for rank in step.ranks)
    if step.computation_known and total:
        times_ns = {
            "computing": sum(rank.computing_ns or 0 for rank in step.ranks),
            "exposed communication": sum(rank.exposed_ns or 0 for rank in step.ranks),
            "idle": sum(rank.idle_ns or 0 for rank in step.ranks),
        }
        shares = [f"{_percent(ns / total)} {name}" for name, ns in times_ns.items()]
        lines.append(f"{', '.join(shares)} (of all ranks' time)")
    elif total:
        share = sum(rank.communicating_ns for rank in step.ranks) / total
        lines.append(f"{_percent(share)} communicating (of all ranks' time); the rest is unknown")
    if step.arrivals and step.arrivals.late:
        lines.append(one_line(step.arrivals.answer))
    if step.path:
        names = {EXPOSED: "communication", IDLE: "idle", "": "unknown (computation or idle)"}
        order = sorted(step.path.items(), key=lambda pair: -pair[1])
        shares = [f"{_percent(share)} {names.get(kind, kind)}" for kind, share in order]
        longest = max(step.ranks, key=lambda rank: rank.path or 0)
        suffix = f"; {_percent(longest.path)} of it on rank {longest.rank}" * (len(step.ranks) > 1)
        lines.append(f"critical path: {', '.join(shares)}{suffix}")
    return lines


def _grids(step: WholeStep) -> list[Grid]:
    above = [
        step_title(step),
        *answer_lines(step),
        _FIGURES if step.computation_known else _FIGURES_WITHOUT_COMPUTATION,
    ]
    exposed_known = any(row.exposed_ns is not None for row in step.ranks)
    above += [_ALL_EXPOSED_TEXT] * (exposed_known and not step.computation_known)
    above += [_LAST_TEXT] * any(row.last is not None for row in step.ranks)
    above += [_PATH_TEXT] * (bool(step.path) and len(step.ranks) > 1)
    columns: list[tuple[Head, Callable[[RankStep], str]]] = [
        (Head("rank", repeat=True), lambda row: str(row.rank)),
        (Head("step"), lambda row: format_time(row.step_ns)),
        (Head("computing"), lambda row: format_time(row.computing_ns)),
        (Head("communicating", drop=1), lambda row: format_time(row.communicating_ns)),
        (Head("hidden", drop=2), lambda row: format_time(row.hidden_ns)),
        (Head("exposed"), lambda row: format_time(row.exposed_ns)),
        (Head("idle"), lambda row: format_time(row.idle_ns)),
        (Head("wait"), lambda row: format_time(row.wait_ns)),
        (Head("last"), lambda row: _percent(row.last)),
        (Head("even", drop=3), lambda row: _percent(row.even)),
        (Head("caused", drop=4), lambda row: format_time(row.caused_ns)),
        (Head("path"), lambda row: _percent(row.path) if len(step.ranks) > 1 else "-"),
    ]
    # Communication by group, on the rank with the most of it.
    names = list(dict.fromkeys(c.call.group for row in step.ranks for c in row.calls))
    heads = [Head("group", left=True), Head("ranks", left=True), Head("calls"), Head("in flight")]
    heads += [Head("exposed")] * step.computation_known
    rows = []
    for name in names:
        calls_by_rank = {
            row.rank: [c for c in row.calls if c.call.group == name] for row in step.ranks
        }
        flight, exposed = [], []
        for row in step.ranks:
            spans = [
                (max(c.start, row.start), min(c.end, row.end)) for c in calls_by_rank[row.rank]
            ]
            union = Union(spans)
            computing = row.computing or []
            exposed_ns = Union([*spans, *computing]).total - Union(computing).total
            flight.append(union.total)
            exposed.append(exposed_ns)
        ranks = format_ranges(rank for rank, calls in calls_by_rank.items() if calls)
        calls = max(map(len, calls_by_rank.values()))
        cells = [one_line(step.groups.get(name) or name or "-"), ranks, str(calls)]
        cells += [format_time(max(flight)), *[format_time(max(exposed))] * step.computation_known]
        rows.append(cells)
    by_group = ["communication by group: calls and times of the rank with most"]
    return [
        make_grid(columns, step.ranks, above),
        Grid(heads, rows, by_group),
        Grid([], [], below=[one_line(note) for note in step.notes]),
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def call_text(call: TrafficCall) -> str:
    """Returns for example ``all_gather 1M layers.3``."""
    size = call.bytes_in or call.bytes_out
    texts = (call.collective, format_size(size) if size else "", call.module)
    return one_line(" ".join(filter(None, texts)))

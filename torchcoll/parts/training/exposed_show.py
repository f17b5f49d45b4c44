"""Shows the exposed communication of a step, and the modules whose parameters it moves."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchcoll.core.errors import one_line
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import format_bytes, format_ns, format_share, format_time
from torchcoll.parts.training.exposed import Exposed, ModuleRow
from torchcoll.report.grid import Grid, Head, make_grid

MOST_ROWS = 10
_EXPOSED = (
    "exposed: the call is in flight and the rank does nothing else (in a capture: the program "
    "waits for the call); each row is for the rank on which it takes longest"
)


def exposed_line(exposed: Exposed) -> str:
    """Returns a sentence on how much of a step is exposed; '' if a call does not tell it."""
    if exposed.total_ns is None or exposed.share is None or exposed.unknown:
        return ""
    text = f"exposed: {format_ns(exposed.total_ns, 3)} a step, {format_share(exposed.share)} of it"
    text += " (rank with most)"
    if most := exposed.most:
        text += f"; most for the {one_line(most.text)}: {format_ns(most.exposed_ns or 0, 3)}"
    return text


def exposed_object(exposed: Exposed, traffic: Traffic) -> dict[str, Any]:
    """Returns the members of a JSON document: the total, and all modules with their parameters."""
    modules = [
        {**dataclasses.asdict(row), "parameters": list(traffic.parameters.get(row.module, ()))}
        for row in exposed.modules
    ]
    total = {"total_ns": exposed.total_ns, "share": exposed.share, "unknown": exposed.unknown}
    return {"exposed": total, "modules": modules}


def module_grids(exposed: Exposed) -> list[Grid]:
    """Returns the table of modules, those with most exposed or sent first; [] without modules."""
    if not exposed.modules:
        return []

    def order(row: ModuleRow) -> tuple[float, ...]:
        return row.exposed_ns or 0, row.time_per_step_ns or 0, row.bytes_per_step

    rows = sorted(exposed.modules, key=order, reverse=True)
    more = len(rows) - MOST_ROWS
    below = [f"{more} more, with less: --format json has all of them"] if more > 0 else []
    grid = make_grid(
        [
            (Head("module", left=True, repeat=True), lambda row: one_line(row.module)),
            (Head("collective", left=True), lambda row: one_line(row.collective)),
            (Head("calls", "a step", drop=2), lambda row: f"{row.calls_per_step:.3g}"),
            (Head("bytes", "a step", drop=1), lambda row: format_bytes(row.bytes_per_step)),
            (Head("time", "a step"), lambda row: format_time(row.time_per_step_ns)),
            (
                Head("exposed", "a step", legend=_EXPOSED),
                lambda row: format_time(row.exposed_ns),
            ),
            (Head("share", "of step"), lambda row: format_share(row.share)),
        ],
        rows[:MOST_ROWS],
        above=["by module: whose parameters or gradients the calls move"],
    )
    grid.below = [*grid.below, *below]
    return [grid]

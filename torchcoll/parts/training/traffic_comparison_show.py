"""Shows two captures side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_digits, format_size, format_time
from torchcoll.parts.training.traffic_comparison import (
    CapturedSide,
    ComparedCalls,
    TrafficComparison,
)
from torchcoll.parts.training.traffic_show import arrivals_object
from torchcoll.report.formats import Forms, print_results, select_fields
from torchcoll.report.grid import Grid, Head

_LEGEND = (
    "time: the call's time on its slowest rank; waiting: the longest time that a rank of the call "
    "waited for the last rank; both are summed over a step, then the median over the steps"
)
_FIGURES = ("calls_per_step", "bytes_per_step", "time_per_step_ns", "wait_per_step_ns")


def show_traffic_comparisons(
    comparisons: Sequence[TrafficComparison], format: str = "table", file: TextIO | None = None
) -> None:
    """Prints the comparisons. Raises UsageError for an unknown format."""
    print_results([_forms(comparison) for comparison in comparisons], format, file)


def _forms(comparison: TrafficComparison) -> Forms:
    sides = (comparison.base, comparison.new)
    names = [one_line(side.name) for side in sides]
    heads = [Head("collective", left=True, repeat=True), Head("bytes", "in", repeat=True)]
    heads += [Head("calls", name, drop=1) for name in names]
    heads += [Head("time", name, legend=_LEGEND) for name in names]
    heads += [Head("ratio"), *(Head("waiting", name) for name in names)]
    cells = []
    for compared in comparison.rows:
        row, rows = compared.row, (compared.base, compared.new)
        cells.append(
            [
                one_line(" ".join(filter(None, (row.collective, row.dtype, row.op)))),
                "varies" if row.bytes_in is None else format_size(row.bytes_in),
                *("-" if each is None else format_digits(each.calls_per_step, 4) for each in rows),
                *(format_time(each.time_per_step_ns if each else None) for each in rows),
                "-" if compared.ratio is None else format_digits(compared.ratio),
                *(format_time(each.wait_per_step_ns if each else None) for each in rows),
            ]
        )
    above = [
        f"{name}: {one_line(side.path)}, {counted(side.ranks, 'rank')}, "
        f"{counted(side.steps, 'steady step')}"
        for name, side in zip(names, sides, strict=True)
    ]
    below = [one_line(note) for note in comparison.notes]
    grids = [
        Grid(heads, cells, above, [] if cells else ["no calls"]),
        Grid([], [], below=below, answer=comparison.answer),
    ]
    document = {
        "schema": "torchcoll-traffic-comparison/1",
        **{name: _side_object(getattr(comparison, name)) for name in ("base", "new")},
        "sent_alike": comparison.sent_alike,
        "notes": comparison.notes,
        "rows": [_record(compared) for compared in comparison.rows],
    }
    return Forms(grids, document)


def _side_object(side: CapturedSide) -> dict[str, Any]:
    facts = select_fields(side, "name path ranks steps step_ns calls sent_bytes wait_ns")
    return {**facts, "arrivals": arrivals_object(side.arrivals) if side.arrivals else None}


def _record(compared: ComparedCalls) -> dict[str, Any]:
    common = "collective bytes_in bytes_out dtype op group_ranks groups"
    record = select_fields(compared.row, common)
    for name, side in (("base", compared.base), ("new", compared.new)):
        for figure in _FIGURES:
            record[f"{name}_{figure}"] = getattr(side, figure) if side else None
    return {**record, "ratio": compared.ratio, "sent_alike": compared.sent_alike}

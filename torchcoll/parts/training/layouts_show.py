"""Shows layouts of a model side by side: the answer, and a row per layout."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.answer import Answer
from torchcoll.core.errors import ExitCode, UsageError, one_line
from torchcoll.core.units import counted, format_ns, shorten
from torchcoll.parts.curves.predictor import Ends
from torchcoll.parts.training.config_projection import (
    LayoutComparison,
    LayoutRow,
)
from torchcoll.parts.training.plan_charts import TIGHT_MEANS, layouts_charts
from torchcoll.parts.training.plan_show import flat_ends, format_gigabytes
from torchcoll.parts.training.projection import TIGHT, TOO_LARGE
from torchcoll.parts.training.saved_layouts import SCHEMA, read_layouts
from torchcoll.report.formats import Forms, print_results
from torchcoll.report.grid import Grid, Head, make_grid
from torchcoll.report.notes import first_notes
from torchcoll.report.page import Section, TitledGrids

if TYPE_CHECKING:
    from torchcoll.report.chart import Chart

_BATCH = (
    "batch: MICROBATCHESxSEQUENCESxTOKENS of a data-parallel rank, the fastest micro-batches that "
    "fit"
)
MOST_ROWS, _BEST = 10, 3
_SENT = "sent: with the algorithm of a ring"
_IDLE = "idle: waiting for other stages of the pipeline"


def show_layouts(
    comparisons: Sequence[LayoutComparison],
    format: str = "table",
    file: TextIO | None = None,
    verbose: bool = False,
) -> None:
    """Prints the comparisons; verbose: with all notes. Raises UsageError for an unknown format."""
    print_results([_forms(comparison, verbose) for comparison in comparisons], format, file)


def show_saved(options: argparse.Namespace) -> ExitCode:
    """Shows files of compared layouts."""
    for name in ("filter", "view", "columns", "explain"):
        if value := getattr(options, name):
            raise UsageError(name, value, "result files with it, not layouts")
    show_layouts([read_layouts(path) for path in options.files], options.format)
    return ExitCode.OK


def saved_sections(arguments: Sequence[str]) -> dict[str, tuple[Section, list[Chart]]]:
    """Returns the section and the charts of each file of compared layouts."""
    sections = {}
    for argument in arguments:
        comparison = read_layouts(argument)
        section = Section(
            f"Layouts on {counted(comparison.ranks, 'rank')}",
            commands=[f"torchcoll show {shlex.quote(argument)}"],
            tables=[TitledGrids("", [*_forms(comparison, verbose=False).grids])],
        )
        sections[argument] = section, layouts_charts(comparison)
    return sections


def _forms(comparison: LayoutComparison, verbose: bool) -> Forms:
    source = f", by {comparison.machine}" if comparison.machine else ""
    heading = Grid([], [], above=[one_line(f"{comparison.what}{source}")])
    shown_notes = map(one_line, first_notes(comparison.notes, verbose))
    notes = Grid([], [], below=list(shown_notes), answer=layouts_answer(comparison))
    rows = [_json_row(row) for row in comparison.rows]
    document = {
        "schema": SCHEMA,
        "what": comparison.what,
        "ranks": comparison.ranks,
        "machine": comparison.machine or None,
        "memory_bytes": comparison.memory_bytes,
        "rows": rows,
        "launch": comparison.launch,
        "notes": comparison.notes,
    }
    count, shown, kinds = len(comparison.rows), comparison.rows, ""
    if comparison.launch:
        shown = comparison.best_of_kinds[:MOST_ROWS]
        named = [row for row in comparison.rows if row.layout.name in comparison.launch]
        shown += [row for row in named if row not in shown]
        kinds = "each the best of its kind (data parallelism, with or without tp, pp, cp, ep)"
    table, further = _table(shown, comparison.memory_bytes), []
    if len(shown) < count:
        table.below.append(f"{len(shown)} of {count} layouts, {kinds}; --format json has all")
    if comparison.launch:
        lines = [f"{layout}: {flags}" for layout, flags in comparison.launch.items()]
        further.append(Grid([], [], above=["the best layouts, to launch:", *lines]))
    return Forms([heading, table, *further, notes], document, rows)


def layouts_answer(comparison: LayoutComparison) -> Answer:
    best, limit = comparison.rows[0], comparison.memory_bytes
    if best.fits == TOO_LARGE:
        assert limit is not None
        least = min(comparison.rows, key=lambda row: row.memory_bytes)
        return Answer(
            one_line(
                f"no layout fits {format_gigabytes(limit)} of memory on "
                f"{counted(comparison.ranks, 'rank')}: {least.layout.name} needs least, "
                f"{format_gigabytes(least.memory_bytes)}"
            ),
            "doubt",
            details=tuple(map(one_line, comparison.left_out)),
            next_step=_would_fit(least, limit),
        )
    step = best.step
    what = "is predicted fastest" if step.step_ns else "sends least"
    if step.comm_ns and not step.step_ns:
        what = "is predicted to communicate shortest"
    if any(row.fits == TIGHT and row.cost < best.cost for row in comparison.rows):
        what += " of those that surely fit"
    count, ranks = counted(len(comparison.rows), "layout"), counted(comparison.ranks, "rank")
    text = f"of {count} on {ranks} {best.layout.name} {what} ({_cost(best, limit)})"
    simplest, details = comparison.simplest, []
    good = "as fast" if step.step_ns else "as short"
    if simplest is not best:
        text = f"{simplest.layout.name} is as good as any of {count} on {ranks} "
        percent = 100 * (1 - best.cost / simplest.cost)
        less = "less than 1" if percent < 1 else f"{percent:.0f}"
        text += f"({_cost(simplest, limit)}): {best.layout.name} {what}, by {less} %, within the "
        text += "error of the plan"
    alike = comparison.alike
    kinds = comparison.best_of_kinds if comparison.launch else alike
    others = [
        f"{row.layout.name} ({_ratio(row, best)})"
        for row in kinds
        if row in alike and row not in (best, simplest)
    ]
    if others:
        details.append(f"{shorten(others, _BEST)} may be {good}")
    large = [
        f"{row.layout.name} ({format_gigabytes(row.memory_bytes)})"
        for row in comparison.rows
        if row.fits == TOO_LARGE
    ]
    details += comparison.left_out
    if large:
        verb = "does" if len(large) == 1 else "do"
        details.append(f"{shorten(large, _BEST)} {verb} not fit")
    return Answer(one_line(text), details=tuple(map(one_line, details)))


def _would_fit(row: LayoutRow, limit: float) -> str:
    """Returns what would make the layout that needs least fit: by its largest part."""
    memory = row.step.memory
    assert memory is not None
    if memory.activations + memory.peak > memory.total / 2:
        hint = "" if row.layout.checkpoint else " and ckpt in the layout"
        return f"activations need most of it: try more micro-batches of fewer sequences{hint}"
    times = math.ceil(memory.total / limit)
    split = "tp, pp or ep" if row.layout.sharded else "fsdp"
    return f"parameters and their states need most of it: try {split}, or {times} times the ranks"


def _cost(row: LayoutRow, limit: float | None) -> str:
    times = row.step.step_ns or row.step.comm_ns
    cost = format_ns(times[0], 3) if times else f"{format_gigabytes(row.step.sent_bytes)} sent"
    tight = f", tight in {format_gigabytes(limit)}" if limit and row.fits == TIGHT else ""
    return f"{cost}, {format_gigabytes(row.memory_bytes)} of memory{tight}"


def _table(rows: Sequence[LayoutRow], limit: float | None) -> Grid:
    """Returns the table.

    - limit: bytes of memory; with a column for what does not fit. None: no limit.
    """

    def time(name: str) -> Any:
        def cell(row: LayoutRow) -> str:
            ends: Ends | None = getattr(row.step, name)
            return "-" if ends is None else format_ns(ends[0], 3)

        return cell

    def interval(row: LayoutRow) -> str:
        ends = row.step.step_ns or row.step.comm_ns
        return "-" if ends is None else f"{format_ns(ends[1], 3)} to {format_ns(ends[2], 3)}"

    def mfu(row: LayoutRow) -> str:
        return "-" if row.step.mfu is None else f"{100 * row.step.mfu:.0f} %"

    def speed(row: LayoutRow) -> str:
        return "-" if row.step.tokens_per_s is None else f"{row.step.tokens_per_s:,.0f}"

    def idle(row: LayoutRow) -> str:
        return format_ns(row.step.idle_ns, 3) if row.step.step_ns else "-"

    comm = (Head("comm", drop=4), time("comm_ns"))
    computed = any(row.step.step_ns for row in rows)
    doubtful = any(row.fits == TIGHT for row in rows)
    return make_grid(
        [
            (Head("layout", left=True), lambda row: row.layout.name),
            (Head("step"), time("step_ns")) if computed else (Head("comm"), comm[1]),
            (Head("ratio"), lambda row: _ratio(row, rows[0])),
            (Head("low to high", drop=3), interval),
            (Head("MFU", legend="MFU: the model's operations / the GPU's peak"), mfu),
            (Head("tokens/s", "a GPU", drop=1), speed),
            (Head("memory"), lambda row: format_gigabytes(row.memory_bytes)),
            (Head("fits", legend=TIGHT_MEANS * doubtful), lambda row: row.fits if limit else "-"),
            (Head("batch", legend=_BATCH), lambda row: _batch(row) if limit else "-"),
            (Head("calls", drop=5), lambda row: f"{row.step.calls:,}"),
            (Head("sent", drop=4, legend=_SENT), lambda row: format_gigabytes(row.step.sent_bytes)),
            *([comm] if computed else []),
            (Head("exposed", drop=2), time("exposed_ns")),
            (Head("idle", drop=5, legend=_IDLE), idle),
        ],
        rows,
        above=["Times, bytes and memory are those of one rank in a step."],
    )


def _ratio(row: LayoutRow, best: LayoutRow) -> str:
    return f"{row.cost / best.cost:.2f}x" if best.cost else "-"


def _batch(row: LayoutRow) -> str:
    return f"{row.batch.micro_batches}x{row.batch.sequences}x{row.batch.tokens:g}"


def _json_row(row: LayoutRow) -> dict[str, Any]:
    step = row.step

    return {
        "layout": row.layout.name,
        "batch": _batch(row),
        "fits": row.fits,
        "mfu": step.mfu,
        "tokens_per_s": step.tokens_per_s,
        "calls": step.calls,
        "sent_bytes": step.sent_bytes,
        **flat_ends("comm", step.comm_ns),
        **flat_ends("exposed", step.exposed_ns),
        **flat_ends("step", step.step_ns),
        **flat_ends("at_rate", step.at_rate_ns),
        "idle_ns": step.idle_ns,
        "memory_bytes": row.memory_bytes,
        "compute": vars(step.compute) if step.compute else None,
        "memory": vars(step.memory) if step.memory else None,
    }

"""The table of a run, and ``show``, which prints it in every form."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any, TextIO

from torchcoll.core.errors import UsageError
from torchcoll.core.records import load_all
from torchcoll.core.result import Run
from torchcoll.report.columns import Column, Entry, columns_for, named_columns, values_of
from torchcoll.report.grid import Grid, print_grid
from torchcoll.report.header import asked_cases, first_lines, header_lines
from torchcoll.report.notes import Notes, run_lines
from torchcoll.report.output import Output, one_line
from torchcoll.report.view import FORMATS, METRICS, View, choice, texts_of

Source = Run | str | os.PathLike[str]
_RUNS = (Run, str, os.PathLike)


def table_grid(run: Run, view: View | None = None) -> Grid:
    """The table of one run: header lines, one row a case, footnotes."""
    view = view or View()
    notes = Notes()
    entries = view.entries(run, notes)
    rows = [entry.row for entry in entries]
    columns = named_columns(view.columns) if view.columns else columns_for(rows)
    keys = {column.key for column in columns}
    columns = with_percentiles(columns, view.extra_columns())
    how, clocks = view.over_ranks, values_of(rows, "clock")
    above = header_lines(run, rows or asked_cases(run), how, clocks)
    return Grid(
        heads=[column.head for column in columns],
        rows=[[column.cell(entry) for column in columns] for entry in entries],
        above=above + first_lines(run, how),
        below=(notes.lines() if "verified" in keys else [])
        + ([] if rows else ["no case has ended"])
        + run_lines(run, rows, "first_call_ns" in keys)
        + clock_lines(entries, view.clock),
        styles=[row_style(entry) for entry in entries],
    )


def with_percentiles(columns: Sequence[Column], extra: Sequence[Column]) -> list[Column]:
    """The chosen percentiles stand with the other times, before the number of calls."""
    place = next((i for i, column in enumerate(columns) if column.key == "calls"), len(columns))
    return [*columns[:place], *extra, *columns[place:]]


def row_style(entry: Entry) -> str:
    return {"ok": "", "unsupported": "dim", "skipped": "dim"}.get(entry.row.status, "red")


def clock_lines(entries: Sequence[Entry], clock: str | None) -> list[str]:
    """Says how many cases were not read on the clock that was asked for."""
    ran = [entry for entry in entries if entry.result.time_ns]
    without = sum(clock not in entry.result.time_ns for entry in ran) if clock else 0
    return [f"{without} of {len(ran)} cases have no {clock} clock"] if without else []


def show(
    *sources: Source | Any,
    format: str = "table",
    columns: str | Sequence[str] | None = None,
    percentiles: str | Sequence[float] | None = None,
    over_ranks: str = "max",
    clock: str | None = None,
    pivot: str | None = None,
    metric: str | None = None,
    per_rank: bool = False,
    calls: bool = False,
    file: TextIO | None = None,
) -> None:
    """Print runs, the result files at these paths, or what ``compare`` or ``cold`` found.

    format: table, markdown, csv, json, nccl-tests. columns: names of Row fields, or ``all``.
    percentiles: further columns, such as ``50,90,99.9``. over_ranks: max (the completion of a
    call), mean, min, rank0. clock: host, device, issue; None: each case's default. pivot: sizes
    down and one column for each collective, ranks, backend, ... or ``label=KEY``, showing metric
    (busbw, algbw, time). per_rank: each rank's own times. calls: every call in order; both are long
    tables in csv and json. Raises UsageError for choices that do not exist or do not go together,
    UnreadableError for a file.
    """
    if sources and not isinstance(sources[0], _RUNS):
        _show_found([one for one in sources if not isinstance(one, _RUNS)], format, file)
        return
    choice(format, "format", FORMATS)
    if metric is not None:
        choice(metric, "metric", METRICS)
    view = View(texts_of(columns), texts_of(percentiles), over_ranks, clock)
    chosen = [n for n, on in (("pivot", pivot), ("per-rank", per_rank), ("calls", calls)) if on]
    if len(chosen) > 1:
        raise UsageError("view", " and ".join(chosen), "one of pivot, per-rank, calls")
    _check_together(view, format, chosen[0] if chosen else "", metric)
    if not sources:
        raise UsageError("show", "no file", "at least one result file")
    runs = load_all(sources)
    out = Output(file)
    if format in ("table", "markdown"):
        titled = _titled_grids(runs, view, pivot, metric or "busbw", per_rank, calls)
        print_grids(titled, format, out)
    elif format in ("csv", "json"):
        out.write(_machine_text(runs, view, format, per_rank, calls))
    else:
        from torchcoll.report.nccl_tests import run_text

        for run in runs:
            out.write(run_text(run, view))
    out.flush()


# What is no run: its type -> the module of this room that shows it, and the function. By name:
# importing a type of analysis would load numpy for everyone.
_OTHERS = {
    "Algorithms": ("algorithms", "show_algorithms"),
    "Cold": ("cold", "show_cold"),
    "Comparison": ("compare", "show_comparisons"),
    "Scaling": ("scaling", "show_scaling"),
    "Transitions": ("transitions", "show_transitions"),
}


def _show_found(found: Sequence[Any], format: str, file: TextIO | None) -> None:
    """What ``compare``, ``cold`` and others return."""
    kinds = list(dict.fromkeys(type(one).__name__ for one in found))
    if len(kinds) > 1 or kinds[0] not in _OTHERS:
        raise UsageError(
            "show", " and ".join(kinds), f"runs, files, or one of {', '.join(_OTHERS)}"
        )
    module, name = _OTHERS[kinds[0]]
    getattr(importlib.import_module(f"torchcoll.report.{module}"), name)(found, format, file)


def _check_together(view: View, format: str, chosen: str, metric: str | None) -> None:
    """Refuses what would have no effect."""
    # --per-rank and --calls are long tables for machines too.
    formats = {"": FORMATS, "pivot": FORMATS[:2]}.get(chosen, FORMATS[:4])
    if format not in formats:
        raise UsageError("format", format, f"one of {', '.join(formats)} with --{chosen}")
    if metric and chosen != "pivot":
        raise UsageError("metric", metric, "--pivot beside it", "A table has --columns.")
    where = f"--{chosen}" if chosen else "--format nccl-tests" if format == "nccl-tests" else ""
    if where and view.columns:
        raise UsageError("columns", ",".join(view.columns), f"none with {where}")
    if where and view.percentiles:
        percentiles = ",".join(f"{p:g}" for p in view.percentiles)
        raise UsageError("percentiles", percentiles, f"none with {where}")
    each = chosen == "per-rank" or (chosen == "calls" and format in ("csv", "json"))
    if each and view.over_ranks != "max":
        raise UsageError("over-ranks", view.over_ranks, f"none with {where}: ranks stay apart")


def _machine_text(runs: Sequence[Run], view: View, format: str, per_rank: bool, calls: bool) -> str:
    from torchcoll.report.cases import CALLS, RANKS
    from torchcoll.report.csv import csv_text
    from torchcoll.report.json import ROWS, json_text

    records = RANKS if per_rank else CALLS if calls else ROWS
    return (csv_text if format == "csv" else json_text)(runs, view, records)


def _titled_grids(
    runs: Sequence[Run],
    view: View,
    pivot: str | None,
    metric: str,
    per_rank: bool,
    calls: bool,
) -> list[tuple[str, list[Grid]]]:
    """The tables to print, under the path of the file that they come from."""
    if pivot:
        from torchcoll.report.pivot import pivot_grids

        return [("", pivot_grids(runs, view, pivot, metric))]
    from torchcoll.report.cases import calls_grids, per_rank_grids

    make = per_rank_grids if per_rank else calls_grids if calls else lambda r, v: [table_grid(r, v)]
    return [(_title(run) if len(runs) > 1 else "", make(run, view)) for run in runs]


def _title(run: Run) -> str:
    return one_line(run.path or run.header.get("run_id") or "run")


def print_grids(titled: Sequence[tuple[str, list[Grid]]], format: str, out: Output) -> None:
    """Tables one below the other, each group below its title, as text or markdown."""
    from torchcoll.report.markdown import markdown_text

    between = ""
    for title, grids in titled:
        if title:
            out.write(between + (f"## {title}\n\n" if format == "markdown" else f"{title}\n"))
            between = ""
        for grid in grids:
            if not (grid.above or grid.rows or grid.below):
                continue
            out.write(between)
            between = "\n"
            if format == "markdown":
                out.write(markdown_text(grid))
            else:
                print_grid(grid, out)

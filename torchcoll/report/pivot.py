"""Sizes down, one column for each collective, backend, number of ranks, label, ...

This is the table that people publish, so nothing is mixed silently: whatever else varies within a
column makes a table of its own, launches of the same case are read as their median and counted,
and what differs between the environments of the files is named below.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UsageError
from torchcoll.core.facts import facts_of
from torchcoll.core.result import Run
from torchcoll.core.summary import Row, median
from torchcoll.core.units import format_bandwidth, format_size, format_time
from torchcoll.report.columns import DIMENSIONS, values_of
from torchcoll.report.grid import Grid, Head
from torchcoll.report.header import NOT_ALIGNED, header_lines, what_text
from torchcoll.report.notes import differences, launch_lines, problems_of, row_lines
from torchcoll.report.output import one_line
from torchcoll.report.view import View

KEYS = (*DIMENSIONS, "label", "label=KEY", "file")
_METRICS = {
    "time": ("median_ns", "median time"),
    "algbw": ("algbw_gbps", "algbw in GB/s"),
    "busbw": ("busbw_gbps", "busbw in GB/s"),
}


@dataclass(frozen=True)
class _Point:
    column: str
    row: Row


def pivot_grids(runs: Sequence[Run], view: View, key: str, metric: str) -> list[Grid]:
    """One table for each combination of what else varies. Raises UsageError for an unknown key."""
    _check_key(runs, key)
    points = [
        _Point(_column(run, row, key), row)
        for run in runs
        for row in (entry.row for entry in view.entries(run))
    ]
    above = [*_what_ran(runs, points), *_read_as(points, view)]
    points, silent = _with_figures(points, metric)
    hidden = [name for name in DIMENSIONS if name != key and _varies(points, name)]
    grids = []
    for group in _groups(points, hidden):
        within = [p for p in points if all(_same(p.row, n, v) for n, v in group.items())]
        grids.append(_grid(within, key, metric, group))
    below = [*silent, *_between(points, key, hidden), *row_lines(_rows(points), False)]
    below += dict.fromkeys(_launch_lines(runs))
    differ = differences([facts_of(run) for run in runs])
    below += [f"differs between the files: {differ}"] if differ else []
    return [Grid([], [], above=above), *grids, Grid([], [], below=below)]


def _with_figures(points: Sequence[_Point], metric: str) -> tuple[list[_Point], list[str]]:
    """Without what has no bandwidth by nature, and the line that says so."""
    kept = [p for p in points if metric == "time" or COLLECTIVES[p.row.collective].has_data]
    left = len(points) - len(kept)
    return kept, ["barrier has no bandwidth and is left out (--metric time)"] if left else []


def _between(points: Sequence[_Point], key: str, hidden: Sequence[str]) -> list[str]:
    """What differs from column to column beside the key: they may not be alike otherwise."""
    words = []
    for name in DIMENSIONS:
        values = values_of(_rows(points), name)
        if name not in (key, *hidden) and len(values) > 1:
            words.append(f"{name} ({', '.join(_text(name, value) for value in values)})")
    return [f"differs between the columns: {'; '.join(words)}"] if words else []


def _text(name: str, value: Any) -> str:
    """A value of a dimension for people."""
    if name == "in_place":
        return "in place" if value else "out of place"
    return one_line(value)


def _what_ran(runs: Sequence[Run], points: Sequence[_Point]) -> list[str]:
    """Which collectives, backends and ranks; one run says it as its own table does."""
    rows = _rows(points)
    if len(runs) == 1:
        return header_lines(runs[0], rows)[:2]
    words = [
        f"{name}: {', '.join(one_line(v) for v in values)}"
        for name in ("backend", "device", "ranks")
        if (values := values_of(rows, name))
    ]
    return [f"{len(runs)} launches: {what_text(rows)}", "; ".join(words)]


def _launch_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Lines about the launches; what went wrong in one of several names its file."""
    for run in runs:
        problems = problems_of(run)
        for line in launch_lines(run):
            yield f"{one_line(run.path)}: {line}" if line in problems and len(runs) > 1 else line


def _rows(points: Sequence[_Point]) -> list[Row]:
    return [point.row for point in points]


def _check_key(runs: Sequence[Run], key: str) -> None:
    name, _, label = key.partition("=")
    if label and name == "label":
        known = sorted({one_line(k) for run in runs for k in run.labels or {}})
        if label not in known:
            among = f"one of {', '.join(known)}" if known else "a label, and the files have none"
            raise UsageError("pivot label", label, among)
    elif key not in KEYS or key == "label=KEY":
        raise UsageError("pivot", key, f"one of {', '.join(KEYS)}")


def _column(run: Run, row: Row, key: str) -> str:
    name, _, label = key.partition("=")
    if name == "label":
        labels = run.labels or {}
        if label:
            return one_line(labels.get(label, "-"))
        return ", ".join(f"{one_line(k)}={one_line(v)}" for k, v in labels.items()) or "-"
    if key == "file":
        return one_line(run.path.name if run.path else run.header.get("run_id") or "-")
    value = getattr(row, key)
    return "-" if value is None else _text(key, value)


def _varies(points: Sequence[_Point], name: str) -> bool:
    """True if a column would mix several values; that two columns differ is no mixture."""
    columns = dict.fromkeys(point.column for point in points)
    return any(
        len(values_of([p.row for p in points if p.column == column], name)) > 1
        for column in columns
    )


def _groups(points: Sequence[_Point], hidden: Sequence[str]) -> list[dict[str, Any]]:
    found = [values_of(_rows(points), name) for name in hidden]
    combinations = [dict(zip(hidden, c, strict=True)) for c in itertools.product(*found)]
    return [
        group
        for group in combinations
        if any(all(getattr(p.row, n) == v for n, v in group.items()) for p in points)
    ]


def _same(row: Row, name: str, value: Any) -> bool:
    # A collective without that dimension (all_gather has no op) belongs into every table.
    return getattr(row, name) in (None, value)


def _grid(points: Sequence[_Point], key: str, metric: str, group: dict[str, Any]) -> Grid:
    field, title = _METRICS[metric]
    columns = list(dict.fromkeys(point.column for point in points))
    if all(column.isascii() and column.isdigit() for column in columns):
        columns.sort(key=int)
    cells: dict[tuple[int, str], list[Row]] = {}
    for point in points:
        cells.setdefault((point.row.nbytes_requested, point.column), []).append(point.row)
    sizes = sorted({size for size, _ in cells})
    rows = [
        [
            format_size(size) if size else "-",
            *(_cell(cells.get((size, column), []), field) for column in columns),
        ]
        for size in sizes
    ]
    words = [f"{title} by {key}"]
    for name, value in group.items():
        words.append(_text(name, value) if name == "in_place" else f"{name} {one_line(value)}")
    launches = {len(found) for found in cells.values()}
    if launches != {1}:
        words.append(f"median of {_span(launches)} results")
    below = []
    data = [p.row for p in points if COLLECTIVES[p.row.collective].has_data and p.row.nbytes]
    if any(row.nbytes != row.nbytes_requested for row in data):
        below.append("size is what was asked for; some actual sizes differ")
    heads = [Head("size", repeat=True), *(Head(column) for column in columns)]
    return Grid(heads, rows, above=[", ".join(words)], below=below)


def _span(numbers: set[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _cell(rows: Sequence[Row], field: str) -> str:
    """The median over the launches that are correct; else what was wrong with them."""
    values = [v for row in rows if row.status == "ok" and (v := getattr(row, field)) is not None]
    if values:
        middle = median(values)
        return format_time(middle) if field == "median_ns" else format_bandwidth(middle)
    bad = [row.status for row in rows if row.status != "ok"]
    return one_line(bad[0]) if bad else "-"


def _read_as(points: Sequence[_Point], view: View) -> list[str]:
    cadences = values_of(_rows(points), "cadence")
    statistics = values_of(_rows(points), "statistic") or ["median"]
    words = [f"{' or '.join(map(one_line, statistics))} over calls, {view.over_ranks} over ranks"]
    if set(statistics) - {"median"}:
        words = [f"{words[0]} (imported figures: as their source has them)"]
    for name, values in (("clock", values_of(_rows(points), "clock")), ("cadence", cadences)):
        words += [f"{name}: {', '.join(map(one_line, values))}"] if values else []
    if view.over_ranks == "max" and set(cadences) - {"isolated"}:
        words.append(NOT_ALIGNED)
    return ["; ".join(words)]

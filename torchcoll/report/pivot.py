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
from torchcoll.core.result import Run
from torchcoll.core.summary import Row, median
from torchcoll.core.units import format_bandwidth, format_size, format_time
from torchcoll.report.columns import DIMENSIONS, values_of
from torchcoll.report.grid import Grid, Head
from torchcoll.report.header import header_lines
from torchcoll.report.notes import problems_of, run_lines
from torchcoll.report.output import one_line
from torchcoll.report.view import View

KEYS = (*DIMENSIONS, "label", "label=KEY", "file")
_METRICS = {
    "time": ("median_ns", "median time"),
    "algbw": ("algbw_gbps", "algbw in GB/s"),
    "busbw": ("busbw_gbps", "busbw in GB/s"),
}
# Variables that differ from job to job and say nothing about what was measured.
_OF_THE_JOB = ("MASTER_", "OMPI_", "PALS_", "PBS_", "PMI", "SLURM_", "TORCHELASTIC_")


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
    hidden = [name for name in DIMENSIONS if name != key and _varies(points, name)]
    grids = []
    for group in _groups(points, hidden):
        within = [p for p in points if all(_same(p.row, n, v) for n, v in group.items())]
        grids.append(_grid(within, key, metric, group))
    above = [*_what_ran(runs, points), *_read_as(points, view)]
    below = [*dict.fromkeys(_run_lines(runs, points)), *_differences(runs)]
    return [Grid([], [], above=above), *grids, Grid([], [], below=below)]


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
    return [f"{len(runs)} launches; {'; '.join(words)}"]


def _run_lines(runs: Sequence[Run], points: Sequence[_Point]) -> Iterator[str]:
    """Lines about the runs; what went wrong in one of several names its file."""
    for run in runs:
        problems = problems_of(run)
        for line in run_lines(run, _rows(points), first_calls=False):
            yield f"{run.path}: {line}" if line in problems and len(runs) > 1 else line


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
        return str(run.path.name if run.path else run.header.get("run_id") or "-")
    if key == "in_place":
        return "in place" if row.in_place else "out of place"
    value = getattr(row, key)
    return "-" if value is None else str(value)


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
    if key == "ranks":
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
        words.append(f"{name} {value}" if name != "in_place" else _placement(value))
    launches = {len(found) for found in cells.values()}
    if launches != {1}:
        words.append(f"median of {_span(launches)} results")
    below = []
    data = [p.row for p in points if COLLECTIVES[p.row.collective].has_data and p.row.nbytes]
    if any(row.nbytes != row.nbytes_requested for row in data):
        below.append("size is what was asked for; some actual sizes differ")
    heads = [Head("size"), *(Head(column) for column in columns)]
    return Grid(heads, rows, above=[", ".join(words)], below=below)


def _placement(value: bool) -> str:
    return "in place" if value else "out of place"


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
    return bad[0] if bad else "-"


def _read_as(points: Sequence[_Point], view: View) -> list[str]:
    clocks = ", ".join(values_of(_rows(points), "clock"))
    cadences = ", ".join(values_of(_rows(points), "cadence"))
    reading = f"median over calls, {view.over_ranks} over ranks"
    return [f"{reading}; clock: {clocks}; cadence: {cadences}"]


def _differences(runs: Sequence[Run]) -> list[str]:
    """What the environments of the files do not share: ``torch (2.12.0, 2.13.0)``."""
    facts = [_facts(run) for run in runs]
    words = []
    for name in dict.fromkeys(name for fact in facts for name in fact):
        values = list(dict.fromkeys(one_line(fact.get(name, "unset")) for fact in facts))
        if len(values) > 1:
            words.append(f"{name} ({', '.join(values)})")
    return [f"differs between the files: {'; '.join(words)}"] if words else []


def _facts(run: Run) -> dict[str, Any]:
    environment = run.environment or {}
    plain = {k: v for k, v in environment.items() if not isinstance(v, dict)}
    libraries = environment.get("libraries") or {}
    variables = {
        k: v
        for k, v in (environment.get("variables") or {}).items()
        if not k.startswith(_OF_THE_JOB)
    }
    return plain | dict(libraries) | variables

"""Sizes down, one column for each collective, backend, number of ranks, label, ...

This is the table that people publish, so nothing is mixed silently: whatever else varies within a
column makes a table of its own, runs of the same case are read as their median and counted,
and what differs between the environments of the files is named below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.case import DIMENSIONS, value_text
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import did_you_mean, one_line, unknown
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.run_facts import facts_of
from torchcoll.core.summary import COLD_CALL, PERIOD, Row, median, reported_reading
from torchcoll.core.units import format_bandwidth, format_ns, format_size, format_time
from torchcoll.report.columns import distinct_values
from torchcoll.report.formats import View
from torchcoll.report.grid import Grid, Head
from torchcoll.report.header import NOT_ALIGNED, common_text, header_lines
from torchcoll.report.notes import differences, row_lines, runs_lines

KEYS = (*DIMENSIONS, "label", "label=KEY", "file")
_METRICS = {
    "time": ("median_ns", "time"),
    "algbw": ("algbw_gbps", "algbw in GB/s"),
    "busbw": ("busbw_gbps", "busbw in GB/s"),
}


_SMALL = 0.01  # GB/s of busbw: three decimals show fewer than two digits


@dataclass(frozen=True)
class _Point:
    column: str
    row: Row
    result: CaseResult


def pivot_grids(
    runs: Sequence[Run], view: View, key: str, metric: str = "", overview: bool = False
) -> list[Grid]:
    """One table for each combination of what else varies. Raises UsageError for an unknown key.

    metric: by default busbw, or the time where no case has one. overview: of several runs each cell
    has the lowest and the highest value after the median, and sizes at which a bandwidth is below
    0.01 GB/s have times.
    """
    _check_key(runs, key)
    points = [
        _Point(_column_name(run, entry.row, key), entry.row, entry.result)
        for run in runs
        for entry in view.entries(run)
    ]
    metric = metric or ("busbw" if any(p.row.busbw_gbps for p in points) else "time")
    above = [*_header_lines(runs, points), *_reading_lines(points, view)]
    kept = [p for p in points if metric == "time" or COLLECTIVES[p.row.collective].has_data]
    without = ["barrier has no bandwidth and is left out (--metric time)"]
    below = without if len(kept) < len(points) else []
    hidden = [name for name in DIMENSIONS if name != key and _varies_within_column(kept, name)]
    grids = []
    for group in _groups(kept, hidden):
        within = [p for p in kept if _matches_group(p.row, group)]
        grids.append(_grid(within, key, metric, group, overview, len(runs) > 1))
    below += [*_column_differences(kept, key, hidden), *row_lines(_rows(kept), False)]
    below += runs_lines(runs)
    differ = differences([facts_of(run) for run in runs])
    below += [f"differs between the files: {differ}"] if differ else []
    return [Grid([], [], above=above), *grids, Grid([], [], below=below)]


def _column_differences(points: Sequence[_Point], key: str, hidden: Sequence[str]) -> list[str]:
    """What differs from column to column beside the key: they may not be alike otherwise."""
    parts = []
    for name in DIMENSIONS:
        values = distinct_values(_rows(points), name)
        if name not in (key, *hidden) and len(values) > 1:
            parts.append(f"{name} ({', '.join(value_text(name, value) for value in values)})")
    return [f"differs between the columns: {'; '.join(parts)}"] if parts else []


def _header_lines(runs: Sequence[Run], points: Sequence[_Point]) -> list[str]:
    """Which collectives, backends and ranks; one run says it as its own table does."""
    rows = _rows(points)
    if len(runs) == 1:
        return header_lines(runs[0], rows)[:2]
    parts = [
        f"{name}: {', '.join(one_line(v) for v in values)}"
        for name in ("backend", "device", "ranks")
        if (values := distinct_values(rows, name))
    ]
    return [f"{len(runs)} runs: {common_text(rows)}", "; ".join(parts)]


def _rows(points: Sequence[_Point]) -> list[Row]:
    return [point.row for point in points]


def _check_key(runs: Sequence[Run], key: str) -> None:
    name, _, label = key.partition("=")
    labels = sorted({one_line(k) for run in runs for k in run.labels or {}})
    if label and name == "label":
        if label not in labels:
            among = "one of {}" if labels else "a label, and the files have none"
            raise unknown("pivot label", label, labels, among)
    elif key not in KEYS or key == "label=KEY":
        raise unknown("pivot", key, KEYS, action=did_you_mean(key, labels, before="label="))


def _column_name(run: Run, row: Row, key: str) -> str:
    name, _, label = key.partition("=")
    if name == "label":
        labels = run.labels or {}
        if label:
            return one_line(labels.get(label, "-"))
        return ", ".join(f"{one_line(k)}={one_line(v)}" for k, v in labels.items()) or "-"
    if key == "file":
        return one_line(run.path.name if run.path else run.header.get("run_id") or "-")
    return value_text(key, getattr(row, key))


def _varies_within_column(points: Sequence[_Point], name: str) -> bool:
    """True if a column would mix several values; that two columns differ is no mixture."""
    values_by_column: dict[str, set[Any]] = {}
    for point in points:
        if _has_dimension(point.row, name):
            values_by_column.setdefault(point.column, set()).add(getattr(point.row, name))
    return any(len(values) > 1 for values in values_by_column.values())


def _groups(points: Sequence[_Point], hidden: Sequence[str]) -> list[dict[str, Any]]:
    """Combinations of values, so that each point is in some table and none mixes two values. What
    has a dimension less is in every table that it fits; where there is none, in one of its own,
    with the first values that others have there.
    """
    kinds = [{n: getattr(p.row, n) for n in hidden if _has_dimension(p.row, n)} for p in points]
    first = {name: value for group in reversed(kinds) for name, value in group.items()}
    groups: dict[str, dict[str, Any]] = {}
    for point, group in sorted(zip(points, kinds, strict=True), key=lambda item: -len(item[1])):
        if len(group) == len(hidden) or not any(
            _matches_group(point.row, x) for x in groups.values()
        ):
            whole = {name: group.get(name, first.get(name)) for name in hidden}
            groups[repr(whole)] = whole
    return list(groups.values())


def _has_dimension(row: Row, name: str) -> bool:
    """False where its collective has no such dimension (all_gather no op). Elsewhere None is a
    value: no sub-group is all ranks, or a source does not tell.
    """
    if getattr(row, name) is not None:
        return True
    entry = COLLECTIVES[row.collective]
    fields = {"op": entry.has_op, "root": entry.has_root, "splits": entry.has_splits}
    fields |= {"group": True, "communicator": False, "clock": False}  # what failed has neither
    return fields.get(name, entry.has_data)


def _matches_group(row: Row, group: Mapping[str, Any]) -> bool:
    return all(not _has_dimension(row, n) or getattr(row, n) == value for n, value in group.items())


def _grid(
    points: Sequence[_Point],
    key: str,
    metric: str,
    group: dict[str, Any],
    overview: bool,
    several: bool,
) -> Grid:
    field, title = _METRICS[metric]
    columns = list(dict.fromkeys(point.column for point in points))
    if all(column.isascii() and column.isdigit() for column in columns):
        columns.sort(key=int)
    cells: dict[tuple[int, str], list[Row]] = {}
    for point in points:
        cells.setdefault((point.row.size_bytes_requested, point.column), []).append(point.row)
    sizes = sorted({size for size, _ in cells})
    spread = overview and several
    fields = dict.fromkeys(sizes, field)
    if overview:
        small = [p.row for p in points if p.row.is_right and 0 < (p.row.busbw_gbps or 0) < _SMALL]
        fields |= {row.size_bytes_requested: "median_ns" for row in small}
    rows = [
        [
            format_size(size) if size else "-",
            *(_cell(cells.get((size, column), []), fields[size], spread) for column in columns),
        ]
        for size in sizes
    ]
    if metric == "time":
        statistics = distinct_values([p.row for p in points], "statistic") or ["median"]
        if statistics != [COLD_CALL] and len(statistics) == 1:  # else the line above says which
            title = f"{one_line(statistics[0])} time"
    parts = [f"{title} by {key}"]
    parts += ["times where it is small"] if len(set(fields.values())) > 1 else []
    parts += [_group_text(name, value) for name, value in group.items()]
    runs = {len(values) for values in cells.values()}
    if spread:
        parts.append(f"median of {_range_text(runs)} runs (low to high)")
    elif runs != {1}:
        parts.append(f"median of {_range_text(runs)} results")
    below = []
    data = [p.row for p in points if COLLECTIVES[p.row.collective].has_data and p.row.size_bytes]
    if any(row.size_bytes != row.size_bytes_requested for row in data):
        below.append("size is what was asked for; some actual sizes differ")
    heads = [Head("size", repeat=True), *(Head(column) for column in columns)]
    return Grid(heads, rows, above=[", ".join(parts)], below=below)


def _group_text(name: str, value: Any) -> str:
    if value is None:
        return "all ranks" if name == "group" else f"{name} unknown"
    return value_text(name, value) if name == "in_place" else f"{name} {one_line(value)}"


def _range_text(numbers: set[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _cell(rows: Sequence[Row], field: str, spread: bool) -> str:
    """The median over the runs that are correct, with their lowest and highest if ``spread``; else
    what was wrong with them.
    """
    values = [v for row in rows if row.is_right and (v := getattr(row, field)) is not None]
    if values:
        format_value = format_time if field == "median_ns" else format_bandwidth
        if not spread or len(values) == 1:
            return format_value(median(values))
        if field == "median_ns":
            middle, low, high = (format_ns(f(values), 3) for f in (median, min, max))
            return f"{middle} ({low.removesuffix(high[-3:])} to {high})"
        middle, low, high = (format_value(f(values)) for f in (median, min, max))
        return f"{middle} ({low} to {high})"
    bad = [row.outcome for row in rows if not row.is_right]
    return one_line(bad[0]) if bad else "-"


def _reading_lines(points: Sequence[_Point], view: View) -> list[str]:
    """What a figure is of the calls and ranks: of samples as the view reads them, of imported
    figures what each source tells.
    """
    sampled = [p.row for p in points if p.result.time_ns]
    reported = [p.result.reported for p in points if p.result.reported and not p.result.time_ns]
    read = " or ".join(
        f"{statistic} over calls, {view.over_ranks} over ranks"
        for statistic in distinct_values(sampled, "statistic") or ["median"]
    )
    parts = [read] if sampled or not reported else []
    if reported:
        readings = " or ".join(dict.fromkeys(map(reported_reading, reported)))
        parts.append(f"{readings} (imported figures: as their source has them)")
    parts = [" or ".join(parts)]
    for name in ("clock", "mode"):
        values = distinct_values(_rows(points), name)
        parts += [f"{name}: {', '.join(map(one_line, values))}"] if values else []
    ran = [row for row in sampled if row.statistic != PERIOD]
    if not sampled and not reported:
        ran = _rows(points)
    if view.over_ranks == "max" and set(distinct_values(ran, "mode")) - {"synchronized"}:
        parts.append(NOT_ALIGNED)
    return ["; ".join(parts)]

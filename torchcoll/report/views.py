"""Sizes down, one column for each collective, backend, number of ranks, label, ...

This is the table that people publish, so nothing is mixed silently: whatever else varies within a
column makes a table of its own, launches of the same case are read as their median and counted,
and what differs between the environments of the files is named below.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import one_line, unknown
from torchcoll.core.result import CaseResult, Matrix, Run, facts_of
from torchcoll.core.summary import (
    COLD_CALL,
    PERIOD,
    SLOW_FIRST,
    Row,
    batches_of,
    calls_of,
    default_clock,
    has_period,
    median,
    over_ranks,
)
from torchcoll.core.units import format_bandwidth, format_size, format_time, time_text
from torchcoll.report.columns import DIMENSIONS, Entry, values_of
from torchcoll.report.formats import Records, View
from torchcoll.report.grid import Grid, Head
from torchcoll.report.header import NOT_ALIGNED, first_lines, given_reading, header_lines, what_text
from torchcoll.report.notes import Notes, differences, row_lines, run_lines, runs_lines

KEYS = (*DIMENSIONS, "label", "label=KEY", "file")
_METRICS = {
    "time": ("median_ns", "time"),
    "algbw": ("algbw_gbps", "algbw in GB/s"),
    "busbw": ("busbw_gbps", "busbw in GB/s"),
}


@dataclass(frozen=True)
class _Point:
    column: str
    row: Row
    result: CaseResult


def pivot_grids(runs: Sequence[Run], view: View, key: str, metric: str) -> list[Grid]:
    """One table for each combination of what else varies. Raises UsageError for an unknown key."""
    _check_key(runs, key)
    points = [
        _Point(_column(run, entry.row, key), entry.row, entry.result)
        for run in runs
        for entry in view.entries(run)
    ]
    above = [*_what_ran(runs, points), *_read_as(points, view)]
    points, silent = _with_figures(points, metric)
    hidden = [name for name in DIMENSIONS if name != key and _varies(points, name)]
    grids = []
    for group in _groups(points, hidden):
        within = [p for p in points if _belongs(p.row, group)]
        grids.append(_grid(within, key, metric, group))
    below = [*silent, *_between(points, key, hidden), *row_lines(_rows(points), False)]
    below += runs_lines(runs)
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


def _rows(points: Sequence[_Point]) -> list[Row]:
    return [point.row for point in points]


def _check_key(runs: Sequence[Run], key: str) -> None:
    name, _, label = key.partition("=")
    if label and name == "label":
        known = sorted({one_line(k) for run in runs for k in run.labels or {}})
        if label not in known:
            among = "one of {}" if known else "a label, and the files have none"
            raise unknown("pivot label", label, known, among)
    elif key not in KEYS or key == "label=KEY":
        raise unknown("pivot", key, KEYS)


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
    stated: dict[str, set[Any]] = {}
    for point in points:
        if _has(point.row, name):
            stated.setdefault(point.column, set()).add(getattr(point.row, name))
    return any(len(values) > 1 for values in stated.values())


def _groups(points: Sequence[_Point], hidden: Sequence[str]) -> list[dict[str, Any]]:
    """Combinations of values, so that each point is in some table and none mixes two values. What
    has a dimension less is in every table that it fits; where there is none, in one of its own,
    with the first values that others have there.
    """
    own = [{n: getattr(p.row, n) for n in hidden if _has(p.row, n)} for p in points]
    first = {name: value for group in reversed(own) for name, value in group.items()}
    found: dict[str, dict[str, Any]] = {}
    for point, group in sorted(zip(points, own, strict=True), key=lambda item: -len(item[1])):
        if len(group) == len(hidden) or not any(_belongs(point.row, x) for x in found.values()):
            whole = {name: group.get(name, first.get(name)) for name in hidden}
            found[repr(whole)] = whole
    return list(found.values())


def _has(row: Row, name: str) -> bool:
    """False where its collective has no such dimension (all_gather no op): then it belongs into
    every table. Elsewhere None is a value: no sub-group is all ranks, or a source does not tell.
    """
    if getattr(row, name) is not None:
        return True
    entry = COLLECTIVES[row.collective]
    own = {"op": entry.has_op, "root": entry.has_root, "splits": entry.has_splits}
    own |= {"group": True, "communicator": False, "clock": False}  # what failed has neither
    return own.get(name, entry.has_data)


def _belongs(row: Row, group: Mapping[str, Any]) -> bool:
    return all(not _has(row, n) or getattr(row, n) == value for n, value in group.items())


def _grid(points: Sequence[_Point], key: str, metric: str, group: dict[str, Any]) -> Grid:
    field, title = _METRICS[metric]
    columns = list(dict.fromkeys(point.column for point in points))
    if all(column.isascii() and column.isdigit() for column in columns):
        columns.sort(key=int)
    cells: dict[tuple[int, str], list[Row]] = {}
    for point in points:
        cells.setdefault((point.row.size_bytes_requested, point.column), []).append(point.row)
    sizes = sorted({size for size, _ in cells})
    rows = [
        [
            format_size(size) if size else "-",
            *(_cell(cells.get((size, column), []), field) for column in columns),
        ]
        for size in sizes
    ]
    if metric == "time":
        known = values_of([p.row for p in points], "statistic") or ["median"]
        if known != [COLD_CALL] and len(known) == 1:  # else the line above says which
            title = f"{one_line(known[0])} time"
    words = [f"{title} by {key}"]
    words += [_group_text(name, value) for name, value in group.items()]
    launches = {len(found) for found in cells.values()}
    if launches != {1}:
        words.append(f"median of {_span(launches)} results")
    below = []
    data = [p.row for p in points if COLLECTIVES[p.row.collective].has_data and p.row.size_bytes]
    if any(row.size_bytes != row.size_bytes_requested for row in data):
        below.append("size is what was asked for; some actual sizes differ")
    heads = [Head("size", repeat=True), *(Head(column) for column in columns)]
    return Grid(heads, rows, above=[", ".join(words)], below=below)


def _group_text(name: str, value: Any) -> str:
    if value is None:
        return "all ranks" if name == "group" else f"{name} unknown"
    return _text(name, value) if name == "in_place" else f"{name} {one_line(value)}"


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
    """What a figure is of the calls and ranks: of samples as the view reads them, of imported
    figures what each source tells.
    """
    sampled = [p.row for p in points if p.result.time_ns]
    stated = [p.result.reported for p in points if p.result.reported and not p.result.time_ns]
    read = " or ".join(
        f"{statistic} over calls, {view.over_ranks} over ranks"
        for statistic in values_of(sampled, "statistic") or ["median"]
    )
    words = [read] if sampled or not stated else []
    if stated:
        readings = " or ".join(dict.fromkeys(map(given_reading, stated)))
        words.append(f"{readings} (imported figures: as their source has them)")
    words = [" or ".join(words)]
    for name in ("clock", "mode"):
        values = values_of(_rows(points), name)
        words += [f"{name}: {', '.join(map(one_line, values))}"] if values else []
    ran = [row for row in sampled if row.statistic != PERIOD]
    if not sampled and not stated:
        ran = _rows(points)
    if view.over_ranks == "max" and set(values_of(ran, "mode")) - {"synchronized"}:
        words.append(NOT_ALIGNED)
    return ["; ".join(words)]


# A duration says nothing of when a rank arrived: only that the last one to arrive waits least.
WAITING = (
    "each rank's own time: waiting for the others as well as working; the rank that arrives last "
    "has the shortest"
)
# What names a case in the rows of csv and json.
_CASE_FIELDS = (*DIMENSIONS[:-1], "size_bytes_requested", "size_bytes")
RANK_FIELDS = (
    *(*_CASE_FIELDS, "status", "rank", "host", "rank_device", "clock", "calls", "median_ns"),
    *("longer_than_fastest_ns", "longest_share"),
)
CALL_FIELDS = (*_CASE_FIELDS, "status", "rank", "clock", "kind", "call", "calls_per_sample", "ns")


def per_rank_grids(run: Run, view: View) -> list[Grid]:
    """One table a case: each rank's median, and how its times lie among those of the others."""
    entries = view.entries(run)
    grids = [_per_rank(run, entry) for entry in entries]
    return _framed(run, [entry.row for entry in entries], grids, None, view.verbose, [WAITING])


def _framed(
    run: Run,
    rows: Sequence[Row],
    grids: list[Grid],
    how: str | None,
    verbose: bool,
    notes: Sequence[str] = (),
) -> list[Grid]:
    """Header lines before the first table, lines about the run after the last."""
    above = [
        *header_lines(run, rows, how, values_of(rows, "clock"), verbose),
        *first_lines(run, how or "max", verbose=verbose),
    ]
    below = run_lines(run, rows, first_calls=False)
    return [Grid([], [], above=[*above, *notes]), *grids, Grid([], [], below=below)]


def _case_line(result: CaseResult, row: Row) -> str:
    placement = {True: "in place", False: "out of place", None: "placement unknown"}[row.in_place]
    words = [one_line(result.case.describe()), placement]
    words += [f"splits {one_line(row.splits)}"] if row.splits else []
    words += [f"sub-group {one_line(row.group)}"] if row.group else []
    words += [f"{one_line(row.clock)} clock"] if row.clock else []
    return ", ".join(words)


def _status_lines(result: CaseResult) -> list[str]:
    notes = Notes()
    marks = notes.marks(result)
    words = [f"{one_line(result.status)} {marks}".rstrip()] * (result.status != "ok")
    return words + notes.lines()


def _rank_records(run: Run, view: View) -> Iterator[dict[str, Any]]:
    for entry in view.entries(run):
        yield from (_case_fields(entry) | values for values in rank_values(run, entry))


def _case_fields(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry.row, name) for name in (*_CASE_FIELDS, "status")}


def rank_values(run: Run, entry: Entry) -> Iterator[dict[str, Any]]:
    result, clock = entry.result, entry.row.clock
    # strict=False: a rank that was lost in mid-batch has fewer calls.
    calls = list(zip(*result.time_ns.get(clock or "", []), strict=False))
    weights = calls_of(result, len(calls))  # samples may be means of several calls
    number, period = sum(weights), has_period(result, clock)
    fastest, slowest = [min(call) for call in calls], [max(call) for call in calls]
    for place, own in enumerate(zip(*calls, strict=True)):
        longest = map(operator.eq, own, slowest)
        rank = rank_of(result, place)
        member = run.members[rank] if rank < len(run.members) else {}
        yield {
            "rank": rank,
            "host": member.get("host"),
            "rank_device": member.get("device"),
            "clock": clock,
            "calls": number,
            "median_ns": sum(map(operator.mul, own, weights)) / number if period else median(own),
            "longer_than_fastest_ns": median([a - b for a, b in zip(own, fastest, strict=True)]),
            "longest_share": sum(map(operator.mul, longest, weights)) / number,
        }


_KINDS = {"warmup": "warm-up"}


def rank_of(result: CaseResult, place: int) -> int:
    """The rank of the launch, of a place in the samples: sub-groups have some ranks only."""
    return result.members[place] if place < len(result.members) else place


def _per_rank(run: Run, entry: Entry) -> Grid:
    result, row = entry.result, entry.row
    heads = [
        Head("rank", repeat=True),
        Head("host", left=True),
        Head("device", left=True),
        Head(PERIOD if row.statistic == PERIOD else "median"),
        Head("longer than", "fastest"),
        Head("longest", "% of calls"),
    ]
    rows = [
        [
            str(values["rank"]),
            one_line(values["host"] or "-"),
            one_line(values["rank_device"] or "-"),
            format_time(values["median_ns"]),
            format_time(values["longer_than_fastest_ns"]),
            f"{100 * values['longest_share']:.0f}",
        ]
        for values in rank_values(run, entry)
    ]
    below = _status_lines(result)
    if not rows and result.status == "ok":
        below.append(f"no calls on the {one_line(row.clock)} clock")
    return Grid(heads, rows, above=[_case_line(result, row)], below=below)


def _call_records(run: Run, view: View) -> Iterator[dict[str, Any]]:
    for entry in view.entries(run):
        fields = _case_fields(entry)
        yield from (fields | values for values in _call_values(entry.result, view.clock))


def _call_values(result: CaseResult, clock: str | None) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys(("host", default_clock(result), *result.time_ns)):
        for kind, calls, samples in in_order(result, name) if clock in (None, name) else ():
            for place, durations in enumerate(samples):
                # strict=False: a rank that was lost in mid-batch has fewer calls.
                for call, ns in zip(calls, durations, strict=False):
                    yield {
                        "rank": rank_of(result, place),
                        "clock": name,
                        "kind": kind,
                        "call": call.start,
                        "calls_per_sample": len(call),
                        "ns": ns,
                    }


def in_order(result: CaseResult, clock: str | None) -> Iterator[tuple[str, list[range], Matrix]]:
    """(kind, numbers of the calls of each sample, samples) of the calls on this clock, as they ran:
    the cold ones, warm-up, then of each batch its lead calls and the steady ones.
    """
    number = 0
    parts = [("cold", result.cold_ns), ("warmup", result.warmup_ns)]
    for kind, samples in parts:
        count = max(map(len, samples), default=0)
        if samples and clock == "host":
            yield kind, _numbers(number, [1] * count), samples
        number += count
    steady = result.time_ns.get(clock or "", [])
    leads = max(map(len, result.lead_ns), default=0) // max(1, len(result.batches))
    each = calls_of(result, min(map(len, steady), default=0))
    led = 0
    for first, last in batches_of(result, steady):
        if leads and clock == default_clock(result):
            lead = [row[led : led + leads] for row in result.lead_ns]
            yield "lead", _numbers(number, [1] * leads), lead
        led, number = led + leads, number + leads
        yield "steady", _numbers(number, each[first:last]), [row[first:last] for row in steady]
        number += sum(each[first:last])


def _numbers(first: int, calls: Sequence[int]) -> list[range]:
    """The numbers of the calls of each sample, the first of which begins with ``first``."""
    starts = accumulate(calls, initial=first)
    return [range(start, start + n) for start, n in zip(starts, calls, strict=False)]


def calls_grids(run: Run, view: View) -> list[Grid]:
    """One table a case with a row for each call: cold ones, warm-up, steady ones."""
    entries = view.entries(run)
    grids = [_calls(entry.result, entry.row, view.over_ranks) for entry in entries]
    return _framed(run, [entry.row for entry in entries], grids, view.over_ranks, view.verbose)


def _calls(result: CaseResult, row: Row, how: str) -> Grid:
    completes = how == "max" and result.case.mode == "synchronized"
    heads = [
        Head("call", repeat=True),
        Head("kind", left=True),
        Head("completion " if completes else f"{how} "),
        Head("fastest"),
        Head("rank"),
        Head("slowest"),
        Head("rank"),
    ]
    parts = [part for part in in_order(result, "host") if part[0] in ("cold", "warmup")]
    parts += [part for part in in_order(result, row.clock) if part[0] in ("lead", "steady")]
    rows: list[list[str]] = []
    slow = False
    for kind, numbers, samples in parts:
        times = over_ranks(samples, how)
        for number, time, call in zip(numbers, times, zip(*samples, strict=False), strict=False):
            mark = kind == "cold" and row.median_ns and time > SLOW_FIRST * row.median_ns
            slow = slow or bool(mark)
            low, high = min(call), max(call)
            rows.append(
                [
                    str(number.start),
                    _KINDS.get(kind, kind),
                    format_time(time) + ("*" if mark else " "),
                    format_time(low),
                    str(rank_of(result, call.index(low))),
                    format_time(high),
                    str(rank_of(result, call.index(high))),
                ]
            )
    below = _status_lines(result)
    if slow:
        below.append(f"* over 3 times the {one_line(row.statistic)} of the steady calls")
    if result.ordinal == 0 and result.cold_ns:
        below.append("call 0 is the first of its communicator")
    if result.connect_ns:
        took = time_text(max(result.connect_ns), 3)
        below.append(f"before call 0, its own communicator took {took} to make (the slowest rank)")
    if row.clock not in (None, "host") and (result.cold_ns or result.warmup_ns):
        clock = one_line(row.clock)
        below.append(f"cold and warm-up calls: host clock; lead and steady calls: {clock} clock")
    return Grid(heads, rows, above=[_case_line(result, row)], below=below)


# The same for csv and json: a row for each case and rank, or for each case, rank, clock and call.
RANKS = Records(lambda view: RANK_FIELDS, _rank_records)
CALLS = Records(lambda view: CALL_FIELDS, _call_records)

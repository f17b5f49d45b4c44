"""The columns of the tables of cases: their headings, and how a row becomes a cell.

The key of a column is a field of core.summary.Row, and also its name in ``--columns`` and JSON.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.case import DIMENSIONS, SETTINGS, Case, Setting
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UsageError, did_you_mean, one_line
from torchcoll.core.result import CaseResult
from torchcoll.core.summary import PERIOD, Row, quantile, stated, steady_times
from torchcoll.core.units import format_bandwidth, format_size, format_time
from torchcoll.report.grid import Head
from torchcoll.report.notes import stop_text

ROW_FIELDS = tuple(f.name for f in dataclasses.fields(Row))

_SPREAD = "low, high = p5, p95 within this run"
_INTERVALS = (
    "low, high = p5, p95 of the intervals between calls, within this run; the period, their "
    "mean, may lie outside"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a table: a row, and the result that it was computed from.

    marks: its footnote marks, such as ``[1]``. how: how times are combined over ranks.
    """

    row: Row
    result: CaseResult
    marks: str = ""
    how: str = "max"

    def value(self, name: str) -> Any:
        """The named field of the row; None if it is unknown."""
        return stated(self.row, name, self.result.reported is not None)

    @property
    def has_data(self) -> bool:
        return COLLECTIVES[self.row.collective].has_data


@dataclass(frozen=True)
class Column:
    key: str
    head: Head
    cell: Callable[[Entry], str]


def _text(key: str, first: str, second: str = "", left: bool = True) -> Column:
    def cell(entry: Entry) -> str:
        value = entry.value(key)
        return "-" if value is None else one_line(value)

    return Column(key, Head(first, second, left), cell)


def _flag(key: str, first: str, second: str = "") -> Column:
    return Column(key, Head(first, second, left=True), lambda e: _yes_no(getattr(e.row, key)))


def _setting(setting: Setting) -> Column:
    if setting.kind is bool:
        return _flag(setting.name, *setting.head)
    return _text(setting.name, *setting.head, left=setting.kind is str)


def _time(key: str, first: str, second: str = "", drop: int = 0, legend: str = "") -> Column:
    head = Head(first, second, drop=drop, width=8, legend=legend)
    return Column(key, head, lambda entry: format_time(getattr(entry.row, key)))


def _bandwidth(key: str, first: str, drop: int = 0) -> Column:
    head = Head(first, "GB/s", drop=drop, width=8)
    return Column(key, head, lambda entry: format_bandwidth(getattr(entry.row, key)))


def _size(key: str, first: str, second: str = "", drop: int = 0) -> Column:
    def cell(entry: Entry) -> str:
        # A case that did not run may have no actual size: then the requested size is shown.
        size_bytes = entry.value(key)
        if size_bytes is None:
            return "-"
        size_bytes = size_bytes or entry.row.size_bytes_requested
        return format_size(size_bytes) if entry.has_data else "-"

    return Column(key, Head(first, second, drop=drop, repeat=key == "size_bytes"), cell)


def _first_call(entry: Entry) -> str:
    # A blank replaces the mark in rows that have none, so that the digits line up.
    return format_time(entry.row.first_call_ns) + ("*" if entry.row.slow_first else " ")


def _algorithm(entry: Entry) -> str:
    """The library's algorithm: ``RING/LL 2ch``, or a list if the calls of the case differ."""
    return ", ".join(one_line(c.text) for c in dict.fromkeys(entry.result.choices)) or "-"


def _verified(entry: Entry) -> str:
    row, verification = entry.row, entry.result.verification
    status = row.verified if row.status == "ok" else one_line(row.status)
    if verification is not None and verification.wrong:
        status = f"wrong ({verification.wrong} of {verification.checked})"
    return f"{status} {entry.marks}".rstrip()


COLUMNS: dict[str, Column] = {
    c.key: c
    for c in (
        _text("collective", "collective"),
        _text("backend", "backend"),
        _text("implementation", "implementation"),
        _text("library", "library"),
        _text("device", "device"),
        _text("ranks", "ranks", left=False),
        _text("dtype", "dtype"),
        _text("op", "op"),
        _text("root", "root", left=False),
        _flag("in_place", "in", "place"),
        _text("group", "group"),
        *map(_setting, SETTINGS),
        _flag("rehearsal", "rehearsal"),
        _text("splits", "splits"),
        _text("communicator", "communicator"),
        _text("mode", "mode"),
        _text("clock", "clock"),
        _size("size_bytes_requested", "size", "asked", drop=2),
        _size("size_bytes", "size"),
        _text("count", "count", left=False),
        _size("bytes_in", "bytes", "in"),
        _size("bytes_out", "bytes", "out"),
        Column("first_call_ns", Head("first", "call ", drop=1, width=9), _first_call),
        _time("second_call_ns", "second", "call"),
        _text("statistic", "statistic"),
        _time("median_ns", "median"),
        _time("low_ns", "low", "p5", drop=5, legend=_SPREAD),
        _time("high_ns", "high", "p95", drop=5, legend=_SPREAD),
        _time("p99_ns", "p99", drop=6),
        dataclasses.replace(_text("calls", ""), head=Head("calls", drop=3, width=5)),
        Column("stop", Head("stopped", "by", left=True), lambda e: stop_text(e.row)),
        _time("steady_ns", "steady", "calls"),
        Column("algorithm", Head("algorithm", left=True, drop=2, width=16), _algorithm),
        _text("channels", "channels", left=False),
        _bandwidth("algbw_gbps", "algbw", drop=4),
        _bandwidth("busbw_gbps", "busbw"),
        Column("verified", Head("verified", left=True), _verified),
        _text("status", "status"),
        _text("reason", "reason"),
    )
}

SHOWN_BY_DEFAULT = (
    "size_bytes",
    "first_call_ns",
    "median_ns",
    "low_ns",
    "high_ns",
    "p99_ns",
    "calls",
    "algorithm",
    "algbw_gbps",
    "busbw_gbps",
    "verified",
)
COLUMNS_OF_DATA = {"size_bytes", "algbw_gbps", "busbw_gbps"}


def _yes_no(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def distinct_values(items: Collection[Any], name: str) -> list[Any]:
    """The distinct values that Cases or Rows have of a dimension, in order of appearance."""
    try:
        values = dict.fromkeys(map(operator.attrgetter(name), items))
    except AttributeError:  # Cases lack some fields of a Row
        values = dict.fromkeys(getattr(item, name, None) for item in items)
    return [value for value in values if value is not None]


def statistics_of(items: Iterable[Row | Case]) -> list[str]:
    """The statistics over calls (median, period, mean, ...) that Rows have and Cases will have."""
    statistics = dict.fromkeys(
        item.statistic if isinstance(item, Row) else (PERIOD if item.back_to_back else "median")
        for item in items
    )
    return [statistic for statistic in statistics if statistic]


def default_columns(items: Sequence[Any], without: Collection[str]) -> list[Column]:
    """The dimensions in which Rows or Cases vary, then the measured values but ``without``."""
    # A group always has a column: a Case names the rule, and each rule makes several sub-groups.
    keys = [
        name
        for name in DIMENSIONS
        if len(values := distinct_values(items, name)) > 1 or (name == "group" and values)
    ]
    keys += [key for key in ("size_bytes_requested", *SHOWN_BY_DEFAULT) if key not in without]
    return list(_named((COLUMNS[key] for key in keys), statistics_of(items)))


def columns_for(rows: Sequence[Row]) -> list[Column]:
    """The default columns of a table of the given rows."""
    data = [row for row in rows if COLLECTIVES[row.collective].has_data]
    without = {
        key
        for key in ("p99_ns", "algorithm")
        if all(getattr(row, key) in (None, "") for row in rows)
    }
    without |= set() if data else COLUMNS_OF_DATA
    if all(row.size_bytes in (0, row.size_bytes_requested) for row in data):
        without.add("size_bytes_requested")
    columns = default_columns(rows, without)
    if set(statistics_of(rows)) <= {"median", PERIOD}:
        return columns
    # Imported files often lack whole columns: leave those out.
    figures = ("first_call_ns", "low_ns", "high_ns", "calls")
    return [c for c in columns if c.key not in figures or any(getattr(r, c.key) for r in rows)]


def _named(columns: Iterable[Column], statistics: Sequence[str]) -> Iterator[Column]:
    """Names the time column by its statistic, and explains low and high of a period."""
    for column in columns:
        first, legend = column.head.first, column.head.legend
        if column.key == "median_ns" and len(statistics) > 1:
            yield COLUMNS["statistic"]
            first = "time"
        elif column.key == "median_ns" and statistics:
            first = one_line(statistics[0])
        elif legend and PERIOD in statistics:
            legend = _INTERVALS
        head = dataclasses.replace(column.head, first=first, legend=legend)
        yield dataclasses.replace(column, head=head)


def named_columns(names: Sequence[str]) -> list[Column]:
    """The columns of ``--columns``: names or ``all``. Raises UsageError for an unknown name."""
    if list(names) == ["all"]:
        names = ROW_FIELDS
    for name in names:
        if name not in COLUMNS:
            hint = did_you_mean(name, COLUMNS)
            raise UsageError("columns", name, "all, or names as --columns all prints them", hint)
    columns = [COLUMNS[name] for name in names]
    return [dataclasses.replace(c, head=dataclasses.replace(c.head, drop=0)) for c in columns]


def percentile_key(percentile: float) -> str:
    return f"p{percentile:g}_ns"


def percentile_ns(entry: Entry, percentile: float) -> float | None:
    """A percentile (0 to 100) of the steady calls on the clock of the row in ns, or None."""
    steady = sorted(steady_times(entry.result, entry.row.clock, entry.how))
    return quantile(steady, percentile / 100) if steady else None


def percentile_column(percentile: float) -> Column:
    return Column(
        percentile_key(percentile),
        Head(f"p{percentile:g}"),
        lambda e: format_time(percentile_ns(e, percentile)),
    )

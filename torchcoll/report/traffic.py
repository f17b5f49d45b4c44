"""What a training sends: the tables, the rows and the object of ``show``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import format_bytes, format_ranges, format_size, format_time
from torchcoll.report.columns import values_of
from torchcoll.report.found import Found, show_found
from torchcoll.report.grid import Grid, Head
from torchcoll.report.output import one_line

if TYPE_CHECKING:
    from torchcoll.analysis.traffic import SizeBin, TrafficRow, TrafficTable

SCHEMA = "torchcoll-traffic-rows/1"
_BYTES = "bytes a step: what one rank puts in"
_TIME = (
    "time a step: of each call the slowest rank's time, so waiting for the others is in it, added "
    "up over the calls; each row on its own over the steps, so that rows need not add up"
)
_ALGORITHM = "algorithm: a hint (?) by the names of the kernels, some of which run others too"
_EXPOSED = "exposed: of that, what no computation hides, an estimate"
# In the header where all rows agree, else columns; and how the header says them.
_DIMENSIONS: dict[str, Callable[[Any], str]] = {
    "ranks": "ranks {}".format,
    "backend": str,
    "dtype": str,
    "op": str,
    "group": "group {}".format,
    "group_ranks": "{} ranks a group".format,
    "groups": "{} groups".format,
    "asynchronous": lambda value: "async" if value else "not async",
    "clock": "{} clock".format,
}
_NOTHING = {"group_ranks": 0, "groups": 1}  # what says nothing worth a column or a word


def show_traffic(
    found: Sequence[Traffic],
    format: str = "table",
    file: TextIO | None = None,
    columns: Sequence[str] = (),
) -> None:
    """Print what each sends. columns: names of TrafficRow fields, or ``all``.

    Raises UsageError for an unknown format or column.
    """
    from torchcoll.analysis.traffic import summarise_traffic

    keys = _named(columns)
    parts = []
    for traffic in found:
        table = summarise_traffic(traffic)
        file_name = {"file": _name(traffic)} if len(found) > 1 else {}
        records = [{**file_name, **_record(row, keys)} for row in table.rows]
        thing = traffic_object(traffic, table, keys)
        parts.append(Found(traffic_grids(traffic, table, keys), records, thing))
    show_found(parts, format, file)


def _name(traffic: Traffic) -> str:
    return one_line(traffic.path or "traffic")


def _named(columns: Sequence[str]) -> list[str]:
    names = list(_COLUMNS) if list(columns) == ["all"] else list(columns)
    for name in names:
        if name not in _COLUMNS:
            raise UsageError("columns", name, f"all, or some of {', '.join(_COLUMNS)}")
    return names


def traffic_object(traffic: Traffic, table: TrafficTable, keys: Sequence[str]) -> dict[str, Any]:
    """The rows, and what one must know to judge them."""
    rest = {name: value for name, value in vars(table).items() if name not in ("rows", "sizes")}
    return {
        "schema": SCHEMA,
        "traffic": {
            "path": None if traffic.path is None else str(traffic.path),
            "source": traffic.source,
            "ranks": traffic.ranks,
            "recorded": sorted(traffic.calls),
            **rest,
            "notes": [*table.notes, *traffic.notes],
            "problems": traffic.problems,
        },
        "rows": [_record(row, keys) for row in table.rows],
        "sizes": [dataclasses.asdict(one) for one in table.sizes],
    }


def _record(row: TrafficRow, keys: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in keys or _COLUMNS}


def traffic_grids(traffic: Traffic, table: TrafficTable, keys: Sequence[str] = ()) -> list[Grid]:
    """The calls, then how large they are; what is left out and unknown below."""
    dimensions = [
        name
        for name in _DIMENSIONS
        if len(values := values_of(table.rows, name)) > 1
        or values not in ([], [_NOTHING.get(name)])
    ]
    common = [name for name in dimensions if len(values_of(table.rows, name)) == 1]
    chosen = keys or _default(table.rows, [name for name in dimensions if name not in common])
    columns = {name: _COLUMNS[name] for name in chosen}
    if keys:
        columns = {k: (dataclasses.replace(h, drop=0), cell) for k, (h, cell) in columns.items()}
    rows = [[cell(row) for _, cell in columns.values()] for row in table.rows]
    above = [_title(traffic, table, common), *_step_lines(table), *([_BYTES] if rows else [])]
    below = [*table.notes, *traffic.notes, *traffic.problems]
    return [
        Grid([head for head, _ in columns.values()], rows, above, [] if rows else ["no calls"]),
        _size_grid(table.sizes, several=len({one.ranks for one in table.sizes}) > 1),
        Grid([], [], below=[one_line(text) for text in below]),
    ]


def _default(rows: Sequence[TrafficRow], varying: Sequence[str]) -> list[str]:
    keys = ["collective", "nbytes_in"]
    if any(row.nbytes_out != row.nbytes_in for row in rows):
        keys.append("nbytes_out")
    keys += [*varying, "calls_per_step", "bytes_per_step"]
    figures = ("time_per_step_ns", "median_ns", "share", "exposed_ns", "algorithm")
    return keys + [name for name in figures if any(getattr(row, name) is not None for row in rows)]


def _title(traffic: Traffic, table: TrafficTable, common: Sequence[str]) -> str:
    """What it is, and what all rows share."""
    recorded = format_ranges(traffic.calls)
    who = f"rank{'s' * (len(traffic.calls) > 1)} {recorded or 'none'} of {traffic.ranks}"
    if len(traffic.calls) == traffic.ranks:
        who = f"{traffic.ranks} ranks" if traffic.ranks > 1 else "1 rank"
    values = {name: values_of(table.rows, name)[0] for name in common if name != "ranks"}
    words = [one_line(_DIMENSIONS[name](value)) for name, value in values.items() if value != ""]
    return f"{_name(traffic)}: " + ", ".join([one_line(traffic.source), who, *words])


def _step_lines(table: TrafficTable) -> list[str]:
    calls = sum(row.calls_per_step for row in table.rows)
    nbytes = sum(row.bytes_per_step for row in table.rows)
    alone = len({row.ranks for row in table.rows}) == 1  # else it is another sum for each rank
    several = "" if calls == 1 else "s"
    sent = (
        f"{_count(calls)} call{several}, {format_bytes(nbytes)} put in by a rank" if alone else ""
    )
    if not table.marked or not table.rows:
        return [sent] if table.rows and sent else []
    which = f"steps {format_ranges(table.steps)} of {table.total}"
    took = ""
    if table.step_ns:
        took = f"a step takes {_brief(table.step_ns)} (slowest rank, {table.statistic} over them)"
    lines = ["; ".join(filter(None, (which, sent and f"in each {sent}", took)))]
    if table.step_ns and table.busy_ns is not None:
        share = f"{100 * table.busy_ns / table.step_ns:.0f} %"
        lines.append(f"some call was in flight for {_brief(table.busy_ns)} of it ({share})")
    return lines


def _brief(ns: float) -> str:
    return format_time(ns, 3).strip()


def _size_grid(sizes: Sequence[SizeBin], several: bool) -> Grid:
    heads = [Head("ranks", left=True)] * several
    heads += [Head("bytes", "put in"), Head("calls", "a step"), Head("bytes", "a step")]
    rows = [
        [one.ranks] * several
        + [
            f"{format_size(one.low_nbytes)} to {format_size(one.high_nbytes)}"
            if one.low_nbytes
            else "0",
            _count(one.calls_per_step),
            _bytes(one.bytes_per_step),
        ]
        for one in sizes
    ]
    return Grid(heads, rows, ["sizes: calls by the bytes that a rank puts into one"] * bool(rows))


def _count(number: float) -> str:
    return f"{number:.0f}" if float(number).is_integer() else f"{number:.4g}"


def _bytes(nbytes: float) -> str:
    return format_size(int(nbytes)) if float(nbytes).is_integer() else format_bytes(nbytes)


def _cell(name: str) -> Callable[[Any], str]:
    def cell(row: Any) -> str:
        value = getattr(row, name)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return "-" if value in (None, "") else one_line(value)

    return cell


def _size(name: str) -> Callable[[Any], str]:
    def cell(row: Any) -> str:
        value = getattr(row, name)
        return "varies" if value is None else format_size(value)

    return cell


def _duration(name: str) -> Callable[[Any], str]:
    return lambda row: format_time(getattr(row, name))


def _share(row: TrafficRow) -> str:
    return "-" if row.share is None else f"{100 * row.share:.1f} %"


def _hint(row: TrafficRow) -> str:
    """``RING/LL?``, as ``show`` writes what only a kernel's name says."""
    return "-" if row.algorithm is None else one_line(row.algorithm).replace(", ", "?, ") + "?"


# Every field of a TrafficRow, in order: its heading and its cell.
_COLUMNS: dict[str, tuple[Head, Callable[[Any], str]]] = {
    "collective": (Head("collective", left=True, repeat=True), _cell("collective")),
    "nbytes_in": (Head("bytes", "in", repeat=True), _size("nbytes_in")),
    "nbytes_out": (Head("bytes", "out"), _size("nbytes_out")),
    "dtype": (Head("dtype", left=True), _cell("dtype")),
    "op": (Head("op", left=True), _cell("op")),
    "group": (Head("group", left=True), _cell("group")),
    "group_ranks": (Head("ranks", "a group"), _cell("group_ranks")),
    "groups": (Head("groups"), _cell("groups")),
    "backend": (Head("backend", left=True), _cell("backend")),
    "asynchronous": (Head("async", left=True), _cell("asynchronous")),
    "ranks": (Head("ranks", left=True), _cell("ranks")),
    "calls_per_step": (Head("calls", "a step"), lambda row: _count(row.calls_per_step)),
    "bytes_per_step": (Head("bytes", "a step"), lambda row: _bytes(row.bytes_per_step)),
    "time_per_step_ns": (Head("time", "a step", legend=_TIME), _duration("time_per_step_ns")),
    "median_ns": (Head("median", "a call", drop=2), _duration("median_ns")),
    "clock": (Head("clock", left=True), _cell("clock")),
    "share": (Head("share", "of step", drop=1), _share),
    "exposed_ns": (Head("exposed", "a step", legend=_EXPOSED), _duration("exposed_ns")),
    "algorithm": (Head("algorithm", left=True, drop=3, legend=_ALGORITHM), _hint),
}

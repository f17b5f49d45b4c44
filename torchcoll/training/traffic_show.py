"""What a training sends: the tables, the rows and the object of ``show``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.errors import one_line, unknown
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import (
    counted,
    format_bytes,
    format_ranges,
    format_size,
    format_time,
    time_text,
)
from torchcoll.report.columns import values_of
from torchcoll.report.destination import clock_text
from torchcoll.report.formats import Forms, picked, show_found
from torchcoll.report.grid import Grid, Head, filled
from torchcoll.report.notes import Notes
from torchcoll.stats.drift import LEAST, SURE, drift_text

if TYPE_CHECKING:
    from torchcoll.stats.drift import TimeDrift
    from torchcoll.training.cost import Cost, CostRow
    from torchcoll.training.late import LateRank
    from torchcoll.training.over_time import OverTime, Stretch
    from torchcoll.training.traffic_table import SizeBin, TrafficRow, TrafficTable


TRAFFIC_SCHEMA = "torchcoll-traffic-rows/1"
_BYTES = "bytes a step: what one rank puts in"
_TIME = (
    "time a step: of each call the slowest rank's time, so waiting for the others is in it, added "
    "up over the calls; each row on its own over the steps, so that rows need not add up"
)
_ALGORITHM = "algorithm: a hint (?) by the names of the kernels, some of which run others too"
_EXPOSED = "exposed: of that, what no computation hides, an estimate"
# In the header where all rows agree, else columns; and how the header says them.
_TRAFFIC_DIMENSIONS: dict[str, Callable[[Any], str]] = {
    "ranks": "ranks {}".format,
    "backend": str,
    "dtype": str,
    "op": str,
    "group": "group {}".format,
    "group_ranks": lambda value: f"{counted(value, 'rank')} a group",
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
    from torchcoll.training.traffic_table import summarise_traffic

    keys = _named(columns)
    parts = []
    for traffic in found:
        table = summarise_traffic(traffic)
        file_name = {"file": _name(traffic)} if len(found) > 1 else {}
        thing = traffic_object(traffic, table, keys)
        records = [{**file_name, **row} for row in thing["rows"]]
        parts.append(Forms(traffic_grids(traffic, table, keys), thing, records))
    show_found(parts, format, file)


def _name(traffic: Traffic) -> str:
    return one_line(traffic.path or "traffic")


def _named(columns: Sequence[str]) -> list[str]:
    names = list(_COLUMNS) if list(columns) == ["all"] else list(columns)
    for name in names:
        if name not in _COLUMNS:
            raise unknown("columns", name, _COLUMNS, "all, or some of {}")
    return names


def traffic_object(traffic: Traffic, table: TrafficTable, keys: Sequence[str]) -> dict[str, Any]:
    """The rows, and what one must know to judge them."""
    apart = ("rows", "sizes", "over_time")
    rest = {name: value for name, value in vars(table).items() if name not in apart}
    return {
        "schema": TRAFFIC_SCHEMA,
        "traffic": {
            "path": None if traffic.path is None else str(traffic.path),
            **picked(traffic, "source ranks"),
            "recorded": sorted(traffic.calls),
            **rest,
            "notes": [*table.notes, *traffic.notes],
            "problems": traffic.problems,
        },
        "rows": [picked(row, " ".join(keys or _COLUMNS)) for row in table.rows],
        "sizes": [dataclasses.asdict(one) for one in table.sizes],
        **({"over_time": dataclasses.asdict(table.over_time)} if table.over_time else {}),
    }


def traffic_grids(traffic: Traffic, table: TrafficTable, keys: Sequence[str] = ()) -> list[Grid]:
    """The calls, then how large they are; what is left out and unknown below."""
    dimensions = [
        name
        for name in _TRAFFIC_DIMENSIONS
        if len(values := values_of(table.rows, name)) > 1
        or values not in ([], [_NOTHING.get(name)])
    ]
    common = [name for name in dimensions if len(values_of(table.rows, name)) == 1]
    chosen = keys or _default(table.rows, [name for name in dimensions if name not in common])
    columns = {name: _COLUMNS[name] for name in chosen}
    if keys:
        columns = {k: (dataclasses.replace(h, drop=0), cell) for k, (h, cell) in columns.items()}
    rows = [[cell(row) for _, cell in columns.values()] for row in table.rows]
    above = [_title(traffic, table, common), *_step_lines(table), *_left_out(traffic)]
    above += [_BYTES] if rows else []
    below = [*table.notes, *traffic.notes, *traffic.problems]
    over = [_time_grid(table.over_time)] if table.over_time else []
    return [
        Grid([head for head, _ in columns.values()], rows, above, [] if rows else ["no calls"]),
        _size_grid(table.sizes, several=len({one.ranks for one in table.sizes}) > 1),
        *over,
        Grid([], [], below=[one_line(text) for text in below]),
    ]


def _default(rows: Sequence[TrafficRow], varying: Sequence[str]) -> list[str]:
    keys = ["collective", "bytes_in"]
    if any(row.bytes_out != row.bytes_in for row in rows):
        keys.append("bytes_out")
    keys += [*varying, "calls_per_step", "bytes_per_step"]
    figures = ("time_per_step_ns", "median_ns", "share", "exposed_ns", "algorithm")
    return keys + [name for name in figures if any(getattr(row, name) is not None for row in rows)]


def _title(traffic: Traffic, table: TrafficTable, common: Sequence[str]) -> str:
    """What it is, and what all rows share."""
    recorded = format_ranges(traffic.calls)
    who = f"rank{'s' * (len(traffic.calls) > 1)} {recorded or 'none'} of {traffic.ranks}"
    alone = traffic.source == "flight recorder" and len(traffic.calls) == 1
    if alone and not any(group.ranks for group in traffic.groups.values()):
        who = f"rank {recorded} of an unknown number"
    elif len(traffic.calls) == traffic.ranks:
        who = f"{traffic.ranks} ranks" if traffic.ranks > 1 else "1 rank"
    values = {name: values_of(table.rows, name)[0] for name in common if name != "ranks"}
    words = [
        one_line(_TRAFFIC_DIMENSIONS[name](value)) for name, value in values.items() if value != ""
    ]
    return f"{_name(traffic)}: " + ", ".join([one_line(traffic.source), who, *words])


def _left_out(traffic: Traffic) -> list[str]:
    if not traffic.left_out:
        return []
    every = sum(map(len, traffic.calls.values())) + traffic.left_out
    return [f"{traffic.left_out} of {every} calls have no size in the source: not included here"]


def _step_lines(table: TrafficTable) -> list[str]:
    calls = sum(row.calls_per_step for row in table.rows)
    size_bytes = sum(row.bytes_per_step for row in table.rows)
    alone = len({row.ranks for row in table.rows}) == 1  # else it is another sum for each rank
    several = "" if calls == 1 else "s"
    sent = (
        f"{_count(calls)} call{several}, {format_bytes(size_bytes)} put in by a rank"
        if alone
        else ""
    )
    if not table.marked or not table.rows:
        return [sent] if table.rows and sent else []
    which = f"steps {format_ranges(table.steps)} of {table.total}"
    took = ""
    if table.step_ns:
        step = time_text(table.step_ns, 3)
        took = f"a step takes {step} (slowest rank, {table.statistic} over them)"
    lines = ["; ".join(filter(None, (which, sent and f"in each {sent}", took)))]
    if table.step_ns and table.busy_ns is not None:
        share = f"{100 * table.busy_ns / table.step_ns:.0f} %"
        lines.append(f"some call was in flight for {time_text(table.busy_ns, 3)} of it ({share})")
    return lines


def _size_grid(sizes: Sequence[SizeBin], several: bool) -> Grid:
    heads = [Head("ranks", left=True)] * several
    heads += [Head("bytes", "put in"), Head("calls", "a step"), Head("bytes", "a step")]
    rows = [
        [one.ranks] * several
        + [
            f"{format_size(one.low_bytes)} to {format_size(one.high_bytes)}"
            if one.low_bytes
            else "0",
            _count(one.calls_per_step),
            _bytes(one.bytes_per_step),
        ]
        for one in sizes
    ]
    return Grid(heads, rows, ["sizes: calls by the bytes that a rank puts into one"] * bool(rows))


def _time_grid(found: OverTime) -> Grid:
    """Drift, and who was late when."""
    return filled(
        [
            (Head("from"), lambda s: clock_text(s.from_s)),
            (Head("to"), lambda s: clock_text(s.to_s)),
            (Head("steps"), lambda s: str(s.steps)),
            (Head("a step", "takes"), lambda s: format_time(s.step_ns)),
            (Head("wait", "a step", legend=_WAIT), lambda s: format_time(s.wait_ns)),
            (Head("transfer", "a step"), lambda s: format_time(s.transfer_ns)),
            (Head("most often", "last"), _late_text),
        ],
        found.stretches,
        above=[f"over time: {_drift_sentence(found.drift)}"],
    )


_WAIT = (
    "of each call the longest time of its ranks less the shortest (wait), and the shortest "
    "(transfer), added up over a step; medians over the steps"
)


def _drift_sentence(drift: TimeDrift | None) -> str:
    if drift is None:
        return "too few steps to tell of drift"
    moved = f"{drift_text(drift)}, the last quarter of the time over the first [90 %]"
    if drift.p <= SURE and abs(drift.value) >= LEAST:
        return f"steps became {'slower' if drift.value > 0 else 'faster'}: {moved}"
    return f"no drift of the time of a step shown: {moved}"


def _late_text(one: Stretch) -> str:
    share = one.late_share
    return "-" if share is None else f"rank {one.late_rank} {share:.0%} of known"


def _count(number: float) -> str:
    return f"{number:.0f}" if float(number).is_integer() else f"{number:.4g}"


def _bytes(size_bytes: float) -> str:
    return (
        format_size(int(size_bytes)) if float(size_bytes).is_integer() else format_bytes(size_bytes)
    )


def _traffic_cell(name: str) -> Callable[[Any], str]:
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
    "collective": (Head("collective", left=True, repeat=True), _traffic_cell("collective")),
    "bytes_in": (Head("bytes", "in", repeat=True), _size("bytes_in")),
    "bytes_out": (Head("bytes", "out"), _size("bytes_out")),
    "dtype": (Head("dtype", left=True), _traffic_cell("dtype")),
    "op": (Head("op", left=True), _traffic_cell("op")),
    "group": (Head("group", left=True), _traffic_cell("group")),
    "group_ranks": (Head("ranks", "a group"), _traffic_cell("group_ranks")),
    "groups": (Head("groups"), _traffic_cell("groups")),
    "backend": (Head("backend", left=True), _traffic_cell("backend")),
    "asynchronous": (Head("async", left=True), _traffic_cell("asynchronous")),
    "ranks": (Head("ranks", left=True), _traffic_cell("ranks")),
    "calls_per_step": (Head("calls", "a step"), lambda row: _count(row.calls_per_step)),
    "bytes_per_step": (Head("bytes", "a step"), lambda row: _bytes(row.bytes_per_step)),
    "time_per_step_ns": (Head("time", "a step", legend=_TIME), _duration("time_per_step_ns")),
    "median_ns": (Head("median", "a call", drop=2), _duration("median_ns")),
    "clock": (Head("clock", left=True), _traffic_cell("clock")),
    "share": (Head("share", "of step", drop=1), _share),
    "exposed_ns": (Head("exposed", "a step", legend=_EXPOSED), _duration("exposed_ns")),
    "algorithm": (Head("algorithm", left=True, drop=3, legend=_ALGORITHM), _hint),
}


# -------------------------------------------------------------------------------------------------
# What calls cost in the training: the tables, the rows and the object of ``show``.

COST_SCHEMA = "torchcoll-cost/1"
_ABOVE = (
    "wait, transfer and contention are estimates. All ranks end a collective together, so the "
    "shortest rank's time is the transfer, what the others have more is their wait for it; in "
    "place: the slowest rank's; contention: transfer - alone. Medians over the calls"
)
_LATE = (
    "which rank came last: the one with the shortest time of its own; even: the share that chance "
    "gives each; waited: the longest wait of the others, median of the calls in which it was last"
)
_COST_DIMENSIONS = ("dtype", "group", "backend", "asynchronous", "clock", "isolated_as")


def show_costs(found: Sequence[Cost], format: str = "table", file: TextIO | None = None) -> None:
    """Print what ``cost`` found: csv has the calls, json the late ranks too.

    Raises UsageError for an unknown format.
    """
    show_found([Forms(cost_grids(one), cost_object(one)) for one in found], format, file)


def cost_object(found: Cost) -> dict[str, Any]:
    return {"schema": COST_SCHEMA, **dataclasses.asdict(found)}


def cost_grids(found: Cost) -> list[Grid]:
    """The calls, then who came last; what is left out and unknown below."""
    notes = Notes()
    values = {n: [v for v in values_of(found.rows, n) if v != ""] for n in _COST_DIMENSIONS}
    varying = [name for name, own in values.items() if len(own) > 1]
    common = [_word(found.rows[0], n, own[0]) for n, own in values.items() if len(own) == 1]
    heads = [Head("collective", left=True, repeat=True), Head("size", repeat=True)]
    heads += [Head(_HEADS[name], left=True) for name in varying]
    heads += [Head("calls", drop=2), Head("queued", drop=1), Head("in place"), Head("wait")]
    heads += [Head("transfer"), Head("alone"), Head("contention")]
    reasons = any(row.reason for row in found.rows)
    heads += [Head("", left=True)] * reasons
    rows = [
        [
            row.collective,
            format_size(row.size_bytes) if row.size_bytes else "-",
            *(_cost_cell(getattr(row, name)) for name in varying),
            str(row.calls),
            "-" if row.queued is None else f"{100 * row.queued:.0f} %",
            *(format_time(ns) for ns in (row.in_place_ns, row.wait_ns, row.transfer_ns)),
            format_time(row.isolated_ns),
            f"<= {_signed(row.contention_ns)}" if row.bound else _signed(row.contention_ns),
            *[notes.mark(one_line(row.reason)) if row.reason else ""] * reasons,
        ]
        for row in found.rows
    ]
    above = [f"{one_line(found.traffic)} beside {one_line(found.run)}", ", ".join(common), _ABOVE]
    first = Grid(heads, rows, [line for line in above if line], notes.lines())
    if not rows:
        first.below = ["no calls"]
    return [first, _late_grid(found), Grid([], [], below=[one_line(n) for n in found.notes])]


_HEADS = {"asynchronous": "async", "isolated_as": "alone as"}
_HEADS |= {name: name for name in _COST_DIMENSIONS if name not in _HEADS}


def _word(row: CostRow, name: str, value: object) -> str:
    """What all rows share; ``row`` is any of them."""
    if name == "asynchronous":
        return "async" if value else "not async"
    texts = {"group": f"group {value} of {row.group_ranks} ranks", "clock": f"{value} clock"}
    texts |= {"isolated_as": f"alone: {value}"}
    return one_line(texts.get(name, value))


def _cost_cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return one_line(value) if value else "-"


def _signed(ns: float | None) -> str:
    """Less than 0 where the transfer was shorter than the call alone."""
    return f"-{format_time(-ns)}" if ns is not None and ns < 0 else format_time(ns)


def _late_grid(found: Cost) -> Grid:
    heads = [Head("rank"), Head("calls"), Head("last"), Head("share"), Head("even"), Head("waited")]
    rows = [_late_cells(one) for one in found.late]
    calls = "1 call" if found.ties == 1 else f"{found.ties} calls"
    within = " (of asynchronous calls: within 5 ms)" * any(row.late_ns for row in found.rows)
    ties = f"{calls}: several ranks had the shortest time{within}, none counts as last"
    return Grid(heads, rows, [_LATE] * bool(rows), [ties] * bool(found.ties))


def _late_cells(one: LateRank) -> list[str]:
    shares = [f"{100 * share:.0f} %" for share in (one.share, one.expected)]
    return [str(one.rank), str(one.calls), str(one.last), *shares, format_time(one.waited_ns)]

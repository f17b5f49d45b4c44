"""Every call of each case in its order (``--view calls``), and what the views of samples share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from torchcoll.core import summary
from torchcoll.core.answer import Answer, Caveat
from torchcoll.core.case import DIMENSIONS, value_text
from torchcoll.core.errors import one_line
from torchcoll.core.result import CaseResult, Matrix, Run
from torchcoll.core.units import counted, format_ns, format_time
from torchcoll.report.columns import Entry, distinct_values
from torchcoll.report.formats import Records, View
from torchcoll.report.grid import Grid, Head
from torchcoll.report.header import first_lines, header_lines
from torchcoll.report.notes import Notes, run_lines

# What names a case in the rows of csv and json.
CASE_FIELDS = (*DIMENSIONS[:-1], "size_bytes_requested", "size_bytes")
CALL_FIELDS = (*CASE_FIELDS, "status", "rank", "clock", "kind", "call", "calls_per_sample", "ns")


def with_run_lines(
    run: Run,
    rows: Sequence[summary.Row],
    grids: list[Grid],
    how: str | None,
    verbose: bool,
    notes: Sequence[str] = (),
) -> list[Grid]:
    """Header lines before the first table, lines about the run after the last."""
    above = [
        *header_lines(run, rows, how, distinct_values(rows, "clock"), verbose),
        *first_lines(run, how or "max", verbose=verbose),
    ]
    below = run_lines(run, rows, first_calls=False)
    return [Grid([], [], above=[*above, *notes]), *grids, Grid([], [], below=below)]


def case_line(result: CaseResult, row: summary.Row) -> str:
    placed = "placement unknown" if row.in_place is None else value_text("in_place", row.in_place)
    parts = [one_line(result.case.describe()), placed]
    parts += [f"splits {one_line(row.splits)}"] if row.splits else []
    parts += [f"sub-group {one_line(row.group)}"] if row.group else []
    parts += [f"{one_line(row.clock)} clock"] if row.clock else []
    return ", ".join(parts)


def status_lines(result: CaseResult) -> list[str]:
    notes = Notes()
    notes.marks(result)  # one case has no cells that could refer to a number
    lines = [] if result.status == "ok" else [one_line(result.status)]
    return lines + [Caveat(line.partition("] ")[2]) for line in notes.lines()]


def case_fields(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry.row, name) for name in (*CASE_FIELDS, "status")}


_KINDS = {"warmup": "warm-up", "ramp_up": "ramp-up"}


def rank_of(result: CaseResult, index: int) -> int:
    """The rank of the run, of a place in the samples: sub-groups have some ranks only."""
    return result.members[index] if index < len(result.members) else index


def _call_records(run: Run, view: View) -> Iterator[dict[str, Any]]:
    for entry in view.entries(run):
        fields = case_fields(entry)
        yield from (fields | values for values in _call_values(entry.result, view.clock))


def _call_values(result: CaseResult, clock: str | None) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys(("host", summary.default_clock(result), *result.time_ns)):
        for kind, calls, samples in calls_in_order(result, name) if clock in (None, name) else ():
            for index, durations in enumerate(samples):
                # strict=False: a rank that was lost in mid-batch has fewer calls.
                for call, ns in zip(calls, durations, strict=False):
                    yield {
                        "rank": rank_of(result, index),
                        "clock": name,
                        "kind": kind,
                        "call": call.start,
                        "calls_per_sample": len(call),
                        "ns": ns,
                    }


def calls_in_order(
    result: CaseResult, clock: str | None
) -> Iterator[tuple[str, list[range], Matrix]]:
    """Kind, numbers of the calls of each sample, and samples, in the order of the calls."""
    number = 0
    for kind, samples in (("cold", result.cold_ns), ("warmup", result.warmup_ns)):
        count = max(map(len, samples), default=0)
        if samples and clock == "host":
            yield kind, _call_ranges(number, [1] * count), samples
        number += count
    steady = result.time_ns.get(clock or "", [])
    calls_per_batch = max(map(len, result.ramp_up_ns), default=0) // max(1, len(result.batches))
    each = summary.calls_of(result, min(map(len, steady), default=0))
    ramp_up_done = 0
    for first, last in summary.batches_of(result, steady):
        if calls_per_batch and clock == summary.default_clock(result):
            lead = [row[ramp_up_done : ramp_up_done + calls_per_batch] for row in result.ramp_up_ns]
            yield "ramp_up", _call_ranges(number, [1] * calls_per_batch), lead
        ramp_up_done, number = ramp_up_done + calls_per_batch, number + calls_per_batch
        yield "steady", _call_ranges(number, each[first:last]), [row[first:last] for row in steady]
        number += sum(each[first:last])


def _call_ranges(first: int, calls: Sequence[int]) -> list[range]:
    """The numbers of the calls of each sample, the first of which begins with ``first``."""
    starts = accumulate(calls, initial=first)
    return [range(start, start + n) for start, n in zip(starts, calls, strict=False)]


def calls_grids(run: Run, view: View) -> list[Grid]:
    """One table a case with a row for each call: cold ones, warm-up, steady ones."""
    entries = view.entries(run)
    grids = [_calls_grid(entry.result, entry.row, view.over_ranks) for entry in entries]
    grids = [grid for grid in grids if grid.rows or grid.below]
    rows = [entry.row for entry in entries]
    framed_grids = with_run_lines(run, rows, grids, view.over_ranks, view.verbose)
    framed_grids[-1].answer = calls_answer(entries, view.over_ranks)
    return framed_grids


def calls_answer(entries: Sequence[Entry], how: str) -> Answer:
    """The steady call that took longest, compared with the median of its case."""
    slowest: tuple[float, str] = (0.0, "")
    count = 0
    for result, row in ((entry.result, entry.row) for entry in entries):
        for kind, numbers, samples in calls_in_order(result, row.clock):
            if kind != "steady" or not row.median_ns:
                continue
            times = summary.over_ranks(samples, how)
            for number, time_ns in zip(numbers, times, strict=False):
                count += len(number)
                if (ratio := time_ns / row.median_ns) > slowest[0]:
                    call = f"call {number.start}, {format_ns(time_ns, 3)}"
                    slowest = ratio, f"{result.case.describe()}: {call}"
    if not count:
        return Answer(
            "no single call is recorded, only figures of whole cases",
            next_step="torchcoll show FILE shows these",
        )
    return Answer(
        f"the slowest of {counted(count, 'steady call')}",
        verb="takes {} its case's median",
        size=slowest[0],
        unit="x",
        scope=f"({slowest[1]})",
    )


def _calls_grid(result: CaseResult, row: summary.Row, how: str) -> Grid:
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
    groups = [group for group in calls_in_order(result, "host") if group[0] in ("cold", "warmup")]
    groups += [
        group for group in calls_in_order(result, row.clock) if group[0] in ("ramp_up", "steady")
    ]
    rows: list[list[str]] = []
    slow = False
    for kind, numbers, samples in groups:
        times = summary.over_ranks(samples, how)
        for number, time, call in zip(numbers, times, zip(*samples, strict=False), strict=False):
            mark = kind == "cold" and row.median_ns and time > summary.SLOW_FIRST * row.median_ns
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
    below = status_lines(result)
    if slow:
        below.append(f"* over 3 times the {one_line(row.statistic)} of the steady calls")
    if result.ordinal == 0 and result.cold_ns:
        below.append("call 0 is the first of its communicator")
    if result.connect_ns:
        took = format_ns(max(result.connect_ns), 3)
        below.append(f"before call 0, its own communicator took {took} to make (the slowest rank)")
    if row.clock not in (None, "host") and (result.cold_ns or result.warmup_ns):
        clock = one_line(row.clock)
        below.append(f"cold and warm-up calls: host clock; ramp-up and steady calls: {clock} clock")
    return Grid(heads, rows, above=[case_line(result, row)], below=below)


# The same for csv and json: a row for each case and rank, or for each case, rank, clock and call.
CALLS = Records(lambda view: CALL_FIELDS, _call_records)

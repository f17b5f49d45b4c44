"""Two views of the samples of each case: its ranks (``--view ranks``), and every call in order.

A duration says nothing of when a rank arrived: only that the last one to arrive waits least.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from torchcoll.core.errors import one_line
from torchcoll.core.result import CaseResult, Matrix, Run
from torchcoll.core.summary import (
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
from torchcoll.core.units import format_time, time_text
from torchcoll.report.columns import DIMENSIONS, Entry, values_of
from torchcoll.report.formats import Records, View
from torchcoll.report.grid import Grid, Head
from torchcoll.report.header import first_lines, header_lines
from torchcoll.report.notes import Notes, run_lines

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
    """The rank of the run, of a place in the samples: sub-groups have some ranks only."""
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
    the cold ones, warm-up, then of each batch its ramp-up calls and the steady ones.
    """
    number = 0
    parts = [("cold", result.cold_ns), ("warmup", result.warmup_ns)]
    for kind, samples in parts:
        count = max(map(len, samples), default=0)
        if samples and clock == "host":
            yield kind, _numbers(number, [1] * count), samples
        number += count
    steady = result.time_ns.get(clock or "", [])
    leads = max(map(len, result.ramp_up_ns), default=0) // max(1, len(result.batches))
    each = calls_of(result, min(map(len, steady), default=0))
    led = 0
    for first, last in batches_of(result, steady):
        if leads and clock == default_clock(result):
            lead = [row[led : led + leads] for row in result.ramp_up_ns]
            yield "ramp_up", _numbers(number, [1] * leads), lead
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
    parts += [part for part in in_order(result, row.clock) if part[0] in ("ramp_up", "steady")]
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

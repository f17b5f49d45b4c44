"""Two views of the samples of each case: who is late (``--per-rank``), and every call in order."""

from __future__ import annotations

from collections.abc import Sequence

from torchcoll.core.result import CaseResult, Matrix, Run
from torchcoll.core.summary import SLOW_FIRST, Row, median, over_ranks
from torchcoll.core.units import format_time
from torchcoll.report.columns import values_of
from torchcoll.report.grid import Grid, Head
from torchcoll.report.header import first_lines, header_lines
from torchcoll.report.notes import Notes, run_lines
from torchcoll.report.output import one_line
from torchcoll.report.view import View


def per_rank_grids(run: Run, view: View) -> list[Grid]:
    """One table a case: each rank's median, how late it is, how often it was the last."""
    entries = view.entries(run)
    grids = [
        _per_rank(run, entry.result, entry.row, entry.result.time_ns.get(entry.row.clock or "", []))
        for entry in entries
    ]
    return _framed(run, view, [entry.row for entry in entries], grids)


def _framed(run: Run, view: View, rows: Sequence[Row], grids: list[Grid]) -> list[Grid]:
    """Header lines before the first table, lines about the run after the last."""
    above = header_lines(run, rows, view.over_ranks, values_of(rows, "clock"))
    below = run_lines(run, rows, first_calls=False)
    return [Grid([], [], above=above + first_lines(run)), *grids, Grid([], [], below=below)]


def _case_line(result: CaseResult, row: Row) -> str:
    words = [result.case.describe(), "in place" if row.in_place else "out of place"]
    words += [f"{row.clock} clock"] if row.clock else []
    return ", ".join(words)


def _status_lines(result: CaseResult) -> list[str]:
    notes = Notes()
    marks = notes.marks(result)
    return [f"{result.status} {marks}".rstrip()] * (result.status != "ok") + notes.lines()


def _per_rank(run: Run, result: CaseResult, row: Row, samples: Matrix) -> Grid:
    # strict=False: a rank that was lost in mid-batch has fewer calls.
    calls = list(zip(*samples, strict=False))
    heads = [
        Head("rank"),
        Head("host", left=True),
        Head("device", left=True),
        Head("median"),
        Head("behind", "fastest"),
        Head("longest", "% of calls"),
    ]
    rows = []
    for rank in range(len(samples) if calls else 0):
        member = run.members[rank] if rank < len(run.members) else {}
        behind = median([call[rank] - min(call) for call in calls])
        longest = sum(call[rank] == max(call) for call in calls) / len(calls)
        rows.append(
            [
                str(rank),
                one_line(member.get("host") or "-"),
                one_line(member.get("device") or "-"),
                format_time(median([call[rank] for call in calls])),
                format_time(behind),
                f"{100 * longest:.0f}",
            ]
        )
    below = _status_lines(result)
    if rows and result.case.cadence != "isolated":
        below.append("not aligned: a rank's long time can be its waiting for a late one")
    elif not rows and result.status == "ok":
        below.append(f"no calls on the {row.clock} clock")
    return Grid(heads, rows, above=[_case_line(result, row)], below=below)


def calls_grids(run: Run, view: View) -> list[Grid]:
    """One table a case with a row for each call: cold ones, warm-up, steady ones."""
    entries = view.entries(run)
    grids = [_calls(entry.result, entry.row, view.over_ranks) for entry in entries]
    return _framed(run, view, [entry.row for entry in entries], grids)


def _calls(result: CaseResult, row: Row, how: str) -> Grid:
    heads = [
        Head("call"),
        Head("kind", left=True),
        Head("completion " if how == "max" else f"{how} "),
        Head("fastest"),
        Head("rank"),
        Head("slowest"),
        Head("rank"),
    ]
    parts = (
        ("cold", result.cold_ns),
        ("warm-up", result.warmup_ns),
        ("steady", result.time_ns.get(row.clock or "", [])),
    )
    rows: list[list[str]] = []
    slow = False
    for kind, samples in parts:
        times = over_ranks(samples, how)
        for time, call in zip(times, zip(*samples, strict=False), strict=False):
            mark = kind == "cold" and row.median_ns and time > SLOW_FIRST * row.median_ns
            slow = slow or bool(mark)
            low, high = min(call), max(call)
            rows.append(
                [
                    str(len(rows)),
                    kind,
                    format_time(time) + ("*" if mark else " "),
                    format_time(low),
                    str(call.index(low)),
                    format_time(high),
                    str(call.index(high)),
                ]
            )
    below = _status_lines(result)
    if slow:
        below.append("* over 3 times the median of the steady calls")
    if result.ordinal == 0 and result.cold_ns:
        below.append("call 0 is the first of its communicator")
    if result.connect_ns:
        took = format_time(max(result.connect_ns), 3).strip()
        below.append(f"before call 0, its own communicator took {took} to make (the slowest rank)")
    if row.clock not in (None, "host") and (result.cold_ns or result.warmup_ns):
        below.append(f"cold and warm-up calls: host clock; steady calls: {row.clock} clock")
    return Grid(heads, rows, above=[_case_line(result, row)], below=below)

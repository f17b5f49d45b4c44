"""The tables of what collectives and work beside them did to each other, and of hours of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from torchcoll.core.answer import Answer
from torchcoll.core.result import Run
from torchcoll.core.summary import median
from torchcoll.core.units import counted, format_ns, format_size, format_time
from torchcoll.report import chart
from torchcoll.report.formats import select_fields
from torchcoll.report.grid import Grid, Head, make_grid
from torchcoll.report.header import case_text
from torchcoll.stats.drift import drift_text

if TYPE_CHECKING:
    from torchcoll.questions.contention.overlap import Estimate, Overlap
    from torchcoll.questions.contention.soaked import Soaked

_ALONE = (
    "call, work alone: measured for this table, in turn with both together; slowdown: together / "
    "alone [90 % intervals over the blocks of this run]"
)
_OVERLAP = (
    "overlap: of the time that could be hidden the part that was, (calls + work - at once) / "
    "min(calls, work) [90 % interval]; 1 is all, 0 is one after the other"
)


def concurrent_answer(overlaps: Sequence[Overlap]) -> Answer:
    """How much longer the call takes that the concurrent work slows most, and how much of both
    overlaps.
    """
    worst = max(overlaps, key=lambda each: each.slowdown.value)
    low, high = worst.slowdown.low, worst.slowdown.high
    interval = "" if low is None or high is None else f" (90 %: {low:.2f}x to {high:.2f}x)"
    cases = len({overlap.case for overlap in overlaps})
    of_cases = f", most of {cases} cases" if cases > 1 else ""
    details = [
        f"the work takes {_text(worst.work_slowdown, 'x')} as long",
        f"overlap {_overlap_text(worst)} (1 is all, 0 is none)",
    ]
    if not worst.covered:
        details.insert(0, "the work ended before the calls: the real slowdown is larger")
    return Answer(
        f"{worst.case.collective} {format_size(worst.case.size_bytes)}",
        "" if worst.covered else "doubt",
        verb="takes {} as long",
        size=worst.slowdown.value,
        unit="x",
        scope=f"while {worst.work} runs{interval}{of_cases}",
        details=tuple(details),
        next_step="" if worst.covered else "give the work more time: a larger --concurrent size",
    )


def concurrent_grid(overlaps: Sequence[Overlap], machine: Sequence[str] = ()) -> Grid:
    """A row per case. machine: warnings about the machine during the run."""
    return make_grid(
        [
            (Head("collective", left=True, repeat=True), lambda o: o.case.collective),
            (Head("size", repeat=True), lambda o: format_size(o.case.size_bytes)),
            (Head("group", left=True, repeat=True), lambda o: o.case.group or "-"),
            (Head("call", "alone", legend=_ALONE), lambda o: format_time(o.calls_ns)),
            (Head("call", "slowdown"), lambda o: _text(o.slowdown, "x")),
            (Head("work", "alone"), lambda o: format_time(o.work_ns)),
            (Head("work", "slowdown", legend=_WORK), lambda o: _text(o.work_slowdown, "x")),
            (Head("overlap", legend=_OVERLAP), _overlap_text),
            (Head("", left=True), lambda o: "" if o.covered else "too short"),
        ],
        overlaps,
        above=_heads(overlaps),
        below=[
            *([_TOO_SHORT] if not all(o.covered for o in overlaps) else []),
            *(f"WARN {text}: every figure above contains it" for text in machine),
        ],
    )


def _heads(overlaps: Sequence[Overlap]) -> list[str]:
    lines = []
    for work, threads in dict.fromkeys((o.work, o.threads) for o in overlaps):
        where = "on every rank, in a stream of its own"
        if threads is not None:
            where = "on every rank, in a thread of its own"
            if not work.startswith("copy"):
                where += f"; {counted(threads, 'thread')} a product"
        lines.append(f"concurrent with {work}, {where}")
    return lines


def _overlap_text(overlap: Overlap) -> str:
    """``-`` if the interval is wider than the whole range."""
    value = overlap.efficiency
    wide = value.low is not None and value.high is not None and value.high - value.low > 1
    return "-" if wide else _text(value)


def _text(value: Estimate, unit: str = "") -> str:
    text = f"{value.value:.2f}{unit}"
    if value.low is None or value.high is None:
        return text
    return f"{text} [{value.low:.2f}, {value.high:.2f}]"


_TOO_SHORT = (
    "too short: the work of some rank ended before its calls, so they were alone for a part of the "
    "time: slowdown and overlap are too small"
)
_WORK = "slowdown of the work: while the calls ran; what was left of it then ran alone"
_FIELDS = (
    "collective=case.collective size_bytes=case.size_bytes dtype=case.dtype "
    "backend=case.backend group=case.group ranks work threads calls repeats blocks "
    "calls_ns work_ns "
    "slowdown=slowdown.value slowdown_low=slowdown.low slowdown_high=slowdown.high "
    "work_slowdown=work_slowdown.value work_slowdown_low=work_slowdown.low "
    "work_slowdown_high=work_slowdown.high efficiency=efficiency.value "
    "efficiency_low=efficiency.low efficiency_high=efficiency.high uncovered covered"
)


def concurrent_records(overlaps: Sequence[Overlap]) -> list[dict[str, Any]]:
    return [select_fields(overlap, _FIELDS) for overlap in overlaps]


# Hours of the same cases: ``--soak``.


def soak_grid(soak: Soaked) -> Grid:
    return make_grid(
        [
            (Head("collective", left=True, repeat=True), lambda c: c.case.collective),
            (Head("size", repeat=True), lambda c: format_size(c.case.size_bytes)),
            (Head("calls"), lambda c: str(c.calls)),
            (Head("median"), lambda c: format_time(sorted(c.medians_ns)[len(c.medians_ns) // 2])),
            (Head("p99"), lambda c: format_time(c.p99_ns)),
            (Head("max"), lambda c: format_time(c.max_ns)),
            (Head("drift"), lambda c: drift_text(c.drift)),
            (Head("worst", "window"), lambda c: f"{c.worst_over_median:.2f}x {_clock(c.worst_us)}"),
        ],
        soak.cases,
        above=[
            f"soak: {counted(soak.rounds, 'round')} in {soak.duration} "
            f"({counted(soak.windows, 'window')})",
            _ROUNDS,
            _SOAK,
        ],
        below=[f"FAULT {text}" for text in soak.faults],
    )


_ROUNDS = "all rounds but the first, medians of the windows; the table above: the first round alone"
_SOAK = (
    "drift: geometric mean of the last quarter of the time over that of the first [90 %]; p99: at "
    "most 9 % above"
)


def _clock(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, timezone.utc).strftime("%H:%M:%SZ")


_OF_CASE = (
    "collective=case.collective size_bytes=case.size_bytes dtype=case.dtype backend=case.backend "
    "calls p99_ns max_ns drift=drift.value drift_low=drift.low drift_high=drift.high "
    "drift_p=drift.p worst worst_us worst_over_median"
)


def soak_object(soak: Soaked) -> dict[str, Any]:
    return {
        **select_fields(soak, "rounds windows seconds checked calls faulty"),
        "faults": list(soak.faults),
        "answer": soak.answer.to_json(),
        "cases": [
            {**select_fields(case, _OF_CASE), "medians_ns": list(case.medians_ns)}
            for case in soak.cases
        ],
    }


def soak_chart(soak: Soaked, run: Run) -> chart.Chart:
    """The median of each window over that of all windows, a line for each case, over hours."""
    start = run.windows[0].start_wall_us
    traces = []
    for number, case in enumerate(sorted(soak.cases, key=lambda case: -case.worst_over_median)):
        hours = [
            ((w.start_wall_us + w.end_wall_us) / 2 - start) / 3.6e9
            for w in run.windows
            if any(soak_case.case == case.case for soak_case in w.cases)
        ]
        middle = median(list(case.medians_ns)) or 1.0
        kept = chart.reduced(case.medians_ns, chart.MOST_POINTS // 2)
        name = chart.plain(case_text(case.case))
        traces.append(
            {
                "mode": "lines+markers" if len(kept) < 60 else "lines",
                "name": name,
                "x": [chart.rounded(hours[n], 6) for n in kept],
                "y": [chart.rounded(case.medians_ns[n] / middle) for n in kept],
                "text": [f"{name}: {format_ns(case.medians_ns[n], 4)}" for n in kept],
                "hovertemplate": "%{text}<br>%{y:.3f} of its median<extra></extra>",
                "visible": True if number < chart.MOST_LINES else "legendonly",
                **chart.line_style(number),
            }
        )
    layout = {
        "xaxis": {"title": {"text": "hours since the first window"}},
        "yaxis": {"title": {"text": "median time / median of all windows"}},
        "showlegend": True,
    }
    caption = ["above 1: slower in that window than in most"]
    if len(soak.cases) > chart.MOST_LINES:
        caption.append(f"the {chart.MOST_LINES} cases that vary most are shown at first")
    windows = max(len(case.medians_ns) for case in soak.cases)
    if windows > chart.MOST_POINTS // 2:
        caption.append("reduced: of neighbouring windows the fastest and the slowest are drawn")
    return chart.Chart("hours of the same cases", traces, layout, [], caption)

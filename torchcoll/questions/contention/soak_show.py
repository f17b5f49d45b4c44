"""The tables of ``--soak``: hours of the same cases."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from torchcoll.core.result import Run
from torchcoll.core.summary import median
from torchcoll.core.units import counted, format_ns, format_size, format_time
from torchcoll.report import chart
from torchcoll.report.formats import select_fields
from torchcoll.report.grid import Grid, Head, make_grid
from torchcoll.report.header import case_text
from torchcoll.stats.drift import drift_text

if TYPE_CHECKING:
    from torchcoll.questions.contention.soaked import Soaked


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

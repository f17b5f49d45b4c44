"""A chart of the hours of a soak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchcoll.core.result import Run
from torchcoll.core.summary import median
from torchcoll.core.units import format_ns
from torchcoll.report import chart
from torchcoll.report.header import case_text

if TYPE_CHECKING:
    from torchcoll.questions.contention.soaked import Soaked


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
    caption = []
    if len(soak.cases) > chart.MOST_LINES:
        caption.append(f"the {chart.MOST_LINES} cases that vary most are shown at first")
    windows = max(len(case.medians_ns) for case in soak.cases)
    if windows > chart.MOST_POINTS // 2:
        caption.append("reduced: of neighbouring windows the fastest and the slowest are drawn")
    return chart.Chart("hours of the same cases", traces, layout, [], caption)

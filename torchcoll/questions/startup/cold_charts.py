"""Interactive charts of first calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcoll.core.units import counted, format_ns
from torchcoll.report.chart import (
    HOVER,
    MOST_POINTS,
    SCALES,
    Chart,
    band,
    line_style,
    plain,
    ranks_axis,
    seconds,
    time_axis,
)
from torchcoll.report.header import kind_texts

if TYPE_CHECKING:
    from torchcoll.questions.startup.cold import Cold, ColdRow, Scale


_STEPS = {"first": "1st call", "second": "2nd call", "third": "3rd call", "steady": "steady"}


def cold_charts(finding: Cold) -> list[Chart]:
    """What starting cost, a chart for each kind of run: over the number of ranks if there are
    several, otherwise the calls of each run side by side.
    """
    kinds: dict[str, list[Scale]] = {}
    for scale in finding.scales:
        kinds.setdefault(repr((scale.kind, scale.in_job)), []).append(scale)
    several = any(scale.in_job for scale in finding.scales)
    titles = kind_texts(
        [{**first.kind, "in job": first.in_job or None} for first, *_ in kinds.values()],
        always=("collective", "size_bytes", "dtype", "op", "backend", *(["in job"] * several)),
    )
    charts = []
    for title, scales in zip(titles, kinds.values(), strict=True):
        if len({scale.ranks for scale in scales}) > 1:
            chart = _cold_over_ranks(scales)
        else:
            kind = (repr(scales[0].kind), scales[0].in_job)
            chart = _cold_runs([r for r in finding.rows if (repr(r.kind), r.in_job) == kind])
        chart.title = plain(title)
        charts.append(chart)
    return charts


def _cold_over_ranks(scales: Sequence[Scale]) -> Chart:
    scales = sorted(scales, key=lambda scale: scale.ranks)
    traces = []
    intervals = [
        (s.ranks, seconds(s.low_ns) or 0, seconds(s.high_ns) or 0)
        for s in scales
        if s.low_ns and s.high_ns
    ]
    if intervals:
        traces.append(band(intervals, 0, "1st call"))
    for number, (name, title) in enumerate(_STEPS.items()):
        points = [(s, ns) for s in scales if (ns := getattr(s, f"{name}_ns"))]
        traces.append(
            {
                "mode": "lines+markers",
                "name": title,
                "legendgroup": title,
                "x": [s.ranks for s, _ in points],
                "y": [seconds(ns) for _, ns in points],
                "text": [
                    f"{title} on {counted(s.ranks, 'rank')}: {format_ns(ns, 4)}<br>"
                    f"{counted(s.runs, 'run')}"
                    for s, ns in points
                ],
                "hovertemplate": HOVER,
                **line_style(number),
            }
        )
    layout = {
        "xaxis": ranks_axis([scale.ranks for scale in scales]),
        "yaxis": time_axis(),
        "showlegend": True,
    }
    return Chart("", traces, layout, [SCALES])


def _cold_runs(rows: Sequence[ColdRow]) -> Chart:
    drawn = rows[:MOST_POINTS]
    traces = []
    for number, name in enumerate(_STEPS.values()):
        times = [
            (row, row.steady_ns if name == "steady" else row.call_ns(number + 1)) for row in drawn
        ]
        points = [(n, row, ns) for n, (row, ns) in enumerate(times) if ns]
        traces.append(
            {
                "mode": "markers" if len(rows) == 1 else "lines+markers",
                "name": name,
                "x": [n + 1 for n, _, _ in points],
                "y": [seconds(ns) for _, _, ns in points],
                "text": [
                    f"{plain(row.name)}<br>{name}: {format_ns(ns, 4)}" for _, row, ns in points
                ],
                "hovertemplate": HOVER,
                **line_style(number),
            }
        )
    layout = {
        "xaxis": {"title": {"text": "run"}, "tickformat": "d", "nticks": min(12, len(drawn) + 1)},
        "yaxis": time_axis(),
        "showlegend": True,
    }
    caption = [f"the first {len(drawn)} of {len(rows)} runs"] * (len(drawn) < len(rows))
    return Chart("", traces, layout, [SCALES], caption)

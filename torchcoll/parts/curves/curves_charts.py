"""Charts of scaling, transitions and the errors of a model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torchcoll.core.units import (
    counted,
    format_bandwidth,
    format_digits,
    format_ns,
    format_size,
)
from torchcoll.parts.curves.scaling_show import reading_of
from torchcoll.parts.curves.transitions_show import LEGEND, lines_below, notable_texts, note_lines
from torchcoll.questions.comparison.prediction import error_of
from torchcoll.report import chart
from torchcoll.report.header import kind_texts
from torchcoll.report.notes import footer_lines

if TYPE_CHECKING:
    from torchcoll.parts.curves.scaling import RanksCurve, RanksPoint, Scaling
    from torchcoll.parts.curves.transitions import Transitions
    from torchcoll.questions.comparison.compare import Comparison
    from torchcoll.questions.comparison.results import Compared


def scaling_charts(finding: Scaling) -> list[chart.Chart]:
    """Time and speed-up over the number of ranks, a chart for each kind of case, a line for each
    size. One rank sends nothing: no speed-up is relative to it.
    """
    groups: dict[str, list[RanksCurve]] = {}
    for curve in finding.curves:
        if len(_drawn(curve)) > 1:
            groups.setdefault(repr(curve.kind), []).append(curve)
    titles = kind_texts([curves[0].kind for curves in groups.values()])
    several = any(p.runs > 1 for curves in groups.values() for c in curves for p in c.points)
    notes = [f"{reading_of(finding)}; geometric means over the runs; 1: more ranks cost no time"]
    notes += ["band: the fastest and the slowest run"] if several else []
    notes += footer_lines(finding.notes, finding.runs)
    charts = []
    for title, curves in zip(titles, groups.values(), strict=True):
        traces: list[dict[str, Any]] = []
        faster: list[Any] = []
        for number, curve in enumerate(curves):
            points = _drawn(curve)
            name = format_size(curve.size_bytes) if curve.size_bytes else "no data"
            spread = chart.time_bands(
                [(p.ranks, p.low_ns, p.high_ns) for p in points], number, name
            )
            traces += spread
            faster += [[None] * len(trace["y"]) for trace in spread]
            first = points[0].time_ns or 1.0
            traces.append(
                chart.line(
                    name,
                    number,
                    [p.ranks for p in points],
                    [chart.seconds(p.time_ns) for p in points],
                    [
                        f"{name} on {counted(p.ranks, 'rank')}: {format_ns(p.time_ns or 0, 4)}"
                        f"<br>{format_digits(first / (p.time_ns or 1))} times as fast as on "
                        f"{points[0].ranks}"
                        f"<br>{counted(p.runs, 'run')}"
                        for p in points
                    ],
                    legendgroup=name,
                )
            )
            faster.append([chart.rounded(first / (p.time_ns or 1)) for p in points])
        fewest = " or ".join(map(str, sorted({_drawn(curve)[0].ranks for curve in curves})))
        times = [trace["y"] for trace in traces]
        figure = chart.time_or("speed-up", f"times as fast as on {fewest} ranks", times, faster)
        ranks = [p.ranks for curve in curves for p in _drawn(curve)]
        layout = {"xaxis": chart.ranks_axis(ranks), "yaxis": chart.time_axis(), "showlegend": True}
        caption = ["a line for each size: flat if more ranks cost no time"]
        selectors = [figure, chart.SCALES]
        drawn = chart.Chart(chart.plain(title), traces, layout, selectors, caption, notes=notes)
        drawn.more_traces = [chart.reference(1, ranks)]
        charts.append(drawn)
    return charts


def _drawn(curve: RanksCurve) -> list[RanksPoint]:
    return [point for point in curve.points if point.time_ns and point.ranks > 1]


def transitions_charts(finding: Transitions) -> list[chart.Chart]:
    """The measured times, the law of each range of sizes, and where one ends (shaded)."""
    titles = kind_texts([curve.common for curve in finding.curves])
    charts = []
    for curve, title in zip(finding.curves, titles, strict=True):
        share = curve.share or 1.0  # what algbw counts of a size
        sizes = [point.size_bytes for point in curve.points]
        drawn: list[tuple[dict[str, Any], list[float]]] = [
            (
                {
                    "name": "measured",
                    "mode": "markers",
                    "x": sizes,
                    "marker": {"color": chart.NEUTRAL, "size": 6},
                    "text": [
                        f"{format_size(p.size_bytes)}: {format_ns(p.time_ns, 4)}"
                        for p in curve.points
                    ],
                    "hovertemplate": chart.HOVER,
                },
                [point.time_ns for point in curve.points],
            )
        ]
        for number, size_range in enumerate(curve.curve.ranges):
            low, high = math.log(sizes[size_range.first]), math.log(sizes[size_range.last])
            steps = [math.exp(low + (high - low) * k / 20) for k in range(21)]
            ends = " to ".join(format_size(sizes[n]) for n in (size_range.first, size_range.last))
            latency = max(0.0, size_range.latency_ns)
            bandwidth = format_bandwidth(curve.algbw_gbps(size_range))
            law = {
                "name": f"fit of {ends}",
                "mode": "lines",
                "x": [chart.rounded(step, 6) for step in steps],
                "hovertemplate": f"fit of {ends}: {format_ns(latency)} + size / {bandwidth} GB/s"
                "<extra></extra>",
                "line": chart.line_style(number)["line"],
            }
            drawn.append((law, [size_range.time_ns(step) for step in steps]))
        traces = [{**trace, "y": [chart.seconds(ns) for ns in ys]} for trace, ys in drawn]
        algbw = [
            [chart.rounded(share * x / ns) for x, ns in zip(trace["x"], ys, strict=True)]
            for trace, ys in drawn
        ]
        across = {"yref": "paper", "y0": 0, "y1": 1, "xref": "x", "layer": "below"}
        shapes = [
            {**across, "type": "rect", "x0": t.low_bytes, "x1": t.high_bytes, "line": {"width": 0},
             "fillcolor": "rgba(122,127,133,0.25)"}
            for t in curve.transitions
        ]  # fmt: skip
        for handover in curve.handovers:
            middle = math.sqrt(handover.low_bytes * handover.high_bytes)
            line = {"color": chart.PALETTE[1], "width": 1, "dash": "dot"}
            shapes.append({**across, "type": "line", "x0": middle, "x1": middle, "line": line})
        unit = "GB/s algbw" if curve.share else "GB/s, size / time"
        figure = chart.time_or("bandwidth", unit, [trace["y"] for trace in traces], algbw)
        layout = {
            "xaxis": chart.size_axis(sizes),
            "yaxis": chart.time_axis(),
            "showlegend": True,
            "shapes": shapes,
        }
        caption = ["dots: measured; lines: latency + size / bandwidth, fitted to a range of sizes"]
        if curve.transitions:
            caption.append("shaded: a transition lies between these sizes (95 %)")
        if curve.handovers:
            caption.append("dotted: change of algorithm in the log")
        which = f"{title}: " if len(finding.curves) > 1 else ""
        texts = [*notable_texts(curve), *lines_below(curve)]
        notes = [LEGEND, *(f"{which}{text}" for text in texts), *note_lines([finding])]
        selectors = [figure, chart.SCALES]
        charts.append(
            chart.Chart(chart.plain(title), traces, layout, selectors, caption, notes=notes)
        )
    return charts


def errors_charts(comparison: Comparison) -> list[chart.Chart]:
    """The error of each prediction over sizes: a chart for each collective, a line for each number
    of ranks.
    """
    points: dict[str, dict[int, list[tuple[Compared, float]]]] = {}
    for row in sorted(comparison.rows, key=lambda row: (row.row.ranks, row.row.size_bytes)):
        error = error_of(row, comparison.new)
        if error is not None:
            by_ranks = points.setdefault(row.row.collective, {})
            by_ranks.setdefault(row.row.ranks, []).append((row, 100 * error))
    charts = []
    for collective, by_ranks in points.items():
        traces = [
            {
                "mode": "lines+markers",
                "name": counted(ranks, "rank"),
                "x": [row.row.size_bytes for row, _ in rows],
                "y": [chart.rounded(error) for _, error in rows],
                "text": [
                    f"{format_size(row.row.size_bytes)} on {counted(ranks, 'rank')}<br>predicted "
                    f"{format_ns(row.new or 0, 4)}, measured {format_ns(row.base or 0, 4)}"
                    for row, _ in rows
                ],
                "hovertemplate": "%{text}<br>error %{y:+.3~g} %<extra></extra>",
                **chart.line_style(number),
            }
            for number, (ranks, rows) in enumerate(by_ranks.items())
        ]
        sizes = [row.row.size_bytes for rows in by_ranks.values() for row, _ in rows]
        layout = {
            "xaxis": chart.size_axis(sizes),
            "yaxis": {"title": {"text": "predicted / measured - 1 (%)"}, "zeroline": True},
            "showlegend": True,
        }
        caption = ["above 0 the prediction is too long, below too short; a line a number of ranks"]
        charts.append(chart.Chart(chart.plain(collective), traces, layout, caption=caption))
    return charts

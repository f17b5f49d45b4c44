"""Interactive charts of scaling, transitions and the errors of a model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torchcoll.core.units import counted, format_bandwidth, format_ns, format_size
from torchcoll.parts.curves.validation_show import error_panels
from torchcoll.report.chart import (
    HOVER,
    NEUTRAL,
    PALETTE,
    SCALES,
    Chart,
    Option,
    Selector,
    band,
    line_style,
    plain,
    ranks_axis,
    rounded,
    seconds,
    size_axis,
    time_axis,
)
from torchcoll.report.header import kind_texts

if TYPE_CHECKING:
    from torchcoll.parts.curves.scaling import RanksCurve, Scaling
    from torchcoll.parts.curves.transitions import Transitions
    from torchcoll.parts.curves.validation_show import Validated


def scaling_charts(finding: Scaling) -> list[Chart]:
    """Time and speed-up over the number of ranks, a chart for each kind of case, a line for each
    size.
    """
    groups: dict[str, list[RanksCurve]] = {}
    for curve in finding.curves:
        if len([point for point in curve.points if point.time_ns]) > 1:
            groups.setdefault(repr(curve.kind), []).append(curve)
    titles = kind_texts([curves[0].kind for curves in groups.values()])
    charts = []
    for title, curves in zip(titles, groups.values(), strict=True):
        traces: list[dict[str, Any]] = []
        times: list[Any] = []
        faster: list[Any] = []
        for number, curve in enumerate(curves):
            points = [point for point in curve.points if point.time_ns]
            name = format_size(curve.size_bytes) if curve.size_bytes else "no data"
            intervals = [
                (p.ranks, seconds(p.low_ns) or 0, seconds(p.high_ns) or 0)
                for p in points
                if p.low_ns and p.high_ns
            ]
            if intervals:
                traces.append(band(intervals, number, name))
                times.append(traces[-1]["y"])
                faster.append([None] * len(traces[-1]["y"]))
            first = points[0].time_ns or 1.0
            traces.append(
                {
                    "mode": "lines+markers",
                    "name": name,
                    "legendgroup": name,
                    "x": [p.ranks for p in points],
                    "y": [seconds(p.time_ns) for p in points],
                    "text": [
                        f"{name} on {counted(p.ranks, 'rank')}: {format_ns(p.time_ns or 0, 4)}"
                        f"<br>{first / (p.time_ns or 1):.3g} times as fast as on {points[0].ranks}"
                        f"<br>{counted(p.runs, 'run')}"
                        for p in points
                    ],
                    "hovertemplate": HOVER,
                    **line_style(number),
                }
            )
            times.append(traces[-1]["y"])
            faster.append([rounded(first / (p.time_ns or 1)) for p in points])
        fewest = " or ".join(map(str, sorted({curve.points[0].ranks for curve in curves})))
        of_time = {"yaxis.title.text": "time of a call", "yaxis.tickformat": "~s"}
        of_time |= {"yaxis.ticksuffix": "s"}
        of_speed = {"yaxis.title.text": f"times as fast as on {fewest} ranks"}
        of_speed |= {"yaxis.tickformat": "", "yaxis.ticksuffix": ""}
        figure = Selector(
            "figure",
            (Option("time", {"y": times}, of_time), Option("speed-up", {"y": faster}, of_speed)),
        )
        layout = {
            "xaxis": ranks_axis([p.ranks for c in curves for p in c.points if p.time_ns]),
            "yaxis": time_axis(),
            "showlegend": True,
        }
        charts.append(Chart(plain(title), traces, layout, [figure, SCALES]))
    return charts


def transitions_charts(finding: Transitions) -> list[Chart]:
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
                    "marker": {"color": NEUTRAL, "size": 6},
                    "text": [
                        f"{format_size(p.size_bytes)}: {format_ns(p.time_ns, 4)}"
                        for p in curve.points
                    ],
                    "hovertemplate": HOVER,
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
                "x": [rounded(step, 6) for step in steps],
                "hovertemplate": f"fit of {ends}: {format_ns(latency)} + size / {bandwidth} GB/s"
                "<extra></extra>",
                "line": line_style(number)["line"],
            }
            drawn.append((law, [size_range.time_ns(step) for step in steps]))
        traces = [{**trace, "y": [seconds(ns) for ns in ys]} for trace, ys in drawn]
        algbw = [
            [rounded(share * x / ns) for x, ns in zip(trace["x"], ys, strict=True)]
            for trace, ys in drawn
        ]
        across = {"yref": "paper", "y0": 0, "y1": 1, "xref": "x", "layer": "below"}
        shapes = [
            {**across, "type": "rect", "x0": t.low_bytes, "x1": t.high_bytes, "line": {"width": 0},
             "fillcolor": "rgba(122,127,133,0.25)"}
            for t in curve.transitions
        ]  # fmt: skip
        for handover in (*curve.handovers, *curve.forced):
            middle = math.sqrt(handover.low_bytes * handover.high_bytes)
            line = {"color": PALETTE[1], "width": 1, "dash": "dot"}
            shapes.append({**across, "type": "line", "x0": middle, "x1": middle, "line": line})
        unit = "GB/s algbw" if curve.share else "GB/s, size / time"
        of_time = {"yaxis.title.text": "time of a call", "yaxis.tickformat": "~s"}
        of_time |= {"yaxis.ticksuffix": "s"}
        of_algbw = {"yaxis.title.text": unit, "yaxis.tickformat": "", "yaxis.ticksuffix": ""}
        figure = Selector(
            "figure",
            (
                Option("time", {"y": [trace["y"] for trace in traces]}, of_time),
                Option("bandwidth", {"y": algbw}, of_algbw),
            ),
        )
        layout = {
            "xaxis": size_axis(sizes),
            "yaxis": time_axis(),
            "showlegend": True,
            "shapes": shapes,
        }
        caption = []
        if curve.transitions:
            caption.append("shaded: a transition lies between these sizes (95 %)")
        if curve.handovers or curve.forced:
            caption.append("dotted: change of algorithm in the log, or of the best forced cell")
        charts.append(Chart(plain(title), traces, layout, [figure, SCALES], caption))
    return charts


def errors_charts(result: Validated) -> list[Chart]:
    """The error of each prediction over sizes, a chart for each kind of case, a line for each
    number of ranks, with the 90 % interval of the prediction.
    """
    charts = []
    for title, points in error_panels(result).items():
        traces = []
        for number, ranks in enumerate(sorted({point.ranks for point in points})):
            drawn = sorted((p for p in points if p.ranks == ranks), key=lambda p: p.size_bytes)
            errors = [100 * (p.predicted_ns / p.measured_ns - 1) for p in drawn]
            ends = [
                [
                    100 * abs(ns - p.predicted_ns) / p.measured_ns if ns else 0
                    for p in drawn
                    for ns in (getattr(p, name),)
                ]
                for name in ("high_ns", "low_ns")
            ]
            style = line_style(number)
            traces.append(
                {
                    "mode": "lines+markers",
                    "name": counted(ranks, "rank"),
                    "x": [p.size_bytes for p in drawn],
                    "y": [rounded(error) for error in errors],
                    "error_y": {"array": [rounded(x) for x in ends[0]], "symmetric": False,
                                "arrayminus": [rounded(x) for x in ends[1]], "thickness": 1},
                    "text": [
                        f"{format_size(p.size_bytes)} on {counted(p.ranks, 'rank')}<br>predicted "
                        f"{format_ns(p.predicted_ns, 4)}, measured {format_ns(p.measured_ns, 4)}"
                        for p in drawn
                    ],
                    "hovertemplate": "%{text}<br>error %{y:+.3~g} %<extra></extra>",
                    **style,
                }
            )  # fmt: skip
        layout = {
            "xaxis": size_axis([p.size_bytes for p in points]),
            "yaxis": {"title": {"text": "predicted / measured - 1 (%)"}, "zeroline": True},
            "showlegend": True,
        }
        charts.append(Chart(plain(title), traces, layout))
    return charts

"""Interactive charts of runs, comparisons and findings: each function returns Chart objects.

The page of ``torchcoll report`` draws them, and a notebook may show ``chart.figure()``. A function
that takes ``keys`` gives each point the keys of the cases behind it: ``keys`` maps ``id(result)``
of a CaseResult to the key under which the page describes that case. Heat maps are in
``heat_maps.py``, charts of findings in ``finding_charts.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import (
    Row,
    completions,
    default_clock,
    has_period,
    median,
    quantile,
    slowest,
)
from torchcoll.core.two_modes import two_modes
from torchcoll.core.units import counted, format_bandwidth, format_ns, format_size
from torchcoll.questions.show.plot import Picture, PlotLine, PlotPoint, line_names, picture_caption
from torchcoll.report.chart import (
    HOVER,
    MOST_LINES,
    MOST_POINTS,
    NEUTRAL,
    PALETTE,
    SCALES,
    Chart,
    Option,
    Selector,
    band,
    keys_of,
    line_style,
    plain,
    reduced,
    rounded,
    seconds,
    size_axis,
    time_axis,
)
from torchcoll.report.header import case_text
from torchcoll.report.sample_views import calls_in_order, rank_of

if TYPE_CHECKING:
    from torchcoll.questions.check.rules import Limit

_BINS = 48  # of a histogram


def curves_charts(
    picture: Picture,
    over_ranks: str = "max",
    limits: Sequence[tuple[str, Limit]] = (),
    keys: Mapping[int, str] = {},
) -> list[Chart]:
    """Time and bus bandwidth over sizes, a chart for each collective, a line for each PlotLine.

    limits: (fabric, limit) whose busbw is drawn, as of ``lines_figure``.
    """
    return [
        _curves_chart(
            collective,
            lines,
            [(name, limit) for name, limit in limits if collective in limit.collectives],
            picture_caption(picture, over_ranks),
            keys,
        )
        for collective, lines in picture.panels.items()
    ]


def _curves_chart(
    collective: str,
    lines: Sequence[PlotLine],
    limits: Sequence[tuple[str, Limit]],
    caption: Sequence[str],
    keys: Mapping[int, str],
) -> Chart:
    traces: list[dict[str, Any]] = []
    times: list[list[float | None]] = []
    bandwidths: list[list[float | None]] = []
    bands: list[int] = []
    several_runs = any(point.runs > 1 for line in lines for point in line.points)
    for number, (line, name) in enumerate(zip(lines, line_names(lines), strict=True)):
        name = plain(name) or plain(collective)
        intervals = [p for p in line.points if p.low_ns and p.high_ns]
        if intervals:
            spread = band(
                [
                    (p.size_bytes, seconds(p.low_ns) or 0, seconds(p.high_ns) or 0)
                    for p in intervals
                ],
                number,
                name,
            )
            bands.append(len(traces))
            traces.append(spread)
            times.append(spread["y"])
            # busbw is size / time x a factor: the longest time is the lowest bandwidth.
            there = [_busbw_at(p, p.high_ns) for p in intervals]
            back = [_busbw_at(p, p.low_ns) for p in reversed(intervals)]
            bandwidths.append([*there, *back])
        kinds = [(line.points, line_style(number), "lines+markers", name)]
        if line.doubted:
            doubts = " or ".join(dict.fromkeys(filter(None, map(_doubt, line.rows))))
            colour = PALETTE[number % len(PALETTE)]
            crossed = {"marker": {"symbol": "x-thin-open", "size": 11, "color": colour}}
            kinds.append((line.doubted, crossed, "markers", f"{name}: {plain(doubts)}"))
        for points, style, mode, label in kinds:
            traces.append(
                {
                    "mode": mode,
                    "name": label,
                    "legendgroup": name,
                    "x": [p.size_bytes for p in points],
                    "y": [seconds(p.time_ns) for p in points],
                    "text": [_point_text(label, p, several_runs) for p in points],
                    "customdata": [keys_of(p.results, keys) for p in points],
                    "hovertemplate": HOVER,
                    **style,
                }
            )
            times.append(traces[-1]["y"])
            bandwidths.append([rounded(p.busbw_gbps) for p in points])
    sizes = [p.size_bytes for line in lines for p in (*line.points, *line.doubted)]
    for fabric, limit in limits:
        ends = [min(sizes), max(sizes)]
        text = plain(f"{limit.algorithm} limit of {fabric}: {limit.busbw_gbps:.4g} GB/s")
        traces.append(
            {
                "mode": "lines", "name": text, "text": [text, text],
                "x": ends, "y": [None, None], "hovertemplate": HOVER,
                "line": {"color": NEUTRAL, "dash": "dash", "width": 1},
            }
        )  # fmt: skip
        times.append([None, None])
        bandwidths.append([limit.busbw_gbps] * 2)
    selectors = []
    if any(value is not None for values in bandwidths for value in values):
        of_time = {"yaxis.title.text": "time of a call", "yaxis.tickformat": "~s"}
        of_time |= {"yaxis.ticksuffix": "s"}
        of_busbw = {
            "yaxis.title.text": "GB/s busbw",
            "yaxis.tickformat": "",
            "yaxis.ticksuffix": "",
        }
        selectors.append(
            Selector(
                "figure",
                (
                    Option("time", {"y": times}, of_time),
                    Option("bus bandwidth", {"y": bandwidths}, of_busbw),
                ),
            )
        )
    selectors.append(SCALES)
    if bands:
        shown, hidden = ({"opacity": [value] * len(bands)} for value in (1, 0))
        selectors.append(
            Selector(
                "spread", (Option("shown", shown, {}, bands), Option("hidden", hidden, {}, bands))
            )
        )
    layout = {"xaxis": size_axis(sizes), "yaxis": time_axis(), "showlegend": len(lines) > 1}
    return Chart(plain(collective), traces, layout, selectors, list(caption))


def _busbw_at(point: PlotPoint, time_ns: float | None) -> float | None:
    if not (point.busbw_gbps and time_ns):
        return None
    return rounded(point.busbw_gbps * point.time_ns / time_ns)


def _point_text(name: str, point: PlotPoint, several_runs: bool) -> str:
    lines = [name, f"{format_size(point.size_bytes)}: {format_ns(point.time_ns, 4)}"]
    if point.low_ns and point.high_ns:
        lines.append(f"spread {format_ns(point.low_ns, 4)} to {format_ns(point.high_ns, 4)}")
    if point.busbw_gbps:
        lines.append(f"{format_bandwidth(point.busbw_gbps)} GB/s busbw")
    if several_runs:
        lines.append(counted(point.runs, "run"))
    return "<br>".join(lines)


def _doubt(row: Row) -> str:
    return "" if row.is_right else row.outcome


def calls_chart(
    run: Run,
    result: CaseResult,
    key: str = "",
    most_points: int = MOST_POINTS,
    most_ranks: int = MOST_LINES,
) -> Chart:
    """The calls of one case in order, and how the steady calls are distributed.

    A selector chooses the slowest rank of each call, or one rank. most_points: of each of these;
    of more calls, the fastest and the slowest of neighbours remain. most_ranks: of more ranks,
    those with the shortest, middle and longest median and with the longest call can be chosen.
    """
    clock = default_clock(result)
    period = has_period(result, clock)
    groups = [group for group in calls_in_order(result, "host") if group[0] in ("cold", "warmup")]
    groups += [
        group for group in calls_in_order(result, clock) if group[0] in ("ramp_up", "steady")
    ]
    count = len(result.time_ns.get(clock or "", result.cold_ns))
    indices = _ranks_to_choose(result, clock, count, most_ranks)
    of_calls = "last rank to arrive" if result.last_to_arrive else "slowest rank"
    options: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]], int]] = []
    for index in (None, *indices):
        series: dict[str, tuple[list[int], list[float]]] = {}
        for kind, numbers, samples in groups:
            if index is not None:
                times: Sequence[float] = samples[index] if index < len(samples) else []
            elif kind == "steady" and period:
                times = slowest(samples)
            else:
                times = completions(result, samples)
            calls, values = series.setdefault(kind, ([], []))
            calls += [call.start for call, _ in zip(numbers, times, strict=False)]
            values += times
        name = of_calls if index is None else f"rank {rank_of(result, index)}"
        options.append((name, *_calls_traces(series, most_points)))
    name, traces, shapes, each = options[0]
    selectors = []
    if len(options) > 1:
        selectors.append(
            Selector(
                "rank",
                [
                    Option(
                        text,
                        {k: [t[k] for t in drawn] for k in ("x", "y")},
                        {"shapes": bands},
                    )
                    for text, drawn, bands, _ in options
                ],
            )
        )
    caption = [f"{'intervals between calls' if period else 'time of a call'}, {clock} clock"]
    if clock != "host" and any(kind in ("cold", "warmup") for kind, _, _ in groups):
        caption[0] += " (cold and warm-up calls: host clock)"
    caption.append(
        "outliers: beyond the third quartile by over 3 interquartile ranges of the logarithms; "
        "bands: 5th to 95th percentile of each mode, where the calls fall into two; right: how "
        "many steady calls took so long"
    )
    if each > 1:
        caption.append(
            f"reduced: of every {each} calls in a row the fastest and the slowest are drawn; the "
            "distribution on the right is of all calls"
        )
    if len(indices) < count > 1:
        caption.append(f"reduced: {len(indices) or 'none'} of {count} ranks can be chosen")
    layout = {
        "xaxis": {"title": {"text": "number of the call"}, "domain": [0, 0.82]},
        "xaxis2": {"title": {"text": "calls"}, "domain": [0.85, 1], "rangemode": "tozero",
                   "nticks": 3},
        "yaxis": time_axis("interval between calls" if period else "time of a call"),
        "showlegend": True,
        "shapes": shapes,
    }  # fmt: skip
    return Chart(plain(case_text(result.case)), traces, layout, [*selectors, SCALES], caption, key)


def _ranks_to_choose(result: CaseResult, clock: str | None, count: int, most: int) -> Sequence[int]:
    samples = result.time_ns.get(clock or "", [])
    if count <= 1:
        return []
    if count <= most or not samples or most < 1:
        return range(min(count, most))
    middles = [median(times) if times else 0.0 for times in samples]
    order = sorted(range(count), key=middles.__getitem__)
    longest = max(range(count), key=lambda index: max(samples[index], default=0))
    wanted = [order[-1], order[0], order[count // 2], longest, *order[-2::-1]]
    return sorted(list(dict.fromkeys(wanted))[:most])


_KIND_STYLES = {
    "cold": ("cold", {"symbol": "circle-open", "size": 9, "color": PALETTE[1]}),
    "warmup": ("warm-up", {"symbol": "square-open", "size": 7, "color": PALETTE[5]}),
    "ramp_up": ("ramp-up", {"symbol": "x-thin-open", "size": 6, "color": PALETTE[3]}),
    "steady": ("steady", {"symbol": "circle", "size": 4, "color": PALETTE[0]}),
}


def _calls_traces(
    series: Mapping[str, tuple[list[int], list[float]]], most: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """(traces, bands of the modes, how many calls stand behind two points)."""
    calls, times = series.get("steady", ([], []))
    modes = two_modes(times)
    fence = math.inf
    if len(times) >= 8 and min(times) > 0:
        low, high = (math.log(quantile(sorted(times), share)) for share in (0.25, 0.75))
        fence = max(math.exp(high + 3 * (high - low)), 1.5 * median(times))
    if modes:
        fence = max(fence, 1.5 * modes.slow[1])
    steady = reduced(times, most)
    each = -(-2 * len(times) // most) if len(steady) < len(times) else 1
    traces = []
    for kind, (name, marker) in _KIND_STYLES.items():
        numbers, values = series.get(kind, ([], []))
        kept: Sequence[int] = range(len(values))
        if kind == "steady":
            kept = [n for n in steady if values[n] <= fence]
        elif len(values) > most // 4:
            kept = reduced(values, most // 4)
        traces.append(_marks(name, marker, [numbers[n] for n in kept], [values[n] for n in kept]))
    far = [n for n in steady if times[n] > fence]
    mark = {"symbol": "diamond-open", "size": 10, "color": PALETTE[1]}
    traces.append(_marks("outliers", mark, [calls[n] for n in far], [times[n] for n in far]))
    counts: Sequence[int] = []
    middles: Sequence[float] = []
    if len(times) > 1 and min(times) > 0:
        number, edges = np.histogram(np.log(times), _BINS)
        counts, middles = number.tolist(), np.exp((edges[:-1] + edges[1:]) / 2).tolist()
    traces.append(
        {
            "mode": "lines", "name": "distribution", "xaxis": "x2",
            "x": counts, "y": [seconds(ns) for ns in middles],
            "fill": "tozerox", "line": {"shape": "vhv", "width": 1, "color": PALETTE[0]},
            "showlegend": False, "hovertemplate": "%{x} calls of about %{y:.3~s}s<extra></extra>",
        }
    )  # fmt: skip
    across = {"type": "rect", "xref": "paper", "x0": 0, "x1": 0.82, "layer": "below"}
    shapes = [
        {**across, "yref": "y", "y0": seconds(low), "y1": seconds(high), "line": {"width": 0},
         "fillcolor": "rgba(0,114,178,0.12)" if number == 0 else "rgba(213,94,0,0.14)"}
        for number, (low, high) in enumerate((modes.fast, modes.slow) if modes else ())
    ]  # fmt: skip
    return traces, shapes, each


def _marks(
    name: str, marker: Mapping[str, Any], numbers: list[int], times: Sequence[float]
) -> dict[str, Any]:
    return {
        "mode": "markers", "name": name, "marker": dict(marker),
        "x": numbers, "y": [seconds(ns) for ns in times],
        "hovertemplate": f"call %{{x}}, {name}: %{{y:.4~s}}s<extra></extra>",
    }  # fmt: skip


def first_calls_charts(run: Run, rows: Sequence[Row], keys: Mapping[int, str] = {}) -> list[Chart]:
    """The first and the second call of each case beside its steady figure, over sizes: which sizes
    are cold again. A chart for each collective and backend with at least two such cases.

    rows: of the cases of the run, as ``summarise_run`` returns them.
    """
    groups: dict[str, list[tuple[Row, CaseResult]]] = {}
    for row, result in zip(rows, run.results, strict=True):
        if result.reported and result.reported.one_cold_call:
            continue  # its time is that of its first call
        if row.is_right and row.first_call_ns and row.median_ns:
            groups.setdefault(f"{row.collective}, {row.backend}", []).append((row, result))
    return [
        _first_calls_chart(name, cases, keys) for name, cases in groups.items() if len(cases) > 1
    ]


def _first_calls_chart(
    name: str, cases: Sequence[tuple[Row, CaseResult]], keys: Mapping[int, str]
) -> Chart:
    fields = {"first_call_ns": "1st call", "second_call_ns": "2nd call", "median_ns": "steady"}
    sizes = [max(1, row.size_bytes) for row, _ in cases]
    lines = len(set(sizes)) == len(sizes)  # otherwise cases differ in more than the size
    traces = []
    for number, (figure, title) in enumerate(fields.items()):
        points = [(row, result, ns) for row, result in cases if (ns := getattr(row, figure))]
        traces.append(
            {
                "mode": "lines+markers" if lines else "markers",
                "name": title,
                "x": [max(1, row.size_bytes) for row, _, _ in points],
                "y": [seconds(ns) for _, _, ns in points],
                "text": [
                    f"{plain(case_text(result.case))}<br>{title}: {format_ns(ns, 4)}"
                    f"<br>{ns / (row.median_ns or 1):.3g} times the steady figure"
                    for row, result, ns in points
                ],
                "customdata": [keys_of([result], keys) for _, result, _ in points],
                "hovertemplate": HOVER,
                **line_style(number),
            }
        )
    layout = {
        "xaxis": size_axis(sizes),
        "yaxis": time_axis(),
        "showlegend": True,
    }
    caption = ["slowest rank of each call; cold calls are on the host clock"]
    return Chart(plain(name), traces, layout, [SCALES], caption)

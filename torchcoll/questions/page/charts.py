"""Charts of runs, their calls and their ranks: each function returns Chart objects.

The page of ``torchcoll report`` draws them, and a notebook may show ``chart.figure()``. A function
that takes ``keys`` gives each point the keys of the cases behind it: ``keys`` maps ``id(result)``
of a CaseResult to the key under which the page describes that case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchcoll.core import summary
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import median
from torchcoll.core.two_modes import two_modes
from torchcoll.report import chart
from torchcoll.report.chart import TIMES, Chart, heat_map, keys_of, merged, plain, texts_fit
from torchcoll.report.header import case_text
from torchcoll.report.sample_views import calls_in_order, rank_of

_BINS = 48  # of a histogram
_CASES = 3  # of a run: the smallest size, a middle one, the largest


def sampled(run: Run) -> list[CaseResult]:
    return [result for result in run.results if result.is_right and result.time_ns]


def steady_samples(result: CaseResult) -> Sequence[Sequence[int]]:
    return result.time_ns[summary.default_clock(result) or ""]


def chosen(run: Run) -> list[CaseResult]:
    """The cases that are drawn call by call: of the first kind of case its smallest, middle and
    largest size.
    """
    every = sampled(run)
    if not every:
        return []
    first = every[0].case
    alike = [r for r in every if replace(r.case, size_bytes=first.size_bytes) == first]
    alike.sort(key=lambda r: r.case.size_bytes)
    places = dict.fromkeys((0, len(alike) // 2, len(alike) - 1))
    return [alike[place] for place in places][:_CASES]


def calls_chart(
    run: Run,
    result: CaseResult,
    key: str = "",
    most_points: int = chart.MOST_POINTS,
    most_ranks: int | None = chart.MOST_LINES,
) -> chart.Chart:
    """The calls of one case in order, and how the steady calls are distributed.

    A selector chooses the slowest rank of each call, or one rank. most_points: of each of these;
    of more calls, the fastest and the slowest of neighbours remain. most_ranks: of more ranks,
    those with the shortest, middle and longest median and with the longest call can be chosen;
    None: no rank, as in a picture.
    """
    clock = summary.default_clock(result)
    period = summary.has_period(result, clock)
    groups = [group for group in calls_in_order(result, "host") if group[0] in ("cold", "warmup")]
    groups += [
        group for group in calls_in_order(result, clock) if group[0] in ("ramp_up", "steady")
    ]
    count = len(result.time_ns.get(clock or "", result.cold_ns))
    indices = _ranks_to_choose(result, clock, count, most_ranks or 0)
    options: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]], int]] = []
    for index in (None, *indices):
        series: dict[str, tuple[list[int], list[float]]] = {}
        for kind, numbers, samples in groups:
            if index is not None:
                times: Sequence[float] = samples[index] if index < len(samples) else []
            elif kind == "steady" and period:
                times = summary.slowest(samples)
            else:
                times = summary.over_ranks(samples)
            calls, values = series.setdefault(kind, ([], []))
            calls += [call.start for call, _ in zip(numbers, times, strict=False)]
            values += times
        name = "slowest rank" if index is None else f"rank {rank_of(result, index)}"
        options.append((name, *_calls_traces(series, most_points)))
    name, traces, shapes, each = options[0]
    selectors = []
    if len(options) > 1:
        selectors.append(
            chart.Selector(
                "rank",
                [
                    chart.Option(
                        text,
                        {k: [t[k] for t in drawn] for k in ("x", "y")},
                        {"shapes": bands},
                    )
                    for text, drawn, bands, _ in options
                ],
            )
        )
    what = "interval between calls" if period else "time of a call"
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
    if 0 < len(indices) < count:
        caption.append(f"reduced: {len(indices)} of {count} ranks can be chosen")
    layout = {
        "xaxis": {"title": {"text": "number of the call"}, "domain": [0, 0.82]},
        "xaxis2": {"title": {"text": "calls"}, "domain": [0.85, 1], "rangemode": "tozero",
                   "nticks": 3},
        "yaxis": chart.time_axis("slowest rank" if most_ranks is None else what),
        "showlegend": True,
        "shapes": shapes,
    }  # fmt: skip
    return chart.Chart(
        chart.plain(case_text(result.case)),
        traces,
        layout,
        [*selectors, chart.SCALES],
        caption,
        key,
    )


def _ranks_to_choose(result: CaseResult, clock: str | None, count: int, most: int) -> Sequence[int]:
    samples = result.time_ns.get(clock or "", [])
    if count <= 1:
        return []
    if count <= most or not samples or most < 1:
        return range(min(count, most))
    middles = [summary.median(times) if times else 0.0 for times in samples]
    order = sorted(range(count), key=middles.__getitem__)
    longest = max(range(count), key=lambda index: max(samples[index], default=0))
    wanted = [order[-1], order[0], order[count // 2], longest, *order[-2::-1]]
    return sorted(list(dict.fromkeys(wanted))[:most])


_KIND_STYLES = {
    "cold": ("cold", {"symbol": "circle-open", "size": 9, "color": chart.PALETTE[1]}),
    "warmup": ("warm-up", {"symbol": "square-open", "size": 7, "color": chart.PALETTE[5]}),
    "ramp_up": ("ramp-up", {"symbol": "x-thin-open", "size": 6, "color": chart.PALETTE[3]}),
    "steady": ("steady", {"symbol": "circle", "size": 4, "color": chart.PALETTE[0]}),
}


def _calls_traces(
    series: Mapping[str, tuple[list[int], list[float]]], most: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """(traces, bands of the modes, how many calls stand behind two points)."""
    calls, times = series.get("steady", ([], []))
    modes = two_modes(times)
    fence = math.inf
    if len(times) >= 8 and min(times) > 0:
        low, high = (math.log(summary.quantile(sorted(times), share)) for share in (0.25, 0.75))
        fence = max(math.exp(high + 3 * (high - low)), 1.5 * summary.median(times))
    if modes:
        fence = max(fence, 1.5 * modes.slow[1])
    steady = chart.reduced(times, most)
    each = -(-2 * len(times) // most) if len(steady) < len(times) else 1
    traces = []
    for kind, (name, marker) in _KIND_STYLES.items():
        numbers, values = series.get(kind, ([], []))
        kept: Sequence[int] = range(len(values))
        if kind == "steady":
            kept = [n for n in steady if values[n] <= fence]
        elif len(values) > most // 4:
            kept = chart.reduced(values, most // 4)
        traces.append(_marks(name, marker, [numbers[n] for n in kept], [values[n] for n in kept]))
    far = [n for n in steady if times[n] > fence]
    mark = {"symbol": "diamond-open", "size": 10, "color": chart.PALETTE[1]}
    traces.append(_marks("outliers", mark, [calls[n] for n in far], [times[n] for n in far]))
    counts: Sequence[int] = []
    middles: Sequence[float] = []
    if len(times) > 1 and min(times) > 0:
        number, edges = np.histogram(np.log(times), _BINS)
        counts, middles = number.tolist(), np.exp((edges[:-1] + edges[1:]) / 2).tolist()
    traces.append(
        {
            "mode": "lines", "name": "distribution", "xaxis": "x2",
            "x": counts, "y": [chart.seconds(ns) for ns in middles],
            "fill": "tozerox", "line": {"shape": "vhv", "width": 1, "color": chart.PALETTE[0]},
            "showlegend": False, "hovertemplate": "%{x} calls of about %{y:.3~s}s<extra></extra>",
        }
    )  # fmt: skip
    across = {"type": "rect", "xref": "paper", "x0": 0, "x1": 0.82, "layer": "below"}
    shapes = [
        {**across, "yref": "y", "y0": chart.seconds(low), "y1": chart.seconds(high),
         "line": {"width": 0},
         "fillcolor": "rgba(0,114,178,0.12)" if number == 0 else "rgba(213,94,0,0.14)"}
        for number, (low, high) in enumerate((modes.fast, modes.slow) if modes else ())
    ]  # fmt: skip
    return traces, shapes, each


def _marks(
    name: str, marker: Mapping[str, Any], numbers: list[int], times: Sequence[float]
) -> dict[str, Any]:
    return {
        "mode": "markers", "name": name, "marker": dict(marker),
        "x": numbers, "y": [chart.seconds(ns) for ns in times],
        "hovertemplate": f"call %{{x}}, {name}: %{{y:.4~s}}s<extra></extra>",
    }  # fmt: skip


_CELLS = 256  # rows or columns: of more, neighbours are merged
_TICKS = 16  # ranks or cases that have a tick each


def _to_the_others(times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Each time over the median of all other times; NaN where there are fewer than two."""
    ordered = np.sort(times)  # NaN last
    count = int(np.isfinite(times).sum())
    if count < 2:
        return np.full(times.shape, np.nan)
    place = np.argsort(np.argsort(times))
    low, high = (ordered[n + (place <= n)] for n in ((count - 2) // 2, (count - 1) // 2))
    relative: np.ndarray[Any, Any] = times / np.maximum((low + high) / 2, 1.0)
    return relative


def ranks_chart(run: Run, keys: Mapping[int, str] = {}) -> Chart | None:
    """A row for each rank and a column for each case: the rank's median over the median of all
    other ranks. A row of several ranks has the largest. None if there are no samples, or fewer than
    three ranks: of two each is the mirror image of the other.
    """
    every = [r for r in sampled(run) if len(steady_samples(r)) == run.ranks > 2]
    if not every:
        return None
    results = every[:_CELLS]
    step = -(-run.ranks // _CELLS)
    columns = []
    for result in results:
        middles = [median(times) if times else math.nan for times in steady_samples(result)]
        columns.append(_to_the_others(np.array(middles)))
    names = [case_text(result.case) for result in results]
    if len(set(names)) < len(names):
        names = [
            f"{name} {result.case.backend}" for name, result in zip(names, results, strict=True)
        ]
    caption = [
        "above 0 %: slower than the other ranks; a rank that arrives last waits least: below 0 %"
    ]
    if step > 1:
        caption.append(f"reduced: each row is the slowest of {step} neighbouring ranks")
    if len(results) < len(every):
        caption.append(f"reduced: the first {len(results)} of {len(every)} cases")
    ratios, distinct = merged(np.array(columns).T, step), len(set(names)) == len(names)
    chart = heat_map(
        "rank by case",
        ratios,
        [plain(name) if distinct else f"{n}: {plain(name)}" for n, name in enumerate(names)],
        [n * step for n in range(-(-run.ranks // step))],
        "median time / median of the other ranks",
        f"rank %{{y}}{f' to %{{y}} + {step - 1}' if step > 1 else ''}"
        "<br>%{x}<br>%{z:.3f} of the other ranks<extra></extra>",
        TIMES,
    )
    texts = [["" if np.isnan(x) else f"{round(100 * (x - 1)):+d} %" for x in row] for row in ratios]
    chart.layout["yaxis"] |= {"title": {"text": "rank", "standoff": 12}, "tickformat": "d"}
    chart.layout["xaxis"]["nticks"] = _TICKS  # more slanted names lie over each other
    if run.ranks <= _TICKS:
        chart.layout["yaxis"]["dtick"] = 1
        if texts_fit(texts):
            chart.traces[0] |= {"text": texts, "texttemplate": "%{text}"}
    chart.traces[0]["meta"] = {"keys": [keys_of([result], keys) for result in results]}
    chart.caption = caption
    return chart

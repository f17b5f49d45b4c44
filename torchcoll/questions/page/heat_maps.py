"""Heat maps of ranks by case, pairs of units, and nodes by night, as Chart objects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchcoll.core.result import Run
from torchcoll.core.units import format_size
from torchcoll.questions.page.charts import keys_of
from torchcoll.questions.pairs.matches import EXCHANGE, Pairs
from torchcoll.questions.show.figures import case_text, rank_shares
from torchcoll.report.chart import Chart, plain, rounded

if TYPE_CHECKING:
    from torchcoll.parts.fleet.changes_over_time import PanelHistory

_CELLS = 256  # rows or columns: of more, neighbours are merged
_TICKS = 16  # ranks that have a tick each
_WEEK = 7  # nights
_SLOWEST = 40  # nodes that have a chart of their own
_NIGHTS = 500  # columns
_MOST_CELLS = 40_000  # of a map of nights: plotly takes over 0.1 s to draw 90,000


def ranks_chart(run: Run, keys: Mapping[int, str] = {}) -> Chart | None:
    """A row for each rank and a column for each case: the rank's own median over that of the median
    rank. None if there are fewer than two ranks, or no samples.
    """
    every, step, columns = rank_shares(run, _CELLS)
    if not every:
        return None
    results = every[:_CELLS]
    names = [case_text(result.case) for result in results]
    if len(set(names)) < len(names):
        names = [
            f"{name} {result.case.backend}" for name, result in zip(names, results, strict=True)
        ]
    caption = ["a rank that arrives last waits least, so its time is the shortest"]
    if step > 1:
        caption.append(f"reduced: each row is the slowest of {step} neighbouring ranks")
    if len(results) < len(every):
        caption.append(f"reduced: the first {len(results)} of {len(every)} cases")
    chart = _heat_map(
        "rank by case",
        np.array(columns).T,
        [f"{n}: {plain(name)}" if len(set(names)) < len(names) else plain(name)
         for n, name in enumerate(names)],
        [n * step for n in range(-(-run.ranks // step))],
        "median time / that of the median rank",
        "rank %{y}" + (f" to %{{y}} + {step - 1}" if step > 1 else "")
        + "<br>%{x}<br>%{z:.3f} of the median rank<extra></extra>",
    )  # fmt: skip
    chart.layout["yaxis"] |= {"title": {"text": "rank"}, "tickformat": "d"}
    if run.ranks <= _TICKS:
        chart.layout["yaxis"]["dtick"] = 1
    chart.traces[0]["meta"] = {"keys": [keys_of([result], keys) for result in results]}
    chart.caption = caption
    return chart


def _merged(values: np.ndarray[Any, Any], step: int) -> np.ndarray[Any, Any]:
    """The largest of every ``step`` values along the first axis; NaN where all are."""
    if step == 1:
        return values
    padding = [(0, -len(values) % step)] + [(0, 0)] * (values.ndim - 1)
    padded = np.pad(values, padding, constant_values=np.nan)
    stacked = padded.reshape(-1, step, *values.shape[1:])
    filled = np.where(np.isnan(stacked), -np.inf, stacked).max(axis=1)
    return np.where(np.isneginf(filled), np.nan, filled)


def _heat_map(
    title: str,
    values: np.ndarray[Any, Any],
    columns: Sequence[Any],
    rows: Sequence[Any],
    unit: str,
    hover: str,
    digits: int = 4,
) -> Chart:
    """values [rows, columns]; NaN is left blank."""
    trace = {
        "type": "heatmap", "colorscale": "Cividis", "x": list(columns), "y": list(rows),
        "z": [[rounded(float(value), digits) for value in row] for row in values],
        "hovertemplate": hover, "hoverongaps": False,
        "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 14},
    }  # fmt: skip
    layout = {
        "xaxis": {"automargin": True, "showgrid": False, "zeroline": False},
        "yaxis": {
            "automargin": True,
            "autorange": "reversed",
            "showgrid": False,
            "zeroline": False,
        },
    }
    return Chart(title, [trace], layout)


def pairs_charts(pairs: Pairs) -> list[Chart]:
    """A heat map for each measurement: row and column are the two ends of a pair."""
    charts = []
    count = len(pairs.units)
    step = -(-count // _CELLS)
    names = [f"{unit} ({plain(pairs.hosts[unit])})" for unit in range(0, count, step)]
    for key, times in pairs.times.items():
        kind, size_bytes = key
        # Merged cells show the worst: the lowest bandwidth, the longest latency.
        sign = -1.0 if kind == EXCHANGE else 1.0
        values = np.full((count, count), np.nan)
        for (a, b), timing in times.items():
            ns = timing.median_ns
            value = pairs.gbps(key, (a, b), ns) if kind == EXCHANGE else ns / 1e3
            values[a, b] = sign * value
            if (b, a) not in times:
                values[b, a] = sign * value
        values = sign * _merged(_merged(values, step).T, step).T
        unit = "GB/s" if kind == EXCHANGE else "us"
        figure = "bandwidth (GB/s sent by each)" if kind == EXCHANGE else "median time (us)"
        title = f"{format_size(size_bytes)} both ways" if kind == EXCHANGE else kind
        hover = f"%{{y}} and %{{x}}: %{{z:.4~g}} {unit}<extra></extra>"
        chart = _heat_map(plain(title), values, names, names, figure, hover)
        chart.layout["yaxis"] |= {"title": {"text": pairs.by}}
        chart.layout["xaxis"] |= {"title": {"text": pairs.by}}
        if step > 1:
            chart.caption.append(
                f"reduced: each cell is the slowest pair of {step} by {step} {pairs.by}s"
            )
        charts.append(chart)
    return charts


def nights_charts(history: PanelHistory, command: str = "") -> list[Chart]:
    """A row for each node and a column for each night: how much slower the node was than its own
    baseline and the fleet of that night, in %. The node with the slowest week is at the top; of
    many nodes those with the slowest weeks have a chart of their own, before that of all.

    command: shows one night, whose date is in place of ``{x}``.
    """
    effects = np.asarray(history.node_effects, dtype=float).T  # [N, T]
    present = np.isfinite(effects)
    ends = np.cumsum(np.where(present, effects, 0.0), axis=1), np.cumsum(present, axis=1)
    sums, counts = (end - _shifted(end, _WEEK) for end in ends)
    weeks = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)
    order = np.argsort(-weeks.max(axis=1), kind="stable")
    charts = [_nights_chart(history, effects, order, command)]
    if len(order) > 2 * _SLOWEST:
        charts.insert(0, _nights_chart(history, effects, order[:_SLOWEST], command))
    return charts


def _shifted(values: np.ndarray[Any, Any], by: int) -> np.ndarray[Any, Any]:
    """The values ``by`` columns earlier; 0 where there are none."""
    return np.pad(values, [(0, 0), (by, 0)])[:, : values.shape[1]]


def _nights_chart(
    history: PanelHistory,
    effects: np.ndarray[Any, Any],
    order: np.ndarray[Any, Any],
    command: str,
) -> Chart:
    """order: numbers of the nodes to draw, from the top."""
    from torchcoll.parts.fleet.nights import format_night

    change = 100 * np.expm1(effects[order])
    nodes = [plain(history.panel.nodes[n]) for n in order.tolist()]
    first = history.panel.first_night
    nights = [format_night(first + n) for n in range(change.shape[1])]
    night_step = -(-len(nights) // _NIGHTS)
    columns = -(-len(nights) // night_step)
    step = -(-len(order) // min(_CELLS, _MOST_CELLS // columns))
    merged = _merged(_merged(change, step).T, night_step).T
    rows = [", ".join(nodes[n : n + step]) for n in range(0, len(nodes), step)]
    if step > 3:
        rows = [f"{nodes[n]} + {step - 1}" for n in range(0, len(nodes), step)]
    hover = "%{y}<br>night of %{x}<br>%{z:+.3~g} %<extra></extra>"
    all_nodes = len(order) == len(effects)
    title = "all" if all_nodes else f"{len(order)} with the slowest weeks"
    chart = _heat_map(title, merged, nights[::night_step], rows, "above baseline (%)", hover, 3)
    limit = max(5.0, 100 * math.expm1(history.detectable) if history.judged else 5.0)
    chart.traces[0] |= {
        "colorscale": "RdBu",
        "meta": {"command": command} if command else None,
        "zmid": 0,
        "zmin": -limit,
        "zmax": limit,
    }
    chart.layout["xaxis"] |= {"type": "category", "nticks": 8}
    # The same room for the names in both charts: automargin would draw a chart of others twice.
    longest = max(map(len, history.panel.nodes)) + len(" + 999")
    chart.layout["yaxis"] |= {"type": "category", "nticks": 20, "automargin": False}
    chart.layout["margin"] = {"l": min(40 + 7 * longest, 240), "r": 15, "t": 30, "b": 55}
    chart.caption = [
        "time of each node against its own baseline and what all nodes share in that night, over "
        f"all cases; darkest from {limit:.3g} % on; the node with the slowest week is at the top"
    ]
    if not all_nodes:
        chart.caption.append(f"reduced: {len(order)} of {len(effects)} nodes")
    if step > 1:
        chart.caption.append(
            f"reduced: each row is the slowest of {step} nodes that are neighbours in this order"
        )
    if night_step > 1:
        chart.caption.append(f"reduced: each column is the slowest of {night_step} nights")
    return chart

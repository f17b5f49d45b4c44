"""Interactive charts of nodes over nights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from torchcoll.report.chart import Chart, plain
from torchcoll.report.heat_map import heat_map, merged

if TYPE_CHECKING:
    from torchcoll.parts.fleet.changes_over_time import PanelHistory

_CELLS = 256  # rows or columns: of more, neighbours are merged
_WEEK = 7  # nights
_SLOWEST = 40  # nodes that have a chart of their own
_NIGHTS = 500  # columns
_MOST_CELLS = 40_000  # of a map of nights: plotly takes over 0.1 s to draw 90,000


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
    cells = merged(merged(change, step).T, night_step).T
    rows = [", ".join(nodes[n : n + step]) for n in range(0, len(nodes), step)]
    if step > 3:
        rows = [f"{nodes[n]} + {step - 1}" for n in range(0, len(nodes), step)]
    hover = "%{y}<br>night of %{x}<br>%{z:+.3~g} %<extra></extra>"
    all_nodes = len(order) == len(effects)
    title = "all" if all_nodes else f"{len(order)} with the slowest weeks"
    chart = heat_map(title, cells, nights[::night_step], rows, "above baseline (%)", hover, 3)
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

"""The section of a page on nodes over nights, of stores and of runs of many days."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.result import Run
from torchcoll.core.units import counted
from torchcoll.parts.fleet.nightly import NightRequest, judge_night
from torchcoll.parts.fleet.nightly_show import night_grid
from torchcoll.parts.fleet.noise import Floats, quiet_median
from torchcoll.parts.fleet.panel import Panel, panels_of
from torchcoll.parts.fleet.series import format_night, parse_night_start
from torchcoll.parts.fleet.sources import summaries_of
from torchcoll.questions.page.page_draft import Drawing, PageDraft
from torchcoll.report.chart import Chart, plain
from torchcoll.report.heat_map import heat_map, merged

_CELLS = 256  # rows or columns: of more, neighbours are merged
_WEEK = 7  # nights
_SLOWEST = 40  # nodes that have a chart of their own
_USUAL = 7  # nights
_NIGHTS = 500  # columns
_MOST_CELLS = 40_000  # of a map of nights: plotly takes over 0.1 s to draw 90,000


def node_effects(panel: Panel) -> Floats:
    """How much slower each node was in each night than its own usual, without what all nodes share
    [N, T]: the median over its cases of a difference of log times.
    """
    times = panel.log_times.astype(np.float64)
    left = times - quiet_median(times[: max(_USUAL, len(times) // 8)])
    if left.shape[1] > 3:
        left = left - quiet_median(left, axis=1)[:, None]
    effects: Floats = quiet_median(left, axis=2).T
    return effects


def nights_charts(panel: Panel, command: str = "") -> list[Chart]:
    """A row for each node and a column for each night: how much slower the node was than its own
    first nights and the fleet of that night, in %. The node with the slowest week is at the top; of
    many nodes those with the slowest weeks have a chart of their own, before that of all.

    command: shows one night, whose date is in place of ``{x}``.
    """
    effects = node_effects(panel)
    present = np.isfinite(effects)
    ends = np.cumsum(np.where(present, effects, 0.0), axis=1), np.cumsum(present, axis=1)
    sums, counts = (end - _shifted(end, _WEEK) for end in ends)
    weeks = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)
    order = np.argsort(-weeks.max(axis=1), kind="stable")
    charts = [_nights_chart(panel, effects, order, command)]
    if len(order) > 2 * _SLOWEST:
        charts.insert(0, _nights_chart(panel, effects, order[:_SLOWEST], command))
    return charts


def _shifted(values: np.ndarray[Any, Any], by: int) -> np.ndarray[Any, Any]:
    """The values ``by`` columns earlier; 0 where there are none."""
    return np.pad(values, [(0, 0), (by, 0)])[:, : values.shape[1]]


def _nights_chart(
    panel: Panel, effects: np.ndarray[Any, Any], order: np.ndarray[Any, Any], command: str
) -> Chart:
    """order: numbers of the nodes to draw, from the top."""

    change = 100 * np.expm1(effects[order])
    nodes = [plain(panel.nodes[n]) for n in order.tolist()]
    first = panel.first_night
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
    chart = heat_map(title, cells, nights[::night_step], rows, "above usual (%)", hover, 3)
    limit = 10.0
    chart.traces[0] |= {
        "colorscale": "RdBu",
        "meta": {"command": command} if command else None,
        "zmid": 0,
        "zmin": -limit,
        "zmax": limit,
    }
    chart.layout["xaxis"] |= {"type": "category", "nticks": 8}
    # The same room for the names in both charts: automargin would draw a chart of others twice.
    longest = max(map(len, panel.nodes)) + len(" + 999")
    chart.layout["yaxis"] |= {"type": "category", "nticks": 20, "automargin": False}
    chart.layout["margin"] = {"l": min(40 + 7 * longest, 240), "r": 15, "t": 30, "b": 55}
    chart.caption = [
        "time of each node against its own first nights and what all nodes share in that night, "
        f"over all cases; darkest from {limit:.3g} % on; the node with the slowest week is on top"
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


_FEWEST_NIGHTS = 6


def add_nights(draft: PageDraft) -> None:
    draft.title = "Nodes over nights"
    arguments = [*draft.others, *(draft.files if _has_nights(draft.material.runs) else ())]
    if arguments:
        draft.tried("nights", lambda: _add(draft, arguments))


def _has_nights(runs: Sequence[Run]) -> bool:
    """Whether the runs are of several nodes over enough days for ``torchcoll nightly``."""
    nodes = {(run.members[0].get("host"), run.ranks) for run in runs if run.members}
    days = {str(run.header.get("start_utc") or "")[:10] for run in runs}
    return len(nodes) > 1 and len(days - {""}) >= _FEWEST_NIGHTS


def _add(draft: PageDraft, arguments: Sequence[str]) -> None:
    """Which node differs, and since when; a map of each device model and number of ranks."""
    night_start_us = parse_night_start("12:00")
    panels = panels_of(summaries_of(arguments), night_start_us)
    if not panels:
        raise UsageError("nights", " ".join(arguments), "runs with dates and times")
    finding = judge_night(arguments, NightRequest(0.03, night_start_us, last=True))
    quoted = shlex.join(arguments)
    grids = [night_grid(finding, whole=True)]
    for panel in panels:
        if len(panel.nodes) < 2:
            continue
        kind = f"{panel.device_name or 'device not recorded'}, {counted(panel.ranks, 'rank')}"
        title = f"Nodes over nights{f': {one_line(kind)}' if len(panels) > 1 else ''}"
        text = "How much slower each node was in each night"
        charts = partial(nights_charts, panel, f"torchcoll nightly {quoted} --night {{x}}")
        drawings = [Drawing(text, charts, "nodes")] if draft.inline else []
        draft.add(title, grids, f"torchcoll nightly {quoted} --night last", drawings)
        grids = []

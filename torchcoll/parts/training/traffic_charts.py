"""Charts of the communication of a recorded training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.traffic import Traffic
from torchcoll.core.units import format_ns
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.traffic_table import summarise_traffic
from torchcoll.report import chart

if TYPE_CHECKING:
    from torchcoll.parts.training.arrivals import Arrivals

MOST_BARS = 40  # in one chart
_TITLE = "Communication of a step"
_TIME = {
    "tickformat": "~s",
    "ticksuffix": "s",
    "rangemode": "tozero",
    "title": {"text": "time per step"},
}


def traffic_charts(traffic: Traffic) -> list[chart.Chart]:
    """What each rank does in a step: computing, exposed communication, waiting."""
    ranks = summarise_traffic(Ledger(traffic)).ranks[:MOST_BARS]
    parts = {"computing": "computing_ns", "exposed": "exposed_ns", "waiting": "wait_ns"}
    bars = []
    for number, (name, figure) in enumerate(parts.items()):
        times = [getattr(rank, figure) for rank in ranks]
        if any(times):
            texts = [format_ns(ns, 3) for ns in times]
            colour = chart.PALETTE[number]
            bars.append(_bars(name, [chart.seconds(ns) for ns in times], texts, colour))
    if not bars:
        return []
    names = [f"rank {rank.rank}" for rank in ranks]
    caption = ["medians over the steps; waiting is a part of the exposed communication"]
    return [_bar_chart(names, bars, _TIME, caption, len(traffic.calls), "ranks")]


def arrivals_chart(arrivals: Arrivals) -> list[chart.Chart]:
    """The waiting that each rank caused in a step, the most first."""
    largest = sorted(arrivals.ranks, key=lambda row: -row.caused_ns)[:MOST_BARS]
    if not any(row.caused_ns for row in largest):
        return []
    several = len({row.group for row in arrivals.ranks}) > 1
    names = [
        chart.plain(f"rank {row.rank}" + (f", {row.group}" if several else "")) for row in largest
    ]
    texts = [
        f"last in {row.last} of {row.calls} calls<br>{100 * row.caused_share:.0f} % of the waiting"
        for row in largest
    ]
    times = [chart.seconds(row.caused_ns / max(row.steps, 1)) for row in largest]
    bars = [_bars("caused", times, texts, chart.PALETTE[1])]
    axis = {**_TIME, "title": {"text": "waiting of the other ranks, per step"}}
    caption = ["what the other ranks waited in the calls in which this rank was last"]
    drawn = _bar_chart(names, bars, axis, caption, len(arrivals.ranks), "ranks")
    drawn.title = chart.plain(arrivals.answer.headline)
    return [drawn]


def _bars(
    name: str, values: Sequence[float | None], texts: Sequence[str], colour: str
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": list(values),
        "marker": {"color": colour},
        "hovertemplate": "%{y}<br>%{text}<extra></extra>",
        "textposition": "none",
        "text": list(texts),
    }


def _bar_chart(
    names: Sequence[str],
    bars: list[dict[str, Any]],
    axis: dict[str, Any],
    caption: list[str],
    number: int,
    noun: str,
) -> chart.Chart:
    """number: how many there are by the noun, the largest of which are drawn."""
    for trace in bars:
        trace["y"] = names
    if number > len(names):
        caption.append(f"the {len(names)} largest of {number} {noun}")
    layout = {
        "xaxis": axis,
        "yaxis": {"autorange": "reversed", "automargin": True},
        "showlegend": len(bars) > 1,
        "height": 160 + 24 * len(names) * len(bars),
    }
    return chart.Chart(_TITLE, bars, layout, caption=caption)

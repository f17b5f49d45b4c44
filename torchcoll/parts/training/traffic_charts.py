"""Charts of the communication of a training step: of traffic that was recorded, and of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.traffic import Traffic
from torchcoll.core.units import counted, format_bytes, format_ns
from torchcoll.parts.training.config_projection import TOO_LARGE
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.traffic_table import summarise_traffic
from torchcoll.report import chart

if TYPE_CHECKING:
    from torchcoll.parts.training.arrivals import Arrivals, RankArrival
    from torchcoll.parts.training.config_projection import LayoutComparison
    from torchcoll.parts.training.projection import Plan, PlannedStep

MOST_BARS = 40  # of one chart
_TITLE = "The step of each rank"
_GIGABYTES = {"rangemode": "tozero", "title": {"text": "GB"}}
_PARTS = chart.PALETTE[4], chart.PALETTE[0], chart.PALETTE[1]  # computing, communication, waiting
_TIME = {
    "tickformat": "~s",
    "ticksuffix": "s",
    "rangemode": "tozero",
    "title": {"text": "time per step"},
}


def traffic_charts(traffic: Traffic) -> list[chart.Chart]:
    """What each rank does in a step: computing, exposed communication, waiting."""
    ranks = summarise_traffic(Ledger(traffic)).ranks[:MOST_BARS]
    parts = {
        "computing": [rank.computing_ns or 0.0 for rank in ranks],
        "exposed communication": [
            max(0.0, (rank.exposed_ns or 0.0) - (rank.wait_ns or 0.0)) for rank in ranks
        ],
        "waiting for another rank": [rank.wait_ns or 0.0 for rank in ranks],
    }
    names = [f"rank {rank.rank}" for rank in ranks]
    caption = ["the typical step: medians over the steps of the capture"]
    if len(ranks) < len(traffic.calls):
        caption.append(f"the first {len(ranks)} of {len(traffic.calls)} ranks")
    return _stacked(_TITLE, names, parts, _TIME, lambda ns: format_ns(ns, 3), caption)


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
    times = [chart.seconds(_waited_ns(arrivals, row)) for row in largest]
    bars = [_bars("caused", times, texts, chart.PALETTE[1])]
    axis = {**_TIME, "title": {"text": "waiting of each other rank, per step"}}
    caption = ["what the other ranks waited in the calls in which this rank was last"]
    if len(largest) < len(arrivals.ranks):
        caption.append(f"the {len(largest)} largest of {len(arrivals.ranks)} ranks")
    return [_bar_chart(chart.plain(arrivals.answer.headline), names, bars, axis, caption)]


def _waited_ns(arrivals: Arrivals, row: RankArrival) -> float:
    """As in the answer: the median over steps; the mean if the rank is late in some of them."""
    typical_ns = None if row.when else arrivals.waited_ns.get(row.rank)
    return (typical_ns or row.caused_ns / max(row.steps, 1)) / max(row.others, 1)


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
    title: str,
    names: Sequence[str],
    bars: list[dict[str, Any]],
    axis: dict[str, Any],
    caption: list[str],
) -> chart.Chart:
    for trace in bars:
        trace["y"] = names
    layout = {
        "xaxis": axis,
        "yaxis": {"autorange": "reversed", "automargin": True},
        "showlegend": len(bars) > 1,
        "barmode": "stack",
        "height": 160 + 28 * len(names),
    }
    return chart.Chart(title, bars, layout, caption=caption)


def plan_charts(plan: Plan) -> list[chart.Chart]:
    """The planned step and the memory of a rank as stacked bars."""
    return _stacks([counted(plan.step.ranks, "rank")], [plan.step])


def layouts_charts(comparison: LayoutComparison) -> list[chart.Chart]:
    """The step and the memory of each layout as stacked bars, and the memory that a rank has."""
    rows = comparison.rows[:MOST_BARS]
    names = [
        chart.plain(row.layout.name + (" does not fit" if row.fits == TOO_LARGE else ""))
        for row in rows
    ]
    charts = _stacks(names, [row.step for row in rows])
    if comparison.memory_bytes and charts:
        x = comparison.memory_bytes / 1e9
        line = {"color": chart.NEUTRAL, "width": 2, "dash": "dash"}
        ends = {"type": "line", "xref": "x", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1}
        charts[-1].layout["shapes"] = [ends | {"line": line}]
        charts[-1].caption = [f"dashed: the {x:.3g} GB that a rank has"]
    return charts


def _stacks(names: Sequence[str], steps: Sequence[PlannedStep]) -> list[chart.Chart]:
    """names: of the bars. Without a machine there is no time, and without a model no memory."""
    times = {
        "computing": [step.compute_ns or 0.0 for step in steps],
        "exposed communication": [(step.exposed_ns or (0.0,))[0] for step in steps],
        "idle in the pipeline": [step.idle_ns for step in steps],
    }
    charts = []
    if all(step.step_ns for step in steps):
        charts += _stacked("time of a step", names, times, _TIME, lambda ns: format_ns(ns, 3))
    memories = [step.memory for step in steps if step.memory]
    sizes = {
        "parameters and states": [m.parameters + m.gradients + m.optimizer for m in memories],
        "activations": [m.activations + m.peak for m in memories],
        "buffers": [m.buffers for m in memories],
    }
    if len(memories) == len(steps):
        charts += _stacked("memory of a rank", names, sizes, _GIGABYTES, format_bytes)
    return charts


def _stacked(
    title: str,
    names: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    axis: dict[str, Any],
    text: Callable[[float], str],
    caption: Sequence[str] = (),
) -> list[chart.Chart]:
    """Returns stacked bars of these parts, in ns or bytes; [] if all are 0."""
    bars = [
        _bars(
            name,
            [chart.rounded(value / 1e9) for value in values],
            [f"{name}: {text(value)}" for value in values],
            colour,
        )
        for (name, values), colour in zip(parts.items(), _PARTS, strict=True)
        if any(values)
    ]
    return [_bar_chart(title, names, bars, axis, list(caption))] if bars else []

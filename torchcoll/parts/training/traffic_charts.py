"""Charts of the communication of a training step: of traffic that was recorded, and of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.traffic import Traffic
from torchcoll.core.units import counted, format_bytes, format_ns
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.traffic_table import TrafficRow, summarise_traffic
from torchcoll.report import chart

if TYPE_CHECKING:
    from torchcoll.parts.training.arrivals import Arrivals
    from torchcoll.parts.training.projection import Plan, PlannedRow, PlannedStep

MOST_BARS = 40  # kinds of calls in one chart
_TITLE = "Communication of a step, by kind of call"
_BYTES = {"tickformat": "~s", "ticksuffix": "B", "rangemode": "tozero"}
_TIME = {**_BYTES, "title": {"text": "time per step"}, "ticksuffix": "s"}


def traffic_charts(traffic: Traffic) -> list[chart.Chart]:
    """The calls of a step by kind: the time that they take, or their bytes where nothing ran."""
    rows = summarise_traffic(Ledger(traffic)).rows
    timed = any(row.time_per_step_ns for row in rows)

    def weight(row: TrafficRow) -> float:
        return (row.time_per_step_ns if timed else row.bytes_per_step) or 0

    largest = sorted(rows, key=weight, reverse=True)[:MOST_BARS]
    if not any(map(weight, largest)):
        return []
    names = [chart.plain(_traffic_name(row)) for row in largest]
    texts = [_traffic_text(row) for row in largest]
    if timed:
        times = [chart.seconds(row.time_per_step_ns) for row in largest]
        bars = [_bars("total", times, texts, chart.PALETTE[0])]
        if any(row.exposed_ns is not None for row in largest):
            exposed = [chart.seconds(row.exposed_ns) for row in largest]
            bars.append(_bars("exposed", exposed, texts, chart.PALETTE[1]))
        axis = _TIME
    else:
        bars = [_bars("bytes", [row.bytes_per_step for row in largest], texts, chart.PALETTE[0])]
        axis = {**_BYTES, "title": {"text": "bytes per step and rank"}}
    caption = ["of the calls of a step, on the slowest rank" if timed else "of a step of one rank"]
    return [_bar_chart(names, bars, axis, caption, len(rows))]


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
    noun: str = "kinds of calls",
) -> chart.Chart:
    """number: how many kinds of calls, or others by the noun, the largest of which are drawn."""
    # Two kinds may have one name, such as the calls of two dtypes: each needs a bar of its own.
    names = [f"{name} ({n})" if name in names[: n - 1] else name for n, name in enumerate(names, 1)]
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


def _traffic_name(row: TrafficRow) -> str:
    sent = None if row.bytes_in is None else max(row.bytes_in, row.bytes_out or 0)
    size = "several sizes" if sent is None else format_bytes(sent)
    return f"{row.collective} {size}, {row.group}"


def _traffic_text(row: TrafficRow) -> str:
    times = {"per step": row.time_per_step_ns, "exposed": row.exposed_ns, "a call": row.median_ns}
    lines = [f"{row.calls_per_step:g} calls per step"]
    lines += [f"{format_ns(ns, 3)} {what}" for what, ns in times.items() if ns is not None]
    return "<br>".join(lines)


def plan_charts(plan: Plan) -> list[chart.Chart]:
    """The calls of the planned step by kind: their predicted time with its 90 % interval, or the
    bytes sent without a machine. Of a plan over several numbers of ranks also the step over ranks.
    """
    charts = []
    if rows := plan.step.rows:
        timed = plan.step.comm_ns is not None

        def weight(row: PlannedRow) -> float:
            return row.time_ns[0] if row.time_ns else row.sent_bytes

        largest = sorted(rows, key=weight, reverse=True)[:MOST_BARS]
        names = [
            chart.plain(f"{row.collective} {format_bytes(row.size_bytes)}, {row.group}")
            for row in largest
        ]
        texts = [_planned_text(row) for row in largest]
        if timed:
            ends = [row.time_ns or (0.0, 0.0, 0.0) for row in largest]
            bars = _bars(
                "time", [chart.seconds(value) for value, _, _ in ends], texts, chart.PALETTE[0]
            )
            bars["error_x"] = {
                "symmetric": False,
                "array": [chart.seconds(high - value) for value, _, high in ends],
                "arrayminus": [chart.seconds(value - low) for value, low, _ in ends],
                "color": chart.NEUTRAL,
            }
            axis, caption = _TIME, ["predicted, with the 90 % interval; one call after another"]
        else:
            sent = [row.sent_bytes for row in largest]
            bars = _bars("bytes", sent, texts, chart.PALETTE[0])
            axis = {**_BYTES, "title": {"text": "bytes sent per step and rank"}}
            caption = ["by the algorithm of a ring"]
        charts.append(_bar_chart(names, [bars], axis, caption, len(rows)))
    if len(plan.weak) > 1 or len(plan.strong) > 1:
        charts += _over_ranks(plan)
    return charts


def _planned_text(row: PlannedRow) -> str:
    lines = [f"{counted(row.calls, 'call')} per step"]
    if row.time_ns:
        value, low, high = (format_ns(ns, 3) for ns in row.time_ns)
        lines.append(f"{value} ({low} to {high}) per step")
    return "<br>".join([*lines, *filter(None, [chart.plain(row.what)])])


def _over_ranks(plan: Plan) -> list[chart.Chart]:
    """The time of a step over the number of ranks; [] if it is unknown."""
    traces: list[dict[str, Any]] = []
    series = {"same work per rank (weak)": plan.weak, "same total work (strong)": plan.strong}
    for number, (name, steps) in enumerate(series.items()):
        traces += _line_and_band(name, number, steps)
    if not traces:
        return []
    ranks = [step.ranks for steps in series.values() for step in steps]
    caption = ["band: the 90 % interval of the prediction"]
    title = "Time of a step over the number of ranks"
    return [chart.Chart(title, traces, _ranks_layout(ranks), [chart.SCALES], caption)]


def _line_and_band(name: str, number: int, steps: Sequence[PlannedStep]) -> list[dict[str, Any]]:
    """The times of a step over ranks, with their intervals; [] if they are unknown."""
    timed = [(step, step.step_ns) for step in steps if step.step_ns and step.step_ns[0] > 0]
    if not timed:
        return []
    # A logarithmic axis has no 0.
    intervals = [(step.ranks, max(low, 1) * 1e-9, high * 1e-9) for step, (_, low, high) in timed]
    ranks = [step.ranks for step, _ in timed]
    times = [chart.rounded(value * 1e-9) for _, (value, _, _) in timed]
    texts = [_step_text(name, step) for step, _ in timed]
    line = chart.line(name, number, ranks, times, texts, legendgroup=name)
    return [chart.band(intervals, number, name), line]


def _ranks_layout(ranks: Sequence[int]) -> dict[str, Any]:
    return {
        "xaxis": chart.ranks_axis(ranks),
        "yaxis": chart.time_axis("time of a step"),
        "showlegend": True,
    }


def _step_text(name: str, step: PlannedStep) -> str:
    lines = [f"{name}, {counted(step.ranks, 'rank')}"]
    lines += [f"step {format_ns(step.step_ns[0], 4)}"] if step.step_ns else []
    lines += [f"computation {format_ns(step.compute_ns, 4)}"] if step.compute_ns else []
    if step.exposed_ns:
        lines.append(f"exposed communication {format_ns(step.exposed_ns[0], 4)}")
    return "<br>".join(lines)

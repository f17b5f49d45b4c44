"""Charts of the communication of a training step: of traffic that was recorded, and of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcoll.core.traffic import Traffic
from torchcoll.core.units import counted, format_ns
from torchcoll.parts.training.arrivals import find_arrivals
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.projection import TOO_LARGE
from torchcoll.parts.training.traffic_table import RankTimes, TrafficTable, summarise_traffic
from torchcoll.report import chart

if TYPE_CHECKING:
    from torchcoll.parts.training.arrivals import Arrivals
    from torchcoll.parts.training.config_projection import LayoutComparison
    from torchcoll.parts.training.projection import Plan, PlannedStep

MOST_BARS = 40  # of one chart
_TITLE = "Where the step goes"
COMPUTING, EXPOSED, REST = "computing", "exposed communication", "all else"
WAITING = "waiting for another rank"
_STEP = {
    COMPUTING: chart.PALETTE[2],
    EXPOSED: chart.PALETTE[0],
    WAITING: chart.PALETTE[1],
    REST: chart.NEUTRAL,
}
_GIGABYTES = {"rangemode": "tozero", "title": {"text": "GB"}}
_PARTS = chart.PALETTE[2], chart.PALETTE[0], chart.PALETTE[1]  # computing, communication, waiting
_TIME = {
    "tickformat": "~s",
    "ticksuffix": "s",
    "rangemode": "tozero",
    "title": {"text": "time per step"},
}


def traffic_charts(traffic: Traffic) -> list[chart.Chart]:
    """What each rank does in a step, as ``step_charts``."""
    ledger = Ledger(traffic)
    return step_charts(summarise_traffic(ledger), find_arrivals(ledger))


def step_charts(table: TrafficTable, arrivals: Arrivals | None) -> list[chart.Chart]:
    """The typical step of each rank and their mean: computing, exposed communication, waiting for
    other ranks; late ranks first.
    """
    late = {row.rank for row in arrivals.ranks if row.late} if arrivals else set()
    every = [rank for rank in table.ranks if rank.step_ns]
    ranks = sorted(every, key=lambda rank: rank.rank not in late)[:MOST_BARS]
    steps = {rank.rank: _step_parts(rank) for rank in every}
    mean = {part: sum(of[part] for of in steps.values()) / len(every) for part in _STEP if every}
    if not any(mean[part] for part in mean if part != REST):
        return []
    rows = [mean, *(steps[rank.rank] for rank in ranks)]
    bars = []
    for part, colour in _STEP.items():
        if mean[part]:
            name = "computing and all else" if part == REST and not mean[COMPUTING] else part
            texts = [f"{name}: {format_ns(row[part], 3)}" for row in rows]
            share = 100 * mean[part] / sum(mean.values())
            lengths = [chart.seconds(row[part]) for row in rows]
            bars.append(chart.bars(f"{name} {share:.0f} %", lengths, texts, colour))
    of_ranks = [f"rank {rank.rank}" + ", late" * (rank.rank in late) for rank in ranks]
    caption = ["the typical step, and the shares of the mean; exposed: nothing hides the calls"]
    if len(ranks) < len(every):
        caption.append(f"{len(ranks)} of {len(every)} ranks")
    return [chart.bar_chart(_TITLE, ["mean of the ranks", *of_ranks], bars, _TIME, caption)]


def _step_parts(rank: RankTimes) -> dict[str, float]:
    """The parts of the step of a rank, in ns."""
    waiting_ns, computing_ns = rank.wait_ns or 0.0, rank.computing_ns or 0.0
    exposed_ns = max(0.0, (rank.exposed_ns or 0.0) - waiting_ns)
    parts = {COMPUTING: computing_ns, EXPOSED: exposed_ns, WAITING: waiting_ns}
    return parts | {REST: max(0.0, (rank.step_ns or 0.0) - sum(parts.values()))}


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
    memories = [step.memory for step in steps if step.memory]
    times = [
        (COMPUTING, [step.compute_ns or 0.0 for step in steps]),
        (EXPOSED, [(step.exposed_ns or (0.0,))[0] for step in steps]),
        ("idle in the pipeline", [step.idle_ns for step in steps]),
    ]
    sizes = [
        ("parameters and states", [m.parameters + m.gradients + m.optimizer for m in memories]),
        ("activations", [m.activations + m.peak for m in memories]),
        ("buffers", [m.buffers for m in memories]),
    ]
    charts = []
    for title, parts, axis in (
        ("time of a step", times if all(step.step_ns for step in steps) else [], _TIME),
        ("memory of a rank", sizes if len(memories) == len(steps) else [], _GIGABYTES),
    ):
        bars = []
        for (name, values), colour in zip(parts, _PARTS, strict=False):
            texts = [f"{name}: {value / 1e9:.3g}" for value in values]
            if any(values):
                bars.append(
                    chart.bars(name, [chart.rounded(x / 1e9) for x in values], texts, colour)
                )
        if bars:
            charts.append(chart.bar_chart(title, names, bars, axis, []))
    return charts

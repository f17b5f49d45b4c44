"""Charts of the communication of a training step: of traffic that was recorded, and of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torchcoll.core.traffic import Traffic
from torchcoll.core.units import counted, format_ns
from torchcoll.parts.training.arrivals import find_arrivals
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.plan_show import format_gigabytes
from torchcoll.parts.training.projection import TIGHT, TOO_LARGE, PlannedStep
from torchcoll.parts.training.step_program import Memory
from torchcoll.parts.training.traffic_table import (
    RankTimes,
    TrafficTable,
    quote_numbers,
    summarise_traffic,
)
from torchcoll.report import chart

if TYPE_CHECKING:
    from torchcoll.parts.training.arrivals import Arrivals
    from torchcoll.parts.training.config_projection import LayoutComparison
    from torchcoll.parts.training.projection import Plan

T = TypeVar("T")
MOST_BARS = 40  # of one chart
_TITLE = "Where the step goes"
COMPUTING, WAITING, REST = "computing", "waiting for another rank", "all else"
OTHER = "other communication"
_MOST_MODULES = 3
_LONGEST = 20  # letters of a module in the legend: the last, in which modules differ
# Of the modules, and of all other communication.
_OF_MODULES = chart.PALETTE[0], "#4c9cc9", "#8cbfdd", "#c3ddec"
_GIGABYTES = {"rangemode": "tozero", "title": {"text": "GB"}}
_TIME = {
    "tickformat": "~s",
    "ticksuffix": "s",
    "rangemode": "tozero",
    "title": {"text": "time per step"},
}


def traffic_charts(traffic: Traffic) -> list[chart.Chart]:
    """What each rank does in a step, as ``step_charts``."""
    ledger = Ledger(traffic)
    return step_charts(ledger, summarise_traffic(ledger), find_arrivals(ledger))


def step_charts(
    ledger: Ledger, table: TrafficTable, arrivals: Arrivals | None
) -> list[chart.Chart]:
    """The typical step of each rank and their mean: computing, the exposed calls of each module,
    waiting for other ranks; late ranks first.
    """
    late = {row.rank for row in arrivals.ranks if row.late} if arrivals else set()
    every = [rank for rank in table.ranks if rank.step_ns]
    ranks = sorted(every, key=lambda rank: rank.rank not in late)[:MOST_BARS]
    of_modules = _module_times(ledger)
    totals = Counter[str]()
    for times in of_modules.values():
        totals.update(times)
    modules = [name for name, _ in totals.most_common() if name][:_MOST_MODULES]
    steps = {rank.rank: _step_parts(rank, of_modules[rank.rank], modules) for rank in every}
    names = (COMPUTING, *modules, OTHER, WAITING, REST)
    mean = {of: sum(parts[of] for parts in steps.values()) / len(every) for of in names if every}
    if not any(mean[of] for of in names[:-1] if every):
        return []
    rows = [mean, *(steps[rank.rank] for rank in ranks)]
    blues = [*_OF_MODULES[: len(modules)], _OF_MODULES[-1]]
    rest = chart.NEUTRAL if mean[COMPUTING] else chart.PALETTE[2]
    colours = (chart.PALETTE[2], *blues, chart.WAITING, rest)
    bars = []
    for of, colour in zip(names, colours, strict=True):
        if mean[of]:
            module = of if len(of) <= _LONGEST else f"...{of[-_LONGEST:]}"
            what = f"calls of {quote_numbers(module)}" if of in modules else of
            what = "outside of calls" if of == REST and not mean[COMPUTING] else what
            texts = [f"{chart.plain(what)}: {format_ns(row[of], 3)}" for row in rows]
            share = 100 * mean[of] / sum(mean.values())
            lengths = [chart.seconds(row[of]) for row in rows]
            name = f"{chart.plain(what)} {share:.0f} %"
            bars.append(chart.bars(name, lengths, texts, colour))
    of_ranks = [f"rank {rank.rank}" + ", late" * (rank.rank in late) for rank in ranks]
    caption = [
        "the typical step, with the shares of the mean; blue: calls that nothing hides",
        "a late rank waits least, and the others wait for it",
    ]
    if len(ranks) < len(every):
        caption.append(f"{len(ranks)} of {len(every)} ranks")
    return [chart.bar_chart(_TITLE, ["mean of the ranks", *of_ranks], bars, _TIME, caption)]


def _module_times(ledger: Ledger) -> dict[int, Counter[str]]:
    """Rank -> module -> how long its calls of the steady steps are exposed, without the waiting."""
    times: dict[int, Counter[str]] = {}
    for rank, by_step in ledger.steps.at.items():
        of_rank = times[rank] = Counter()
        for step in ledger.steps.steady:
            for index in by_step.get(step, ()):
                of_rank[ledger.call(rank, index).module] += ledger.moving_ns(rank, index)
    return times


def _step_parts(
    rank: RankTimes, of_modules: Mapping[str, float], modules: Sequence[str]
) -> dict[str, float]:
    """The parts of the step of a rank, in ns: what it is exposed, split as the calls of modules."""
    waiting_ns = rank.wait_ns or 0.0
    exposed_ns = max(0.0, (rank.exposed_ns or 0.0) - waiting_ns)
    whole_ns = sum(of_modules.values()) or 1
    parts = {name: exposed_ns * of_modules.get(name, 0) / whole_ns for name in modules}
    parts[OTHER] = exposed_ns - sum(parts.values())
    parts |= {WAITING: waiting_ns, COMPUTING: rank.computing_ns or 0.0}
    return parts | {REST: max(0.0, (rank.step_ns or 0.0) - sum(parts.values()))}


def plan_charts(plan: Plan) -> list[chart.Chart]:
    """The planned step and the memory of a rank as stacked bars."""
    names = [counted(plan.step.ranks, "rank")]
    return _stacks(names, [plan.step], [plan.fits == TOO_LARGE], plan.memory_bytes)


def layouts_charts(comparison: LayoutComparison) -> list[chart.Chart]:
    """The step and the memory of each layout as stacked bars, and the memory that a rank has."""
    rows = comparison.rows[:MOST_BARS]
    large = [row.fits == TOO_LARGE for row in rows]
    texts = {TOO_LARGE: "<br>does not fit", TIGHT: "<br>tight"}
    names = [chart.plain(row.layout.name) + texts.get(row.fits, "") for row in rows]
    charts = _stacks(names, [row.step for row in rows], large, comparison.memory_bytes)
    if len(rows) < len(comparison.rows):
        charts[0].caption.append(f"the first {len(rows)} of {len(comparison.rows)} layouts")
    return charts


# What the bars consist of: name, colour, and ns or bytes.
_STEP_PARTS: Sequence[tuple[str, str, Callable[[PlannedStep], float]]] = (
    ("computing", chart.PALETTE[2], lambda step: step.compute_ns or 0.0),
    ("exposed communication", chart.PALETTE[0], lambda step: (step.exposed_ns or (0.0,))[0]),
    ("idle in the pipeline", chart.WAITING, lambda step: step.idle_ns),
)
_MEMORY_PARTS: Sequence[tuple[str, str, Callable[[Memory], float]]] = (
    ("parameters and states", chart.PALETTE[3], lambda m: m.parameters + m.gradients + m.optimizer),
    ("activations", chart.PALETTE[4], lambda m: m.activations + m.peak),
    ("buffers", chart.PALETTE[0], lambda m: m.buffers),
    ("more if kernels are not fused", chart.NEUTRAL, lambda m: m.unfused),
)


def _stacks(
    names: Sequence[str],
    steps: Sequence[PlannedStep],
    too_large: Sequence[bool],
    limit_bytes: float | None,
) -> list[chart.Chart]:
    """Returns the charts of times and of memory. Without a machine there is no time, and without a
    model no memory.

    - names: of the bars.
    - too_large: whether each layout does not fit in limit_bytes.
    """
    charts = []
    intervals = [step.step_ns for step in steps if step.step_ns]
    if len(intervals) == len(steps):
        bars = _bars(steps, _STEP_PARTS, lambda ns: format_ns(ns, 3), too_large)
        bars[-1]["error_x"] = {
            "array": [chart.seconds(high - value) for value, _, high in intervals],
            "arrayminus": [chart.seconds(value - low) for value, low, _ in intervals],
            "symmetric": False,
            "color": chart.NEUTRAL,
        }
        caption = ["the fastest that fits is on top; whiskers: 90 % intervals"]
        charts.append(chart.bar_chart("Time of a step", names, bars, _TIME, caption))
    memories = [step.memory for step in steps if step.memory]
    if len(memories) == len(steps):
        bars = _bars(memories, _MEMORY_PARTS, format_gigabytes, too_large)
        drawn = chart.bar_chart("Memory of a rank", names, bars, _GIGABYTES, [])
        if limit_bytes:
            limit = format_gigabytes(limit_bytes)
            x = chart.rounded(limit_bytes / 1e9)
            line = {"color": chart.NEUTRAL, "width": 2, "dash": "dash"}
            ends = {
                "type": "line",
                "xref": "x",
                "x0": x,
                "x1": x,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
            }
            drawn.layout["shapes"] = [ends | {"line": line}]
            drawn.title = f"Memory of a rank, which has {limit}"
            drawn.caption = [f"dashed: the {limit} that a rank has; a bar must end before it"]
        charts.append(drawn)
    for drawn in charts if any(too_large) else []:
        drawn.caption.append("hatched: does not fit")
    return charts


def _bars(
    items: Sequence[T],
    parts: Sequence[tuple[str, str, Callable[[T], float]]],
    format_value: Callable[[float], str],
    hatched: Sequence[bool],
) -> list[dict[str, Any]]:
    """Returns the parts that are not 0 everywhere."""
    return [
        chart.bars(
            name,
            [chart.rounded(of(item) / 1e9) for item in items],
            [f"{name}: {format_value(of(item))}" for item in items],
            colour,
            hatched,
        )
        for name, colour, of in parts
        if any(map(of, items))
    ]

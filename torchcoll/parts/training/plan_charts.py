"""Charts of planned steps: the time and the memory of layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torchcoll.core.units import counted, format_ns
from torchcoll.parts.training.plan_show import format_gigabytes
from torchcoll.parts.training.projection import FITS, TIGHT, TOO_LARGE, UNSURE, PlannedStep
from torchcoll.parts.training.step_program import Memory
from torchcoll.parts.training.traffic_charts import MOST_BARS
from torchcoll.report import chart

if TYPE_CHECKING:
    from torchcoll.parts.training.config_projection import LayoutComparison
    from torchcoll.parts.training.projection import Plan

T = TypeVar("T")
TIGHT_MEANS = (
    f"tight: within {100 * UNSURE:.0f} % of a rank's memory on either side, or over "
    f"{100 / (1 + UNSURE):.0f} % of it only if kernels are not fused"
)
_MOST_LIMITS = 3  # times the memory that a rank has: what the picture shows of a bar
_GIGABYTES = {"rangemode": "tozero", "title": {"text": "GB"}}
_TIME = {"rangemode": "tozero", "tickformat": "~s", "ticksuffix": "s"}


def plan_charts(plan: Plan) -> list[chart.Chart]:
    """The planned step and the memory of a rank as stacked bars."""
    names = [counted(plan.step.ranks, "rank")]
    return _stacks(names, [plan.step], [plan.fits], plan.memory_bytes)


def layouts_charts(comparison: LayoutComparison) -> list[chart.Chart]:
    """The step and the memory of each layout as stacked bars, and the memory that a rank has."""
    rows = comparison.rows[:MOST_BARS]
    names = [chart.plain(row.layout.name) for row in rows]
    fits = [row.fits for row in rows]
    charts = _stacks(names, [row.step for row in rows], fits, comparison.memory_bytes)
    if rows[0].fits != TOO_LARGE and rows[0].step.step_ns:
        surely = "surely fits" if rows[0].fits == FITS else "may fit"
        which = f" that {surely}" if comparison.memory_bytes else ""
        charts[0].caption.insert(0, f"the fastest{which} is on top")
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
    ("activations", "#a5cbe4", lambda m: m.activations + m.peak),
    ("buffers", chart.PALETTE[0], lambda m: m.buffers),
    ("more if kernels are not fused", chart.NEUTRAL, lambda m: m.unfused),
)


def _stacks(
    names: Sequence[str],
    steps: Sequence[PlannedStep],
    fits: Sequence[str],
    limit_bytes: float | None,
) -> list[chart.Chart]:
    """Returns the charts of times and of memory. Without a machine there is no time, and without a
    model no memory.

    - names: of the bars, which have their values too.
    - fits: FITS, TIGHT or TOO_LARGE of each bar, in limit_bytes.
    """
    charts = []
    too_large = [each == TOO_LARGE for each in fits]
    labels = [{TOO_LARGE: ", does not fit", TIGHT: ", may fit"}.get(each, "") for each in fits]

    def valued(values: Sequence[str]) -> list[str]:
        named = zip(names, values, labels, strict=True)
        return [f"{name}<br>{value}{label}" for name, value, label in named]

    intervals = [step.step_ns for step in steps if step.step_ns]
    if len(intervals) == len(steps):
        bars = _bars(steps, _STEP_PARTS, lambda ns: format_ns(ns, 3), too_large)
        bars[-1]["error_x"] = {
            "array": [chart.seconds(high - value) for value, _, high in intervals],
            "arrayminus": [chart.seconds(value - low) for value, low, _ in intervals],
            "symmetric": False,
            "color": chart.NEUTRAL,
        }
        with_times = valued([format_ns(value, 3) for value, _, _ in intervals])
        caption = ["whiskers: 90 % intervals"]
        charts.append(chart.bar_chart("Time of a step", with_times, bars, _TIME, caption))
    memories = [step.memory for step in steps if step.memory]
    if len(memories) == len(steps):
        bars = _bars(memories, _MEMORY_PARTS, format_gigabytes, too_large)
        sizes = valued([format_gigabytes(memory.total) for memory in memories])
        drawn = chart.bar_chart("Memory of a rank", sizes, bars, _GIGABYTES, [])
        if limit_bytes:
            limit = format_gigabytes(limit_bytes)
            x = limit_bytes / 1e9
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
            drawn.caption = [f"dashed: the {limit} that a rank has"]
            if max(memory.most for memory in memories) > _MOST_LIMITS * limit_bytes:
                drawn.layout["xaxis"] = _GIGABYTES | {"range": [0, _MOST_LIMITS * x]}
                drawn.caption.append("bars at the right edge are longer: their names have the size")
            if TIGHT in fits:
                drawn.caption.append(f"may fit, {TIGHT_MEANS}")
        charts.append(drawn)
    for drawn in charts if any(too_large) else []:
        drawn.caption.append(f"hatched: does not fit, even if {100 * UNSURE:.0f} % less is needed")
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

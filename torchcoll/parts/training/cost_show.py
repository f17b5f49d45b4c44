"""Shows the cost of calls in a training: tables, rows and the object of ``show``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from torchcoll.core.answer import Answer
from torchcoll.core.errors import one_line
from torchcoll.core.units import format_ns, format_size, format_time
from torchcoll.parts.training import traffic_show
from torchcoll.report.columns import distinct_values
from torchcoll.report.formats import Forms, print_results
from torchcoll.report.grid import Grid, Head
from torchcoll.report.notes import Notes

if TYPE_CHECKING:
    from torchcoll.parts.training.cost import Cost, CostRow

_ABOVE = (
    "wait, transfer and contention are estimates. All ranks end a collective together, so the "
    "shortest rank's time is the transfer, what the others have more is their wait for it. In "
    "step: from issue to completion on the slowest rank; on each rank it is queue + wait + "
    "transfer, where the queue is the time until the group can begin it. Contention: "
    "transfer - alone. Medians over the calls"
)
_COST_DIMENSIONS = ("dtype", "group", "backend", "asynchronous", "clock", "isolated_as")


def show_costs(costs: Sequence[Cost], format: str = "table", file: TextIO | None = None) -> None:
    """Prints the costs; csv has the calls, json also who caused the waiting.

    Raises UsageError for an unknown format.
    """
    print_results(
        [
            Forms(
                cost_grids(cost),
                {
                    "schema": "torchcoll-cost/1",
                    **dataclasses.asdict(cost),
                    "arrivals": traffic_show.arrivals_object(cost.arrivals)
                    if cost.arrivals
                    else None,
                    **({"answer": answer.to_json()} if (answer := cost_answer(cost)) else {}),
                },
            )
            for cost in costs
        ],
        format,
        file,
    )


def cost_grids(cost: Cost) -> list[Grid]:
    """Returns the tables of calls and of who caused the waiting, followed by notes."""
    notes = Notes()
    values = {n: [v for v in distinct_values(cost.rows, n) if v != ""] for n in _COST_DIMENSIONS}
    varying = [name for name, distinct in values.items() if len(distinct) > 1]
    common = [
        _shared_value(cost.rows[0], n, distinct[0])
        for n, distinct in values.items()
        if len(distinct) == 1
    ]
    heads = [Head("collective", left=True, repeat=True), Head("size", repeat=True)]
    heads += [Head(_HEADS[name], left=True) for name in varying]
    heads += [Head("calls", drop=2), Head("queued", drop=1), Head("in step"), Head("wait")]
    heads += [Head("transfer"), Head("alone"), Head("contention")]
    reasons = any(row.reason for row in cost.rows)
    heads += [Head("", left=True)] * reasons
    rows = [
        [
            row.collective,
            format_size(row.size_bytes) if row.size_bytes else "-",
            *(_cell(getattr(row, name)) for name in varying),
            str(row.calls),
            "-" if row.queued is None else f"{100 * row.queued:.0f} %",
            *(format_time(ns) for ns in (row.in_place_ns, row.wait_ns, row.transfer_ns)),
            format_time(row.isolated_ns),
            f"<= {_signed(row.contention_ns)}" if row.bound else _signed(row.contention_ns),
            *[notes.mark(one_line(row.reason)) if row.reason else ""] * reasons,
        ]
        for row in cost.rows
    ]
    above = [f"{one_line(cost.traffic)} compared with {one_line(cost.run)}", ", ".join(common)]
    above += [traffic_show.exposed_line(cost.exposed) if cost.exposed else "", _ABOVE]
    first = Grid(heads, rows, [line for line in above if line], notes.lines())
    if not rows:
        first.below = ["no calls"]
    answer = cost_answer(cost)
    grids = [Grid([], [], above=[answer.text])] if answer else []
    grids += [first, *(traffic_show.module_grids(cost.exposed) if cost.exposed else [])]
    if cost.arrivals:
        grids += traffic_show.arrivals_grids(cost.arrivals)[:1]
    return [*grids, Grid([], [], below=[one_line(note) for note in cost.notes])]


def cost_answer(cost: Cost) -> Answer | None:
    """Returns what the calls of a step cost, and who caused the waiting; None if nothing is known.

    The sums are of the medians of the table, times the calls.
    """
    late = traffic_show.arrivals_answer(cost.arrivals, None) if cost.arrivals else None
    split = [row for row in cost.rows if row.transfer_ns is not None]
    if not split:
        return late

    def total(values: Iterable[tuple[CostRow, float | None]]) -> float:
        return sum(row.calls * (ns or 0) for row, ns in values) / (cost.steps or 1)

    wait, transfer = (
        total((row, getattr(row, name)) for row in split) for name in ("wait_ns", "transfer_ns")
    )
    text = f"{format_ns(wait, 3)} of waiting and {format_ns(transfer, 3)} of transfer"
    text += " per step" if cost.steps else " in all"
    compared = [row for row in split if row.contention_ns is not None]
    if compared:
        contention = total((row, max(0, row.contention_ns or 0)) for row in compared)
        bound = "at most " * any(row.bound for row in compared)
        text += f", {bound}{format_ns(contention, 3)} of which is contention"
        calls = sum(row.calls for row in split)
        if unknown := calls - sum(row.calls for row in compared):
            text += f" (unknown for {unknown} of {calls} calls)"
    return Answer(text, late.level if late else "", details=(late.text,) if late else ())


_HEADS = {"asynchronous": "async", "isolated_as": "alone as"}
_HEADS |= {name: name for name in _COST_DIMENSIONS if name not in _HEADS}


def _shared_value(row: CostRow, name: str, value: object) -> str:
    """Returns the text of a value that all rows share; ``row`` is any of them."""
    if name == "asynchronous":
        return "async" if value else "not async"
    texts = {"group": f"group {value} of {row.group_ranks} ranks", "clock": f"{value} clock"}
    texts |= {"isolated_as": f"alone: {value}"}
    return one_line(texts.get(name, value))


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return one_line(value) if value else "-"


def _signed(ns: float | None) -> str:
    """Returns the time; negative if the transfer was shorter than the call alone."""
    return f"-{format_time(-ns)}" if ns is not None and ns < 0 else format_time(ns)

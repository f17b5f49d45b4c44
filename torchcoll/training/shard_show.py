"""What ``advise`` found for FSDP2, as a table and as records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.errors import one_line
from torchcoll.core.units import format_bytes, format_ratio, format_size, format_time, time_text
from torchcoll.report.formats import Forms, picked, show_found
from torchcoll.report.grid import Grid, Head
from torchcoll.training.show import ratio_range, result_text

if TYPE_CHECKING:
    from torchcoll.training.plan_curves import CurveUsed
    from torchcoll.training.shard_advice import ShardAdvice

SCHEMA = "torchcoll-shard-advice/1"
_STYLES = {"best": "green", "worse": "dim", "beyond the curve": "yellow"}
_FIELDS = (
    "choice calls largest_bytes sharded_bytes peak_bytes communication_ns communication_low_ns "
    "communication_high_ns exposed_ns exposed_low_ns exposed_high_ns hidden_ns ratio ratio_low "
    "ratio_high result"
)
_MODEL = (
    "model: an all_gather runs beside the computation of the unit before, a reduce_scatter beside "
    "that of the unit after; calls of one group run one after the other",
    "exposed = end of the step - both passes; not in it: copying in and out, communication that "
    "slows the computation down, ranks that wait for each other",
)
_MODEL_OF_CPUS = (
    "model: on CPUs FSDP2 waits for every call, so that none of it is hidden",
    "exposed = all calls of a step; not in it: copying in and out, ranks that wait for each other",
)
_MEMORY = (
    "held = what one rank keeps of parameters and gradients; peak = whole parameters and gradients "
    "at the worst moment, besides"
)


def show_shard_advice(
    found: Sequence[ShardAdvice], format: str = "table", file: TextIO | None = None
) -> None:
    """Print what ``advise`` found. Raises UsageError for an unknown format."""
    show_found([Forms([_grid(one)], _object(one)) for one in found], format, file)


def _grid(advice: ShardAdvice) -> Grid:
    """The answer and the model above, a row for each choice."""
    spread = any(row.communication_low_ns is not None for row in advice.rows)
    judged = advice.backward_ns is not None
    exposed = judged or not advice.hides
    heads = [Head("choice", left=True, repeat=True), Head("calls", drop=3), Head("largest", drop=4)]
    heads.append(Head("together", drop=2))
    heads += [Head("exposed"), Head("hidden", drop=2)] if exposed else []
    heads += [Head("low", drop=3), Head("high", drop=3)] if spread else []
    if judged:
        heads.append(Head("ratio"))
        heads += [Head("95 %" if advice.launches > 1 else "range")] if spread else []
    heads += [Head("held", drop=1), Head("peak")]
    heads += [Head("result", left=True)] if judged else []
    rows = []
    for row in advice.rows:
        cells = [row.choice, str(row.calls), format_bytes(row.largest_bytes)]
        cells.append(format_time(row.communication_ns))
        cells += [format_time(row.exposed_ns), format_time(row.hidden_ns)] if exposed else []
        if spread:
            low, high = row.exposed_low_ns, row.exposed_high_ns
            if not exposed:
                low, high = row.communication_low_ns, row.communication_high_ns
            cells += [format_time(low), format_time(high)]
        if judged:
            cells.append(format_ratio(row.ratio))
            if spread:
                apart = row is not advice.best
                cells.append(ratio_range(row.ratio_low, row.ratio_high) if apart else "-")
        cells += [format_bytes(row.sharded_bytes), format_bytes(row.peak_bytes)]
        rows.append([*cells, *([result_text(row, advice.rows)] if judged else [])])
    styles = [_STYLES.get(row.result, "") for row in advice.rows]
    return Grid(heads, rows, _above(advice, spread), _below(advice), styles)


def _above(advice: ShardAdvice, spread: bool) -> list[str]:
    lines = [*_proposal(advice), f"FSDP2 on {advice.ranks} ranks"]
    lines += [_curve(used) for used in advice.curves]
    if advice.backward_ns is not None:
        passes = f"forward {time_text(advice.forward_ns)} (taken for half), "
        lines.append(
            f"passes without communication: {passes}backward {time_text(advice.backward_ns)}"
        )
    lines += [*(_MODEL if advice.hides else _MODEL_OF_CPUS), _MEMORY]
    if spread and advice.launches > 1:
        lines.append(
            "low, high = the least and the most of the launches; 95 % over the launches, for all "
            "rows together"
        )
    elif spread:
        lines.append("low, high = with the 5th and the 95th percentile of the curve's calls")
    if advice.backward_ns is not None:
        lines.append("ratio = (passes + exposed) / that of the best")
    return lines


def _curve(used: CurveUsed) -> str:
    row, (least, most) = used.row, used.sizes
    words = [row.dtype, f"on {row.backend}", f"{row.ranks or 'unknown'} ranks"]
    words += [row.mode, f"{row.clock} clock"]
    what = used.collective
    if used.share is not None:
        what += f" from {row.collective}"
    launches = f"{used.launches} launch{'es' if used.launches > 1 else ''}"
    texts = ", ".join(one_line(word) for word in words if word)
    return f"curve: {what} {texts}; {format_size(least)} to {format_size(most)}, {launches}"


def _proposal(advice: ShardAdvice) -> list[str]:
    best, least = advice.best, advice.least
    if best is None or least is None:
        if advice.backward_ns is None:
            return [
                "no proposal: how much is hidden depends on how long the passes take: give "
                "--backward-ms (backward_ms of torchcoll.advise)"
            ]
        return ["no proposal: no choice is within the sizes that were measured"]
    if len(advice.rows) < 2:
        return [
            f"{best.choice}: {time_text(best.exposed_ns)} of {time_text(best.communication_ns)} of "
            "communication exposed; one choice alone is no advice"
        ]
    line = (
        f"proposal: {best.choice}: {time_text(best.exposed_ns)} of "
        f"{time_text(best.communication_ns)} of communication exposed, at its peak "
        f"{format_bytes(best.peak_bytes)} more"
    )
    if least is not best:
        line += (
            f"; {least.choice} is {least.result} of it ({format_ratio(least.ratio)}) and takes "
            f"{format_bytes(least.peak_bytes)}"
        )
    return [line, "a proposal of a model: measure real steps before you trust it"]


def _below(advice: ShardAdvice) -> list[str]:
    return [one_line(note) for note in advice.notes]


def _object(advice: ShardAdvice) -> dict[str, Any]:
    curves = [
        {
            **picked(used, "collective ranks sizes launches share_of_all_reduce=share"),
            "measured": picked(used.row, "collective dtype op ranks backend device mode clock"),
        }
        for used in advice.curves
    ]
    return {
        "schema": SCHEMA,
        **picked(advice, "ranks forward_ns backward_ns hides launches"),
        "curves": curves,
        **picked(advice, "best=best.choice least_memory=least.choice notes"),
        "rows": [picked(row, _FIELDS) for row in advice.rows],
    }

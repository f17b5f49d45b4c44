"""Shows two captures side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from torchcoll.core.answer import Answer
from torchcoll.core.errors import one_line
from torchcoll.core.units import (
    counted,
    format_bytes,
    format_digits,
    format_ns,
    format_size,
    format_time,
    plural,
)
from torchcoll.parts.training.traffic_comparison import (
    CapturedSide,
    ComparedCalls,
    TrafficComparison,
)
from torchcoll.parts.training.traffic_show import arrivals_object
from torchcoll.report.columns import distinct_values
from torchcoll.report.formats import Forms, print_results, select_fields
from torchcoll.report.grid import Grid, Head

_ONE_RUN = "one run on each side, so whether a time differs by more than chance is unknown"
_LEGEND = (
    "time: the call's time on its slowest rank; waiting: the longest time that a rank of the call "
    "waited for the last rank; both are summed over a step, then the median over the steps"
)
_COMMON = ("dtype", "op", "group_ranks")


def comparison_answer(comparison: TrafficComparison) -> Answer:
    """What changed from base to new, in a sentence."""
    base, new = comparison.base, comparison.new
    texts = []
    if base.step_ns and new.step_ns:
        texts.append(
            f"a step takes {format_ns(new.step_ns, 3)} in {new.name} and "
            f"{format_ns(base.step_ns, 3)} in {base.name} "
            f"({format_digits(new.step_ns / base.step_ns)}x)"
        )
    if base.wait_ns is not None and new.wait_ns is not None:
        texts.append(
            f"its ranks, added up, wait {format_ns(new.wait_ns, 3)} in {new.name} and "
            f"{format_ns(base.wait_ns, 3)} in {base.name} for each other"
        )
    texts.append(_sent_text(comparison))
    for side in (new, base):
        if side.arrivals and side.arrivals.late:
            texts.append(f"in {side.name} {side.arrivals.answer.headline}")
    late = any(side.arrivals and side.arrivals.late for side in (base, new))
    level = "" if comparison.sent_alike and not late else "doubt"
    return Answer(one_line("; ".join(texts)), level, details=(_ONE_RUN,))


def _sent_text(comparison: TrafficComparison) -> str:
    base, new = comparison.base, comparison.new
    if comparison.sent_alike:
        return f"both send the same, {_sent(new)} a step"
    changed = sum(not row.sent_alike for row in comparison.rows)
    return (
        f"{new.name} sends {_sent(new)} a step, {base.name} {_sent(base)} ({changed} of "
        f"{len(comparison.rows)} rows differ)"
    )


def _sent(side: CapturedSide) -> str:
    if side.calls is None or side.sent_bytes is None:
        return "other calls on each rank"
    calls = f"{format_digits(side.calls, 4)} {plural(side.calls, 'call')}"
    return f"{format_bytes(side.sent_bytes)} in {calls}"


def show_traffic_comparisons(
    comparisons: Sequence[TrafficComparison], format: str = "table", file: TextIO | None = None
) -> None:
    """Prints the comparisons. Raises UsageError for an unknown format."""
    print_results([_forms(comparison) for comparison in comparisons], format, file)


def _forms(comparison: TrafficComparison) -> Forms:
    base, new = comparison.base, comparison.new
    rows = [row.row for row in comparison.rows]
    varying = [name for name in _COMMON if len(distinct_values(rows, name)) > 1]
    names = [one_line(base.name), one_line(new.name)]
    heads = [Head("collective", left=True, repeat=True), Head("bytes", "in", repeat=True)]
    heads += [Head(name.replace("_", " ")) for name in varying]
    heads += [Head("calls", name, drop=1) for name in names]
    heads += [Head("time", name, legend=_LEGEND) for name in names]
    heads += [Head("ratio")]
    heads += [Head("waiting", name) for name in names]
    cells = []
    for compared in comparison.rows:
        row, sides = compared.row, (compared.base, compared.new)
        cells.append(
            [
                one_line(row.collective),
                "varies" if row.bytes_in is None else format_size(row.bytes_in),
                *(one_line(getattr(row, name) or "-") for name in varying),
                *("-" if side is None else format_digits(side.calls_per_step, 4) for side in sides),
                *(format_time(side.time_per_step_ns if side else None) for side in sides),
                "-" if compared.ratio is None else format_digits(compared.ratio),
                *(format_time(side.wait_per_step_ns if side else None) for side in sides),
            ]
        )
    above = [
        f"{side.name}: {one_line(side.path)}, {counted(side.ranks, 'rank')}, "
        f"{counted(side.steps, 'steady step')}"
        for side in (base, new)
    ]
    grids = [
        Grid(heads, cells, above, [] if cells else ["no calls"]),
        Grid(
            [],
            [],
            below=[one_line(note) for note in comparison.notes],
            answer=comparison_answer(comparison),
        ),
    ]
    document = {
        "schema": "torchcoll-traffic-comparison/1",
        **{name: _side_object(getattr(comparison, name)) for name in ("base", "new")},
        "sent_alike": comparison.sent_alike,
        "notes": comparison.notes,
        "rows": [_record(compared) for compared in comparison.rows],
    }
    return Forms(grids, document)


def _side_object(side: CapturedSide) -> dict[str, Any]:
    facts = select_fields(side, "name path ranks steps step_ns calls sent_bytes wait_ns")
    return {**facts, "arrivals": arrivals_object(side.arrivals) if side.arrivals else None}


def _record(compared: ComparedCalls) -> dict[str, Any]:
    common = "collective bytes_in bytes_out dtype op group_ranks groups"
    record = select_fields(compared.row, common)
    for name, side in (("base", compared.base), ("new", compared.new)):
        for figure in ("calls_per_step", "bytes_per_step", "time_per_step_ns", "wait_per_step_ns"):
            record[f"{name}_{figure}"] = getattr(side, figure) if side else None
    return {**record, "ratio": compared.ratio, "sent_alike": compared.sent_alike}

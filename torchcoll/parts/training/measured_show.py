"""Shows a measured step beside its plan: causes of the difference, factors, what changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_bytes, format_ns
from torchcoll.parts.curves.predictor import Ends
from torchcoll.parts.training.measured_step import MeasuredStep, describe_unmatched, largest_cause
from torchcoll.parts.training.projection import PlannedStep
from torchcoll.report.grid import Grid, Head, make_grid

_CAUSES = (
    "of the calls that are in both: slower: on the rank that came last, by contention or by the "
    "error of the machine's law (torchcoll.cost compares them with the same calls alone); late: "
    "waiting for the last rank; gaps: neither calls nor computation"
)
_FACTORS = "factor: measured over planned time, with its 90 % interval"


def measured_grids(measured: MeasuredStep, changes: Grid) -> list[Grid]:
    """Returns the tables of a measured step, with what it changes in the plan."""
    return [_causes(measured), _factors(measured), changes]


def _causes(measured: MeasuredStep) -> Grid:
    planned = measured.planned_ns[0]
    rows: list[tuple[str, float | None]] = [
        ("planned", planned),
        ("+ slower", measured.slower_ns),
        ("+ late ranks", measured.late_ns),
        ("+ FSDP2's copies", measured.copies_ns),
        ("= measured", measured.correction.factor[0] * planned),
        ("gaps", measured.gaps_ns),
    ]
    steps = counted(measured.steps, "steady step")
    layout = f"{measured.layout}, " if measured.layout else ""
    overlapped = []
    if measured.overlapped_ns is not None:
        share = format_signed(measured.overlapped_ns)
        overlapped = [f"{share} of slower is in calls that overlap with computation"]
    return make_grid(
        [
            (Head("communication", left=True), lambda row: row[0]),
            (Head("a step"), lambda row: "unknown" if row[1] is None else format_signed(row[1])),
            (
                Head("of planned"),
                lambda row: "" if row[1] is None else f"{row[1] / planned:.2f}",
            ),
        ],
        rows,
        above=[
            one_line(
                f"measured by {measured.capture}: {layout}"
                f"{counted(measured.ranks, 'rank')}, {steps}"
            )
        ],
        below=[_CAUSES, *overlapped, *map(one_line, describe_unmatched(measured))],
    )


def format_signed(ns: float) -> str:
    return f"-{format_ns(-ns, 3)}" if ns < 0 else format_ns(ns, 3)


def _factors(measured: MeasuredStep) -> Grid:
    correction = measured.correction
    names = list(correction.factors)
    rows: list[str | None] = [*names, None] if len(names) > 1 else list(names)

    def matched(name: str | None) -> list[Any]:
        return [row for row in measured.matched if name in (None, row.collective)]

    def factor(name: str | None) -> Ends:
        return correction.factor if name is None else correction.factors[name]

    def sizes(name: str | None) -> str:
        each = sorted(row.size_bytes for row in matched(name))
        return " to ".join(dict.fromkeys(map(format_bytes, (each[0], each[-1]))))

    def total(field: str) -> Any:
        def cell(name: str | None) -> str:
            values = [getattr(row, field) for row in matched(name)]
            return "-" if None in values else format_signed(sum(values))

        return cell

    return make_grid(
        [
            (Head("collective", left=True), lambda name: name or "all"),
            (Head("calls", "a step"), lambda name: str(sum(row.calls for row in matched(name)))),
            (Head("sizes", drop=1), sizes),
            (Head("planned"), total("planned_ns")),
            (Head("transfer"), total("transfer_ns")),
            (Head("late"), total("late_ns")),
            (Head("factor"), lambda name: f"{factor(name)[0]:.2f}"),
            (Head("low"), lambda name: f"{factor(name)[1]:.2f}"),
            (Head("high"), lambda name: f"{factor(name)[2]:.2f}"),
        ],
        rows,
        below=[_FACTORS],
    )


def step_changes(before: PlannedStep, after: PlannedStep) -> Grid:
    """Returns what the correction changes in a planned step."""
    rows = [
        (name, old, new)
        for name in ("comm", "exposed", "step")
        if (old := getattr(before, f"{name}_ns")) and (new := getattr(after, f"{name}_ns"))
    ]
    return make_grid(
        [
            (Head("", left=True), lambda row: row[0]),
            (Head("planned"), lambda row: format_ns(row[1][0], 3)),
            (Head("low to high", drop=1), lambda row: _interval(row[1])),
            (Head("corrected"), lambda row: format_ns(row[2][0], 3)),
            (Head("low to high"), lambda row: _interval(row[2])),
        ],
        rows,
        above=[f"what changes, on {counted(after.ranks, 'rank')}"],
    )


def _interval(ends: Ends) -> str:
    return f"{format_ns(ends[1], 3)} to {format_ns(ends[2], 3)}"


def order_changes(before: Sequence[tuple[str, float]], after: Sequence[tuple[str, float]]) -> Grid:
    """Returns the order of layouts by their cost before and after the correction.

    - before, after: (name, cost in ns).
    """
    first, second = (sorted(rows, key=lambda row: row[1]) for rows in (before, after))
    places = {name: place for place, (name, _) in enumerate(first, 1)}
    costs = dict(before)
    return make_grid(
        [
            (Head("layout", left=True), lambda row: row[1][0]),
            (Head("planned"), lambda row: format_ns(costs[row[1][0]], 3)),
            (Head("place"), lambda row: str(places[row[1][0]])),
            (Head("corrected"), lambda row: format_ns(row[1][1], 3)),
            (Head("place"), lambda row: str(row[0])),
        ],
        list(enumerate(second, 1)),
        above=["what changes"],
    )


def correction_text(measured: MeasuredStep) -> str:
    """Returns a clause for the answer."""
    value, low, high = measured.correction.factor
    cause = largest_cause(measured)
    where = f" on {', '.join(measured.backends)}, not on such a machine," * measured.other_hardware
    text = f"the measured step{where} communicates {value:.3g} times as long as planned"
    return f"{text} ({low:.3g} to {high:.3g}){f', mostly by {cause}' if cause else ''}"


def measured_object(measured: MeasuredStep) -> dict[str, Any]:
    """Returns the measured step as an object of JSON."""

    def ends(values: Ends) -> dict[str, float]:
        return dict(zip(("value", "low", "high"), values, strict=True))

    correction = measured.correction
    fields = {
        field.name: getattr(measured, field.name)
        for field in dataclasses.fields(measured)
        if field.name not in ("matched", "unmatched", "planned_ns", "correction", "notes")
    }
    return {
        **fields,
        "planned": ends(measured.planned_ns),
        "slower_ns": measured.slower_ns,
        "factor": ends(correction.factor),
        "others": ends(correction.others),
        "factors": {name: ends(values) for name, values in correction.factors.items()},
        "gap_ns": correction.gap_ns,
        "blocking": sorted(correction.blocking),
        "matched": [dataclasses.asdict(row) for row in measured.matched],
        "unmatched": [dataclasses.asdict(row) for row in measured.unmatched],
    }

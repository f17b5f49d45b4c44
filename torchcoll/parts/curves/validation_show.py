"""Show the errors of a model or a simulator as tables, markdown, CSV and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.units import format_share, format_size
from torchcoll.parts.curves.validation import NEW_RUN
from torchcoll.report.formats import Forms, print_results, select_fields, without_none
from torchcoll.report.grid import Grid, Head, make_grid
from torchcoll.report.header import kind_texts
from torchcoll.report.notes import footer_lines

if TYPE_CHECKING:
    from torchcoll.parts.curves.model_check import CheckedModel
    from torchcoll.parts.curves.validation import (
        HeldOut,
        Scenario,
        Simulated,
        Validation,
        ValidationRow,
    )

    Validated = Validation | CheckedModel | Simulated

VALIDATION_SCHEMA = "torchcoll-validation/1"


def show_validation(
    validation: Validation, format: str = "table", file: TextIO | None = None
) -> None:
    """Print what ``validate`` found. Raises UsageError for an unknown format."""
    rows = [*validation.rows, *validation.totals]
    titles = _titles(rows)

    grid = make_grid(
        [
            (Head("left", "out", left=True, repeat=True), lambda row: row.over),
            (Head("case", left=True, repeat=True), lambda row: titles.get(repr(row.kind), "all")),
            (Head("ranks", repeat=True), lambda row: "-" if row.ranks is None else str(row.ranks)),
            (Head("points", drop=1), lambda row: str(row.errors.count)),
            (Head("geomean", drop=2), lambda row: format_share(row.errors.geomean)),
            (Head("mean", "error"), lambda row: format_share(row.errors.mean)),
            (
                Head("cubic's", "mean"),
                lambda row: format_share(row.baseline.mean if row.baseline else None),
            ),
            (Head("worst", left=True), _worst),
            (Head("in 90 %", "interval"), lambda row: f"{row.covered} of {row.errors.count}"),
        ],
        rows,
    )
    below = footer_lines(validation.notes, validation.runs)
    document = {
        "schema": VALIDATION_SCHEMA,
        "rows": [
            {
                "left_out": row.over,
                **_row_record(row),
                **select_fields(row, _BASELINE),
            }
            for row in rows
        ],
        "points": [_point_record(point, "over baseline_ns") for point in validation.points],
        "notes": below,
    }
    last = Grid([], [], below=below, answer=validation.answer)
    above = Grid([], [], above=[_ERRORS, _CUBIC])
    print_results([Forms([above, grid, last], document)], format, file)


def _titles(rows: Sequence[ValidationRow]) -> dict[str, str]:
    named = [row for row in rows if row.kind is not None]
    texts = kind_texts([dict(row.kind or {}) for row in named])
    return {repr(row.kind): text for row, text in zip(named, texts, strict=True)}


def _worst(row: ValidationRow) -> str:
    return f"{format_share(row.errors.worst)} at {format_size(row.worst.size_bytes)}"


_SUMMARY = "points=count geomean mean worst"  # of an ErrorSummary, in JSON
_BASELINE = (
    "mean_beside_baseline=with_baseline.mean baseline_points=baseline.count "
    "baseline_geomean=baseline.geomean baseline_mean=baseline.mean baseline_worst=baseline.worst"
)
_ERRORS = "errors: |predicted / measured - 1|"
_CUBIC = "cubic: the other points, interpolated"


def _row_record(row: ValidationRow) -> dict[str, Any]:
    return {
        **without_none(row.kind or {}),
        "ranks": row.ranks,
        **select_fields(row.errors, _SUMMARY),
        "ratio": row.ratio,
        "worst_bytes": row.worst.size_bytes,
        "covered": row.covered,
        "coverage": row.covered / row.errors.count,
    }


def _point_record(point: HeldOut, more: str) -> dict[str, Any]:
    return {
        **without_none(point.kind),
        **select_fields(point, "ranks size_bytes measured_ns predicted_ns low_ns high_ns"),
        **select_fields(point, more),
    }


def show_checked(check: CheckedModel, format: str = "table", file: TextIO | None = None) -> None:
    """Print what ``check_model`` found. Raises UsageError for an unknown format."""
    titles = _titles(check.rows)
    names = _SUBSETS if len(check.totals) > 1 else _SUBSETS[:1]
    rows = [*((row, titles[repr(row.kind)]) for row in check.rows)]
    rows += zip(check.totals, names, strict=True)

    grid = make_grid(
        [
            (Head("case", left=True, repeat=True), lambda titled: titled[1]),
            (Head("ranks"), lambda titled: str(titled[0].ranks or "-")),
            (Head("sizes"), lambda titled: str(titled[0].errors.count)),
            (Head("predicted :", "measured", drop=1), lambda titled: f"{titled[0].ratio:.3f}"),
            (Head("geomean", "error"), lambda titled: format_share(titled[0].errors.geomean)),
            (Head("mean", "error"), lambda titled: format_share(titled[0].errors.mean)),
            (Head("worst", "error", left=True), lambda titled: _worst(titled[0])),
            (
                Head("in 90 %", "interval"),
                lambda titled: f"{titled[0].covered} of {titled[0].errors.count}",
            ),
            (
                Head("beyond", "the data"),
                lambda titled: (
                    f"{titled[0].beyond} of {titled[0].errors.count}" if titled[0].beyond else "-"
                ),
            ),
        ],
        rows,
    )
    below = footer_lines(check.notes, check.runs)
    document = {
        "schema": VALIDATION_SCHEMA,
        "model": check.model,
        "rows": [
            {**_row_record(row), "beyond": row.beyond, "part": None if row.kind else subset}
            for row, subset in rows
        ],
        "points": [_point_record(point, "beyond?") for point in check.points],
        "not_predicted": check.unknown,
        "notes": below,
    }
    beyond_data: dict[str, dict[str, None]] = {}  # cases, by the way in which they lie beyond it
    for point in check.points:
        if point.beyond:
            name = f"{point.kind['collective']} on {point.ranks} ranks"
            beyond_data.setdefault(point.beyond, {})[name] = None
    above = [f"extrapolated: {', '.join(cases)}: {how}" for how, cases in beyond_data.items()]
    last = Grid([], [], above=above, below=below, answer=check.answer)
    print_results([Forms([Grid([], [], above=[_ERRORS]), grid, last], document)], format, file)


_SUBSETS = ("all", "within the data", "extrapolated")


def show_simulated(
    simulation: Simulated, format: str = "table", file: TextIO | None = None
) -> None:
    """Print what ``validate_predicted`` found. Raises UsageError for an unknown format."""
    scenarios = [*simulation.scenarios, simulation.overall]

    def error_text(name: str) -> Callable[[Scenario], str]:
        return lambda scenario: (
            f"{100 * getattr(scenario.errors, name):.2f} %" if scenario.errors else "-"
        )

    grid = make_grid(
        [
            (
                Head("ranks"),
                lambda scenario: "all" if scenario.ranks is None else str(scenario.ranks),
            ),
            (
                Head("cases", left=True),
                lambda scenario: (
                    f"{scenario.errors.count if scenario.errors else 0} of {scenario.measured}"
                ),
            ),
            (Head("geomean", "error"), error_text("geomean")),
            (Head("mean", "error"), error_text("mean")),
            (
                Head("worst", "error", left=True),
                lambda scenario: (
                    f"{error_text('worst')(scenario)} ({scenario.worst})"
                    if scenario.errors
                    else "-"
                ),
            ),
        ],
        scenarios,
    )
    below = footer_lines([*simulation.notes, *simulation.missing], simulation.runs)
    document = {
        "schema": VALIDATION_SCHEMA,
        "predicted": simulation.predicted,
        "rows": [
            {
                "ranks": scenario.ranks,
                "measured": scenario.measured,
                **select_fields(scenario.errors, _SUMMARY),
                "worst_case": scenario.worst or None,
            }
            for scenario in scenarios
        ],
        "cases": simulation.cases,
        "notes": below,
    }
    last = Grid([], [], below=below, answer=simulation.answer)
    print_results([Forms([Grid([], [], above=[_ERRORS]), grid, last], document)], format, file)


@dataclass(frozen=True)
class ErrorPoint:
    """A measured time and its prediction.

    low_ns, high_ns: the 90 % interval; baseline_ns: the prediction of the cubic. None if there is
    none.
    """

    ranks: int
    size_bytes: int
    measured_ns: float
    predicted_ns: float
    low_ns: float | None = None
    high_ns: float | None = None
    baseline_ns: float | None = None


def error_panels(result: Validated) -> dict[str, list[ErrorPoint]]:
    """The points of each kind of case, left-out sizes and left-out ranks apart."""
    panels: dict[str, list[ErrorPoint]] = {}
    fields = [field.name for field in dataclasses.fields(ErrorPoint)]
    if hasattr(result, "cases"):  # of a simulator
        for case in result.cases:
            if case["error"] is not None and case["measured_ns"] and case["predicted_ns"]:
                values = {name: case[name] for name in fields if name in case}
                panels.setdefault(case["collective"], []).append(ErrorPoint(**values))
    else:
        kinds = kind_texts([point.kind for point in result.points])
        for held, title in zip(result.points, kinds, strict=True):
            values = {name: getattr(held, name) for name in fields}
            what = "" if held.over == NEW_RUN else f", left-out {held.over}"
            panels.setdefault(title + what, []).append(ErrorPoint(**values))
    return panels

"""A model, its predictions and its errors as tables, markdown, CSV and JSON."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.collectives import busbw_gbps
from torchcoll.core.units import counted, format_ratio, format_size, format_time, time_text
from torchcoll.report.destination import Destination
from torchcoll.report.formats import Forms, known, picked, show_found
from torchcoll.report.grid import Answer, Grid, Head, filled, print_grids
from torchcoll.report.header import kind_texts
from torchcoll.report.notes import found_lines
from torchcoll.report.pictures import (
    legend,
    literal,
    new_figure,
    size_axis,
    style_of,
    time_axis,
    write_caption,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from torchcoll.comparison.compare import ErrorSummary
    from torchcoll.curves.model import Figure, KindModel, OverRanks, PredictedRow
    from torchcoll.curves.model_fit import FittedModel
    from torchcoll.curves.validation import Scenario, Simulated, Validation, ValidationRow

PREDICTIONS_SCHEMA = "torchcoll-predictions/1"
VALIDATION_SCHEMA = "torchcoll-validation/1"
_JACKKNIFE = "90 % intervals: jackknife+ (Barber et al. 2021), wider beyond the data"


# -- fit -------------------------------------------------------------------------------------


def show_fit(found: FittedModel, file: TextIO | None = None) -> None:
    """Print what was fitted, one line a law; why there is none over ranks once for all kinds."""
    entries = found.model.entries
    lines, missing = [], Counter(entry.why_not for entry in entries if not entry.over_ranks)
    for entry, title in zip(entries, kind_texts([e.kind for e in entries]), strict=True):
        lines.append(title)
        lines += [f"  {text}" for text in _entry_lines(entry)]
    below = [f"{n} of {counted(len(entries), 'kind')}: {why}" for why, n in missing.items()]
    below += found_lines(found.notes, found.runs)
    grids = [Grid([], [], above=lines), Grid([], [], below=below, answer=_fit_answer(entries))]
    out = Destination(file)
    print_grids([("", grids)], "table", out)
    out.flush()


def _fit_answer(entries: Sequence[KindModel]) -> Answer:
    spreads = [one.spread for entry in entries for one in entry.over_sizes]
    over = sum(entry.over_ranks is not None for entry in entries)
    text = f"{counted(len(entries), 'kind')} of cases fitted, {over or 'none'} of them over ranks"
    if spreads:
        low, high = min(one.low for one in spreads), max(one.high for one in spreads)
        text += f"; 90 % of left-out sizes lie within {_percent(low - 1)} to {_percent(high - 1)}"
    return Answer(text, "" if over == len(entries) else "doubt")


def _entry_lines(entry: KindModel) -> list[str]:
    lines = []
    for one in entry.over_sizes:
        parts = counted(len(one.law.pieces), "range")
        if one.factors:
            parts += f", {len(one.factors)} corrections"
        hosts = f" on {counted(one.hosts, 'host')}" if one.hosts else ""
        lines.append(
            f"{one.ranks} ranks{hosts}: {one.sizes} sizes, {format_size(one.low_bytes)} to "
            f"{format_size(one.high_bytes)}: {parts}; 90 % of left-out sizes within "
            f"{_percent(one.spread.low - 1)} to {_percent(one.spread.high - 1)}"
        )
    law = entry.over_ranks
    return [*lines, *(_law_lines(law) if law else [])]


def _law_lines(law: OverRanks) -> list[str]:
    numbers = ", ".join(map(str, law.ranks))
    others = [name for name in law.remaining if name != law.law]
    text = f"over ranks ({numbers}): {law.law}"
    text += f"; {', '.join(others)} cannot be told from it" if others else "; no other law remains"
    lines = [text, f"  launch {_times(law.launch_ns)}"]
    for name, link in (("within a host", law.within), ("between hosts", law.between)):
        if link:
            step, bandwidth = link
            speed = "not resolved"
            if bandwidth:
                value, low, high = (format_ratio(gbps) for gbps in bandwidth)
                speed = f"{value} GB/s ({low} to {high})"
            place = name if any(law.hosts) else "hosts not known"
            lines.append(f"  {place}: a step {_times(step)}, bandwidth of a rank {speed}")
    return lines


def _times(figure: Figure | None) -> str:
    if figure is None:
        return "not resolved"
    value, low, high = (time_text(ns, 3) for ns in figure)
    return f"{value} ({low} to {high})"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


# -- predict ---------------------------------------------------------------------------------


def show_predictions(
    path: str, rows: Sequence[PredictedRow], format: str = "table", file: TextIO | None = None
) -> None:
    """Print them. Raises UsageError for an unknown format."""
    kinds: dict[str, list[PredictedRow]] = {}
    for row in rows:
        kinds.setdefault(repr(row.kind), []).append(row)
    titles = kind_texts([own[0].kind for own in kinds.values()])
    grids = [_predictions(own, title) for own, title in zip(kinds.values(), titles, strict=True)]
    last = Grid([], [], answer=_predictions_answer(path, rows, titles))
    thing = {
        "schema": PREDICTIONS_SCHEMA,
        "model": str(path),
        "level": 0.9,
        "rows": list(map(_prediction_record, rows)),
    }
    show_found([Forms([Grid([], [], above=[_JACKKNIFE]), *grids, last], thing)], format, file)


def _predictions_answer(path: str, rows: Sequence[PredictedRow], titles: Sequence[str]) -> Answer:
    """The most that was asked for, of the first kind, and how many are a guess beyond the data."""
    known = [row for row in rows if row.prediction]
    if not known:
        return Answer(f"nothing can be predicted by {path}: {rows[0].reason}", "doubt")
    most = max(
        (row for row in known if row.kind == known[0].kind),
        key=lambda row: (row.ranks, row.size_bytes),
    )
    found = most.prediction
    assert found
    kinds = list(dict.fromkeys(repr(row.kind) for row in rows))
    title = titles[kinds.index(repr(most.kind))]
    text = (
        f"predicted by {path}, not measured: {title}: {format_size(most.size_bytes)} on "
        f"{most.ranks} ranks takes {_times((found.time_ns, found.low_ns, found.high_ns))}"
    )
    beyond = sum(bool(row.prediction and row.prediction.beyond) for row in rows)
    text += f"; {beyond} of {counted(len(rows), 'prediction')} beyond the data" * bool(beyond)
    out = len(rows) - len(known)
    text += f"; {out} not predicted, see the table" * bool(out)
    return Answer(text, "doubt" if beyond or out else "")


def _prediction_record(row: PredictedRow) -> dict[str, Any]:
    found = row.prediction
    return {
        **known(row.kind),
        "ranks": row.ranks,
        "size_bytes": row.size_bytes,
        **picked(found, "time_ns low_ns high_ns beyond?"),
        "busbw_gbps": _busbw(row, found.time_ns) if found else None,
        "busbw_low_gbps": _busbw(row, found.high_ns) if found else None,
        "busbw_high_gbps": _busbw(row, found.low_ns) if found else None,
        "reason": row.reason or None,
    }


def _busbw(row: PredictedRow, ns: float) -> float | None:
    return busbw_gbps(str(row.kind["collective"]), row.size_bytes, row.ranks, ns)


def _predictions(rows: Sequence[PredictedRow], title: str) -> Grid:
    def of(cell: Callable[[PredictedRow, Any], str]) -> Callable[[PredictedRow], str]:
        return lambda row: cell(row, row.prediction) if row.prediction else "-"

    def interval(row: PredictedRow, found: Any) -> str:
        return f"{format_time(found.low_ns)} to {time_text(found.high_ns)}"

    def busbw(row: PredictedRow, found: Any) -> str:
        return format_ratio(_busbw(row, found.time_ns))

    def ends(row: PredictedRow, found: Any) -> str:
        low, high = _busbw(row, found.high_ns), _busbw(row, found.low_ns)
        return "-" if low is None else f"{format_ratio(low)} to {format_ratio(high)}"

    return filled(
        [
            (Head("ranks", repeat=True), lambda row: str(row.ranks)),
            (Head("size", repeat=True), lambda row: format_size(row.size_bytes)),
            (Head("time"), of(lambda row, found: format_time(found.time_ns))),
            (Head("90 %", left=True), of(interval)),
            (Head("busbw", "GB/s"), of(busbw)),
            (Head("90 %", "GB/s", left=True), of(ends)),
            (
                Head("beyond the data", left=True),
                lambda row: (row.prediction.beyond or "within") if row.prediction else row.reason,
            ),
        ],
        rows,
        above=[title],
    )


# -- validate --------------------------------------------------------------------------------


def show_validation(found: Validation, format: str = "table", file: TextIO | None = None) -> None:
    """Print what ``validate`` found. Raises UsageError for an unknown format."""
    rows = [*found.rows, *found.totals]
    named = [row for row in found.rows if row.kind is not None]
    texts = kind_texts([dict(row.kind or {}) for row in named])
    titles = {repr(row.kind): text for row, text in zip(named, texts, strict=True)}

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f} %"

    def ends(row: ValidationRow) -> str:
        return f"{percent(row.errors.worst)} at {format_size(row.worst_bytes)}"

    def both(row: ValidationRow) -> str:
        if not (row.both and row.baseline):
            return "-"
        return f"{percent(row.both.mean)} : {percent(row.baseline.mean)}"

    grid = filled(
        [
            (Head("left out", left=True, repeat=True), lambda row: row.over),
            (Head("case", left=True), lambda row: titles.get(repr(row.kind), "all")),
            (Head("ranks"), lambda row: "-" if row.ranks is None else str(row.ranks)),
            (Head("points"), lambda row: str(row.errors.count)),
            (Head("geomean"), lambda row: percent(row.errors.geomean)),
            (Head("mean"), lambda row: percent(row.errors.mean)),
            (Head("worst", left=True), ends),
            (Head("in 90 %", "interval"), lambda row: f"{row.covered} of {row.errors.count}"),
            (Head("mean of model :", "of the cubic", left=True), both),
        ],
        rows,
    )
    above = [_ERRORS, _CUBIC]
    below = found_lines(found.notes, found.runs)
    thing = {
        "schema": VALIDATION_SCHEMA,
        "rows": [_row_record(row) for row in rows],
        "points": [
            {
                **known(point.kind),
                **picked(point, "over ranks size_bytes measured_ns predicted_ns low_ns high_ns"),
                **picked(point, "baseline_ns"),
            }
            for point in found.points
        ],
        "notes": below,
    }
    last = Grid([], [], below=below, answer=_validation_answer(found.totals))
    show_found([Forms([Grid([], [], above=above), grid, last], thing)], format, file)


_ERRORS = (
    "errors: |predicted / measured - 1|; the geometric mean is what papers on simulators give: "
    "points that are nearly exact pull it down"
)
_CUBIC = (
    "the cubic: no model, a monotone cubic through the other points, in logarithms; both on the "
    "points that have others on both sides"
)


def _validation_answer(totals: Sequence[ValidationRow]) -> Answer:
    """How wrong it is. In doubt where its intervals hold less than they say."""
    narrow = any(total.covered < _LEAST_HELD * total.errors.count for total in totals)
    return Answer("; ".join(map(_sentence, totals)), "doubt" if narrow else "")


_LEAST_HELD = 0.8  # of the 90 % that an interval is to hold: below it is no chance of few points


def _sentence(total: ValidationRow) -> str:
    share = 100 * total.covered / total.errors.count
    text = (
        f"left-out {total.over}: off by {100 * total.errors.mean:.1f} % on average; "
        f"{share:.0f} % of {total.errors.count} times lie in their 90 % interval"
    )
    if total.both and total.baseline:
        text += (
            f"; a cubic through the other points {100 * total.baseline.mean:.1f} %, where the "
            f"model is off by {100 * total.both.mean:.1f} %"
        )
    return text


def _summary_record(errors: ErrorSummary | None) -> dict[str, Any]:
    return picked(errors, "points=count geomean mean worst")


def _row_record(row: ValidationRow) -> dict[str, Any]:
    return {
        "left_out": row.over,
        **known(row.kind or {}),
        "ranks": row.ranks,
        **_summary_record(row.errors),
        "worst_bytes": row.worst_bytes,
        "covered": row.covered,
        "coverage": row.covered / row.errors.count,
        **picked(row, "mean_beside_baseline=both.mean baseline_points=baseline.count"),
        **picked(row, "baseline_geomean=baseline.geomean baseline_mean=baseline.mean"),
        **picked(row, "baseline_worst=baseline.worst"),
    }


# -- a simulator -----------------------------------------------------------------------------


def show_simulated(found: Simulated, format: str = "table", file: TextIO | None = None) -> None:
    """Print what ``validate_predicted`` found. Raises UsageError for an unknown format."""
    scenarios = [*found.scenarios, found.overall]

    def of(name: str) -> Callable[[Scenario], str]:
        return lambda one: f"{100 * getattr(one.errors, name):.2f} %" if one.errors else "-"

    def worst(one: Scenario) -> str:
        return f"{of('worst')(one)} ({one.worst})" if one.errors else "-"

    grid = filled(
        [
            (Head("ranks"), lambda one: "all" if one.ranks is None else str(one.ranks)),
            (
                Head("cases", left=True),
                lambda one: f"{one.errors.count if one.errors else 0} of {one.measured}",
            ),
            (Head("geomean", "error"), of("geomean")),
            (Head("mean", "error"), of("mean")),
            (Head("worst", "error", left=True), worst),
        ],
        scenarios,
    )
    errors = found.overall.errors
    assert errors is not None
    below = found_lines([*found.notes, *found.missing], found.runs)
    answer = Answer(
        f"{found.predicted}: geometric mean of the errors {100 * errors.geomean:.2f} %, mean "
        f"{100 * errors.mean:.2f} %, worst {100 * errors.worst:.2f} %, over {errors.count} of "
        f"{counted(found.overall.measured, 'measured case')}",
        "doubt" if found.missing else "",
    )
    thing = {
        "schema": VALIDATION_SCHEMA,
        "predicted": found.predicted,
        "rows": [_scenario_record(one) for one in scenarios],
        "cases": found.cases,
        "notes": below,
    }
    last = Grid([], [], below=below, answer=answer)
    show_found([Forms([Grid([], [], above=[_ERRORS]), grid, last], thing)], format, file)


def _scenario_record(one: Scenario) -> dict[str, Any]:
    found = {"ranks": one.ranks, "measured": one.measured, **_summary_record(one.errors)}
    return {**found, "worst_case": one.worst or None}


# -- a picture -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ErrorPoint:
    """One time that was predicted and measured. low_ns, high_ns: the 90 % interval; baseline_ns:
    what the cubic says; None where there is none.
    """

    ranks: int
    size_bytes: int
    measured_ns: float
    predicted_ns: float
    low_ns: float | None = None
    high_ns: float | None = None
    baseline_ns: float | None = None


def errors_figure(found: Validation | Simulated) -> Drawing:
    """Predicted against measured on the left, the error of each size on the right; of left-out
    sizes, left-out ranks and a simulator a row each, and of each kind of case.

    Raises UnavailableError without matplotlib.
    """
    panels = _error_panels(found)
    drawn = list(panels.items())[:_PANELS]
    figure, axes = new_figure(len(drawn), 2)
    for (title, points), (left, right) in zip(drawn, axes, strict=True):
        left.set_title(f"{literal(title)}: predicted, measured", loc="left", fontsize="small")
        right.set_title("error: predicted / measured - 1", loc="left", fontsize="small")
        _draw_errors(left, right, points)
    caption = ["dashed: predicted as measured"]
    points = [point for _, own in drawn for point in own]
    if any(point.low_ns for point in points):
        caption[0] += "; bars: 90 % intervals of the prediction"
    if any(point.baseline_ns for point in points):
        caption[0] += "; grey crosses: the cubic through the other points, no model"
    rest = len(panels) - len(drawn)
    caption += [f"{counted(rest, 'kind')} of cases more are not drawn"] * bool(rest)
    write_caption(figure, [*caption, *found_lines(found.notes, found.runs)])
    return figure


_PANELS = 8  # rows of a picture; more are too small to read


def _error_panels(found: Validation | Simulated) -> dict[str, list[ErrorPoint]]:
    panels: dict[str, list[ErrorPoint]] = {}
    fields = [one.name for one in dataclasses.fields(ErrorPoint)]
    if hasattr(found, "cases"):
        for case in found.cases:
            if case["error"] is not None and case["measured_ns"] and case["predicted_ns"]:
                own = {name: case[name] for name in fields if name in case}
                panels.setdefault(case["collective"], []).append(ErrorPoint(**own))
        return panels
    titles = kind_texts([point.kind for point in found.points])
    for point, title in zip(found.points, titles, strict=True):
        own = {name: getattr(point, name) for name in fields}
        panels.setdefault(f"{title}, left-out {point.over}", []).append(ErrorPoint(**own))
    return panels


def _draw_errors(left: Axes, right: Axes, points: Sequence[ErrorPoint]) -> None:
    numbers = sorted({point.ranks for point in points})
    for number, ranks in enumerate(numbers):
        own = sorted((p for p in points if p.ranks == ranks), key=lambda p: p.size_bytes)
        style = {"color": style_of(number)["color"], "marker": _MARKERS[number % len(_MARKERS)]}
        dots: dict[str, Any] = {"linestyle": "", "markersize": 4.5, **style}
        name = f"{ranks} ranks"
        left.plot([p.measured_ns for p in own], [p.predicted_ns for p in own], label=name, **dots)
        sizes = [p.size_bytes for p in own]
        errors = [100 * (p.predicted_ns / p.measured_ns - 1) for p in own]
        right.plot(sizes, errors, linewidth=0.8, **{**dots, "linestyle": "-"})
        for p in own:
            if p.low_ns and p.high_ns:
                low, high = (100 * (ns / p.measured_ns - 1) for ns in (p.low_ns, p.high_ns))
                right.vlines(p.size_bytes, low, high, color=style["color"], linewidth=1, alpha=0.5)
    known = [(p.size_bytes, 100 * (p.baseline_ns / p.measured_ns - 1))
             for p in points if p.baseline_ns]  # fmt: skip
    if known:
        right.plot(*zip(*known, strict=True), linestyle="", marker="x", color="0.5", markersize=4)
    ends = [pick(p.measured_ns for p in points) for pick in (min, max)]
    left.plot(ends, ends, color="0.4", linestyle=(0, (6, 3)), linewidth=1)
    left.set_xscale("log")
    left.set_xlabel("measured")
    left.xaxis.set_major_formatter(lambda ns, _: time_text(ns, 1))
    left.minorticks_off()
    left.grid(True, color="0.9")
    time_axis(left)
    left.set_ylabel("predicted")
    right.axhline(0, color="0.4", linestyle=(0, (6, 3)), linewidth=1)
    right.set_ylabel("error, %")
    size_axis(right, [p.size_bytes for p in points])
    legend(left, len(numbers))


_MARKERS = ("o", "s", "^", "D", "v", "P")  # beside the colours, which grey does not show

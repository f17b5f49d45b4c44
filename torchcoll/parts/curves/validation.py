"""The errors of a model on left-out sizes and numbers of ranks, and the errors of a simulator.

Each size (or number of ranks) is left out in turn, and the whole fit, including the choice of the
form, is repeated without it. The baseline is no model but a monotone cubic through the other
points, in logarithms of size (or ranks) and time (F. N. Fritsch and R. E. Carlson, SIAM J.
Numerical Analysis 17 (1980) 238). It needs points on both sides; both are therefore compared
without the ends.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
from scipy import interpolate

from torchcoll.core.answer import Answer, worst_level
from torchcoll.core.display import OneLine
from torchcoll.core.errors import UsageError
from torchcoll.core.result import Run
from torchcoll.core.units import counted, format_share, format_size
from torchcoll.parts.curves.model_fit import fit_entries, read_curves
from torchcoll.parts.curves.model_ranks import FEWEST_RANKS
from torchcoll.parts.curves.model_sizes import Curve, leave_one_out, size_spreads
from torchcoll.parts.curves.size_law import FEWEST_SIZES, fit_size_law
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.comparison.prediction import (
    MODEL,
    ErrorSummary,
    error_summary,
    model_errors,
)
from torchcoll.reading.inputs import Source
from torchcoll.stats.sides import side

OVER_SIZES, OVER_RANKS, NEW_RUN = "sizes", "ranks", "new run"


@dataclass(frozen=True)
class HeldOut:
    """A measured time and the prediction of a model that was fitted without it.

    over: what was left out (OVER_SIZES, OVER_RANKS), or NEW_RUN.
    low_ns, high_ns: the 90 % interval of the prediction.
    baseline_ns: None if there are no points on both sides.
    beyond: how far the model extrapolates; '' if it does not.
    """

    kind: Mapping[str, Any]
    over: str
    ranks: int
    size_bytes: int
    measured_ns: float
    predicted_ns: float
    low_ns: float
    high_ns: float
    baseline_ns: float | None = None
    beyond: str = ""

    @property
    def error(self) -> float:
        return abs(self.predicted_ns / self.measured_ns - 1)

    @property
    def baseline_error(self) -> float | None:
        return None if self.baseline_ns is None else abs(self.baseline_ns / self.measured_ns - 1)

    @property
    def covered(self) -> bool:
        return self.low_ns <= self.measured_ns <= self.high_ns


@dataclass(frozen=True)
class ValidationRow:
    """The errors of the points of one curve, or of all curves (kind None).

    ratio: geometric mean of predicted / measured.
    worst: the point with the largest error.
    covered: how many intervals contain the measured time.
    beyond: how many points are extrapolated.
    with_baseline: the model's errors of those points that have a baseline.
    baseline: the baseline's errors of the same points.
    """

    over: str
    kind: Mapping[str, Any] | None
    ranks: int | None
    errors: ErrorSummary
    ratio: float
    worst: HeldOut
    covered: int
    beyond: int
    with_baseline: ErrorSummary | None
    baseline: ErrorSummary | None


@dataclass(frozen=True, repr=False)
class Validation(OneLine):
    """The result of ``validate``.

    rows: one for each curve and kind of left-out points; totals: the same over all curves.
    """

    runs: list[Run]
    rows: list[ValidationRow]
    totals: list[ValidationRow]
    points: list[HeldOut]
    notes: list[str] = field(default_factory=list)

    @property
    def answer(self) -> Answer:
        """The mean error, and whether the 90 % intervals hold; in doubt if clearly fewer do."""
        answers = [_left_out_answer(total) for total in self.totals]
        first, *more = answers
        details = [text for answer in more for text in (answer.headline, *answer.details)]
        return replace(
            first,
            level=worst_level(*(answer.level for answer in answers)),
            details=(*first.details, *details),
        )


# The share of times in their 90 % interval: few points do not explain less than this.
_LEAST_HELD = 0.8


def narrow(total: ValidationRow) -> bool:
    """Whether clearly fewer times than 90 % are in their 90 % interval."""
    return total.covered < _LEAST_HELD * total.errors.count


def worst_text(total: ValidationRow) -> str:
    size = format_size(total.worst.size_bytes)
    return f"worst {format_share(total.errors.worst)}: {total.worst.kind['collective']} {size}"


def coverage_text(total: ValidationRow) -> str:
    share = 100 * total.covered / total.errors.count
    return f"{share:.0f} % of {counted(total.errors.count, 'time')} lie in their 90 % interval"


def _left_out_answer(total: ValidationRow) -> Answer:
    details = [coverage_text(total)]
    if total.with_baseline and total.baseline:
        cubic = f"a cubic through the other points is off by {format_share(total.baseline.mean)}"
        if total.with_baseline.count < total.errors.count:
            cubic += f", where the model is by {format_share(total.with_baseline.mean)}"
        details.append(cubic)
    return Answer(
        f"predicted times of left-out {total.over}",
        "doubt" if narrow(total) else "",
        verb="is off by",
        many=True,
        size=total.errors.mean,
        unit="%",
        scope=f"on average ({worst_text(total)})",
        details=tuple(details),
    )


def validate(sources: Source | Sequence[Source]) -> Validation:
    """The errors of models that are fitted to these runs without some of their points.

    Raises UsageError if nothing can be left out, which takes FEWEST_SIZES + 1 sizes or
    FEWEST_RANKS + 1 numbers of ranks; UnreadableError for a file that cannot be read.
    """
    files = side("files", sources)
    kinds, notes = read_curves(files)
    points = [*_over_sizes(kinds), *_over_ranks(kinds, notes)]
    if not points:
        most = max(len(curve.sizes) for _, curves in kinds for curve in curves)
        numbers = max(len({c.ranks for c in curves}) for _, curves in kinds)
        raise UsageError(
            "left-out points",
            f"{most} sizes and {counted(numbers, 'number')} of ranks",
            f"at least {FEWEST_SIZES + 1} sizes, or {FEWEST_RANKS + 1} numbers of ranks",
        )
    if not any(point.over == OVER_RANKS for point in points):
        notes.append(f"over ranks: nothing to leave out, {FEWEST_RANKS + 1} numbers are needed")
    groups: dict[str, list[HeldOut]] = {}
    for point in points:
        groups.setdefault(repr((point.over, point.kind, point.ranks)), []).append(point)
    rows = [validation_row(each, each[0].kind, each[0].ranks) for each in groups.values()]
    by_kind = [
        [point for point in points if point.over == over] for over in (OVER_SIZES, OVER_RANKS)
    ]
    totals = [validation_row(of_kind) for of_kind in by_kind if of_kind]
    return Validation(files.runs, rows, totals, points, notes)


def validation_row(
    points: Sequence[HeldOut], kind: Mapping[str, Any] | None = None, ranks: int | None = None
) -> ValidationRow:
    """The row of these points, at least one."""
    shared = [p for p in points if p.baseline_error is not None]
    logs = [math.log(point.predicted_ns / point.measured_ns) for point in points]
    return ValidationRow(
        points[0].over,
        kind,
        ranks,
        error_summary([point.error for point in points]),
        math.exp(math.fsum(logs) / len(logs)),
        max(points, key=lambda point: point.error),
        sum(point.covered for point in points),
        sum(bool(point.beyond) for point in points),
        error_summary([point.error for point in shared]) if shared else None,
        error_summary([point.baseline_error or 0.0 for point in shared]) if shared else None,
    )


def _over_sizes(kinds: Sequence[tuple[dict[str, Any], list[Curve]]]) -> Iterable[HeldOut]:
    all_curves = [(kind, curve) for kind, curves in kinds for curve in curves]
    whole = [leave_one_out(c, fit_size_law(c.sizes, c.times, c.errors)) for _, c in all_curves]
    for number, (kind, curve) in enumerate(all_curves):
        if len(curve.sizes) <= FEWEST_SIZES:
            continue
        for index in range(1, len(curve.sizes) - 1):
            remaining = curve.without(index)
            fit = fit_size_law(remaining.sizes, remaining.times, remaining.errors)
            left_out_curves = [*whole[:number], leave_one_out(remaining, fit), *whole[number + 1 :]]
            spread = size_spreads(left_out_curves)[number]
            size, time = float(curve.sizes[index]), float(curve.times[index])
            predicted = math.exp(float(fit.law.logs(curve.sizes[index : index + 1])[0]))
            yield HeldOut(
                kind,
                OVER_SIZES,
                curve.ranks,
                round(size),
                time,
                predicted,
                predicted * spread.low,
                predicted * spread.high,
                cubic(remaining.sizes, remaining.times, size),
            )


def _over_ranks(
    kinds: Sequence[tuple[dict[str, Any], list[Curve]]], notes: list[str]
) -> Iterable[HeldOut]:
    """Yields the points of each left-out number of ranks.

    notes: gets a sentence on each number of ranks that the other ones cannot predict.
    """
    for kind, curves in kinds:
        for curve in curves:
            other_curves = [other for other in curves if other.ranks != curve.ranks]
            if len({other_curve.ranks for other_curve in other_curves}) < FEWEST_RANKS:
                continue
            (entry,) = fit_entries([(kind, other_curves)])
            sizes = curve.sizes.tolist()
            try:
                predictions = [
                    entry.predict(round(size), curve.ranks, curve.hosts or None) for size in sizes
                ]
            except UsageError as error:  # it may be the only one on several hosts
                notes.append(f"{kind['collective']} on {curve.ranks} ranks left out: {error}")
                continue
            for size, time, prediction in zip(
                sizes, curve.times.tolist(), predictions, strict=True
            ):
                # Collectives with blocks round the size down on some numbers of ranks.
                near = {
                    other_curve.ranks: float(
                        other_curve.times[numpy.argmin(abs(other_curve.sizes - size))]
                    )
                    for other_curve in other_curves
                    if abs(other_curve.sizes / size - 1).min() < 0.01
                }
                ranks = numpy.array(sorted(near), dtype=float)
                times = numpy.array([near[round(n)] for n in ranks])
                yield HeldOut(
                    entry.kind,
                    OVER_RANKS,
                    curve.ranks,
                    round(size),
                    time,
                    prediction.time_ns,
                    prediction.low_ns,
                    prediction.high_ns,
                    cubic(ranks, times, curve.ranks),
                )


def cubic(positions: Any, times: Any, position: float) -> float | None:
    """The baseline at a position; None if it does not lie between two of the others."""
    if len(positions) < 2 or not positions[0] < position < positions[-1]:
        return None
    law = interpolate.PchipInterpolator(numpy.log(positions), numpy.log(times))
    return math.exp(float(law(math.log(position))))


@dataclass(frozen=True)
class Scenario:
    """The errors on one number of ranks, or on all (None).

    measured: how many cases were measured, predicted or not. worst: the case of the largest error.
    """

    ranks: int | None
    errors: ErrorSummary | None
    measured: int
    worst: str


@dataclass(frozen=True, repr=False)
class Simulated(OneLine):
    """The errors of a simulator.

    predicted: the names of the files with its times.
    missing: a sentence for each number of ranks with cases that it does not predict.
    """

    runs: list[Run]
    predicted: str
    scenarios: list[Scenario]
    overall: Scenario
    cases: list[dict[str, Any]]
    missing: list[str]
    notes: list[str] = field(default_factory=list)

    @property
    def answer(self) -> Answer:
        errors = self.overall.errors
        assert errors is not None
        return Answer(
            self.predicted,
            "doubt" if self.missing else "",
            verb="is off by",
            size=errors.mean,
            unit="%",
            scope=f"on average (geometric mean {100 * errors.geomean:.2f} %, worst "
            f"{100 * errors.worst:.2f} %)",
            details=(
                f"{errors.count} of {counted(self.overall.measured, 'measured case')} predicted",
            ),
        )


def validate_predicted(
    predicted: Source | Sequence[Source], sources: Source | Sequence[Source]
) -> Simulated:
    """The errors of a simulator's times, by ranks and overall.

    predicted: any file that torchcoll reads; a CSV file with collective, ranks, size and time is
        enough.
    Raises UsageError if none of its cases was measured.
    """
    measured, model = side("measured", sources), side(MODEL, predicted)
    comparison = compare(measured, model)
    errors = model_errors(measured, model, comparison.rows)
    predicted_rows = [row for row in comparison.rows if row.pair.base and row.row.ranks]
    cases: list[dict[str, Any]] = [
        {
            "collective": row.row.collective,
            "ranks": row.row.ranks,
            "size_bytes": row.pair.size_bytes,
            "measured_ns": row.base,
            "predicted_ns": row.new,
            "ratio": row.ratio,
            "error": next(
                (error for error, row_with_error in errors if row_with_error is row), None
            ),
        }
        for row in predicted_rows
    ]
    numbers = sorted({case["ranks"] for case in cases})
    scenarios = [_scenario(n, [c for c in cases if c["ranks"] == n]) for n in numbers]
    overall = _scenario(None, cases)
    files = [str(run.path or run.source.get("file") or "a run") for run in model.runs]
    name = ", ".join(dict.fromkeys(files))
    name = os.fspath(predicted) if isinstance(predicted, str | os.PathLike) else name
    if overall.errors is None:
        raise UsageError("predicted", name, "times of cases that were measured")
    missing = [_missing(n, [c for c in cases if c["ranks"] == n]) for n in numbers]
    return Simulated(
        [*measured.runs, *model.runs],
        name,
        scenarios,
        overall,
        cases,
        list(filter(None, missing)),
        [measured.rehearsal_note] if measured.rehearsal_note else [],
    )


def _scenario(ranks: int | None, cases: Sequence[Mapping[str, Any]]) -> Scenario:
    with_error = [case for case in cases if case["error"] is not None]
    if not with_error:
        return Scenario(ranks, None, len(cases), "")
    worst = max(with_error, key=lambda case: float(case["error"]))
    summary = error_summary([float(case["error"]) for case in with_error])
    text = f"{worst['collective']} {format_size(worst['size_bytes'])}"
    return Scenario(ranks, summary, len(cases), text)


def _missing(ranks: int, cases: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on missing cases, or ''. A simulation that was aborted has only small sizes, so
    its error is not that of all cases.
    """
    lost = [case for case in cases if case["error"] is None]
    if not lost:
        return ""
    first = min(lost, key=lambda case: int(case["size_bytes"]))
    text = f"{ranks} ranks: {len(lost)} of {len(cases)} measured cases are not predicted"
    return f"{text}, from {first['collective']} {format_size(first['size_bytes'])} on"

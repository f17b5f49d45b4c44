"""A side that is a prediction: how far it is from what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchcoll.questions.comparison.results import Compared, tables_of
from torchcoll.stats.matching import Pair
from torchcoll.stats.sides import Side, values_by_name

MODEL = "model"  # a side of this name is a prediction


@dataclass(frozen=True)
class ErrorSummary:
    """Shares. geomean: the measure of papers on simulators, which one size that is nearly exact
    pulls far down: it never stands without the mean and the worst.
    """

    count: int
    geomean: float
    mean: float
    worst: float


def error_summary(errors: Sequence[float]) -> ErrorSummary:
    """Of |predicted / measured - 1|, at least one."""
    exact = min(errors) == 0
    geomean = 0.0 if exact else math.exp(math.fsum(map(math.log, errors)) / len(errors))
    return ErrorSummary(len(errors), geomean, math.fsum(errors) / len(errors), max(errors))


def has_model(base: Side, new: Side) -> bool:
    """Whether one side, not both, is the prediction."""
    return (base.name == MODEL) != (new.name == MODEL)


def error_of(row: Compared, new: Side) -> float | None:
    """predicted / measured - 1 of one case; None without a ratio."""
    if not row.ratio:
        return None
    return (row.ratio if new.name == MODEL else 1 / row.ratio) - 1


def model_errors(base: Side, new: Side, rows: Sequence[Compared]) -> list[tuple[float, Compared]]:
    """|predicted / measured - 1| of the cases with a ratio; [] where no side, or both, is the
    model.
    """
    if not has_model(base, new):
        return []
    return [(abs(e), row) for row in rows if (e := error_of(row, new)) is not None]


@dataclass(frozen=True)
class ScenarioError:
    """How far predictions are off over the cases of one scenario, which differ in nothing but the
    size. pair: the first of them, which names it; None: of all. worst: the case of the largest.
    """

    pair: Pair | None
    summary: ErrorSummary
    worst: Compared


def scenario_errors(base: Side, new: Side, rows: Sequence[Compared]) -> list[ScenarioError]:
    """Those of all cases with a ratio, then of each scenario; [] where there is no model."""
    tables = tables_of([row for _, row in model_errors(base, new, rows)])
    groups = [(None, rows), *((table[0].pair, table) for table in tables)]
    errors = [(pair, model_errors(base, new, of_pair)) for pair, of_pair in groups if tables]
    return [
        ScenarioError(
            pair,
            error_summary([e for e, _ in errors_of_pair]),
            max(errors_of_pair, key=lambda error: error[0])[1],
        )
        for pair, errors_of_pair in errors
    ]


# Labels that number runs and cells: no scenario is told by them.
_OF_MATRIX = ("label=run", "label=cell")


def scenarios(base: Side, new: Side) -> tuple[str, ...]:
    """The labels by which both the model and what it predicts tell several scenarios apart."""
    ours, theirs = values_by_name(base), values_by_name(new)
    return tuple(
        name
        for name, values in ours.items()
        if name.startswith("label=")
        and name not in _OF_MATRIX
        and len(set(values) & set(theirs.get(name, []))) > 1
    )

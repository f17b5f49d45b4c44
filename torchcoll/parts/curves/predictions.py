"""Predictions of a machine for many sizes and numbers of ranks, and which of them say nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.errors import UsageError, brief
from torchcoll.parts.curves.predictor import Prediction, Predictor

WIDEST = 100.0  # ratio of the ends of an interval: a wider interval counts as no prediction


@dataclass(frozen=True)
class PredictedRow:
    """The prediction for one size on one number of ranks.

    prediction: None if its interval would be wider than WIDEST, or if no law covers these ranks.
    reason: why there is no prediction; action: what to do about it.
    """

    kind: Mapping[str, Any]
    ranks: int
    size_bytes: int
    prediction: Prediction | None
    reason: str = ""
    action: str = ""


def predict_all(
    machine: Predictor,
    ranks: Sequence[int],
    sizes: Sequence[int],
    collective: str | None = None,
    hosts: int | None = None,
) -> list[PredictedRow]:
    """Predict every kind of case of the machine, or of one collective, for all sizes and ranks.

    hosts: of the ranks; None for as few as they need.
    Raises UsageError with the first reason if nothing can be predicted, and for ranks that are not
    a multiple of the hosts.
    """
    if hosts is not None:
        uneven = next((n for n in ranks if hosts < 1 or n % hosts), None)
        if uneven is not None:
            expected = f"a multiple of {hosts}, as --hosts says" if hosts > 0 else "--hosts above 0"
            raise UsageError("ranks", uneven, expected)
    rows, first = [], None
    for case in machine.cases(collective):
        for n in ranks:
            for size in sizes:
                try:
                    prediction, reason, action = case.predict(size, n, hosts), "", ""
                except UsageError as error:
                    prediction, reason, first = None, brief(error), first or error
                    action = error.action
                if prediction and (reason := only_a_guess(prediction)):
                    prediction, action = None, MORE_DATA
                rows.append(PredictedRow(case.kind, n, size, prediction, reason, action))
    if all(row.prediction is None for row in rows):
        refused = f"none: each 90 % interval is wider than {WIDEST:g}x"
        raise first or UsageError("prediction", refused, machine.measured, MORE_DATA)
    return rows


MORE_DATA = "Measure nearer sizes, or more numbers of ranks, and fit again."


def too_wide(low_ns: float, high_ns: float) -> bool:
    """Whether an interval with these ends is too wide to be a prediction."""
    return high_ns > WIDEST * low_ns


def only_a_guess(prediction: Prediction) -> str:
    """Why the interval of a prediction is too wide to be useful; '' if it is not."""
    if not too_wide(prediction.low_ns, prediction.high_ns):
        return ""
    extrapolated = f"{prediction.beyond}: " if prediction.beyond else ""
    return f"{extrapolated}its 90 % interval is wider than {WIDEST:g}x"

"""A side that is a prediction: how far it is from what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchcoll.analysis.cases import Compared
from torchcoll.analysis.sides import Side
from torchcoll.core.units import format_size

MODEL = "model"  # a side of this name is a prediction


def error_note(base: Side, new: Side, rows: Sequence[Compared], metric: str) -> list[str]:
    """The errors |predicted / measured - 1| of the cases with a ratio; [] where no side, or both,
    is the model.

    Papers on simulators give the geometric mean over the sizes ("geomean error"). One size that is
    nearly exact pulls it far down, so it never stands without the mean and the worst.
    """
    if (base.name == MODEL) == (new.name == MODEL):
        return []
    errors = [
        (abs((row.ratio if new.name == MODEL else 1 / row.ratio) - 1), row)
        for row in rows
        if row.ratio
    ]
    if not errors:
        return []
    values = [error for error, _ in errors]
    exact = min(values) == 0
    geometric = 0.0 if exact else math.exp(math.fsum(map(math.log, values)) / len(values))
    worst, row = max(errors, key=lambda one: one[0])
    mean = math.fsum(values) / len(values)
    size = f" {format_size(row.pair.nbytes)}" if row.pair.nbytes else ""
    return [
        f"error of the model, |{metric} predicted / measured - 1|, over {len(values)} cases: "
        f"geometric mean {100 * geometric:.1f} % (sizes that are nearly exact pull it down), "
        f"mean {100 * mean:.1f} %, worst {100 * worst:.1f} % ({row.row.collective}{size})"
    ]

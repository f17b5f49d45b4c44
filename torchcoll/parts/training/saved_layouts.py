"""Layouts that ``plan --compare`` or ``plan --find`` printed as JSON, read for show and pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchcoll.core.errors import UnreadableError, UsageError, one_line
from torchcoll.core.opening import read_regular
from torchcoll.parts.training.config_projection import LayoutComparison, LayoutRow
from torchcoll.parts.training.layouts import parse_batch, parse_layout
from torchcoll.parts.training.projection import Computation, PlannedStep
from torchcoll.parts.training.step_program import Memory

SCHEMA = "torchcoll-layouts/2"


@dataclass(frozen=True)
class SavedStep(PlannedStep):
    """A planned step without its calls: only their number and bytes were saved."""

    saved_calls: int = 0
    saved_bytes: float = 0.0

    @property
    def calls(self) -> int:
        return self.saved_calls

    @property
    def sent_bytes(self) -> float:
        return self.saved_bytes


def read_layouts(path: str) -> LayoutComparison:
    """Returns the comparison that a file has. Raises UnreadableError for any other file."""
    try:
        document = json.loads(read_regular(path))
        rows = [_row(row, document["ranks"]) for row in document["rows"]]
        return LayoutComparison(
            document["what"],
            document["ranks"],
            rows,
            document["machine"] or "",
            document["notes"],
            document["memory_bytes"],
            document["launch"],
        )
    except (ValueError, LookupError, TypeError, AttributeError, UsageError) as error:
        expected = f"what plan --compare LIST --format json prints, {SCHEMA}"
        why = f"{type(error).__name__}: {error}."
        raise UnreadableError("file", one_line(path), expected, one_line(why)) from None


def _row(row: Mapping[str, Any], ranks: int) -> LayoutRow:
    layout = parse_layout(row["layout"])

    def ends(name: str) -> tuple[float, float, float] | None:
        if row[f"{name}_ns"] is None:
            return None
        value, low, high = (float(row[f"{name}{end}_ns"]) for end in ("", "_low", "_high"))
        return value, low, high

    compute, memory = row["compute"], row["memory"]
    step = SavedStep(
        ranks,
        layout.degrees,
        (),
        ends("comm"),
        Computation(**{**compute, "ns": tuple(compute["ns"])}) if compute else None,
        ends("exposed"),
        ends("step"),
        row["idle_ns"],
        Memory(**memory) if memory else None,
        ends("at_rate"),
        row["calls"],
        row["sent_bytes"],
    )
    return LayoutRow(layout, step, parse_batch(row["batch"]), row["fits"])

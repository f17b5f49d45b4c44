"""A comparison as tables, markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.report.columns import ROW_FIELDS
from torchcoll.report.comparison import comparison_grids
from torchcoll.report.found import Found, show_found
from torchcoll.report.notes import lines_beside

if TYPE_CHECKING:
    from torchcoll.analysis.compare import Comparison
    from torchcoll.analysis.sides import Side

SCHEMA = "torchcoll-comparison/1"
_FOUND = (
    *("verdict", "reason", "ratio", "ratio_low", "ratio_high", "p_value"),
    *("mann_whitney_p", "base", "new", "base_launches", "new_launches"),
    *("needs_low", "needs_high"),
)
# `reason` of a Row says why a case did not run; here it says why the verdict is what it is.
CASE_NAMES = (*(name for name in ROW_FIELDS if name != "reason"), *_FOUND)


def show_comparisons(
    found: Sequence[Comparison], format: str = "table", file: TextIO | None = None
) -> None:
    """Print comparisons with one base. Raises UsageError for an unknown format."""
    show_found(
        [Found(comparison_grids(one), _records(one), comparison_object(one)) for one in found],
        format,
        file,
    )


def told_beside(found: Sequence[Comparison], format: str) -> list[str]:
    """As ``lines_beside`` of all sides."""
    lines = []
    for one in found:
        notes = [*(f"differs: {each}" for each in one.differences)]
        notes += [f"note: {text}" for text in one.notes]
        lines += lines_beside(format, [*one.base.runs, *one.new.runs], notes)
    return list(dict.fromkeys(lines))


def comparison_object(found: Comparison) -> dict[str, Any]:
    """What differs first, then the cases or the fits."""
    fits = {"fits": [one.record for one in found.fitted]} if found.fitted else {}
    return {
        "schema": SCHEMA,
        "base": _side_object(found.base),
        "new": _side_object(found.new),
        "metric": found.metric,
        "threshold": found.threshold,
        "reading": found.reading,
        "differences": [vars(one) for one in found.differences],
        "left_out": found.left_out,
        "tally": found.tally,
        "notes": found.notes,
        "profiles": [
            {**pair.common, "base": vars(ours), "new": vars(theirs)}
            for pair, ours, theirs in found.profiles
        ],
        "starts": [vars(one) for one in found.starts],
        "rows": [
            {**{name: row.record[name] for name in CASE_NAMES}, "notes": list(row.notes)}
            for row in found.rows
        ],
        **fits,
    }


def _side_object(side: Side) -> dict[str, Any]:
    paths = [None if run.path is None else str(run.path) for run in side.runs]
    return {"name": side.name, "launches": len(side.runs), "paths": paths}


def _records(found: Comparison) -> list[dict[str, Any]]:
    """One object a case or fit, of csv; the first columns name the sides."""
    names = {"base_name": found.base.name, "new_name": found.new.name}
    if found.fitted:
        return [{**names, **one.record} for one in found.fitted]
    return [
        {**names, **{name: row.record[name] for name in CASE_NAMES}, "notes": "; ".join(row.notes)}
        for row in found.rows
    ]

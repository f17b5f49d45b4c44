"""A comparison as tables, markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.report.columns import ROW_FIELDS
from torchcoll.report.comparison import comparison_grids
from torchcoll.report.notes import lines_beside
from torchcoll.report.output import Output, one_line
from torchcoll.report.text import print_grids
from torchcoll.report.view import choice

if TYPE_CHECKING:
    from torchcoll.analysis.compare import Comparison
    from torchcoll.analysis.sides import Side

FORMATS = ("table", "markdown", "csv", "json")
SCHEMA = "torchcoll-comparison/1"
_FOUND = (
    *("verdict", "reason", "ratio", "ratio_low", "ratio_high", "p_value"),
    *("mann_whitney_p", "base", "new", "base_launches", "new_launches"),
)
# `reason` of a Row says why a case did not run; here it says why the verdict is what it is.
CASE_NAMES = (*(name for name in ROW_FIELDS if name != "reason"), *_FOUND)


def show_comparisons(
    found: Sequence[Comparison], format: str = "table", file: TextIO | None = None
) -> None:
    """Print comparisons with one base. Raises UsageError for an unknown format."""
    choice(format, "format", FORMATS)
    out = Output(file)
    if format == "json":
        objects = [comparison_object(one) for one in found]
        out.write(json.dumps(objects[0] if len(objects) == 1 else objects, indent=1) + "\n")
    elif format == "csv":
        out.write(csv_text(found))
    else:
        print_grids([("", [g for one in found for g in comparison_grids(one)])], format, out)
    out.flush()


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
        "differences": [{"name": d.name, "base": d.base, "new": d.new} for d in found.differences],
        "tally": found.tally,
        "notes": found.notes,
        "profiles": [
            {**pair.common, "base": vars(ours), "new": vars(theirs)}
            for pair, ours, theirs in found.profiles
        ],
        "rows": [
            {**{name: row.record[name] for name in CASE_NAMES}, "notes": list(row.notes)}
            for row in found.rows
        ],
        **fits,
    }


def _side_object(side: Side) -> dict[str, Any]:
    paths = [None if run.path is None else str(run.path) for run in side.runs]
    return {"name": side.name, "launches": len(side.runs), "paths": paths}


def csv_text(found: Sequence[Comparison]) -> str:
    """One heading for all; the first columns name the sides."""
    records: list[dict[str, Any]] = []
    for one in found:
        names = {"base_name": one.base.name, "new_name": one.new.name}
        records += [{**names, **item.record} for item in one.fitted]
        if not one.fitted:
            records += [{**names, **r.record, "notes": "; ".join(r.notes)} for r in one.rows]
    heads: Iterable[str] = ("base_name", "new_name", *CASE_NAMES, "notes")
    if any(one.fitted for one in found):
        heads = dict.fromkeys(name for record in records for name in record)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(heads), lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for record in records:
        texts = {k: one_line(v) if isinstance(v, str) else v for k, v in record.items()}
        writer.writerow(texts)
    return out.getvalue()

"""The rows as JSON: the names of DESIGN section 8, base units, unknown is null."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torchcoll.core.result import Run
from torchcoll.report.columns import ROW_FIELDS, percentile_key, percentile_ns
from torchcoll.report.notes import problems_of
from torchcoll.report.view import View

SCHEMA = "torchcoll-rows/1"


def row_objects(run: Run, view: View) -> list[dict[str, Any]]:
    """One dictionary a row: the chosen columns (default all), then the chosen percentiles."""
    names = ROW_FIELDS if view.columns in ((), ("all",)) else view.columns
    return [
        {name: getattr(entry.row, name) for name in names}
        | {percentile_key(p): percentile_ns(entry, p) for p in view.percentiles}
        for entry in view.entries(run)
    ]


def run_object(run: Run, view: View) -> dict[str, Any]:
    """One run with its rows, and what one must know to judge them."""
    return {
        "schema": SCHEMA,
        "run": {
            "path": None if run.path is None else str(run.path),
            "run_id": run.header.get("run_id"),
            "start_utc": run.header.get("start_utc"),
            "torchcoll": run.header.get("torchcoll") or run.environment.get("torchcoll"),
            "ranks": run.ranks,
            "labels": run.labels,
            "status": run.end.get("status") if run.end else "truncated",
            "over_ranks": view.over_ranks,
            "events": run.events,
            "problems": problems_of(run),
        },
        "rows": row_objects(run, view),
    }


def json_text(runs: Sequence[Run], view: View) -> str:
    """An object for one run, an array of them for several."""
    objects = [run_object(run, view) for run in runs]
    return json.dumps(objects[0] if len(objects) == 1 else objects, indent=1) + "\n"

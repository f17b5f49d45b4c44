"""The rows as JSON: the names of Row's fields, base units, unknown is null."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.result import Run
from torchcoll.report.columns import ROW_FIELDS, percentile_key, percentile_ns
from torchcoll.report.notes import problems_of
from torchcoll.report.view import Records, View

if TYPE_CHECKING:
    from torchcoll.report.text import Judging

SCHEMA = "torchcoll-rows/1"


def row_names(view: View) -> list[str]:
    """The chosen columns (default all), then the chosen percentiles."""
    names = ROW_FIELDS if view.columns in ((), ("all",)) else view.columns
    return [*names, *map(percentile_key, view.percentiles)]


def row_objects(run: Run, view: View) -> list[dict[str, Any]]:
    """One dictionary a row."""
    names = ROW_FIELDS if view.columns in ((), ("all",)) else view.columns
    return [
        {name: entry.told(name) for name in names}
        | {percentile_key(p): percentile_ns(entry, p) for p in view.percentiles}
        for entry in view.entries(run)
    ]


ROWS = Records(row_names, row_objects)


def run_object(
    run: Run, view: View, records: Records = ROWS, judging: Judging | None = None
) -> dict[str, Any]:
    """One run with its rows, and what one must know to judge them."""
    verdict = {"verdict": judging.verdict(run).to_json()} if judging else {}
    return {
        "schema": SCHEMA,
        "run": {
            **_names(run),
            "torchcoll": run.header.get("torchcoll") or run.environment.get("torchcoll"),
            "ranks": run.ranks,
            "labels": run.labels,
            "status": run.end.get("status") if run.end else "truncated",
            "over_ranks": view.over_ranks,
            "continuations": [
                {**_names(launch), "cases": len(results)} for launch, results in run.launches()[1:]
            ],
            "events": [_plain(event) for event in run.events],
            "problems": problems_of(run),
        },
        **verdict,
        "rows": list(records.of(run, view)),
    }


def _names(run: Run) -> dict[str, Any]:
    path = None if run.path is None else str(run.path)
    known = {name: run.header.get(name) for name in ("run_id", "start_utc")}
    return {"path": path, **known}


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    """Without what later versions, or other hands, may have put there."""
    return {k: v for k, v in event.items() if isinstance(v, (str, int, float))}


def json_text(
    runs: Sequence[Run], view: View, records: Records = ROWS, judging: Judging | None = None
) -> str:
    """An object for one run, an array of them for several."""
    found = [run_object(run, view, records, judging) for run in runs]
    return json.dumps(found[0] if len(found) == 1 else found, indent=1) + "\n"

"""The rows as CSV: every field of a Row in base units, unknown as an empty field."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from torchcoll.core.result import Run
from torchcoll.report.json import row_objects
from torchcoll.report.view import View


def csv_text(runs: Sequence[Run], view: View) -> str:
    """One heading for all runs; with more than one, the first column names the file."""
    out = io.StringIO()
    writer = None
    for run in runs:
        for values in row_objects(run, view):
            if len(runs) > 1:
                values = {"file": str(run.path or run.header.get("run_id") or ""), **values}
            if writer is None:
                writer = csv.DictWriter(out, list(values), lineterminator="\n")
                writer.writeheader()
            writer.writerow(values)
    return out.getvalue()

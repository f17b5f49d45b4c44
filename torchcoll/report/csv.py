"""The rows as CSV: every field of a Row in base units, unknown as an empty field.

A list is its items with commas between them, as the options of the command line take lists; an
empty one is an empty field. Spreadsheets run a cell that begins with ``= @ + -`` as a formula: a
text that does so, and is no number, gets a ``'`` before it, which they do not show and
``torchcoll import`` takes away.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchcoll.core.result import Run
from torchcoll.core.summary import over_ranks_of
from torchcoll.report.json import ROWS
from torchcoll.report.output import one_line
from torchcoll.report.view import Records, View

_FORMULA = re.compile(r"'*[=@+-]")
_NUMBERS = re.compile(r"[+-]?[\d.]+(?:e[+-]?\d+)?(?:,[+-]?[\d.]+(?:e[+-]?\d+)?)*", re.IGNORECASE)


def csv_text(runs: Sequence[Run], view: View, records: Records = ROWS) -> str:
    """One heading for all runs; with more than one, the first column names the file.

    Where no columns are chosen, the last ones name the reading, the launch and its labels.
    """
    names = [*(["file"] if len(runs) > 1 else []), *records.names(view)]
    if not view.columns:
        labels = dict.fromkeys(f"label_{one_line(k)}" for run in runs for k in run.labels)
        # The long tables keep ranks apart: they have no reading over ranks.
        names += ["over_ranks"] if records is ROWS else []
        names += ["run_id", "start_utc", *labels]
    return records_csv(_flat(runs, view, records), names)


def _flat(runs: Sequence[Run], view: View, records: Records) -> Iterator[dict[str, Any]]:
    """Each row with what is common to its launch."""
    for run in runs:
        common = {"file": str(run.path or run.header.get("run_id") or "")}
        common |= {f"label_{one_line(k)}": v for k, v in run.labels.items()}
        for launch, results in run.launches():
            own = {name: launch.header.get(name) for name in ("run_id", "start_utc")}
            part = Run(header=launch.header, members=launch.members, results=results)
            rows = records.of(part, view)
            if records is ROWS:
                rows = [
                    {"over_ranks": over_ranks_of(result, view.over_ranks), **values}
                    for result, values in zip(results, rows, strict=True)
                ]
            yield from (common | own | values for values in rows)


def records_csv(records: Iterable[Mapping[str, Any]], names: Sequence[str] = ()) -> str:
    """Objects of base units as CSV: the columns ``names``, or one for each name in any of them."""
    if not names:
        records = list(records)
        names = list(dict.fromkeys(name for record in records for name in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n", extrasaction="ignore")
    writer.writerow({name: _cell(name) for name in names})
    for record in records:
        writer.writerow({k: _cell(v) for k, v in record.items()})
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        value = ",".join(one_line(item) for item in value)
    return _no_formula(one_line(value)) if isinstance(value, str) else value


def _no_formula(text: str) -> str:
    # "'=1" too, or reading would take the wrong one away.
    return f"'{text}" if _FORMULA.match(text) and not _NUMBERS.fullmatch(text) else text

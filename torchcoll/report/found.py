"""The four formats of what is no run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from torchcoll.core.errors import tell
from torchcoll.report.csv import records_csv
from torchcoll.report.grid import Grid, print_grids
from torchcoll.report.notes import lines_beside
from torchcoll.report.output import Output
from torchcoll.report.view import choice

FORMATS = ("table", "markdown", "csv", "json")


@dataclass(frozen=True)
class Found:
    """One thing in each form: the tables, the rows of csv, the object of json."""

    grids: Sequence[Grid]
    records: list[dict[str, Any]]
    thing: dict[str, Any]


def show_found(found: Sequence[Found], format: str, file: TextIO | None) -> None:
    """Print them, one below the other. Raises UsageError for an unknown format."""
    grids = [grid for one in found for grid in one.grids]
    records = [record for one in found for record in one.records]
    things = [one.thing for one in found]
    thing = things[0] if len(things) == 1 else things
    print_forms([("", grids)], records, thing, format, file)


def print_forms(
    titled: Sequence[tuple[str, list[Grid]]],
    records: Sequence[dict[str, Any]],
    thing: Any,
    format: str,
    file: TextIO | None,
    names: Sequence[str] = (),
) -> None:
    """Print one of these: tables below their titles, the rows of csv (columns ``names``, or those
    that any row has), the object of json. Raises UsageError for an unknown format.
    """
    choice(format, "format", FORMATS)
    out = Output(file)
    if format == "json":
        out.write(json.dumps(thing, indent=1) + "\n")
    elif format == "csv":
        out.write(records_csv(records, names))
    else:
        print_grids(titled, format, out)
    out.flush()


def tell_beside(found: Any, format: str) -> None:
    """On stderr what csv and json of what was found in ``found.runs`` have no place for."""
    for text in lines_beside(format, found.runs, [f"note: {text}" for text in found.notes]):
        tell(f"torchcoll: {text}")

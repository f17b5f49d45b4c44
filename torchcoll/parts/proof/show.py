"""How a proof is displayed: the answer, and a row for each part."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TextIO

from torchcoll.core.answer import Answer
from torchcoll.parts.proof.judge import FAILED, NOT_RUN, PROVEN, STATUSES
from torchcoll.parts.proof.prove import Report
from torchcoll.report.formats import print_forms
from torchcoll.report.grid import Grid, Head, make_grid

SCHEMA = "torchcoll-proof/1"


def show_report(report: Report, format: str = "table", file: TextIO | None = None) -> None:
    """Print the table, or ``json``. Raises UsageError for an unknown format."""
    document = {"schema": SCHEMA, **asdict(report)}
    print_forms([("", [_grid(report)])], [], document, format, file)


def answer_of(report: Report) -> Answer:
    counts = Counter(part.status for part in report.parts)
    proven, total = counts[PROVEN], len(report.parts)
    headline = f"{proven} of {total} parts proven on {report.machine.described}"
    for status in STATUSES[1:]:
        if names := [part.name for part in report.parts if part.status == status]:
            headline += f"; {status}: {', '.join(names)}"
    level = "bad" if counts[FAILED] else "doubt" if counts[NOT_RUN] else "good"
    return Answer(headline, level, {status: counts[status] for status in STATUSES})


def _grid(report: Report) -> Grid:
    columns = [
        (Head("part", left=True), lambda part: part.name),
        (Head("result", left=True), lambda part: part.status),
        (Head("s"), lambda part: f"{part.seconds:.0f}"),
    ]
    grid = make_grid(columns, report.parts)
    grid.answer = answer_of(report)
    grid.below = [f"{part.name}: {part.reason}" for part in report.parts]
    return grid

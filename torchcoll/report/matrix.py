"""The cells of a matrix and how their launches ended, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from torchcoll.report.grid import Grid, Head, print_grid
from torchcoll.report.output import Output, one_line


def show_summary(
    rows: Sequence[Mapping[str, Any]], below: Sequence[str] = (), file: TextIO | None = None
) -> None:
    """Print the rows of ``torchcoll.matrix.run.summary``, and lines below them."""
    out = Output(file)
    print_grid(summary_grid(rows, below), out)
    out.flush()


def summary_grid(rows: Sequence[Mapping[str, Any]], below: Sequence[str] = ()) -> Grid:
    """Columns of a status that no launch has are left out; reasons stand below, each once."""
    statuses = [n for n in ("failed", "timeout", "unavailable") if any(row[n] for row in rows)]
    heads = [Head("cell", left=True), Head("ok", "launches")]
    heads += [Head(name) for name in statuses]
    heads.append(Head("median", "seconds"))
    cells = [
        [
            one_line(row["cell"]),
            f"{row['ok']} of {row['launches']}",
            *(str(row[name] or "-") for name in statuses),
            "-" if row["seconds"] is None else f"{row['seconds']:.1f}",
        ]
        for row in rows
    ]
    styles = ["red" if row["failed"] or row["timeout"] else "" for row in rows]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"]:
            reasons.setdefault(one_line(row["reason"]), []).append(one_line(row["cell"]))
    lines = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return Grid(heads, cells, below=[*lines, *below], styles=styles)

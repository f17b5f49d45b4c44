"""The speed-ups of many cases as one table: sizes down, collectives or what differs across."""

from __future__ import annotations

from collections.abc import Sequence

from torchcoll.core.errors import one_line
from torchcoll.core.units import format_percent
from torchcoll.questions.comparison.compare import Comparison
from torchcoll.questions.comparison.results import Compared, table_names
from torchcoll.questions.comparison.wording import speed_cell
from torchcoll.report.grid import Grid, Head

MATRIX_FROM = 16  # cases: fewer are a list


def matrix_grid(comparison: Comparison, tables: Sequence[Sequence[Compared]]) -> Grid:
    """A row for each size, a column for each table; every case is in it."""
    rows = [row for table in tables for row in table]
    sizes = sorted({row.pair.size_bytes for row in rows})
    labels = {row.pair.size_bytes: row.size_cell for row in rows}
    heads = [Head("size", repeat=True)]
    heads += [Head(one_line(name), one_line(more)) for name, more in table_names(tables)]
    undecided = {one_line(row.reason) for row in rows if row.result == "inconclusive"}
    untested = len(undecided) == 1 and all(row.judged.p_value is None for row in rows)
    by_size = [{row.pair.size_bytes: row for row in table} for table in tables]
    cells = [
        [labels[size], *(_cell(table.get(size), not untested) for table in by_size)]
        for size in sizes
    ]
    styles = [
        "red" if any(size in t and t[size].result == "slower" for t in by_size) else ""
        for size in sizes
    ]
    base, new = comparison.side_names
    results = {row.result for row in rows}
    legend = [f"speed-up of {new} over {base}"]
    if untested:
        legend.append(f"all inconclusive: {undecided.pop()}")
    elif "inconclusive" in results:
        legend.append("~ inconclusive")
    if "same" in results:
        legend.append(f"= the same within {format_percent(comparison.threshold)}")
    return Grid(heads, cells, ["; ".join(legend)], ["times and intervals: --all"], styles)


def _cell(row: Compared | None, marked: bool) -> str:
    """``1.31``, ``~1.11`` if inconclusive, ``=`` if the same; ``wrong`` or ``-`` without one."""
    if row is None or row.judged.ratio is None:
        return (row.judged.fault if row else "") or "-"
    if row.result == "same":
        return "="
    return ("~" if marked and row.result == "inconclusive" else "") + speed_cell(row.speed)

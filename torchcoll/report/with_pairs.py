"""``show`` of what torchcoll.pairs measured: a row a pair would be hundreds."""

from __future__ import annotations

from collections.abc import Sequence

from torchcoll.core.pair_times import is_pair
from torchcoll.core.plausibility import IMPLAUSIBLE, summarise_run
from torchcoll.core.result import Run
from torchcoll.report.grid import Grid, print_grids
from torchcoll.report.output import Output
from torchcoll.report.pairs import show_pairs
from torchcoll.report.text import Judging, reason_lines, table_grid, title_of


def has_pairs(run: Run) -> bool:
    return any(map(is_pair, run.results))


def show_with_pairs(runs: Sequence[Run], format: str, judging: Judging, out: Output) -> None:
    """Of pairs their matrix, what follows from it and the verdict; of other runs their table."""
    for number, run in enumerate(runs):
        out.write("\n" if number else "")
        if has_pairs(run):
            rows = summarise_run(run)
            verdict = judging.verdict(run, rows)  # raises before anything is printed
            show_pairs(run, format, file=out.file)
            doubts = [row for row in rows if row.status == IMPLAUSIBLE]
            grid = Grid([], [], below=[*reason_lines(doubts), verdict.line])
            print_grids([("", [grid])], format, out)
        else:
            title = title_of(run) if len(runs) > 1 else ""
            print_grids([(title, [table_grid(run, judging=judging)])], format, out)

"""Many files: the spread of each case in place of every table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torchcoll.core import units
from torchcoll.core.case import DIMENSIONS
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import one_line
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.core.run_facts import facts_of, host_names
from torchcoll.core.summary import Row, median
from torchcoll.report.columns import distinct_values
from torchcoll.report.grid import Grid, Head
from torchcoll.report.header import common_text, kind_texts
from torchcoll.report.notes import runs_lines

MOST_RUNS = 20  # more are shown in short
_MOST_CASES = 40  # rows; of more kinds and sizes the largest size of each
_NAMED = 5  # of the slowest
_OF_PLACE = ("run", "node", "rack", "host")  # labels that say which run it is, not how it was made
_ALL = "--all shows every table"


@dataclass(frozen=True)
class _Measured:
    run: int  # its place among the runs
    row: Row


def runs_grids(
    runs: Sequence[Run],
    rows_by_run: Sequence[Sequence[Row]],
    names: Sequence[str],
    over_ranks: str = "max",
) -> list[Grid]:
    """The spread of each case over the runs."""
    cases = _measured_cases(rows_by_run)
    rows = [row for rows in rows_by_run for row in rows]
    above = [f"{len(runs)} runs, in short ({_ALL}): {common_text(rows)}", _scope_line(runs, rows)]
    above.append(f"time: {over_ranks} over ranks; the median, least and most of the runs")
    failed = [
        f"{name} ({row.outcome})"
        for name, rows in zip(names, rows_by_run, strict=True)
        for row in rows
        if row.outcome not in EXPECTED_STATUSES
    ]
    below = []
    if failed:
        texts = dict.fromkeys(failed)
        below.append(f"{units.counted(len(failed), 'case')} without a result: {_list_first(texts)}")
    table = _spread_grid(cases, names)
    return [Grid([], [], above=above), table, Grid([], [], below=[*below, *runs_lines(runs)])]


def _measured_cases(rows_by_run: Sequence[Sequence[Row]]) -> list[list[_Measured]]:
    """The right rows of each case over the runs."""
    cases: dict[str, list[_Measured]] = {}
    for number, rows in enumerate(rows_by_run):
        for row in rows:
            if row.is_right and row.median_ns:
                key = repr((_kind(row), row.size_bytes_requested))
                cases.setdefault(key, []).append(_Measured(number, row))
    return list(cases.values())


def median_rows(rows_by_run: Sequence[Sequence[Row]]) -> tuple[list[Row], list[float]]:
    """Of each case a row with the medians over the runs, and its longest time / its shortest."""
    cases = [[item.row for item in case] for case in _measured_cases(rows_by_run)]
    rows = []
    for case in cases:
        wide = [row.busbw_gbps for row in case if row.busbw_gbps]
        middle = median([row.median_ns or 0.0 for row in case])
        rows.append(replace(case[0], median_ns=middle, busbw_gbps=median(wide) if wide else None))
    times = [[row.median_ns or 0.0 for row in case] for case in cases]
    return rows, [max(of_case) / min(of_case) for of_case in times]


def same_cases(runs: Sequence[Run], rows_by_run: Sequence[Sequence[Row]]) -> list[list[int]]:
    """The places of runs, grouped by what they measured, their labels and their settings."""
    groups: dict[str, list[int]] = {}
    for number, (run, rows) in enumerate(zip(runs, rows_by_run, strict=True)):
        cases = sorted({repr((_kind(row), row.size_bytes_requested)) for row in rows})
        labels = {name: value for name, value in run.labels.items() if name not in _OF_PLACE}
        facts = {name: value for name, value in facts_of(run).items() if name != "hosts"}
        key = repr((cases, sorted(labels.items()), sorted(facts.items()), bool(run.windows)))
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def _scope_line(runs: Sequence[Run], rows: Sequence[Row]) -> str:
    hosts = host_names([member for run in runs for member in run.members])
    parts = [
        f"{name}: {_list_first(distinct_values(rows, name))}"
        for name in ("backend", "device", "ranks")
    ]
    return "; ".join([*parts, units.counted(len(hosts), "host")] if hosts else parts)


def _kind(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in DIMENSIONS}


def _list_first(values: Iterable[object]) -> str:
    texts = list(map(one_line, values))
    return ", ".join(texts if len(texts) <= _NAMED else [*texts[:_NAMED], f"... ({len(texts)})"])


def _spread_grid(cases: Sequence[list[_Measured]], names: Sequence[str]) -> Grid:
    below = []
    if len(cases) > _MOST_CASES:
        largest: dict[str, list[_Measured]] = {}
        for case in cases:
            held = largest.setdefault(repr(_kind(case[0].row)), case)
            if case[0].row.size_bytes_requested > held[0].row.size_bytes_requested:
                largest[repr(_kind(case[0].row))] = case
        shown = list(largest.values())[:_MOST_CASES]
        below.append(f"{len(shown)} of {len(cases)} cases: the largest size of each kind")
        cases = shown
    titles = kind_texts([_kind(case[0].row) for case in cases], ("collective",))
    heads = [Head("case", left=True, repeat=True), Head("size", repeat=True), Head("runs")]
    heads += [Head("median"), Head("least"), Head("most"), Head("most /", "median")]
    bandwidths = [
        [item.row.busbw_gbps for item in case if item.row.busbw_gbps is not None] for case in cases
    ]
    heads += [Head("busbw", "GB/s")] if any(bandwidths) else []
    heads.append(Head("slowest run", left=True, drop=1))
    lines = []
    for title, case, busbw in zip(titles, cases, bandwidths, strict=True):
        times = sorted((item.row.median_ns or 0.0, item.run) for item in case)
        middle = median([ns for ns, _ in times])
        size = case[0].row.size_bytes_requested
        lines.append(
            [
                title,
                units.format_size(size) if COLLECTIVES[case[0].row.collective].has_data else "-",
                str(len({run for _, run in times})),
                *map(units.format_time, (middle, times[0][0], times[-1][0])),
                units.format_ratio(times[-1][0] / middle),
                *(
                    [units.format_bandwidth(median(busbw) if busbw else None)]
                    if any(bandwidths)
                    else []
                ),
                names[times[-1][1]],
            ]
        )
    return Grid(heads, lines, below=below)

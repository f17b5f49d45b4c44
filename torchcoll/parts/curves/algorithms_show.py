"""Show the winning algorithms as tables, markdown, CSV and JSON, and what a checked setting ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core import units
from torchcoll.core.answer import Answer
from torchcoll.core.errors import one_line
from torchcoll.report.formats import Forms, print_results, select_fields, without_none
from torchcoll.report.grid import Grid, Head
from torchcoll.report.header import kind_texts
from torchcoll.report.notes import footer_lines
from torchcoll.stats.statistics import FEWEST

if TYPE_CHECKING:
    from torchcoll.parts.curves.algorithms import Algorithms
    from torchcoll.parts.curves.contest import CellAt, SizeContest, Table


SCHEMA = "torchcoll-algorithms/1"
_MOST_TIED = 2  # further names are counted
_MOST_SPANS = 4  # ranges of sizes that are named
_SLOW, _SLOWER = 1.2, 1.1  # AUTO's time over that of a cell: is named; is of its range
_STYLES = {"near-optimal": "green", "beaten": "red", "inconclusive": "yellow"}
_MORE_RUNS = (
    f"make {FEWEST} runs of each, as torchcoll matrix --preset nccl-algorithms --runs {FEWEST} does"
)
_LEGEND = (
    "regret: AUTO's time over that of the best forced cell, which is chosen without the run "
    "that it is timed by; its 95 % interval is that against the truly best one",
    "(or ...): ties, cells that are not shown to be slower",
)


def show_algorithms(
    results: Sequence[Algorithms], format: str = "table", file: TextIO | None = None
) -> None:
    """Print what ``algorithms`` found. Raises UsageError for an unknown format."""
    print_results(
        [
            Forms(algorithms_grids(result), algorithms_object(result), _records(result))
            for result in results
        ],
        format,
        file,
    )


def algorithms_grids(result: Algorithms) -> list[Grid]:
    titles = kind_texts([table.common for table in result.tables])
    above = [f"times: {result.reading}, geometric mean over the runs"]
    above += _LEGEND if any(map(_is_judged, result.tables)) else ()
    grids = [Grid([], [], above=above)]
    for table, title in zip(result.tables, titles, strict=True):
        if _is_judged(table):
            grids.append(_sizes_grid(table, title))
        else:
            grids.append(Grid([], [], above=[_table_text(table, title)]))
        grids[-1].below = _conclusions(table)
        grids.append(_cells_grid(table))
    return [*grids, Grid([], [], below=_below(result), answer=algorithms_answer(result, titles))]


def algorithms_answer(result: Algorithms, titles: Sequence[str]) -> Answer:
    """How AUTO compares in each table; the winners if a table has no AUTO."""
    by_text: dict[str, list[str]] = {}  # with the titles of its tables
    results = set()
    few: list[int] = []  # runs of each cell in tables with too few of them to judge
    for table, title in zip(result.tables, titles, strict=True):
        text = table.statement(result.threshold)
        results |= {size.result for size in table.sizes}
        if not _is_judged(table):
            few.append(_fewest_runs(table))
            text = _fastest_text(table)
        elif not text:
            spans = [f"{each.span} {each.winner.name}" for each in table.ranges]
            text = f"best: {', '.join(spans)}" if spans else "no forced cell was right"
        if table.wrong:
            text += f"; WRONG RESULTS of {', '.join(table.wrong)}"
            results.add("beaten")
        if text:
            by_text.setdefault(one_line(text), []).append(one_line(title))
    texts = [f"{title}: {text}" for text, titled in by_text.items() for title in titled]
    if [len(titled) for titled in by_text.values()] == [len(titles)]:
        texts = list(by_text)  # all tables say the same
    if not texts:
        sides = ", ".join(dict.fromkeys(one_line(c.name) for t in result.tables for c in t.cells))
        text = f"nothing to compare: no case was run with two of the algorithms ({sides})"
        step = "give runs of the same collectives, sizes, ranks and backend with each algorithm"
        return Answer(text, "doubt", next_step=step)
    if few and results.isdisjoint(("beaten", "near-optimal")):
        runs = "one run" if min(few) == 1 else units.counted(min(few), "run")
        slow = max(map(_slow_auto, result.tables))
        if slow[1]:
            text = f"{slow[1]}. Not proven: {runs} of each"
            return Answer(text, "doubt", next_step=_MORE_RUNS)
        text = f"Cannot tell which is fastest: {runs} of each, and at least {FEWEST} are needed"
        return Answer(text, "doubt", details=tuple(texts), next_step=_MORE_RUNS)
    kinds = (("beaten", "bad"), ("inconclusive", "doubt"), ("near-optimal", "good"))
    return Answer("; ".join(texts), next((kind for name, kind in kinds if name in results), ""))


def _slow_auto(table: Table) -> tuple[float, str]:
    """The largest ratio of AUTO's time to that of a forced cell, and the sizes around it as text:
    ``AUTO looks 1.2x to 1.7x slower than Tree from 256K to 8M (at 256K 80.0 us, Tree 47.0 us)``.
    (1.0, '') where AUTO is not _SLOW times slower at any size.
    """
    ratios: dict[str, dict[int, float]] = {}  # name -> index of the size -> AUTO / cell
    for index, size in enumerate(table.sizes):
        auto_ns = size.auto.time_ns if size.auto else None
        for at in size.cells if auto_ns else ():
            if at.time_ns and at.cell.name not in table.wrong:
                ratios.setdefault(at.cell.name, {})[index] = (auto_ns or 0.0) / at.time_ns
    every = [(ratio, name, n) for name, of_cell in ratios.items() for n, ratio in of_cell.items()]
    worst, name, peak = max(every, default=(1.0, "", 0))
    if worst < _SLOW:
        return 1.0, ""
    first = last = peak
    while ratios[name].get(first - 1, 0.0) >= _SLOWER:
        first -= 1
    while ratios[name].get(last + 1, 0.0) >= _SLOWER:
        last += 1
    least = min(ratios[name][index] for index in range(first, last + 1))
    factors = units.format_factor(worst)
    if units.format_factor(least) != factors:
        factors = f"{units.format_factor(least)} to {factors}"
    size = table.sizes[peak]
    cell = next(at for at in size.cells if at.cell.name == name)
    times = f"{units.format_time(size.auto.time_ns if size.auto else None)}, {name} "
    times += units.format_time(cell.time_ns)
    low, high, at_peak = (
        units.format_size(table.sizes[index].size_bytes) for index in (first, last, peak)
    )
    where = f"at {low}" if first == last else f"from {low} to {high}"
    times = times if first == last else f"at {at_peak} {times}"
    text = f"AUTO looks {factors} slower than {name} {where} ({times})"
    rest = max((ratio for ratio, _, n in every if not first <= n <= last), default=0.0)
    if 0 < rest < _SLOW:
        text += f"; at other sizes at most {100 * max(rest - 1, 0.01):.0f} %"
    return worst, one_line(text)


def _fastest_text(table: Table) -> str:
    """The fastest right cell of each range of sizes, and its lead at the largest size, as measured:
    ``tree looks fastest at 1M, nvls from 16M on; at 1G nvls is 1.27x as fast as ring``.
    """
    spans: list[tuple[str, list[int]]] = []
    lead = ""
    for size in table.sizes:
        cells = [*size.cells, *([size.auto] if size.auto else [])]
        right = [at for at in cells if at.time_ns and at.cell.name not in table.wrong]
        if len(right) < 2:
            continue
        first, second = sorted(right, key=lambda at: at.time_ns or 0.0)[:2]
        name, other = ("AUTO" if at.cell.auto else at.cell.name for at in (first, second))
        if not spans or spans[-1][0] != name:
            spans.append((name, []))
        spans[-1][1].append(size.size_bytes)
        factor = (second.time_ns or 0.0) / (first.time_ns or 1.0)
        at_size = f"at {units.size_text(size.size_bytes)}"
        lead = f"; {at_size} {name} is {factor:.2f}x as fast as {other}"
    texts = [
        f"{name}{'' if number else ' looks fastest'} {_span_text(sizes, number + 1 == len(spans))}"
        for number, (name, sizes) in enumerate(spans)
    ]
    if len(spans) > _MOST_SPANS:  # back and forth, which is noise more often than a rule
        counts: Counter[str] = Counter()
        for name, sizes in spans:
            counts[name] += len(sizes)
        (most, number), *others = counts.most_common()
        texts = [f"{most} looks fastest at {number} of {counts.total()} sizes"]
        texts += [f"{name} at {number}" for name, number in others]
    return ", ".join(texts) + lead


def _span_text(sizes: Sequence[int], last: bool) -> str:
    start, end = units.format_size(sizes[0]), units.format_size(sizes[-1])
    if len(sizes) == 1:
        return f"at {start}"
    return f"from {start} on" if last else f"from {start} to {end}"


def _is_judged(table: Table) -> bool:
    """Whether each cell has enough runs, or a size is decided without."""
    decided = any(size.result in ("beaten", "near-optimal") for size in table.sizes)
    return decided or _fewest_runs(table) >= FEWEST


def _fewest_runs(table: Table) -> int:
    """How many runs the right cell with the fewest has, at the size where it has most."""
    runs: dict[str, int] = {}
    for at in (at for size in table.sizes for at in size.cells if at.values):
        runs[at.cell.name] = max(len(at.values), runs.get(at.cell.name, 0))
    return min(runs.values(), default=FEWEST)


def _sizes_grid(table: Table, title: str) -> Grid:
    heads = [Head("size", repeat=True), Head("best", left=True), Head("time", "(best)")]
    auto = any(size.auto for size in table.sizes)
    if auto:
        heads += [Head("time", "(AUTO)"), Head("regret"), Head("95 %")]
        heads.append(Head("AUTO", left=True))
        chose = any(size.auto and size.auto.choices for size in table.sizes)
        if chose:
            heads.append(Head("AUTO chose", left=True, drop=1))
    rows, styles = [], []
    for size in table.sizes:
        best_ns = size.best.time_ns if size.best else None
        row = [units.format_size(size.size_bytes), _best_text(size), units.format_time(best_ns)]
        if auto:
            interval = "-"
            if size.high is not None:
                interval = f"{units.format_ratio(size.low)} to {units.format_ratio(size.high)}"
            elif size.low is not None:
                interval = f"from {units.format_ratio(size.low)}"
            result = f"{size.result} ({one_line(size.reason)})"
            if not size.result:
                result = f"AUTO {size.auto.state}" if size.auto else "no AUTO"
            auto_ns = size.auto.time_ns if size.auto else None
            row += [
                units.format_time(auto_ns),
                units.format_ratio(size.stated_regret),
                interval,
                result,
            ]
            if chose:
                row.append(_choices_text(size.auto.choices) if size.auto else "-")
        rows.append(row)
        styles.append(_STYLES.get(size.result, ""))
    return Grid(heads, rows, [_table_text(table, title)], styles=styles)


def _table_text(table: Table, title: str) -> str:
    counts = {len(at.values) for size in table.sizes for at in size.cells if at.values}
    runs = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts, default=0)}"
    return f"{title}: {units.counted(len(table.cells), 'forced cell')}, runs a cell: {runs}"


def _conclusions(table: Table) -> list[str]:
    lines = []
    for span in table.ranges if _is_judged(table) else ():
        ties = f" (or {', '.join(map(one_line, span.ties))})" if span.ties else ""
        lines.append(f"{span.span}: {one_line(span.winner.name)}{ties}")
    for name, sizes in table.wrong.items():
        sizes_list = ", ".join(map(units.format_size, sizes))
        lines.append(f"WRONG RESULTS: {one_line(name)} at {sizes_list}; it wins at no size")
    # Cells for which the log names another algorithm than requested.
    ran: dict[tuple[str, str], list[int]] = {}
    for size in table.sizes:
        for at in size.cells:
            for choice in at.disobeyed:
                ran.setdefault((at.cell.name, choice.label), []).append(size.size_bytes)
    for (name, label), sizes in ran.items():
        ran_text = f"{one_line(name)} ran {one_line(label)}, not what was asked"
        lines.append(f"{ran_text}, at {sizes_text(sizes)}")
    return lines


def _best_text(size: SizeContest) -> str:
    if size.best is None:
        return "none was right" if size.cells else "none was run"
    name = size.best.cell.name
    ties = [name_of_tie for name_of_tie in size.tied if name_of_tie != name]
    if not ties:
        return one_line(name)
    tie_names = units.shorten(list(map(one_line, ties)), _MOST_TIED, ", {} more")
    return f"{one_line(name)} (or {tie_names})"


def _choices_text(choices: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(one_line(c.text) for c in choices)) or "-"


def _cells_grid(table: Table) -> Grid:
    """The time of each cell over AUTO's; without AUTO, over that of the best cell. The times, and
    AUTO's, if no cell was judged.
    """
    cells = [cell.name for cell in table.cells]
    auto = any(size.auto and size.auto.values for size in table.sizes)
    relative = _is_judged(table)
    heads = [Head("size", repeat=True), *(Head(one_line(name)) for name in cells)]
    if auto and not relative:
        heads.insert(1, Head("AUTO"))
    rows = []
    for size in table.sizes:
        at = {cell.cell.name: cell for cell in size.cells}
        base = size.auto if auto else size.best
        row = [units.format_size(size.size_bytes)]
        if auto and not relative:
            row.append(units.format_time(size.auto.time_ns if size.auto else None))
        for name in cells:
            cell = at.get(name)
            if cell and not relative:
                row.append(units.format_time(cell.time_ns))
            elif cell is None or (cell.time_ns and not (base and base.time_ns)):
                row.append("-")
            elif cell.time_ns and base and base.time_ns:
                mark = "!" if name in table.wrong else "~" if auto and not cell.shown else ""
                row.append(f"{mark}{cell.time_ns / base.time_ns:.2f}")
            else:
                row.append(one_line(cell.state) if cell.state != "ok" else "-")
        rows.append(row)
    what = "AUTO's time" if auto else "the best one's time"
    marks = ["~: not shown to differ"] if auto and relative else []
    marks += ["!: wrong at another size, not judged"] if table.wrong else []
    above = ["; ".join([f"time as a multiple of {what}" if relative else "time", *marks])]
    return Grid(heads, rows, above)


def sizes_text(sizes: Sequence[int]) -> str:
    return ", ".join(units.shorten_middle([*map(units.format_size, sizes)], 5))


def _below(result: Algorithms) -> list[str]:
    missing = result.missing.items()
    lines = [f"no result: {one_line(cell)} ({one_line(why)})" for cell, why in missing]
    lines += footer_lines(result.notes, result.runs)
    if result.comparisons:
        noun = "comparison" if result.comparisons == 1 else "comparisons"
        lines.append(
            "p: t of AUTO against each cell in log figure ~ cell + run number by start time, "
            f"Holm over {result.comparisons} {noun}; below 0.05 counts"
        )
    return lines


def algorithms_object(result: Algorithms) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        **select_fields(result, "threshold comparisons missing"),
        "notes": footer_lines(result.notes, result.runs),
        "tables": [
            {
                "case": without_none(table.common),
                **select_fields(table, "hosts? library"),
                "statement": table.statement(result.threshold) or None,
                **select_fields(table, "wrong unchecked"),
                "cells": {cell.name: dict(cell.settings) for cell in table.cells},
                "ranges": [
                    select_fields(
                        winner_range, "low_bytes high_bytes winner=winner.name others=ties"
                    )
                    for winner_range in table.ranges
                ],
                "rows": [
                    {**_size_record(size), "cells": list(map(_cell_record, size.cells))}
                    for size in table.sizes
                ],
            }
            for table in result.tables
        ],
    }


def _records(result: Algorithms) -> list[dict[str, Any]]:
    """One object for each size of each table."""
    return [
        {**without_none(table.common), **_size_record(size)}
        for table in result.tables
        for size in table.sizes
    ]


def _size_record(size: SizeContest) -> dict[str, Any]:
    names = "best_ns=best.time_ns auto_ns=auto.time_ns regret=stated_regret"
    names += " regret_low=low regret_high=high"
    return {
        **select_fields(size, "size_bytes best=best.cell.name"),
        "ties": ", ".join(size.tied) or None,
        **select_fields(size, f"{names} result? reason? runs_needed=needed"),
        "auto_chose": (
            _choices_text(size.auto.choices) if size.auto and size.auto.choices else None
        ),
    }


def _cell_record(at: CellAt) -> dict[str, Any]:
    return {
        **select_fields(at, "cell=cell.name status=state"),
        "runs": len(at.values),
        "median_ns": at.time_ns,
        "of_auto": 1 / at.ratio.ratio if at.ratio else None,
        "p_value": at.p_value,
        "chose": _choices_text(at.choices) if at.choices else None,
        "as_asked": not at.disobeyed if at.choices else None,
    }

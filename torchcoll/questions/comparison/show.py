"""The tables of a comparison: what differs, and the cases; and its JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TextIO

from torchcoll.core import units
from torchcoll.core.case import DIMENSIONS
from torchcoll.core.errors import one_line
from torchcoll.core.summary import Row
from torchcoll.questions.comparison import wording
from torchcoll.questions.comparison.across_hardware_show import (
    profile_grid,
    ranks_texts,
    settings_grid,
    shares_grid,
)
from torchcoll.questions.comparison.compare import Comparison
from torchcoll.questions.comparison.prediction import error_of
from torchcoll.questions.comparison.results import (
    FIRST_CALLS,
    RESULT_NAMES,
    Compared,
    table_names,
    tables_of,
    titles_of,
)
from torchcoll.report.columns import ROW_FIELDS
from torchcoll.report.formats import Forms, print_results, select_fields
from torchcoll.report.grid import Grid, Head, grid_of_columns
from torchcoll.report.header import common_text
from torchcoll.report.notes import note_lines, run_problems
from torchcoll.stats.differences import also_differ
from torchcoll.stats.sides import Side

_RAN = {
    "backend": "{}",
    "device": "{}",
    "ranks": "{} ranks",
    "mode": "{} mode",
    "clock": "{} clock",
}
# The settings of a case that the heading has for both sides.
_WHAT = tuple(
    name for name in DIMENSIONS if name not in ("collective", "rehearsal", "communicator", *_RAN)
)
_STYLES = {"faster": "green", "slower": "red", "inconclusive": "yellow", "not comparable": "dim"}


def comparison_grids(comparison: Comparison, every: bool = False) -> list[Grid]:
    """The answer, a table of cases, and what one must know to read it.

    every: a table of the cases of each collective, where many are one table of speed-ups.
    """
    tables = tables_of([r for r in comparison.rows if r.matched and r.reason != FIRST_CALLS])
    first = Grid([], [], above=_above(comparison))
    last = Grid([], [], below=_below(comparison), answer=comparison.answer)
    across = comparison.across_hardware
    settings = [settings_grid(comparison)] if across else []
    titles = titles_of([table[0].pair for table in tables])
    every = every or bool(comparison.errors and len(comparison.rows) <= _MOST_CASES)
    grids = [_errors_grid(comparison)] if comparison.errors else settings
    if _is_matrix(comparison, tables, every):
        last.below += _unmatched(comparison, every)
        return [first, matrix_grid(comparison, tables), last]
    notes: dict[str, int] = {}
    changed: list[tuple[str, Compared]] = []
    for table, title in zip(tables, titles, strict=True):
        profiles = [sides for pair, *sides in comparison.profiles if pair is table[0].pair]
        has_ratio = any(row.ratio for row in table)
        if profiles and not has_ratio:  # other ranks, or another machine
            ((base, new),) = profiles
            grids.append(profile_grid(comparison, base, new, title))
            grids.append(shares_grid(comparison, table, base, new))
        elif every or not has_ratio:
            grids.append(case_grid(comparison, table, title, notes))
        else:
            changed += [(title, row) for row in table]
    if changed:
        names, rows = zip(*changed, strict=True)
        grids.append(case_grid(comparison, rows, "", notes, names))
    last.below[:0] = drift_lines(comparison)
    last.below[:0] = [f"[{number}] {text}" for text, number in notes.items()]
    last.below += _unmatched(comparison, every)
    return [first, *grids, last]


def drift_lines(comparison: Comparison) -> list[str]:
    """A line if the speed-up of some case is not the ratio of the figures beside it."""
    logs = [math.log(j.ratio.ratio / j.shown_ratio) for j in comparison.judged if j.ratio]
    corrected = max(map(abs, logs), default=0.0) > _DRIFT_SHOWN and not comparison.errors
    return ["speed-up is corrected for the drift over the order of the runs"] if corrected else []


MATRIX_FROM = 16  # cases: fewer are a list


def _is_matrix(comparison: Comparison, tables: Sequence[Sequence[Compared]], every: bool) -> bool:
    if every or comparison.errors or comparison.profiles:
        return False
    return len(tables) > 1 and sum(map(len, tables)) >= MATRIX_FROM


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
        [labels[size], *(_speed_text(table.get(size), not untested) for table in by_size)]
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
        legend.append(f"= the same within {units.format_percent(comparison.threshold)}")
    return Grid(heads, cells, ["; ".join(legend)], ["times and intervals: --all"], styles)


def _speed_text(row: Compared | None, marked: bool) -> str:
    """``1.31``, ``~1.11`` if inconclusive, ``=`` if the same; ``wrong`` or ``-`` without one."""
    if row is None or row.judged.ratio is None:
        return (row.judged.fault if row else "") or "-"
    if row.result == "same":
        return "="
    return ("~" if marked and row.result == "inconclusive" else "") + wording.speed_cell(row.speed)


_DRIFT_SHOWN = 0.02  # a correction of a speed-up that a line explains
_MOST_CASES = 40  # of a model, of which the scenarios are the answer


def _errors_grid(comparison: Comparison) -> Grid:
    """A line a scenario: how far the model is off."""
    titles = titles_of([error.pair for error in comparison.errors if error.pair])
    heads = [Head("scenario", left=True, repeat=True), Head("cases"), Head("geometric", "mean")]
    heads += [Head("mean"), Head("worst"), Head("at", left=True)]
    scenarios = comparison.errors[1:]
    names = [title or scenarios[0].worst.row.collective for title in titles]
    rows = [
        [
            name,
            str(error.summary.count),
            *map(
                units.format_share, (error.summary.geomean, error.summary.mean, error.summary.worst)
            ),
            error.worst.size_cell,
        ]
        for name, error in zip(names, scenarios, strict=True)
    ]
    above = [f"error of the model by scenario, |{comparison.metric} predicted / measured - 1|"]
    below = ["geometric mean: sizes that are nearly exact pull it down"]
    return Grid(heads, rows, above, below)


def _unmatched(comparison: Comparison, every: bool) -> list[str]:
    """What only one side has: the collectives where the answer has no cases, ``every`` case if
    asked for.
    """
    if not every and any(side.missing for side in comparison.faults):
        return []
    lines = []
    for side, other in ((comparison.base, "new"), (comparison.new, "base")):
        rows = [row for row in comparison.rows if not getattr(row.pair, other)]
        names = list(dict.fromkeys(row.row.collective for row in rows))
        if every:
            names = [comparison.name_of(row) or row.row.collective for row in rows]
        elif len(names) == 1:
            names = units.shorten_middle([row.size_cell for row in rows], 5)
        if rows:
            cases = units.counted(len(rows), "case")
            lines.append(f"{cases} only in {one_line(side.name)}: {', '.join(names)}")
    return lines


def _above(comparison: Comparison) -> list[str]:
    base, new = comparison.side_names
    sides = (("base", base, comparison.base), ("new", new, comparison.new))
    lines = ["; ".join(_side_text(*each) for each in sides)]
    lines.append("; ".join([common_text(_shared(comparison)), *_in_common(comparison)]))
    differences = [
        *comparison.case_differences,
        *(d for d in comparison.differences if d.name not in _OF_THE_LOOP),
    ]
    if comparison.across_hardware:
        lines += [
            f"{text}: time and busbw change with the number of ranks, whatever the library"
            for text in ranks_texts(comparison)
        ]
    elif differences:
        lines += ["differences:", *(f"  {one_line(str(d))}" for d in differences)]
    for side in (comparison.base, comparison.new):
        for run in side.runs:
            where = one_line(run.path or run.header.get("run_id") or side.name)
            lines += [p if where in p else f"{where}: {p}" for p in run_problems(run)]
    metric = comparison.metric
    figures = metric if metric == "time" else f"{metric} in GB/s"
    many = len(comparison.base.runs) + len(comparison.new.runs) > 2
    several = "; geometric mean over the runs" if many else ""
    has_ratios = comparison.ranked and not comparison.errors
    speed = "; speed-up: how many times as fast the new side is" if has_ratios else ""
    lines.append(f"{figures}: {comparison.reading}{several}{speed}")
    return lines


# How the loop ended differs wherever times differ; it is no setting of anybody.
_OF_THE_LOOP = ("stopped by",)


def _shared(comparison: Comparison) -> list[Row]:
    """Cases that both sides have; None in place of settings that the sides do not share."""
    matched = [row for row in comparison.rows if row.matched] or comparison.rows
    differing = _differing(comparison)
    unshared: dict[str, Any] = {name: None for name in _WHAT if name in differing}
    return [dataclasses.replace(row.row, **unshared) for row in matched]


def _differing(comparison: Comparison) -> set[str]:
    """The dimensions that both sides do not share in some case that both have."""
    return {n for row in comparison.rows if row.matched for n in row.pair.side_values[0]}


def _in_common(comparison: Comparison) -> list[str]:
    """Where all cases that both sides have ran, and how, as far as it is the same."""
    commons = [row.pair.common for row in comparison.rows if row.matched]
    differing = _differing(comparison)
    shared = [n for n in _RAN if n not in differing]
    values = {n: {common.get(n) for common in commons} - {None} for n in shared}
    constants = {n: next(iter(several)) for n, several in values.items() if len(several) == 1}
    texts = [_RAN[n].format(constants[n]) for n in shared if n in constants]
    return [", ".join(texts).replace(" 1 ranks", " 1 rank")] if constants else []


def _side_text(role: str, name: str, side: Side) -> str:
    """``base: gloo (runs/gloo, 6 runs)``, without repetitions."""
    where = one_line(side.where)
    inside = "" if not where or where == name else f"{where}, "
    inside += units.counted(len(side.runs), "run")
    return f"{role} ({inside})" if name == role else f"{role}: {name} ({inside})"


def interval_text(item: Compared) -> str:
    """The 95 % interval of the speed-up."""
    return " to ".join(map(wording.speed_cell, item.interval)) if item.interval else "-"


def _points_aligned(cells: Sequence[str]) -> list[str]:
    """The cells with blanks behind numbers of fewer decimals than others have."""
    behind = [len(cell.partition(".")[2]) + ("." in cell) for cell in cells]
    return [
        cell if cell == "-" else cell + " " * (max(behind) - length)
        for cell, length in zip(cells, behind, strict=True)
    ]


def case_grid(
    comparison: Comparison,
    cases: Sequence[Compared],
    title: str,
    notes: dict[str, int],
    names: Sequence[str] = (),
) -> Grid:
    """names: what tells each case from those of other tables."""
    base, new = comparison.side_names
    above = [title] if title else []
    columns: list[tuple[Head, Sequence[str]]] = []
    if any(names):
        columns.append((Head("case", left=True, repeat=True), names))
    columns += [
        (Head("size", repeat=True), [row.size_cell for row in cases]),
        (Head(base), [wording.figure_cell(row.base, comparison.metric) for row in cases]),
        (Head(new), [wording.figure_cell(row.new, comparison.metric) for row in cases]),
    ]
    if comparison.errors:
        errors = [error_of(row, comparison.new) for row in cases]
        texts = [
            row.result if error is None else f"{100 * error:+.1f} %"
            for row, error in zip(cases, errors, strict=True)
        ]
        return grid_of_columns([*columns, (Head("error"), texts)], above)
    results = [_result_text(comparison, row, notes) for row in cases]
    untested = all(row.judged.p_value is None for row in cases)
    said_once = len(set(results)) == 1 and len(cases) > 1 and untested
    if said_once:
        above.append(f"all of these: {results[0]}")
    if any(row.ratio for row in cases):
        speeds = [wording.speed_cell(row.speed if row.ratio else None) for row in cases]
        columns.append((Head("speed-up"), _points_aligned(speeds)))
    if not said_once:
        columns.append((Head("result", left=True), results))
    if any(row.interval for row in cases):
        columns.append((Head("95 % interval"), list(map(interval_text, cases))))
    return grid_of_columns(columns, above, [_STYLES.get(row.result, "") for row in cases])


def _result_text(comparison: Comparison, row: Compared, notes: dict[str, int]) -> str:
    names = dict(zip(("base", "new"), comparison.side_names, strict=True))
    texts = []
    for text in row.notes:
        side, colon, rest = text.partition(": ")
        texts.append(f"{names[side]}{colon}{rest}" if side in names else text)
    numbers = sorted(notes.setdefault(text, len(notes) + 1) for text in texts)
    marks = "".join(f" [{number}]" for number in numbers)
    return f"{row.result} ({one_line(row.reason)}){marks}"


def _below(comparison: Comparison) -> list[str]:
    lines = []
    if cold := sum(row.reason == FIRST_CALLS for row in comparison.rows):
        lines.append(f"{units.counted(cold, 'case')} not shown: {FIRST_CALLS}")
    # They are among the differences above the table, but not where hardware differs.
    above = [] if comparison.across_hardware else also_differ(comparison.case_differences)
    lines += [one_line(note) for note in comparison.notes if note not in above]
    return lines


SCHEMA = "torchcoll-comparison/1"
# `reason` of a Row says why a case did not run; here it says why the result is what it is.
CASE_NAMES = (*(name for name in ROW_FIELDS if name != "reason"), *RESULT_NAMES)


def show_comparisons(
    comparisons: Sequence[Comparison],
    format: str = "table",
    file: TextIO | None = None,
    every: bool = False,
) -> None:
    """Print comparisons with one base; the options are those of ``comparison_grids``. Raises
    UsageError for an unknown format.
    """
    parts = [
        Forms(
            comparison_grids(comparison, every),
            comparison_object(comparison),
            _records(comparison),
        )
        for comparison in comparisons
    ]
    print_results(parts, format, file)


def notes_of_sides(comparisons: Sequence[Comparison], format: str) -> list[str]:
    """As ``note_lines`` of all sides."""
    lines = []
    for comparison in comparisons:
        across = comparison.across_hardware
        differences = comparison.settings if across else comparison.differences
        notes = [f"differs: {each}" for each in differences]
        notes += [f"note: {text}" for text in comparison.notes] + [comparison.answer.text]
        lines += note_lines(format, [*comparison.base.runs, *comparison.new.runs], notes)
    return list(dict.fromkeys(lines))


_OF_ERRORS = (
    "cases=summary.count geometric=summary.geomean mean=summary.mean worst=summary.worst "
    "worst_bytes=worst.pair.size_bytes"
)


def comparison_object(comparison: Comparison) -> dict[str, Any]:
    """What differs first, then the cases."""
    model: dict[str, Any] = {}
    errors = [
        {"error": error_of(row, comparison.new)} if comparison.errors else {}
        for row in comparison.rows
    ]
    if comparison.errors:
        model["errors"] = [
            {
                **(item.pair.common if item.pair else {"scenario": "all"}),
                **select_fields(item, _OF_ERRORS),
            }
            for item in comparison.errors
        ]
    return {
        "schema": SCHEMA,
        "base": _side_object(comparison.base),
        "new": _side_object(comparison.new),
        **select_fields(comparison, "metric threshold reading"),
        "differences": [vars(item) for item in comparison.differences],
        "case_differences": [vars(item) for item in comparison.case_differences],
        "settings": [vars(item) for item in comparison.settings],
        **select_fields(comparison, "left_out tally notes"),
        "answer": comparison.answer.to_json(),
        "faults": {
            name: each.to_json()
            for name, each in zip(("base", "new"), comparison.faults, strict=True)
        },
        "modes": vars(comparison.modes) if comparison.modes else None,
        "profiles": [
            {**pair.common, "base": vars(ours), "new": vars(theirs)}
            for pair, ours, theirs in comparison.profiles
        ],
        "starts": [vars(item) for item in comparison.starts],
        "rows": [
            {**_found(row), **error, "notes": list(row.notes)}
            for row, error in zip(comparison.rows, errors, strict=True)
        ],
        **model,
    }


def _found(row: Compared) -> dict[str, Any]:
    record = row.record
    return {name: record[name] for name in CASE_NAMES}


def _side_object(side: Side) -> dict[str, Any]:
    paths = [None if run.path is None else str(run.path) for run in side.runs]
    return {"name": side.name, "runs": len(side.runs), "paths": paths}


def _records(comparison: Comparison) -> list[dict[str, Any]]:
    """One object a case, of csv; the first columns name the sides."""
    names = {"base_name": comparison.base.name, "new_name": comparison.new.name}
    return [{**names, **_found(row), "notes": "; ".join(row.notes)} for row in comparison.rows]

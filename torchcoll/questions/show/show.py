"""The table of a run, and ``show``, which prints runs and findings in every form, HTML too."""

from __future__ import annotations

import glob
import html
import io
import operator
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.answer import Answer, Caveat, worst_level
from torchcoll.core.case import DIMENSIONS
from torchcoll.core.errors import UsageError, choice, literal, one_line, unknown
from torchcoll.core.file import is_traffic
from torchcoll.core.jsonl import damaged_lines
from torchcoll.core.plausibility import IMPLAUSIBLE, summarise_run
from torchcoll.core.result import Run
from torchcoll.core.summary import Row
from torchcoll.core.units import shorten
from torchcoll.questions.check.judging import Verdict, judge
from torchcoll.questions.check.measured_show import run_answer, runs_answer
from torchcoll.questions.check.published_show import published_lines
from torchcoll.questions.pairs.matches import is_pair, read_pairs
from torchcoll.questions.pairs.show import pairs_answer, show_pairs
from torchcoll.questions.pairs.suspects import find_suspects
from torchcoll.reading.inputs import load_all
from torchcoll.report.columns import (
    Entry,
    columns_for,
    distinct_values,
    named_columns,
    percentile_column,
)
from torchcoll.report.destination import Destination
from torchcoll.report.formats import FORMATS, METRICS, View, split_list
from torchcoll.report.grid import Grid, print_grids
from torchcoll.report.header import first_lines, header_lines, requested_cases
from torchcoll.report.notes import Notes, most_notes, run_lines
from torchcoll.report.ranks_view import slow_rank
from torchcoll.report.shown import shown

if TYPE_CHECKING:
    from torchcoll.questions.contention.overlap import Overlap
    from torchcoll.questions.contention.soaked import Soaked

Source = Run | str | os.PathLike[str]
_RUNS = (Run, str, os.PathLike)
VIEWS = ("cases", "ranks", "calls")
_PIVOT = "pivot:"


# What tells cases apart, but for their size.
_KINDS = tuple(name for name in DIMENSIONS if not name.startswith("size"))
_kind_of = operator.attrgetter(*_KINDS)


def table_grid(
    run: Run,
    view: View | None = None,
    verdict: Verdict | None = None,
    row_keys: Mapping[int, str] | None = None,
    footnotes: bool = True,
    ranks: bool = True,
) -> Grid:
    """The table of one run: header lines, one row a case, footnotes, and the verdict.

    verdict: default: by the fabric that the run is known to be of. row_keys: by
    ``id(result)``, the keys of the Grid. footnotes: False leaves out those of marked cells.
    ranks: whether the answer names a slow rank, which takes 2 s for a million calls.
    """
    view = view or View()
    notes = Notes()
    entries = in_reading_order(view.entries(run, notes))
    rows = [entry.row for entry in entries]
    columns = named_columns(view.columns) if view.columns else columns_for(rows)
    keys = {column.key for column in columns}
    # The chosen percentiles stand with the other times, before the number of calls.
    place = next((i for i, column in enumerate(columns) if column.key == "calls"), len(columns))
    columns = [*columns[:place], *map(percentile_column, view.percentiles), *columns[place:]]
    how, clocks = view.over_ranks, distinct_values(rows, "clock")
    verdict = verdict or judge(run, rows=rows if view.usual else None)
    above = header_lines(run, rows or requested_cases(run), how, clocks, view.verbose)
    below = reason_lines(rows)
    if "verified" in keys:
        below = notes.lines() if footnotes else []
    below += [] if rows else ["no case has ended"]
    # Of a run without a reference the answer has it.
    below += published_lines(run, rows) if view.usual and verdict.judged else []
    below += run_lines(run, rows, footnotes and "first_call_ns" in keys)
    ran = [entry for entry in entries if entry.result.time_ns]
    if view.clock and (without := sum(view.clock not in e.result.time_ns for e in ran)):
        below.append(f"{without} of {len(ran)} cases have no {view.clock} clock")
    return Grid(
        heads=[column.head for column in columns],
        rows=[[column.cell(entry) for column in columns] for entry in entries],
        above=above + first_lines(run, how, total=how != "max", verbose=view.verbose),
        below=most_notes(without_verdict(below, verdict, run), run, view.verbose),
        styles=[row_style(entry) for entry in entries],
        answer=answer_with_further(run, run_answer(verdict, rows, notes.bimodal), ranks),
        keys=[row_keys.get(id(entry.result), "") for entry in entries] if row_keys else [],
    )


def in_reading_order(entries: Sequence[Entry]) -> list[Entry]:
    """Sort cases by what varies, each value where it first appears, then by size: in the order of a
    run that alternates (A B B A) no column can be followed.
    """
    first_seen: dict[tuple[str, object], int] = {}
    kinds = [_kind_of(entry.row) for entry in entries]
    places = {
        kind: [
            first_seen.setdefault(value, len(first_seen))
            for value in zip(_KINDS, kind, strict=True)
        ]
        for kind in dict.fromkeys(kinds)  # few of many entries
    }
    keys = [
        (places[kind], entry.row.size_bytes_requested)
        for kind, entry in zip(kinds, entries, strict=True)
    ]
    return [entries[index] for index in sorted(range(len(entries)), key=keys.__getitem__)]


def reason_lines(rows: Sequence[Row]) -> list[str]:
    """Why cases failed or are not possible, once each, where no column marks them."""
    reasons = dict.fromkeys((row.status, row.reason) for row in rows if row.status != "ok")
    return [Caveat(one_line(reason), f"{status}: ") for status, reason in reasons if reason]


def without_verdict(lines: Sequence[str], verdict: Verdict, run: Run) -> list[str]:
    """The lines below a table, without what the verdict that ends them says too."""
    # An event has its file and its kind before its text. The verdict counts damaged lines.
    damage = run.problems if damaged_lines(run.problems) else []
    texts = tuple(filter(None, [*(phrase.text for phrase in verdict.phrases), *damage]))
    return [line for line in lines if not line.endswith(texts)]


def row_style(entry: Entry) -> str:
    return {"ok": "", "unsupported": "dim", "skipped": "dim"}.get(entry.row.status, "red")


def show(
    *sources: Source | Any,
    format: str = "table",
    columns: str | Sequence[str] | None = None,
    percentiles: str | Sequence[float] | None = None,
    over_ranks: str = "max",
    clock: str | None = None,
    view: str | None = None,
    metric: str | None = None,
    file: TextIO | None = None,
    every: bool = False,
    verbose: bool = False,
) -> None:
    """Print runs, the result files at these paths, or what torchcoll found, to stdout.

    The options are those of ``torchcoll show``. format: table, markdown, csv, json. columns: names
    of Row fields, or ``all``. percentiles: further columns. over_ranks: max (the slowest rank of a
    call), mean, min, rank0. clock: host, device, issue; None: each case's default. view: cases,
    ranks, calls, or ``pivot:KEY`` with metric (busbw, algbw, time); None: cases, or on a terminal a
    table of busbw where there are several collectives. every: nothing is shortened. verbose: the
    phases of the start and the cost of measuring too. Traffic and findings take format, and columns
    or every where they have them. Raises UsageError for choices that do not exist or do not go
    together, UnreadableError for a file.
    """
    sources = tuple(map(_loaded, sources))
    others: list[Any] = [source for source in sources if not isinstance(source, _RUNS)]
    if others:
        reported: dict[str, Any] = {"percentiles": percentiles, "clock": clock, "metric": metric}
        reported |= {"view": None if view == "cases" else view}
        reported |= {"over-ranks": None if over_ranks == "max" else over_ranks}
        _show_others(others, len(sources), format, columns, file, reported, every)
        return
    choice(format, "format", FORMATS)
    if metric is not None:
        choice(metric, "metric", METRICS)
    readings = View(
        split_list(columns, "columns"),
        split_list(percentiles, "percentiles"),
        over_ranks,
        clock,
        verbose,
    )
    out = Destination(file)
    by_collective = view is None and format == "table" and out.terminal
    view = view or "cases"
    if not isinstance(view, str):
        raise UsageError("view", type(view).__name__, f"one of {', '.join(VIEWS)}, {_PIVOT}KEY")
    if not view.startswith(_PIVOT) and view not in VIEWS:
        raise unknown("view", view, (*VIEWS, f"{_PIVOT}KEY"))
    _check_together(readings, format, view, metric)
    if not sources:
        raise UsageError("show", "no file", "at least one result file")
    runs = load_all(sources)

    usual = readings == View(verbose=verbose) and view == "cases"
    pairs = usual and any(map(has_pairs, runs))
    by_collective = by_collective and usual and not every
    if pairs and format in ("table", "markdown"):
        show_with_pairs(runs, readings, format, out)
    elif format in ("table", "markdown"):
        titled, verdict = _titled_grids(runs, readings, view, metric or "", every, by_collective)
        paths = {str(run.path) for run in runs}
        folder = os.path.dirname(min(paths))
        if verdict and paths == {*glob.glob(os.path.join(glob.escape(folder), "*.jsonl"))}:
            step = verdict.next_step.replace("=FILE", f"={shlex.quote(folder)}")
            verdict = replace(verdict, next_step=step)
        print_grids(titled, format, out, verdict)
    else:
        out.write(_machine_text(runs, readings, format, view))
    out.flush()


def _show_others(
    others: Sequence[Any],
    count: int,
    format: str,
    columns: str | Sequence[str] | None,
    file: TextIO | None,
    reported: dict[str, Any],
    every: bool,
) -> None:
    for name in (name for name, value in reported.items() if value is not None):
        expected = f"none with {type(others[0]).__name__}"
        raise UsageError(name, reported[name], expected, "torchcoll FILE answers with its command.")
    kinds = list(dict.fromkeys(type(finding).__name__ for finding in others))
    if len(kinds) > 1 or len(others) < count:
        kinds_text = " and ".join([*kinds, *(["a run"] if len(others) < count else [])])
        raise UsageError("show", kinds_text, "things of one kind", "Show each kind on its own.")
    how = shown(others[0])
    if how is None:
        raise UsageError("show", kinds[0], "a run, a file, or what a function of torchcoll found")
    if columns:
        names = ",".join(split_list(columns, "columns"))
        raise UsageError("columns", names, f"none with {kinds[0]}")
    more = {"every": True} if every and how.takes_every else {}
    how.show(others, format, file, **more)


def _loaded(source: Any) -> Any:
    """The Traffic in a file of traffic; anything else as it is."""
    if isinstance(source, (str, os.PathLike)):
        from torchcoll.core.traffic import Traffic

        return Traffic.load(source) if is_traffic(source) else source
    return source


def _check_together(readings: View, format: str, view: str, metric: str | None) -> None:
    """Refuses what would have no effect."""
    pivot = view.startswith(_PIVOT)
    # Ranks and calls are long tables for machines too.
    formats = FORMATS[:2] if pivot else FORMATS
    where = f"--view {view}"
    if format not in formats:
        raise unknown("format", format, formats, f"one of {{}} with {literal(where)}")
    if metric and not pivot:
        raise UsageError("metric", metric, "--view pivot:KEY with it", "A table has --columns.")
    if view == "cases":
        where = ""
    if where and readings.columns:
        raise UsageError("columns", ",".join(readings.columns), f"none with {where}")
    if where and readings.percentiles:
        percentiles = ",".join(f"{p:g}" for p in readings.percentiles)
        raise UsageError("percentiles", percentiles, f"none with {where}")
    each = view == "ranks" or (view == "calls" and format in ("csv", "json"))
    if each and readings.over_ranks != "max":
        raise UsageError("over-ranks", readings.over_ranks, f"none with {where}: ranks stay apart")


def _machine_text(runs: Sequence[Run], readings: View, format: str, view: str) -> str:
    from torchcoll.report.formats import ROWS, csv_text, json_text, run_object
    from torchcoll.report.ranks_view import RANKS
    from torchcoll.report.sample_views import CALLS

    records = {"ranks": RANKS, "calls": CALLS}.get(view, ROWS)
    if format == "csv":
        return csv_text(runs, readings, records)
    objects = []
    for run in runs:
        notes = Notes()
        rows = [entry.row for entry in readings.entries(run, notes)]
        verdict = judge(run, rows=rows if readings.usual else None)
        document = run_object(run, readings, records, verdict)
        answer = run_answer(verdict, rows, notes.bimodal)
        answer = answer_with_further(run, answer, ranks=len(runs) == 1)
        objects.append({**document, **_further_object(run), "answer": answer.to_json()})
    return json_text(objects)


def _titled_grids(
    runs: Sequence[Run],
    readings: View,
    view: str,
    metric: str,
    every: bool,
    by_collective: bool,
) -> tuple[list[tuple[str, list[Grid]]], Answer | None]:
    """The tables to print, under the path of the file that they come from, and of several runs that
    are judged one verdict.
    """
    from torchcoll.report.many import MOST_RUNS, runs_grids, same_cases
    from torchcoll.report.ranks_view import ranks_grids
    from torchcoll.report.sample_views import calls_grids
    from torchcoll.report.views import pivot_grids

    titles = [title_of(run) for run in runs]
    if view.startswith(_PIVOT):
        rows_of, verdicts = _judged_rows(runs, readings)
        answer = runs_answer(titles, verdicts, rows_of, same_cases(runs, rows_of))
        if len(runs) == 1:
            answer = table_grid(runs[0], readings).answer or answer
        return [("", pivot_grids(runs, readings, view.removeprefix(_PIVOT), metric))], answer

    def make(run: Run) -> list[Grid]:
        if view == "ranks":
            grids = ranks_grids(run, readings, every)
            # Pairs measure each rank with each other: they decide.
            grids[-1].answer = answer_of(run) if has_pairs(run) else grids[-1].answer
            return grids
        if view == "calls":
            return calls_grids(run, readings)
        if by_collective and _compares_collectives(run):
            return _collectives_grids(run, readings)
        table, *further = grids = [
            table_grid(run, readings, ranks=len(runs) == 1),
            *further_grids(run),
        ]
        if further:  # the answer ends all of them
            table.answer, further[-1].answer = None, table.answer
        return grids

    titles = titles if len(runs) > 1 else [""]
    if len(runs) > MOST_RUNS and not every and view == "cases":
        rows_of, verdicts = _judged_rows(runs, readings)
        groups = same_cases(runs, rows_of)
        if 1 < len(groups) <= _MOST_TABLES and min(map(len, groups)) > 1:
            return _several_runs(runs, readings, titles, True, make)
        grids = runs_grids(runs, rows_of, titles, readings.over_ranks)
        return [("", grids)], runs_answer(titles, verdicts, rows_of, [range(len(runs))])
    if len(runs) < 2 or view != "cases":
        return [(title, make(run)) for title, run in zip(titles, runs, strict=True)], None
    if len(set(titles)) == 1:  # programs of one file
        names = [", ".join(dict.fromkeys(r.case.collective for r in run.results)) for run in runs]
        titles = [f"run {number} ({name})" for number, name in enumerate(names, 1)]
    usual = readings == View(verbose=readings.verbose)
    return _several_runs(runs, readings, titles, usual and not every, make)


def _judged_rows(runs: Sequence[Run], readings: View) -> tuple[list[list[Row]], list[Verdict]]:
    """The rows of each run, and its verdict."""
    rows_of = [[entry.row for entry in readings.entries(run)] for run in runs]
    usual = [rows if readings.usual else None for rows in rows_of]
    return rows_of, [judge(run, rows=rows) for run, rows in zip(runs, usual, strict=True)]


def _several_runs(
    runs: Sequence[Run],
    readings: View,
    titles: Sequence[str],
    pooled: bool,
    make: Callable[[Run], list[Grid]],
) -> tuple[list[tuple[str, list[Grid]]], Answer]:
    """One table for all runs of the same cases, and a table for each other run.

    pooled: False for a table of each run. make: the tables of one run.
    """
    from torchcoll.report.many import runs_grids, same_cases
    from torchcoll.report.views import pivot_grids

    rows_of, verdicts = _judged_rows(runs, readings)
    groups = same_cases(runs, rows_of) if pooled else [[place] for place in range(len(runs))]
    titled = []
    for group in groups:
        of_group, names = [runs[place] for place in group], [titles[place] for place in group]
        if len(group) == 1:
            titled.append((names[0], make(of_group[0])))
            continue
        if all(map(_compares_collectives, of_group)):
            grids = pivot_grids(of_group, readings, "collective", "busbw", overview=True)
            grids[-1].below.append("the table of each run: --all")
        else:
            grids = runs_grids(of_group, [rows_of[place] for place in group], names)
        for place in group:
            grids[-1].below = without_verdict(grids[-1].below, verdicts[place], runs[place])
        title = (
            f"{len(group)} runs: {shorten(list(dict.fromkeys(names)), 3)}"
            if len(groups) > 1
            else ""
        )
        titled.append((title, grids))
    return titled, runs_answer(titles, verdicts, rows_of, groups)


_MOST_TABLES = 5  # of so many settings, a table each; the runs of more are one table
_SIZES = 3  # fewer sizes are read as easily in a list


def _compares_collectives(run: Run) -> bool:
    """Whether a table of busbw by size and collective shows the run, with nothing failed."""
    sizes: dict[str, set[int]] = {}
    for result in run.results:
        if not result.is_right or result.concurrent:
            return False
        sizes.setdefault(result.case.collective, set()).add(result.case.size_bytes)
    several = [name for name, of_collective in sizes.items() if len(of_collective) >= _SIZES]
    return len(several) > 1 and run.ranks > 1 and not run.windows


def _collectives_grids(run: Run, readings: View) -> list[Grid]:
    """Sizes down and collectives across, with the verdict and the notes of the list of cases."""
    from torchcoll.report.views import pivot_grids

    # Footnotes belong to cells that are not shown here.
    table = table_grid(run, readings, footnotes=False)
    *grids, last = pivot_grids([run], readings, "collective", "busbw", overview=True)
    notes = [line for line in table.below if line not in last.below]
    notes = most_notes([*last.below, *notes], run, readings.verbose)
    last.below = [*notes, "times and first calls of each case: --view cases"]
    last.answer = table.answer
    return [*grids, last]


def answer_with_further(run: Run, answer: Answer, ranks: bool = True) -> Answer:
    """The answer of a run with a rank that is slow, after that of --soak or --concurrent, for which
    the run was made; a failure comes first. ranks: whether to name a slow rank.
    """
    if ranks and (slow := slow_rank(run, late=False)):
        answer = replace(answer, details=(slow.headline, *answer.details))
    if not _has_further(run):
        return answer
    from torchcoll.questions.contention.show import concurrent_answer

    rows, over_time = _further(run)
    first = concurrent_answer(rows) if rows else None
    first = over_time.answer if over_time else first
    if first is None:
        return answer
    if answer.level == "bad":
        return replace(answer, details=(*answer.details, first.headline, *first.details))
    return replace(
        first,
        level=worst_level(first.level, answer.level),
        worst=(*first.worst, *answer.worst),
        details=(*first.details, answer.headline, *answer.details),
        next_step=first.next_step or answer.next_step,
    )


def _has_further(run: Run) -> bool:
    """Whether --concurrent or --soak measured. Only then their answers, with scipy, are loaded."""
    return bool(run.windows) or any(result.concurrent for result in run.results)


def _further(run: Run) -> tuple[list[Overlap], Soaked | None]:
    """What --concurrent and --soak measured, as far as they did."""
    from torchcoll.questions.contention.overlap import overlaps
    from torchcoll.questions.contention.soaked import soaked

    rows = overlaps(run) if any(result.concurrent for result in run.results) else []
    return rows, soaked(run) if run.windows else None


def further_grids(run: Run) -> list[Grid]:
    """The tables of --concurrent and --soak; [] where nothing was measured."""
    if not _has_further(run):
        return []
    from torchcoll.questions.contention.show import concurrent_grid, soak_grid

    rows, over_time = _further(run)
    machine = [e["message"] for e in run.events if e.get("kind") == "machine"]
    grids = [concurrent_grid(rows, machine)] if rows else []
    return [*grids, soak_grid(over_time)] if over_time else grids


def _further_object(run: Run) -> dict[str, Any]:
    if not _has_further(run):
        return {}
    from torchcoll.questions.contention.show import concurrent_records, soak_object

    rows, over_time = _further(run)
    concurrent = any(result.concurrent for result in run.results)
    further: dict[str, Any] = {"concurrent": concurrent_records(rows)} if concurrent else {}
    return {**further, "soak": soak_object(over_time)} if over_time else further


def title_of(run: Run) -> str:
    return one_line(run.path or run.header.get("run_id") or "run")


def has_pairs(run: Run) -> bool:
    return any(map(is_pair, run.results))


def show_with_pairs(runs: Sequence[Run], readings: View, format: str, out: Destination) -> None:
    """Of pairs their matrix, what follows from it and the verdict; of other runs their tables, and
    before them one answer about all.
    """
    others = [run for run in runs if not has_pairs(run)]
    if others:
        titled = [(title_of(run), [table_grid(run)]) for run in others]
        rows_of, verdicts = _judged_rows(runs, readings)
        alone = [[number] for number in range(len(runs))]
        titles = list(map(title_of, runs))
        print_grids(titled, format, out, runs_answer(titles, verdicts, rows_of, alone))
        out.write("\n")
    for number, run in enumerate(filter(has_pairs, runs)):
        out.write("\n" if number else "")
        rows = summarise_run(run)
        verdict = judge(run, rows=rows)  # raises before anything is printed
        show_pairs(run, format, file=out.file)
        answer = answer_of(run)
        headlines = {answer.headline} if answer else set()
        kept = tuple(phrase for phrase in verdict.phrases if phrase.text not in headlines)
        doubts = [row for row in rows if row.status == IMPLAUSIBLE]
        below = [*reason_lines(doubts), "; ".join(map(str, kept))]
        out.lines(filter(None, below))


def answer_of(finding: Any) -> Answer | None:
    """The first sentence of ``show`` about a Run or a finding, as data; None if there is none."""
    if not isinstance(finding, Run):
        how = shown(finding)
        return how.answer(finding) if how and how.answer else None
    if pairs := read_pairs(finding):
        suspected = find_suspects(pairs, pairs.threshold)
        return pairs_answer(finding, pairs, suspected, pairs.threshold)
    return table_grid(finding).answer


def html_of(finding: Any) -> str:
    """The answer and the tables of ``show`` as HTML."""
    text = io.StringIO()
    show(finding, format="markdown", file=text)
    parts = []
    for block in text.getvalue().strip().split("\n\n"):
        lines = [_unescaped(line.removeprefix("- ")) for line in block.split("\n")]
        if block.startswith("| "):
            parts.append(_html_table(block.split("\n")))
        else:
            parts.append(f"<p>{'<br>'.join(lines)}</p>")
    answer = finding.answer
    headline = html.escape(answer.headline) if answer else ""
    return "\n".join(parts).replace(f"<p>{headline}", f"<p><b>{headline}</b>", 1)


def _html_table(lines: Sequence[str]) -> str:
    """lines: of a table in markdown: the heads, how columns are aligned, and the rows."""
    heads, sides, *rows = [line[2:-2].split(" | ") for line in lines]
    styles = ["left" if side.startswith(":") else "right" for side in sides]

    def row(tag: str, cells: Sequence[str]) -> str:
        texts = [
            f'<{tag} style="text-align: {style}">{_unescaped(cell)}</{tag}>'
            for cell, style in zip(cells, styles, strict=True)
        ]
        return f"<tr>{''.join(texts)}</tr>"

    body = "\n".join(row("td", cells) for cells in rows)
    return f"<table>\n<thead>{row('th', heads)}</thead>\n<tbody>\n{body}\n</tbody></table>"


def _unescaped(text: str) -> str:
    """A text of ``escape_markdown`` as HTML."""
    return html.escape(re.sub(r"\\(.)", r"\1", text))

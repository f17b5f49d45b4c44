"""What rank 0 prints while a run goes on: rows one by one, or a document at the end; on a terminal
with a line of progress below. No refresh thread takes the interpreter lock from the timed calls:
the screen changes only when a case starts or ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torchcoll.core.case import DIMENSIONS, Case, size_case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import TorchcollError, choice
from torchcoll.core.plausibility import doubts_of
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import P99_CALLS, library_of
from torchcoll.core.units import format_size
from torchcoll.questions.check.judging import judge
from torchcoll.questions.check.measured_show import run_answer
from torchcoll.questions.show import show as shown
from torchcoll.report import grid
from torchcoll.report.columns import COLUMNS_OF_DATA, Column, default_columns, distinct_values
from torchcoll.report.destination import Destination, ProgressLine, RunProgress
from torchcoll.report.formats import FORMATS, View
from torchcoll.report.header import first_lines, header_lines
from torchcoll.report.notes import Notes, most_notes, run_lines

_PATIENCE_S = 2.0


def reporter(format: str = "table", quiet: bool = False, verbose: bool = False) -> Reporter:
    """The reporter for ``--format``. Raises UsageError for an unknown format."""
    choice(format, "format", FORMATS)
    out = Destination()
    kind = _Rows if format == "table" else _AtEnd
    return kind(out, format, quiet, verbose)


class Reporter:
    """Receives what happens on rank 0 in this order: begin, (started, done)..., end.

    A reader that goes away (``| head``) ends the printing and never the run. ``end`` may come from
    the thread that ends an interrupted run.
    """

    def __init__(self, out: Destination, format: str, quiet: bool, verbose: bool = False) -> None:
        self.verbose = verbose
        self.out = out
        self.format = format
        self.quiet = quiet
        self.run = Run()
        self.cases: Sequence[Case] = ()
        self.progress = RunProgress(0)
        # stderr may be a terminal while the table goes into a pipe, or the other way round.
        terminals = [file for file in (sys.stderr, self.out.file) if file and file.isatty()]
        width = shutil.get_terminal_size().columns
        self.line = ProgressLine(terminals[0] if terminals else None, width)
        self._over = False
        self._lock = threading.Lock()

    def begin(self, run: Run, cases: Sequence[Case]) -> None:
        """After set-up, before the first case. ``run`` has its header, members and phases."""
        self.run, self.cases = run, cases
        self.progress = RunProgress(len(cases))
        self._guarded(self._begin)

    def started(self, index: int, case: Case) -> None:
        self._guarded(self._started, case)

    def note(self, text: str) -> None:
        """In place of the line of progress, between cases."""
        self._guarded(lambda: None if self.quiet else self.line.show(text))

    def done(self, result: CaseResult) -> None:
        self.progress.finished += 1
        self._guarded(self._done, result)

    def end(self, run: Run) -> None:
        """After the last case, also of an interrupted run."""
        self.run = run
        self._guarded(self._last)

    def _last(self) -> None:
        try:
            self._end()
        finally:
            self._over = True

    def _guarded(self, action: Callable[..., None], *args: Any) -> None:
        # A terminal that blocks (Ctrl-S) keeps the lock for ever: then the last table is missing.
        if not self._lock.acquire(timeout=_PATIENCE_S):
            return
        try:
            if not self._over:
                action(*args)
                self.out.flush()
        except (OSError, ValueError):  # ValueError: the file was closed
            self._over = True
            with contextlib.suppress(OSError, ValueError):
                # Python flushes stdout at exit and would complain there: give it somewhere to go.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.out.file.fileno())
        finally:
            self._lock.release()

    def _begin(self) -> None:
        pass

    def _started(self, case: Case) -> None:
        if not self.quiet:
            self.line.show(self.progress.text(case.describe()))

    def _done(self, result: CaseResult) -> None:
        pass

    def _end(self) -> None:
        pass


class _AtEnd(Reporter):
    """Prints JSON, CSV or markdown once the run has ended, and nothing before."""

    def _end(self) -> None:
        self.line.clear()
        shown.show(self.run, format=self.format, file=self.out.file)


class _Rows(Reporter):
    """Header lines, headings, then a row as each case ends, in columns of fixed width; on a
    terminal too, as torchrun writes its own lines below at a Ctrl-C.
    """

    def _begin(self) -> None:
        self.notes = Notes()
        self.view = View()
        on_host = {case.device == "cpu" or not case.queued for case in self.cases}
        clocks = [name for name, host in (("host", True), ("device", False)) if host in on_host]
        self.columns, self.widths = stream_columns(self.run, self.cases)
        self.heads = [column.head for column in self.columns]
        dropped, self.gap = grid.fit(self.heads, self.widths, self.out.width)
        self.hidden = grid.hidden_note(self.heads, dropped, self.out.width) if dropped else ""
        # What does not fit beside the first columns, and may not be left out, comes at the end.
        self.tables = grid.split_columns(self.heads, self.widths, self.out.width)
        self.grid = grid.Grid(self.heads, [])
        self.first = self.tables[0]
        above = header_lines(self.run, self.cases, clocks=clocks, verbose=self.verbose)
        shown = [self.heads[i] for table in self.tables for i in table]
        if not self.quiet:
            self.out.lines([*above, *grid.legends(shown), ""])
        heads = self.grid.only(self.first).heads
        widths = [self.widths[i] for i in self.first]
        self.out.lines_unwrapped(grid.head_lines(heads, widths, self.gap))

    def _done(self, result: CaseResult) -> None:
        row = self.view.row(result, library_of(result.case, self.run.environment))
        alone = replace(self.run, results=[result], continuations=[])
        (doubt,) = doubts_of(alone, [row])
        entry = self.view.entry(result, row, self.notes, doubt)
        cells = [column.cell(entry) for column in self.columns]
        self.grid.rows.append(cells)
        self.grid.styles.append(shown.row_style(entry))
        in_first, widths = [cells[i] for i in self.first], [self.widths[i] for i in self.first]
        heads = self.grid.only(self.first).heads
        self.line.clear()
        style = shown.row_style(entry)
        self.out.styled(grid.row_line(in_first, heads, widths, self.gap), style)

    def _end(self) -> None:
        self.line.clear()
        for table in self.tables[1:]:
            self.out.write("\n")
            grid.print_grid(self.grid.only(table), self.out)
        rows = [entry.row for entry in self.view.entries(self.run)]
        below = [] if rows else ["no case has ended"]
        notes = self.notes.lines()
        notes += run_lines(self.run, rows)
        verdict = judge(self.run, rows=rows)
        shorter = shown.without_verdict(notes, verdict, self.run)
        below += most_notes(shorter, self.run, self.verbose)
        below += [self.hidden] if self.hidden else []
        below += [] if self.quiet else first_lines(self.run, total=False, verbose=self.verbose)
        self.out.lines(["", *below])
        further = shown.further_grids(self.run)
        for each in further:
            self.out.write("\n")
            grid.print_grid(each, self.out)
        if further:
            self.out.write("\n")
        answer = shown.answer_with_further(self.run, run_answer(verdict, rows, self.notes.bimodal))
        grid.print_answer(answer, self.out)


def stream_columns(run: Run, cases: Sequence[Case]) -> tuple[list[Column], list[int]]:
    """Columns, and widths that hold every row to come."""
    data = [case for case in cases if COLLECTIVES[case.collective].has_data]
    actual = [_actual_size(case, run.ranks) for case in data]
    iters = (run.header.get("spec") or {}).get("iters")
    without = set() if data else {*COLUMNS_OF_DATA}
    if iters is not None and iters < P99_CALLS:
        without.add("p99_ns")
    if actual == [case.size_bytes for case in data]:
        without.add("size_bytes_requested")
    if "library_log" not in run.header:
        without.add("algorithm")
    columns = default_columns(cases, without)
    sizes = [format_size(n) for n in (*actual, *(case.size_bytes for case in data))]
    widths = []
    for column in columns:
        texts = [column.head.first, column.head.second]
        if column.key in DIMENSIONS:
            texts += [str(value) for value in distinct_values(cases, column.key)]
            if column.key == "group":
                texts.append(f"{texts[-1]}/{run.ranks}")
        elif column.key.startswith("size_bytes"):
            texts += sizes
        elif column.key == "verified":
            texts.append("unchecked")
        widths.append(max(column.head.width, *map(len, texts)))
    return columns, widths


def _actual_size(case: Case, ranks: int) -> int:
    try:
        return size_case(case, ranks).size_bytes
    except TorchcollError:  # splits that do not fit the ranks: that case will say so itself
        return case.size_bytes

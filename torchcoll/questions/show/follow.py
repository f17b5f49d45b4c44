"""``torchcoll show --follow``: the table of a run that is still going on, from its result file.

Another process than the ranks reads the file again whenever it has grown, so that watching costs
the ranks nothing. The rows are printed as rank 0 prints them.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from torchcoll.bench.live import Reporter, reporter
from torchcoll.core.errors import UnreadableError, UsageError, one_line, tell
from torchcoll.core.file import files_of_run
from torchcoll.core.result import Run
from torchcoll.reading.inputs import load_one
from torchcoll.report.destination import ProgressLine, RunProgress
from torchcoll.stats.sides import start_of

POLL_S = 1.0
_PAGE_EVERY_S = 5.0  # a page of a large run takes a second to write
_STILL_S = 120.0  # a run that writes nothing for so long is mentioned


def follow(path: str, write_page: Callable[[str], None] | None = None) -> Run:
    """Prints the rows of a run as its file grows, until the file has its end.

    On a terminal the last line has the current case, the time left and the slowest rank. The file
    may not exist yet. A run that --resume continues in FILE.2 is followed there; of one that begins
    again in the same file the table begins again. write_page: writes the page of the file, once it
    has rows, again when it has more, and when the file has not grown for minutes; its argument is
    how far the run is, '' at its end.

    Returns the complete run. Raises UsageError for what cannot be followed, UnreadableError for a
    file that is none of torchcoll's.
    """
    if path == "-" or (os.path.exists(path) and not os.path.isfile(path)):
        raise UsageError("follow", path, "one result file of a run that goes on")
    line = ProgressLine(sys.stderr, shutil.get_terminal_size().columns)
    printed = _Printed()
    seen: object = None
    page_at = -math.inf
    changed_at, mentioned = time.monotonic(), False
    page_due = False
    if not os.path.exists(path):
        tell(f"torchcoll: {one_line(f'waiting for {path}')}")
    while True:
        state = _state_of(path)
        if state != seen:
            seen, changed_at, mentioned = state, time.monotonic(), False
            if run := _read(path):
                line.clear()
                printed.update(run)
                page_due = bool(run.results)
        run = printed.run
        over = run is not None and run.end is not None
        if write_page and page_due and (over or time.monotonic() - page_at >= _PAGE_EVERY_S):
            write_page("" if over else printed.progress_sentence())
            page_due, page_at = False, time.monotonic()
        if run is not None and over:
            return run
        if not mentioned and time.monotonic() - changed_at >= _STILL_S:
            line.clear()
            text = _still_text(path, run)
            tell(f"torchcoll: {text}; still waiting (Ctrl-C ends this)")
            mentioned = True
            if write_page and run is not None and run.results:
                write_page(text)  # that the run goes on may be wrong by now
        line.show(printed.progress_text() if run else one_line(f"waiting for {path}"))
        time.sleep(POLL_S)


def _state_of(path: str) -> object:
    """What changes whenever a file of the run is written or replaced."""
    states = []
    for file in files_of_run(path):
        with contextlib.suppress(OSError):
            status = os.stat(file)
            states.append((str(file), status.st_ino, status.st_size))
    return states


def _still_text(path: str, run: Run | None) -> str:
    since = f"for {_STILL_S / 60:.0f} minutes"
    if run is None:
        return one_line(f"no run in {path} {since}")
    flight = f" during {run.in_flight.describe()}" if run.in_flight else ""
    return one_line(
        f"{path} has not grown {since}{flight}: the run may have been killed, which leaves no end"
    )


def _read(path: str) -> Run | None:
    """The run as far as its file goes; None where not even the header is complete."""
    if not os.path.exists(path):  # and may exist by the time of the look below
        return None
    try:
        return load_one(path)
    except UnreadableError:
        with contextlib.suppress(OSError):
            if b"\n" in Path(path).read_bytes()[: 1 << 20]:
                raise
        return None


class _Printed:
    """What has been printed of the run."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self._reporter: Reporter | None = None
        self._progress = RunProgress(0)
        self._rows = 0

    def update(self, run: Run) -> None:
        """Prints the rows that ``run`` has more, and what ends the table."""
        if self.run and self.run.header.get("run_id") != run.header.get("run_id"):
            tell(f"torchcoll: another run began in {one_line(run.path)}")
            self._reporter, self._rows = None, 0
        if self._reporter is None:
            cases = run.spec.cases(run.ranks)
            self._reporter = reporter()
            self._reporter.line = ProgressLine(None, 0)  # the caller has one
            self._reporter.begin(run, cases)
            self._progress = RunProgress(len(cases), started=_monotonic_start(run))
        self.run = run
        for result in run.results[self._rows :]:
            self._reporter.done(result)
        self._rows = self._progress.finished = len(run.results)
        if run.end is not None:
            self._reporter.end(run)

    def progress_text(self) -> str:
        return self._progress.text("; ".join(self._doing()))

    def progress_sentence(self) -> str:
        """``running: 3 of 12 cases, 0:14 elapsed, about 0:42 left; all_reduce 512 ...; ...``"""
        return "; ".join([f"running: {self._progress.sentence()}", *self._doing()])

    def _doing(self) -> list[str]:
        """The current case, and the round of a soak."""
        run = self.run
        assert run is not None
        doing = [run.in_flight.describe()] if run.in_flight else []
        if run.windows:
            doing.append(f"round {run.windows[-1].last_round}")
        return doing


def _monotonic_start(run: Run) -> float | None:
    """When the run began, on this process's monotonic clock; None if the header does not say."""
    start_s = start_of(run)
    return None if start_s is None else time.monotonic() - max(0.0, time.time() - start_s)

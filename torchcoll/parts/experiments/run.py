"""Running a matrix: every run that is missing, one after the other."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import statistics
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from types import FrameType
from typing import Any, Protocol

from torchcoll.core.errors import UsageError
from torchcoll.core.variables import (
    MASK,
    masked,
    masked_labels,
    masked_value,
    masked_variables,
    masked_words,
)
from torchcoll.libraries.nccl import forced as nccl_forced
from torchcoll.machine.processes import Ended, end_orphans, launch
from torchcoll.parts.experiments.blocks import PlannedRun, RunPlan
from torchcoll.parts.experiments.folder import Folder, log_bytes, read_log
from torchcoll.parts.experiments.obeyed import Recorded, check, unverified

_ERROR = "torchcoll: error: "


class Watcher(Protocol):
    """Who is told how it goes."""

    def note(self, text: str) -> None: ...
    def began(self, job: PlannedRun) -> None: ...
    def tick(self) -> None: ...
    def ended(self, job: PlannedRun, record: Mapping[str, Any]) -> None: ...
    def skipped(self) -> None: ...


def pending(plan: RunPlan, folder: Folder) -> list[PlannedRun]:
    """The runs that have no file that counts, in order."""
    return [job for job in plan.jobs() if not (folder.done(job) or folder.unavailable(job))]


def run(
    plan: RunPlan,
    folder: Folder,
    recorded: Recorded,
    watcher: Watcher,
    timeout_s: float | None = None,
    jobs: Iterable[PlannedRun] | None = None,
) -> int | None:
    """Run what is missing. Returns the number of the signal that stopped it, or None.

    recorded: filters the variables as result files do. timeout_s: of one run. jobs: which runs, in
    order; each is requested when the previous one has ended. Raises TorchcollError if the disk
    refuses the manifest, UsageError if a script ignores its arguments.
    """
    with _Signals() as signals:
        orphans = end_orphans(folder.mark)
        if orphans:
            watcher.note(f"ended {orphans} processes of a run whose matrix was killed")
        todo = pending(plan, folder)
        for job in todo:
            if moved := folder.set_aside(job):
                watcher.note(f"{job.title}: its matrix was killed; what it wrote is {moved}")
        for job in todo if jobs is None else jobs:
            if signals.number is not None:
                break
            if folder.unavailable(job):
                watcher.skipped()
                continue
            watcher.began(job)
            record = _one(plan, folder, job, recorded, signals, watcher, timeout_s)
            folder.add(record)
            watcher.ended(job, record)
            # Only a script itself knows whether --output arrives.
            if record["exit_code"] == 0 and not (folder.has_results or plan.command.module):
                _check_written(folder, job, record)
        return signals.number


def _check_written(folder: Folder, job: PlannedRun, record: Mapping[str, Any]) -> None:
    """Raises UsageError if a successful run wrote no file: all others would not either."""
    if record["aside"] is None and not folder.result(job).exists():
        raise UsageError(
            "the command ended without writing the file that torchcoll added as --output FILE",
            action=f"Does the script pass its arguments on? Its output is in {folder.log(job)}.",
        )


def _one(
    plan: RunPlan,
    folder: Folder,
    job: PlannedRun,
    recorded: Recorded,
    signals: _Signals,
    watcher: Watcher,
    timeout_s: float | None,
) -> dict[str, Any]:
    """Run a job; its line of the manifest."""
    path, log = folder.result(job), folder.log(job)
    argv = plan.argv(job, path, labels_of(job, recorded))
    start, utc = log_bytes(log), datetime.now(timezone.utc).isoformat(timespec="seconds")
    variables = plan.environment(job.cell, os.environ)
    ended = None
    mark = folder.mark + job.stem
    with (
        contextlib.suppress(_Stopped),
        signals.raising(),
        folder.open_log(log) as output_file,
    ):
        ended = launch(argv, variables, mark, output_file, timeout_s, watcher.tick)
    output = read_log(log, start)
    status, reason, usable = _judged(ended, folder, job, output, recorded, timeout_s)
    aside = None if usable else folder.set_aside(job)
    return {
        "cell": job.cell.name,
        "run": job.run,
        "axes": masked_labels(job.cell.axes),
        "variables": masked_variables(job.cell.variables),
        "command": masked_words(argv),
        "start_utc": utc,
        "exit_code": ended.exit_code if ended else None,
        "seconds": round(ended.seconds, 3) if ended else None,
        "status": status,
        "reason": _without_secrets(reason, job, argv),
        "file": path.name if usable else None,
        "aside": aside,
        "log": str(log.relative_to(folder.path)),
    }


def _without_secrets(text: str, job: PlannedRun, argv: Sequence[str]) -> str:
    """What a run said, without what it was given as a secret."""
    given = [v for n, v in job.cell.variables.items() if v and masked_value(n, v) == MASK]
    for argument, shown in zip(argv, masked_words(argv), strict=True):
        if shown != argument:
            value = argument.rpartition("=")[2] if shown.endswith(f"={MASK}") else argument
            given += [argument, value]
    for secret in sorted(given, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return masked(text)


def labels_of(job: PlannedRun, recorded: Recorded) -> dict[str, str]:
    """The axes; and variables that result files do not keep, or a file would not tell its own."""
    labels = masked_labels(job.cell.axes)
    for name in unverified(job.cell, recorded):
        if (value := job.cell.variables[name]) is not None:
            labels[name] = masked_value(name, value)
    return labels


def _judged(
    ended: Ended | None,
    folder: Folder,
    job: PlannedRun,
    output: str,
    recorded: Recorded,
    timeout_s: float | None,
) -> tuple[str, str, bool]:
    """(status, reason, whether the file counts) of a run."""
    if ended is None:
        return "interrupted", "", False
    if ended.timed_out:
        return "timeout", f"ended after --cell-timeout {timeout_s:g} s", False
    if ended.exit_code is None:
        return "failed", ended.why, False
    result = check(folder.result(job), job, recorded)
    if result.unavailable or (not result.usable and nccl_forced.UNAVAILABLE in output):
        return "unavailable", "NCCL has not got it on this machine", False
    code = f"signal {-ended.exit_code}" if ended.exit_code < 0 else f"exit code {ended.exit_code}"
    if not result.usable:
        if not ended.exit_code or result.complete:
            return "failed", result.reason, False
        # What a run said last tells more than that its file has no end.
        return "failed", f"{code}: {_last_error(output) or result.reason}", False
    if result.reason:
        return "failed", result.reason, True
    if ended.exit_code:
        return "failed", f"{code} although all its cases are ok", True
    return "ok", "", True


_EXCEPTION = re.compile(r"\b[A-Z]\w*(Error|Exception): ")


def _last_error(output: str) -> str:
    """The last error of torchcoll, else of Python, else the last line with words.

    The last lines of torchrun only say that a child failed.
    """
    lines = [line.strip() for line in output.splitlines() if any(map(str.isalpha, line))]
    ours = [line.partition(_ERROR)[2] for line in lines if _ERROR in line]
    theirs = [line for line in lines if _EXCEPTION.search(line) and "ChildFailed" not in line]
    return next(iter((ours or theirs or lines)[-1:]), "").rstrip(' "')


class _Stopped(BaseException):
    """A signal asks to stop."""


class _Signals:
    """A signal ends the current run, and then the matrix, without half a line. number: the first
    one.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._raising = False
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self._earlier[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = number if self.number is None else self.number
        if self._raising:
            raise _Stopped

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        if self.number is not None:
            raise _Stopped
        self._raising = True
        try:
            yield
        finally:
            self._raising = False


def summary(plan: RunPlan, folder: Folder) -> list[dict[str, Any]]:
    """An object per cell: how its runs ended, by their last attempts.

    seconds: the median of successful runs. reason: the last one of the others.
    """
    rows = []
    for cell in plan.cells:
        jobs = [PlannedRun(cell, run) for run in range(1, plan.runs + 1)]
        last = [record for job in jobs if (record := folder.last(job)) is not None]
        counts = Counter(str(record["status"]) for record in last)
        seconds = [
            r["seconds"] for r in last if r["status"] == "ok" and r.get("seconds") is not None
        ]
        reasons = [r["reason"] for r in last if r["status"] != "ok" and r["reason"]]
        rows.append(
            {
                "cell": cell.name,
                "runs": plan.runs,
                **{name: counts[name] for name in ("ok", "failed", "timeout", "unavailable")},
                "seconds": statistics.median(seconds) if seconds else None,
                "reason": reasons[-1] if reasons else "",
            }
        )
    return rows

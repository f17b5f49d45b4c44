"""What rank 0 does with results: the file, the table, and what --resume finds done."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.bench.options import FOLDER_ENDING, Options
from torchcoll.bench.recorder import Recorder
from torchcoll.core import errors
from torchcoll.core.case import Case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.file import Writer, load_own, records_of
from torchcoll.core.result import CaseResult, stated_shortfall
from torchcoll.core.spec import Spec

if TYPE_CHECKING:
    from torchcoll.bench.session import Session


RUNS_FOLDER = "torchcoll-runs"
# Cases with these statuses are not run again by --resume.
_DONE = ("ok", "wrong", "unsupported", "skipped")


class Output:
    """Rank 0's file and table."""

    def __init__(self, options: Options, ranks: int) -> None:
        self.options = options
        self.spec = options.spec
        self.path: Path | None = None
        self.recorder = Recorder(self.emit)
        self.run = self.recorder.run  # what the file holds, while it is measured
        self.lost = ""  # a sentence, once somebody has removed, moved or truncated the file
        self._nowhere = False  # and it cannot be written anywhere else
        self._ranks = ranks
        self._done: set[Case] = set()
        self._earlier: list[CaseResult] = []  # results in the file of --resume
        self._notes: list[str] = []  # what differs between --traffic and the cases
        self._writer: Writer | None = None
        self._indices: dict[Case, int] = {}
        self._shown = False
        self._broken_display = False
        self._complete = False  # the file of --resume has all cases
        # Of pairs there are thousands: a round is made durable by the start of the next.
        self._durable = ("header", "started" if options.other else "case", "end")
        from torchcoll.bench.live import reporter

        self._reporter = reporter(options.format, options.quiet, options.verbose)

    def earlier(self) -> Spec:
        """The Spec to run: with --resume and --traffic that of the file. Raises TorchcollError."""
        self.spec, self._notes = self.options.asked(self._ranks)
        if {"fabric", "link_gbps"} & set(self.spec.labels):
            from torchcoll.questions.check.limits import check_labels

            check_labels(self.spec.labels)
        if not self.options.resume:
            return self.spec
        path = Path(self.options.resume)
        run = load_own(path)
        if run.ranks != self._ranks:
            raise errors.UsageError("resume", f"{self._ranks} ranks", f"{run.ranks} as in {path}")
        asked, earlier = self.spec, run.spec
        plain = Spec(collectives=asked.collectives)
        same = replace(
            asked,
            backend=asked.backend or earlier.backend,
            device=asked.device or earlier.device,
            labels=asked.labels or earlier.labels,
        )
        none = asked == plain and asked.collectives in (earlier.collectives, tuple(COLLECTIVES))
        if earlier != same and not none:
            given = f"other options than {path} was measured with"
            action = "Leave them out: the file has them."
            raise errors.UsageError("resume", given, "the same options or none", action)
        self.spec = earlier
        # A case with sub-groups is done when all of them are.
        subgroups = len(earlier.subgroups(self._ranks))
        counts = Counter(_asked(r.case) for r in run.results if r.status in _DONE)
        self._done = {case for case, count in counts.items() if count >= subgroups}
        self._earlier = [r for r in run.results if _asked(r.case) in self._done]
        self._complete = self._done.issuperset(earlier.cases(self._ranks))
        return earlier

    def emit(self, record: str, data: dict[str, Any]) -> None:
        """One record to the file; durable where a crash must not take it."""
        if record == "header":
            self._open(data["spec"]["backend"])
            if self._writer:
                resumable = self.options.soak is None and self.options.other is None
                how = "go on with --resume" if resumable else "measure again into another file"
                self._writer.when_full = f"Make room, then {how}."
            self.run.path = self.path
            if self.options.library_log and self.path:
                data["library_log"] = f"{self.path.name}{FOLDER_ENDING}"
            if self.options.other:
                data |= self.options.other.header
        if self._writer:
            durable = record in self._durable
            self._writer.write(record, data, durable)
            if durable:
                self._look_after()
        if record == "started" and self._shown:
            case = Case.from_json(data["case"])
            self.show(lambda: self._reporter.started(self._indices[case], case))

    def _open(self, backend: str) -> None:
        options = self.options
        if options.no_output or self._complete:
            return
        if options.output:
            self.path = Path(options.output)
            self._writer = self._created(self.path)
            return
        if options.resume:
            base, number = Path(options.resume), 2
            while (path := base.with_name(f"{base.name}.{number}")).exists():
                number += 1
            self.path, self._writer = path, self._created(path)
            return
        names = self.spec.collectives
        what = names[0] if len(names) == 1 else "suite"
        what = options.other.name if options.other else what
        self.path, self._writer = open_default(what, backend, self._ranks)

    def _look_after(self) -> None:
        """Write all again if somebody removed, moved or truncated the file; else show the table."""
        if self._nowhere or not (self._writer and self.path) or self._writer.there():
            return
        self.lost = f"result file {self.path}: removed, moved or truncated while measuring"
        again = open_again(self.path)
        if again is None:
            self.lost += ", and there is nowhere to write it again"
            self._nowhere = True
            return
        self._writer.close()
        self.path, self._writer = again
        self.run.path = self.path
        self.lost += f"; all is in {self.path}"
        if self.run.end and not self.run.end["exit_code"]:  # taken after the last record
            self.run.end |= {"exit_code": int(errors.ExitCode.FAILED), "reason": self.lost}
        for record, data in records_of(self.run):
            self._writer.write(record, data)

    def _created(self, path: Path) -> Writer:
        folder = f"{path}{FOLDER_ENDING}"
        if self.options.library_log and os.path.lexists(folder):
            action = "Remove it, or name another file with --output."
            raise errors.UsageError("library-log", folder, "a folder that does not exist", action)
        return Writer(path)

    def begin(self, session: Session) -> list[int]:
        """Show the header; the indices of the cases that are to run."""
        for note in self._notes:
            self.recorder.event("warning", note)
        cases = [sizing.case for sizing in session.sizings]
        self._indices = {case: index for index, case in enumerate(cases)}
        missing = [index for index, case in enumerate(cases) if case not in self._done]
        if self._done:
            done = f"{len(cases) - len(missing)} of {len(cases)} cases are done"
            errors.tell(
                f"{self.options.resume}: {done}{'' if missing else '; nothing is left to run'}"
            )
        if not missing:
            return []
        todo = [cases[index] for index in missing]
        if self.options.resume:
            self.run.path = Path(self.options.resume)
        self.show(lambda: self._reporter.begin(self.run, todo))
        self._indices = {cases[index]: number for number, index in enumerate(missing)}
        self._shown = True
        return missing

    def show(self, show: Callable[[], None]) -> None:
        """A fault of the display must not end a measurement: say it once, and measure on."""
        if self._broken_display:
            return
        try:
            show()
        except Exception:
            self._broken_display = True
            errors.print_traceback()
            errors.tell("torchcoll: warning: the display failed; the measurement goes on")

    def tell_round(self, text: str) -> None:
        """How far --soak is: on a terminal, in the line of progress."""
        self.show(lambda: self._reporter.note(text))

    def on_case(self, result: CaseResult) -> None:
        self.show(lambda: self._reporter.done(result))

    def failure(self) -> str | None:
        """What makes the exit code 1, as one text."""
        self._look_after()
        text = stated_shortfall([*self._earlier, *self.run.results])
        return ". ".join(filter(None, (self.lost, text))) or None

    def abandon(self) -> None:
        """The run ends at once: show what there is, whatever state the display is in."""
        with contextlib.suppress(Exception):
            self.close()

    def close(self) -> None:
        """Finish the table and the file, and say where the file is."""
        if self._shown:
            self._shown = False
            self.show(lambda: self._reporter.end(self.run))
        if self._writer:
            self._look_after()
        if self._writer:
            self._writer.close()
            self._writer = None
            if not self._nowhere:
                errors.tell(f"result file: {self.path}")


def open_default(what: str, backend: str, ranks: int) -> tuple[Path, Writer]:
    """A new file in the folder of runs, with a number where the name is taken."""
    utc = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    stem = f"{utc}-{what}-{backend}-{ranks}ranks"
    for number in range(1, 1000):
        path = Path(RUNS_FOLDER) / f"{stem}{f'-{number}' if number > 1 else ''}.jsonl"
        with contextlib.suppress(errors.UsageError):
            if not path.exists():
                return path, Writer(path)
        if not path.exists():
            break
    return path, Writer(path)  # raises what is wrong with the folder


def open_again(path: Path) -> tuple[Path, Writer] | None:
    """For a file that was taken away: one of the same name, else in a new temporary folder."""
    with contextlib.suppress(errors.TorchcollError):
        return path, Writer(path)
    with contextlib.suppress(errors.TorchcollError, OSError):
        again = Path(tempfile.mkdtemp(prefix="torchcoll-")) / path.name
        return again, Writer(again)
    return None


def _asked(case: Case) -> Case:
    """The case as the Spec has it: results of sub-groups name theirs, ``mod:2/0``."""
    return replace(case, group=case.group.split("/")[0]) if case.group else case

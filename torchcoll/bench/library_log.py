"""--library-log: the log of the communication library in a folder of its own, and what it chose.

NCCL reads NCCL_DEBUG once a process, and oneCCL its level, so the log is also on for timed calls;
an event says so. Logs are read between cases, so that a choice belongs to the case of its calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.bench.options import FOLDER_ENDING
from torchcoll.core.backends import NCCL, ONECCL, BackendEntry, of_family
from torchcoll.core.case import Case
from torchcoll.core.errors import UnavailableError, UsageError
from torchcoll.libraries.logged import LoggedCall

if TYPE_CHECKING:
    from torchcoll.bench.recorder import Recorder
    from torchcoll.bench.session import Rank, Session
    from torchcoll.bench.sweep import Sweep
    from torchcoll.core.result import CaseResult


# Library -> what its log needs. INIT has the ranks and the timings, TUNING the choices.
_VARIABLES = {
    NCCL: {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING"},
    ONECCL: {"CCL_LOG_LEVEL": "debug"},
}
_FILES = {NCCL: "NCCL_DEBUG_FILE", ONECCL: "CCL_LOG_FILE"}
_PERTURBED = {
    NCCL: "NCCL writes it to {0}, a line a call on rank 0 and inside the stamps: small sizes "
    "read slower than without --library-log",
    ONECCL: "oneCCL writes it to {0} at its debug level, many lines a call on every rank and "
    "inside the stamps: no time here is one of a run without --library-log",
}
_NOTHING_CHOSEN = (
    "it names no algorithm for any case: NCCL does from 2.20 on, and not for what is made of sends "
    "and receives"
)


class LibraryLog:
    """The logs of this rank's libraries."""

    def __init__(self) -> None:
        self._libraries: dict[str, str] = {}  # backend -> nccl or oneccl
        self._kept: list[str] = []  # variables that the user had set
        self._logs: dict[str, _Tail] = {}
        self._stdout: int | None = None  # a copy of descriptor 1, which is oneCCL's file now

    def ask_for(self, entries: Sequence[BackendEntry]) -> None:
        """Set the variables before the first call. Raises UnavailableError and UsageError."""
        families = {entry.name: entry.family for entry in entries}
        self._libraries = {name: library for name, library in families.items() if library}
        if not self._libraries:
            names = ", ".join(families)
            *first, last = (*of_family(NCCL), *of_family(ONECCL))
            able = f"a backend whose library writes a log: {', '.join(first)} or {last}"
            action = f"{names} writes no such log: leave --library-log out."
            raise UnavailableError("library-log", names, able, action)
        for library in sorted(set(self._libraries.values())):
            for name, value in _VARIABLES[library].items():
                recorded = os.environ.get(name)
                if recorded is not None:
                    _check_set(name, recorded)
                    self._kept.append(f"{name}={recorded}")
                os.environ.setdefault(name, value)
            if os.environ.get(_FILES[library]):
                raise _refusal(_FILES[library], os.environ[_FILES[library]], "it unset")

    def start(self, local: Rank, recorder: Recorder | None) -> None:
        """Agree on the folder of the logs, and write them there. Collective, after the header."""
        from torchcoll.core.opening import check_folder

        result = recorder and recorder.run.path
        folder = local.control.decide(result and str(Path(result).absolute()) + FOLDER_ENDING)
        if not folder:  # --resume of a file that is complete: nothing will run
            self._libraries = {}
            return
        failure = ""
        try:
            os.makedirs(folder, exist_ok=True)  # another host may have another file system
            check_folder(Path(folder))
            for library in set(self._libraries.values()):
                self._open(library, os.path.join(folder, f"{library}-rank{local.rank}.log"))
        except OSError as error:
            failure = error.strerror or str(error)
        if failed := local.control.failed(failure):
            where = "a folder that {} can write ({})".format(*failed)
            raise UsageError("library-log", folder, where)
        if recorder:
            for library in sorted(set(self._libraries.values())):
                text = _PERTURBED[library].format(os.path.basename(folder))
                recorder.event("library_log", text)
            if self._kept:
                recorder.event("library_log", f"kept as set: {', '.join(self._kept)}")

    def _open(self, library: str, path: str) -> None:
        self._logs[library] = _Tail(path, library)
        if library == NCCL:
            if os.path.lexists(path):  # on another host than rank 0's, whose folder is new
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            os.environ["NCCL_DEBUG_FILE"] = path.replace("%", "%%")
            return
        # oneCCL knows no file (2021, 2022): descriptor 1, which is not the table's, goes there.
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._stdout = os.dup(1)
        os.dup2(log, 1)
        os.close(log)

    def join(self, sweep: Sweep, case: Case, results: Sequence[CaseResult]) -> None:
        """Add to the results of a case what the library chose meanwhile. Collective."""
        library = self._libraries.get(case.backend)
        if library is None:
            return
        local = sweep.local
        calls = self._logs[library].calls() if local.rank == sweep.subgroup[0] else ()
        calls_of_ranks = local.control.gather([list(call) for call in calls])
        _, choices_of = _known(library)
        for result, subgroup in zip(results, sweep.subgroups, strict=False):
            result.choices = choices_of(
                result, [LoggedCall(*call) for call in calls_of_ranks[subgroup[0]]]
            )

    def keep_timings(self, session: Session) -> None:
        """Record NCCL's 'Init timings' of the run's first communicator as phases. Collective."""
        if NCCL not in self._libraries.values():
            return
        local = session.local
        gathered = local.control.gather(self._logs[NCCL].timings(local.ranks))

        def keep(recorder: Recorder) -> None:
            for name in gathered[0] if all(gathered) else ():
                ns = [round(1e9 * timings[name]) for timings in gathered]
                recorder.phase("nccl_init" if name == "total" else f"nccl_init_{name}", ns)
            results = [r for r in recorder.run.results if r.time_ns and r.ranks > 1]
            if results and not any(result.choices for result in results):
                recorder.event("library_log", _NOTHING_CHOSEN)

        session.on_rank_0(keep)

    def close(self) -> None:
        """Close the logs and restore descriptor 1."""
        for log in self._logs.values():
            log.close()
        if self._stdout is not None:
            flush_c()
            os.dup2(self._stdout, 1)
            os.close(self._stdout)
            self._stdout = None


class _Tail:
    """A log that grows, and may not exist yet."""

    def __init__(self, path: str, library: str) -> None:
        self.path, self.library = path, library
        self._file: Any = None
        self._rest = b""

    def calls(self) -> Iterable[LoggedCall]:
        """The calls in the new lines, each once."""
        flush_c()
        with contextlib.suppress(FileNotFoundError):
            self._file = self._file or open(self.path, "rb")  # noqa: SIM115
        if self._file is None:
            return ()
        lines = (self._rest + self._file.read()).splitlines(keepends=True)
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        reader = _known(self.library)[0](self.path)
        reader.read(lines)
        return dict.fromkeys(call for process in reader.processes for call in process.calls)

    def timings(self, ranks: int) -> dict[str, float]:
        """Seconds of each part of 'Init timings' of the first communicator of all ranks, or {}."""
        reader = _known(self.library)[0](self.path)
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as lines:
            reader.read(lines)
        members = [member for process in reader.processes for member in process.members]
        whole = (m.timings for m in members if m.nranks == ranks and "rest" in m.timings)
        return next(whole, {})

    def close(self) -> None:
        if self._file:
            self._file.close()


def _known(library: str) -> tuple[Any, Any]:
    """(Reader, choices_of) of the library."""
    if library == ONECCL:
        from torchcoll.libraries.oneccl import log as oneccl

        return oneccl.OneCclLogReader, oneccl.choices_of
    from torchcoll.libraries.nccl.algorithms import choices_of
    from torchcoll.libraries.nccl.log import NcclLogReader

    return NcclLogReader, choices_of


def _check_set(name: str, value: str) -> None:
    """Raise UsageError if the log would lack what is needed with the user's value."""
    levels = {level.strip().upper() for level in value.split(",")}
    if name == "NCCL_DEBUG" and levels.isdisjoint({"INFO", "TRACE"}):
        raise _refusal(name, value, "it unset, INFO or TRACE")
    if name == "NCCL_DEBUG_SUBSYS" and not ("ALL" in levels or levels >= {"INIT", "TUNING"}):
        raise _refusal(name, value, "it unset, ALL, or INIT and TUNING in it")
    if name == "CCL_LOG_LEVEL" and levels.isdisjoint({"DEBUG", "TRACE"}):
        raise _refusal(name, value, "it unset, debug or trace")


def _refusal(name: str, value: str, expected: str) -> UsageError:
    action = "--library-log sets it: unset it, or leave --library-log out."
    return UsageError(f"library-log: {name}", value, expected, action)


def flush_c() -> None:
    """Write what C's stdio still holds; it buffers more if descriptor 1 is a file."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)

"""The folder of a matrix: who works in it, and what of it counts.

::

    manifest.jsonl           what was asked, and the launches that ended
    <cell>-<launch>.jsonl    the result files that count
    aside/                   files of launches that do not: killed, failed, of another setting
    logs/                    what each launch wrote to stdout and stderr
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import socket
from collections import Counter
from pathlib import Path
from typing import Any

from torchcoll.core.errors import TorchcollError, UsageError
from torchcoll.core.records import MANIFEST
from torchcoll.matrix.manifest import Manifest
from torchcoll.matrix.plan import Job

_LOCK, _ASIDE, _LOGS = ".lock", "aside", "logs"


class Folder:
    """A context: the lock is held inside. Raises UsageError where DIR cannot be had."""

    def __init__(self, path: Path, spec: dict[str, Any]) -> None:
        self.path = path
        self._last: dict[Any, dict[str, Any]] = {}
        self._attempts: Counter[Any] = Counter()
        self._unavailable: set[Any] = set()
        try:
            for each in (path, path / _ASIDE, path / _LOGS):
                _make(each, path)
            self._lock = _locked(path / _LOCK)
            try:
                self.manifest = Manifest(path, spec)
                for record in self.manifest.records:
                    self._note(record)
            except BaseException:
                self._lock.close()
                raise
        except OSError as error:
            raise UsageError(
                "output", path, f"a folder that can be written ({error.strerror})"
            ) from None

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.manifest.close()
        self._lock.close()

    @property
    def mark(self) -> str:
        """Begins the marks of all launches of this folder."""
        return f"{os.path.realpath(self.path)}//"

    def result(self, job: Job) -> Path:
        return self.path / f"{job.stem}.jsonl"

    def log(self, job: Job) -> Path:
        return self.path / _LOGS / f"{job.stem}.log"

    def add(self, record: dict[str, Any]) -> None:
        """A launch that has ended. Raises TorchcollError when the disk refuses its line, or when
        there is no such folder any more.
        """
        self._check_there()
        self.manifest.append(record)
        self._note(record)

    def _note(self, record: dict[str, Any]) -> None:
        key = record.get("cell"), record.get("launch")
        self._last[key] = record
        self._attempts[key] += 1
        if record.get("status") == "unavailable":
            self._unavailable.add(record.get("cell"))

    def _check_there(self) -> None:
        """What is written to a manifest that somebody removed is on disk nowhere."""
        if not self.manifest.there():
            raise TorchcollError(
                f"folder {self.path}",
                "removed or replaced while its matrix ran",
                "one that stays",
                "Start the matrix again.",
            )

    def attempts(self, job: Job) -> int:
        return self._attempts[job.key]

    def last(self, job: Job) -> dict[str, Any] | None:
        """The latest attempt at this launch."""
        return self._last.get(job.key)

    def done(self, job: Job) -> bool:
        """Whether it has a file that counts."""
        last = self.last(job)
        return bool(last and last.get("file")) and self.result(job).exists()

    def unavailable(self, job: Job) -> bool:
        """Whether a launch of its cell found that this machine lacks what it forces."""
        return job.cell.name in self._unavailable

    def set_aside(self, job: Job) -> str | None:
        """Move a result file, and what lies beside it under its name (--library-log), to where no
        reader looks. Its path there, from the folder. Raises TorchcollError as ``add`` does.
        """
        self._check_there()
        name, number = self.result(job).name, 1
        found = [path for path in self.path.iterdir() if path.name.startswith(name)]
        aside = self.path / _ASIDE
        while any(aside.glob(f"{glob.escape(job.stem)}.{number}.jsonl*")):
            number += 1
        target = f"{job.stem}.{number}.jsonl"
        for path in found:
            path.rename(aside / f"{target}{path.name.removeprefix(name)}")
        return f"{_ASIDE}/{target}" if found else None


def _make(folder: Path, matrix: Path) -> None:
    if folder == matrix and folder.is_dir():
        names = {path.name for path in folder.iterdir() if path.name[0] != "."}
        strange = names - {_ASIDE, _LOGS}  # these come before the manifest
        if strange and MANIFEST not in names:
            raise UsageError(
                "output",
                f"{folder}, which holds {sorted(strange)[0]}",
                "a new or empty folder, or that of the same matrix",
            )
    folder.mkdir(parents=folder == matrix, exist_ok=True)


def _locked(path: Path) -> Any:
    """The open lock file, which names its holder. The system lets it go with the process."""
    file = open(path, "a+")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return file  # a file system without locks
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise UsageError(
            "output",
            f"{path.parent}, in which {holder} works",
            "one matrix at a time in a folder",
            "Wait for it, or end it.",
        ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def read_log(path: Path, start: int, nbytes: int = 4096) -> str:
    """The end of what was written to a log behind ``start``."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - nbytes))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def log_nbytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise TorchcollError(f"log {path}", error.strerror) from None

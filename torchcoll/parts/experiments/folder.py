"""``manifest.jsonl``: what was asked, and one line for each run that has ended.

It is only ever appended to, one line in one write, and on disk before the next run begins: being
killed at any moment loses at most the line of the run that was running. A line that was cut off
or damaged is skipped; that run runs again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import itertools
import os
import socket
from collections.abc import Iterator, Set
from pathlib import Path
from typing import IO, Any

from torchcoll.core.errors import DiskFullError, TorchcollError, UnreadableError, UsageError
from torchcoll.core.jsonl import LineWriter, read_objects
from torchcoll.core.opening import MAKE_ROOM, make_folder, move, not_written, open_to_write
from torchcoll.parts.experiments.blocks import PlannedRun
from torchcoll.reading.inputs import MANIFEST, MATRIX_SCHEMA

# Of a run. ok: every case is. failed: what ``reason`` says. timeout: ended by --cell-timeout.
# unavailable: the library says that this machine lacks what was forced. interrupted: by Ctrl-C or a
# signal.
STATUSES = ("ok", "failed", "timeout", "unavailable", "interrupted")


class Manifest:
    """The manifest of ``folder``, created with ``spec`` if it does not exist.

    records: its runs, in order. Raises UsageError if it was begun with another spec,
    UnreadableError for a file that is no manifest.
    """

    def __init__(self, folder: Path, spec: dict[str, Any]) -> None:
        self.path = folder / MANIFEST
        self.records: list[dict[str, Any]] = []
        self._lines = LineWriter()
        header = self._lines.line({"record": "matrix", "schema": MATRIX_SCHEMA, "spec": spec})
        self._file = open_to_write(self.path, "ab", buffering=0)
        try:
            there = self.path.read_bytes()
            # Else a matrix that was killed while it wrote the first line, or a new one.
            if not (begun := header.startswith(there)):
                lines = list(_lines(self.path))
                check_same(folder, lines[0], spec)
                self.records = [line for line in lines[1:] if _is_run(line)]
                self._lines = LineWriter.continuing(self.path)
            if begun:
                self._write(header[len(there) :])
            elif not there.endswith(b"\n"):
                self._write(b"\n")  # what was cut off stays a line of its own
        except BaseException:
            self._file.close()
            raise

    def there(self) -> bool:
        """Whether the open file is still the one of that name."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except OSError:
            return False

    def append(self, record: dict[str, Any]) -> None:
        """One run. Raises TorchcollError when the disk refuses it."""
        self._write(self._lines.line({"record": "run", **record}))

    def _write(self, text: bytes) -> None:
        rest = memoryview(text)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            expected = "a disk that takes the next line"
            raise DiskFullError(str(self.path), error.strerror, expected, MAKE_ROOM) from None

    def close(self) -> None:
        self._file.close()


def _is_run(line: dict[str, Any]) -> bool:
    """Whether it is a run as torchcoll writes it; one that was edited by hand runs again."""
    kinds = {"cell": str, "run": int, "status": str, "reason": str}
    return (
        line.get("record") == "run"
        and all(isinstance(line.get(name), kind) for name, kind in kinds.items())
        and isinstance(line.get("file"), (str, type(None)))
        and _is_seconds(line.get("seconds"))
    )


def _is_seconds(value: object) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value < 1e9)  # type: ignore[operator]


def is_plan(spec: Any) -> bool:
    """Whether the command is a list of words, and each cell has a name and its settings."""
    if not isinstance(spec, dict):
        return False
    command, cells = spec.get("command"), spec.get("cells")
    return (
        isinstance(command, list)
        and all(isinstance(argument, str) for argument in command)
        and isinstance(cells, list)
        and all(isinstance(cell, dict) and isinstance(cell.get("name"), str) for cell in cells)
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a manifest without those that cannot be read; the first must be its header."""
    for number, record in enumerate(read_objects(path, "manifest")):
        ours = record.get("schema") == MATRIX_SCHEMA and is_plan(record.get("spec"))
        if number == 0 and not ours:
            action = "Name another folder with -o, or remove the file where it is of no use."
            raise UnreadableError("manifest", path, f"one of {MATRIX_SCHEMA}", action)
        yield record


Stored = Set[tuple[str, int]]  # (cell, run)


def stored(folder: Path) -> tuple[dict[str, Any], Stored] | None:
    """Read (header, usable runs) of a folder; None without a manifest. Raises UnreadableError."""
    path = folder / MANIFEST
    if not path.exists() or not path.stat().st_size:
        return None
    header, *records = _lines(path)
    last = {(r["cell"], r["run"]): r for r in records if _is_run(r)}
    there = {key for key, r in last.items() if r["file"] and (folder / r["file"]).exists()}
    return header, there


def cells(folder: str) -> list[str]:
    """The cells of a matrix that have a result; none of any other path."""
    with contextlib.suppress(TorchcollError, OSError):
        if (plan := stored(Path(folder))) is not None:
            return sorted({cell for cell, _ in plan[1]})
    return []


def check_same(folder: Path, header: dict[str, Any], spec: dict[str, Any]) -> None:
    """Raises UsageError naming what differs. More or fewer runs are no difference."""
    earlier = header["spec"]
    kinds = ["versus" if "versus" in each else "matrix" for each in (spec, earlier)]
    arguments = itertools.zip_longest(spec["command"], earlier["command"], fillvalue="nothing")
    names = [{cell["name"]: cell for cell in each["cells"]} for each in (spec, earlier)]
    pairs = [
        ("runs", *(f"those of a {kind}" for kind in kinds)),
        *(("command", *pair) for pair in arguments),
        ("cells", *(", ".join(sorted(cells)) for cells in names)),
        *(
            (f"cell {name}", _stated(cell), _stated(names[1].get(name, {})))
            for name, cell in names[0].items()
        ),
    ]
    for name, current, theirs in pairs:
        if current != theirs:
            raise UsageError(
                f"{name} of {folder}",
                current,
                f"{theirs}, as it was begun with",
                "Start with the same again, or name another folder with -o.",
            )


def _stated(cell: dict[str, Any]) -> str:
    parts = [cell.get(name) for name in ("axes", "variables")]
    settings = {k: v for part in parts if isinstance(part, dict) for k, v in part.items()}
    argv = [f"{k}={v}" if v is not None else f"no {k}" for k, v in settings.items()]
    arguments = cell.get("arguments")
    more = arguments if isinstance(arguments, list) else []
    return " ".join([*argv, *map(str, more)])


# The folder of a matrix:
#
#     manifest.jsonl           what was asked, and the runs that ended
#     <cell>-<run>.jsonl    the result files that count
#     aside/                   files of runs that do not: killed, failed, of another setting
#     logs/                    what each run wrote to stdout and stderr

_LOCK, _ASIDE, _LOGS = ".lock", "aside", "logs"


class Folder:
    """A context: the lock is held inside. Raises UsageError where DIR cannot be had."""

    def __init__(self, path: Path, spec: dict[str, Any]) -> None:
        if str(path) == "-":
            raise UsageError("output", path, "a folder")
        self.path = path
        self._last: dict[Any, dict[str, Any]] = {}
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
            raise not_written("output", path, error, "a folder that can be written") from None

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.manifest.close()
        self._lock.close()

    @property
    def mark(self) -> str:
        """Begins the marks of all runs of this folder."""
        return f"{os.path.realpath(self.path)}//"

    def result(self, job: PlannedRun) -> Path:
        return self.path / f"{job.stem}.jsonl"

    def log(self, job: PlannedRun) -> Path:
        return self.path / _LOGS / f"{job.stem}.log"

    def open_log(self, path: Path) -> IO[bytes]:
        """To write to its end. Raises TorchcollError where that cannot be."""
        try:
            return open_to_write(path, "ab", folder=self.path)
        except OSError as error:
            raise TorchcollError(
                "log", path, f"a file that can be written ({error.strerror})"
            ) from None

    def add(self, record: dict[str, Any]) -> None:
        """Record a run that ended. Raises TorchcollError if the disk refuses, or the folder is
        gone.
        """
        self._check_there()
        self.manifest.append(record)
        self._note(record)

    def _note(self, record: dict[str, Any]) -> None:
        key = record.get("cell"), record.get("run")
        self._last[key] = record
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

    def last(self, job: PlannedRun) -> dict[str, Any] | None:
        """The latest attempt at this run."""
        return self._last.get(job.key)

    def done(self, job: PlannedRun) -> bool:
        """Whether it has a file that counts."""
        last = self.last(job)
        return bool(last and last.get("file")) and self.result(job).exists()

    @property
    def has_results(self) -> bool:
        """Whether any run has a file that counts."""
        return any(record.get("file") for record in self._last.values())

    def unavailable(self, job: PlannedRun) -> bool:
        """Whether a run of its cell found that this machine lacks what it forces."""
        return job.cell.name in self._unavailable

    def set_aside(self, job: PlannedRun) -> str | None:
        """Move a result file and the files next to it to where no reader looks; returns the new
        path. Raises TorchcollError.
        """
        self._check_there()
        name, number = self.result(job).name, 1
        paths = [path for path in self.path.iterdir() if path.name.startswith(name)]
        aside = self.path / _ASIDE
        while any(aside.glob(f"{glob.escape(job.stem)}.{number}.jsonl*")):
            number += 1
        target = f"{job.stem}.{number}.jsonl"
        for path in paths:
            move(path, aside / f"{target}{path.name.removeprefix(name)}", self.path)
        return f"{_ASIDE}/{target}" if paths else None


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
    if folder == matrix:  # a link that the user named is followed
        folder.mkdir(parents=True, exist_ok=True)
    else:
        make_folder(folder)


def _locked(path: Path) -> Any:
    """The open lock file, which names its holder. The system lets it go with the process."""
    file = open_to_write(path, "a+")
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


def read_log(path: Path, start: int, size_bytes: int = 4096) -> str:
    """The end of what was written to a log behind ``start``."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - size_bytes))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def log_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise TorchcollError(f"log {path}", error.strerror) from None

"""``torchcoll collect``: result files into a store, each once, however often it is called; and old
runs out of it.
"""

from __future__ import annotations

import functools
import os
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import and_, func, or_, select

from torchcoll.core.errors import ForeignError, UnreadableError, UsageError, missing_file
from torchcoll.core.file import files_of_run, is_traffic
from torchcoll.core.opening import is_descriptor
from torchcoll.core.result import Run
from torchcoll.parts.fleet.address import StoreAddress, is_store
from torchcoll.parts.fleet.connecting import Database
from torchcoll.parts.fleet.records import files_of, runs_with_paths, summarise_run
from torchcoll.parts.fleet.schema import RUNS, prepare
from torchcoll.parts.fleet.writer import (
    RunWithCases,
    StoreWriter,
    clean_text,
    remove_runs,
    storable,
)
from torchcoll.reading.inputs import Inside, is_manifest, split_label

# Files of one transaction. They are read before it begins: other collectors write meanwhile.
_FILES = 100
_CONTINUATION = re.compile(r"(.+)\.\d+(\.gz)?")


@dataclass(frozen=True)
class InputFile:
    """label: of ``label=PATH``. named: the user named the file itself, no folder or pattern."""

    path: str
    label: str = ""
    named: bool = True


@dataclass
class Collected:
    """counts: as of StoreWriter.write. unreadable: a message for each file. no_results: files of
    folders and patterns that are not results.
    """

    files: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    no_results: list[str] = field(default_factory=list)


def collect(arguments: Sequence[str], address: StoreAddress) -> Collected:
    """Writes the runs of these files into a store, and returns what was new.

    A file whose size and time of change are those of an earlier collect on this host is not opened.
    A file that cannot be read is left out. Runs are committed together
    with the files that they come from. Raises UnreadableError if there is no file at all, and as
    StoreWriter does.
    """
    collected = Collected()
    files = list(_list_files(arguments, collected.unreadable))
    if not files and collected.unreadable:
        return collected
    if not files:
        raise UnreadableError("result files", ", ".join(arguments), "at least one")
    writer = StoreWriter(address)
    for start in range(0, len(files), _FILES):
        _collect_some(files[start : start + _FILES], writer, collected)
    return collected


def _collect_some(files: Sequence[InputFile], writer: StoreWriter, collected: Collected) -> None:
    host = socket.gethostname()
    stored_files = writer.known_files(host, [clean_text(file.path) for file in files])
    runs: list[RunWithCases] = []
    records: list[dict[str, Any]] = []
    for file in files:
        path, label = clean_text(file.path), clean_text(file.label)
        stored = stored_files.get((path, label))
        try:
            states = [os.stat(part) for part in files_of_run(file.path)]
            signature = ",".join(f"{each.st_size}:{each.st_mtime_ns}" for each in states)
            if stored and stored.signature == signature:
                collected.counts["unchanged"] += stored.runs
            else:
                summaries = _summaries_in(file)
                runs += summaries
                record = {"host": host, "path": path, "label": label, "signature": signature}
                records.append({**record, "runs": len(summaries)})
            collected.files += 1
        except ForeignError as error:
            if file.named:
                collected.unreadable.append(str(error))
            else:
                collected.no_results.append(file.path)
        except (UnreadableError, UsageError) as error:
            collected.unreadable.append(str(error))
        except OSError as error:
            expected = f"a file that can be used ({error.strerror})"
            collected.unreadable.append(str(UnreadableError("file", file.path, expected)))
    if records:
        collected.counts += writer.write(runs, records)


def _list_files(arguments: Iterable[str], unreadable: list[str]) -> Iterator[InputFile]:
    """The files of the arguments, each once; a file of --resume is read with the first of its run.
    Adds a message to ``unreadable`` for each argument that names no file.

    Raises UnreadableError for an argument that is no file, folder or pattern.
    """
    seen: set[tuple[str, str]] = set()
    for argument in arguments:
        if argument == "-" or is_descriptor(argument) or is_store(argument):
            expected = "result files, folders or quoted patterns"
            raise UnreadableError("path", argument, expected, "A store is named with --into.")
        label, path = split_label(argument)
        try:
            sources = files_of(path)
        except UnreadableError as error:
            unreadable.append(str(error))
            continue
        for source in sources:
            assert not isinstance(source, Run)  # what a path stands for
            if not os.path.exists(source):
                missing = missing_file(path)
                unreadable.append(str(missing))
                continue
            first = _first_of_run(os.path.abspath(source))
            if (first, label) not in seen:
                seen.add((first, label))
                yield InputFile(first, label, named=not isinstance(source, Inside))


def _first_of_run(path: str) -> str:
    """FILE of FILE.2, if FILE is there and FILE.2 continues it; other paths as they are."""
    match = _CONTINUATION.fullmatch(path)
    if match:
        for first in (match[1], f"{match[1]}.gz"):
            if os.path.isfile(first) and Path(path) in files_of_run(first):
                return first
    return path


def _summaries_in(file: InputFile) -> list[RunWithCases]:
    if is_store(file.path) or is_manifest(file.path) or is_traffic(file.path):
        raise ForeignError("file", file.path, "a result file, or output of another tool")
    argument = f"{file.label}={file.path}" if file.label else file.path
    try:
        runs = runs_with_paths([argument])
        return [storable(*summarise_run(run, file.path)) for run, _ in runs]
    except (UnreadableError, UsageError, OSError):
        raise
    except Exception as error:  # one odd file must not cost a night the results of all other nodes
        value = f"{file.path} ({type(error).__name__}: {error})"
        raise UnreadableError("file", value, "a file that can be summarised") from error


_BATCH = 2000  # runs in one transaction: collectors wait no longer than for that


def prune(address: StoreAddress, before_us: int) -> tuple[int, int, int]:
    """Removes the runs that began and were received before a time; returns how many runs and cases
    that were, and how many runs are left.

    Where one of the two times is not recorded the other counts; a run with neither stays. The
    files of removed runs stay known, so that the next collect does not bring the runs back.
    """
    database = Database(address)
    database.write(functools.partial(prepare, name=address.name))
    start, received = RUNS.c.start_us, RUNS.c.received_us
    older = and_(
        or_(start < before_us, and_(start.is_(None), received.is_not(None))),
        or_(received < before_us, received.is_(None)),
    )
    with database.reading() as connection:
        ids = list(connection.execute(select(RUNS.c.id).where(older)).scalars())
        total = connection.execute(select(func.count()).select_from(RUNS)).scalar() or 0
    cases = 0
    for first in range(0, len(ids), _BATCH):
        batch = ids[first : first + _BATCH]
        cases += database.write(functools.partial(remove_runs, ids=batch))
    return len(ids), cases, total - len(ids)

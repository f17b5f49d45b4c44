"""``torchcoll collect``: result files into a store, each once, however often it is called; and old
runs out of it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import ColumnElement, Connection, and_, delete, func, or_, select

from torchcoll.core.errors import ForeignError, UnreadableError, UsageError, nearest_file
from torchcoll.core.file import files_of_run, is_traffic
from torchcoll.core.opening import is_descriptor, open_to_read
from torchcoll.core.result import Run
from torchcoll.core.units import counted
from torchcoll.parts.fleet.address import StoreAddress, is_store
from torchcoll.parts.fleet.connecting import Database
from torchcoll.parts.fleet.records import runs_with_paths, summarise_run
from torchcoll.parts.fleet.schema import (
    ENVIRONMENTS,
    FILES,
    RUNS,
    check_current,
    prepare,
    refresh_nights,
)
from torchcoll.parts.fleet.writer import (
    FileRecord,
    RunWithCases,
    StoreWriter,
    WriteCounts,
    clean_text,
    remove_runs,
    storable,
)
from torchcoll.reading.inputs import Inside, expand, is_manifest, split_label

# What is read before it is written: other collectors write meanwhile, and what a kill undoes is
# read again by the next collect.
_MOST_RUNS = 500
_MOST_CASES = 20_000
_LONGEST_S = 5.0
_LOOKED_UP = 500  # files asked for in one query
_CONTINUATION = re.compile(r"(.+)\.\d+(\.gz)?")
_BLOCK = 1 << 20

OnError = Callable[[str], None]


@dataclass(frozen=True)
class InputFile:
    """A file to collect. label: that of ``label=PATH``. named: the user named the file itself, not
    a folder or a pattern.
    """

    path: str
    label: str = ""
    named: bool = True


@dataclass
class Collected:
    """What a collect did. files: how many files hold runs. unreadable: a message for each file that
    could not be read. no_results: files of folders and patterns that are not results.
    """

    files: int = 0
    counts: WriteCounts = field(default_factory=WriteCounts)
    unreadable: list[str] = field(default_factory=list)
    no_results: list[str] = field(default_factory=list)


def collect(
    arguments: Sequence[str],
    address: StoreAddress,
    *,
    reread: bool = False,
    on_error: OnError | None = None,
) -> Collected:
    """Writes the runs of these files into a store, and returns what was new.

    A file whose size and time of change are those of an earlier collect on this host is not opened,
    and one whose content was collected before, under any name, is not parsed; reread: read these
    files too, and replace their runs. A file that cannot be read is reported to ``on_error`` and
    left out. Runs are committed a few hundred at a time, together with the files that they come
    from. Raises UnreadableError if there is no file at all, and as StoreWriter does.
    """
    collected = Collected()

    def report(message: str) -> None:
        collected.unreadable.append(message)
        if on_error is not None:
            on_error(message)

    files = list(_list_files(arguments, report))
    if not files and collected.unreadable:
        return collected
    if not files:
        raise UnreadableError("result files", ", ".join(arguments), "at least one")
    with StoreWriter(address) as writer:
        collector = _Collector(writer, reread, collected, report)
        for start in range(0, len(files), _LOOKED_UP):
            collector.add_files(files[start : start + _LOOKED_UP])
        collector.flush()
        writer.refresh_views()
    return collected


class _Collector:
    def __init__(
        self, writer: StoreWriter, reread: bool, collected: Collected, report: OnError
    ) -> None:
        self.writer = writer
        self.reread = reread
        self.collected = collected
        self.report = report
        self.host = socket.gethostname()
        self.runs: list[RunWithCases] = []
        self.records: list[FileRecord] = []
        self.cases = 0
        self.since = time.monotonic()

    def add_files(self, files: Sequence[InputFile]) -> None:
        collected = self.writer.known_files(self.host, [clean_text(file.path) for file in files])
        for file in files:
            try:
                self._add(file, collected.get((clean_text(file.path), clean_text(file.label))))
            except ForeignError as error:
                if file.named:
                    self.report(str(error))
                else:
                    self.collected.no_results.append(file.path)
            except (UnreadableError, UsageError) as error:
                self.report(str(error))
            except OSError as error:
                expected = f"a file that can be used ({error.strerror})"
                self.report(str(UnreadableError("file", file.path, expected)))
            late = time.monotonic() - self.since > _LONGEST_S
            if late or len(self.runs) >= _MOST_RUNS or self.cases >= _MOST_CASES:
                self.flush()

    def _add(self, file: InputFile, stored: FileRecord | None) -> None:
        parts = files_of_run(file.path)
        states = [os.stat(part) for part in parts]
        signature = ",".join(f"{each.st_size}:{each.st_mtime_ns}" for each in states)
        if stored and stored.signature == signature and not self.reread:
            self._count_unchanged(stored.runs)
            return
        if is_store(file.path) or is_manifest(file.path) or is_traffic(file.path):
            expected = "a result file, or output of another tool"
            raise ForeignError("file", file.path, expected)
        size = states[0].st_size
        earlier = stored.size_bytes if stored and stored.size_bytes < size else 0
        sha256, beginning = _hash_file(parts[0], earlier)
        hashes = [sha256, *(_hash_file(part)[0] for part in parts[1:])]
        fingerprint = hashlib.sha256(
            "\0".join([clean_text(file.label), *hashes]).encode()
        ).hexdigest()
        runs = None if self.reread else self.writer.runs_of_content(fingerprint)
        if runs is not None:
            self._count_unchanged(runs)
        else:
            summaries = _summaries_in(file)
            runs = len(summaries)
            self.collected.files += 1
            self.runs += summaries
            self.cases += sum(len(cases) for _, cases in summaries)
        self.records.append(
            FileRecord(
                host=self.host,
                path=clean_text(file.path),
                label=clean_text(file.label),
                signature=signature,
                fingerprint=fingerprint,
                size_bytes=size,
                sha256=sha256,
                runs=runs,
                grown_from=stored.sha256 if stored and beginning == stored.sha256 else "",
            )
        )

    def _count_unchanged(self, runs: int) -> None:
        self.collected.files += 1
        self.collected.counts.unchanged += runs

    def flush(self) -> None:
        if self.records:
            self.collected.counts += self.writer.write(self.runs, self.records, reread=self.reread)
        self.runs, self.records, self.cases = [], [], 0
        self.since = time.monotonic()


def _list_files(arguments: Iterable[str], report: OnError) -> Iterator[InputFile]:
    """The files of the arguments, each once; a file of --resume is read with the first of its run.

    Raises UnreadableError for an argument that is no file, folder or pattern.
    """
    seen: set[tuple[str, str]] = set()
    for argument in arguments:
        if argument == "-" or is_descriptor(argument) or is_store(argument):
            expected = "result files, folders or quoted patterns"
            raise UnreadableError("path", argument, expected, "A store is named with --into.")
        label, path = split_label(argument)
        try:
            sources = expand(path)
        except UnreadableError as error:
            report(str(error))
            continue
        for source in sources:
            assert not isinstance(source, Run)  # what a path stands for
            if not os.path.exists(source):
                missing = UnreadableError("file", path, "a file that exists", nearest_file(path))
                report(str(missing))
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
    argument = f"{file.label}={file.path}" if file.label else file.path
    try:
        runs = runs_with_paths([argument])
        return [storable(*summarise_run(run, file.path)) for run, _ in runs]
    except (UnreadableError, UsageError, OSError):
        raise
    except Exception as error:  # one odd file must not cost a night the results of all other nodes
        value = f"{file.path} ({type(error).__name__}: {error})"
        raise UnreadableError("file", value, "a file that can be summarised") from error


def _hash_file(path: Path, beginning: int = 0) -> tuple[str, str]:
    """The SHA-256 of a file, and of so many bytes of its beginning ('' for none)."""
    digest = hashlib.sha256()
    first = ""
    with open_to_read(path) as file:
        if beginning:
            left = beginning
            while left and (block := file.read(min(left, _BLOCK))):
                digest.update(block)
                left -= len(block)
            first = digest.hexdigest()
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest(), first


_BATCH = 2000  # runs in one transaction: collectors wait no longer than for that


@dataclass
class Pruned:
    """What was removed (or would be), and what is left. spared: old runs that were asked to stay.
    unknown: run ids to spare that the store does not have.
    """

    runs: int = 0
    cases: int = 0
    spared: int = 0
    left: int = 0
    unknown: tuple[str, ...] = ()


def prune(
    address: StoreAddress, before_us: int, spare: Collection[str] = (), *, dry_run: bool = False
) -> Pruned:
    """Removes the runs that began and were received before a time, but for those to spare.

    Where one of the two times is not recorded the other counts; a run with neither stays. The
    files of removed runs stay known, so that the next collect does not bring the runs back, until
    they are deleted from this host. Raises as ``Database.write`` and ``schema.prepare`` do,
    and UsageError where none of the runs to spare is in the store.
    """
    database = Database(address)
    if not dry_run:
        database.write(functools.partial(prepare, name=address.name))
    with database.reading() as connection:
        check_current(connection, address.name)
        rows = connection.execute(
            select(RUNS.c.id, RUNS.c.run_id, RUNS.c.case_count).where(_older(before_us))
        ).all()
        total = connection.execute(select(func.count()).select_from(RUNS)).scalar() or 0
        stored = {
            run_id
            for run_id in spare
            if connection.execute(select(RUNS.c.id).where(RUNS.c.run_id == run_id)).first()
        }
        doomed = {row.id: int(row.case_count) for row in rows if row.run_id not in stored}
    if spare and not stored:  # the wrong file: it would protect nothing
        value = f"{counted(len(set(spare)), 'line')}, none a run of {address.name}"
        raise UsageError("spare", value, "ids of runs in the store")
    pruned = Pruned(spared=len(rows) - len(doomed), unknown=tuple(sorted(set(spare) - stored)))
    if dry_run:
        pruned.runs, pruned.cases = len(doomed), sum(doomed.values())
    else:
        ids = list(doomed)
        for start in range(0, len(ids), _BATCH):
            batch = ids[start : start + _BATCH]
            pruned.cases += database.write(functools.partial(remove_runs, ids=batch))
            pruned.runs += len(batch)
        database.write(_remove_unused)
        while database.write(refresh_nights):
            pass
    pruned.left = total - pruned.runs
    return pruned


def _older(before_us: int) -> ColumnElement[bool]:
    start, received = RUNS.c.start_us, RUNS.c.received_us
    return and_(
        or_(start < before_us, and_(start.is_(None), received.is_not(None))),
        or_(received < before_us, received.is_(None)),
    )


def _remove_unused(connection: Connection) -> None:
    """Removes environments of no run, and files that have gone from this host."""
    used = select(RUNS.c.environment_id)
    connection.execute(delete(ENVIRONMENTS).where(ENVIRONMENTS.c.id.not_in(used)))
    host = socket.gethostname()
    paths = connection.execute(select(FILES.c.path).where(FILES.c.host == host).distinct())
    for path in [row.path for row in paths if not os.path.lexists(row.path)]:
        connection.execute(delete(FILES).where(FILES.c.host == host, FILES.c.path == path))

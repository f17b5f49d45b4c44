"""``torchcoll collect``: result files into a store, each once, however often it is called."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchcoll.core.errors import ForeignError, UnreadableError, UsageError, nearest_file
from torchcoll.core.file import files_of_run, is_traffic
from torchcoll.core.opening import is_descriptor, open_to_read
from torchcoll.core.result import Run
from torchcoll.parts.fleet.address import StoreAddress, is_store
from torchcoll.parts.fleet.from_files import runs_with_paths
from torchcoll.parts.fleet.records import summarise_run
from torchcoll.parts.fleet.writer import (
    FileRecord,
    RunWithCases,
    StoreWriter,
    WriteCounts,
    clean_text,
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

"""Reads the files below a folder with the readers of this package.

One compressed file at a time is unpacked: a node's temporary folder may be memory.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import stat
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from types import ModuleType

from torchcoll.core.bounds import GZIP, UnpackBudget
from torchcoll.core.errors import (
    TorchcollError,
    UnreadableError,
    brief,
    cut_text,
    nearest_file,
    one_line,
)
from torchcoll.core.opening import open_to_read, unpack
from torchcoll.core.other_commands import reading_commands
from torchcoll.core.units import counted, format_size
from torchcoll.core.variables import masked
from torchcoll.parts.postmortem.evidence import (
    CallSeen,
    FileRead,
    JobEvidence,
    identities_of_path,
    rank_of_path,
)
from torchcoll.parts.postmortem.job_clusters import FileEvidence, jobs_of
from torchcoll.parts.postmortem.log_lines import temporary_copy

# In the order in which they are asked. Formats that are recognised by less evidence come later.
READERS = (
    "call_evidence",
    "stack_evidence",
    "log_evidence",
)
_BEGIN_BYTES = 1 << 16  # of a file, for recognizes()
_MOST_FILES = 100_000
_MOST_DEPTH = 16  # folders below folders
# Calls that are kept, 500 bytes each. Of every rank the last ones, at least so many.
_MOST_CALLS, _FEWEST_CALLS_OF_RANK = 400_000, 64
_SAYS_NOTHING = "says nothing about what happened"
_LOGS = (".log", ".err", ".out", ".txt")


@dataclass
class FolderEvidence:
    """What the files of a folder say. left_out, unread: (path, why)."""

    path: str
    jobs: list[JobEvidence] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)  # files that say nothing
    unread: list[tuple[str, str]] = field(default_factory=list)  # that may have said something
    files: int = 0  # how many there are

    def add_unread(self, shown: str, why: str) -> None:
        """Note a file that could not be read, or only in part."""
        self.left_out.append((shown, why))
        self.unread.append((shown, why))


def read_folder(path: str, progress: Callable[[str], None] | None = None) -> FolderEvidence:
    """Read all files below a folder, or a single file. progress: gets a text before each file.

    Raises UnreadableError if there is no such folder or file, or none of its files says anything.
    """
    folder = FolderEvidence(path)
    readers = [importlib.import_module(f"torchcoll.parts.postmortem.{name}") for name in READERS]
    recognized: list[tuple[str, str, ModuleType]] = []
    empty: list[str] = []
    for shown, real in files_of(path, folder):
        folder.files += 1
        try:
            if not os.path.getsize(real):
                empty.append(shown)
                continue
            begin = _begin(real, shown)
            reader = next((r for r in readers if r.recognizes(Path(real), begin)), None)
        except (OSError, TorchcollError) as error:
            folder.add_unread(shown, _why(error))
            continue
        if reader is None:
            names = reading_commands(begin)
            why = (
                f"torchcoll {names[0]} reads it" if names else "not a format that postmortem reads"
            )
            folder.left_out.append((shown, why))
        else:
            recognized.append((shown, real, reader))
    calls_of_file = _MOST_CALLS // max(1, len(recognized))
    files = [FileEvidence(shown, item) for shown, item in _empty_logs(empty, folder.left_out)]
    for number, (shown, real, reader) in enumerate(recognized, 1):
        if progress is not None:
            size = format_size(os.path.getsize(real))
            progress(f"reading {one_line(shown)} ({size}), file {number} of {len(recognized)}")
        for item in _read(shown, real, reader, folder):
            _keep_last_calls(item, calls_of_file)
            files.append(FileEvidence(shown, item))
    if not files:
        raise _nothing_readable(folder, [real for _, real, _ in recognized])
    folder.jobs = jobs_of(files)
    return folder


def files_of(path: str, evidence: FolderEvidence) -> Iterator[tuple[str, str]]:
    """Yields (path relative to the folder, path) of each file, in the order of their names.

    Links are followed. A file or folder with several names is read once.
    """
    if not os.path.isdir(path):
        if not os.path.lexists(path):
            raise UnreadableError("folder", path, "a folder that exists", nearest_file(path))
        yield os.path.basename(path), path
        return

    def unreadable(error: OSError) -> None:
        if error.filename == path:
            raise UnreadableError("folder", path, f"one to read ({error.strerror})") from None
        evidence.add_unread(os.path.relpath(error.filename, path), _why(error))

    seen = {_identity(os.stat(path))}
    count = 0
    for folder, subfolders, names in os.walk(path, onerror=unreadable, followlinks=True):
        kept = []
        for name in sorted([*subfolders, *names]):
            real = os.path.join(folder, name)
            shown = os.path.relpath(real, path)
            try:
                status = os.stat(real)
            except OSError as error:  # a broken link
                evidence.left_out.append((shown, _why(error)))
                continue
            if _identity(status) in seen:
                evidence.left_out.append((shown, "the same file or folder as another one"))
                continue
            seen.add(_identity(status))
            if stat.S_ISDIR(status.st_mode) and shown.count(os.sep) == _MOST_DEPTH:
                evidence.add_unread(shown, f"more than {_MOST_DEPTH} folders deep")
            elif stat.S_ISDIR(status.st_mode):
                kept.append(name)
            elif not stat.S_ISREG(status.st_mode):
                evidence.left_out.append((shown, "not a regular file"))
            elif count == _MOST_FILES:
                evidence.add_unread(shown, f"more than {_MOST_FILES} files: name a subfolder")
            else:
                count += 1
                yield shown, real
        subfolders[:] = kept


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _begin(path: str, shown: str) -> bytes:
    """The first 64 KiB of a file, or of what it unpacks to."""
    with open_to_read(path) as source:
        if not source.peek(2).startswith(GZIP):
            return source.read(_BEGIN_BYTES)
        begin = b""
        for piece in _unpacked(source, shown):
            begin += piece
            if len(begin) >= _BEGIN_BYTES:
                break
        if not begin:
            raise UnreadableError("file", shown, "a .gz that can be unpacked")
        return begin[:_BEGIN_BYTES]


@contextlib.contextmanager
def _plain(path: str, shown: str) -> Iterator[str]:
    """The path of the file, or of a plain copy if it is compressed with gzip. The copy is removed
    at the end.
    """
    with open_to_read(path) as source:
        if not source.peek(2).startswith(GZIP):
            yield path
            return
        with temporary_copy(_unpacked(source, shown)) as copy:
            yield copy


def _unpacked(source: BufferedReader, shown: str) -> Iterator[bytes]:
    """What a gzip file unpacks to; of a damaged one, or one without an end, what it has."""
    with contextlib.suppress(zlib.error, EOFError):
        yield from unpack(source, UnpackBudget("file", shown))


def _empty_logs(
    paths: list[str], left_out: list[tuple[str, str]]
) -> Iterator[tuple[str, JobEvidence]]:
    """The empty files that are logs of a rank: it had nothing to complain of."""
    for shown in paths:
        rank = rank_of_path(shown)
        if rank is None or not shown.endswith(_LOGS):
            left_out.append((shown, "empty"))
        else:
            what = "stdout" if "stdout" in os.path.basename(shown) else "log"
            evidence = JobEvidence(identities=identities_of_path(shown))
            evidence.files = [FileRead(shown, what, (rank,))]
            yield shown, evidence


def _read(shown: str, path: str, reader: ModuleType, folder: FolderEvidence) -> list[JobEvidence]:
    try:
        with _plain(path, shown) as readable:
            evidence: list[JobEvidence] = reader.read_evidence(Path(readable), shown)
        for item in evidence:
            item.check_ranks()
    except (OSError, TorchcollError) as error:
        folder.add_unread(shown, _why(error))
        return []
    except (MemoryError, RecursionError, ArithmeticError, LookupError, TypeError, ValueError) as e:
        # One damaged file must not hide what the others say.
        folder.add_unread(shown, f"damaged ({type(e).__name__}: {brief(e)})")
        return []
    kept = []
    for item in evidence:
        says = item.calls or item.events or item.last_number or item.nodes or item.groups
        if says or item.texts or any(seen.ranks for seen in item.files):
            kept.append(item)
    if not kept:
        folder.left_out.append((shown, _SAYS_NOTHING))
    return kept


def _keep_last_calls(evidence: JobEvidence, most: int) -> None:
    """Drop the calls of each rank before its last ones, and keep the number of its last call."""
    for call in evidence.calls:
        if call.peer is not None:
            continue
        key = (call.rank, call.group)
        evidence.last_number[key] = max(call.number, evidence.last_number.get(key, 0))
        if call.reliable_state and call.state == "completed":
            evidence.last_completed[key] = max(call.number, evidence.last_completed.get(key, 0))
    calls_of: dict[int, list[CallSeen]] = defaultdict(list)
    for call in evidence.calls:
        calls_of[call.rank].append(call)
    most = max(_FEWEST_CALLS_OF_RANK, most // max(1, len(calls_of)))
    evidence.calls = [call for calls in calls_of.values() for call in calls[-most:]]


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror or brief(error)})"
    return one_line(error)


_FAILURE = re.compile(rb"(?i)\b(?:error|fault|fatal|failed|failure|exception|aborted|panic)\b")


def _first_failure(paths: Sequence[str]) -> str:
    """The first line that sounds like a failure, of files that say nothing which is known."""
    for path in paths:
        with open_to_read(path) as file:
            for line in file.read(_BEGIN_BYTES).splitlines():
                if _FAILURE.search(line):
                    text = cut_text(masked(one_line(line.decode(errors="replace").strip())), 160)
                    return f" The first line that sounds like a failure is: {text}."
    return ""


def _nothing_readable(folder: FolderEvidence, paths: Sequence[str]) -> UnreadableError:
    see = "See docs/postmortem.md for what to collect."
    if not folder.left_out:
        return UnreadableError("folder", f"no file in {folder.path}", "what a job left", see)
    shown, why = folder.left_out[0]
    rest = len(folder.left_out) - 1
    more = f", and {counted(rest, 'more file')}" if rest else ""
    # Not as the value, which is cut: a pickle is refused by the name that comes last.
    commands = [name for path in paths[:1] for name in reading_commands(_begin(path, path))]
    if why == _SAYS_NOTHING and commands:
        why = f"torchcoll {commands[0]} reads it"
    action = f"No file says anything: {shown} ({why}){more}.{_first_failure(paths)} {see}"
    return UnreadableError("folder", folder.path, "what a job left", action)


# Which files are of one job.

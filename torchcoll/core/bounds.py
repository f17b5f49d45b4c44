"""Limits on the memory and time that reading a file may take, whatever the file contains.

A small file takes at most about 1 GB and a few seconds. A large one may take more in proportion to
its size on disk, also if it is compressed.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from torchcoll.core.errors import UnreadableError

MOST_RANKS = 1 << 20  # ranks that a file may claim to have
MOST_LINE = 64 << 20  # bytes of JSON in a line: a case of 65 536 ranks has 20 MB
MOST_TEXT = 1 << 14  # characters of a line of text; the longest seen, a list of options, has 3000
MOST_DEPTH = 100  # levels of nested XML elements; NCCL's files have 8
MOST_ROWS = 1 << 20  # rows of another tool's table, also refused ones: 1 to 2 KB each
MOST_RECORDS = 4_000_000  # records of single calls, which are numbers in a list: 200 bytes each
MOST_MEMBER = 16 << 20  # characters of one event of a trace, or of one member next to the events
MOST_PROCESSES = 1 << 16  # processes in one log
MOST_PROBLEMS = 1000  # reported problems of one file
_HELD_BYTES = 1_000_000_000
_HELD_RATIO = 16  # an uncompressed file of whole numbers takes 5 to 9 times its size
_RECORD_BYTES = 2000  # the object that a record becomes
# A call of a traffic file is an object of numbers and short texts: 473 to 781 bytes measured.
_CALL_BYTES = 300
# Events of real traces have 200 to 400 bytes, 8 to 30 if compressed: no real trace is refused.
_EVENTS, _EVENT_BYTES = 300_000, 2
_KEPT = 3  # reading one event that is kept takes as long as skipping this many
# A communicator of a real log has at least 30 lines of 40 bytes; compressed it may have 25 bytes.
_COMMUNICATORS, _COMMUNICATOR_BYTES = 1 << 16, 40
GZIP = b"\x1f\x8b"  # the first bytes of a gzip file
_UNPACKED_BYTES = 256 << 20
# Real traces are 10 to 30 times smaller when compressed, logs up to 60 times (150 with _LINE_BYTES
# added for each line); a gzip bomb 1000 times.
_UNPACKED_RATIO = 200
_LINE_BYTES = 150  # cost of a line besides its bytes: 256 MB of line ends are 256 million lines
# All bytes except those of JSON's structure.
_CONTENT = bytes(byte for byte in range(256) if byte not in b',:[]{}"')
_STRUCTURE_BYTES = 36  # memory per byte of structure: a number in a list has one, a text several


def _size_bytes(path: Any) -> int:
    """The size of a file on disk; 0 for what is not a file."""
    with contextlib.suppress(OSError):
        return os.stat(path).st_size
    return 0


class ByteBudget:
    """Limits the memory of what a reader keeps of a file, by an estimate of its bytes."""

    def __init__(self, what: str, path: str | os.PathLike[str]) -> None:
        self._what, self._path = what, path
        self._most = max(_HELD_BYTES, _HELD_RATIO * _size_bytes(path))
        self._size_bytes = 0

    def add(self, json: bytes) -> None:
        """Add a record, given as JSON. Raises UnreadableError if the limit is exceeded."""
        structure = len(json.translate(None, _CONTENT))
        self.add_bytes(len(json) + _STRUCTURE_BYTES * structure + _RECORD_BYTES)

    def add_call(self, json: bytes) -> None:
        """Add a record that becomes a TrafficCall, which keeps no field names or nested lists."""
        self.add_bytes(len(json) + _STRUCTURE_BYTES * json.count(b",") + _CALL_BYTES)

    def add_bytes(self, size_bytes: int) -> None:
        """Add so many bytes of memory. Raises UnreadableError if the limit is exceeded."""
        self._size_bytes += size_bytes
        if self._size_bytes > self._most:
            limit = "records that fit into 1 GB of memory, or into 16 times the size of the file"
            action = "Split it; a compressed file may take more once it is unpacked."
            raise UnreadableError(self._what, self._path, limit, action)


def _no_real_file(what: str, path: object, expected: str) -> UnreadableError:
    action = "Where it is no bomb: gunzip it, and name the plain file."
    return UnreadableError(what, path, expected, action)


class UnpackBudget:
    """Limits how much a compressed file may decompress to."""

    def __init__(self, what: str, path: object) -> None:
        self._what, self._path = what, path
        self._size_bytes = 0

    def add(self, unpacked: int, packed: int, lines: int = 0) -> None:
        """Raises UnreadableError for more than real files decompress to. unpacked: bytes, with so
        many ``lines``, since the last call. packed: bytes read in all.
        """
        self._size_bytes += unpacked + _LINE_BYTES * lines
        if self._size_bytes > _UNPACKED_BYTES + _UNPACKED_RATIO * packed:
            expected = "a .gz that unpacks to at most 256 MiB, or to 200 times its size"
            raise _no_real_file(self._what, self._path, expected)


class EventBudget:
    """Limits the events of a trace. Most are skipped, which takes time and no memory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._left = _EVENTS + _size_bytes(path) // _EVENT_BYTES

    def add(self, kept: int, left: int) -> None:
        """Raises UnreadableError if the file has more events for its size than real traces."""
        self._left -= _KEPT * kept + left
        if self._left < 0:
            expected = "a .gz with fewer events for its size, as real traces have"
            raise _no_real_file("trace", self._path, expected)


class CommunicatorBudget:
    """Limits the communicators of a log, counted once for each rank, as each may become a row."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._most = self._left = _COMMUNICATORS + _size_bytes(path) // _COMMUNICATOR_BYTES

    def add(self) -> None:
        """Add one. Raises UnreadableError if the log has more for its size than real logs have."""
        self._left -= 1
        if self._left < 0:
            expected = f"at most {self._most} communicators for its size, each rank's counted"
            raise _no_real_file("log", self._path, expected)


class Problems:
    """Appends the problems of a file to a list, and counts them beyond ``MOST_PROBLEMS``."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems
        self._count = 0

    @property
    def is_full(self) -> bool:
        """Whether further problems are only counted."""
        return self._count >= MOST_PROBLEMS

    def count(self) -> bool:
        """Count a problem. Returns whether the caller should ``add`` its text."""
        self._count += 1
        return self._count <= MOST_PROBLEMS

    def add(self, text: str) -> None:
        self._problems.append(text)

    def end(self, path: Any) -> None:
        """Add a line with the number of problems that were only counted, if there are any."""
        if self._count > MOST_PROBLEMS:
            self._problems.append(f"{path}: {self._count - MOST_PROBLEMS} more unusable records")

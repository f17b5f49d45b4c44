"""What a file may make its reader hold, unpack and compute: the bounds of all readers.

A file of a few bytes must not take the machine: whatever is in it, reading takes about 1 GB at most
and seconds. Files that are large on disk may take more, in proportion to their size: who has a
result file of 400 MB measured it. So what is held is bounded by the size on disk, what is streamed
by it where it is packed, and the rest by numbers that no real file comes near.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from torchcoll.core.errors import UnreadableError

MOST_RANKS = 1 << 20  # that a file may claim
MOST_LINE = 64 << 20  # bytes of JSON in a line: a case of 65 536 ranks has 20 MB
MOST_TEXT = 1 << 14  # characters of a line of text; the longest seen, a list of options, has 3000
MOST_DEPTH = 100  # of nested elements; NCCL's own have 8
MOST_ROWS = 1 << 20  # of a table of another tool, refused ones too: 1 to 2 KB each
MOST_RECORDS = 4_000_000  # of single calls, which are numbers in a list: 200 bytes each
MOST_MEMBER = 16 << 20  # characters of one event of a trace, or of what stands beside the events
MOST_PROCESSES = 1 << 16  # in one log
MOST_TOLD = 1000  # lines on what is wrong with one file
_HELD_BYTES = 1_000_000_000
_HELD_RATIO = 16  # a plain file of whole numbers takes 5 to 9 times its size
_RECORD_BYTES = 2000  # the object that a record becomes
# A call of a traffic file is an object of numbers and short texts: 473 B measured with 6 values
# beside its 1st, 781 B with 16. As any other record each would count 3 to 5 KB.
_CALL_BYTES = 300
# Real traces have 200 to 400 bytes an event, 8 to 30 packed: with 2 bytes none is refused, even
# where it keeps all of them. Nor is a plain one, for the shortest event that is kept has 30.
_EVENTS, _EVENT_BYTES = 300_000, 2
_KEPT = 3  # events that are not kept take as long as one that is
# Of a real log each has 30 lines and more, and 40 bytes of the least line that it can have; packed,
# with nothing but the lines of its start and end, 25.
_COMMUNICATORS, _COMMUNICATOR_BYTES = 1 << 16, 40
GZIP = b"\x1f\x8b"  # how a packed file begins
_UNPACKED_BYTES = 256 << 20
# Of real traces 10 to 30, of logs up to 60, which _LINE_BYTES makes 150; a bomb has 1000.
_UNPACKED_RATIO = 200
_LINE_BYTES = 150  # what a line costs beside its bytes: 256 MB of line ends are 256 million lines
# All but what JSON's structure is made of.
_CONTENT = bytes(byte for byte in range(256) if byte not in b',:[]{}"')
_STRUCTURE_BYTES = 36  # a whole number in a list; a list and a text have several such bytes


def _size_bytes(path: Any) -> int:
    """On disk; 0 where it is not read from there."""
    with contextlib.suppress(OSError):
        return os.stat(path).st_size
    return 0


class Held:
    """What has been read of a file and is kept, estimated in bytes of memory."""

    def __init__(self, what: str, path: str | os.PathLike[str]) -> None:
        self._what, self._path = what, path
        self._most = max(_HELD_BYTES, _HELD_RATIO * _size_bytes(path))
        self._size_bytes = 0

    def add(self, json: bytes) -> None:
        """A record, as JSON. Raises UnreadableError where it does not fit any more."""
        structure = len(json.translate(None, _CONTENT))
        self.add_bytes(len(json) + _STRUCTURE_BYTES * structure + _RECORD_BYTES)

    def add_call(self, json: bytes) -> None:
        """As ``add``, for a TrafficCall: its names are not kept, and no list in a list."""
        self.add_bytes(len(json) + _STRUCTURE_BYTES * json.count(b",") + _CALL_BYTES)

    def add_bytes(self, size_bytes: int) -> None:
        """As ``add``, by an estimate of the memory itself."""
        self._size_bytes += size_bytes
        if self._size_bytes > self._most:
            raise UnreadableError(
                self._what,
                self._path,
                "records that fit into 1 GB of memory, or into 16 times the size of the file",
                f"{'Unpack it, which then may take more' if self._packed else 'Split it'}.",
            )

    @property
    def _packed(self) -> bool:
        # Of a pipe no more can be read.
        with contextlib.suppress(OSError):
            if os.path.isfile(self._path):
                with open(self._path, "rb") as file:
                    return file.read(2) == GZIP
        return False


class Unpacking:
    """How far a packed file may grow."""

    def __init__(self, what: str, path: object) -> None:
        self._what, self._path = what, path
        self._size_bytes = 0

    def add(self, unpacked: int, packed: int, lines: int = 0) -> None:
        """unpacked: bytes more, in so many ``lines``; packed: bytes read by now, all together.

        Raises UnreadableError for what grows as no real file does.
        """
        self._size_bytes += unpacked + _LINE_BYTES * lines
        if self._size_bytes > _UNPACKED_BYTES + _UNPACKED_RATIO * packed:
            raise UnreadableError(
                self._what,
                self._path,
                "a .gz that unpacks to at most 256 MiB, or to 200 times its size",
                "Where it is no bomb: gunzip it, and name the plain file.",
            )


class Events:
    """How many events a trace may have: most are not kept, and cost time instead of memory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._left = _EVENTS + _size_bytes(path) // _EVENT_BYTES

    def add(self, kept: int, left: int) -> None:
        """So many more that are kept, and left. Raises UnreadableError for what packs as no real
        trace does.
        """
        self._left -= _KEPT * kept + left
        if self._left < 0:
            raise UnreadableError(
                "trace",
                self._path,
                "a .gz with fewer events for its size, as real traces have",
                "Where it is no bomb: gunzip it, and name the plain file.",
            )


class LoggedCommunicators:
    """How many ranks of communicators a log may tell of: each may be a row of a table."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._most = self._left = _COMMUNICATORS + _size_bytes(path) // _COMMUNICATOR_BYTES

    def add(self) -> None:
        """One more. Raises UnreadableError for what packs as no real log does."""
        self._left -= 1
        if self._left < 0:
            raise UnreadableError(
                "log",
                self._path,
                f"at most {self._most} communicators for its size, each rank's counted",
                "Where it is no bomb: gunzip it, and name the plain file.",
            )


class Problems:
    """The list of what is wrong with a file, which says how many more there are in place of all."""

    def __init__(self, problems: list[str]) -> None:
        self._stated = problems
        self._count = 0

    @property
    def many(self) -> bool:
        """Whether no more are told."""
        return self._count >= MOST_TOLD

    def told(self) -> bool:
        """Count one more; whether it is to be told by ``add``. Else no text is made of it."""
        self._count += 1
        return self._count <= MOST_TOLD

    def add(self, text: str) -> None:
        self._stated.append(text)

    def end(self, path: Any) -> None:
        if self._count > MOST_TOLD:
            self._stated.append(f"{path}: {self._count - MOST_TOLD} more unusable records")

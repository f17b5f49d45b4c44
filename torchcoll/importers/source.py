"""The lines of a foreign file: unpacked, decoded, without what terminals add."""

from __future__ import annotations

import collections
import io
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any

from torchcoll.core.bounds import (
    GZIP,
    MOST_TEXT,
    MOST_TOLD,
    Unpacking,
)
from torchcoll.core.errors import UnreadableError, nearest_file
from torchcoll.core.opening import is_descriptor, open_to_read
from torchcoll.core.stdin import STDIN, from_stdin, is_stdin
from torchcoll.importers.base import Line
from torchcoll.importers.prefix import cleaned

# A message of a library, which may begin inside a row that another process is printing.
# A host is taken to begin with a letter: `0node7:12:13 [0]` is the last field of a row and a host.
_LOG = re.compile(
    r"(?:[A-Za-z_][\w.-]{0,255})?:\d+:\d+ \[\S{0,64}\] .*$"
    r"|\[\S{0,64}\] NCCL (?:INFO|WARN|TRACE|ABORT) .*$"
    r"|\d{4}:\d\d:\d\d-\d\d:\d\d:\d\d:\s?\(\s*\d+\) \|CCL_\w+\|.*$"
    r"|NCCL_TESTS_ALLTOALLV\S*.*$"
)
_MARKS = ("NCCL", "|CCL_")
_HEAD = 1 << 16
_WINDOW = 2000  # lines
_LONGEST = 1 << 24  # a line beyond this is no text
_CONTROLS = bytes([*range(9), *range(14, 27)])  # what no text has


class _Unpacked(io.RawIOBase):
    """A .gz as it unpacks, its start read already; a cut one gives what there is."""

    def __init__(self, start: bytes, remaining: IO[bytes], name: str) -> None:
        self._growth, self._read = Unpacking("file", name), 0
        self._packed, self._rest = start, remaining
        self._unpacker = zlib.decompressobj(31)  # with gzip's header
        self._ready = memoryview(b"")  # of which a part costs no copy of the rest
        self.problem = ""

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._ready and not self.problem:
            packed = self._packed or self._rest.read(_HEAD)
            self._packed = b""
            if not packed:
                if not self._unpacker.eof:
                    self.problem = "cut off: the .gz has no end"
                break
            if self._unpacker.eof:  # another file packed behind the first
                self._unpacker = zlib.decompressobj(31)
            try:
                unpacked = self._unpacker.decompress(packed)
                self._ready = memoryview(unpacked)
                self._read += len(packed) - len(self._unpacker.unused_data)
                self._growth.add(len(unpacked), self._read, unpacked.count(b"\n"))
            except zlib.error as error:
                self.problem = f"damaged: {error}"
            self._packed = self._unpacker.unused_data
        piece = self._ready[: len(target)]
        self._ready = self._ready[len(piece) :]
        target[: len(piece)] = piece
        return len(piece)


class Shortened:
    """Lines of text, of which none is longer than a row can be."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = lines
        self.cut: list[int] = []

    def __iter__(self) -> Iterator[Line]:
        for number, text in self._lines:
            if len(text) > MOST_TEXT:
                if len(self.cut) < MOST_TOLD:
                    self.cut.append(number)
                text = text[:MOST_TEXT]
            yield number, text

    @property
    def warning(self) -> str:
        """'' where all are as they were."""
        if not self.cut:
            return ""
        count = f"{len(self.cut)} lines" if len(self.cut) > 1 else "a line"
        return f"{count} longer than {MOST_TEXT} characters: cut there; the first is {self.cut[0]}"


class Source:
    """A file to import: its first lines to sniff at, then all of its lines once."""

    def __init__(self, path: str) -> None:
        if is_descriptor(path):  # of a shell's <(COMMAND), of which no start can be read again
            path = str(from_stdin(path))
        self.name = STDIN if is_stdin(path) else path
        self._unpacked: _Unpacked | None = None
        self._disk: IO[bytes] | None = None
        try:
            if path != "-":
                self._disk = open_to_read(path)
            self._file: IO[bytes] = self._disk or sys.stdin.buffer
            self.start = self._file.read(_HEAD)
            if self.start.startswith(GZIP):
                self._unpacked = _Unpacked(self.start, self._file, self.name)
                self._file = io.BufferedReader(self._unpacked, _HEAD)
                self.start = self._file.read(_HEAD)
            self.start += self._file.readline(_LONGEST)
            self._kept = collections.deque([self.start])
        except FileNotFoundError:
            raise UnreadableError("file", path, "a file that exists", nearest_file(path)) from None
        except IsADirectoryError:
            raise UnreadableError("file", path, "a file, not a folder") from None
        except OSError as error:
            self.close()
            raise UnreadableError("file", path, f"a readable file ({error.strerror})") from None
        if not self.start and self.problem:
            self.close()
            raise UnreadableError("file", path, f"a readable file ({self.problem})")

    @property
    def problem(self) -> str:
        """What went wrong while reading; '' if nothing."""
        return self._unpacked.problem if self._unpacked else ""

    @property
    def binary(self) -> bool:
        """No text: null bytes that are not UTF-16, or mostly control characters."""
        if self.start.startswith((b"\xff\xfe", b"\xfe\xff")):
            return False
        odd = len(self.start) - len(self.start.translate(None, _CONTROLS))
        return b"\0" in self.start or odd > len(self.start) // 10

    def windows(self) -> Iterator[list[str]]:
        """The lines without libraries' messages, some at a time: for sniffing, before ``lines``.

        What tells the format may come after megabytes of messages. As far as it is looked at, what
        cannot be read again is kept in memory.
        """
        window: list[str] = []
        for lines in self._cleaned(self._read(keep=True)):
            for text in lines:
                if "NCCL INFO" not in text and "|CCL_" not in text:
                    window.append(text[:MOST_TEXT])
                    if len(window) >= _WINDOW:
                        yield window
                        window = []
        yield window

    def lines(self) -> Iterator[Line]:
        """All lines with their numbers, once."""
        number = 1
        for lines in self._cleaned(self._read()):
            yield from enumerate(lines, number)
            number += len(lines)

    def _cleaned(self, blocks: Iterable[bytes]) -> Iterator[list[str]]:
        return map(cleaned, _decoded(blocks, self.start))

    def _read(self, keep: bool = False) -> Iterator[bytes]:
        """Whole lines, about 64 KiB at a time: what is done once a line is a large part of all.

        ``again``: after ``rewind`` all can be read again. A line beyond _LONGEST is cut.
        """
        if keep:
            yield from self._kept
        else:
            kept, self._kept = self._kept, collections.deque()
            while kept:
                yield kept.popleft()
        while block := self._file.read(_HEAD):
            block += self._file.readline(_LONGEST)
            if keep and not self.seekable:
                self._kept.append(block)
            yield block

    @property
    def seekable(self) -> bool:
        return self._file is self._disk

    def rewind(self) -> None:
        """Back to where the lines begin, for ``lines`` after ``windows``."""
        if self.seekable:
            self._file.seek(len(self.start))

    def close(self) -> None:
        if self._disk:
            self._disk.close()


def _decoded(blocks: Iterable[bytes], start: bytes) -> Iterator[str]:
    """UTF-8, line by line Latin-1 where it is none: one log may hold both. UTF-16 by its mark.

    The end of the last line of a block is left out.
    """
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):  # PowerShell's '>'
        yield "\n".join(b"".join(blocks).decode("utf-16", "replace").splitlines())
        return
    first = True
    for block in blocks:
        try:
            text = block.decode()
        except UnicodeDecodeError:
            text = "\n".join(map(_decoded_line, block.split(b"\n")))
        if first:
            text, first = text.removeprefix("\ufeff"), False
        yield text.removesuffix("\n")


def _decoded_line(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1")


def without_log(text: str) -> tuple[str, bool]:
    """(text before a library's message, whether there was one)."""
    if not any(mark in text for mark in _MARKS) and " [" not in text:
        return text, False
    match = _LOG.search(text)
    return (text[: match.start()], True) if match else (text, False)

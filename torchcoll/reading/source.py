"""Reads the lines of another tool's file: unpacked, decoded, without ANSI codes."""

from __future__ import annotations

import collections
import io
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any

from torchcoll.core.bounds import GZIP, MOST_PROBLEMS, MOST_TEXT, UnpackBudget
from torchcoll.core.errors import UnreadableError, nearest_file
from torchcoll.core.opening import is_descriptor, open_to_read, unpack
from torchcoll.core.stdin import STDIN, from_stdin, is_stdin
from torchcoll.reading.base import Line
from torchcoll.reading.json_text import text_of_json

_HEAD = 1 << 16
_WINDOW = 2000  # lines
_LONGEST = 1 << 24  # bytes; a longer line is not text
_CONTROLS = bytes([*range(9), *range(14, 27)])  # characters that no text has


class _Unpacked(io.RawIOBase):
    """The unpacked content of a .gz whose start was read, up to its end or its damage."""

    def __init__(self, start: bytes, remaining: IO[bytes], name: str) -> None:
        self._pieces = unpack(remaining, UnpackBudget("file", name), start, lined=True)
        self._ready = memoryview(b"")  # slices of it need no copy
        self.problem = ""

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._ready and not self.problem:
            try:
                piece = next(self._pieces, None)
            except EOFError:
                self.problem = "cut off: the .gz has no end"
            except zlib.error as error:
                self.problem = f"damaged: {error}"
            else:
                if piece is None:
                    break
                self._ready = memoryview(piece)
        size = min(len(target), len(self._ready))
        target[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


class Source:
    """A file to import. ``windows`` has its first lines, for sniffing; ``lines`` all, once."""

    def __init__(self, path: str) -> None:
        if is_descriptor(path):  # a shell's <(COMMAND), which cannot be read twice
            path = str(from_stdin(path))
        self.name = STDIN if is_stdin(path) else path
        self._unpacked: _Unpacked | None = None
        self._disk: IO[bytes] | None = None
        self._cut: list[int] = []  # lines that were cut
        self.in_json = False  # whether the lines are inside of JSON
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
        """Whether it has null bytes without being UTF-16, or many control characters."""
        if self.start.startswith((b"\xff\xfe", b"\xfe\xff")):
            return False
        odd = len(self.start) - len(self.start.translate(None, _CONTROLS))
        return b"\0" in self.start or odd > len(self.start) // 10

    def windows(self) -> Iterator[list[str]]:
        """Yield lists of lines without libraries' messages, for sniffing, before ``lines``."""
        window: list[str] = []
        for lines in self._cleaned(self._read(keep=True)):
            for text in lines:
                if "NCCL INFO" not in text and "|CCL_" not in text:
                    window.append(text[:MOST_TEXT])
                    if len(window) >= _WINDOW:
                        yield window
                        window = []
        yield window

    def lines(self, most: int | None = None) -> Iterator[Line]:
        """All lines with their numbers, once. Longer ones are cut at ``most`` characters."""
        first = 1
        for lines in self._cleaned(self._read()):
            for number, text in enumerate(lines, first):
                if most is not None and len(text) > most:
                    if len(self._cut) < MOST_PROBLEMS:
                        self._cut.append(number)
                    text = text[:most]
                yield number, text
            first += len(lines)

    @property
    def cut(self) -> str:
        """A warning about lines that were cut; '' if there are none."""
        if not self._cut:
            return ""
        count = f"{len(self._cut)} lines" if len(self._cut) > 1 else "a line"
        return f"{count} longer than {MOST_TEXT} characters: cut there; the first is {self._cut[0]}"

    def _cleaned(self, blocks: Iterable[bytes]) -> Iterator[list[str]]:
        texts = _decoded(blocks, self.start)
        if self.in_json:
            return map(cleaned, map("\n".join, text_of_json(texts, self.name)))
        return map(cleaned, texts)

    def _read(self, keep: bool = False) -> Iterator[bytes]:
        """Yield whole lines, about 64 KiB at a time. keep: for ``rewind``."""
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
        """Return to the first line, for ``lines`` after ``windows``."""
        if self.seekable:
            self._file.seek(len(self.start))

    def close(self) -> None:
        if self._disk:
            self._disk.close()


def _decoded(blocks: Iterable[bytes], start: bytes) -> Iterator[str]:
    """Decode blocks as UTF-8, other lines as Latin-1, and UTF-16 by its first bytes."""
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


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def cleaned(text: str) -> list[str]:
    """The lines of a text without ANSI codes and earlier states of a bar."""
    lines = text.split("\n")
    # Most texts have none of these, and a check of many lines at once is cheap.
    if "\x1b" in text:
        lines = [_ANSI.sub("", line) for line in lines]
    if "\r" in text:
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    return lines

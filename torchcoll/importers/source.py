"""The lines of a foreign file: unpacked, decoded, without what terminals add."""

from __future__ import annotations

import codecs
import collections
import io
import json
import re
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import IO, Any

from torchcoll.core.bounds import (
    GZIP,
    MOST_DEPTH,
    MOST_LINE,
    MOST_MEMBER,
    MOST_TEXT,
    MOST_TOLD,
    Held,
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

    def __init__(self, start: bytes, rest: IO[bytes], name: str) -> None:
        self._growth, self._read = Unpacking("file", name), 0
        self._packed, self._rest = start, rest
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
        part = self._ready[: len(target)]
        self._ready = self._ready[len(part) :]
        target[: len(part)] = part
        return len(part)


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
        for lines in self._cleaned(self._read(again=True)):
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

    def _read(self, again: bool = False) -> Iterator[bytes]:
        """Whole lines, about 64 KiB at a time: what is done once a line is a large part of all.

        ``again``: after ``rewind`` all can be read again. A line beyond _LONGEST is cut.
        """
        if again:
            yield from self._kept
        else:
            kept, self._kept = self._kept, collections.deque()
            while kept:
                yield kept.popleft()
        while block := self._file.read(_HEAD):
            block += self._file.readline(_LONGEST)
            if again and not self.seekable:
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


# -------------------------------------------------------------------------------------------------
# Large JSON documents, and those that were cut off.
#
# A trace of 100 MB packed is 2 GB of JSON and would be 10 GB of objects, of which few are wanted:
# so each event is decoded on its own, and what nobody keeps is gone before the next.

_DECODER = json.JSONDecoder(strict=False)  # names of events may hold control characters
_SPACE = re.compile(r"[ \t\n\r]*")
_NEVER_SKIPPED = frozenset('{}[],:"')  # what is there to be read; '' is the end of a piece
_OPEN = frozenset(".eE+-")  # a number that goes on
_BATCH = 1 << 18  # characters of items that are decoded at once
_BOUNDARY = re.compile(r"\}\s*,\s*(?=\{)")  # likely between two items that are objects
_TRIED = 3  # boundaries that turn out to be within an item, before each item is decoded alone
Member = tuple[str, Any, int, bool]  # key, value, its length as text, whether it is of items


def members(chunks: Iterable[bytes], arrays: Collection[str]) -> Iterator[Member]:
    """Each member of the outermost object; of those named in ``arrays`` lists of some items each,
    in order, behind an empty list.

    Raises ValueError for what is no such JSON, or has a member of more than MOST_MEMBER characters;
    RecursionError where it is nested too deep.
    """
    text = _Text(chunks)
    text.expect("{")
    if text.next_is("}"):
        return
    while True:
        key, _ = text.value()
        if not isinstance(key, str):
            raise ValueError("no name of a member")
        text.expect(":")
        if key in arrays and text.next_is("["):
            yield key, [], 0, False  # its items follow
            if not text.next_is("]"):
                while True:
                    items, length = text.items()
                    if items:
                        yield key, items, length, True
                    value, length = text.value()
                    yield key, [value], length, True
                    if not text.next_is(","):
                        text.expect("]")
                        break
        else:
            yield (key, *text.value(), False)
        if text.next_is("}"):
            text.end()
            return
        text.expect(",")


class _Text:
    """What is left of a text that comes in pieces."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("surrogatepass").decode
        self._text, self._place = "", 0
        self._ended = False
        self._tries = _TRIED

    def _more(self, size_bytes: int = 1) -> bool:
        """At least so much more text, if there is; False at the end."""
        parts, length = [self._text[self._place :]], 0
        while length < size_bytes and not self._ended:
            chunk = next(self._chunks, None)
            self._ended = chunk is None
            part = self._decode(chunk or b"", final=self._ended)
            parts.append(part)
            length += len(part)
        self._text, self._place = "".join(parts), 0
        return bool(length)

    def _skip(self) -> None:
        while True:
            found = _SPACE.match(self._text, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._text) or not self._more():
                return

    def next_is(self, char: str) -> bool:
        """Whether the next one is this, which is then read."""
        if self._text[self._place : self._place + 1] not in _NEVER_SKIPPED:
            self._skip()
        same = self._text.startswith(char, self._place)
        self._place += same
        return same

    def expect(self, char: str) -> None:
        if not self.next_is(char):
            raise ValueError(f"no {char}")

    def value(self) -> tuple[Any, int]:
        """The next value, and its length as text."""
        if self._text[self._place : self._place + 1] not in _NEVER_SKIPPED:
            self._skip()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._place)
                # 12 at the end may be the begin of 123, and so may 12 before a point at the end.
                whole = end < len(self._text) and self._text[end] not in _OPEN
            except ValueError:
                whole = False
            have = len(self._text) - self._place
            if whole:
                break
            if have > MOST_MEMBER:
                raise ValueError("a member is too long")
            # As much again, so that a long value is not begun anew for each piece of it.
            if not self._more(have):
                value, end = _DECODER.raw_decode(self._text, self._place)
                break
        length, self._place = end - self._place, end
        return value, length

    def items(self) -> tuple[list[Any], int]:
        """Items that stand here with a comma behind each, and their length; [] is none of them.

        What begins at the beginning of an item and is a list's content, is whole items: a text that
        ends inside of one leaves something open.
        """
        if not self._tries:
            return [], 0
        if len(self._text) - self._place < _BATCH:
            self._more(_BATCH)
        latest = self._text.rfind("}", self._place, len(self._text) - _BATCH // 8)
        found = _BOUNDARY.search(self._text, max(latest, self._place))
        if latest < 0 or found is None:
            return [], 0
        try:
            items = _DECODER.decode(f"[{self._text[self._place : found.start() + 1]}]")
        except (ValueError, RecursionError):
            self._tries -= 1
            return [], 0
        self._tries = _TRIED
        length, self._place = found.end() - self._place, found.end()
        return items, length

    def end(self) -> None:
        self._skip()
        if self._place < len(self._text):
            raise ValueError("more behind the end")


# -- documents that are read as a whole ------------------------------------------------------

# C's printf of an infinite double, which is no JSON; NaN is printed as a string.
_BARE = re.compile(r"(?<=[:,\[])\s*-?(?:inf|nan)\b")
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]"]', re.DOTALL)
_LAST = 20  # places at which a document that was cut off may be whole


def document(lines: Iterable[Line]) -> str:
    """The text of these lines. Raises UnreadableError for more than a document has."""
    parts, length = [], 0
    for _, text in lines:
        parts.append(text)
        length += len(text)
        if length > MOST_LINE:
            raise UnreadableError("file", "more than 64 MiB of JSON", "less", "Split it.")
    text = "\n".join(parts)
    Held("file", "JSON").add(text.encode("utf-8", "surrogatepass"))
    return text


def decoded(text: str) -> tuple[Any, bool]:
    """(the document, whether it was cut off). Of a cut one, everything up to its last whole row."""
    text = text.strip()
    bare = _BARE.sub(" null", text)
    for attempt in (text, bare) if bare != text else (text,):
        try:
            return json.loads(attempt), False
        except (ValueError, RecursionError):
            continue
    for end, closing in reversed(_ends(bare)):
        try:
            return json.loads(bare[:end] + closing), True
        except (ValueError, RecursionError):
            continue
    return None, True


def _ends(text: str) -> list[tuple[int, str]]:
    """The last places behind a closed object, and what closes the brackets that are open there."""
    found: collections.deque[tuple[int, str]] = collections.deque(maxlen=_LAST)
    closing = ""  # what is open, the innermost first
    for token in _TOKEN.finditer(text):
        char = token[0]
        if char == "{":
            closing = "}" + closing
        elif char == "[":
            closing = "]" + closing
        elif char in "}]":
            if not closing.startswith(char):
                break
            closing = closing[1:]
            if char == "}":
                found.append((token.end(), closing))
        elif char == '"':  # a text that is open to the end
            break
        if len(closing) > MOST_DEPTH:
            break
    return list(found)

"""JSON Lines as torchcoll writes them: a header with a schema, then one record a line."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import re
import shlex
import zlib
from bisect import bisect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import GZIP, MOST_LINE, Held, Problems, Unpacking
from torchcoll.core.errors import UnreadableError, nearest_file
from torchcoll.core.opening import open_to_read
from torchcoll.core.units import format_bytes

# -------------------------------------------------------------------------------------------------
# Check sums of lines: what was damaged, lost, doubled or put together is noticed by its reader.
#
# Each line of our files ends with ``,"line":N,"crc":"XXXXXXXX"}``. line: its number among the lines
# that were written, from 1. crc: CRC-32 (zlib's) of the bytes of the line before ``,"crc"``, in
# eight hexadecimal digits. It is begun with the crc of the header, that of the header with 0, so
# that a line of another file does not fit either. A file whose header has none, of hand or of
# another program, is read without checks.

_TAIL = re.compile(rb',"line":([1-9]\d{0,14}),"crc":"([0-9a-f]{8})"}\s*$')
_LONGEST_TAIL = 64  # of the line, which may be megabytes long, no more is looked through
_HEADER = re.compile(rb'\{\s*"record"\s*:\s*"header"')  # programs put blanks there


# json.dumps would make an encoder for each line.
_encoded = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class LineWriter:
    """Makes the lines of one file, in order; of one that is there already with ``going_on``."""

    def __init__(self, header_crc: int = 0, lines: int = 0) -> None:
        self._crc, self._lines = header_crc, lines

    @classmethod
    def going_on(cls, path: Path) -> LineWriter:
        """For lines behind those of ``path``. What was cut off there counts as a line."""
        with open(path, "rb") as file:
            tail = _tail(file.readline())
            return cls(tail[2] if tail else 0, 1 + sum(1 for line in file if line.strip()))

    def line(self, data: dict[str, Any]) -> bytes:
        """Raises ValueError for NaN and Infinity."""
        data = {**data, "line": self._lines + 1}
        body = _encoded(data)[:-1].encode()
        crc = zlib.crc32(body, self._crc)
        self._lines += 1
        if self._lines == 1:
            self._crc = crc
        return body + b',"crc":"%08x"}\n' % crc


class CheckSums:
    """Compares the lines of a file, in order, with their check sums.

    header_problem: what is wrong with the first line, or ''.
    """

    def __init__(self, header: bytes) -> None:
        self.header_problem = ""
        self._crcs: set[int] = set()  # that may be the header's; none: the file has no check sums
        if tail := _tail(header):
            cut, _, stated = tail
            own = zlib.crc32(memoryview(header)[:cut])
            self._crcs = {stated, own}
            if stated != own:
                self.header_problem = "changed or damaged: it does not match its check sum"
        self._next = 2
        self._unread = 0  # lines since the last one that could be read
        self._gaps: list[range] = []  # numbers that were passed over
        self._late: set[int] = set()  # those of them that came after all

    def check(self, line: bytes) -> str:
        """What is wrong before this line, or ''. Raises ValueError where it is not to be used."""
        tail = _tail(line)
        if not self._crcs:
            if tail is None or self.header_problem:
                return ""
            self.header_problem = (
                "changed or damaged: the lines below have check sums, the header has none"
            )
            return self.header_problem
        self._unread += 1
        if tail is None:
            raise ValueError("no check sum")
        cut, number, stated = tail
        body = memoryview(line)[:cut]
        if not any(zlib.crc32(body, crc) == stated for crc in self._crcs):
            raise ValueError("changed or damaged: it does not match its check sum")
        return self._place(number)

    def _place(self, number: int) -> str:
        if number >= self._next:
            gap, unread = range(self._next, number), self._unread - 1
            self._next, self._unread = number + 1, 0
            if not gap:
                return ""
            self._gaps.append(gap)
            several = f"lines {gap[0]} to {gap[-1]} are" if len(gap) > 1 else f"line {gap[0]} is"
            return f"{several} missing before it" if len(gap) > unread else ""
        self._unread -= 1
        place = bisect(self._gaps, number, key=lambda gap: gap.start) - 1
        if place < 0 or number not in self._gaps[place] or number in self._late:
            raise ValueError(f"line {number} a second time")
        self._late.add(number)
        return f"line {number} comes after line {self._next - 1}"


def begins_another(line: bytes) -> bool:
    """Whether a line that cannot be used is the header of another file, or ends with it, behind
    what was cut off of this one. Not by its check sum: a file of another program has none.
    """
    found = _HEADER.search(line)
    try:
        return found is not None and isinstance(json.loads(line[found.start() :]), dict)
    except (ValueError, RecursionError):
        return False


def _tail(line: bytes) -> tuple[int, int, int] | None:
    """(bytes that the check sum is of, number, check sum) of a line; None where it has none."""
    found = _TAIL.search(line[-_LONGEST_TAIL:])
    if found is None:
        return None
    cut = max(0, len(line) - _LONGEST_TAIL) + found.end(1)
    return cut, int(found[1]), int(found[2], 16)


# -------------------------------------------------------------------------------------------------

_RESULTS = "result file"
_IMPORT = "Where it is output of another tool: torchcoll import {} -o RUN.jsonl"
_CHUNK = 1 << 20
_PIECE = 1 << 18
TRUNCATED = "truncated: the file has no end record"
# What a line that holds anything may raise.
UNUSABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def lines_of(
    path: Path, problems: list[str], what: str = _RESULTS, longest: int = MOST_LINE
) -> Iterator[bytes]:
    """The lines of a file, packed or not; a .gz that was copied in part gives those up to the cut.

    A line of more than ``longest`` bytes ends there. Raises UnreadableError when the file cannot be
    read, or unpacks as no real one does.

    Split off pieces at C speed: a log has millions of lines, and a call for each took as long as
    all that is done with it. No piece is longer than a line may be, so that only a line that ends
    in a later piece than it begins can be too long.
    """
    number, begun, size_bytes = 1, list[bytes](), 0
    cut = False  # the rest of a line that was too long is passed over

    def joined() -> bytes:
        line = b"".join(begun)
        begun.clear()
        if len(line) > longest:
            problems.append(f"{path}:{number}: longer than {format_bytes(longest)}: cut there")
        return line[:longest]

    with _pieces(path, problems, what, min(longest, _PIECE), lined=True) as pieces:
        for piece in pieces:
            first, end = piece.find(b"\n") + 1, piece.rfind(b"\n") + 1
            if not end:
                if not cut:
                    begun.append(piece)
                    size_bytes += len(piece)
                    # Not before the next line is asked for is more read: who looks at the first
                    # one reads no more than that.
                    if cut := size_bytes > longest:
                        yield joined()
                continue
            if begun:
                begun.append(piece[:first])
                yield joined()
            elif not cut:
                first = 0
            number += piece.count(b"\n", 0, first)
            cut = False
            yield from io.BytesIO(piece[first:end])
            number += piece.count(b"\n", first, end)
            begun, size_bytes = [piece[end:]] if end < len(piece) else [], len(piece) - end
        if begun:
            yield joined()


def chunks_of(path: Path, problems: list[str], what: str) -> Iterator[bytes]:
    """As ``lines_of``, the bytes in pieces of any length."""
    with _pieces(path, problems, what, _CHUNK) as pieces:
        yield from pieces


@contextlib.contextmanager
def _pieces(
    path: Path, problems: list[str], what: str, most_bytes: int, lined: bool = False
) -> Iterator[Iterator[bytes]]:
    """What is in the file, unpacked, in pieces of so many bytes at most. lined: of a packed one the
    lines count too. Where it is cut off the pieces end, and what is done with them.
    """
    # The piece in which a .gz turns out to be damaged is lost whole.
    most_packed = min(most_bytes, io.DEFAULT_BUFFER_SIZE) if lined else most_bytes
    try:
        with open_to_read(path) as file:
            packed = file.peek(2).startswith(GZIP)
            source = gzip.GzipFile(fileobj=file) if packed else file
            growth = Unpacking(what, path)

            def read() -> bytes:
                # Not read(): where the file is cut off, what it had before that would be lost.
                piece = source.read1(most_packed if packed else most_bytes)
                if packed:
                    growth.add(len(piece), file.tell(), piece.count(b"\n") if lined else 0)
                return piece

            yield iter(read, b"")
    except (EOFError, zlib.error) as error:
        problems.append(f"{path}: cut off or damaged: {_brief(error)}")
    except FileNotFoundError:
        raise UnreadableError(what, path, "a file that exists", nearest_file(path)) from None
    except IsADirectoryError:
        raise UnreadableError(what, path, "a file, not a folder") from None
    except OSError as error:
        why = error.strerror or error  # gzip's own errors have no strerror
        raise UnreadableError(what, path, f"a readable file ({why})") from None


def read_records(
    path: Path,
    problems: list[str],
    what: str,
    schema: str,
    header: Callable[[dict[str, Any]], None],
    take: Callable[[str, dict[str, Any], bytes], None],
) -> None:
    """``header`` gets the first line, ``take`` each other: the name of the record, its fields, and
    the line itself.

    What either raises of UNUSABLE refuses the file, or makes the line one of ``problems``. what:
    the kind of file, in messages. schema: that of this version, such as ``torchcoll/2``. Lines that
    do not match their check sums are among the problems. Raises UnreadableError
    for a file that is missing, empty, of another kind or another major schema, and for two in one.
    """
    expected = f'a torchcoll {what}, whose first line holds "schema":"{schema}"'
    number = 0
    sums = CheckSums(b"")
    held, unusable = Held(what, path), Problems(problems)
    for number, line in enumerate(lines_of(path, problems, what), 1):
        if number == 1:
            held.add(line)
            try:
                data = parse_line(line)
                _check_schema(data, schema, path)
                _unsealed(data)
                header(data)
            except UNUSABLE:
                foreign = what == _RESULTS and b'"record"' not in line
                action = _IMPORT.format(shlex.quote(str(path))) if foreign else ""
                raise UnreadableError(what, path, expected, action) from None
            sums = CheckSums(line)
            if sums.header_problem:
                problems.append(f"{path}:1: {sums.header_problem}")
            continue
        if not line.strip():
            continue
        try:
            if found := sums.check(line):
                problems.append(f"{path}:{number}: {found}")
            if unusable.many and line[0] not in b"{ \t\r":
                raise ValueError  # as its parser would, which takes five times as long to say where
            if long := len(line) > _PIECE:  # what is in it may be more than memory holds
                held.add(line)
            data = _unsealed(parse_line(line))
            if data["record"] == "header":
                raise _two_in_one(what, path, number)
            record = data.pop("record")
            if not long:
                (held.add_call if record == "call" else held.add)(line)  # no other file has calls
            take(record, data, line)
        except UNUSABLE as error:
            if begins_another(line):
                raise _two_in_one(what, path, number) from None
            if unusable.told():
                cut = "" if line.endswith(b"\n") else " (cut off)"
                unusable.add(f"{path}:{number}: unusable record{cut}: {_brief(error)}")
    unusable.end(path)
    if not number:
        raise UnreadableError(what, path, f"{expected}; this one is empty")


def read_objects(path: Path, what: str) -> Iterator[dict[str, Any]]:
    """What is in each line of a file; {} for the first and nothing for any other that is damaged or
    no JSON object. Raises UnreadableError as ``lines_of`` does.
    """
    sums = CheckSums(b"")
    for number, line in enumerate(lines_of(path, [], what), 1):
        try:
            if number > 1:
                sums.check(line)
            elif (sums := CheckSums(line)).header_problem:
                raise ValueError(sums.header_problem)
            yield _unsealed(parse_line(line))
        except UNUSABLE:
            if number == 1:
                yield {}


def _unsealed(data: Any) -> dict[str, Any]:
    """The record without what is about its line. Raises TypeError for what is no object."""
    if not isinstance(data, dict):
        raise TypeError("no object")
    data.pop("line", None)
    data.pop("crc", None)
    return data


def _two_in_one(what: str, path: Path, number: int) -> UnreadableError:
    action = f"Two files in one: split at line {number} (head -n {number - 1}, tail -n +{number})."
    return UnreadableError(what, path, "one header, in the first line", action)


def _check_schema(header: dict[str, Any], own: str, path: Path) -> None:
    """``torchcoll/2.4`` is read, ``torchcoll/3`` is not."""
    family, _, version = own.partition("/")
    stated = header["schema"]
    if header["record"] != "header" or not stated.startswith(f"{family}/"):
        raise ValueError
    if stated.split("/")[1].split(".")[0] != version:
        action = "Install the torchcoll version that wrote it."
        raise UnreadableError(f"schema of {path}", stated, own, action)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:120]


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


# Not orjson: it would save a sixth of loading a file (tests/benchmarks/libraries.py), cannot read
# traces in pieces, and makes a float of a whole number beyond 64 bits in silence.
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)


def parse_line(line: bytes) -> Any:
    """The JSON value of a line. Raises ValueError, also for NaN and Infinity."""
    return _DECODER.decode(line.decode("utf-8", "surrogatepass"))

"""JSON Lines as torchcoll writes them: a header with a schema, then one record per line.

A reader detects damaged, lost, repeated and foreign lines by check sums. Each line ends with
``,"line":N,"crc":"XXXXXXXX"}``: the CRC-32 of the bytes before ``,"crc"``, from that of the header
on, so that a line of another file does not match. A file whose header has no check sum is read
without checks.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import re
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import GZIP, MOST_LINE, ByteBudget, Problems, UnpackBudget
from torchcoll.core.errors import UnreadableError, missing_file
from torchcoll.core.opening import open_to_read
from torchcoll.core.units import format_bytes

_RESULTS = "result file"
_IMPORT = "Where it is output of another tool: torchcoll convert {} -o RUN.jsonl"
_CHUNK = 1 << 20
_PIECE = 1 << 18
TRUNCATED = "truncated: the file has no end record"
CUT_OFF = " (cut off)"  # in the problem of a last line without its end
# The exceptions that processing a line with arbitrary content may raise.
UNUSABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def lines_of(
    path: Path, problems: list[str], what: str = _RESULTS, longest: int = MOST_LINE
) -> Iterator[bytes]:
    """Yield the lines of a file, compressed or not. A truncated .gz yields the lines up to the cut.

    problems: gets a line for each thing that is wrong.
    longest: a longer line, in bytes, is cut there. A piece is at most as long.
    Raises UnreadableError if the file cannot be read, or decompresses to more than real files do.
    """
    number, begun, size_bytes = 1, list[bytes](), 0
    cut = False  # True while skipping the remainder of a line that is too long

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
                    # Yield at once: a caller that wants only the first line reads no further.
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


def chunks_of(path: Path, problems: list[str], what: str, lined: bool = False) -> Iterator[bytes]:
    """Yield the bytes of a file, like ``lines_of``, in pieces of any length."""
    with _pieces(path, problems, what, _CHUNK, lined) as pieces:
        yield from pieces


@contextlib.contextmanager
def _pieces(
    path: Path, problems: list[str], what: str, most_bytes: int, lined: bool = False
) -> Iterator[Iterator[bytes]]:
    """Yield an iterator over the decompressed file. lined: whether its lines count too."""
    # Small pieces: the piece in which a .gz turns out to be damaged is lost.
    most_packed = min(most_bytes, io.DEFAULT_BUFFER_SIZE) if lined else most_bytes
    try:
        with open_to_read(path) as file:
            packed = file.peek(2).startswith(GZIP)
            source = gzip.GzipFile(fileobj=file) if packed else file
            growth = UnpackBudget(what, path)

            def read() -> bytes:
                # read1, because read() would lose the data before the end of a truncated file.
                piece = source.read1(most_packed if packed else most_bytes)
                if packed:
                    growth.add(len(piece), file.tell(), piece.count(b"\n") if lined else 0)
                return piece

            yield iter(read, b"")
    except (EOFError, zlib.error) as error:
        problems.append(f"{path}: cut off or damaged: {_brief(error)}")
    except FileNotFoundError:
        raise missing_file(path) from None
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
    """Read a file of records: calls ``header`` with the first and ``take`` with each other record.
    If these raise one of UNUSABLE, the file is refused, or the line becomes a problem.

    schema: the schema of this version, such as ``torchcoll/2``.
    Raises UnreadableError for a file that is missing, empty, of another kind or another major
    schema, and for two files in one.
    """
    expected = f'a torchcoll {what}, whose first line holds "schema":"{schema}"'
    number = 0
    sums = CheckSums(b"")
    held, unusable = ByteBudget(what, path), Problems(problems)
    for number, line in enumerate(lines_of(path, problems, what), 1):
        if number == 1:
            held.add(line)
            try:
                data = parse_line(line)
                _check_schema(data, schema, path)
                _without_check_sum(data)
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
            if problem := sums.check(line):
                problems.append(f"{path}:{number}: {problem}")
            if unusable.is_full and line[0] not in b"{ \t\r":
                raise ValueError  # as the parser does, but without computing the position
            if long := len(line) > _PIECE:  # parsing it may take too much memory: count it first
                held.add(line)
            data = _without_check_sum(parse_line(line))
            if data["record"] == "header":
                raise _two_in_one(what, path, number)
            record = data.pop("record")
            if not long:
                (held.add_call if record == "call" else held.add)(line)  # no other file has calls
            take(record, data, line)
        except UNUSABLE as error:
            if starts_another_file(line):
                raise _two_in_one(what, path, number) from None
            if unusable.count():
                cut = "" if line.endswith(b"\n") else CUT_OFF
                unusable.add(f"{path}:{number}: unusable record{cut}: {_brief(error)}")
    unusable.end(path)
    if not number:
        raise UnreadableError(what, path, f"{expected}; this one is empty")


def damaged_lines(problems: Iterable[str]) -> list[int]:
    """The numbers of the lines that ``read_records`` could not use, from the problems it found."""
    matches = (re.search(r":(\d+): unusable record", problem) for problem in problems)
    return [int(match[1]) for match in matches if match]


def read_objects(path: Path, what: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON object of each line of a file, {} for a broken first line; skips other broken
    lines. Raises UnreadableError as ``lines_of`` does.
    """
    sums = CheckSums(b"")
    for number, line in enumerate(lines_of(path, [], what), 1):
        try:
            if number > 1:
                sums.check(line)
            elif (sums := CheckSums(line)).header_problem:
                raise ValueError(sums.header_problem)
            yield _without_check_sum(parse_line(line))
        except UNUSABLE:
            if number == 1:
                yield {}


def _without_check_sum(data: Any) -> dict[str, Any]:
    """Remove line number and check sum from a record. Raises TypeError if it is not an object."""
    if not isinstance(data, dict):
        raise TypeError("no object")
    data.pop("line", None)
    data.pop("crc", None)
    return data


def _two_in_one(what: str, path: Path, number: int) -> UnreadableError:
    action = f"Two files in one: split at line {number} (head -n {number - 1}, tail -n +{number})."
    return UnreadableError(what, path, "one header, in the first line", action)


def _check_schema(header: dict[str, Any], schema: str, path: Path) -> None:
    """Refuse other major schemas (UnreadableError), and what is no such header (UNUSABLE)."""
    family, _, version = schema.partition("/")
    recorded = header["schema"]
    if header["record"] != "header" or not recorded.startswith(f"{family}/"):
        raise ValueError
    if recorded.split("/")[1].split(".")[0] != version:
        number = recorded.split("/")[1].split(".")[0]
        action = "Install the torchcoll version that wrote it."
        if number.isdecimal() and int(number) < int(version):
            action = "Measure again: no version that was released wrote it."
        raise UnreadableError(f"schema of {path}", recorded, schema, action)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:120]


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


# orjson would save a sixth of the time, but turns whole numbers beyond 64 bits into floats.
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)


def parse_line(line: bytes) -> Any:
    """Parse a line of JSON. Raises ValueError for invalid JSON, NaN and Infinity."""
    return _DECODER.decode(line.decode("utf-8", "surrogatepass"))


_TAIL = re.compile(rb',"line":([1-9]\d{0,14}),"crc":"([0-9a-f]{8})"}\s*$')
_LONGEST_TAIL = 64  # bytes at the end that are searched: a line may be megabytes long
_HEADER = re.compile(rb'\{\s*"record"\s*:\s*"header"')  # other programs write blanks
# Shared by all lines: json.dumps would create an encoder for each.
_encoded = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class LineWriter:
    """Formats the lines of one file in order; ``continuing`` is for an existing file."""

    def __init__(self, header_crc: int = 0, lines: int = 0) -> None:
        self._crc, self._lines = header_crc, lines

    @classmethod
    def continuing(cls, path: Path) -> LineWriter:
        """A writer of the lines that follow those of ``path``. A truncated last line counts."""
        with open(path, "rb") as file:
            tail = _tail(file.readline())
            return cls(tail[2] if tail else 0, 1 + sum(1 for line in file if line.strip()))

    def line(self, data: dict[str, Any]) -> bytes:
        """Format the next line. Raises ValueError for NaN and Infinity."""
        data = {**data, "line": self._lines + 1}
        body = _encoded(data)[:-1].encode()
        crc = zlib.crc32(body, self._crc)
        self._lines += 1
        if self._lines == 1:
            self._crc = crc
        return body + b',"crc":"%08x"}\n' % crc


class CheckSums:
    """Compares the lines of a file with their check sums. header_problem: of the header, or ''."""

    def __init__(self, header: bytes) -> None:
        self.header_problem = ""
        # CRCs that the header may have had; none if the file has no check sums.
        self._crcs: set[int] = set()
        if tail := _tail(header):
            cut, _, recorded = tail
            computed = zlib.crc32(memoryview(header)[:cut])
            self._crcs = {recorded, computed}
            if recorded != computed:
                self.header_problem = "changed or damaged: it does not match its check sum"
        self._next = 2
        self._unread = 0  # lines since the last readable one
        self._seen = {1}  # numbers of readable lines

    def check(self, line: bytes) -> str:
        """Describe what is wrong before this line, or ''. Raises ValueError for an invalid line."""
        tail = _tail(line)
        if not self._crcs:
            if tail is None or self.header_problem:
                return ""
            problem = "changed or damaged: the lines below have check sums, the header has none"
            self.header_problem = problem
            return problem
        self._unread += 1
        if tail is None:
            raise ValueError("no check sum")
        cut, number, recorded = tail
        body = memoryview(line)[:cut]
        if not any(zlib.crc32(body, crc) == recorded for crc in self._crcs):
            raise ValueError("changed or damaged: it does not match its check sum")
        return self._place(number)

    def _place(self, number: int) -> str:
        """Compare the number of a line with the lines before it, as ``check`` does."""
        is_late = number < self._next
        self._unread -= is_late
        if number in self._seen:
            raise ValueError(f"line {number} a second time")
        self._seen.add(number)
        if is_late:
            return f"line {number} comes after line {self._next - 1}"
        gap, unread = range(self._next, number), self._unread - 1
        self._next, self._unread = number + 1, 0
        if len(gap) <= unread:
            return ""
        names = f"lines {gap[0]} to {gap[-1]} are" if len(gap) > 1 else f"line {gap[0]} is"
        return f"{names} missing before it"


def starts_another_file(line: bytes) -> bool:
    """Whether an invalid line is the header of another file, or ends with it if truncated."""
    match = _HEADER.search(line)
    try:
        return match is not None and isinstance(json.loads(line[match.start() :]), dict)
    except (ValueError, RecursionError):
        return False


def _tail(line: bytes) -> tuple[int, int, int] | None:
    """(number of bytes before the check sum, number of the line, check sum); None without one."""
    match = _TAIL.search(line[-_LONGEST_TAIL:])
    if match is None:
        return None
    cut = max(0, len(line) - _LONGEST_TAIL) + match.end(1)
    return cut, int(match[1]), int(match[2], 16)

"""JSON Lines as torchcoll writes them: a header with a schema, then one record a line."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import shlex
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import GZIP, MOST_LINE, Held, Problems, Unpacking
from torchcoll.core.checksums import CheckSums, begins_another
from torchcoll.core.errors import UnreadableError, nearest_file
from torchcoll.core.opening import open_to_read
from torchcoll.core.units import format_bytes

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
            if problem := sums.check(line):
                problems.append(f"{path}:{number}: {problem}")
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
    rename_old_keys(data)
    return data


# Keys of earlier files, and what they are called now.
_RENAMED = {
    "beside": "concurrent",
    "lead_ns": "ramp_up_ns",
    "lead": "ramp_up",
    "settled": "steady_after",
    "launch": "run",
    "launches": "runs",
}


def rename_old_keys(data: dict[str, Any]) -> None:
    """Give the keys of a record of an earlier version, and of the records in it that torchcoll
    chose the keys of, their present names; and a work that torchcoll did not start its prefix.
    """
    inside = ("labels", "limits", "source", "spec", "spent_ns", "versus")
    for name in inside:
        if isinstance(data.get(name), dict):
            rename_old_keys(data[name])
    for old, new in _RENAMED.items():
        if old in data:
            data[new] = data.pop(old)
    if data.get("record") == "launch":
        data["record"] = "run"
    work = data.get("concurrent")
    if isinstance(work, str) and work.startswith("external:"):
        data["concurrent"] = "background:" + work.removeprefix("external:")


def _two_in_one(what: str, path: Path, number: int) -> UnreadableError:
    action = f"Two files in one: split at line {number} (head -n {number - 1}, tail -n +{number})."
    return UnreadableError(what, path, "one header, in the first line", action)


def _check_schema(header: dict[str, Any], schema: str, path: Path) -> None:
    """``torchcoll/2.4`` is read, ``torchcoll/3`` is not."""
    family, _, version = schema.partition("/")
    recorded = header["schema"]
    if header["record"] != "header" or not recorded.startswith(f"{family}/"):
        raise ValueError
    if recorded.split("/")[1].split(".")[0] != version:
        action = "Install the torchcoll version that wrote it."
        raise UnreadableError(f"schema of {path}", recorded, schema, action)


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

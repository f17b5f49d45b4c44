"""JSON Lines as torchcoll writes them: a header with a schema, then one record a line."""

from __future__ import annotations

import gzip
import json
import math
import shlex
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import GZIP, MOST_LINE, Held, Problems, Unpacking
from torchcoll.core.checksums import CheckSums, begins_another
from torchcoll.core.errors import UnreadableError
from torchcoll.core.units import format_bytes

_RESULTS = "result file"
_IMPORT = "Where it is output of another tool: torchcoll import {} -o RUN.jsonl"
_CHUNK = 1 << 20
TRUNCATED = "truncated: the file has no end record"
# What a line that holds anything may raise.
UNUSABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def lines_of(
    path: Path, problems: list[str], what: str = _RESULTS, longest: int = MOST_LINE
) -> Iterator[bytes]:
    """The lines of a file, packed or not; a .gz that was copied in part gives those up to the cut.

    A line of more than ``longest`` bytes ends there. Raises UnreadableError when the file cannot be
    read, or unpacks as no real one does.
    """
    for number, line in enumerate(_pieces(path, problems, what, longest), 1):
        if len(line) <= longest:
            yield line
        else:
            problems.append(f"{path}:{number}: longer than {format_bytes(longest)}: cut there")
            yield line[:longest]


def chunks_of(path: Path, problems: list[str], what: str) -> Iterator[bytes]:
    """As ``lines_of``, the bytes in pieces of any length."""
    return _pieces(path, problems, what, 0)


def _pieces(path: Path, problems: list[str], what: str, longest: int) -> Iterator[bytes]:
    """Lines, of which those that are too long have one byte more; or chunks, with longest 0."""
    try:
        with open(path, "rb") as file:
            packed = file.peek(2).startswith(GZIP)
            source = gzip.GzipFile(fileobj=file) if packed else file
            growth = Unpacking(what, path)

            def grown(piece: bytes) -> None:
                if packed:
                    growth.add(len(piece), file.tell(), lines=1)

            read = _reader(source, longest, grown) if longest else partial(source.read, _CHUNK)
            for piece in iter(read, b""):
                grown(piece)
                yield piece
    except (EOFError, zlib.error) as error:
        problems.append(f"{path}: cut off or damaged: {_brief(error)}")
    except FileNotFoundError:
        raise UnreadableError(what, path, "a file that exists") from None
    except IsADirectoryError:
        raise UnreadableError(what, path, "a file, not a folder") from None
    except OSError as error:
        why = error.strerror or error  # gzip's own errors have no strerror
        raise UnreadableError(what, path, f"a readable file ({why})") from None


def _reader(source: Any, longest: int, grown: Callable[[bytes], None]) -> Callable[[], bytes]:
    """A line at each call; of one that is too long the rest is passed over."""

    cut = False

    def read() -> bytes:
        nonlocal cut
        # Not before the next is asked for: who looks at the first line reads no more than that.
        while cut and (rest := source.readline(_CHUNK)):
            grown(rest)
            cut = not rest.endswith(b"\n")
        line: bytes = source.readline(longest + 1)
        cut = len(line) > longest and not line.endswith(b"\n")
        return line

    return read


def read_records(
    path: Path,
    problems: list[str],
    what: str,
    schema: str,
    header: Callable[[dict[str, Any]], None],
    take: Callable[[str, dict[str, Any]], None],
) -> None:
    """``header`` gets the first line, ``take`` each other: the name of the record and its fields.

    What either raises of UNUSABLE refuses the file, or makes the line one of ``problems``. what:
    the kind of file, in messages. schema: that of this version, such as ``torchcoll/1``. Lines that
    do not match their check sums (core/checksums.py) are among the problems. Raises UnreadableError
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
            data = _unsealed(parse_line(line))
            if data["record"] == "header":
                raise _two_in_one(what, path, number)
            record = data.pop("record")
            (held.add_call if record == "call" else held.add)(line)  # no other file has calls
            take(record, data)
        except UNUSABLE as error:
            if begins_another(line):
                raise _two_in_one(what, path, number) from None
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
    """``torchcoll/1.4`` is read, ``torchcoll/2`` is not."""
    family, _, version = own.partition("/")
    told = header["schema"]
    if header["record"] != "header" or not told.startswith(f"{family}/"):
        raise ValueError
    if told.split("/")[1].split(".")[0] != version:
        action = "Install the torchcoll version that wrote it."
        raise UnreadableError(f"schema of {path}", told, own, action)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:120]


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)


def parse_line(line: bytes) -> Any:
    """The JSON value of a line. Raises ValueError, also for NaN and Infinity."""
    return _DECODER.decode(line.decode("utf-8", "surrogatepass"))

"""Check sums of lines, with which a reader detects damaged, lost, repeated and foreign lines.

Each line ends with ``,"line":N,"crc":"XXXXXXXX"}``: the CRC-32 of the bytes before ``,"crc"``, from
that of the header on, so that a line of another file does not match. A file whose header has no
check sum is read without checks.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

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
            self.header_problem = (
                "changed or damaged: the lines below have check sums, the header has none"
            )
            return self.header_problem
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

"""Check sums of lines: what was damaged, lost, doubled or put together is noticed by its reader.

Each line of our files ends with ``,"line":N,"crc":"XXXXXXXX"}``. line: its number among the lines
that were written, from 1. crc: CRC-32 (zlib's) of the bytes of the line before ``,"crc"``, in
eight hexadecimal digits. It is begun with the crc of the header, that of the header with 0, so
that a line of another file does not fit either. A file whose header has none, of hand or of
another program, is read without checks.
"""

from __future__ import annotations

import json
import re
import zlib
from bisect import bisect
from pathlib import Path
from typing import Any

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
            cut, _, recorded = tail
            computed = zlib.crc32(memoryview(header)[:cut])
            self._crcs = {recorded, computed}
            if recorded != computed:
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
        cut, number, recorded = tail
        body = memoryview(line)[:cut]
        if not any(zlib.crc32(body, crc) == recorded for crc in self._crcs):
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
    match = _HEADER.search(line)
    try:
        return match is not None and isinstance(json.loads(line[match.start() :]), dict)
    except (ValueError, RecursionError):
        return False


def _tail(line: bytes) -> tuple[int, int, int] | None:
    """(bytes that the check sum is of, number, check sum) of a line; None where it has none."""
    match = _TAIL.search(line[-_LONGEST_TAIL:])
    if match is None:
        return None
    cut = max(0, len(line) - _LONGEST_TAIL) + match.end(1)
    return cut, int(match[1]), int(match[2], 16)

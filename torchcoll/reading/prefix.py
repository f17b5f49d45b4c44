"""Removes what terminals and launchers put before the lines of a log, and into them.

There are too many launchers for a list of their prefixes, and wiki pages also indent and quote. So
an importer's STARTS tells how its rows, headings and titles begin, and all text before a match is a
prefix. Lines without a match (half a row, a row with only numbers) lose a prefix that looks like
the last one that was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchcoll.reading.base import Line

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# Tags of mpirun --tag-output and prterun; also within a line, if two writes end up in one line.
_TAG = re.compile(r"\[(?:[\w.-]{1,255}@)?\d+,\d+\]<\w+>:[ \t]?")
_MOST = 256  # characters of a prefix; longer texts are not prefixes
_NUMBER = re.compile(r"\d+")
_BLANKS = re.compile(r"(?:\\\s|\s)+")


def cleaned(text: str) -> list[str]:
    """The lines of a text without ANSI codes, mpirun's tags, and earlier states of a bar."""
    lines = text.split("\n")
    # Most texts have none of these, and a check of many lines at once is cheap.
    if "\x1b" in text:
        lines = [_ANSI.sub("", line) for line in lines]
    if "\r" in text:
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    if "<" in text:
        lines = [_TAG.sub("", line) if "]<" in line else line for line in lines]
    return lines


class Unprefixed:
    """Lines without their prefixes."""

    def __init__(self, lines: Iterable[Line], starts: re.Pattern[str]) -> None:
        self._lines, self._search = lines, starts.search
        self._prefix = ""
        self._shape: re.Pattern[str] | None = None

    def __iter__(self) -> Iterator[Line]:
        for number, text in self._lines:
            yield number, self.strip_prefix(text)

    def strip_prefix(self, text: str) -> str:
        begin = self._search(text)
        if begin is None:
            if self._shape and (match := self._shape.match(text)):
                return text[match.end() :]
            return text
        start = begin.start()
        # Blanks before a number are kept, because columns of fixed width begin with them.
        blanks = text[start].isdigit()
        if not start or text[:start].isspace():
            return text if blanks else text[start:]
        prefix = text[:start].rstrip()
        if prefix != self._prefix:
            self._prefix = prefix
            self._shape = _shape(prefix) if len(prefix) <= _MOST else None
        return text[len(prefix) if blanks else start :]


def _shape(prefix: str) -> re.Pattern[str]:
    """A pattern for such prefixes with any numbers and blanks, since time stamps change."""
    blanks = _BLANKS.sub(r"\\s+", re.escape(prefix.lstrip()))
    return re.compile(r"\s*" + _NUMBER.sub(r"\\d+", blanks))

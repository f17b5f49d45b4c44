"""What terminals and launchers put before the lines of a log, and into them.

There are too many launchers for a list of their prefixes, and a page of a wiki indents and quotes
besides. So a line of a format is found by looking for it: an importer says by STARTS how its rows,
headings and titles begin. What stands before one is a prefix, and lines that STARTS does not know
(half a row, a row of numbers alone) lose what looks like the last prefix that was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchcoll.importers.base import Line

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# mpirun --tag-output and prterun's: also inside a line, where two writes make one of it.
_TAG = re.compile(r"\[(?:[\w.-]{1,255}@)?\d+,\d+\]<\w+>:[ \t]?")
_MOST = 256  # characters of a prefix: what is longer is another text
_NUMBER = re.compile(r"\d+")
_BLANKS = re.compile(r"(?:\\\s|\s)+")


def cleaned(text: str) -> list[str]:
    """The lines of a text without ANSI codes and mpirun's tags; a progress bar's line is what it
    showed last.
    """
    lines = text.split("\n")
    # Most texts have none of these: to ask it of many lines at once costs nothing.
    if "\x1b" in text:
        lines = [_ANSI.sub("", line) for line in lines]
    if "\r" in text:
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    if "<" in text:
        lines = [_TAG.sub("", line) if "]<" in line else line for line in lines]
    return lines


class Unprefixed:
    """Lines from where what their format writes begins, as far as that is known."""

    def __init__(self, lines: Iterable[Line], starts: re.Pattern[str]) -> None:
        self._lines, self._search = lines, starts.search
        self._prefix = ""
        self._shape: re.Pattern[str] | None = None

    def __iter__(self) -> Iterator[Line]:
        for number, text in self._lines:
            yield number, self.rest(text)

    def rest(self, text: str) -> str:
        begin = self._search(text)
        if begin is None:
            if self._shape and (match := self._shape.match(text)):
                return text[match.end() :]
            return text
        start = begin.start()
        # Blanks before a number stay: columns of fixed width begin with them.
        blanks = text[start].isdigit()
        if not start or text[:start].isspace():
            return text if blanks else text[start:]
        prefix = text[:start].rstrip()
        if prefix != self._prefix:
            self._prefix = prefix
            self._shape = _shape(prefix) if len(prefix) <= _MOST else None
        return text[len(prefix) if blanks else start :]


def _shape(prefix: str) -> re.Pattern[str]:
    """The prefix with any digits in place of its own, and any blanks: stamps and numbers change."""
    blanks = _BLANKS.sub(r"\\s+", re.escape(prefix.lstrip()))
    return re.compile(r"\s*" + _NUMBER.sub(r"\\d+", blanks))

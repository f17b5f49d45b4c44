"""Where a report goes: a terminal with a width, or a pipe or file without one."""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, TextIO

from torchcoll.core.errors import printable
from torchcoll.core.units import one_line as one_line


def is_terminal(file: TextIO) -> bool:
    """Whether lines can be written over: TERM=dumb says no, where a launcher fakes a terminal."""
    return file.isatty() and os.environ.get("TERM") != "dumb"


class Output:
    """A text stream, and what it can show.

    ``width`` is None where the stream is no terminal: nothing is wrapped or left out there. Text
    that the stream's encoding lacks is escaped, because a table must not fail in an ASCII locale.
    """

    def __init__(self, file: TextIO | None = None, width: int | None = None) -> None:
        # Python has no stdout where it was closed before the start (`>&-`).
        self.file = file or sys.stdout or io.StringIO()
        self.terminal = is_terminal(self.file)
        if width is None and self.terminal:
            width = shutil.get_terminal_size().columns  # honours COLUMNS
        self.width = width

    def write(self, text: str) -> None:
        encoding = getattr(self.file, "encoding", None) or "utf-8"
        # Once for all reports: labels, hosts and file names may hold what a terminal obeys.
        if not text.replace("\n", "").isprintable():
            text = "\n".join(map(printable, text.split("\n")))
        self.file.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def lines(self, lines: Iterable[str]) -> None:
        """Each as a line of its own; on a terminal, long ones are wrapped between words."""
        for line in lines:
            self.write(self.wrapped(printable(line)) + "\n")

    def lines_unwrapped(self, lines: Iterable[str]) -> None:
        """As ``lines`` for the rows of a table: a row is one line whatever the width."""
        for line in lines:
            self.write(printable(line) + "\n")

    def styled(self, line: str, style: str) -> None:
        """As ``lines`` for one, in a style of rich where the terminal can show it."""
        console = self.console() if style else None
        if console is None:
            self.lines([line])
            return
        from rich.text import Text

        console.print(Text(self.wrapped(printable(line)), style=style), soft_wrap=True)

    def wrapped(self, line: str) -> str:
        if self.width is None or len(line) <= self.width:
            return line
        return textwrap.fill(
            line,
            max(self.width, 20),
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )

    def flush(self) -> None:
        self.file.flush()

    def console(self) -> Any:
        """A rich console on a terminal; None elsewhere, and where rich is not installed.

        rich is imported here and not above: ranks must run with torch alone, and a pipe needs no
        rich. Width and colour are rich's own reading of COLUMNS and NO_COLOR. It fails at a
        character that the terminal's encoding lacks, so it is left out there too.
        """
        encoding = getattr(self.file, "encoding", None) or "utf-8"
        if not self.terminal or not encoding.lower().startswith("utf"):
            return None
        try:
            from rich.console import Console
        except ImportError:
            return None
        return Console(file=self.file, width=self.width, highlight=False, emoji=False, markup=False)

"""Where output goes: a terminal with a width, a pipe or file without one, or a new file beside it.

No file is overwritten unasked, and no link is followed.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from torchcoll.core.errors import UsageError, printable
from torchcoll.core.opening import not_written, replace_file


def is_terminal(file: TextIO) -> bool:
    """Whether lines can be written over: TERM=dumb says no, where a launcher fakes a terminal."""
    return file.isatty() and os.environ.get("TERM") != "dumb"


PIPE_COLUMNS = 120  # of a pipe or a file, where COLUMNS does not say otherwise
_WAITING_S = 2.0


class Destination:
    """A text stream, and what it can show.

    width: of a terminal its own; of a pipe or a file COLUMNS, else PIPE_COLUMNS. Text that the
    stream's encoding lacks is escaped, because a table must not fail in an ASCII locale.
    """

    def __init__(self, file: TextIO | None = None, width: int | None = None) -> None:
        if file is not None and not hasattr(file, "isatty"):
            raise UsageError("file", type(file).__name__, "an open text file, such as sys.stderr")
        # Python has no stdout where it was closed before the start (`>&-`).
        self.file = file or sys.stdout or io.StringIO()
        self.terminal = is_terminal(self.file)
        if width is None:
            columns = os.environ.get("COLUMNS", "")
            width = int(columns) if columns.isdecimal() else 0
            # Without COLUMNS get_terminal_size asks the terminal of stdout.
            width = shutil.get_terminal_size().columns if self.terminal else width or PIPE_COLUMNS
        self.width = width

    def write(self, text: str) -> None:
        encoding = getattr(self.file, "encoding", None) or "utf-8"
        # Once for all reports: labels, hosts and file names may hold what a terminal obeys.
        if not text.replace("\n", "").isprintable():
            text = "\n".join(map(printable, text.split("\n")))
        self.file.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def lines(self, lines: Iterable[str]) -> None:
        """Write each line; long ones are wrapped between words."""
        for line in lines:
            self.write(self.wrapped(printable(line)) + "\n")

    def lines_unwrapped(self, lines: Iterable[str], styles: Iterable[str] = ()) -> None:
        """Write each line whatever its width, such as a row of a table, in a style of rich."""
        console = self.console()
        for line, style in itertools.zip_longest(lines, styles, fillvalue=""):
            if console and style:
                # rich cuts lines that do not fit; a line that the terminal wraps is still complete.
                console.print(printable(line), style=style, soft_wrap=True)
            else:
                self.write(printable(line) + "\n")

    def styled(self, line: str, style: str, length: int | None = None) -> None:
        """Write a line, of which the first ``length`` characters (None: all) are in a style."""
        console = self.console() if style else None
        if console is None:
            self.lines([line])
            return
        from rich.text import Text

        wrapped = self.wrapped(printable(line))
        end = len(wrapped) if length is None else length
        while length and (longer := length + 2 * wrapped[:end].count("\n")) > end:
            end = longer  # each line break adds the two blanks of the indent
        text = Text(wrapped)
        text.stylize(style, 0, end)
        console.print(text, soft_wrap=True)

    def wrapped(self, line: str) -> str:
        if len(line) <= self.width:
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
        """A rich console for a terminal in UTF-8 if rich is installed: ranks must do without it."""
        encoding = getattr(self.file, "encoding", None) or "utf-8"
        if not self.terminal or not encoding.lower().startswith("utf"):
            return None
        try:
            from rich.console import Console
        except ImportError:
            return None
        return Console(file=self.file, width=self.width, highlight=False, emoji=False, markup=False)


_ACTION = "Name another file, or replace it with --force."


def check_new(path: str | os.PathLike[str], what: str, force: bool = False) -> None:
    """Raises UsageError for a file that exists, a link too, unless ``force``.

    what: the option that names it, in the message. As ``output`` ``-`` is stdout.
    """
    if path == "-":
        if what != "output":
            raise UsageError(what, path, "a file", "What is shown goes to stdout.")
        return
    if os.path.isdir(path) and not os.path.islink(path):
        raise UsageError(what, path, "a file that can be written (Is a directory)")
    if os.path.lexists(path) and not force:
        raise UsageError(what, path, "a file that does not exist", _ACTION)


def write_file(
    path: str | os.PathLike[str], content: str | bytes, what: str, force: bool = False
) -> None:
    """Writes or (force) replaces a file as a whole, never through a link. ``-`` is stdout."""
    check_new(path, what, force)
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return
    try:
        replace_file(Path(path), data, only_new=not force)
    except FileExistsError:
        raise UsageError(what, path, "a file that does not exist", _ACTION) from None
    except OSError as error:
        raise not_written(what, path, error) from None


def free_name(path: str) -> str:
    """The name, with a number where it is taken: ``torchcoll-2.png``."""
    stem, suffix = os.path.splitext(path)
    free, number = path, 1
    while os.path.lexists(free):
        number += 1
        free = f"{stem}-{number}{suffix}"
    return free


_BAR = 12  # with the name of a case after it, the line fits into 80 columns


def clock_text(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class TextWithoutAnswer(io.StringIO):
    """A text in memory, whose reader shows the answer in another way: ``print_answer`` skips it."""


class RunProgress:
    """Cases done of all cases, elapsed time, and time left if the rest is like what was done."""

    def __init__(self, total: int, now: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.finished = 0
        self._now = now
        self._start = now()

    def text(self, doing: str = "") -> str:
        elapsed = self._now() - self._start
        left = None
        if 0 < self.finished < self.total:
            left = elapsed / self.finished * (self.total - self.finished)
        filled = _BAR * self.finished // self.total if self.total else _BAR
        parts = [
            f"[{'#' * filled}{'.' * (_BAR - filled)}] {self.finished}/{self.total}",
            f"elapsed {clock_text(elapsed)}",
        ]
        if left is not None:
            parts.append(f"left {clock_text(left)}")
        return "  ".join([*parts, doing] if doing else parts)


class ProgressLine:
    """A progress text that stays on the last line of a terminal. Elsewhere it writes nothing."""

    def __init__(self, file: TextIO | None, width: int) -> None:
        self._file = file if file and is_terminal(file) else None
        self._width = width

    def show(self, text: str) -> None:
        if self._file:
            self._file.write(f"\r\x1b[K{text[: self._width - 1]}")
            self._file.flush()

    def clear(self) -> None:
        if self._file:
            self._file.write("\r\x1b[K")
            self._file.flush()


@contextlib.contextmanager
def show_waiting(what: str) -> Iterator[None]:
    """Says on stderr, if it is a terminal, that a command which takes over 2 s is still working.

    Not for ranks: a thread would take the interpreter lock from timed calls.
    """
    if not (sys.stderr and is_terminal(sys.stderr)):
        yield
        return
    timer = threading.Timer(_WAITING_S, print, [f"{what} is working ..."], {"file": sys.stderr})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

"""How far a run is, in one line."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from torchcoll.report.output import is_terminal

_BAR = 12  # with the name of a case after it, the line fits into 80 columns


def _clock_text(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Progress:
    """Cases done of all cases, elapsed time, and time left if the rest is like what was done."""

    def __init__(self, total: int, now: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.finished = 0
        self._now = now
        self._start = now()

    def text(self, doing: str = "") -> str:
        elapsed = self._now() - self._start
        filled = _BAR * self.finished // self.total if self.total else _BAR
        words = [
            f"[{'#' * filled}{'.' * (_BAR - filled)}] {self.finished}/{self.total}",
            f"elapsed {_clock_text(elapsed)}",
        ]
        if 0 < self.finished < self.total:
            left = elapsed / self.finished * (self.total - self.finished)
            words.append(f"left {_clock_text(left)}")
        return "  ".join([*words, doing] if doing else words)


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

"""Something to see on a terminal until a command prints its first line.

For the console command, which times nothing. Of a measurement rank 0 says what it does itself
(bench/main.py): a thread here would take the interpreter lock from its timed calls.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from torchcoll.report.destination import ProgressLine, is_terminal

_AFTER_S, _EVERY_S = 0.3, 0.5


class _ClearingStream:
    """A stream that clears the line before the first text goes into it."""

    def __init__(self, stream: Any, clear: Any) -> None:
        self._stream, self._clear = stream, clear

    def write(self, text: str) -> Any:
        self._clear()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def show_waiting(what: str) -> Iterator[None]:
    """``torchcoll compare ... 3 s`` on stderr, where it is a terminal, until something is
    printed.
    """
    out, err = sys.stdout, sys.stderr
    if not (out and err and is_terminal(err)):
        yield
        return
    line = ProgressLine(err, shutil.get_terminal_size().columns)
    over, lock, start = threading.Event(), threading.Lock(), time.monotonic()

    def clear() -> None:
        with lock:
            if not over.is_set():
                over.set()
                line.clear()

    def tell() -> None:
        pause = _AFTER_S
        while not over.wait(pause):
            with lock:
                if not over.is_set():
                    line.show(f"{what} ... {time.monotonic() - start:.0f} s")
            pause = _EVERY_S

    thread = threading.Thread(target=tell, name="torchcoll-waiting", daemon=True)
    thread.start()
    sys.stdout, sys.stderr = _ClearingStream(out, clear), _ClearingStream(err, clear)
    try:
        yield
    finally:
        clear()
        sys.stdout, sys.stderr = out, err
        thread.join()

"""A command that can read some of its files names and skips the others, and exits with 1. In
Python, outside ``skipping_unreadable``, such a file raises its error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

from torchcoll.core.errors import UnreadableError, tell
from torchcoll.core.units import counted, shorten, shorten_list

_NAMED = 4  # at most so many kinds of errors are printed
_ALIKE = 3  # at most so many further files with the same error are named
_SKIPPED: ContextVar[list[UnreadableError] | None] = ContextVar("skipped", default=None)


@contextlib.contextmanager
def skipping_unreadable() -> Iterator[list[UnreadableError]]:
    """In this block files of several that cannot be read are skipped. Yields their errors."""
    skipped: list[UnreadableError] = []
    token = _SKIPPED.set(skipped)
    try:
        yield skipped
    finally:
        _SKIPPED.reset(token)


def may_skip() -> bool:
    return _SKIPPED.get() is not None


def skip(refused: Sequence[UnreadableError], others: bool) -> None:
    """Name the unreadable files, one line for each error. Raises the last one without others."""
    kinds: dict[str, list[UnreadableError]] = {}
    for error in refused:
        without_files = (token for token in str(error).split() if not _file_in(token))
        kinds.setdefault(" ".join(without_files), []).append(error)
    errors = [_one_of(alike) for alike in kinds.values()]
    last = errors.pop() if errors and not others else None
    name = "skipped" if others else "error"
    for text in shorten_list(list(map(str, errors)), _NAMED, "{} more errors of files"):
        tell(f"torchcoll: {name}: {text}")
    if last:
        raise last
    if (skipped := _SKIPPED.get()) is not None:
        skipped += refused


def _file_in(token: str) -> str:
    """The file that a token of a message names; '' for any other token."""
    path = token.rstrip(".,:;")
    return path if os.path.isfile(path) else ""


def _one_of(alike: Sequence[UnreadableError]) -> UnreadableError:
    """The first of several errors that differ in the file alone, with the names of the others."""
    first, *further = alike
    if not further:
        return first
    files = (next(filter(None, map(_file_in, str(error).split())), "") for error in further)
    names = [os.path.basename(file) for file in files]
    of_others = f"The same of {counted(len(names), 'more file')}: {shorten(names, _ALIKE)}"
    return type(first)(f"{str(first).rstrip('.')}. {of_others}")

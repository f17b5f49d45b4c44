"""A command that can read some of its files names and skips the others, and exits with 1. In
Python, outside ``skipping_unreadable``, such a file raises its error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

from torchcoll.core.errors import UnreadableError, tell
from torchcoll.core.units import shorten_list

_NAMED = 5  # at most so many files are named
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
    """Name the files that cannot be read. Raises the last error if there are no other files."""
    texts = list(map(str, refused))
    if refused and not others:
        for text in shorten_list(texts[:-1], _NAMED, "{} more files that cannot be read"):
            tell(f"torchcoll: error: {text}")
        raise refused[-1]
    for text in shorten_list(texts, _NAMED, "{} more files that cannot be read"):
        tell(f"torchcoll: skipped: {text}")
    if (skipped := _SKIPPED.get()) is not None:
        skipped += refused

"""Unions of time intervals: how long one thing runs while another does."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from torchcoll.core.traffic import Span


def merged(spans: Iterable[Span]) -> list[Span]:
    """Merge intervals into ascending ones that do not touch."""
    union: list[Span] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        elif end > start:
            union.append((start, end))
    return union


class Union:
    """A union of intervals, which computes quickly how much of a span it covers."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = merged(spans)
        self._starts = [start for start, _ in self._spans]
        self._before = [0]  # total length of the intervals before each
        for start, end in self._spans:
            self._before.append(self._before[-1] + end - start)

    @property
    def total(self) -> int:
        """The length of the union."""
        return self._before[-1]

    def _until(self, time: int) -> int:
        """The length of the part of the union before a time."""
        count = bisect_right(self._starts, time)
        over = max(0, self._spans[count - 1][1] - time) if count else 0
        return self._before[count] - over

    def within(self, start: int, end: int) -> int:
        """How much of the span from start to end is covered."""
        return self._until(end) - self._until(start) if end > start else 0


def exposed(spans: Sequence[Span], hiding: Union) -> list[int]:
    """Compute how long each span is covered neither by ``hiding`` nor by an earlier span.

    The sum of the result is the time during which at least one span, and nothing of ``hiding``, was
    running.
    """
    exposed_ns = [0] * len(spans)
    reached: int | None = None
    for index in sorted(range(len(spans)), key=lambda i: spans[i]):
        start, end = spans[index]
        start = start if reached is None else max(start, reached)
        if end > start:
            exposed_ns[index] = end - start - hiding.within(start, end)
            reached = end
    return exposed_ns

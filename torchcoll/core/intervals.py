"""Unions of intervals of time: what runs while something else does."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

Span = tuple[int, int]  # start, end


def merged(spans: Iterable[Span]) -> list[Span]:
    """The union, as intervals that do not touch, ascending."""
    union: list[Span] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        elif end > start:
            union.append((start, end))
    return union


class Union:
    """The union of intervals, asked many times how much of a span it covers."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = merged(spans)
        self._starts = [start for start, _ in self._spans]
        self._before = [0]  # what all intervals up to each cover together
        for start, end in self._spans:
            self._before.append(self._before[-1] + end - start)

    @property
    def total(self) -> int:
        return self._before[-1]

    def _until(self, time: int) -> int:
        place = bisect_right(self._starts, time)
        over = max(0, self._spans[place - 1][1] - time) if place else 0
        return self._before[place] - over

    def within(self, start: int, end: int) -> int:
        """How much of the span from start to end is covered."""
        return self._until(end) - self._until(start) if end > start else 0


def exposed(spans: Sequence[Span], hiding: Union) -> list[int]:
    """Of each span, how long neither ``hiding`` nor a span that began earlier covers it.

    So the sum is the time in which some span and nothing else was running.
    """
    exposed_ns = [0] * len(spans)
    reached: int | None = None
    for place in sorted(range(len(spans)), key=lambda i: spans[i]):
        start, end = spans[place]
        start = start if reached is None else max(start, reached)
        if end > start:
            exposed_ns[place] = end - start - hiding.within(start, end)
            reached = end
    return exposed_ns

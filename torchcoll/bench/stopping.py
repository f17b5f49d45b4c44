"""When a case has been measured enough: a plain rule that is fed numbers.

Only rank 0 has one. Clocks differ: ranks that each watched their own time disagreed 2 times in 60,
and a disagreement is a hang.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from torchcoll.core.summary import median, over_ranks, relative_half_width

FIRST_BATCH = 5
MIN_CALLS = 20
# Precision looks at the medians of the last so many batches; doubling reaches the cap of 1000 calls
# with the 8th.
PRECISION_BATCHES = 10
# Calls are autocorrelated: the textbook interval of the median covers 5 to 60 %. Medians of
# batches are nearly independent; fewer than four of them say nothing about their spread.
MIN_PRECISION_BATCHES = 4
PATIENCE = 10  # slow calls end before MIN_CALLS when so many times the time limit has passed


def cap_calls(ranks: int) -> int:
    """The most steady calls of a case: 1024 ranks x 30 cases x 1000 calls would be 220 MB."""
    return min(1000, max(MIN_CALLS, 200_000 // ranks))


def completions(everyone: list[dict[str, list[int]]]) -> list[float]:
    """The completion of each call of a batch, [rank][clock]: the maximum over ranks."""
    return over_ranks([next(iter(clocks.values())) for clocks in everyone])


class StoppingRule:
    """Batches double from 5 until a reason to stop; ``reason`` is then count, precision, time, cap.

    ``iters`` fixes the number of calls (0: none). Feed each batch's durations to ``add``, ask
    ``next_batch`` for the size of the next one, 0 to stop.
    """

    def __init__(self, ranks: int, iters: int | None, precision: float, max_time_s: float) -> None:
        self.iters = iters
        self.precision = precision
        self.max_time_ns = max_time_s * 1e9
        self.cap = cap_calls(ranks)
        self.calls = 0
        self.reason = ""
        self._batch = FIRST_BATCH
        self._slowest_ns = 0.0  # the longest mean of a batch, to plan the next one by
        self._medians: deque[float] = deque(maxlen=PRECISION_BATCHES)

    def next_batch(self, elapsed_ns: float) -> int:
        """Calls of the next batch, 0 when done; ``elapsed_ns`` since the first steady call."""
        self.reason = self._reason(elapsed_ns)
        if self.reason:
            return 0
        limit = self.iters if self.iters is not None else self.cap
        batch = min(self._batch, limit - self.calls)
        if self.iters is None and self._slowest_ns:
            # Do not overshoot the time by a batch that was doubled once too often.
            affordable = int((self.max_time_ns - elapsed_ns) / self._slowest_ns)
            batch = min(batch, max(affordable, MIN_CALLS - self.calls, 1))
            if elapsed_ns >= self.max_time_ns:
                batch = min(batch, FIRST_BATCH)
        self._batch *= 2
        return batch

    def _reason(self, elapsed_ns: float) -> str:
        if self.iters is not None:
            return "count" if self.calls >= self.iters else ""
        late = elapsed_ns >= self.max_time_ns
        if late and (self.calls >= MIN_CALLS or elapsed_ns >= PATIENCE * self.max_time_ns):
            return "time"
        if self.calls >= MIN_CALLS and self.reached_precision() <= self.precision:
            return "precision"
        return "cap" if self.calls >= self.cap else ""

    def add(self, durations_ns: Sequence[float], calls: int | None = None) -> None:
        """One batch of ``calls`` calls, read over ranks; None: each duration is a call."""
        self.calls += len(durations_ns) if calls is None else calls
        self._medians.append(median(durations_ns))
        self._slowest_ns = max(self._slowest_ns, sum(durations_ns) / len(durations_ns))

    def reached_precision(self) -> float:
        """Relative half-width reached so far; infinite before there are enough batches."""
        if len(self._medians) < MIN_PRECISION_BATCHES or min(self._medians) <= 0:
            return float("inf")
        return relative_half_width(list(self._medians))


class SettlingRule:
    """Cold calls go on until two in a row are within 1.5 of the smallest so far.

    At least ``least`` calls, at most 20 (or ``least``, if that is more) and 5 s. ``settled`` is the
    number of calls after which the rule held, None if it never did.
    """

    WITHIN = 1.5
    MOST = 20
    MOST_NS = 5_000_000_000

    def __init__(self, least: int) -> None:
        self.least = least
        self._durations: list[int] = []

    def add(self, duration_ns: int) -> None:
        self._durations.append(duration_ns)

    @property
    def settled(self) -> int | None:
        # Looked for afresh: a faster call shows that two slow ones in a row had not settled.
        near = self.WITHIN * min(self._durations, default=0)
        pairs = zip(self._durations, self._durations[1:], strict=False)
        return next((k for k, pair in enumerate(pairs, 2) if max(pair) <= near), None)

    @property
    def done(self) -> bool:
        calls = len(self._durations)
        if calls < self.least:
            return False
        limit = calls >= max(self.MOST, self.least) or sum(self._durations) >= self.MOST_NS
        return limit or self.settled is not None

"""A clock for tests of timing, without time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable


class FakeClock:
    """A clock that only advances when a call of this class does.

    ``now`` returns the time. ``call(durations)`` returns a function whose n-th call takes the n-th
    duration in ns. ``noisy(median_ns, spread)`` returns a function with log-normal durations from
    the seed.
    """

    def __init__(self, seed: int = 0) -> None:
        self.time_ns = 0
        self._random = random.Random(seed)

    def now(self) -> int:
        return self.time_ns

    def call(self, durations: Iterable[int]) -> Callable[[], None]:
        remaining = iter(durations)

        def pass_time() -> None:
            self.time_ns += next(remaining)

        return pass_time

    def noisy(self, median_ns: int, spread: float = 0.1) -> Callable[[], None]:
        def pass_time() -> None:
            self.time_ns += round(median_ns * self._random.lognormvariate(0, spread))

        return pass_time

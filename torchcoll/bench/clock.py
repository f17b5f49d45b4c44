"""The seam between what is timed and how time passes.

Timing loops take a ``now`` that returns nanoseconds; on machines it is ``time.perf_counter_ns``
(monotonic, not steered by NTP in steps). FakeClock replaces it in tests, ours and users'.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

Now = Callable[[], int]


class FakeClock:
    """Time that passes only when told to.

    ``now`` is the clock; ``call(durations)`` gives a function that lasts so many ns, one duration
    a call; ``noisy(median_ns, spread)`` gives one whose durations are log-normal, by seed.
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

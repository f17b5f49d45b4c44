"""The timed loops. What stands between two stamps is one call and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable

Call = Callable[[], object]
Now = Callable[[], int]


def time_isolated(
    call: Call, align: Call, samples: list[int], calls: int, now: Now = time.perf_counter_ns
) -> None:
    """Append ``calls`` durations in ns to ``samples``: ``align`` before each, outside the stamps.

    The call is complete when it returns (synchronous CPU backends).
    """
    append = samples.append
    for _ in range(calls):
        align()
        start = now()
        call()
        append(now() - start)


def time_stream(
    call: Call, samples: list[int], calls: int, now: Now = time.perf_counter_ns
) -> None:
    """As ``time_isolated``, but back to back: each call ends where the next begins, no barrier."""
    append = samples.append
    start = now()
    for _ in range(calls):
        call()
        end = now()
        append(end - start)
        start = end


def nothing() -> None:
    """The no-op whose timed loop is the cost of measuring."""

"""algbw and busbw: each formula once.

Source: nccl-tests doc/PERFORMANCE.md. GB = 10**9 bytes, so bytes per nanosecond are GB/s.
"""

from __future__ import annotations

from torchcoll.core.collectives import COLLECTIVES


def algbw_gbps(collective: str, nbytes: int, ranks: int, time_ns: float) -> float | None:
    """S / t in GB/s; None where there is no communication (one rank), no data or no time.

    ``nbytes`` is the actual size S of the case, not what one rank holds. hypercube counts
    (n - 1) / n of S as nccl-tests does.
    """
    entry = COLLECTIVES[collective]
    if ranks < 2 or nbytes == 0 or time_ns <= 0 or not entry.has_data:
        return None
    return nbytes * entry.moved(ranks) / time_ns


def busbw_gbps(collective: str, nbytes: int, ranks: int, time_ns: float) -> float | None:
    """algbw times the bus factor of the collective, in GB/s; None as for ``algbw_gbps``."""
    algbw = algbw_gbps(collective, nbytes, ranks, time_ns)
    return None if algbw is None else algbw * COLLECTIVES[collective].bus_factor(ranks)

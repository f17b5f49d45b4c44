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


def busbw_gbps(
    collective: str, nbytes: int, ranks: int, time_ns: float, busiest_nbytes: int | None = None
) -> float | None:
    """algbw times the bus factor of the collective, in GB/s; None as for ``algbw_gbps``.

    all_to_all_v: ``busiest_nbytes`` / t, what the busiest rank sends to the others or receives from
    them; None where that is not known. (n - 1) / n of S, which nccl-tests prints, is what crosses
    in an even exchange: with uneven blocks a rank may keep next to nothing, or nearly all, of S.
    """
    algbw = algbw_gbps(collective, nbytes, ranks, time_ns)
    if algbw is None:
        return None
    entry = COLLECTIVES[collective]
    if entry.has_splits:
        return None if busiest_nbytes is None else busiest_nbytes / time_ns
    return algbw * entry.bus_factor(ranks)

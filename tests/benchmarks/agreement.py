"""What one agreement of all ranks costs: every rank's word to rank 0, one decision back."""

from __future__ import annotations

import os
import statistics
import time

from common import fork_ranks, free_port, tcp_store, title

from torchcoll.bench.control import Control

ROUNDS = 200


def agree(rank: int, port: int, ranks: int) -> list[float]:
    control = Control(tcp_store(rank, ranks, port), rank, ranks, timeout_s=60)
    control.align()
    durations = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        control.agree(None)
        durations.append((time.perf_counter_ns() - start) / 1e6)
    control.leave()
    return durations


if __name__ == "__main__":
    title(f"agreement over the store, median of {ROUNDS} rounds on rank 0")
    for ranks in (2, 8, 32, 64):
        middle = statistics.median(fork_ranks(ranks, agree, free_port(), ranks)[0])
        print(f"{ranks:3} ranks on {os.cpu_count()} cores: {middle:7.3f} ms")

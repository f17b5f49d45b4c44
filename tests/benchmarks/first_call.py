"""Is the first call of a case on a connected communicator aligned as well as the others?

55 cases of all_reduce, each 64 B larger than the last, in one launch of 2 gloo ranks: nothing but
the size is new to a case, so its first call should take what the others take. First call over the
median of the steady ones, and the second call over it; a median over the cases of a launch, and
over all launches. A/A: the first steady call over the median. Skew: how far apart the ranks of this
host entered the first call, by cold_start_ns.

    chrt -f 50 python tests/benchmarks/first_call.py
"""

from __future__ import annotations

import os
import statistics

import torch
from common import fork_ranks, free_port, interval, title

import torchcoll
from torchcoll.core.spec import Spec
from torchcoll.core.summary import over_ranks, summarise

LAUNCHES, CASES, STEP = 5, 55, 64
torch.set_num_threads(1)


def measure(rank: int, port: int) -> list[tuple[float, float, float, float]]:
    """Of each case but the first, which meets a new communicator: first, second and a steady call
    over the median, and the skew of the first call in ns.
    """
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank))
    os.environ.update(WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    sizes = tuple(4096 + STEP * i for i in range(CASES + 1))
    run = torchcoll.run(Spec(sizes=sizes, iters=50))
    found = []
    for result in run.results[1:] if run else ():
        row, steady = summarise(result), over_ranks(result.time_ns["host"])
        middle = row.median_ns or 1.0
        skew = abs(result.cold_start_ns[0][0] - result.cold_start_ns[1][0])
        second = (row.second_call_ns or 0) / middle
        found.append(((row.first_call_ns or 0) / middle, second, steady[0] / middle, float(skew)))
    return found


if __name__ == "__main__":
    fifo = os.sched_getscheduler(0) == os.SCHED_FIFO
    title(
        f"first calls, gloo, 2 ranks, {'SCHED_FIFO' if fifo else 'plain scheduling'}, "
        f"{CASES} cases, each {STEP} B larger"
    )
    every = []
    for launch in range(LAUNCHES):
        found = fork_ranks(2, measure, free_port())[0]
        every += found
        first, second, steady, skew = (statistics.median(c) for c in zip(*found, strict=True))
        print(
            f"launch {launch + 1}: first / median {first:.2f}, second {second:.2f}, "
            f"a steady call (A/A) {steady:.2f}; skew of the first call {skew / 1000:.1f} us",
            flush=True,
        )
    for name, column in zip(("first", "second", "a steady call (A/A)"), zip(*every, strict=True),
                            strict=False):  # fmt: skip
        middle, low, high = interval(column, 90)
        print(f"all: {name} / median {middle:.3f} (90 % {low:.3f} to {high:.3f})")

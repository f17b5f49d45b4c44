"""Does the timed loop change what it measures? Its calls against those of a bare loop.

Blocks follow each other without a pause here, so what a case does between its batches (a gather, a
decision, a refill, and the ramp-up calls after them) is not in these figures: steady.py has whole
cases beside a bare loop of the same pacing. That is why a review of whole cases found 1.026, 1.077
and 1.017 at 8 B, 64K and 1M where this found 0.991, 1.017 and 0.987: both were right, of different
things. Its medians had the slow calls after each interruption in them; now ramp-up
calls take those.

Both align by a barrier before every call, on the group of a torchcoll Session whose watchdog runs.
300 pairs of blocks in one process pair, each pair in random order; the A/A row compares the bare
loop with itself and shows what noise alone does. Ratios are of the pairs.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from common import fork_ranks, free_port, paired_ratio, title

from torchcoll.bench.session import Session, SessionOptions, opened
from torchcoll.core.case import size_case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.spec import Spec
from torchcoll.machine.devices import Cpu, nothing
from torchcoll.machine.launcher import Launch

PAIRS, CALLS = 300, 20
SIZES = {"8": 8, "1K": 1 << 10, "64K": 1 << 16, "1M": 1 << 20}


def bare_block(tensor: Any, samples: list[int], calls: int) -> None:
    for _ in range(calls):
        dist.barrier()
        start = time.perf_counter_ns()
        dist.all_reduce(tensor)
        samples.append(time.perf_counter_ns() - start)


def product_call(tensor: Any, rank: int, ranks: int) -> Any:
    (case,) = Spec(sizes=(tensor.nbytes,)).cases(ranks)
    layout = size_case(case, ranks).layout(rank)
    entry = COLLECTIVES["all_reduce"]
    return entry.prepare(dist, layout, tensor, tensor, dist.ReduceOp.SUM, None)


def compare(rank: int, port: int, size_bytes: int, same: bool) -> list[tuple[float, float]]:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    options = SessionOptions(Spec(), Launch("benchmark", rank, 2, rank, 2))
    with opened(torch, options) as session:
        return compared(session, rank, size_bytes, same)


def compared(session: Session, rank: int, size_bytes: int, same: bool) -> list[tuple[float, float]]:
    tensor = torch.zeros(size_bytes // 4)
    call, align = product_call(tensor, rank, 2), session.communicators.align("gloo")
    pairs = []
    rng = random.Random(1)
    for _ in range(PAIRS):
        medians = [0.0, 0.0]
        for arm in rng.sample((0, 1), 2):
            samples: list[int] = []
            if arm or same:
                bare_block(tensor, samples, CALLS)
            else:
                session.local.device.synchronized(call, align, CALLS, {"host": samples})
            medians[arm] = statistics.median(samples)
        pairs.append((medians[0], medians[1]))
    return pairs


def added_on_fake() -> float:
    """ns that the timed loop adds to a call, over a loop that only calls; median of 50 pairs."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    tensor, calls, added = torch.zeros(2), 2000, []
    call = product_call(tensor, 0, 2)
    for _ in range(50):
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        bare = time.perf_counter_ns() - start
        start = time.perf_counter_ns()
        Cpu().synchronized(call, nothing, calls, {"host": []})
        added.append((time.perf_counter_ns() - start - bare) / calls)
    dist.destroy_process_group()
    return statistics.median(added)


if __name__ == "__main__":
    title(f"overhead, gloo, 2 ranks, {PAIRS} shuffled pairs of blocks of {CALLS} calls, rank 0")
    print(f"{'size':>5}  {'torchcoll / bare':32}  bare / bare (A/A)")
    for name, size_bytes in SIZES.items():
        ours = fork_ranks(2, compare, free_port(), size_bytes, False)[0]
        noise = fork_ranks(2, compare, free_port(), size_bytes, True)[0]
        print(f"{name:>5}  {paired_ratio(ours):32}  {paired_ratio(noise)}", flush=True)
    print(f"fake backend: the timed loop adds {added_on_fake():.0f} ns a call (limit 500 ns)")

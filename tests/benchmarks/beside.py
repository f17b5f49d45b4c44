"""Is what --concurrent says of CPUs what a bare script finds with the same threads?

Two gloo ranks, all_reduce of 4 MiB beside a matrix product of 1 MiB in one thread. torchcoll's
runs and those of the bare script (a thread, a barrier and perf_counter_ns) take turns; shown
is the ratio of their slowdowns and the difference of their overlaps, and as A/A the same of every
other run of the bare script against the runs between.

    python tests/benchmarks/beside.py [RUNS]
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from common import fork_ranks, free_port, interval, tcp_store, title

from torchcoll.bench.session import SessionOptions, opened
from torchcoll.bench.sweep import Sweep
from torchcoll.contention.overlap import overlap
from torchcoll.core.spec import Spec
from torchcoll.machine.launcher import Launch

SIZE_BYTES, ORDER, BLOCKS, RANKS = 4 << 20, 512, 12, 2
torch.set_num_threads(1)


def ours(rank: int, port: int) -> tuple[float, float, int, int] | None:
    """Slowdown and overlap; calls and repeats of a block."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    spec = Spec(sizes=(SIZE_BYTES,), iters=20, check=False, concurrent="matmul:1M")
    with opened(torch, SessionOptions(spec, Launch("benchmark", rank, RANKS, rank, RANKS))) as one:
        Sweep(one).run()
        if not one.run:
            return None
        found = overlap(one.run.results[0])
    return found.slowdown.value, found.efficiency.value, found.calls, found.repeats


def bare(rank: int, port: int, calls: int, repeats: int) -> list[tuple[int, ...]]:
    """Of each block, ns: calls alone, work alone, calls at once, both at once."""
    store = tcp_store(rank, RANKS, port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    data, a = torch.zeros(SIZE_BYTES // 4), torch.full((ORDER, ORDER), 1 / ORDER)
    out, now = torch.empty_like(a), time.perf_counter_ns

    def block(with_calls: bool, with_work: bool) -> tuple[int, int]:
        def work() -> None:
            for _ in range(repeats):
                torch.mm(a, a, out=out)

        thread = threading.Thread(target=work)
        dist.barrier()
        start = called = now()
        if with_work:
            thread.start()
        if with_calls:
            for _ in range(calls):
                dist.all_reduce(data)
            called = now()
        if with_work:
            thread.join()
        return called - start, now() - start

    found = []
    block(True, True)
    for _ in range(BLOCKS):
        alone, working, both = block(True, False), block(False, True), block(True, True)
        found.append((alone[0], working[1], *both))
    dist.destroy_process_group()
    return found


def of_bare(ranks: list[list[tuple[int, ...]]]) -> tuple[float, float]:
    blocks = [tuple(map(max, zip(*rows, strict=True))) for rows in zip(*ranks, strict=True)]
    slow = statistics.geometric_mean([both / alone for alone, _, both, _ in blocks])
    hidden = [(a + w - whole) / min(a, w) for a, w, _, whole in blocks]
    return slow, statistics.mean(hidden)


def main() -> None:
    launches = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    title(f"beside: {launches} runs, {RANKS} gloo ranks on {len(os.sched_getaffinity(0))} cores")
    own: list[Any] = []
    bares: list[tuple[float, float]] = []
    for _ in range(launches):
        found = fork_ranks(RANKS, ours, free_port())[0]
        own.append(found)
        for _ in range(2):
            bares.append(of_bare(fork_ranks(RANKS, bare, free_port(), *found[2:])))
    first, second = bares[::2], bares[1::2]
    for name, pairs in (("torchcoll / bare", (own, first)), ("A/A bare / bare", (second, first))):
        ratios = [a[0] / b[0] for a, b in zip(*pairs, strict=True)]
        middle, low, high = interval(ratios, 90)
        print(f"{name}: slowdown of a call {middle:.3f} [{low:.3f}, {high:.3f}]", end="; ")
        middle, low, high = interval([a[1] - b[1] for a, b in zip(*pairs, strict=True)], 90)
        print(f"overlap differs by {middle:+.3f} [{low:+.3f}, {high:+.3f}]")
    print(
        f"torchcoll: slowdown {statistics.median(o[0] for o in own):.2f}, overlap "
        f"{statistics.median(o[1] for o in own):.2f}; bare: slowdown "
        f"{statistics.median(b[0] for b in bares):.2f}, overlap "
        f"{statistics.median(b[1] for b in bares):.2f}"
    )


if __name__ == "__main__":
    main()

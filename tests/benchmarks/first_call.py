"""Are the cold calls of a case those of a bare script?

On new communicators (``new``): runs of torchcoll and of a bare script, in pairs in random order,
each in processes of its own. The bare script starts call 0 at a time that its ranks, which share a
clock, have agreed on, and has a barrier before each further call. Call 0 of torchcoll over that of
the bare script; and of each, the second and the third call over the median of the steady ones. A/A:
the bare script against itself. A forked process that has done more has fewer page faults left for
its call 0, so the ratio may be below 1: whether the ranks start together is the skew, and call 0
over the time from the last rank's start to the last rank's end.

On a connected communicator (``connected``):

55 cases of all_reduce, each 64 B larger than the last, in one run of 2 gloo ranks: nothing but
the size is new to a case, so its first call should take what the others take. First call over the
median of the steady ones, and the second call over it; a median over the cases of a run, and
over all runs. A/A: the first steady call over the median. Skew: how far apart the ranks of this
host entered the first call, by cold_start_ns.

On new communicators, at larger sizes (``second``): call 1, the second one, of torchcoll over that
of the bare script, in the order A B B A, with the bare script against itself before and after.
gloo's two threads take operations by turns, and each has a slow first call of a size, so the ratio
shows whether both sides make call 1 on the same thread as call 0.

    chrt -r 1 python tests/benchmarks/first_call.py [new|connected|second]
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from common import fork_ranks, free_port, interval, tcp_store, title

import torchcoll
from torchcoll.bench.control import Control
from torchcoll.bench.session import SessionOptions, opened
from torchcoll.bench.sweep import Sweep
from torchcoll.core.spec import Spec
from torchcoll.core.summary import over_ranks, summarise
from torchcoll.machine.launcher import Launch

LAUNCHES, CASES, STEP = 5, 55, 64
PAIRS, SIZE_BYTES, COLD, STEADY = 120, 4096, 3, 50
SECOND_PAIRS, SECOND_SIZES = 40, (256 << 10, 1 << 20)
torch.set_num_threads(1)


@dataclass(frozen=True)
class Cold:
    """Of one run: call 0 in ns on the slowest rank, and from the last rank's start to the last
    rank's end; call 1 in ns; how far apart the ranks started it; calls 1 and 2 over the median.
    """

    first_ns: float
    second_ns: float
    from_last_start_ns: float
    skew_ns: float
    later: tuple[float, float]


def cold_figures(starts: list[list[int]], cold: list[list[int]], steady: list[float]) -> Cold:
    """starts, cold: by rank and call."""
    calls, middle = over_ranks(cold), statistics.median(steady)
    first = [own[0] for own in starts]
    last_end = max(start + own[0] for start, own in zip(first, cold, strict=True))
    later = (calls[1] / middle, calls[2] / middle)
    return Cold(calls[0], calls[1], last_end - max(first), max(first) - min(first), later)


def run_of_torchcoll(rank: int, port: int, size_bytes: int = SIZE_BYTES) -> Cold | None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    spec = Spec(sizes=(size_bytes,), iters=STEADY, cold=COLD, check=False)
    with opened(torch, SessionOptions(spec, Launch("benchmark", rank, 2, rank, 2))) as session:
        Sweep(session).one_case(session.sizings[0])
        if session.run is None:
            return None
        (result,) = session.run.results
        steady = over_ranks(result.time_ns["host"])
        return cold_figures(result.cold_start_ns, result.cold_ns, steady)


def bare_run(rank: int, port: int, size_bytes: int = SIZE_BYTES) -> Cold | None:
    store, now = tcp_store(rank, 2, port), time.perf_counter_ns
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    tensor = torch.ones(size_bytes // 4)
    control = Control(store, rank, 2, timeout_s=60)
    control.align()
    start_ns = control.decide(now() + 2_000_000)
    while now() < start_ns:
        pass
    starts, samples = [], []
    for call in range(COLD + STEADY):
        if call:
            dist.barrier()
        start = now()
        dist.all_reduce(tensor)
        samples.append(now() - start)
        starts.append(start)
    everyone = control.gather([starts, samples])
    control.leave()
    dist.destroy_process_group()
    if not everyone:
        return None
    cold, steady = [s[:COLD] for _, s in everyone], [s[COLD:] for _, s in everyone]
    return cold_figures([own for own, _ in everyone], cold, over_ranks(steady))


def report_new() -> None:
    order, sides_of = random.Random(1), {}
    for name, arm in (("torchcoll / bare", run_of_torchcoll), ("bare / bare (A/A)", bare_run)):
        arms, sides = (arm, bare_run), ([], [])
        sides_of[name] = sides
        for _ in range(PAIRS):
            for side in order.sample((0, 1), 2):
                sides[side].append(fork_ranks(2, arms[side], free_port())[0])
        pairs = zip(*sides, strict=True)
        middle, low, high = interval([ours.first_ns / bare.first_ns for ours, bare in pairs], 90)
        print(
            f"{name:18} {PAIRS} pairs of runs: call 0 {middle:.3f} (90 % {low:.3f} to {high:.3f})"
        )
    for name, own in (("torchcoll", sides_of["torchcoll / bare"][0]), ("bare", sides[1])):
        aligned = statistics.median(run.first_ns / run.from_last_start_ns for run in own)
        skew = statistics.median(run.skew_ns for run in own) / 1000
        later = (statistics.median(run.later[call] for run in own) for call in (0, 1))
        print(
            f"{name:18} call 0 / time from the last start {aligned:.3f}, skew {skew:.1f} us;",
            "call 1 over the median {:.2f}, call 2 {:.2f}".format(*later),
            flush=True,
        )


def report_second() -> None:
    arms = (("A/A before", bare_run), ("torchcoll", run_of_torchcoll), ("A/A after", bare_run))
    for size_bytes in SECOND_SIZES:
        for name, arm in arms:
            ratios = []
            for pair in range(SECOND_PAIRS):
                order = (arm, bare_run) if pair % 2 else (bare_run, arm)
                runs = [fork_ranks(2, side, free_port(), size_bytes)[0] for side in order]
                ours, bare = runs if pair % 2 else reversed(runs)
                ratios.append(ours.second_ns / bare.second_ns)
            middle, low, high = interval(ratios, 90)
            text = f"call 1 over the bare script {middle:.3f} (90 % {low:.3f} to {high:.3f})"
            print(f"{size_bytes:>8} B  {name:10}  {text}", flush=True)


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


def report_connected() -> None:
    every = []
    for launch in range(LAUNCHES):
        found = fork_ranks(2, measure, free_port())[0]
        every += found
        first, second, steady, skew = (statistics.median(c) for c in zip(*found, strict=True))
        print(
            f"run {launch + 1}: first / median {first:.2f}, second {second:.2f}, "
            f"a steady call (A/A) {steady:.2f}; skew of the first call {skew / 1000:.1f} us",
            flush=True,
        )
    for name, column in zip(("first", "second", "a steady call (A/A)"), zip(*every, strict=True),
                            strict=False):  # fmt: skip
        middle, low, high = interval(column, 90)
        print(f"all: {name} / median {middle:.3f} (90 % {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    scheduled = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    title(
        f"first calls, gloo, 2 ranks, {'real-time' if scheduled else 'plain'} scheduling, "
        f"{CASES} cases, each {STEP} B larger"
    )
    wanted = sys.argv[1:] or ["new", "connected", "second"]
    if "new" in wanted:
        report_new()
    if "connected" in wanted:
        report_connected()
    if "second" in wanted:
        report_second()

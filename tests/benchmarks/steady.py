"""Does a median depend on how many calls were asked for, on where in a batch a call stands, or on
the way torchcoll times it?

Real-time scheduled (chrt -f 50): plain gloo ranks on 2 cores have two modes, and a median of 20
calls jumps between them by itself. All arms of a size run in one group of 2 ranks, as cases of one
torchcoll Session, a pair in random order; figures are medians over pairs with 90 % intervals. Every
row stands beside the same thing against itself (A/A), whose interval must lie within 0.98 to 1.02:
where it does not, nothing is claimed.

    chrt -f 50 python tests/benchmarks/steady.py [SIZE...] [ROW...]
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from common import beside_noise, fork_ranks, free_port, title

from torchcoll.bench.measure import LEAD_CALLS
from torchcoll.bench.session import Session, SessionOptions, opened
from torchcoll.bench.sweep import Sweep
from torchcoll.core.spec import Spec
from torchcoll.core.summary import over_ranks, summarise
from torchcoll.machine.launcher import Launch

PAIRS, FEW, MANY, FIRST, STREAM = 240, 20, 320, 5, 400
torch.set_num_threads(1)


class Arms:
    """One group of ranks; each arm gives the duration of a call on rank 0, None elsewhere."""

    def __init__(self, session: Session, size_bytes: int) -> None:
        self.session = session
        self.tensor = torch.ones(size_bytes // 4)
        self.align = session.communicators.align("gloo")

    def case(self, calls: int, mode: str = "synchronized") -> Any:
        """A case of torchcoll's own with so many steady calls: its result on rank 0."""
        session = self.session
        spec = replace(session.spec, iters=calls, mode=mode)
        Sweep(session, spec).one_case(spec.sizings(session.local.ranks)[0])
        run = session.run
        return run.results.pop() if run else None

    def median(self, calls: int) -> float | None:
        result = self.case(calls)
        return result and summarise(result).median_ns

    def bare(self, batches: Sequence[int], leads: int = LEAD_CALLS) -> float | None:
        """A bare loop with the pacing of a case: before each batch a gather, a refill and lead
        calls.
        """
        control, now = self.session.local.control, time.perf_counter_ns
        samples: list[int] = []
        for calls in batches:
            control.decide(control.gather([0] * calls) and 1)
            self.tensor.fill_(1)
            own = []
            for _ in range(leads + calls):
                dist.barrier()
                start = now()
                dist.all_reduce(self.tensor)
                own.append(now() - start)
            samples += own[leads:]
        everyone = control.gather(samples)
        return statistics.median(over_ranks(everyone)) if everyone else None

    def period(self, calls: int) -> float | None:
        """As the table shows it of a case of calls back to back."""
        result = self.case(calls, "back-to-back")
        return result and summarise(result).median_ns

    def bare_period(self, calls: int) -> float | None:
        """A wall clock around a bare loop, on the slowest rank, with the pacing of a case."""
        control, now = self.session.local.control, time.perf_counter_ns
        control.decide(control.gather([0] * calls) and 1)
        self.tensor.fill_(1)
        dist.barrier()
        for _ in range(LEAD_CALLS):
            dist.all_reduce(self.tensor)
        start = now()
        for _ in range(calls):
            dist.all_reduce(self.tensor)
        everyone = control.gather((now() - start) / calls)
        return max(everyone) if everyone else None

    def pairs(self, one: Callable[[], Any], other: Callable[[], Any]) -> list[float]:
        rng, ratios = random.Random(1), []
        for _ in range(PAIRS):
            figures = [0.0, 0.0]
            for arm in rng.sample((0, 1), 2):
                figures[arm] = (one, other)[arm]() or 1.0
            ratios.append(figures[0] / figures[1])
        return ratios


def measure(rank: int, port: int, size_bytes: int, what: str) -> list[Sequence[float]]:
    """[rows of ratios, A/A ratios] of one size."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    spec = Spec(sizes=(size_bytes,), check=False)
    with opened(torch, SessionOptions(spec, Launch("benchmark", rank, 2, rank, 2))) as session:
        return compared(Arms(session, size_bytes), what)


def compared(arms: Arms, what: str) -> list[Sequence[float]]:
    arms.case(MANY)
    few, many = partial(arms.median, FEW), partial(arms.median, MANY)
    if what == "calls":
        found = [arms.pairs(few, many), arms.pairs(few, few)]
    elif what == "places":
        times = [over_ranks(r.time_ns["host"]) for _ in range(4 * PAIRS) if (r := arms.case(FEW))]
        middle = statistics.median
        # A/A: five places from the middle of the batch over those around them.
        found = [
            [middle(t[:FIRST]) / middle(t[FIRST:]) for t in times],
            [middle(t[10:15]) / middle(t[5:10] + t[15:]) for t in times],
        ]
    elif what == "stream":
        period, bare = partial(arms.period, STREAM), partial(arms.bare_period, STREAM)
        found = [arms.pairs(period, bare), arms.pairs(bare, bare)]
    else:
        bare = partial(arms.bare, [100])
        arm = partial(arms.median, 100) if what == "bare" else partial(arms.bare, [5, 10, 5], 0)
        found = [arms.pairs(arm, bare), arms.pairs(bare, bare)]
    return found


ROWS = {
    "calls": f"-n {FEW} over -n {MANY}",
    "places": f"first {FIRST} places of a batch over the rest",
    "bare": "torchcoll -n 100 over a bare loop, same pacing",
    "stream": f"back to back -n {STREAM} over a bare loop",
    # Nothing of torchcoll: what batches of 5, 10 and 5 without ramp-up calls do by themselves.
    "interrupted": "a bare loop in 5, 10, 5 without ramp-up calls over it",
}

if __name__ == "__main__":
    fifo = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    how = "real-time scheduled" if fifo else "PLAIN SCHEDULING: nothing below can be claimed"
    title(f"steady calls, gloo, 2 ranks, {how}, {PAIRS} pairs a row, all_reduce")
    sizes = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    rows = [word for word in sys.argv[1:] if word in ROWS]
    for size_bytes in sizes or (8, 4096, 65536, 1 << 20):
        for what in rows or ROWS:
            ratios, noise = fork_ranks(2, measure, free_port(), size_bytes, what)[0]
            text = beside_noise(ratios, noise, held=what != "interrupted")
            print(f"{size_bytes:>8} B  {ROWS[what]:50}  {text}", flush=True)

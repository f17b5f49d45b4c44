"""Is the figure of calls back to back their period?

Every collective on gloo ranks, --mode back-to-back. The true period is a wall clock around each
whole batch, between two barriers, by a wrapper around the device that torchcoll knows nothing of;
it has the ramp-up calls in it. Beside the row's figure over it stand what was shown before (the
median, and the mean, of the maxima over ranks), and as A/A the true period of rank 0 over that of
the last.

    chrt -f 50 python tests/benchmarks/stream.py RANKS
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from common import fork_ranks, free_port, interval, title

from torchcoll.bench.session import SessionOptions, opened
from torchcoll.bench.sweep import Sweep
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.spec import Spec
from torchcoll.core.summary import over_ranks, summarise
from torchcoll.machine.devices import Cpu
from torchcoll.machine.launcher import Launch

SIZE_BYTES, CALLS, REPEATS = 4096, 800, 7
torch.set_num_threads(1)


def measure(rank: int, port: int, ranks: int, collective: str) -> list[tuple[float, ...]]:
    """Of each repeat the periods in ns: as the row has it, median and mean of the maxima over
    ranks, and the true one of this rank.
    """
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    spec = Spec(
        (collective,),
        sizes=(SIZE_BYTES,),
        mode="back-to-back",
        iters=CALLS,
        check=False,
        splits="seed:1",
    )
    walls: list[float] = []
    stream = Cpu.stream

    def wrapped(self: Any, call: Any, calls: int, clocks: Any, leads: int, lead: Any) -> None:
        dist.barrier()
        start = time.monotonic_ns()
        stream(self, call, calls, clocks, leads, lead)
        dist.barrier()
        walls.append((time.monotonic_ns() - start) / (calls + leads))

    Cpu.stream = wrapped  # type: ignore[method-assign]
    found = []
    options = SessionOptions(spec, Launch("benchmark", rank, ranks, rank, ranks))
    with opened(torch, options) as session:
        for _ in range(REPEATS):
            walls.clear()
            Sweep(session).one_case(session.sizings[0])
            shown = maxima = 0.0, 0.0
            if session.run:
                result = session.run.results.pop()
                calls = over_ranks(result.time_ns["host"])
                shown = (summarise(result).median_ns or 0.0, statistics.median(calls))
                maxima = (statistics.mean(calls), 0.0)
            found.append((*shown, maxima[0], statistics.mean(walls)))
    return found


if __name__ == "__main__":
    ranks = int(sys.argv[1])
    fifo = os.sched_getscheduler(0) == os.SCHED_FIFO
    how = "SCHED_FIFO" if fifo else "plain scheduling"
    title(
        f"stream, gloo, {ranks} ranks, {how}, {SIZE_BYTES} B, {CALLS} calls, {REPEATS} cases a row"
    )
    print(
        "over the true period: the figure (median over the cases, 90 % interval), median and mean "
        "of the maxima over ranks; A/A"
    )
    for collective in COLLECTIVES:
        every = fork_ranks(ranks, measure, free_port(), ranks, collective)
        own, last = every[0], every[-1]
        figure, low, high = interval([one[0] / one[3] for one in own], 90)
        before = [statistics.median(one[k] / one[3] for one in own) for k in (1, 2)]
        same, least, most = interval([a[3] / b[3] for a, b in zip(own, last, strict=True)], 90)
        judged = "held" if low >= 0.98 and high <= 1.02 else "NOT HELD"
        if least < 0.98 or most > 1.02:
            judged = "too noisy: nothing is claimed"
        print(
            f"{collective:16}  {figure:.3f} ({low:.3f} to {high:.3f})  {before[0]:6.3f} "
            f"{before[1]:6.3f}  A/A {same:.3f} ({least:.3f} to {most:.3f})  {judged}",
            flush=True,
        )

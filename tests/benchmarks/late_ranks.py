"""How often is a rank named as late (training/arrivals.py) if none is, and if one is?

python tests/benchmarks/late_ranks.py [once|drift|training]

once: recordings of 2 to 64 ranks and 20 to 1000 steps with a call each. The arrival of a rank is a
first-order autoregressive process with a standard deviation of 0.1 ms; a call takes 1 ms. At most
5 % of the recordings in which all ranks are alike should name one. Then the last rank is later by
one or two standard deviations: how often is it named?

drift: the same if half of the variance is such a process and the other half independent noise,
which the test does not assume.

training: jobs of 800 captured steps of 4 ranks, judged while they run (training/sampled.py): the
jobs in which an innocent rank is named at any look, and after how many steps a late one is.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy
import torch.distributed as dist
from common import title

from torchcoll.parts.training.arrivals import SplitCall, SplitTraffic, arrivals_of
from torchcoll.parts.training.sampled import StepMetrics

RANKS = (2, 4, 8, 64)
STEPS = (20, 64, 200, 1000)
CORRELATIONS = (0.0, 0.5, 0.8, 0.9, 0.95)
SIGMA_NS, TRANSFER_NS = 100_000, 1_000_000
LATE = ((1, 0.0), (2, 0.0), (1, 0.5), (2, 0.5), (1, 0.8), (2, 0.8))  # standard deviations, r


def recordings(ranks: int, steps: int) -> int:
    """So many that a cell takes some seconds."""
    return max(30, min(400, 100_000 // (ranks * steps)))


def arrivals_ns(
    generator: numpy.random.Generator,
    ranks: int,
    steps: int,
    correlation: float,
    late: float = 0.0,
    noise: float = 0.0,
) -> numpy.ndarray:
    """(steps, ranks); late: of the last rank, in standard deviations; noise: of the variance."""
    process = numpy.empty((steps, ranks))
    process[0] = generator.standard_normal(ranks)
    for step in range(1, steps):
        fresh = (1 - correlation**2) ** 0.5 * generator.standard_normal(ranks)
        process[step] = correlation * process[step - 1] + fresh
    process = (1 - noise) ** 0.5 * process
    process += noise**0.5 * generator.standard_normal(process.shape)
    process[:, -1] += late
    return (SIGMA_NS * process).astype(int)


def named(arrived: numpy.ndarray) -> list[int]:
    """The late ranks of a recording."""
    calls = []
    for step, ns in enumerate(arrived):
        last = int(ns.argmax())
        waits = {rank: int(ns[last] - at) for rank, at in enumerate(ns) if rank != last}
        members = tuple(range(len(ns)))
        calls.append(SplitCall("g", members, (step, 0), last, waits, TRANSFER_NS))
    found = arrivals_of(SplitTraffic(calls, Counter(), {}), {}, brief=True)
    return [row.rank for row in found.late] if found else []


def once(noise: float = 0.0) -> None:
    heads = [f"r={r:<4}" for r in CORRELATIONS] + [f"{late}s r={r}" for late, r in LATE]
    print("% of recordings that name a rank: none is late | the late one by 1 or 2 s (sigma)")
    print("ranks  steps  of   " + "  ".join(f"{head:>8}" for head in heads))
    for ranks in RANKS:
        for steps in STEPS:
            count, cells = recordings(ranks, steps), []
            generator = numpy.random.default_rng(1000 * ranks + steps)
            for late, correlation in [*((0, r) for r in CORRELATIONS), *LATE]:
                hits = 0
                for _ in range(count):
                    who = named(arrivals_ns(generator, ranks, steps, correlation, late, noise))
                    hits += ranks - 1 in who if late else bool(who)
                cells.append(f"{100 * hits / count:.1f}")
            print(f"{ranks:5d}  {steps:5d}  {count:3d}  " + "  ".join(f"{c:>8}" for c in cells))
            sys.stdout.flush()


def training(ranks: int = 4, steps: int = 800) -> None:
    print(f"jobs of {steps} steps of {ranks} ranks, judged while they run")
    for late, jobs in ((0, 48), (1, 10), (2, 10)):
        for correlation in CORRELATIONS:
            generator = numpy.random.default_rng(int(100 * correlation) + late)
            innocent, first = 0, []
            for _ in range(jobs):
                arrived = arrivals_ns(generator, ranks, steps, correlation, late)
                looks = while_training(arrived)
                names = {rank for _, who in looks for rank in who}
                innocent += bool(names - {ranks - 1} if late else names)
                first += [step for step, who in looks if late and ranks - 1 in who][:1]
            text = (
                f"  late by {late} s, r={correlation:<4}: an innocent rank in {innocent} of {jobs}"
            )
            if late:
                text += f", the late one in {len(first)}"
                text += f" after {statistics.median(first):.0f} steps (median)" * bool(first)
            print(text, flush=True)


def while_training(arrived: numpy.ndarray) -> list[tuple[int, list[int]]]:
    """The late ranks by the number of the step after which they were reported."""
    ranks, looks = arrived.shape[1], []
    with tempfile.TemporaryDirectory() as folder:
        metrics = StepMetrics(Path(folder, "step.prom"), dist.HashStore(), "x", 0, ranks)
        for step, ns in enumerate(arrived):
            statuses = [
                {
                    "step": step,
                    "took_ns": 1,
                    "busy": {"g": [1, int(TRANSFER_NS + ns.max() - at), 0]},
                }
                for at in ns
            ]
            if (found := metrics._write(step, statuses)) is not None:
                looks.append((step + 1, [row.rank for row in found.late]))
    return looks


if __name__ == "__main__":
    title("late ranks")
    if sys.argv[1:2] == ["training"]:
        training()
    else:
        once(0.5 if sys.argv[1:2] == ["drift"] else 0.0)

"""How often does ``advise`` call a cap worse that is truly best, and one that is truly slower?

Simulated campaigns: a true curve of all_reduce, runs of it with noise (a factor of the run,
and one of each size), and true steps that differ from the model by an error of each cap, as real
ones do (advice.py). ``advise`` sees the runs alone. A cap is truly best where its true step is
the least, truly slower where it is 1.10 to 1.15 of that.

    python tests/benchmarks/advice_simulation.py [CAMPAIGNS [MODEL_ERROR [SEED]]]

MODEL_ERROR was chosen with seed 0.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

from common import title

from torchcoll.stats.ratios import geometric
from torchcoll.training import choices
from torchcoll.training.advise import CAPS_MB, proposals
from torchcoll.training.backward import gradients_from_count
from torchcoll.training.call_time import Duration
from torchcoll.training.choices import WORSE
from torchcoll.training.measured_curves import MeasuredCurve

SIZES = tuple(1 << k for k in range(14, 28))
MIB, MS = 1 << 20, 1e6
LAUNCHES = 6


class SimulatedTimes:
    """In place of a MeasuredCallTime, which reads its curves from files: centre, then runs."""

    def __init__(self, curves: list[MeasuredCurve], launches: int) -> None:
        self.curves, self.runs, self.hides = curves, launches, curves[0].hides

    def of(self, collective: str, size_bytes: float, ranks: int, dtype: str | None) -> Duration:
        times_ns = tuple(curve.time_ns(size_bytes) for curve in self.curves)
        return Duration(times_ns, "above" * self.curves[0].beyond(size_bytes))


@dataclass
class Tally:
    best: int = 0
    best_worse: int = 0
    slower: int = 0
    slower_worse: int = 0


def truth(rng: random.Random) -> tuple[MeasuredCurve, float, float]:
    """(curve, bytes of gradients, backward): latency 0.1 to 2 ms, 0.2 to 4 ms a MiB."""
    latency, slope = 10 ** rng.uniform(-1, 0.3), 10 ** rng.uniform(-0.7, 0.6)
    size_bytes = MIB * 10 ** rng.uniform(0.7, 2)
    times = tuple(MS * (latency + slope * size / MIB) for size in SIZES)
    backward = size_bytes / MIB * slope * MS * 10 ** rng.uniform(-0.7, 0.5)
    return MeasuredCurve(SIZES, times, hides=rng.random() < 0.5), size_bytes, backward


def campaign(rng: random.Random, noise: float, error: float, tally: Tally) -> None:
    curve, size_bytes, backward = truth(rng)
    found = gradients_from_count(round(size_bytes / 4), "float32")
    settings = [found.setting(cap) for cap in CAPS_MB]
    kept = [
        one
        for i, one in enumerate(settings)
        if one.messages not in [o.messages for o in settings[:i]]
    ]
    launches = []
    for _ in range(LAUNCHES):
        common = rng.gauss(0, noise)
        times = [t * 2.718281828 ** (common + rng.gauss(0, noise / 2)) for t in curve.times_ns]
        launches.append(MeasuredCurve(SIZES, tuple(times), curve.hides))
    centre = MeasuredCurve(
        SIZES,
        tuple(
            geometric(own) or 0.0 for own in zip(*(one.times_ns for one in launches), strict=True)
        ),
        curve.hides,
    )
    true: Any = SimulatedTimes([curve], 1)
    seen: Any = SimulatedTimes([centre, *launches], LAUNCHES)
    steps = [
        (backward + (row.exposed_ns or 0)) * 2.718281828 ** rng.gauss(0, error)
        for row in proposals(kept, true, None, found, backward)
    ]
    best = min(steps)
    for step, row in zip(steps, proposals(kept, seen, None, found, backward), strict=True):
        if step == best:
            tally.best += 1
            tally.best_worse += row.result == WORSE
        elif 1.10 * best <= step < 1.15 * best:
            tally.slower += 1
            tally.slower_worse += row.result == WORSE


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    if len(sys.argv) > 2:
        choices.MODEL_ERROR = float(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    title(
        f"advice, simulated: {count} campaigns of {LAUNCHES} runs each, allowance "
        f"{choices.MODEL_ERROR:g}, seed {seed}"
    )
    print("noise of a run  error of the model  worse: truly best  worse: truly 10 to 15 % slower")
    for noise in (0.03, 0.07, 0.12):
        for error in (0.0, 0.02, 0.03, 0.04):
            tally, rng = Tally(), random.Random(seed)
            for _ in range(count):
                campaign(rng, noise, error, tally)
            best, slower = tally.best_worse / tally.best, tally.slower_worse / tally.slower
            figures = f"{100 * noise:15.0f} %  {100 * error:16.0f} %  {100 * best:15.1f} %"
            print(f"{figures}  {100 * slower:28.1f} %  ({tally.slower} caps)", flush=True)


if __name__ == "__main__":
    main()

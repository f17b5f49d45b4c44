"""What `torchcoll check --baseline` finds, and how often it is wrong, by noise and good runs.

    python tests/benchmarks/check_power.py [BASELINES]

Each row draws so many baselines of 64 cases on one node, with the selection of the good runs, and
judges by each one healthy run and the same run with each change. Noise: 0.2, 2 and 5 %, and that
of 6 runs of gloo and oneCCL on 2 cores (results/gloo-oneccl-2ranks): each case has the spread of
one of their cases that vary by 12 to 49 %. Tails: normal, or Student's t with 4 degrees of freedom.
One run is independent of the next. A/A is the healthy run: a FAIL of it is a false alarm.

Changes: one case takes 1.2, 1.5, 2 and 10 times as long; all cases take 5, 10 and 20 % longer.
Each cell is the share of the runs with FAIL / WARN / CANNOT TELL; the rest is PASS. Named is the
share of the runs in whose table the changed case stands.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from common import title

from torchcoll.core.case import Case
from torchcoll.core.errors import UsageError
from torchcoll.parts.fleet import good_runs
from torchcoll.parts.fleet.learning import learn
from torchcoll.parts.fleet.records import CaseKey
from torchcoll.parts.fleet.series import Summaries
from torchcoll.parts.fleet.sources import summaries_of

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
SIZES = tuple(1 << power for power in range(8, 24))
KEYS = tuple(
    CaseKey(
        Case(name, size, "float32", None, None, True, "synchronized", "gloo", "cpu"),
        2,
        "median",
        "host",
    )
    for name in COLLECTIVES
    for size in SIZES
)
CASES = len(KEYS)
REAL_RUNS = Path(__file__).parents[2] / "results/gloo-oneccl-2ranks"
DAY_US = 86_400_000_000
WORDS = {
    good_runs.SLOW: "FAIL",
    good_runs.PROBABLY_SLOW: "WARN",
    good_runs.DOUBTED: "CANNOT TELL",
    good_runs.AS_USUAL: "PASS",
}
CHANGES = {
    "A/A": None,
    "one x1.2": 1.2,
    "one x1.5": 1.5,
    "one x2": 2.0,
    "one x10": 10.0,
    "all +5 %": 1.05,
    "all +10 %": 1.1,
    "all +20 %": 1.2,
}


def real_spreads():
    """The standard deviations of the logarithms of real cases, from 12 to 49 %."""
    summaries = summaries_of([str(REAL_RUNS)])
    table = np.full((len(summaries), len(summaries.keys)), np.nan)
    table[summaries.run, summaries.key] = np.log(summaries.time_ns)
    spreads = table.std(axis=0, ddof=1)
    return spreads[(spreads >= 0.12) & (spreads <= 0.49)]


def summaries_of_times(log_times):
    """log_times [R, C] of one node, a run a day, as columns."""
    runs = len(log_times)
    starts = 20_000 * DAY_US + np.arange(runs, dtype=np.int64) * DAY_US
    return Summaries(
        run_ids=[f"run{index}" for index in range(runs)],
        paths=[f"run{index}.jsonl" for index in range(runs)],
        nodes=["node0"],
        environments=[{}],
        strata=[("CPU", 2)],
        keys=KEYS,
        node=np.zeros(runs, np.int32),
        environment=np.zeros(runs, np.int32),
        stratum=np.zeros(runs, np.int32),
        start_us=starts,
        received_us=starts,
        run_status=np.zeros(runs, np.int8),
        run=np.repeat(np.arange(runs, dtype=np.int32), CASES),
        key=np.tile(np.arange(CASES, dtype=np.int32), runs),
        time_ns=np.exp(log_times).ravel(),
        status=np.zeros(runs * CASES, np.int8),
    )


def row(random, name, spreads, tails, runs, baselines):
    found = {change: Counter() for change in CHANGES}
    named, refused = Counter(), 0
    for _ in range(baselines):
        sigma = random.choice(spreads, CASES)
        shape = (runs + 1, CASES)
        noise = random.standard_t(4, shape) / math.sqrt(2)
        noise = sigma * (noise if tails == "t4" else random.standard_normal(shape))
        log_times = np.linspace(11, 16, CASES) + noise
        try:
            (baseline,) = learn(summaries_of_times(log_times[:-1])).baselines
        except UsageError:
            refused += 1
            continue
        changed = int(random.integers(CASES))
        for change, factor in CHANGES.items():
            times = np.exp(log_times[-1])
            if factor:
                times[changed if change.startswith("one") else slice(None)] *= factor
            pairs = zip(KEYS, times.tolist(), strict=True)
            judged = good_runs.judge_new_run(baseline, "node0", dict(pairs))
            found[change][WORDS[judged.state]] += 1
            notable = {case.key for case in judged.cases if case.state != good_runs.AS_USUAL}
            named[change] += KEYS[changed] in notable
    count = baselines - refused
    cells = []
    for change in CHANGES:
        shares = [100 * found[change][word] / count for word in ("FAIL", "WARN", "CANNOT TELL")]
        cell = "/".join(f"{share:.0f}" for share in shares)
        if change.startswith("one"):
            cell += f" ({100 * named[change] / count:.0f})"
        cells.append(f"{cell:>18}")
    print(f"{name:5} {tails:6} {runs:4}{''.join(cells)} {refused:8}", flush=True)


def main() -> None:
    baselines = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    title("check with a baseline: false alarms and what is found, simulated")
    print(f"{baselines} baselines of each row, {CASES} cases; numpy {np.__version__}")
    print("% of the runs: FAIL/WARN/CANNOT TELL (changed case named); the rest is PASS\n")
    heads = "".join(f"{change:>18}" for change in CHANGES)
    print(f"{'noise':5} {'tails':6} {'runs':4}{heads}  refused")
    real = real_spreads()
    random = np.random.default_rng(45)
    for name, spreads in (("0.2 %", [0.002]), ("2 %", [0.02]), ("5 %", [0.05]), ("12-49", real)):
        for tails in ("normal", "t4"):
            for runs in (3, 6, 12, 30):
                row(random, name, spreads, tails, runs, baselines)


if __name__ == "__main__":
    main()

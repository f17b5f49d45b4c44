"""How often `torchcoll check --baseline` calls a healthy run slow, and which changes it finds.

    python tests/benchmarks/baseline_error.py [BASELINES]

Each row draws so many baselines of 10 cases, with the selection of the good runs, and judges 40
healthy runs by each. They are made long after the baseline: independent of its runs. Asked for is
1 % false alarms per run over all its cases. The threshold is 0.01 %, so that only the statistics
decide.

Noise: normal, independent from run to run and between the cases; or Student's t with 4 degrees of
freedom, with a correlation of 0.5 from one run of a node to the next and between the cases (a
copula). Nodes differ by 2 % (normal) in all cases, and in each case by as much as the noise. The
runs of several nodes are spread evenly over them; "new" is a run of a node that is not in the
baseline, each of another one.

Found is the share of runs with a change that fail: 3 and 5 sigma slower, and slower by what the
baseline calls detectable 9 times in 10 (asked for is 90 %). sigma is the true standard deviation
from run to run of one node: over all cases of the mean over the cases, in one case of this case.
The last two columns are the median detectable change in sigma. `not judged` counts baselines that
could not judge: a run was left out of 5, or all runs of a node were. Intervals are 95 %, from the
variance between the baselines (Wilson's interval at the effective number of runs).
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
from common import title
from scipy import stats

from torchcoll.core.case import Case
from torchcoll.core.errors import UsageError
from torchcoll.parts.fleet import good_runs, learning
from torchcoll.parts.fleet.good_runs import CannotJudge, judge_new_run, limits_of
from torchcoll.parts.fleet.learning import learn
from torchcoll.parts.fleet.records import CaseKey
from torchcoll.parts.fleet.series import Summaries

SIZES = (8, 64 << 10, 1 << 20, 16 << 20, 128 << 20)
KEYS = tuple(
    CaseKey(
        Case(collective, size, "float32", None, None, True, "synchronized", "nccl", "cuda"),
        8,
        "median",
        "host",
    )
    for collective in ("all_reduce", "all_gather")
    for size in SIZES
)
CASES = len(KEYS)
SIGMA = 0.005  # of a case
NODES = 0.02
NEW_RUNS, CHANGED_RUNS = 40, 5  # by each baseline
THRESHOLD = 1e-4
DAY_US = 86_400_000_000
_GRID = np.linspace(-8, 8, 20001)
_T4 = stats.t(4).ppf(stats.norm.cdf(_GRID)) / np.sqrt(2)


def copula(random, shape, correlation):
    """Standardised t4 values [T, ...] with this correlation from run to run."""
    normal = random.standard_normal(shape)
    for run in range(1, shape[0]):
        normal[run] = correlation * normal[run - 1] + math.sqrt(1 - correlation**2) * normal[run]
    return np.interp(normal, _GRID, _T4)


class Noise:
    """[runs, cases] of one node in a row. mean_sigma: of the mean over the cases."""

    def __init__(self, kind):
        self.kind = kind
        self.mean_sigma = SIGMA * math.sqrt(1 / CASES if kind == "normal" else 0.5 + 0.5 / CASES)

    def draw(self, random, runs, correlation=0.5):
        if self.kind == "normal":
            return SIGMA * random.standard_normal((runs, CASES))
        common = copula(random, (runs, 1), correlation)
        return SIGMA * math.sqrt(0.5) * (common + copula(random, (runs, CASES), correlation))


def summaries_of_times(log_times, node):
    """log_times [R, C] and node [R], a run a day, as columns."""
    runs = len(log_times)
    return Summaries(
        run_ids=[f"run{index}" for index in range(runs)],
        paths=[f"run{index}.jsonl" for index in range(runs)],
        nodes=[f"node{index}" for index in range(node.max() + 1)],
        environments=[{}],
        strata=[("GPU", 8)],
        keys=KEYS,
        node=node.astype(np.int32),
        environment=np.zeros(runs, np.int32),
        stratum=np.zeros(runs, np.int32),
        start_us=20_000 * DAY_US + np.arange(runs, dtype=np.int64) * DAY_US,
        received_us=20_000 * DAY_US + np.arange(runs, dtype=np.int64) * DAY_US,
        run_status=np.zeros(runs, np.int8),
        run=np.repeat(np.arange(runs, dtype=np.int32), CASES),
        key=np.tile(np.arange(CASES, dtype=np.int32), runs),
        time_ns=np.exp(log_times).ravel(),
        first_ns=np.full(runs * CASES, np.nan, np.float32),
        status=np.zeros(runs * CASES, np.int8),
    )


def interval(shares, runs):
    """95 % of the mean of the shares of the baselines: Wilson's, with the design effect."""
    mean, count = float(np.mean(shares)), len(shares)
    binomial = max(mean * (1 - mean) / runs, 1e-12)
    design = max(1.0, float(np.var(shares, ddof=1)) / binomial)
    effective = count * runs / design
    low, high = stats.binomtest(round(mean * effective), max(1, round(effective))).proportion_ci(
        method="wilson"
    )
    return f"{mean:6.2%} ({low:.2%} to {high:.2%})"


def row(random, kind, runs, nodes, new_node, baselines):
    noise = Noise(kind)
    node = np.arange(runs) % nodes
    alarms, failed = [], 0
    found = {name: [] for name in ("all 3", "all 5", "all d", "one 3", "one 5", "one d")}
    detectable = []
    for _ in range(baselines):
        levels = np.linspace(11, 16, CASES)
        own = random.normal(0, NODES, (nodes + NEW_RUNS, 1)) * (nodes > 1)
        own = own + random.normal(0, SIGMA, (nodes + NEW_RUNS, CASES)) * (nodes > 1)
        log_times = np.empty((runs, CASES))
        for index in range(nodes):
            log_times[node == index] = noise.draw(random, int((node == index).sum()))
        log_times += levels + own[node]
        try:
            learned = learn(summaries_of_times(log_times, node))
        except UsageError:  # too few runs are left
            failed += 1
            continue
        (baseline,) = learned.baselines
        name = "another" if new_node else "node0"
        try:
            expected = limits_of(baseline, name)
        except CannotJudge:  # all runs of this or of another node were left out
            failed += 1
            continue
        detectable.append((expected.run_detectable, float(np.median(expected.case_detectable))))
        new = levels + noise.draw(random, NEW_RUNS, correlation=0.0)
        new += own[nodes:] if new_node else own[0]

        def slow(values, name=name, baseline=baseline):
            return judge_new_run(
                baseline, name, dict(zip(KEYS, np.exp(values).tolist(), strict=True))
            )

        alarms.append(np.mean([slow(values).state == good_runs.SLOW for values in new]))
        changes = {
            "all 3": (range(CASES), 3 * noise.mean_sigma),
            "all 5": (range(CASES), 5 * noise.mean_sigma),
            "one 3": ([3], 3 * SIGMA),
            "one 5": ([3], 5 * SIGMA),
            "all d": (range(CASES), expected.run_detectable),
            "one d": ([3], float(expected.case_detectable[3])),
        }
        for what, (cases, size) in changes.items():
            changed = new[:CHANGED_RUNS].copy()
            changed[:, list(cases)] += size
            judged = [slow(values) for values in changed]
            if what.startswith("all"):
                found[what].append(np.mean([item.state == good_runs.SLOW for item in judged]))
            else:
                hits = [
                    KEYS[3] in {case.key for case in item.cases_that_are(good_runs.SLOW)}
                    for item in judged
                ]
                found[what].append(np.mean(hits))
    over_all, one = np.median(detectable, axis=0)
    three_five = [
        f"{np.mean(found[f'{what} 3']):5.0%}  {np.mean(found[f'{what} 5']):5.0%}  "
        f"{np.mean(found[f'{what} d']):7.0%}"
        for what in ("all", "one")
    ]
    print(
        f"{kind:6}  {runs:4}  {nodes:5}  {'new' if new_node else 'known':5}  "
        f"{interval(alarms, NEW_RUNS):24}  {'  '.join(three_five)}  "
        f"{over_all / noise.mean_sigma:10.1f}  {one / SIGMA:8.1f}  {failed:6}",
        flush=True,
    )


def main() -> None:
    baselines = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    begun = time.process_time()
    good_runs.THRESHOLD = learning.THRESHOLD = THRESHOLD
    title("check with a baseline, simulated")
    print(
        f"{baselines} baselines of each row, {NEW_RUNS} healthy runs and {CHANGED_RUNS} runs with "
        f"each change by each; numpy {np.__version__}"
    )
    print(
        "                                                          found over all cases  "
        "    found in one case       detectable, sigma\n"
        "                             false alarms per run          3      5  detect-     "
        " 3      5  detect-    over all        in     not\n"
        "noise   runs  nodes  node    (95 % interval)           sigma  sigma     able  "
        "sigma  sigma     able       cases  one case  judged"
    )
    random = np.random.default_rng(29)
    for kind in ("normal", "t4"):
        for runs, nodes, new_node in (
            (5, 1, False),
            (8, 1, False),
            (20, 1, False),
            (60, 1, False),
            (5, 5, True),
            (8, 4, False),
            (20, 5, False),
            (60, 10, False),
        ):
            row(random, kind, runs, nodes, new_node, baselines)
    print(f"{time.process_time() - begun:.0f} s of one core")


if __name__ == "__main__":
    main()

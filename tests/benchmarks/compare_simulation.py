"""How often ``compare`` is wrong, and how often it finds a change: by simulation, through files.

    python tests/benchmarks/compare_simulation.py [REPETITIONS [PROCESSES]]

Each repetition writes the result files of a before and an after (25 cases, launches as asked) and
runs ``torchcoll compare before after --format json`` on them. The noise is a factor on the whole
of a case in one launch: normal, or Student's t with 3 degrees of freedom scaled to the same
standard deviation. Calls scatter by 5 % around it, which must not matter.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scipy import stats

from torchcoll.cli import main
from torchcoll.core.case import Case
from torchcoll.core.records import save
from torchcoll.core.result import CaseResult, Run

CASES = 25
CALLS = 9
RANKS = 2
CHANGED = 12  # the number of the case that changes, where one does
_END = {"status": "complete", "exit_code": 0, "wall_s": 1.0}


@dataclass(frozen=True)
class Scenario:
    """What is simulated: launches a side, noise between launches, change of one case."""

    launches: int
    noise: float
    change: float = 0.0
    heavy: bool = False  # Student's t with 3 degrees of freedom

    def __str__(self) -> str:
        what = f"one case +{100 * self.change:g} %" if self.change else "nothing changed"
        tails = "t3" if self.heavy else "normal"
        return f"{what:16} {self.launches:2} launches, {100 * self.noise:g} % {tails} noise"


SCENARIOS = (
    Scenario(6, 0.02),
    Scenario(6, 0.02, heavy=True),
    Scenario(6, 0.01, 0.05),
    Scenario(6, 0.01, 0.05, heavy=True),
    Scenario(6, 0.02, 0.05),
    Scenario(10, 0.02, 0.05),
)


def launch(scenario: Scenario, change: float, rng: random.Random) -> Run:
    results = []
    for number in range(CASES):
        nbytes = 1024 << (number % 20)
        case = Case(
            *("all_reduce" if number < 20 else "broadcast", nbytes, "float32"),
            *("sum" if number < 20 else None, None if number < 20 else 0, True),
            *("isolated", "gloo", "cpu"),
        )
        z = rng.gauss(0, 1)
        if scenario.heavy:  # normal over the root of chi squared of 3, over its deviation
            z *= math.sqrt(3 / rng.gammavariate(1.5, 2)) / math.sqrt(3)
        middle = 20_000 + nbytes / 10
        middle *= math.exp(scenario.noise * z) * (1 + change * (number == CHANGED))
        # Half of the calls below and half above, so that the median is the middle.
        away = sorted(math.exp(abs(rng.gauss(0, 0.05))) for _ in range(CALLS // 2))
        calls = [middle / a for a in away] + [middle] + [middle * a for a in away]
        row = [round(call) for call in calls]
        results.append(
            CaseResult(case, "ok", RANKS, nbytes=nbytes, time_ns={"host": [row] * RANKS})
        )
    return Run(header={"ranks": RANKS}, results=results, end=_END)


def repetition(scenario: Scenario, seed: int) -> tuple[bool, bool]:
    """(some unchanged case called faster or slower, the changed case called slower)."""
    rng = random.Random(f"{scenario} {seed}")
    with tempfile.TemporaryDirectory() as folder:
        for name, change in (("before", 0.0), ("after", scenario.change)):
            for number in range(scenario.launches):
                save(launch(scenario, change, rng), Path(folder) / name / f"{number}.jsonl")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = main(["compare", f"{folder}/before", f"{folder}/after", "--format", "json"])
    assert code == 0
    rows = json.loads(out.getvalue())["rows"]
    assert len(rows) == CASES
    verdicts = [row["verdict"] for row in rows]
    changed = CHANGED if scenario.change else -1
    alarms = [v for i, v in enumerate(verdicts) if i != changed and v in ("faster", "slower")]
    return bool(alarms), verdicts[changed] == "slower"


def rates(scenario: Scenario, repetitions: int, processes: int = 1) -> tuple[int, int]:
    """How many repetitions gave a false alarm, and how many found the change."""
    seeds = range(repetitions)
    if processes == 1:
        found = [repetition(scenario, seed) for seed in seeds]
    else:
        with ProcessPoolExecutor(processes) as pool:
            found = list(pool.map(repetition, [scenario] * repetitions, seeds, chunksize=10))
    return sum(alarm for alarm, _ in found), sum(hit for _, hit in found)


def interval(count: int, of: int) -> str:
    """A share and its 95 % interval (Clopper and Pearson)."""
    exact = stats.binomtest(count, of).proportion_ci()
    return f"{100 * count / of:5.1f} % ({100 * exact.low:.1f} to {100 * exact.high:.1f})"


def report(repetitions: int, processes: int) -> None:
    print(f"{CASES} cases, {repetitions} repetitions each, through files and torchcoll compare")
    print(f"{'':46}{'false alarm in any case':26}change found")
    for scenario in SCENARIOS:
        alarms, hits = rates(scenario, repetitions, processes)
        power = interval(hits, repetitions) if scenario.change else "-"
        print(f"{scenario!s:46}{interval(alarms, repetitions):26}{power}", flush=True)


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    report(*numbers, *(1000, 2)[len(numbers) :])

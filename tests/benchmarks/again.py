"""How often `torchcoll again` calls a file reproduced, and how often it refuses a false claim.

    python tests/benchmarks/again.py [DRAWS [REAL_RUNS [real]]]

Each row judges so many files (default 400) by 6 new runs of 8 cases. A true file is a run like
the new ones. A false claim is the same file with all times 10 % shorter. sigma is the deviation
from run to run of one case, of which half of the variance is common to all cases of a run. Noise:
normal, or Student's t with 4 degrees of freedom. Asked for: true files reproduced in 93 % where
sigma is at most 1 %, and elsewhere refused in at most 7 %; false claims refused in 90 % where sigma
is at most 2 %, and called reproduced in at most 2.5 % at any sigma.

The last rows do the same with real runs: all_reduce of 3 sizes on 2 gloo ranks of this machine,
REAL_RUNS (default 120; 0: none) one after the other. Each draw takes 7 runs in a row: the first
is the file. sigma is that of the geometric mean over the cases. A/A is the row of true files
itself.
`real`: these rows alone.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import title

from torchcoll.core.summary import steady_figure
from torchcoll.parts.experiments.agreement import judge

CASES, NEW_RUNS, THRESHOLD = 8, 6, 0.10
CLAIM = math.log(1.10)
SIGMAS = (0.005, 0.01, 0.02, 0.05, 0.10)
VERDICTS = ("reproduced", "cannot tell", "not reproduced")


def simulated(sigma: float, heavy: bool, random: np.random.Generator) -> Callable[[], np.ndarray]:
    """Returns a function that draws [1 + NEW_RUNS, CASES] log times."""

    def noise(shape: tuple[int, ...]) -> np.ndarray:
        values = random.standard_t(4, shape) / math.sqrt(2) if heavy else random.normal(size=shape)
        return values * sigma / math.sqrt(2)

    return lambda: noise((1 + NEW_RUNS, 1)) + noise((1 + NEW_RUNS, CASES))


def real_runs(count: int) -> np.ndarray:
    """Log times [run, case] of real runs, one after the other."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from ranks import Measured

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            options = "--sizes 1K,64K,1M -n 100 -c 0"
            run = Measured(Path(folder) / f"run{number}", "all_reduce", options).ended(0).run
            figures = [steady_figure(result, "host") for result in run.results]
            rows.append([math.log(figure) for figure in figures if figure])
    return np.array(rows)


def row(label: str, draw: Callable[[], np.ndarray], draws: int) -> None:
    for name, claim in (("true file", 0.0), ("10 % better", CLAIM)):
        verdicts: Counter[str] = Counter()
        for _ in range(draws):
            logs = draw()
            cases = [
                (str(case), {0: logs[0, case] - claim}, dict(enumerate(logs[1:, case].tolist())))
                for case in range(logs.shape[1])
            ]
            verdicts[judge(cases, THRESHOLD).verdict] += 1
        shares = "  ".join(f"{100 * verdicts[verdict] / draws:13.1f} %" for verdict in VERDICTS)
        print(f"{label:28}{name:14}{shares}", flush=True)


def main() -> None:
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 120
    title(f"torchcoll again: {draws} files a row, {NEW_RUNS} new runs each")
    print(f"{'noise':28}{'file':14}" + "  ".join(f"{verdict:>15}" for verdict in VERDICTS))
    random = np.random.default_rng(4001)
    for heavy in (False, True):
        for sigma in SIGMAS if sys.argv[3:] != ["real"] else ():
            label = f"{'t4' if heavy else 'normal'}, sigma {100 * sigma:g} %"
            row(label, simulated(sigma, heavy, random), draws)
    if not count:
        return
    runs = real_runs(count)
    sigma = statistics.stdev(runs.mean(axis=1).tolist())
    last = len(runs) - NEW_RUNS - 1

    def stretch() -> np.ndarray:
        first = random.integers(0, last + 1)
        return runs[first : first + 1 + NEW_RUNS]

    row(f"real, sigma {100 * sigma:.1f} %", stretch, draws)


if __name__ == "__main__":
    main()

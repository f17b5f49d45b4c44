"""What `pairs`, `scaling` and `--soak` find, and how often they are wrong, simulated.

    python tests/benchmarks/power.py [DRAWS]

Each row draws so many recordings without a fault and, of the same noise, with one of a given size.
False: the share of the recordings without a fault in which something is named. Found: the share
in which the faulty one is named, and nothing else (pairs: with the passes alone). Claimed: the
median of what the answer says would have been found; at it: how often a fault of this size is.
Good: the share of the recordings without a fault that are answered with 'nothing found', not with
'cannot tell'.

Noise is log-normal. Of pairs, each of 10 calls has it, and each pair half of it for all its calls.
A run is independent of the next. Scaling: times of one size, that grow by log2 n. Soak: medians of
24 windows, in which half of the variance is shared by neighbouring windows (AR(1), 0.5).
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from statistics import median

import numpy as np
from common import title

from torchcoll.core.case import Case
from torchcoll.core.result import Run
from torchcoll.core.soak_windows import SoakCase, SoakWindow
from torchcoll.parts.curves.growth import Growth, growths
from torchcoll.questions.contention.soaked import Soaked, soaked
from torchcoll.questions.pairs import suspects
from torchcoll.questions.pairs.matches import EXCHANGE, Pairs, Timing
from torchcoll.questions.pairs.schedule import PASSES
from torchcoll.questions.pairs.show import pairs_answer
from torchcoll.stats.power import ACT_ON_CASE

KEY = (EXCHANGE, 8 << 20)
CALLS = 10
WINDOWS = 24
CASES = tuple(
    Case("all_reduce", 1024 << n, "float32", "sum", None, False, "synchronized", "gloo", "cpu")
    for n in range(24)
)


def share(found: list[bool]) -> str:
    return f"{100 * sum(found) / len(found):6.1f}"


def claims(values: list[float | None]) -> float | None:
    """The median; None if most have no value."""
    known = [math.inf if value is None else value for value in values]
    return None if math.isinf(median(known)) else median(known)


def timing(random: np.random.Generator, ns: float, noise: float) -> Timing:
    calls = np.sort(ns * np.exp(random.normal(0, noise, CALLS)))
    middle, good = (float(np.quantile(calls, q)) for q in (0.5, 0.25))
    return Timing(middle, good, math.log(middle / good) / 0.6745, CALLS)


def measured_pairs(
    random: np.random.Generator, units: int, noise: float, fault: tuple[int, ...], loss: float
) -> tuple[Pairs, list[suspects.Suspect]]:
    """The pairs of a recording with its passes alone, and the suspects."""
    pairs = Pairs("rank", tuple((n,) for n in range(units)), tuple(f"h{n}" for n in range(units)))
    usual_ns = {
        pair: 1000
        * math.exp(random.normal(0, noise / 2))
        / (1 - loss * (bool(fault) and {*fault} <= {*pair}))
        for pair in itertools.combinations(range(units), 2)
    }
    pairs.times = {KEY: {pair: timing(random, ns, noise) for pair, ns in usual_ns.items()}}
    for _ in range(PASSES):
        suspected = suspects.find_suspects(pairs, with_hidden=True)
        uncleared = {n for n, suspect in enumerate(suspected) if suspect.confirmed}
        if not uncleared:
            break
        usual, chosen = suspects.pairs_to_repeat(pairs, suspected)
        again = [*usual, *(pair for pair, of in chosen.items() if uncleared & {*of})]
        pairs.alone.append({KEY: {pair: timing(random, usual_ns[pair], noise) for pair in again}})
    return pairs, [each for each in suspects.find_suspects(pairs) if each.confirmed]


def pairs_row(random: np.random.Generator, units: int, noise: float, draws: int) -> str:
    quiet = [measured_pairs(random, units, noise, (), 0) for _ in range(draws)]
    sides = [suspects.find_detectable(pairs)[0] for pairs, _ in quiet]
    unit = claims([side.unit for side in sides]) or math.nan
    link = claims([side.link for side in sides]) or math.nan
    answers = [pairs_answer(Run(), pairs, found, pairs.threshold) for pairs, found in quiet]

    def found(fault: tuple[int, ...], loss: float) -> str:
        every = (measured_pairs(random, units, noise, fault, loss)[1] for _ in range(draws))
        return share([[each.units for each in one] == [fault] for one in every])

    cells = [
        share([bool(found) for _, found in quiet]),
        share([answer.level == "good" for answer in answers]),
    ]
    cells += [found(fault, loss) for fault in ((1,), (0, 2)) for loss in (0.25, 1 / 3, 0.5)]
    cells += [f"{100 * each:6.0f}" for each in (unit, link)]
    cells += [found((1,), unit), found((0, 2), link)]
    return " ".join(cells)


def growth_of(random: np.random.Generator, runs: int, noise: float, grown: float) -> Growth:
    points = [
        (n, 1000 * (1 + grown * math.log2(n / 2) / 3) * math.exp(random.normal(0, noise)))
        for n in (2, 4, 8, 16)
        for _ in range(runs)
    ]
    return growths([points])[0]


def scaling_row(random: np.random.Generator, runs: int, noise: float, draws: int) -> str:
    quiet = [growth_of(random, runs, noise, 0) for _ in range(draws)]

    def found(grown: float) -> str:
        every = (growth_of(random, runs, noise, grown) for _ in range(draws))
        return share([each.changes and not each.falls for each in every])

    good = [each.detectable is not None and each.detectable <= ACT_ON_CASE for each in quiet]
    cells = [share([each.changes for each in quiet]), share(good)]
    cells += [found(grown) for grown in (0.1, 0.2, 0.5, 1)]
    return " ".join([*cells, *claim([each.detectable for each in quiet], found)])


def soak_of(random: np.random.Generator, cases: int, noise: float, drift: float) -> Soaked:
    of_all = random.normal(0, noise * math.sqrt(0.5), (cases, WINDOWS))
    for k in range(1, WINDOWS):
        of_all[:, k] = 0.5 * of_all[:, k - 1] + math.sqrt(0.75) * of_all[:, k]
    logs = of_all + random.normal(0, noise * math.sqrt(0.5), (cases, WINDOWS))
    # The means of the first and of the last quarter are 0.75 of the whole time apart.
    logs += math.log1p(drift) / 0.75 * np.arange(WINDOWS) / WINDOWS
    windows = []
    for k in range(WINDOWS):
        of_window = tuple(
            SoakCase(case, 100, ns, ns, ns, {"80": 100}, {})
            for case, ns in zip(CASES[:cases], 1000 * np.exp(logs[:, k]), strict=True)
        )
        start = k * 60_000_000
        windows.append(SoakWindow(k + 2, k + 2, start, start + 60_000_000, of_window, 1, 0))
    found = soaked(Run(windows=windows))
    assert found
    return found


def soak_row(random: np.random.Generator, cases: int, noise: float, draws: int) -> str:
    quiet = [soak_of(random, cases, noise, 0) for _ in range(draws)]
    answers = [each.answer for each in quiet if not each.drifting]

    def found(drift: float) -> str:
        return share([bool(soak_of(random, cases, noise, drift).drifting) for _ in range(draws)])

    cells = [
        share([bool(each.drifting) for each in quiet]),
        share([answer.level == "good" for answer in answers]),
    ]
    cells += [found(drift) for drift in (0.02, 0.05, 0.1, 0.5)]
    return " ".join([*cells, *claim([answer.detectable for answer in answers], found)])


def claim(values: list[float | None], found: Callable[[float], str]) -> list[str]:
    value = claims(values)
    return ["  none      -"] if value is None else [f"{100 * value:6.1f}", found(value)]


TABLES = (
    (
        "pairs: one rank, or one link, has lost so much of its speed (--threshold 20%)",
        "ranks",
        "rank-25 rank-33 rank-50 link-25 link-33 link-50 claimed link at-it link",
        pairs_row,
        (4, 8, 16, 64),
        (0.02, 0.05, 0.1, 0.2),
    ),
    (
        "scaling: one time, by so many runs on each of 2, 4, 8 and 16 ranks, grows over them by",
        "runs",
        "+10 +20 +50 +100 claimed at-it",
        scaling_row,
        (1, 3, 6, 12),
        (0.02, 0.05, 0.1, 0.2),
    ),
    (
        "soak: 24 windows, all cases drift from the first quarter to the last by",
        "cases",
        "+2 +5 +10 +50 claimed at-it",
        soak_row,
        (1, 6, 24),
        (0.01, 0.03, 0.1),
    ),
)


def main() -> None:
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    title("pairs, scaling and soak: false alarms and what is found, simulated")
    print(f"{draws} recordings in each cell (64 ranks: a tenth); numpy {np.__version__}; % of them")
    random = np.random.default_rng(1)
    for above, name, heads, row, numbers, noises in TABLES:
        print(f"\n{above}\n")
        columns = ["false", "good", *heads.split()]
        print(f"{name:>5} noise" + "".join(f"{head:>7}" for head in columns))
        for number, noise in itertools.product(numbers, noises):
            times = draws if number < 64 else max(20, draws // 10)
            cells = row(random, number, noise, times)
            print(f"{number:5} {100 * noise:3.0f} % {cells}", flush=True)


if __name__ == "__main__":
    main()

"""How often ``compare`` is wrong, how often it finds a change, and whether the number of runs that
its power asks for decides.

    python tests/benchmarks/compare_simulation.py [REPETITIONS [PART...]]

Logarithms of figures go through the model and the residuals of ``compare``, all repetitions at
once; the outlier rule, Holm and the results are written here again for arrays. That this is what
``torchcoll compare`` does with result files is checked in every run (``agreement``): each result,
ratio, interval and p. A case of a run has its own normal noise, ``shared`` noise is the same in
all cases of a run. Drift is a share a run; an outlier is a run at random, 30 % slow in all cases.
Coverage is the share of the 95 % intervals, of all cases, that contain the truth.

``starts`` counts what the shipped ``start_modes`` says of runs that start in one mode or in two.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy
from common import title
from scipy import special, stats

from torchcoll.cli import main
from torchcoll.core.case import Case
from torchcoll.core.file import save
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.units import counted
from torchcoll.stats import statistics
from torchcoll.stats.needed import make_target, runs_needed
from torchcoll.stats.power import ACT_ON_ALL, ACT_ON_CASE
from torchcoll.stats.ratios import LEVEL, ORDERED
from torchcoll.stats.statistics import start_modes

CASES = 25
LAUNCHES = 6
CHANGED = 12  # the number of the case that changes, where one does
OUTLIER = 0.3
SLOW_FACTOR = 1.35
THRESHOLD = 0.02
ORDERS = 50  # drawn where the order is random, each with as many repetitions
AGREEMENTS = 10
RANKS = 2
_END = {"status": "complete", "exit_code": 0, "wall_s": 1.0}


@dataclass(frozen=True)
class Scenario:
    """What is simulated. order: the sides in the order of their runs, or ``random``."""

    order: str
    noise: float = 0.01
    drift: float = 0.0
    outlier: int = 0  # so many runs
    change: float = 0.0
    shared: float = 0.0  # share of the variance that all cases of a run have in common
    tails: str = "normal"
    cases: int = CASES
    factor: float = 1.0  # noise of the new side over that of the base
    noisier: int = CASES  # so many cases have the factor
    step: float = 0.0  # of the machine, between the sixth and the seventh run
    slow: float = 0.0  # share of the starts that are SLOW_FACTOR slow in all cases
    noise_to: float = 0.0  # of the noisiest case, if the noises of the cases are a geometric series
    change_all: float = 0.0  # of all cases

    def __str__(self) -> str:
        words = [f"{100 * self.noise:g} % {self.tails} noise"]
        words += [f"{100 * self.drift:g} % drift"] if self.drift else []
        words += [("", "outlier", "2 outliers")[self.outlier]] if self.outlier else []
        words += ["shared noise"] if self.shared == 1 else []
        words += ["half of it shared"] if 0 < self.shared < 1 else []
        words += [f"new {self.factor:g} x as noisy"] if self.factor != 1 else []
        words += [f"in {self.noisier} cases"] if self.noisier < self.cases else []
        words += [f"step of {100 * self.step:g} %"] if self.step else []
        words += [f"{100 * self.slow:g} % of starts {SLOW_FACTOR:g}x"] if self.slow else []
        words += [counted(self.cases, "case")] if self.cases < CASES else []
        return f"{self.order:8}{', '.join(words)}"


FIRST_A = "A" * LAUNCHES + "B" * LAUNCHES
ABBA, ABAB = "ABBA" * (LAUNCHES // 2), "AB" * LAUNCHES
UNEVEN = {"ABA" * 6: "12+6", "AABA" * 4: "12+4", "AABAA" * 3: "12+3"}
EVEN = {"ABBAAB": "3+3", "ABBA" * 6: "12+12"}
SIDES_OF_RUNS = {3: "3+3", 6: "ABBA", 12: "12+12"}
NAMES = {FIRST_A: "A-B", ABBA: "ABBA", ABAB: "ABAB", **UNEVEN, **EVEN}


def sides_of(scenario: Scenario, rng: numpy.random.Generator) -> tuple[int, ...]:
    """The side of each run in order of time."""
    order = {name: letters for letters, name in NAMES.items()}.get(scenario.order, ABAB)
    sides = [int(letter == "B") for letter in order]
    return tuple(rng.permutation(sides).tolist() if scenario.order == "random" else sides)


def draw(
    scenario: Scenario, sides: tuple[int, ...], repetitions: int, rng: numpy.random.Generator
) -> numpy.ndarray:
    """Logarithms [run][repetition][case]."""
    shape = len(sides), repetitions, scenario.cases
    own, common = (_noise(scenario.tails, rng, size) for size in (shape, (*shape[:2], 1)))
    z = math.sqrt(1 - scenario.shared) * own + math.sqrt(scenario.shared) * common
    side = numpy.array(sides)[:, None, None]
    place = numpy.arange(len(sides))[:, None, None]
    noisier = (side == 1) & (numpy.arange(scenario.cases) < scenario.noisier)
    noise = numpy.geomspace(scenario.noise, scenario.noise_to or scenario.noise, scenario.cases)
    logs = noise * z * numpy.where(noisier, scenario.factor, 1.0)
    logs = logs + math.log1p(scenario.change_all) * side
    logs = logs + math.log1p(scenario.drift) * place
    logs = logs + math.log1p(scenario.step) * (place >= LAUNCHES)
    slow = rng.permuted(numpy.tile(numpy.arange(len(sides)), (repetitions, 1)), axis=1)
    for number in range(scenario.outlier):
        logs[slow[:, number], numpy.arange(repetitions)] += math.log1p(OUTLIER)
    if scenario.slow:
        logs += math.log(SLOW_FACTOR) * (rng.random((*shape[:2], 1)) < scenario.slow)
    if scenario.change:
        logs[:, :, CHANGED] += math.log1p(scenario.change) * side[:, :, 0]
    return logs


def _noise(tails: str, rng: numpy.random.Generator, shape: tuple[int, ...]) -> numpy.ndarray:
    """Of deviation 1: normal, or Student's t with 3 degrees of freedom."""
    if tails == "normal":
        return rng.standard_normal(shape)
    return rng.standard_t(3, shape) / math.sqrt(3)


@dataclass(frozen=True)
class Judged:
    """[repetition][case]: faster and slower as -1 and 1, same, p, the logarithm of the ratio and
    the ends of its 95 % interval; left_out: runs. over_all: the largest slowdown of the mean over
    all cases that its 95 % interval leaves possible, as a logarithm.
    """

    differs: numpy.ndarray
    same: numpy.ndarray
    p: numpy.ndarray
    effect: numpy.ndarray
    low: numpy.ndarray
    high: numpy.ndarray
    left_out: numpy.ndarray
    over_all: numpy.ndarray


def judge(sides: tuple[int, ...], order: tuple[float, ...], logs: numpy.ndarray) -> Judged:
    """All repetitions with these runs; those with outliers without them."""
    found, (worst, far) = _once(sides, order, logs, 0)
    for launch in set(worst.tolist()):
        which = numpy.flatnonzero(worst == launch)
        keep = [i for i in range(len(sides)) if i != launch]
        rest = tuple(sides[i] for i in keep), tuple(order[i] for i in keep), logs[keep][:, which]
        one, (second, also) = _once(*rest, 1)
        _put(found, which[far[which]], one, far[which])
        for other in set(second[also].tolist()):
            again = also & (second == other)
            keep = [i for i in range(len(rest[0])) if i != other]
            own = tuple(tuple(what[i] for i in keep) for what in rest[:2])
            two, _ = _once(*own, rest[2][keep][:, again], 2)
            _put(found, which[again], two, numpy.ones(again.sum(), bool))
    return found


def _once(
    sides: tuple[int, ...], order: tuple[float, ...], logs: numpy.ndarray, left_out: int
) -> tuple[Judged, tuple[numpy.ndarray, numpy.ndarray]]:
    """With these runs alone, and of each repetition the worst of them and if it is too far."""
    model = statistics.model_of(sides, order)
    rest = statistics.least_squares(model, logs)[2]
    share = numpy.median(statistics.noise_share(model, rest), axis=1, keepdims=True)
    effect, p, low, high, low_90, high_90 = _sides(sides, order, logs, share)
    p = holm(p)
    limit = math.log1p(THRESHOLD)
    significant = (p < LEVEL) & (abs(effect) > limit)
    of_mean = _sides(sides, order, logs.mean(axis=2), share[:, 0])
    found = Judged(
        numpy.where(significant, numpy.sign(effect), 0).astype(int),
        ~significant & (low_90 > -limit) & (high_90 < limit),
        p,
        effect,
        low,
        high,
        numpy.full(logs.shape[1], left_out),
        of_mean[3],
    )
    deviates = abs(numpy.median(statistics.outlier_deviates(model, rest, logs.shape[2])[0], axis=2))
    deviates[[sides.count(side) <= statistics.FEWEST for side in sides]] = 0.0  # these stay
    return found, (
        deviates.argmax(axis=0),
        deviates.max(axis=0) > statistics.outlier_limit(len(sides)),
    )


def _sides(
    sides: tuple[int, ...],
    order: tuple[float, ...],
    logs: numpy.ndarray,
    share: numpy.ndarray,
) -> list[numpy.ndarray]:
    """Of each ratio: its logarithm, p, the ends of the 95 % and of the 90 % interval."""
    models = [statistics.model_of(sides, order)]
    if statistics.inflation(models[0]) > statistics.MOST_INFLATED:
        models.insert(0, statistics.model_of(sides, None))
    figures = []
    for model in models:
        effect, _, rest = statistics.least_squares(model, logs)
        error, degrees = statistics.side_error(model, rest, share)
        p = 2 * special.stdtr(degrees, -abs(effect) / error)
        widths = [special.stdtrit(degrees, end) * error for end in (0.975, 0.95)]
        figures.append([effect, p, *(effect + sign * w for w in widths for sign in (-1, 1))])
    if len(figures) == 1:
        return figures[0]
    means, other = figures
    p = numpy.where(means[0] * other[0] > 0, numpy.maximum(means[1], other[1]), 1.0)
    joined = [
        (numpy.minimum, numpy.maximum)[end](*pair)
        for end, pair in zip((0, 1, 0, 1), zip(means[2:], other[2:], strict=True), strict=True)
    ]
    return [means[0], p, *joined]


def _put(found: Judged, places: numpy.ndarray, other: Judged, which: numpy.ndarray) -> None:
    for name in vars(found):
        getattr(found, name)[places] = getattr(other, name)[which]


def holm(p: numpy.ndarray) -> numpy.ndarray:
    """Holm's over the last axis."""
    order = p.argsort(axis=-1)
    many = p.shape[-1] - numpy.arange(p.shape[-1])
    adjusted = numpy.minimum(1, numpy.maximum.accumulate(
        numpy.take_along_axis(p, order, -1) * many, axis=-1))  # fmt: skip
    found = numpy.empty_like(p)
    numpy.put_along_axis(found, order, adjusted, -1)
    return found


@dataclass(frozen=True)
class Found:
    """Of all repetitions: with a false alarm, with the change found, with runs left out. covered:
    the share of all 95 % intervals that contain the truth.
    """

    alarms: int
    hits: int
    left_out: int
    covered: float


def rates(scenario: Scenario, repetitions: int, seed: int = 0) -> Found:
    rng = numpy.random.default_rng([seed, *str(scenario).encode()])
    orders = ORDERS if scenario.order == "random" else 1
    alarms = hits = left_out = covered = 0
    truth = numpy.zeros(scenario.cases)
    if scenario.change:
        truth[CHANGED] = math.log1p(scenario.change)
    for number in range(orders):
        own = repetitions // orders + (number < repetitions % orders)
        sides = sides_of(scenario, rng)
        judged = judge(sides, tuple(map(float, range(len(sides)))), draw(scenario, sides, own, rng))
        others = numpy.arange(scenario.cases) != (CHANGED if scenario.change else -1)
        alarms += int((judged.differs[:, others] != 0).any(axis=1).sum())
        hits += int((judged.differs[:, ~others] == 1).sum())
        left_out += int((judged.left_out > 0).sum())
        covered += int(((judged.low <= truth) & (truth <= judged.high)).sum())
    return Found(alarms, hits, left_out, covered / (repetitions * scenario.cases))


def interval(count: int, of: int) -> str:
    """A share and its 95 % interval (Clopper and Pearson)."""
    exact = stats.binomtest(count, of).proportion_ci()
    return f"{100 * count / of:5.1f} % ({100 * exact.low:.1f} to {100 * exact.high:.1f})"


# False alarms and power.
DRIFTS = (0.001, 0.002, 0.005, 0.01, 0.02)
ASKED = (
    *(Scenario("A-B", drift=d, outlier=o) for d in DRIFTS for o in (0, 1)),
    *(Scenario("A-B", noise=0.05, drift=d, outlier=o) for d in DRIFTS[::2] for o in (0, 1)),
    *(
        Scenario(order, drift=0.01, outlier=o)
        for order in ("ABBA", "random", "ABAB")
        for o in (0, 1)
    ),
    *(Scenario(order) for order in ("A-B", "ABBA", "random", "ABAB")),
)
CONCURRENT = (
    Scenario("ABBA", shared=1.0),
    Scenario("A-B", shared=1.0),
    Scenario("A-B", shared=0.5, drift=0.01, outlier=1),
    Scenario("A-B", drift=0.01, outlier=2),
    Scenario("ABBA", drift=0.01, outlier=2),
    Scenario("ABBA", cases=1),
    Scenario("A-B", cases=1, drift=0.01, outlier=1),
    Scenario("ABBA", tails="t3"),
    Scenario("A-B", tails="t3", drift=0.01),
    Scenario("ABBA", tails="t3", shared=1.0),
    Scenario("A-B", step=0.05),
)
NOISIER = (
    *(
        Scenario(order, factor=factor, outlier=outlier)
        for order in ("ABAB", "ABBA", "12+6", "12+4", "12+3")
        for factor in (1.0, 3.0)
        for outlier in (0, 1)
    ),
    *(Scenario("A-B", factor=3.0, drift=0.01, outlier=outlier) for outlier in (0, 1)),
    *(
        Scenario(order, factor=3.0, **other)
        for order in ("ABAB", "12+6", "12+4", "12+3")
        for other in (
            *({"cases": cases} for cases in (1, 2, 3, 4, 5)),
            {"cases": 1, "outlier": 1},
            {"noisier": 12},
        )
    ),
)
TWO_MODES = tuple(
    Scenario(order, slow=slow)
    for slow in (0.1, 0.3, 0.5)
    for order in ("3+3", "ABBA", "random", "A-B", "12+12")
)
POWERED = tuple(
    Scenario(order, change=0.05, drift=drift, outlier=outlier)
    for order in ("ABBA", "random", "ABAB")
    for drift, outlier in ((0.0, 0), (0.01, 0), (0.0, 1), (0.01, 1), (0.02, 1), (0.01, 2))
)


def report_alarms(scenarios: Sequence[Scenario], repetitions: int) -> None:
    print(f"\n{'nothing changed':64}{'false alarm in any case':26}a run left out   coverage")
    for scenario in scenarios:
        found = rates(scenario, repetitions)
        alarms = interval(found.alarms, repetitions)
        out = f"{100 * found.left_out / repetitions:.1f} %"
        print(f"{scenario!s:64}{alarms:26}{out:17}{100 * found.covered:.1f} %", flush=True)


def report_power(repetitions: int) -> None:
    print(f"\n{'one case +5 %':64}{'found':26}{'false alarm in another case':29}coverage")
    for scenario in POWERED:
        found = rates(scenario, repetitions)
        alarms = interval(found.alarms, repetitions)
        print(f"{scenario!s:64}{interval(found.hits, repetitions):26}{alarms:29}"
              f"{100 * found.covered:.1f} %", flush=True)  # fmt: skip


# Both sides of the promise: the exit codes of --fail-on slower. The noise of real runs is that of
# results/gloo-oneccl-2ranks.
NOISES_OF_PROMISE = {"2 %": (0.02, 0.0), "12 to 49 %": (0.12, 0.49)}
CHANGES_OF_PROMISE = {
    "nothing changed": (0.0, 0.0),
    **{f"one case x{1 + change:g}": (change, 0.0) for change in (0.2, 0.5, 1.0)},
    **{f"all cases +{100 * change:g} %": (0.0, change) for change in (0.05, 0.1, 0.2)},
}


def exit_codes(scenario: Scenario, repetitions: int, seed: int = 4) -> tuple[int, int, int]:
    """How many comparisons exit with 1 (a case is slower), 2 (cannot tell) and 0."""
    changes = (round(1e3 * change) for change in (scenario.change, scenario.change_all))
    rng = numpy.random.default_rng([seed, *str(scenario).encode(), *changes])
    sides = sides_of(scenario, rng)
    logs = draw(scenario, sides, repetitions, rng)
    judged = judge(sides, tuple(map(float, range(len(sides)))), logs)
    slower = (judged.differs == 1).any(axis=1)
    still_open = (judged.differs == 0) & ~judged.same
    possible = numpy.where(still_open, judged.high, 0.0).max(axis=1)
    hidden = still_open.any(axis=1) & (judged.over_all > math.log1p(ACT_ON_ALL))
    hidden |= possible > math.log1p(ACT_ON_CASE)
    counts = int(slower.sum()), int((~slower & hidden).sum())
    return *counts, repetitions - sum(counts)


def report_promise(repetitions: int) -> None:
    print(f"\nexit codes of --fail-on slower, % of {repetitions} comparisons:")
    print("1 (a case is slower) / 2 (cannot tell) / 0 (nothing found)")
    print(f"{'noise, runs a side':24}" + "".join(f"{name:20}" for name in CHANGES_OF_PROMISE))
    for noise_name, (noise, noise_to) in NOISES_OF_PROMISE.items():
        for runs, order in SIDES_OF_RUNS.items():
            cells = []
            for change, change_all in CHANGES_OF_PROMISE.values():
                scenario = Scenario(
                    order, noise=noise, noise_to=noise_to, change=change, change_all=change_all
                )
                codes = exit_codes(scenario, repetitions)
                cells.append(" / ".join(f"{100 * count / repetitions:.1f}" for count in codes))
            print(f"{f'{noise_name}, {runs}':24}" + "".join(f"{c:20}" for c in cells), flush=True)


def launch(logs: numpy.ndarray, number: int) -> Run:
    """A run that started ``number`` minutes after the first, one figure a case."""
    results = []
    for place, log in enumerate(logs):
        asked_for = Case("all_reduce", 8 << place, "float32", "sum", None, True, "synchronized",
                         "gloo", "cpu")  # fmt: skip
        call = round(1e12 * math.exp(log))  # so that rounding is no noise
        times = {"host": [[call] * 3] * RANKS}
        results.append(CaseResult(asked_for, "ok", RANKS, size_bytes=8 << place, time_ns=times))
    start = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(minutes=number)
    return Run(header={"ranks": RANKS, "start_utc": start.isoformat()}, results=results, end=_END)


def through_files(sides: tuple[int, ...], logs: numpy.ndarray) -> list[dict[str, object]]:
    """The rows of ``torchcoll compare`` on the files of logs [run][case]."""
    with tempfile.TemporaryDirectory() as folder:
        for number, (side, own) in enumerate(zip(sides, logs, strict=True)):
            save(launch(own, number), Path(folder) / "ba"[side] / f"{number}.jsonl")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = main(["compare", f"{folder}/b", f"{folder}/a", "--format", "json"])
    assert code == 0
    rows: list[dict[str, object]] = json.loads(out.getvalue())["rows"]
    return rows


def agreement(scenario: Scenario, repetitions: int, seed: int = 1) -> tuple[int, int]:
    """(cases in which both ways agree, all cases)."""
    rng = numpy.random.default_rng([seed, *str(scenario).encode()])
    agree = total = 0
    for _ in range(repetitions):
        sides = sides_of(scenario, rng)
        logs = draw(scenario, sides, 1, rng)
        ours = judge(sides, tuple(map(float, range(len(sides)))), logs)
        for place, row in enumerate(through_files(sides, logs[:, 0])):
            differs, same = ours.differs[0, place], ours.same[0, place]
            result = ("same" if same else "inconclusive", "slower", "faster")[differs]
            numbers = [row[name] for name in ("ratio", "ratio_low", "ratio_high", "p_value")]
            of_case = [values[0, place] for values in (ours.effect, ours.low, ours.high)]
            expected = [*map(math.exp, of_case), ours.p[0, place]]
            total += 1
            agree += row["result"] == result and numpy.allclose(numbers, expected, rtol=1e-6)
    return agree, total


def report_agreement(repetitions: int) -> None:
    print(f"\nthe same through files and torchcoll compare, {repetitions} comparisons a row")
    for scenario in (ASKED[7], ASKED[-5], POWERED[8], CONCURRENT[2], NOISIER[15], NOISIER[19]):
        agree, total = agreement(scenario, repetitions)
        print(f"{scenario!s:64}{agree} of {total} cases agree", flush=True)


# How many runs it needs.
TRUTHS = (0.0, 0.01, 0.015, 0.025, 0.03, 0.05, 0.1)
NOISES = (0.01, 0.02, 0.05)


def decided(truth: float, noise: float, launches: int, repetitions: int, seed: int = 2) -> float:
    """How often so many runs a side, A B A B ..., give the true result at Holm's first level
    of CASES, by simulated runs.
    """
    rng = numpy.random.default_rng([seed, launches, round(1e4 * truth), round(1e4 * noise)])
    sides = (0, 1) * launches
    model = statistics.model_of(sides, tuple(map(float, range(2 * launches))))
    z = rng.standard_normal((2 * launches, repetitions))
    logs = noise * z + truth * numpy.array(sides)[:, None]
    effect, _, rest = statistics.least_squares(model, logs)
    (error, degrees), limit = statistics.side_error(model, rest, 0.5), math.log1p(THRESHOLD)
    if abs(truth) > limit:
        p = 2 * special.stdtr(degrees, -abs(effect) / error)
        return float(((p < LEVEL / CASES) & (effect > limit)).mean())
    return float((abs(effect) + special.stdtrit(degrees, 0.95) * error < limit).mean())


def report_needs(repetitions: int) -> None:
    print(f"\n{'truth, noise':18}{'N':>5}   {'decided with N':>15}{'with N - 1':>12}")
    what = make_target(THRESHOLD, CASES)
    for change in TRUTHS:
        for noise in NOISES:
            truth = math.log1p(change)
            number = runs_needed(what, ORDERED, truth, noise)
            both = (number, number - 1) if number else ()
            texts = [f"{decided(truth, noise, n, repetitions):.3f}" for n in both] or ["-", "-"]
            name = f"{100 * change:g} %, {100 * noise:g} %"
            print(f"{name:18}{number or 'over 1000':>5}   {texts[0]:>15}{texts[1]:>12}", flush=True)


# Two modes of starts.
RUNS_A_SIDE = (4, 6, 12)
START_TAILS = ("normal", "t3", "exponential")
SLOW_SHARE = 0.3  # of the starts
START_FACTORS = (1.2, SLOW_FACTOR)


def starts(
    tails: str, factor: float, runs_a_side: int, repetitions: int, noise: float = 0.01
) -> tuple[int, int]:
    """(comparisons in which two modes are seen, and those with the true counts of slow starts).

    The noise is half common to all cases of a run, half of the case. factor: of the slow starts.
    """
    rng = numpy.random.default_rng(
        [3, runs_a_side, *(round(100 * x) for x in (factor, noise)), *tails.encode()]
    )
    sides = tuple(int(letter == "B") for letter in "ABBA" * (runs_a_side // 2))
    runs = tuple((side, number) for number, side in enumerate(sides))
    order = tuple(map(float, range(len(sides))))
    seen = right = 0
    for _ in range(repetitions):
        common, own = (_start_noise(tails, rng, (len(sides), n)) for n in (1, CASES))
        slow = rng.random(len(sides)) < (SLOW_SHARE if factor > 1 else 0)
        logs = noise * math.sqrt(0.5) * (common + own) + math.log(factor) * slow[:, None]
        modes = start_modes(
            [statistics.Figures(tuple(case), runs, order) for case in numpy.exp(logs).T]
        )
        counts = tuple(int(slow[numpy.array(sides) == side].sum()) for side in (0, 1))
        seen += modes is not None
        right += modes is not None and modes.slow == counts
    return seen, right


def _start_noise(tails: str, rng: numpy.random.Generator, shape: tuple[int, ...]) -> numpy.ndarray:
    if tails == "exponential":
        return rng.standard_exponential(shape) - 1
    return _noise(tails, rng, shape)


def report_starts(repetitions: int) -> None:
    print(
        f"\n{f'starts, {repetitions} comparisons a row':46}{'runs a side':14}"
        f"{'two modes are seen':26}of these with the true counts"
    )
    for factor in (1.0, *START_FACTORS):
        truth = f"{100 * SLOW_SHARE:g} % of starts {factor:g}x" if factor > 1 else "one mode"
        for noise in (0.01, 0.05, 0.2) if factor == 1 else (0.01, 0.05):
            for tails in START_TAILS:
                name = f"{truth}, {100 * noise:g} % {tails} noise"
                for number in RUNS_A_SIDE:
                    seen, right = starts(tails, factor, number, repetitions, noise)
                    share = f"{100 * right / seen:.0f} %" if seen and factor > 1 else "-"
                    print(f"{name:46}{number:11}   {interval(seen, repetitions):26}{share}",
                          flush=True)  # fmt: skip


PARTS = {
    "agreement": lambda _: report_agreement(AGREEMENTS),
    "asked": lambda repetitions: report_alarms(ASKED, repetitions),
    "concurrent": lambda repetitions: report_alarms(CONCURRENT, repetitions),
    "noisier": lambda repetitions: report_alarms(NOISIER, repetitions),
    "power": report_power,
    "promise": report_promise,
    "needs": lambda repetitions: report_needs(4 * repetitions),
    "starts": lambda repetitions: report_starts(repetitions // 2),
    "modes": lambda repetitions: report_alarms(TWO_MODES, repetitions),
}


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    title("compare, simulated")
    print(
        f"{CASES} cases, {LAUNCHES} runs a side, threshold {100 * THRESHOLD:g} %, "
        f"{count} comparisons a row"
    )
    for part in sys.argv[2:] or PARTS:
        PARTS[part](count)

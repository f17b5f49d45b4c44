"""How often the rule of ``torchcoll versus`` is wrong, and how many runs it takes.

    python tests/benchmarks/versus.py [RUNS [PART...]]

Each row simulates so many whole runs of versus: runs in turn, a look after every round, repeats
of runs that are outliers, the end. The rule is the shipped one (``Looks``, ``due``), and so is
the linear model; the outlier rule is written here again for arrays. That all of it is what
``torchcoll versus`` does with result files is checked in ``agreement``. Noise is normal, of every
case of every run; an outlier is one of the first three runs of a side, 30 % slow in all
cases.
"""

from __future__ import annotations

import collections
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy
from common import title
from compare_simulation import interval, launch

from torchcoll.core.file import save
from torchcoll.parts.experiments.axes import Cell
from torchcoll.parts.experiments.blocks import RunPlan
from torchcoll.parts.experiments.launch_command import command_of
from torchcoll.parts.experiments.looks import Decided, Looks, Seen, due
from torchcoll.parts.experiments.versus import Versus
from torchcoll.stats import statistics
from torchcoll.stats.needed import make_target, power
from torchcoll.stats.ratios import ORDERED
from torchcoll.stats.sequential import FIRST_LOOK

CASES = 25
CHANGED = 12  # the number of the case that changes, where one does
THRESHOLD = 0.02
MOST = 30  # runs a side, as versus has it
FIXED = 6
OUTLIER = 0.3
AGREEMENTS = 5


@dataclass(frozen=True)
class Scenario:
    """What is simulated. factor: noise of the new side over that of the base; on: to MOST runs,
    whatever is decided; until: no further than to where the change is found.
    """

    noise: float
    change: float = 0.0
    drift: float = 0.0
    outlier: bool = False
    factor: float = 1.0
    cases: int = CASES
    on: bool = False
    until: bool = False

    def __str__(self) -> str:
        words = [f"{100 * self.noise:g} % noise"]
        words += [f"one case +{100 * self.change:g} %"] if self.change else []
        words += [f"{100 * self.drift:g} % drift"] if self.drift else []
        words += ["an early outlier"] if self.outlier else []
        words += [f"new {self.factor:g} x as noisy"] if self.factor != 1 else []
        words += ["one case"] if self.cases == 1 else []
        words += [f"never ended before {MOST}"] if self.on else []
        return ", ".join(words)

    @property
    def changed(self) -> int:
        return min(CHANGED, self.cases - 1)


@dataclass
class One:
    """One run. out: the places of the runs that are left out; found: the round in which the
    case that changed was first shown to differ.
    """

    looks: Looks
    sides: list[int] = field(default_factory=list)
    out: frozenset[int] = frozenset()
    slow: int = -1
    ended: int = 0
    why: str = ""
    found: int = 0
    alarm: bool = False
    same: bool = False
    repeats: int = 0
    figures: numpy.ndarray | None = None  # logarithms [run][case]
    last: Decided | None = None

    def kept(self) -> dict[int, int]:
        return {
            side: sum(s == side and n not in self.out for n, s in enumerate(self.sides))
            for side in (0, 1)
        }


def simulate(scenario: Scenario, runs: int, seed: int = 0) -> list[One]:
    rng = numpy.random.default_rng([seed, *str(scenario).encode()])
    logs = _drawn(scenario, runs, rng)
    every = [One(Looks(THRESHOLD, MOST)) for _ in range(runs)]
    for one in every:
        one.slow = int(rng.integers(2 * FIRST_LOOK)) if scenario.outlier else -1
    figures = numpy.empty_like(logs)
    for run, one in enumerate(every):
        one.figures = figures[:, run]
    active = list(range(runs))
    for number in range(1, MOST + 1):
        short = active
        while short:
            for run in short:
                one = every[run]
                for side in due([0, 1], one.kept(), number):
                    place = len(one.sides)
                    value = logs[place, run] * (scenario.factor if side else 1.0)
                    value = value + math.log1p(scenario.drift) * place
                    if scenario.change and side:
                        value[scenario.changed] += math.log1p(scenario.change)
                    figures[place, run] = value + math.log1p(OUTLIER) * (place == one.slow)
                    one.sides.append(side)
            if number > FIRST_LOOK:
                _find_outliers(every, short, figures)
            short = [run for run in short if due([0, 1], every[run].kept(), number)]
            for run in short:
                every[run].repeats += 1
        if number >= FIRST_LOOK:
            _look(scenario, every, active, figures, number)
            active = [run for run in active if not every[run].ended]
    return every


def _drawn(scenario: Scenario, runs: int, rng: numpy.random.Generator) -> numpy.ndarray:
    """Noise [run][run][case]: of more runs than there are ever."""
    return scenario.noise * rng.standard_normal((2 * MOST + 20, runs, scenario.cases))


def _groups(every: Sequence[One], runs: Sequence[int]) -> dict[tuple, list[int]]:
    found = collections.defaultdict(list)
    for run in runs:
        found[tuple(every[run].sides), every[run].out].append(run)
    return found


def _find_outliers(every: Sequence[One], runs: Sequence[int], figures: numpy.ndarray) -> None:
    """As ``statistics.outliers``: the second furthest is looked at whatever the furthest says."""
    groups = collections.defaultdict(list)
    for run in runs:
        groups[tuple(every[run].sides)].append(run)
    for sides, own in groups.items():
        members = numpy.array(own)
        keep = list(range(len(sides)))
        first, far = _furthest(sides, keep, figures[: len(sides), members])
        for worst in set(first.tolist()):
            some = numpy.flatnonzero(first == worst)
            rest = [place for place in keep if place != worst]
            logs = figures[: len(sides), members[some]]
            second, also = _furthest(sides, rest, logs)
            for run, one_far, other, other_far in zip(
                members[some], far[some], second, also, strict=True
            ):
                left = {worst, other} if other_far else {worst} if one_far else set()
                every[run].out = frozenset(map(int, left))


def _furthest(
    sides: tuple[int, ...], keep: list[int], logs: numpy.ndarray
) -> tuple[numpy.ndarray, numpy.ndarray]:
    model = statistics.model_of(tuple(sides[p] for p in keep), tuple(map(float, keep)))
    rest = statistics.least_squares(model, logs[keep])[2]
    deviates = abs(numpy.median(statistics.outlier_deviates(model, rest, logs.shape[2])[0], axis=2))
    for side in (0, 1):  # those of which fewer would be left stay
        own = [n for n, p in enumerate(keep) if sides[p] == side]
        if len(own) <= statistics.FEWEST:
            deviates[own] = 0.0
    worst = deviates.argmax(axis=0)
    return numpy.array(keep)[worst], deviates.max(axis=0) > statistics.outlier_limit(len(keep))


def seen_of(sides: Sequence[int], keep: Sequence[int], logs: numpy.ndarray) -> Seen:
    """Of logs [run][run][case]."""
    model = statistics.model_of(tuple(sides[p] for p in keep), tuple(map(float, keep)))
    effect, _, rest = statistics.least_squares(model, logs[list(keep)])
    share = numpy.median(statistics.noise_share(model, rest), axis=1, keepdims=True)
    error, degrees = statistics.side_error(model, rest, share)
    free = [float(model.free[model.sides == side].sum()) for side in (0, 1)]
    squares = [(rest[model.sides == side] ** 2).sum(axis=0) / free[side] for side in (0, 1)]
    spread = numpy.sqrt((squares[0] + squares[1]) / 2)
    return Seen(effect, error, numpy.broadcast_to(degrees, effect.shape), spread)


def _look(
    scenario: Scenario,
    every: Sequence[One],
    runs: Sequence[int],
    figures: numpy.ndarray,
    number: int,
) -> None:
    cases = numpy.arange(scenario.cases)
    for (sides, out), own in _groups(every, runs).items():
        keep = [place for place in range(len(sides)) if place not in out]
        all_seen = seen_of(sides, keep, figures[: len(sides), own])
        for place, run in enumerate(own):
            one = every[run]
            seen = Seen(*(getattr(all_seen, name)[place] for name in vars(all_seen)))
            found = one.looks.look(cases, seen, number, MOST)
            others = cases != (scenario.changed if scenario.change else -1)
            if scenario.change and not one.found and found.differs[scenario.changed] == 1:
                one.found = number
            alarm = bool(found.differs[others].any())
            one.alarm = one.alarm or alarm if scenario.on else alarm
            one.last = found
            one.same = bool(found.same[scenario.changed])
            why = "decided" if found.decided.all() else "futile" if found.futile else ""
            why = "found" if scenario.until and one.found else why
            if number == MOST or (why and not scenario.on):
                one.ended, one.why = number, why or "most"


def _ends(found: Sequence[One]) -> str:
    ways = collections.Counter(one.why for one in found)
    ended = sum(one.ended for one in found) / len(found)
    text = f"{ended:5.1f}   " + ", ".join(
        f"{100 * ways[why] / len(found):.0f} % {why}" for why in ("decided", "futile", "most")
    )
    return f"{text}; {100 * sum(one.repeats > 0 for one in found) / len(found):.1f} % with a repeat"


EQUAL = tuple(
    Scenario(noise, outlier=outlier) for outlier in (False, True) for noise in (0.01, 0.02, 0.05)
)
EQUAL_BESIDE = (
    Scenario(0.02, cases=1),
    Scenario(0.02, cases=1, on=True),
    Scenario(0.05, on=True),
    Scenario(0.01, drift=0.01),
    Scenario(0.01, factor=3.0),
)
AT_THRESHOLD = (
    *(Scenario(noise, change=THRESHOLD, cases=1) for noise in (0.005, 0.01, 0.02)),
    *(Scenario(noise, change=THRESHOLD) for noise in (0.01, 0.02)),
)
CHANGES = tuple(
    Scenario(noise, change, outlier=outlier, until=True)
    for outlier in (False, True)
    for noise in (0.01, 0.02)
    for change in (0.1, 0.05, 0.03)
)


def report_equal(scenarios: Sequence[Scenario], runs: int) -> None:
    print(f"\n{'nothing changed':44}{'a false difference':24}runs a side, how it ended")
    for scenario in scenarios:
        found = simulate(scenario, runs)
        alarms = interval(sum(one.alarm for one in found), runs)
        print(f"{scenario!s:44}{alarms:24}{_ends(found)}", flush=True)


def report_threshold(runs: int) -> None:
    print(f"\n{'changed by the threshold':44}{'called the same':24}runs a side, how it ended")
    for scenario in AT_THRESHOLD:
        found = simulate(scenario, runs)
        same = interval(sum(one.same for one in found), runs)
        print(f"{scenario!s:44}{same:24}{_ends(found)}", flush=True)


def report_changes(scenarios: Sequence[Scenario], runs: int) -> None:
    print(f"\n{'changed':44}{'runs a side':>16}{'9 of 10':>9}{'found':>9}{f'a fixed {FIXED}':>12}")
    for scenario in scenarios:
        found = simulate(scenario, runs)
        took = sorted(one.found for one in found if one.found)
        truth = math.log1p(scenario.change), scenario.noise
        fixed = power(make_target(THRESHOLD, CASES), ORDERED, FIXED, *truth)
        mean = sum(took) / len(took) if took else math.nan
        tenth = took[int(0.9 * len(took))] if took else 0
        print(
            f"{scenario!s:44}{mean:16.1f}{tenth:9}{100 * len(took) / runs:7.1f} %"
            f"{'' if scenario.outlier else f'{100 * fixed:.1f} %':>12}",
            flush=True,
        )


def through_files(one: One) -> tuple[int, list[str]]:
    """(rounds, results) of ``Versus`` on the files of this run's runs, as it asks for them."""
    command = command_of(["python", "-m", "torchcoll.allreduce"])
    plan = RunPlan(command, [Cell("A"), Cell("B")], MOST)
    with tempfile.TemporaryDirectory() as folder:
        state = Versus(plan, Path(folder), THRESHOLD, MOST, MOST)
        place = 0
        while job := state.next(lambda job: (Path(folder) / f"{job.stem}.jsonl").exists()):
            save(launch(one.figures[place], place), Path(folder) / f"{job.stem}.jsonl")
            place += 1
        (found,) = state.comparisons()
    assert place == len(one.sides)
    return state.round, [row.result for row in found.rows]


def report_agreement(runs: int) -> None:
    print(f"\nthe same through files and torchcoll.parts.experiments.versus, {runs} runs a row")
    for scenario in (EQUAL[0], EQUAL[5], Scenario(0.01, 0.05), Scenario(0.01, 0.05, outlier=True)):
        agree = 0
        for one in simulate(scenario, runs, seed=1):
            names = zip(one.last.differs.tolist(), one.last.same.tolist(), strict=True)
            ours = [
                ("same" if same else "inconclusive", "slower", "faster")[d] for d, same in names
            ]
            agree += through_files(one) == (one.ended, ours)
        print(f"{scenario!s:44}{agree} of {runs} end in the same round with the same results",
              flush=True)  # fmt: skip


PARTS = {
    "agreement": lambda _: report_agreement(AGREEMENTS),
    "equal": lambda runs: report_equal(EQUAL[:3], runs),
    "changes": lambda runs: report_changes(CHANGES[:6], runs),
    "equal-outlier": lambda runs: report_equal(EQUAL[3:], runs),
    "changes-outlier": lambda runs: report_changes(CHANGES[6:], runs),
    "threshold": report_threshold,
    "concurrent": lambda runs: report_equal(EQUAL_BESIDE, runs),
}


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    title("versus, simulated")
    print(
        f"{CASES} cases, threshold {100 * THRESHOLD:g} %, at most {MOST} runs a side, "
        f"{count} runs a row"
    )
    for part in sys.argv[2:] or PARTS:
        PARTS[part](count)

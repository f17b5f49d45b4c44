"""``torchcoll versus``: runs of the sides in turn, a look after every round, and the end.

What a folder holds decides alone what is launched next: a versus that was killed, and one that goes
on days later, first takes the runs that are there, in their order, and looks as often as the
first one did. So nothing but runs is stored, and the same folder always gives the same answer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy

from torchcoll.core.errors import UsageError
from torchcoll.core.file import load_own
from torchcoll.core.result import Run
from torchcoll.core.units import format_percent
from torchcoll.parts.experiments.blocks import PlannedRun, RunPlan
from torchcoll.parts.experiments.folder import Folder
from torchcoll.parts.experiments.looks import Decided, Looks, Seen, due, half_width
from torchcoll.parts.experiments.versus_plan import begun_versus
from torchcoll.questions.comparison.compare import Comparison, comparison_of, matched
from torchcoll.questions.comparison.results import (
    Judged,
    measured_cases,
    p_text,
    targets_of,
    with_bound,
    with_resolutions,
)
from torchcoll.stats.matching import Pair, pairs_of
from torchcoll.stats.needed import MOST_ADVISED, Target, runs_needed
from torchcoll.stats.ratios import exp
from torchcoll.stats.sequential import FIRST_LOOK
from torchcoll.stats.sides import Measured, Reading, Side
from torchcoll.stats.statistics import Outlier

ATTEMPTS = 2  # at one run, in a row: a node may fail once
_METRIC = "time"
_READING = Reading()  # of runs that all keep their samples

Done = Callable[[PlannedRun], bool]


@dataclass
class Launched:
    """The runs of one cell in the order of their numbers.

    measured: their cases. out: numbers, from 0, of those that are left out, and by how much they
    are off.
    """

    runs: list[Run] = field(default_factory=list)
    measured: list[list[Measured]] = field(default_factory=list)
    out: dict[int, float] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        return len(self.runs) - len(self.out)

    def add(self, run: Run) -> None:
        number = len(self.runs)
        rows = Side("", [run]).measured(_METRIC, _READING)
        self.runs.append(run)
        self.measured.append([dataclasses.replace(row, run=number) for row in rows])


@dataclass
class Standing:
    """A comparison of two cells after a look."""

    pairs: Sequence[Pair]
    cases: list[Judged]
    left_out: list[Outlier]

    @property
    def tested(self) -> list[int]:
        return [n for n, case in enumerate(self.cases) if not case.decided]


@dataclass(frozen=True)
class Repeat:
    """A run that is an outlier, and by what factor: its cell is launched once more."""

    job: PlannedRun
    factor: float


class Versus:
    """The state of a ``versus``.

    plan: its first cell is the base of all others. most: runs a side at which it ends. same_most:
    runs over which the error of 'same' is spent. stopped: why it ended, '' before. futile: whether
    more runs would not pay. failed: whether a run has no result. round: the last round that was
    judged. standing: what it left of each cell but the base.
    """

    def __init__(
        self, plan: RunPlan, path: Path, threshold: float, most: int, same_most: int
    ) -> None:
        self.plan = plan
        self.threshold = threshold
        self.most = most
        self.same_most = same_most
        self.stopped = ""
        self.futile = False
        self.failed = False
        self.round = 0
        self.standing: list[Standing] = []
        self.cells = {cell.name: Launched() for cell in plan.cells}
        self._path = path
        self._names = [cell.name for cell in plan.cells]
        self._by_name = {cell.name: cell for cell in plan.cells}
        self._looks = Looks(threshold, same_most)
        self._places: dict[tuple[int, str], int] = {}  # of a case among all, in the looks
        self._looked = dict.fromkeys(self._names, 0)
        self._number = 1
        self._decided = False
        self._now: list[Standing] = []
        self._news: list[Repeat | None] = []

    def next(self, done: Done) -> PlannedRun | None:
        """Take the runs that are done; returns the next run that is missing, or None at the end.

        If more runs were requested earlier, runs beyond an end are taken too.
        """
        while True:
            kept = {name: cell.kept for name, cell in self.cells.items()}
            short = due(self._names, kept, self._number)
            if not short:
                self._look()
                continue
            cell = self.cells[short[0]]
            job = PlannedRun(self._by_name[short[0]], len(cell.runs) + 1)
            if self.stopped and (self._decided or not done(job)):
                return None
            if not done(job):
                return job
            self.stopped, self.futile = "", False
            cell.add(load_own(self._path / f"{job.stem}.jsonl"))
            if all(self.cells[name].kept >= self._number for name in self._names):
                self._find_outliers()

    @property
    def titles(self) -> list[str]:
        """The names of the sides in sentences."""
        return [cell.title for cell in self.plan.cells]

    @property
    def runs(self) -> dict[str, int]:
        """How many of each cell the last look had, outliers too."""
        return dict(self._looked)

    def news(self) -> Iterator[Repeat | None]:
        """What has happened since it was asked last: a repeat, or None for a round."""
        while self._news:
            yield self._news.pop(0)

    def jobs(self, folder: Folder) -> Iterator[PlannedRun]:
        """Yields each missing run until it has stopped."""
        tried = 0
        before: PlannedRun | None = None
        while (job := self.next(folder.done)) is not None:
            tried = tried + 1 if before and before.key == job.key else 1
            if folder.unavailable(job) or tried > ATTEMPTS:
                last = folder.last(job) or {}
                self.failed = True
                self.stopped = f"{job.title} has no result: {last.get('reason')}"
                return
            before = job
            yield job

    def _measure(self) -> list[Standing]:
        """Every cell against the first, without results."""
        base, *others = self._names
        standings = []
        for name in others:
            ours, theirs = (
                [m for rows in self.cells[n].measured for m in rows] for n in (base, name)
            )
            pairs = pairs_of(ours, theirs)
            sides = Side(base, self.cells[base].runs), Side(name, self.cells[name].runs)
            standings.append(Standing(pairs, *measured_cases(pairs, sides[0], sides[1], _METRIC)))
        return standings

    def _find_outliers(self) -> None:
        """Who is left out now; what was left out earlier may count again."""
        base, *others = self._names
        outliers: dict[str, dict[int, float]] = {name: {} for name in self._names}
        self._now = self._measure()
        for other, standing in zip(others, self._now, strict=True):
            for outlier in standing.left_out:
                side, number = outlier.run
                outliers[other if side else base][number] = outlier.factor
        for name, out in outliers.items():
            for number in sorted(out.keys() - self.cells[name].out.keys()):
                job = PlannedRun(self._by_name[name], number + 1)
                self._news.append(Repeat(job, out[number]))
            self.cells[name].out = out
        if self._number == 1:
            self._check_comparable()

    def _check_comparable(self) -> None:
        """Raises UsageError where no run will ever decide anything."""
        base, *others = self.titles
        for name, standing in zip(others, self._now, strict=True):
            if any(case.result != "not comparable" for case in standing.cases):
                continue
            cases = zip(standing.cases, standing.pairs, strict=True)
            if reasons := [case.reason for case, pair in cases if pair.is_faulty]:
                self.failed = True
                self.stopped = f"no case of {name} can be compared: {reasons[0]}"
            else:
                raise UsageError(
                    "cases",
                    f"none of {name} that can be compared with {base}: {standing.cases[0].reason}",
                    "one at least",
                    f"See torchcoll show {self._path}.",
                )

    def _look(self) -> None:
        number = self._number
        if number >= FIRST_LOOK:
            self.round, self.standing = number, self._now
            self._looked = {name: len(cell.runs) for name, cell in self.cells.items()}
            self._decide()
            self._news.append(None)
        self._number += 1
        if not self.stopped and self._number > self.most:
            self.stopped = f"{self.most} runs a side are the most that were asked for"

    def _decide(self) -> None:
        """The results after this round, and whether it is the last one."""
        every = [(which, s, n) for which, s in enumerate(self.standing) for n in s.tested]
        if not every:
            reason = next(case.reason for s in self.standing for case in s.cases)
            self.stopped = f"no case can be judged, however many runs there are: {reason}"
            return
        numbers = numpy.array([self._place(which, s.pairs[n]) for which, s, n in every])
        seen = _seen([s.cases[n] for _, s, n in every])
        decided = self._looks.look(numbers, seen, self.round, self.most)
        widths = half_width(seen)
        for place, (_, standing, n) in enumerate(every):
            standing.cases[n] = self._judged(standing.cases[n], decided, place, widths[place])
        self._decided = bool(decided.decided.all())
        if self._decided:
            faulty = any(pair.is_faulty for s in self.standing for pair in s.pairs)
            which = "case that can be compared" if faulty else "case"
            self.stopped = f"every {which} is decided"
        elif decided.futile and self.round < self.most:
            self.futile = True
            best = 100 * decided.chance[~decided.decided].max()
            self.stopped = (
                f"no open case has a chance of 20 % to be decided by {self.most} runs a side: "
                f"{best:.0f} % at best"
            )

    def _place(self, which: int, pair: Pair) -> int:
        key = which, repr((pair.common, pair.side_values, pair.size_bytes))
        return self._places.setdefault(key, len(self._places))

    def _judged(self, case: Judged, decided: Decided, place: int, width: float) -> Judged:
        ratio, p = case.ratio, float(decided.p[place])
        assert ratio is not None
        bounds: list[float | None] = [None, None]
        if math.isfinite(width):
            bounds = [exp(math.log(ratio.ratio) + end) for end in (-width, width)]
        bounded = dataclasses.replace(ratio, low=bounds[0], high=bounds[1])
        result, reason = "inconclusive", p_text(p)
        if decided.differs[place]:
            result = "slower" if decided.differs[place] > 0 else "faster"
        elif decided.same[place]:
            result, reason = "same", f"within {format_percent(self.threshold)}"
        elif decided.futile and self.round < self.most:
            reason += f", {100 * decided.chance[place]:.0f} % to decide"
        judged = dataclasses.replace(case, ratio=bounded, p_value=p, result=result, reason=reason)
        return with_bound(judged, Target(self.threshold, float(decided.level[place]), looks=True))

    def comparisons(self) -> list[Comparison]:
        """What the last look has left, as ``compare`` gives it; [] where there was none."""
        if not self.standing:
            return []
        sides = [
            Side(title, self.cells[name].runs[: self._looked[name]])
            for title, name in zip(self.titles, self._names, strict=True)
        ]
        every = [case for standing in self.standing for case in standing.cases]
        cases = iter(with_resolutions(every, self.threshold, looks=True))
        return [
            comparison_of(
                matched(sides[0], side),
                [next(cases) for _ in standing.cases],
                standing.left_out,
                self.threshold,
                looks=True,
            )
            for side, standing in zip(sides[1:], self.standing, strict=True)
        ]

    def runs_on(self, comparisons: Sequence[Comparison]) -> tuple[int | None, bool]:
        """Runs a side that decide the inconclusive cases 9 times in 10 if their ratios are true,
        and whether these are all such cases. None if no sensible number does.
        """
        every = [row.judged for comparison in comparisons for row in comparison.rows]
        targets = targets_of(every, self.threshold, looks=True)
        needed = [
            runs_needed(what, case.ratio.design, math.log(case.ratio.ratio), case.ratio.spread)
            for case, what in zip(every, targets, strict=True)
            if case.result == "inconclusive" and case.ratio and case.ratio.spread
        ]
        sensible = [number for number in needed if number and number <= MOST_ADVISED]
        most = max(sensible, default=0)
        ended = self.futile or self.round >= self.most
        enough = most > (self.most if ended else self.round)
        return (most if enough else None), len(sensible) == len(needed)


def read(folder: Path) -> Versus | None:
    """The state of a folder, judged as during its run; None if it is none of a versus.

    Nothing of it can be launched. Raises UnreadableError for a broken manifest.
    """
    begun = begun_versus(folder)
    if begun is None:
        return None
    state = Versus(begun.plan, folder, begun.threshold, begun.most, begun.same_most)
    state.next(lambda job: job.key in begun.there)
    return state


def _seen(cases: Sequence[Judged]) -> Seen:
    ratios = [case.ratio for case in cases if case.ratio]
    return Seen(
        numpy.array([math.log(ratio.ratio) for ratio in ratios]),
        numpy.array([ratio.error for ratio in ratios], dtype=float),
        numpy.array([ratio.degrees for ratio in ratios]),
        numpy.array([ratio.spread for ratio in ratios], dtype=float),
    )

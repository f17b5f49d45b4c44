"""The runs of ``torchcoll bisect``: which version is run next, and what the runs say together.

As in ``versus``, what the folder holds decides what is run next: a bisection that was killed goes
on where it was, and the same folder always gives the same answer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchcoll.core.file import load_own
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.core.summary import default_clock, steady_figure
from torchcoll.parts.experiments import version_search
from torchcoll.parts.experiments.axes import Cell
from torchcoll.parts.experiments.blocks import PlannedRun, RunPlan
from torchcoll.parts.experiments.folder import Folder
from torchcoll.stats.holm import holm
from torchcoll.stats.side_faults import SideFaults, faults_of_items
from torchcoll.stats.sides import Measured, Reading, Side

METRICS = ("time", "first-call", "wrong")
ATTEMPTS = 2  # at one version, before it is skipped
_LEVEL = 0.05


@dataclass
class VersionRuns:
    """The runs so far.

    plan: its cells are the versions, in order. metric: one of METRICS. most: runs at which it ends.
    threshold: the smallest change that counts. figures[v]: of each run of version v, case ->
    logarithm (of ``wrong``: 0 or 1). bad[v]: its wrong or failed cases. skipped: version -> why it
    did not start.
    """

    plan: RunPlan
    path: Path
    metric: str
    most: int
    threshold: float
    figures: list[list[dict[str, float]]] = field(init=False)
    bad: list[list[Measured]] = field(init=False)
    skipped: dict[int, str] = field(default_factory=dict)
    stopped: str = ""

    def __post_init__(self) -> None:
        self.figures = [[] for _ in self.plan.cells]
        self.bad = [[] for _ in self.plan.cells]

    @property
    def usable(self) -> list[int]:
        """The versions that were not skipped; ``posterior`` numbers them from 0."""
        return [version for version in range(len(self.plan.cells)) if version not in self.skipped]

    @property
    def names(self) -> list[str]:
        """The usable versions, as they were given."""
        return [version_name(self.plan.cells[version]) for version in self.usable]

    @property
    def runs(self) -> int:
        return sum(map(len, self.figures))

    def jobs(self, folder: Folder) -> Iterator[PlannedRun]:
        """Each run that is missing, until it is decided."""
        self.take(folder)
        while not self.stopped:
            version = self.usable[version_search.next_version(self.posterior)]
            job = PlannedRun(self.plan.cells[version], len(self.figures[version]) + 1)
            for _ in range(ATTEMPTS):
                yield job
                if folder.done(job) or folder.unavailable(job):
                    break
            if not folder.done(job):
                reason = (folder.last(job) or {}).get("reason") or "it has no result"
                self.skipped[version] = str(reason)
            self.take(folder)

    def take(self, folder: Folder) -> None:
        """Adds the runs in the folder that are new, and judges."""
        for version, cell in enumerate(self.plan.cells):
            while folder.done(job := PlannedRun(cell, len(self.figures[version]) + 1)):
                run = load_own(self.path / f"{job.stem}.jsonl")
                self.bad[version] += self._bad_of(run, len(self.figures[version]))
                self.figures[version].append(figures_of(run, self.metric))
        if len(self.usable) < 2:
            self.stopped = "too few"
            return
        posterior = self.posterior
        if posterior.decided or version_search.same_ends(posterior, self.threshold):
            self.stopped = posterior.decided or "none"
        elif self.runs >= self.most:
            self.stopped = "runs"

    def _bad_of(self, run: Run, number: int) -> list[Measured]:
        """The cases of a run that are in no figure; wrong ones are, where these are looked for."""
        counted = (*EXPECTED_STATUSES, *(["wrong"] if self.metric == "wrong" else []))
        return [
            replace(item, run=number)
            for item in Side("", [run]).measured("time", Reading())
            if item.row.outcome not in counted
        ]

    @property
    def faults(self) -> list[SideFaults]:
        """What of each version is wrong or failed, of those where something is."""
        return [
            faults_of_items(version_name(cell), len(figures), bad)
            for cell, figures, bad in zip(self.plan.cells, self.figures, self.bad, strict=True)
            if bad
        ]

    @property
    def cases(self) -> list[str]:
        """The cases that differ between the first and the last version; all if none is shown to."""
        usable = [self.figures[version] for version in self.usable]
        every = [figures for runs in usable for figures in runs]
        common = [case for case in (every[0] if every else ()) if all(case in f for f in every)]
        ran = [runs for runs in usable if runs]
        if len(ran) < 2 or min(len(ran[0]), len(ran[-1])) < 2:
            return common
        p_values = [_p(*([f[case] for f in runs] for runs in (ran[0], ran[-1]))) for case in common]
        adjusted = holm(p_values)
        return [c for c, p in zip(common, adjusted, strict=True) if p <= _LEVEL] or common

    @property
    def posterior(self) -> version_search.Posterior:
        """What the runs say, from the mean over ``cases`` of each."""
        cases = self.cases
        ran, logs = [], []
        for number, version in enumerate(self.usable):
            for figures in self.figures[version] if cases else ():
                ran.append(number)
                logs.append(statistics.fmean(figures[case] for case in cases))
        return version_search.posterior_of(len(self.usable), ran, logs)

    def change(self, first: int, last: int) -> float:
        """Difference of the mean logarithms: versions from ``last`` on less those to ``first``."""
        posterior = self.posterior
        before, after = slice(0, first + 1), slice(last, None)
        means = [posterior.sums[p].sum() / posterior.runs[p].sum() for p in (before, after)]
        return float(means[1] - means[0])


def version_name(cell: Cell) -> str:
    """The value of the axis or variable that distinguishes the versions."""
    values = [*cell.axes.values(), *(value or "" for value in cell.variables.values())]
    return values[0] if values and values[0] else cell.name


def figures_of(run: Run, metric: str) -> dict[str, float]:
    """The figure of each case of a run: a logarithm of nanoseconds, or 1 for a wrong result."""
    figures = {}
    for result in run.results:
        name = result.case.describe()
        if metric == "wrong":
            if result.status in ("ok", "wrong"):
                figures[name] = float(not result.is_right)
            continue
        if metric == "first-call":
            cold = [calls[0] for calls in result.cold_ns if calls]
            value: float | None = max(cold, default=None)
        else:
            value = steady_figure(result, str(default_clock(result))) if result.time_ns else None
        if value and result.is_right:
            figures[name] = math.log(value)
    return figures


def _p(before: Sequence[float], after: Sequence[float]) -> float:
    """Student's t with a common variance; 0 or 1 where nothing varies."""
    from torchcoll.stats.distributions import two_sample_p

    if len({*before}) == len({*after}) == 1:
        return float(before[0] == after[0])
    return two_sample_p(before, after)

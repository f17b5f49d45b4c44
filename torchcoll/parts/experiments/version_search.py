"""Where a time changed among many versions: what runs say of it, and which version to run next.

Four kinds of models explain the logarithms of the times, y, of runs of versions 0 to n - 1:

- none: one level.
- a step before version k: y = mu + d [v >= k] + noise, for each k from 1 on.
- two steps, before k1 and k2: three levels.
- a creep: y = mu + d v / (n - 1) + noise.

The levels and the standard deviation s of the noise are unknown. With a flat prior for mu and log
s, and N(0, g s**2) for each d, the probability of the data under a model with the columns X is
proportional to

    |I + g X'X|**-1/2 (y'y - y'X (X'X + I / g)**-1 X'y)**(-(runs - 1) / 2),    X and y centred

(conjugate linear model: Gelman et al., Bayesian Data Analysis, section 14.2, integrated over mu and
s). g is averaged over several scales. So the posterior of k is exact for normal noise, however the
versions were chosen (the choice depends on the data alone).

The next run is of the version whose time tells most about the answer (none, a step before k, two
steps): the mutual information of answer and time, with the entropy of each distribution taken as
that of a normal one of the same variance (probabilistic bisection: Horstein 1963).
results/benchmarks/bisection-2026-11-28.txt has the error rates and the number of runs.

As in ``versus``, what the folder holds decides what is run next.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from torchcoll.core.file import load_own
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.core.summary import default_clock, steady_figure
from torchcoll.parts.experiments.blocks import PlannedRun, RunPlan
from torchcoll.parts.experiments.folder import Folder
from torchcoll.stats.distributions import t_quantile
from torchcoll.stats.power import holm
from torchcoll.stats.side_faults import SideFaults, faults_of_items
from torchcoll.stats.sides import Measured, Reading, Side

# Prior probability of each kind of model; that of a step is divided among the versions. A larger
# one of two steps finds more of them, and takes more runs to exclude them.
_PRIOR = {"none": 0.2, "step": 0.767, "two": 0.03, "creep": 0.003}
_SCALES = (1.0, 4.0, 16.0, 100.0)  # steps of one to ten deviations
# Two steps are only told from one if both are large: three deviations, give or take.
_SCALES_OF_TWO = (9.0,)
_LEAST_NOISE = 1e-4  # of a time: clocks and rounding
_LEAST_RUNS = 2  # of each neighbour of a step, before it is believed
_LEAST_RUNS_OF_ENDS = 4  # before a step is believed, or the ends are called the same
_MOST_OF_SEVERAL = 0.05  # probability of no single version at which a step is still named
_CHANGE_IS_OPEN = 0.3  # probability of no change from which on only the ends are run
SURE = 0.95


@dataclass(frozen=True)
class Posterior:
    """What runs say of where the change is.

    step[k]: probability of a single step before version k; step[0] is 0. none, two, creep: of the
    other kinds. pair: the versions before which two steps most likely are. information[v]: nats
    that one more run of version v tells about the answer. runs[v], sums[v], squares[v]: how often
    version v was run, and the sums of its logarithms and of their squares.
    """

    step: np.ndarray
    none: float
    two: float
    creep: float
    pair: tuple[int, int]
    information: np.ndarray
    runs: np.ndarray
    sums: np.ndarray
    squares: np.ndarray

    @property
    def best(self) -> int:
        """The version before which the step most likely is."""
        return int(self.step.argmax())

    def range(self, share: float = SURE) -> tuple[int, int]:
        """The first and last version of the smallest set that has the step with this probability,
        if there is one step.
        """
        order = np.argsort(-self.step, kind="stable")
        total = self.step.sum()
        count = int(np.searchsorted(np.cumsum(self.step[order]), share * total)) + 1
        chosen = order[: min(count, len(order) - 1)]  # without version 0, which has no step
        return int(chosen.min()), int(chosen.max())

    @property
    def change_range(self) -> tuple[int, int] | None:
        """The last version before every change and the first one after, with probability SURE; None
        while it is not sure that anything changed.
        """
        if self.none > 1 - SURE:
            return None
        if self.step.sum() < SURE:  # perhaps more than one step, so nothing is ruled out
            return 0, len(self.step) - 1
        low, high = self.range(SURE / self.step.sum())
        return max(0, low - 1), high

    @property
    def located(self) -> bool:
        """Whether the version is sure, before it is confirmed."""
        at_most_one = self.none + self.step.sum()
        return bool(
            self.step[self.best] >= SURE * at_most_one and self.two + self.creep <= _MOST_OF_SEVERAL
        )

    @property
    def unconfirmed(self) -> list[int]:
        """The versions that need more runs before the step is believed: its neighbours, as one odd
        run must not decide, and the ends, where a second step would show.
        """
        least = dict.fromkeys((self.best - 1, self.best), _LEAST_RUNS)
        least |= dict.fromkeys((0, len(self.runs) - 1), _LEAST_RUNS_OF_ENDS)
        return [version for version, count in least.items() if self.runs[version] < count]

    @property
    def decided(self) -> str:
        """``step``, ``several`` (no single version) or ``none`` once that is sure; '' before."""
        if self.none >= SURE:
            return "none"
        if self.two + self.creep >= SURE:
            return "several"
        if self.located and not self.unconfirmed:
            return "step"
        return ""


@dataclass(frozen=True)
class _Models:
    """Models with the same number of steps, p.

    steps[m]: the p versions before which the steps of model m are. evidence[g, m]: log probability
    of the data at each scale. level[g, m, j], variance[g, m, j]: mean and variance of the next time
    (less the mean of all) after j of the steps.
    """

    steps: np.ndarray
    evidence: np.ndarray
    level: np.ndarray
    variance: np.ndarray

    def moments(
        self, weights: np.ndarray, versions: int, pooled: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """First and second moments of the next time for each version, times weights: a row for each
        model, or one of all models.
        """
        levels = (weights[:, :, None] * self.level).sum(axis=0)
        squares = (weights[:, :, None] * (self.variance + self.level**2)).sum(axis=0)
        rows = np.zeros(len(self.steps), int) if pooled else np.arange(len(self.steps))
        moments = []
        for values in (levels, squares):
            changes = np.zeros((1 if pooled else len(rows), versions))  # from the version before
            np.add.at(changes[:, 0], rows, values[:, 0])
            for step in range(self.steps.shape[1]):
                change = values[:, step + 1] - values[:, step]
                np.add.at(changes, (rows, self.steps[:, step]), change)
            moments.append(np.cumsum(changes, axis=1))
        return moments[0], moments[1]


def _fit(
    steps: np.ndarray, scales: Sequence[float], after: np.ndarray, sums: np.ndarray, total: float
) -> _Models:
    """Fits models. after[k], sums[k]: runs of version k and later, and the sum of their y."""
    runs = after[0]
    columns = steps.shape[1]
    share = after[steps] / runs  # the mean of each column
    later = np.maximum(steps[:, :, None], steps[:, None, :])
    products = after[later] - runs * share[:, :, None] * share[:, None, :]
    precision = products + np.eye(columns) / np.asarray(scales)[:, None, None, None]
    inverse = np.linalg.inv(precision)
    d = (inverse @ sums[steps][:, :, None])[..., 0]
    rest = np.maximum(total - (d * sums[steps]).sum(axis=2), runs * _LEAST_NOISE**2 / 2)
    scale = columns * np.log(scales)[:, None] + np.linalg.slogdet(precision)[1]
    evidence = -scale / 2 - (runs - 1) / 2 * np.log(rest)
    # A row j of `where` is the column values after j steps: 1 for the steps before it.
    where = np.tri(columns + 1, columns, -1) - share[:, None, :]
    level = (where @ d[..., None])[..., 0]
    spread = 1 + 1 / runs + ((where @ inverse) * where).sum(axis=3)
    return _Models(steps, evidence, level, (rest / max(1, runs - 3))[:, :, None] * spread)


def posterior_of(versions: int, ran: Sequence[int], logs: Sequence[float]) -> Posterior:
    """What the runs say. ran: version of each run. logs: logarithm of its time.

    Before three runs the probabilities are those of the prior.
    """
    which, times = np.asarray(ran, dtype=int), np.asarray(logs, dtype=float)
    counts = np.bincount(which, minlength=versions)
    y = times - times.mean() if len(times) else times
    total = float(y @ y) + len(y) * _LEAST_NOISE**2
    after, sums = (
        np.cumsum(values[::-1])[::-1]
        for values in (counts.astype(float), np.bincount(which, weights=y, minlength=versions))
    )
    every = [np.zeros((1, 0), int), np.arange(1, versions)[:, None], _pairs(versions)]
    kinds = list(
        zip(("none", "step", "two"), every, ((1.0,), _SCALES, _SCALES_OF_TWO), strict=True)
    )
    logs_of = [
        np.full(
            (len(scales), len(steps)), math.log(_PRIOR[kind] / len(scales) / max(1, len(steps)))
        )
        for kind, steps, scales in kinds
    ]
    creep = np.full(len(_SCALES), math.log(_PRIOR["creep"] / len(_SCALES)))
    models = []
    if len(y) >= 3:
        models = [_fit(steps, scales, after, sums, total) for _, steps, scales in kinds]
        logs_of = [prior + fit.evidence for prior, fit in zip(logs_of, models, strict=True)]
        creep = creep + _creep_evidence(which / (versions - 1), y, total)
    top = max(values.max() for values in (*logs_of, creep) if values.size)
    weights = [np.exp(values - top) for values in (*logs_of, creep)]
    whole = sum(float(values.sum()) for values in weights)
    none, step, two, creeps = (values / whole for values in weights)
    pairs = every[2]
    return Posterior(
        np.concatenate([[0.0], step.sum(axis=0)]),
        float(none.sum()),
        float(two.sum()),
        float(creeps.sum()),
        tuple(pairs[two.sum(axis=0).argmax()].tolist()) if len(pairs) else (1, 1),
        _information(models, (none, step, two), versions) if models else np.zeros(versions),
        counts,
        np.bincount(which, weights=times, minlength=versions),
        np.bincount(which, weights=times**2, minlength=versions),
    )


@functools.cache
def _pairs(versions: int) -> np.ndarray:
    """All (k1, k2) with 1 <= k1 < k2 < versions."""
    return np.stack(np.triu_indices(versions - 1, 1), axis=1) + 1


def _creep_evidence(x: np.ndarray, y: np.ndarray, total: float) -> np.ndarray:
    """Log probability of the data under a creep, at each scale."""
    x = x - x.mean()
    g = np.asarray(_SCALES)
    rest = total - g * (x @ y) ** 2 / (1 + g * (x @ x))
    result: np.ndarray = -0.5 * np.log1p(g * (x @ x)) - (len(y) - 1) / 2 * np.log(rest)
    return result


def _information(
    models: Sequence[_Models], weights: Sequence[np.ndarray], versions: int
) -> np.ndarray:
    """Nats that one more run of each version tells about the answer."""
    # One row for each answer: two steps, wherever they are, are one answer.
    moments = [
        fit.moments(values, versions, pooled=fit.steps.shape[1] == 2)
        for fit, values in zip(models, weights, strict=True)
    ]
    first, second = (np.vstack(rows) for rows in zip(*moments, strict=True))
    share = np.concatenate([values.sum(axis=0) for values in weights[:2]] + [[weights[2].sum()]])
    likely = share > 1e-12
    first, second, share = first[likely], second[likely], share[likely] / share[likely].sum()
    mean = first / share[:, None]
    within = np.maximum(second / share[:, None] - mean**2, _LEAST_NOISE**4)
    overall = np.maximum(second.sum(axis=0) - first.sum(axis=0) ** 2, _LEAST_NOISE**4)
    result: np.ndarray = 0.5 * (np.log(overall) - share @ np.log(within))
    return result


def same_ends(posterior: Posterior, threshold: float) -> bool:
    """Whether the first and the last version differ by less than ``threshold`` (a share), with 95 %
    confidence (two one-sided tests, as for equivalence).
    """
    ends = (0, len(posterior.runs) - 1)
    counts = [int(posterior.runs[end]) for end in ends]
    if min(counts) < _LEAST_RUNS_OF_ENDS:
        return False
    means = [posterior.sums[end] / posterior.runs[end] for end in ends]
    squares = sum(
        posterior.squares[end] - posterior.sums[end] ** 2 / posterior.runs[end] for end in ends
    )
    degrees = sum(counts) - 2
    error = math.sqrt(max(squares / degrees, _LEAST_NOISE**2) * sum(1 / n for n in counts))
    half = t_quantile(SURE, degrees) * error
    return bool(abs(means[0] - means[1]) + half < math.log1p(threshold))


def next_version(posterior: Posterior) -> int:
    """The version to run next: an end while it is open whether there is a change, one that confirms
    a step that is sure, otherwise the version that tells most.
    """
    ends = (0, len(posterior.step) - 1)
    if min(posterior.runs[end] for end in ends) < 2 or posterior.none > _CHANGE_IS_OPEN:
        return min(ends, key=lambda end: posterior.runs[end])
    if posterior.located and posterior.unconfirmed:
        return min(posterior.unconfirmed, key=lambda version: posterior.runs[version])
    return int(posterior.information.argmax())


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
        return [self.plan.cells[version].version for version in self.usable]

    @property
    def runs(self) -> int:
        return sum(map(len, self.figures))

    def jobs(self, folder: Folder) -> Iterator[PlannedRun]:
        """Each run that is missing, until it is decided."""
        self.take(folder)
        while not self.stopped:
            version = self.usable[next_version(self.posterior)]
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
        if posterior.decided or same_ends(posterior, self.threshold):
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
            faults_of_items(cell.version, len(figures), bad)
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
    def posterior(self) -> Posterior:
        """What the runs say, from the mean over ``cases`` of each."""
        cases = self.cases
        ran, logs = [], []
        for number, version in enumerate(self.usable):
            for figures in self.figures[version] if cases else ():
                ran.append(number)
                logs.append(statistics.fmean(figures[case] for case in cases))
        return posterior_of(len(self.usable), ran, logs)

    def change(self, first: int, last: int) -> float:
        """Difference of the mean logarithms: versions from ``last`` on less those to ``first``."""
        posterior = self.posterior
        before, after = slice(0, first + 1), slice(last, None)
        means = [posterior.sums[p].sum() / posterior.runs[p].sum() for p in (before, after)]
        return float(means[1] - means[0])


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

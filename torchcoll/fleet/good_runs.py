"""What good runs of one kind of machine take, and whether one new run takes longer.

The logarithm of a time is modelled as the level of its case, plus the effect of the node, plus what
the run adds in all its cases, plus noise. A new run is judged by prediction intervals: of its mean
deviation over all cases, whose spread is that of the same mean in the good runs, and of each case.
Half of the error goes to the mean, the other half to the cases (Bonferroni). The limits hold for
noise with the tails of Student's t with 4 degrees of freedom; `tests/benchmarks/baseline_error.py`
measures the error of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from torchcoll.fleet.effects import Floats, nan_mean, nan_median, weighted_median
from torchcoll.store.records import CaseKey

ERROR = 0.01  # probability that a healthy run is called slow, over all of its cases
FEWEST_RUNS = 5
_OF_MEAN = 0.5  # share of the error that goes to the mean over all cases
_POOLED_BELOW = 20  # runs: from so many on each case has enough of its own
_CLIPPED = 3.0  # standard deviations of a case, in the mean over the cases
_MEDIAN_VARIANCE = 1.5  # of a median of normal values: about so many times that of their mean
_MOST_DEGREES = 40.0  # of a pooled spread: cases of one run are not independent
_HEAVIEST = stats.t(4)


@dataclass(frozen=True)
class GoodRun:
    """A run of the baseline. node: '' for several hosts. start_us: UTC since 1970, None if unknown."""

    run_id: str
    node: str
    start_us: int | None
    path: str = ""


@dataclass(frozen=True)
class GoodRuns:
    """R runs of C cases, of one device model and number of ranks, none of them accused.

    log_times [R, C]: natural logarithm of ns, NaN where a run lacks a case. versions: the values of
    each recorded fact that names a version.
    """

    device_name: str
    ranks: int
    runs: tuple[GoodRun, ...]
    keys: tuple[CaseKey, ...]
    log_times: Floats
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class CaseDeviation:
    """How much longer a case took than usual. effect and limit are differences of log times."""

    key: CaseKey
    effect: float
    limit: float
    usual_ns: float

    @property
    def slow(self) -> bool:
        return self.effect > self.limit


@dataclass(frozen=True)
class RunJudged:
    """A run beside the good runs.

    effect: mean deviation of log time over the common cases. limit: the largest one of a healthy
    run. cases: worst first. runs: how many good runs it was judged by.
    """

    effect: float
    limit: float
    cases: tuple[CaseDeviation, ...]
    runs: int

    @property
    def slow_overall(self) -> bool:
        return self.effect > self.limit

    @property
    def slow_cases(self) -> tuple[CaseDeviation, ...]:
        return tuple(case for case in self.cases if case.slow)

    @property
    def slow(self) -> bool:
        return self.slow_overall or bool(self.slow_cases)


class CannotJudge(ValueError):
    """Why good runs say nothing of a run: the text is a clause."""


@dataclass(frozen=True)
class Usual:
    """The model of good runs.

    levels [C] and scales [C] (standard deviations of log time, pooled over the cases below 20
    runs), pooled_runs [C]: as many runs as that is worth. weights [C] of the mean over the cases,
    run_effects [R] that mean without the node's effect, run_scale its standard deviation. node_effects by name,
    node_runs how many runs each has; both empty where the runs are taken as one population, whose
    ``names`` are those of its nodes.
    """

    levels: Floats
    scales: Floats
    pooled_runs: Floats
    weights: Floats
    run_effects: Floats
    run_scale: float
    degrees: int
    node_effects: Mapping[str, float]
    node_runs: Mapping[str, int]
    names: frozenset[str]


def runs_missing(nodes: Sequence[str]) -> int:
    """How many more runs of the same nodes are needed for a baseline, given the node of each run.

    With one node, or a node of its own for each run, 5 runs are needed. Otherwise the differences
    of the nodes are estimated too, which takes 4 runs more than nodes.
    """
    count, different = len(nodes), len(set(nodes))
    if different in (1, count) or different >= FEWEST_RUNS:
        return max(0, FEWEST_RUNS - count)
    return max(0, FEWEST_RUNS - count, different + FEWEST_RUNS - 1 - count)


def mean_over_cases(deviations: Floats, scales: Floats, weights: Floats) -> Floats:
    """The weighted mean over the cases [R] of deviations [R, C].

    Each is clipped at 3 standard deviations of its case from their weighted median, so that one
    slow case does not pass for a slow run.
    """
    middle = weighted_median(deviations, weights)[:, None]
    clipped = middle + np.clip(deviations - middle, -_CLIPPED * scales, _CLIPPED * scales)
    weight = np.where(np.isnan(clipped), 0.0, weights)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nansum(clipped * weight, axis=1) / weight.sum(axis=1))


def pooled_scales(deviations: Floats) -> tuple[Floats, Floats]:
    """Standard deviations of the cases [C], and the number of runs that each is worth [C].

    Below 20 runs the variance of a case is drawn to the common one of all cases, as far as the
    cases have equal variances (Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004, article 3).
    """
    counts = np.isfinite(deviations).sum(axis=0).astype(np.float64)
    squares = np.nansum((deviations - nan_mean(deviations, axis=0)) ** 2, axis=0)
    degrees = counts - 1
    positive = squares[squares > 0]
    # Times that agree to the digit have no spread of their own: the clock's resolution is one.
    least = 1e-12 if not len(positive) else float(np.median(positive)) * 1e-4
    variances = np.maximum(squares, least) / degrees
    if len(variances) < 3 or counts.min() >= _POOLED_BELOW:
        return np.sqrt(variances), counts
    half = degrees / 2
    logs = np.log(variances) - special.digamma(half) + np.log(half)
    excess = float(logs.var(ddof=1) - special.polygamma(1, half).mean())
    if excess > 0:
        prior = 2 * _inverse_trigamma(excess)
        common = math.exp(logs.mean() + special.digamma(prior / 2) - math.log(prior / 2))
        prior = min(prior, _MOST_DEGREES)
    else:
        prior, common = _MOST_DEGREES, math.exp(logs.mean())
    pooled = (prior * common + degrees * variances) / (prior + degrees)
    few = counts < _POOLED_BELOW
    scales = np.sqrt(np.where(few, pooled, variances))
    return scales, np.where(few, np.minimum(counts + prior, _MOST_DEGREES), counts)


def _inverse_trigamma(value: float) -> float:
    """x with trigamma(x) = value, by Newton's method on 1 / trigamma, which is nearly a line."""
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, x))
        x += step
        if abs(step) < 1e-9 * x:
            break
    return x


def critical_value(runs: float, error: float) -> float:
    """The deviation, in standard deviations, that a healthy run exceeds with at most ``error``.

    For t4 noise whose standard deviation is known it is the quantile of t4. What a standard
    deviation of a few runs adds was fitted to 40,000 simulated baselines of 5 to 50 runs at errors
    from 0.5 to 0.01 %; it is above Student's t of normal noise everywhere.
    """
    return float(_HEAVIEST.ppf(1 - error)) / math.sqrt(2) * (1 + 3.5 / runs + 7 / runs**2)


def usual_of(good: GoodRuns, columns: npt.NDArray[np.intp] | None = None) -> Usual:
    """columns: the cases to use, by default all. Raises CannotJudge for too few runs."""
    log_times = good.log_times if columns is None else good.log_times[:, columns]
    names = [run.node for run in good.runs]
    if missing := runs_missing(names):
        raise CannotJudge(f"{missing} more runs are needed")
    nodes = sorted(set(names))
    by_node = 1 < len(nodes) < len(names) and len(names) - len(nodes) >= FEWEST_RUNS - 1
    number = np.array([nodes.index(name) for name in names])
    shift = np.zeros(len(names))
    effects = np.zeros(len(nodes))
    for _ in range(3 if by_node else 1):
        levels = nan_median(log_times - shift[:, None], axis=0)
        deviations = log_times - levels - shift[:, None]
        scales, pooled_runs = pooled_scales(deviations)
        smallest = max(1e-6, float(np.median(scales)) / 3)  # no case decides alone
        weights = 1 / np.maximum(scales, smallest) ** 2
        run_effects = mean_over_cases(log_times - levels, scales, weights)
        if by_node:
            effects = np.array([np.median(run_effects[number == n]) for n in range(len(nodes))])
            effects -= np.median(effects)
            shift = effects[number]
    deviations = log_times - levels - shift[:, None]
    run_effects = mean_over_cases(deviations, scales, weights)
    groups = len(nodes) if by_node else 1
    means = np.array([run_effects[number == n].mean() for n in range(len(nodes))])
    middle = means[number] if by_node else run_effects.mean()
    degrees = len(names) - groups
    run_scale = math.sqrt(max(float(((run_effects - middle) ** 2).sum()), 1e-18) / degrees)
    if not by_node and 1 < len(nodes) < len(names):
        degrees = len(nodes) - 1  # runs of one node are no independent ones
    return Usual(
        levels,
        scales,
        pooled_runs,
        weights,
        run_effects,
        run_scale,
        degrees,
        dict(zip(nodes, effects.tolist(), strict=True)) if by_node else {},
        {name: names.count(name) for name in nodes} if by_node else {},
        frozenset(nodes),
    )


@dataclass(frozen=True)
class Limits:
    """What is expected of a run of one node. centre: of its mean over the cases, and of each case
    beside the levels. limit: the largest deviation of the mean from it. case_limits [C].
    """

    centre: float
    limit: float
    case_limits: Floats


def limits_of(usual: Usual, node: str, error: float, threshold: float) -> Limits:
    """error: probability that a healthy run exceeds any limit. threshold: smallest slowdown, such
    as 0.01, that is reported. Raises CannotJudge for a node that the runs say nothing of.
    """
    runs: float = usual.degrees + 1
    centre, extra, repeats = 0.0, 0.0, runs
    if usual.node_effects and node in usual.node_effects:
        centre, repeats = usual.node_effects[node], usual.node_runs[node]
    elif usual.node_effects or len(usual.names) == 1:
        count = len(usual.names)
        if node not in usual.names and count < FEWEST_RUNS:
            raise CannotJudge(
                f"the baseline has runs of {', '.join(sorted(n or 'several hosts' for n in usual.names))}"
                f" and this run is of {node or 'several hosts'}: how much nodes differ is only known from "
                f"{FEWEST_RUNS} on"
            )
        if usual.node_effects:
            extra = float(np.var(list(usual.node_effects.values()), ddof=1))
            runs = repeats = min(runs, count)
    share = 1 + _MEDIAN_VARIANCE / repeats
    least = math.log1p(threshold)
    limit = critical_value(runs, error * _OF_MEAN) * math.sqrt(
        (usual.run_scale**2 + extra) * share
    )
    cases = len(usual.levels)
    worth = np.minimum(usual.pooled_runs, runs) if extra else usual.pooled_runs
    critical = np.array([critical_value(w, error * (1 - _OF_MEAN) / cases) for w in worth.tolist()])
    case_limits = critical * np.sqrt((usual.scales**2 + extra) * share)
    return Limits(centre, max(limit, least), np.maximum(case_limits, least))


def judge_new_run(
    good: GoodRuns,
    node: str,
    log_times: Mapping[CaseKey, float],
    threshold: float,
    error: float = ERROR,
) -> RunJudged:
    """log_times: of the run that is judged, natural logarithm of ns.

    Raises CannotJudge without a common case, and for a node that the good runs say nothing of.
    """
    columns = np.array([c for c, key in enumerate(good.keys) if key in log_times], dtype=np.intp)
    if not len(columns):
        raise CannotJudge("no case in common")
    usual = usual_of(good, columns)
    limits = limits_of(usual, node, error, threshold)
    keys = [good.keys[c] for c in columns.tolist()]
    values = np.array([[log_times[key] for key in keys]])
    deviations = values - usual.levels - limits.centre
    effect = float(mean_over_cases(deviations, usual.scales, usual.weights)[0])
    cases = [
        CaseDeviation(key, deviation, limit, math.exp(level + limits.centre))
        for key, deviation, limit, level in zip(
            keys,
            deviations[0].tolist(),
            limits.case_limits.tolist(),
            usual.levels.tolist(),
            strict=True,
        )
    ]
    cases.sort(key=lambda case: -case.effect)
    return RunJudged(effect, limits.limit, tuple(cases), len(good.runs))

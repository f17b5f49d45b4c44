"""What good runs of one kind of machine take, and whether one new run takes longer.

The logarithm of a time is modelled as the level of its case on its node, plus what the run adds in
all its cases, plus noise, whose spread is the same on all nodes. A new run is judged by prediction
intervals: of its mean deviation over all cases, whose spread is that of the same mean in the good
runs, and of each case. Half of the false alarms are allowed to the mean, the other half to the
cases (Bonferroni).

There are two limits. Beyond the first, a change is probable: a healthy run exceeds it 1 time in 20
if its noise is normal. Beyond the second, it is certain: a healthy run exceeds it 1 time in 100,
for noise with the tails of Student's t with 4 degrees of freedom and a correlation of up to 0.5
from one run of a node to the next.

Three rules need no statistic. A case 1.5 times slower than in the slowest good run is named. A run
with a case that takes twice its usual time does not pass. A case that takes 6 times its usual time,
and twice that of the slowest good run, is slow. And a case whose noise hides a slowdown of 1.5 is
not judged. `tests/benchmarks/baseline_error.py` measures false alarms and what is found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special

from torchcoll.core.errors import UsageError
from torchcoll.core.units import counted, shorten
from torchcoll.parts.fleet.noise import Floats, quiet_median
from torchcoll.parts.fleet.records import CaseKey
from torchcoll.questions.check.limits import DOUBTED_FACTOR, SLOW_FACTOR
from torchcoll.stats.distributions import root_between, t_quantile
from torchcoll.stats.power import ACT_ON_ALL, ACT_ON_CASE, POWER

FALSE_ALARMS = 0.01  # probability that a healthy run is called slow, over all of its cases
PROBABLE_ALARMS = 0.05  # ... is called probably slow, if its noise is normal
THRESHOLD = 0.01  # a smaller slowdown is not reported
FEWEST_RUNS = 3  # of one node
FEWEST_NODES = 5  # from so many on, their differences say what a further node may be like
NAMED_FACTOR = 1.5  # of the slowest good run
_OF_MEAN = 0.5  # share of the false alarms that goes to the mean over all cases
_POOLED_BELOW = 20  # degrees of freedom: from so many on, each case has enough of its own
_CLIPPED = 3.0  # standard deviations of a case, in the mean over the cases
_MEDIAN_VARIANCE = 1.5  # of a median of normal values: about so many times that of their mean
_MOST_RUNS = 60  # good runs that are advised
_NEIGHBOURS = 0.5  # correlation of consecutive runs of a node that is allowed for
_QUANTILE = float(special.ndtri(POWER))


@dataclass(frozen=True)
class GoodRun:
    """node: '' for several hosts. start_us: in us of UTC since 1970, None if not recorded."""

    run_id: str
    node: str
    start_us: int | None


@dataclass(frozen=True)
class GoodRuns:
    """R runs of C cases, of one device model and number of ranks, in order of time.

    log_times [R, C]: natural logarithm of ns, NaN where a run lacks a case. versions: the values of
    each recorded fact that names a version.
    """

    device_name: str
    ranks: int
    runs: tuple[GoodRun, ...]
    keys: tuple[CaseKey, ...]
    log_times: Floats
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def without(self, run_id: str) -> GoodRuns:
        """All runs but this one: no run is judged by itself."""
        kept = [row for row, run in enumerate(self.runs) if run.run_id != run_id]
        return replace(
            self, runs=tuple(self.runs[row] for row in kept), log_times=self.log_times[kept]
        )


@dataclass(frozen=True)
class Baseline:
    """How long the C cases take on healthy machines of one device model and number of ranks.

    good: the runs that it is computed from. keys: the cases that it can judge. levels [C]:
    logarithm of the usual time in ns. spreads, degrees [C]: standard deviation of the log time from
    run to run, and its degrees of freedom. slowest [C]: log time of the slowest good run, less that
    of its node. nodes: names; '' stands for several hosts. effects [N, C]: the usual difference of
    a node, NaN for a case that it never ran. node_runs [N]: how many runs each node has. by_node:
    whether nodes have effects; otherwise the spreads contain how they differ. run_spread,
    run_degrees: of the mean deviation over all cases.
    """

    good: GoodRuns
    keys: tuple[CaseKey, ...]
    levels: Floats
    spreads: Floats
    degrees: Floats
    slowest: Floats
    nodes: tuple[str, ...]
    effects: Floats
    node_runs: npt.NDArray[np.intp]
    by_node: bool
    run_spread: float
    run_degrees: float

    @property
    def text(self) -> str:
        """``24 good runs on 8 nodes``."""
        runs = counted(len(self.good.runs), "good run")
        return f"{runs} on {counted(len(self.nodes), 'node')}"


@dataclass(frozen=True)
class Limits:
    """What is expected of a healthy run of one node, as differences of log times.

    centres, scales [C]: usual differences of the node, standard deviations. The mean (run_) or a
    case (case_ [C]) is certainly slow beyond its limit, probably beyond named; detectable is found
    with the probability POWER.
    """

    centres: Floats
    scales: Floats
    run_limit: float
    run_named: float
    run_detectable: float
    case_limits: Floats
    case_named: Floats
    case_detectable: Floats


SLOW, DOUBTED, PROBABLY_SLOW = "slow", "doubted", "probably slow"
TOO_NOISY, AS_USUAL = "too noisy", "as usual"
_STATES = (SLOW, DOUBTED, PROBABLY_SLOW, TOO_NOISY, AS_USUAL)  # the worst first


@dataclass(frozen=True)
class CaseDeviation:
    """How much longer a case took than usual.

    spread: of the case from run to run. effect, limit, named, detectable: differences of log times;
    ``limit`` and ``named`` are those of Limits. over_slowest: the difference from the slowest good
    run.
    """

    key: CaseKey
    time_ns: float
    usual_ns: float
    spread: float
    effect: float
    limit: float
    named: float
    detectable: float
    over_slowest: float

    @property
    def state(self) -> str:
        if self.effect > self.limit:
            return SLOW
        if self.effect >= math.log(SLOW_FACTOR) and self.over_slowest >= math.log(DOUBTED_FACTOR):
            return SLOW
        if self.effect >= math.log(DOUBTED_FACTOR):
            return DOUBTED
        if self.effect > self.named:
            return PROBABLY_SLOW
        return TOO_NOISY if self.detectable > math.log1p(ACT_ON_CASE) else AS_USUAL


@dataclass(frozen=True)
class RunJudged:
    """A run judged by a baseline.

    effect: mean deviation of the log times over the common cases. cases: of the run, by their
    state, the worst first, then by their change.
    """

    baseline: Baseline
    effect: float
    limits: Limits
    cases: tuple[CaseDeviation, ...]

    @property
    def slow_overall(self) -> bool:
        return self.effect > self.limits.run_limit

    def cases_that_are(self, state: str) -> list[CaseDeviation]:
        return [case for case in self.cases if case.state == state]

    @property
    def state(self) -> str:
        """Of the whole run. DOUBTED: it can neither pass nor fail."""
        if self.slow_overall or self.cases_that_are(SLOW):
            return SLOW
        noisy = len(self.cases_that_are(TOO_NOISY))
        unseen = self.limits.run_detectable > math.log1p(ACT_ON_ALL)
        if self.cases_that_are(DOUBTED) or 2 * noisy > len(self.cases) or unseen:
            return DOUBTED
        if noisy or self.cases_that_are(PROBABLY_SLOW) or self.effect > self.limits.run_named:
            return PROBABLY_SLOW
        return AS_USUAL


class CannotJudge(UsageError):
    """A baseline says nothing of a run, or runs are too few. expected: what would allow it."""

    def __init__(self, value: str, expected: str) -> None:
        super().__init__("baseline", value, expected)
        self.value, self.expected = value, expected


def runs_missing(nodes: Sequence[str]) -> int:
    """How many more runs of the same nodes a baseline needs, given the node of each run.

    One node needs 3 runs, and 5 nodes need one run each. With 2 to 4 nodes the differences between
    the nodes are estimated too, which takes 4 runs more than there are nodes.
    """
    count, different = len(nodes), len(set(nodes))
    if 1 < different < FEWEST_NODES:
        return max(0, different + FEWEST_NODES - 1 - count)
    return max(0, FEWEST_RUNS - count)


def _weights(spreads: Floats) -> Floats:
    smallest = max(1e-6, float(np.median(spreads)) / 3)  # no case decides alone
    return np.asarray(1 / np.maximum(spreads, smallest) ** 2)


def weighted_median(values: Floats, weights: Floats) -> Floats:
    """The weighted median of each row [N, C] with weights [C]; NaN entries are left out."""
    weight = np.where(np.isnan(values), 0.0, np.broadcast_to(weights, values.shape))
    order = np.argsort(values, axis=1)  # NaN sorts last, with weight 0
    ordered = np.take_along_axis(values, order, axis=1)
    cumulated = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
    half = cumulated[:, -1:] / 2
    rows = np.arange(len(values))
    low = np.argmax(cumulated >= half * (1 - 1e-12), axis=1)
    high = np.argmax(cumulated > half * (1 + 1e-12), axis=1)
    medians: Floats = (ordered[rows, low] + ordered[rows, high]) / 2
    return medians


def mean_over_cases(deviations: Floats, spreads: Floats) -> Floats:
    """The mean over the cases [R] of deviations [R, C], weighted by their precision.

    Each deviation is clipped at 3 spreads of its case from their weighted median, so that one slow
    case does not pass for a slow run.
    """
    weights = _weights(spreads)
    middle = weighted_median(deviations, weights)[:, None]
    clipped = middle + np.clip(deviations - middle, -_CLIPPED * spreads, _CLIPPED * spreads)
    weight = np.where(np.isnan(clipped), 0.0, weights)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nansum(clipped * weight, axis=1) / weight.sum(axis=1))


def _mean_correlation(runs: float) -> float:
    """The mean correlation of two of so many consecutive runs of a node."""
    if runs < 2:
        return 0.0
    lags = np.arange(1, math.ceil(runs))
    correlations = (runs - lags) * _NEIGHBOURS**lags
    return float(2 * correlations.sum() / (runs * (runs - 1)))


def _unseen_variance(counts: npt.NDArray[np.intp]) -> float:
    """By how much the variance within nodes with so many runs each falls short of that of a run
    made at another time, because consecutive runs are alike: a factor of 1 or more.
    """
    pairs = [(count - 1, _mean_correlation(count)) for count in counts.tolist() if count > 1]
    total = sum(count for count, _ in pairs)
    return total / sum(count * (1 - alike) for count, alike in pairs) if pairs else 1.0


def _centre_variance(runs: float) -> float:
    """The variance of the median of so many runs, as a share of the variance of one run."""
    return _MEDIAN_VARIANCE * (1 + (runs - 1) * _mean_correlation(runs)) / runs


def critical_value(degrees: float, error: float) -> float:
    """The deviation, in standard deviations, that a healthy run exceeds with at most ``error``.

    degrees: degrees of freedom of the standard deviation. If it is known, this is the quantile of
    Student's t with 4 degrees. The factor for an estimated one lies above 300,000 simulated
    baselines of 5 to 200 consecutive runs, at errors from 0.5 to 0.01 %. For 2 and 3 degrees the
    quantile of Student's t is larger.
    """
    estimated = t_quantile(1 - error, 4) / math.sqrt(2) * (1 + 4.5 / (degrees + 1))
    return max(estimated, t_quantile(1 - error, degrees)) if degrees < 4 else estimated


def pooled_spreads(deviations: Floats, groups: npt.NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Standard deviations of the cases [C] and their degrees of freedom [C].

    deviations [R, C]: from the means of so many groups of runs [C]. Below 20 degrees of freedom the
    variance of a case is drawn to the common variance of all cases, as far as the cases have equal
    variances (Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004, article 3). Cases that vary together
    add less to what is known of the common variance than independent ones.
    """
    counts = np.isfinite(deviations).sum(axis=0)
    degrees = (counts - groups).astype(np.float64)
    squares = np.nansum(deviations**2, axis=0)
    positive = squares[squares > 0]
    # Times that agree to the digit have no spread of their own: the resolution of the clock is one.
    least = float(np.median(positive)) * 1e-4 if len(positive) else 1e-12
    variances = np.maximum(squares, least) / degrees
    cases = len(variances)
    if cases < 3 or degrees.min() >= _POOLED_BELOW:
        return np.sqrt(variances), degrees
    half = degrees / 2
    logs = np.log(variances) - special.digamma(half) + np.log(half)
    excess = float(logs.var(ddof=1) - special.polygamma(1, half).mean())
    prior = 2 * _inverse_trigamma(excess) if excess > 0 else math.inf
    common = logs.mean()
    if math.isfinite(prior):
        common += special.digamma(prior / 2) - math.log(prior / 2)
    # Of normal cases with the mean squared correlation r2, the mean of their variances has
    # degrees * C / (1 + (C - 1) r2) degrees of freedom.
    standardised = np.nan_to_num(deviations / np.sqrt(variances))
    correlations = standardised.T @ standardised / degrees.mean()
    squared = np.minimum(correlations[~np.eye(cases, dtype=bool)] ** 2, 1.0)
    most = degrees.mean() * cases / (1 + (cases - 1) * float(squared.mean()))
    prior = min(prior, max(most - float(degrees.mean()), 0.0))
    pooled = (prior * math.exp(common) + degrees * variances) / (prior + degrees)
    few = degrees < _POOLED_BELOW
    return np.sqrt(np.where(few, pooled, variances)), np.where(few, degrees + prior, degrees)


def _inverse_trigamma(value: float) -> float:
    """x with trigamma(x) = value; trigamma(x) lies between 1/x and 1/x + 1/x^2."""
    highest = (1 + math.sqrt(1 + 4 * value)) / (2 * value)
    return root_between(lambda x: float(special.polygamma(1, x)) - value, 1 / value, highest)


def baseline_of(good: GoodRuns) -> Baseline:
    """The baseline of good runs, without the cases that have too few runs for a spread: 3 of one
    node, or 4 more than nodes. Raises CannotJudge if the runs are too few.
    """
    names = [run.node for run in good.runs]
    if missing := runs_missing(names):
        of = f" of {counted(len(set(names)), 'node')}" if len(set(names)) > 1 else ""
        raise CannotJudge(f"{counted(len(names), 'good run')}{of}", f"{missing} more")
    log_times = good.log_times
    nodes = sorted(set(names))
    index = {name: number for number, name in enumerate(nodes)}
    node_runs = np.bincount([index[name] for name in names])
    by_node = len(nodes) > 1 and len(names) - len(nodes) >= FEWEST_NODES - 1
    if not by_node and len(nodes) > 1:
        # Too few repeated runs for effects of the nodes: one run of each is one population.
        last = sorted({name: row for row, name in enumerate(names)}.values())
        log_times, names = log_times[last], [names[row] for row in last]
    number = np.array([index[name] if by_node else 0 for name in names])
    counts = np.bincount(number)
    runs_by_group = pd.DataFrame(log_times).groupby(number).count().to_numpy()
    fewest = FEWEST_RUNS if len(nodes) == 1 else FEWEST_NODES
    kept = (runs_by_group.sum(axis=0) - (runs_by_group > 0).sum(axis=0)) >= fewest - 1
    if not kept.any():
        raise CannotJudge(f"no case with {fewest} good runs", "more runs with the same cases")
    log_times = log_times[:, kept]
    by_group = pd.DataFrame(log_times).groupby(number)
    medians = by_group.median().to_numpy()
    deviations = log_times - by_group.transform("mean").to_numpy()
    # Runs of different nodes are not consecutive.
    unseen = _unseen_variance(counts) if by_node or len(nodes) == 1 else 1.0
    spreads, degrees = pooled_spreads(deviations, (runs_by_group > 0).sum(axis=0)[kept])
    spreads *= math.sqrt(unseen)
    run_means = mean_over_cases(log_times - medians[number], spreads)
    run_means -= (np.bincount(number, run_means) / counts)[number]
    run_degrees = len(names) - len(counts)
    levels = quiet_median(medians, axis=0)
    return Baseline(
        good=good,
        keys=tuple(key for key, keep in zip(good.keys, kept.tolist(), strict=True) if keep),
        levels=levels,
        spreads=spreads,
        degrees=degrees,
        slowest=np.nanmax(log_times - medians[number], axis=0),
        nodes=tuple(nodes),
        effects=medians - levels if by_node else np.zeros((len(nodes), len(levels))),
        node_runs=node_runs,
        by_node=by_node,
        run_spread=math.sqrt(unseen * max(float((run_means**2).sum()), 1e-18) / run_degrees),
        run_degrees=float(run_degrees),
    )


def runs_needed(baseline: Baseline) -> int | None:
    """About how many good runs find a run that is ACT_ON_ALL slower; None if _MOST_RUNS do not.

    The spread of few runs is not well known, so the limit is a tenth lower.
    """
    have, limit = len(baseline.good.runs), 0.9 * math.log1p(ACT_ON_ALL)
    for runs in range(have + 1, _MOST_RUNS + 1):
        variance = _centre_variance(float(np.median(baseline.node_runs)) * runs / have)
        sigma = baseline.run_spread * math.sqrt(1 + variance)
        quantile = t_quantile(1 - PROBABLE_ALARMS * _OF_MEAN, baseline.run_degrees * runs / have)
        if max(quantile * sigma, math.log1p(THRESHOLD)) + _QUANTILE * sigma <= limit:
            return runs
    return None


def limits_of(
    baseline: Baseline, node: str | None = None, columns: Sequence[int] | None = None
) -> Limits:
    """The limits for a run of one node. node: None is any node of the baseline. columns: the cases
    that the run has, by default all. Raises CannotJudge for a node that the baseline cannot judge.
    """
    chosen = np.arange(len(baseline.keys)) if columns is None else np.array(columns)
    spreads, degrees = baseline.spreads[chosen], baseline.degrees[chosen]
    run_degrees, node_runs = baseline.run_degrees, baseline.node_runs
    count = len(baseline.nodes)
    is_baseline_node = node in baseline.nodes
    if node is not None and not is_baseline_node and (baseline.by_node or count < FEWEST_NODES):
        names = shorten([name or "several hosts" for name in baseline.nodes], 2)
        raise CannotJudge(
            f"good runs of {names} for a run of {node or 'several hosts'}",
            f"good runs of this node too, or of at least {FEWEST_NODES} nodes, which show how far "
            f"a node may differ",
        )
    centres = np.zeros(len(chosen))
    centre_variance = _MEDIAN_VARIANCE / count
    if baseline.by_node and is_baseline_node:
        index = baseline.nodes.index(node or "")
        centres = baseline.effects[index, chosen]
        centre_variance = _centre_variance(float(node_runs[index]))
    elif baseline.by_node or count == 1:
        centre_variance = _centre_variance(float(np.median(node_runs)))
    run_spread = baseline.run_spread
    if len(chosen) < len(baseline.keys):
        # The spread of this mean, of other cases or with other weights, is not known: it is at most
        # that of cases that vary together.
        run_spread = float(np.average(spreads, weights=_weights(spreads)))
        run_degrees = min(run_degrees, float(degrees.min()))
    least = math.log1p(THRESHOLD)
    run_sigma = run_spread * math.sqrt(1 + centre_variance)
    sigmas = spreads * math.sqrt(1 + centre_variance)

    def limits_at(
        false_alarms: float, critical: Callable[[float, float], float]
    ) -> tuple[float, Floats]:
        """Of the mean over the cases, and of each case [C]."""
        of_run, of_cases = false_alarms * _OF_MEAN, false_alarms * (1 - _OF_MEAN)
        factors = [critical(value, of_cases / len(chosen)) for value in degrees.tolist()]
        of_run_limit = max(critical(run_degrees, of_run) * run_sigma, least)
        return of_run_limit, np.maximum(np.array(factors) * sigmas, least)

    run_limit, limits = limits_at(FALSE_ALARMS, critical_value)
    run_named, named = limits_at(PROBABLE_ALARMS, lambda degrees, p: t_quantile(1 - p, degrees))
    floor = baseline.slowest[chosen] + math.log(NAMED_FACTOR)
    run_named, named = min(run_named, run_limit), np.minimum(np.minimum(named, limits), floor)
    return Limits(
        centres=centres,
        scales=spreads,
        run_limit=run_limit,
        run_named=run_named,
        run_detectable=run_named + _QUANTILE * run_sigma,
        case_limits=limits,
        case_named=named,
        case_detectable=named + _QUANTILE * sigmas,
    )


def judge_new_run(baseline: Baseline, node: str, times_ns: Mapping[CaseKey, float]) -> RunJudged:
    """Raises CannotJudge without a common case, and for a node that the baseline cannot judge."""
    # Not a case whose usual time on this node, or whose difference between nodes, is not known.
    has_effect = np.isfinite(baseline.effects)
    judgeable = has_effect.sum(axis=0) >= min(FEWEST_NODES, len(has_effect))
    if node in baseline.nodes:
        judgeable = has_effect[baseline.nodes.index(node)]
    columns = [c for c, key in enumerate(baseline.keys) if key in times_ns and judgeable[c]]
    if not columns:
        raise CannotJudge("no case in common", "a run with cases of the baseline")
    limits = limits_of(baseline, node, columns)
    levels = baseline.levels[columns] + limits.centres
    keys = [baseline.keys[c] for c in columns]
    effects = np.log([times_ns[key] for key in keys]) - levels
    figures = {
        "usual_ns": np.exp(levels),
        "spread": baseline.spreads[columns],
        "effect": effects,
        "limit": limits.case_limits,
        "named": limits.case_named,
        "detectable": limits.case_detectable,
        "over_slowest": effects - baseline.slowest[columns],
    }
    cases = [
        CaseDeviation(
            key, times_ns[key], **{name: float(each[row]) for name, each in figures.items()}
        )
        for row, key in enumerate(keys)
    ]
    cases.sort(key=lambda case: (_STATES.index(case.state), -case.effect))
    effect = float(mean_over_cases(effects[None, :], limits.scales)[0])
    return RunJudged(baseline, effect, limits, tuple(cases))

"""Whether new runs agree with the figures of a file, given how much runs differ from each other.

One run differs from the next by more than its calls do, so the noise is taken from the new runs: a
further run lies within mean +- t s sqrt(1 / n_file + 1 / n_new) of their mean logarithm, where s is
the standard deviation of one median per run and case (a prediction interval; Hahn and Meeker,
Statistical Intervals, 1991, section 4.5).

Two tests share the error: one of the geometric mean over all cases, and one of each case (Holm).
The second gets less of it: with few runs, the tails of real noise make errors in single cases more
frequent than the t distribution says (results/benchmarks/again-2026-11-28.txt).

``reproduced`` also needs that in each case a difference of the threshold is excluded: the 95 %
interval of its ratio lies within the threshold (two tests against both bounds; Schuirmann, 1987).
All cases have to pass, so the level needs no correction for their number (Berger, 1982).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchcoll.questions.comparison.results import runs_of
from torchcoll.stats.distributions import t_p_value, t_quantile
from torchcoll.stats.matching import Pair
from torchcoll.stats.power import holm
from torchcoll.stats.ratios import exp
from torchcoll.stats.sides import Measured

LEAST_RUNS = 3  # new runs: with two, the interval is 13 standard deviations wide
ERROR_OVER_ALL, ERROR_OF_CASES = 0.025, 0.01
ERROR_OF_REPRODUCED = 0.025  # in a case that differs by the threshold


@dataclass(frozen=True)
class CaseAgreement:
    """One case. ratio: time in the file / time in the new runs, so below 1 the file is faster.

    p: of a ratio as far from 1, without correction. bound: the largest difference that is not
    excluded, as a share of the smaller time. differs: whether p is still small enough after Holm.
    """

    name: str
    ratio: float
    p: float
    bound: float
    differs: bool = False


@dataclass(frozen=True)
class Agreement:
    """The result over all cases.

    verdict: ``reproduced``, ``not reproduced``, ``cannot tell`` or ``not comparable``.
    ratio: geometric mean over the cases of time in the file / time in the new runs; None if not
    comparable. low, high: 97.5 % prediction interval of that ratio for runs that do not differ; the
    ratio lies outside exactly where the test over all cases refuses. runs, file_runs: how many of
    each. cases: in the order of the file. threshold: as a share. reason: why it is not comparable.
    """

    verdict: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    runs: int = 0
    file_runs: int = 0
    cases: tuple[CaseAgreement, ...] = ()
    threshold: float = 0.0
    reason: str = ""

    @property
    def worst(self) -> CaseAgreement | None:
        """The case that differs most, of those that are shown to differ."""
        differing = [case for case in self.cases if case.differs]
        return max(differing, key=lambda case: abs(math.log(case.ratio)), default=None)

    @property
    def open_cases(self) -> tuple[CaseAgreement, ...]:
        """The cases in which a difference above the threshold is neither shown nor excluded."""
        return tuple(c for c in self.cases if not c.differs and c.bound > self.threshold)


def agreement(pairs: Sequence[Pair], threshold: float) -> Agreement:
    """Judges matched cases; the base of each pair is the file, the new side the new runs.

    threshold: the difference, as a share, that must be excluded in each case of a reproduced file.
    """
    shared = [pair for pair in pairs if pair.base and pair.new]
    matched = [(p.base[0].result.case.describe(), _by_run(p.base), _by_run(p.new)) for p in shared]
    return judge(matched, threshold)


def judge(
    figures: Iterable[tuple[str, Mapping[int, float], Mapping[int, float]]], threshold: float
) -> Agreement:
    """Judges cases, given as (name, run -> log time in the file, run -> log time of new runs)."""
    matched = [(name, file, new) for name, file, new in figures if file and len(new) >= LEAST_RUNS]
    if not matched:
        return Agreement("not comparable", reason=f"no case has {LEAST_RUNS} new runs")
    compared = [_compared([*file.values()], [*new.values()]) for _, file, new in matched]
    adjusted = holm([case.p for case in compared])
    cases = tuple(
        CaseAgreement(name, exp(c.difference), c.p, _bound(c), p <= ERROR_OF_CASES)
        for (name, _, _), c, p in zip(matched, compared, adjusted, strict=True)
    )
    # Over the cases that all runs have: a mean over others would differ by what is missing.
    file_means = _means([file for _, file, _ in matched])
    new_means = _means([new for _, _, new in matched])
    mean = _compared(file_means, new_means)
    half = mean.half_width(ERROR_OVER_ALL)
    result = Agreement(
        "reproduced",
        exp(mean.difference),
        exp(-half),
        exp(half),
        len(new_means),
        len(file_means),
        cases,
        threshold,
    )
    if mean.p <= ERROR_OVER_ALL or result.worst:
        return replace(result, verdict="not reproduced")
    return replace(result, verdict="cannot tell") if result.open_cases else result


def _by_run(items: Sequence[Measured]) -> dict[int, float]:
    """Logarithm of the time of each run that has a right one."""
    return {first.run: math.log(time) for time, (first, *_) in runs_of(items)}


def _means(cases: Sequence[Mapping[int, float]]) -> list[float]:
    """The mean over the cases for each run that has all of them."""
    runs = set.intersection(*(set(case) for case in cases))
    return [statistics.fmean(case[run] for case in cases) for run in sorted(runs)]


@dataclass(frozen=True)
class _Compared:
    """The difference of two sets of runs in logarithms, its standard error and its two-sided p."""

    difference: float
    error: float
    degrees: int

    @property
    def p(self) -> float:
        if not self.error:
            return float(self.difference == 0)
        return t_p_value(self.difference / self.error, self.degrees)

    def half_width(self, level: float) -> float:
        """Of the interval that a difference of 0 leaves with probability level."""
        return t_quantile(1 - level / 2, self.degrees) * self.error


def _compared(file: Sequence[float], new: Sequence[float]) -> _Compared:
    squares = sum((value - statistics.fmean(side)) ** 2 for side in (file, new) for value in side)
    degrees = len(file) + len(new) - 2
    error = math.sqrt(squares / degrees * (1 / len(file) + 1 / len(new)))
    return _Compared(statistics.fmean(file) - statistics.fmean(new), error, degrees)


def _bound(case: _Compared) -> float:
    """The end of the interval that is farther from 0 has an error on this side alone."""
    return exp(abs(case.difference) + case.half_width(2 * ERROR_OF_REPRODUCED)) - 1

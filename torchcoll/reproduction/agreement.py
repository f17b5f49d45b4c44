"""Whether new runs agree with the figures of a file, given how much runs differ from each other.

One run differs from the next by more than its calls do, so the noise is taken from the new runs: a
further run lies within mean +- t s sqrt(1 / n_file + 1 / n_new) of their mean logarithm, where s is
the standard deviation of one median per run and case (a prediction interval; Hahn and Meeker,
Statistical Intervals, 1991, section 4.5).

Two tests share the error: one of the geometric mean over all cases, which finds what changed
everywhere, and one of each case (Holm), which finds what changed in one place. The second gets less
of it: with few runs, the tails of real noise make errors in single cases more frequent than the t
distribution says (tests/benchmarks/again.py).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scipy import stats as distributions

from torchcoll.stats.matching import Pair
from torchcoll.stats.ratios import exp, holm
from torchcoll.stats.sides import Measured

LEAST_RUNS = 3  # new runs: with two, the interval is 13 standard deviations wide
LEVEL = 0.95  # of the prediction interval that is printed
ERROR_OVER_ALL, ERROR_OF_CASES = 0.025, 0.01


@dataclass(frozen=True)
class CaseAgreement:
    """One case. ratio: time in the file / time in the new runs, so below 1 the file is faster.

    p: of a ratio as far from 1, without correction. differs: whether it is still shown after Holm.
    """

    name: str
    ratio: float
    p: float
    differs: bool = False


@dataclass(frozen=True)
class Agreement:
    """The result over all cases.

    verdict: ``reproduced``, ``not reproduced``, ``cannot tell`` or ``not comparable``.
    ratio: geometric mean over the cases of time in the file / time in the new runs; None if not
    comparable. low, high: 95 % prediction interval of that ratio for runs that do not differ.
    runs, file_runs: how many of each. cases: in the order of the file. reason: why it is not
    comparable.
    """

    verdict: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    runs: int = 0
    file_runs: int = 0
    cases: tuple[CaseAgreement, ...] = ()
    reason: str = ""

    @property
    def worst(self) -> CaseAgreement | None:
        """The case that differs most, of those that are shown to differ."""
        differing = [case for case in self.cases if case.differs]
        return max(differing, key=lambda case: abs(math.log(case.ratio)), default=None)


def agreement(pairs: Sequence[Pair], threshold: float) -> Agreement:
    """Judges matched cases; the base of each pair is the file, the new side the new runs.

    threshold: with a wider prediction interval (half of it, as a share) nothing is concluded from
    runs that agree.
    """
    matched = [
        (pair.base[0].result.case.describe(), _by_run(pair.base), _by_run(pair.new))
        for pair in pairs
        if pair.base and pair.new
    ]
    return judge(matched, threshold)


def judge(
    figures: Iterable[tuple[str, Mapping[int, float], Mapping[int, float]]], threshold: float
) -> Agreement:
    """Judges cases, given as (name, run -> log time in the file, run -> log time of new runs)."""
    matched = [(name, file, new) for name, file, new in figures if file and len(new) >= LEAST_RUNS]
    if not matched:
        return Agreement("not comparable", reason=f"no case has {LEAST_RUNS} new runs")
    cases = [
        CaseAgreement(name, *_compared(list(file.values()), list(new.values()))[:2])
        for name, file, new in matched
    ]
    adjusted = holm([case.p for case in cases])
    cases = [
        CaseAgreement(case.name, case.ratio, case.p, p <= ERROR_OF_CASES)
        for case, p in zip(cases, adjusted, strict=True)
    ]
    # Over the cases that all runs have: a mean over others would differ by what is missing.
    file_means = _means([file for _, file, _ in matched])
    new_means = _means([new for _, _, new in matched])
    ratio, p, half = _compared(file_means, new_means)
    shown = p <= ERROR_OVER_ALL or any(case.differs for case in cases)
    width = math.expm1(half)
    verdict = "not reproduced" if shown else "reproduced" if width <= threshold else "cannot tell"
    return Agreement(
        verdict,
        ratio,
        exp(-half),
        exp(half),
        len(new_means),
        len(file_means),
        tuple(cases),
    )


def _by_run(items: Sequence[Measured]) -> dict[int, float]:
    """Logarithm of the time of each run that has one."""
    logs: dict[int, list[float]] = {}
    for item in items:
        if item.figure:
            logs.setdefault(item.run, []).append(math.log(item.figure))
    return {run: statistics.fmean(values) for run, values in logs.items()}


def _means(cases: Sequence[Mapping[int, float]]) -> list[float]:
    """The mean over the cases for each run that has all of them."""
    runs = set.intersection(*(set(case) for case in cases))
    return [statistics.fmean(case[run] for case in cases) for run in sorted(runs)]


def _compared(file: Sequence[float], new: Sequence[float]) -> tuple[float, float, float]:
    """(ratio, p, half width of the 95 % prediction interval in logarithms) of two sets of runs."""
    difference = statistics.fmean(file) - statistics.fmean(new)
    squares = sum((value - statistics.fmean(side)) ** 2 for side in (file, new) for value in side)
    degrees = len(file) + len(new) - 2
    error = math.sqrt(squares / degrees * (1 / len(file) + 1 / len(new)))
    half = float(distributions.t.ppf((1 + LEVEL) / 2, degrees)) * error
    if not error:
        return exp(difference), float(difference == 0), 0.0
    p = 2 * float(distributions.t.sf(abs(difference) / error, degrees))
    return exp(difference), p, half

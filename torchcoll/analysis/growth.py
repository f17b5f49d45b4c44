"""How a duration grows with a number of ranks: not at all, with its logarithm, or with itself.

Three laws: t = a, t = a + b log2 n, t = a + b n. Each is fitted by least squares of the logarithms
of the durations, for noise is a share of the duration; the replicates are launches. BIC chooses,
and a law is named only where the data reject the other one as well: BIC alone, even by what is
called strong evidence, named the wrong one in 9 of 59 simulations with two launches on each of 2, 4
and 8 ranks and 10 % noise, this in 5 of 46. Pure numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy
from numpy.typing import NDArray
from scipy import optimize, stats

from torchcoll.analysis.stats import LEVEL, holm
from torchcoll.analysis.verdicts import p_text, percent

Floats = NDArray[numpy.float64]

FEWEST = 3  # numbers of ranks: two are a line whatever the law
FLAT = 0.1  # growth over the whole range below it is none that anyone would act on
LAWS = ("log2 n", "n")
# Relative deviation from a law that is none: clocks and rounding reach it (as in regimes.py).
_FLOOR = 0.005
_TINY = 1e-20  # squares below are rounding
_POOR = 0.25  # a law that is off by more at some number of ranks is not named


@dataclass(frozen=True)
class Law:
    """One law of growth, fitted. base_ns + slope_ns x log2 n or n; low and high bound with 95 %.

    ratio: the duration at the most ranks over that at the fewest. misfit: the largest relative
    deviation of the launches' geometric mean at one number of ranks, and at which. criterion: BIC
    (G. Schwarz, Annals of Statistics 6 (1978) 461); AICc has none for four launches. p_value: of no
    growth. p_lacking: of this law alone against both together; None for fewer than four launches.
    """

    name: str
    base_ns: float
    slope_ns: float
    slope_low: float
    slope_high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    low_90: float
    high_90: float
    misfit: float
    misfit_at: int
    criterion: float
    p_value: float
    p_lacking: float | None


@dataclass(frozen=True)
class Growth:
    """verdict: ``constant``, ``log2 n``, ``n``, ``grows``, ``falls``, ``unclear``, ``too few
    points``; reason: why. law: the better of the two laws of growth; None where there are too few
    points. constant: the criterion of no growth. p_value: of no growth, Holm's where several are
    judged together.
    """

    launches: int
    numbers: tuple[int, ...]
    verdict: str
    reason: str
    law: Law | None = None
    other: Law | None = None
    constant: float | None = None
    p_value: float | None = None
    points: tuple[tuple[int, float], ...] = field(default=(), repr=False)


def growths(curves: Sequence[Sequence[tuple[int, float]]]) -> list[Growth]:
    """The growth of each curve, given as (ranks, ns) of each launch; Holm is over all of them."""
    found = [_fitted(points) for points in curves]
    tested = [i for i, one in enumerate(found) if one.p_value is not None]
    for i, p in zip(tested, holm([found[i].p_value or 0.0 for i in tested]), strict=True):
        found[i] = _judged(replace(found[i], p_value=p))
    return found


def _fitted(points: Sequence[tuple[int, float]]) -> Growth:
    numbers = tuple(sorted({n for n, _ in points}))
    if len(numbers) < FEWEST:
        words = f"{len(numbers)} numbers of ranks" if len(numbers) != 1 else "1 number of ranks"
        reason = f"{words}, {FEWEST} are needed"
        return Growth(len(points), numbers, "too few points", reason)
    ranks = numpy.array([float(n) for n, _ in points])
    logs = numpy.log(numpy.array([ns for _, ns in points]))
    laws = sorted((_law(name, ranks, logs) for name in LAWS), key=lambda law: law.criterion)
    # The better of two laws is chosen by the same data: both have had their chance to find growth.
    p = min(1.0, len(LAWS) * min(law.p_value for law in laws))
    constant = _criterion(float(((logs - logs.mean()) ** 2).sum()), len(logs), 1)
    return Growth(len(points), numbers, "unclear", "", laws[0], laws[1], constant, p, tuple(points))


def _criterion(squares: float, n: int, figures: int) -> float:
    return n * math.log(squares / n + _FLOOR**2) + figures * math.log(n)


def _law(name: str, ranks: Floats, logs: Floats) -> Law:
    """By the durations at both ends, whose logarithms are the figures that are fitted: so no
    duration between is below 0, and no growth is equality of the two.
    """
    scale = numpy.log2(ranks) if name == "log2 n" else ranks
    low, high = float(scale.min()), float(scale.max())
    weight = (scale - low) / (high - low)

    def deviations(ends: Floats) -> Floats:
        law: Floats = numpy.logaddexp(_log(1 - weight) + ends[0], _log(weight) + ends[1])
        return law - logs

    start = [logs[scale == end].mean() for end in (low, high)]
    fit = optimize.least_squares(deviations, start, xtol=1e-12, ftol=1e-12, gtol=1e-12)
    squares = float((fit.fun**2).sum())
    degrees = len(logs) - 2
    covariance = numpy.linalg.inv(fit.jac.T @ fit.jac) * squares / degrees
    t_95, t_90 = (float(q) for q in stats.t.ppf((0.975, 0.95), degrees))
    first, last = (math.exp(end) for end in fit.x)
    slope = (last - first) / (high - low)
    toward = numpy.array([-first, last]) / (high - low)
    slope_error = math.sqrt(float(toward @ covariance @ toward))
    change = float(fit.x[1] - fit.x[0])
    apart = numpy.array([-1.0, 1.0])
    error = math.sqrt(float(apart @ covariance @ apart))
    misfit, at = _misfit(ranks, fit.fun)
    return Law(
        name=name,
        base_ns=first - slope * low,
        slope_ns=slope,
        slope_low=slope - t_95 * slope_error,
        slope_high=slope + t_95 * slope_error,
        ratio=math.exp(change),
        ratio_low=_exp(change - t_95 * error),
        ratio_high=_exp(change + t_95 * error),
        low_90=_exp(change - t_90 * error),
        high_90=_exp(change + t_90 * error),
        misfit=misfit,
        misfit_at=at,
        criterion=_criterion(squares, len(logs), 2),
        p_value=float(2 * stats.t.sf(abs(change) / max(error, 1e-12), degrees)),
        p_lacking=_p_lacking(ranks, logs, logs + fit.fun),
    )


def _p_lacking(ranks: Floats, logs: Floats, law: Floats) -> float | None:
    """p of a law, given by its logarithms, against a + b log2 n + c n: Fisher's F for one figure
    more, least squares relative to the law.
    """
    if len(logs) < 4:
        return None
    times, expected = numpy.exp(logs - law), numpy.ones(len(law))
    terms = numpy.column_stack([expected, numpy.log2(ranks), ranks]) / numpy.exp(law)[:, None]
    terms /= abs(terms).max(axis=0)
    both, *_ = numpy.linalg.lstsq(terms, times, rcond=None)
    degrees = len(logs) - 3
    rest = float(((times - terms @ both) ** 2).sum()) + len(logs) * _TINY
    gained = float(((times - expected) ** 2).sum()) - rest
    return float(stats.f.sf(max(gained, 0.0) * degrees / rest, 1, degrees))


def _log(values: Floats) -> Floats:
    with numpy.errstate(divide="ignore"):  # -inf at one end is meant
        return numpy.log(values)


def _exp(power: float) -> float:
    """With one degree of freedom an interval may reach beyond what a float holds."""
    return math.exp(max(-700.0, min(700.0, power)))


def _misfit(ranks: Floats, deviations: Floats) -> tuple[float, int]:
    worst = {
        int(n): abs(math.expm1(-float(deviations[ranks == n].mean()))) for n in numpy.unique(ranks)
    }
    at = max(worst, key=lambda n: worst[n])
    return worst[at], at


def _judged(growth: Growth) -> Growth:
    """Start at unclear, and move only on evidence, as verdicts.py does."""
    law, other, p = growth.law, growth.other, growth.p_value
    assert law is not None and other is not None and p is not None and growth.constant is not None
    limit = 1 + FLAT
    beyond = abs(math.log(law.ratio)) > math.log(limit)
    if p < LEVEL and beyond and law.criterion < growth.constant:
        return _named(growth, law, other, p)
    if all(1 / limit < one.low_90 and one.high_90 < limit for one in (law, other)):
        return replace(growth, verdict="constant", reason=f"90 % within {percent(FLAT)}")
    return replace(growth, reason=p_text(p))


def _named(growth: Growth, law: Law, other: Law, p: float) -> Growth:
    which = "grows" if law.ratio > 1 else "falls"
    if law.misfit > _POOR:
        off = f"by none of these laws, the best is off by {100 * law.misfit:.0f} %"
        return replace(growth, verdict=which, reason=f"{off} on {law.misfit_at}; {p_text(p)}")
    if other.p_lacking is None or other.p_lacking >= LEVEL:
        return replace(growth, verdict=which, reason=f"with log2 n or n, both fit; {p_text(p)}")
    verdict = law.name if law.ratio > 1 else f"falls with {law.name}"
    return replace(growth, verdict=verdict, reason=f"{other.name} does not fit; {p_text(p)}")

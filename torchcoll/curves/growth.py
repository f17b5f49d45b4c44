"""How a duration grows with a number of ranks: not at all, or by a law that the data do not reject.

t = a, and t = a + b f(n) with an f of the table of terms in rank_laws.py. Each is fitted by least
squares of the logarithms of the durations, for noise is a share of the duration; the replicates are
runs.

A law is named only where the data do not reject it, and reject every other one, alone and with
half of the growth: choosing the best one and rejecting the next called a ring's
10 us + 3 us (n-1) + 1.45 ms (n-1)/n a log2 n in 2400 of 2400 simulations. What n and (n-1)/n make
together (a ring's latency and bandwidth) may look like log2 n, on three numbers of ranks exactly:
log2 n is named only where the data reject that as well. Where they reject every law alone, these
two together, log2 n and (n-1)/n (a tree's) and a power law a n^p are tried. A law that is off by no
more than compare's threshold is accepted also where noise is so small that the data reject it. Pure
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy
from scipy import optimize, stats

from torchcoll.comparison.results import p_text
from torchcoll.core.units import format_percent
from torchcoll.curves.rank_laws import ALONE, CONSTANT, MIXTURES, TERMS, RankLaw, fit_positive
from torchcoll.stats.line import Floats
from torchcoll.stats.ratios import LEVEL, holm

FEWEST = 3  # numbers of ranks: two are a line whatever the law
TOO_FEW = "too few points"  # a result
FLAT = 0.1  # growth over the whole range below it is none that anyone would act on
# Relative deviation from a law that is none: clocks and rounding reach it (as in ranges.py).
_FLOOR = 0.005
_TINY = 1e-20  # squares below are rounding
MARGIN = 0.02  # a law that is off by no more is accepted: what compare calls the same by default
_POOR = 0.25  # a law that is off by more at some number of ranks is not named
_POOR_ALONE = 0.1  # two together, where no replicates tell the noise: three figures bend to much


@dataclass(frozen=True)
class Law:
    """One law of growth, fitted: base_ns + slope_ns x f(n); low and high bound slope with 95 %.

    ratio: the duration at the most ranks over that at the fewest. misfit: the largest relative
    deviation of the runs' geometric mean at one number of ranks, and at which. criterion: BIC
    (G. Schwarz, Annals of Statistics 6 (1978) 461); AICc has none for four runs. p_value: of no
    growth. p_lacking: of this law, against what the runs on each number of ranks took; where
    few were repeated, against this law and another one together; None for fewer than 4 runs.
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

    @property
    def rejected(self) -> bool:
        """The data contradict it, by more than nothing."""
        return self.p_lacking is not None and self.p_lacking < LEVEL and self.misfit > _FLOOR

    @property
    def near(self) -> bool:
        """Whether it is off by no more than anyone would act on, whatever the noise is."""
        return self.misfit <= MARGIN

    @property
    def fits(self) -> bool:
        return not self.rejected and self.misfit <= _POOR


@dataclass(frozen=True)
class Mixture:
    """Two laws together, both in the direction of the growth: a + b f(n) + c g(n); or, in place of
    them, a power law: a n^p.

    p_lacking: as that of a Law; None where there are too few points. misfit: as that of a Law,
    infinite where it takes one of the two in the other direction, or none of it.
    """

    name: str
    p_lacking: float | None
    misfit: float
    limit: float

    @property
    def fits(self) -> bool:
        return self.misfit <= self.limit and (self.p_lacking is None or self.p_lacking >= LEVEL)


@dataclass(frozen=True)
class Growth:
    """result: ``constant``, a name of TERMS or of the power law, ``falls with`` one, ``grows``,
    ``falls``, ``inconclusive``, ``too few points``; reason: why. law: the best law of growth;
    None where there are too few points; others: the others, the better ones first. mixtures: those
    of MIXTURES. power: the power law. constant: the criterion of no growth. p_value: of no growth,
    Holm's where several are judged together; by the order of the durations alone (Kendall's tau)
    where the best law does not fit, for what it is
    off by is no noise.
    """

    runs: int
    numbers: tuple[int, ...]
    result: str
    reason: str
    law: Law | None = None
    others: tuple[Law, ...] = ()
    mixtures: tuple[Mixture, ...] = ()
    power: Mixture | None = None
    constant: float | None = None
    p_value: float | None = None
    points: tuple[tuple[int, float], ...] = field(default=(), repr=False)

    @property
    def named_power(self) -> Mixture | None:
        """The power law where it is the result."""
        named = self.power is not None and self.result.endswith(self.power.name)
        return self.power if named else None


def growths(curves: Sequence[Sequence[tuple[int, float]]]) -> list[Growth]:
    """The growth of each curve, given as (ranks, ns) of each run; Holm is over all of them."""
    results = []
    for points in curves:
        numbers = tuple(sorted({n for n, _ in points}))
        if len(numbers) < FEWEST:
            words = f"{len(numbers)} numbers of ranks" if len(numbers) != 1 else "1 number of ranks"
            reason = f"{words}, {FEWEST} are needed"
            results.append(Growth(len(points), numbers, TOO_FEW, reason))
            continue
        ranks = numpy.array([float(n) for n, _ in points])
        logs = numpy.log(numpy.array([ns for _, ns in points]))
        laws = [_law(law.name, law.columns(ranks)[1], ranks, logs) for law in ALONE]
        laws.sort(key=lambda law: law.criterion)
        # The best of several laws is chosen by the same data: all have had their chance to find
        # growth.
        p = min(1.0, len(laws) * min(law.p_value for law in laws))
        if not laws[0].fits:
            p = float(stats.kendalltau(ranks, logs).pvalue)
        growth = Growth(
            runs=len(points),
            numbers=numbers,
            result="inconclusive",
            reason="",
            law=laws[0],
            others=tuple(laws[1:]),
            mixtures=tuple(_mixture(law, ranks, logs, laws[0].ratio > 1) for law in MIXTURES),
            power=_power(ranks, logs),
            constant=_criterion(
                float(((logs - logs.mean()) ** 2).sum()), len(logs), CONSTANT.parameters
            ),
            p_value=p,
            points=tuple(points),
        )
        results.append(growth)
    tested = [i for i, growth in enumerate(results) if growth.p_value is not None]
    for i, p in zip(tested, holm([results[i].p_value or 0.0 for i in tested]), strict=True):
        results[i] = _judged(replace(results[i], p_value=p))
    return results


def _criterion(squares: float, n: int, parameters: int) -> float:
    return n * math.log(squares / n + _FLOOR**2) + parameters * math.log(n)


def _law(name: str, scale: Floats, ranks: Floats, logs: Floats) -> Law:
    """By the durations at both ends, whose logarithms are the figures that are fitted: so no
    duration between is below 0, and no growth is equality of the two.
    """
    low, high = float(scale.min()), float(scale.max())
    weight = (scale - low) / (high - low)
    with numpy.errstate(divide="ignore"):  # -inf at one end is meant
        of_first, of_last = numpy.log(1 - weight), numpy.log(weight)

    def deviations(ends: Floats) -> Floats:
        law: Floats = numpy.logaddexp(of_first + ends[0], of_last + ends[1])
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
    separate = numpy.array([-1.0, 1.0])
    error = math.sqrt(float(separate @ covariance @ separate))
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
        p_lacking=_p_lacking(name, scale, ranks, logs, logs + fit.fun),
    )


def _p_lacking(name: str, scale: Floats, ranks: Floats, logs: Floats, law: Floats) -> float | None:
    """p of a law, given by its logarithms: Fisher's F against the scatter of the runs on each
    number of ranks; where too few were repeated, for one law more, least squares relative to it.
    """
    if len(logs) < 4:
        return None
    if _repeated(ranks):
        return _p_scatter(ranks, logs, float(((logs - law) ** 2).sum()), 2)
    others = [of(ranks) for other, of in TERMS.items() if other != name]
    alone = [numpy.ones(len(ranks)), scale]
    rests = [_squares([*alone, other], logs, law) for other in others]
    squares, degrees = float((numpy.expm1(logs - law) ** 2).sum()), len(logs) - 3
    # Each of the others has had its chance.
    return min(1.0, len(others) * min(_p_gained(squares - r, 1, r, degrees) for r in rests))


def _mixture(law: RankLaw, ranks: Floats, logs: Floats, grows: bool) -> Mixture:
    numbers, near = numpy.unique(ranks), numpy.array([logs[ranks == n].mean() for n in ranks])
    constant, *terms = law.columns(ranks)
    # The constant may have either sign, the terms that of the growth.
    columns = [constant, -constant, *(term if grows else -term for term in terms)]
    times = numpy.exp(logs - near)
    parameters, fitted = fit_positive(numpy.column_stack(columns) / numpy.exp(near)[:, None], times)
    squares = float(((times - fitted) ** 2).sum())
    misfit = math.inf
    if parameters[2:].min() > 0 and fitted.min() > 0:
        misfit, _ = _misfit(ranks, numpy.log(fitted / times))
    repeated, p = _repeated(ranks), None
    if len(numbers) > 3 and len(logs) > 4:
        if repeated:
            p = _p_scatter(ranks, times, squares, law.parameters)
        else:
            (other,) = (of(ranks) for name, of in TERMS.items() if name not in law.terms)
            rest = _squares([constant, *terms, other], logs, near)
            p = _p_gained(squares - rest, 1, rest, len(logs) - law.parameters - 1)
    return Mixture(law.name, p, misfit, _POOR if repeated else _POOR_ALONE)


def _power(ranks: Floats, logs: Floats) -> Mixture:
    """a n^p, a line in logarithms."""
    line = stats.linregress(numpy.log(ranks), logs)
    fitted = line.intercept + line.slope * numpy.log(ranks)
    misfit, _ = _misfit(ranks, fitted - logs)
    p = _p_lacking("", numpy.exp(fitted), ranks, logs, fitted)
    limit = _POOR if _repeated(ranks) else _POOR_ALONE
    return Mixture(f"n^{line.slope:.2f}", p, misfit, limit)


def _repeated(ranks: Floats) -> bool:
    """Whether runs on equal numbers of ranks tell the noise. On three numbers of ranks it makes
    no difference.
    """
    return len(ranks) - len(numpy.unique(ranks)) >= 2


def _p_scatter(ranks: Floats, values: Floats, squares: float, figures: int) -> float:
    """p of a fit that leaves ``squares``, against what the runs' own scatter leaves."""
    numbers = numpy.unique(ranks)
    rest = sum(
        float(((own - own.mean()) ** 2).sum()) for n in numbers for own in [values[ranks == n]]
    )
    return _p_gained(squares - rest, len(numbers) - figures, rest, len(values) - len(numbers))


def _p_gained(gained: float, figures: int, rest: float, degrees: int) -> float:
    """p of what so many figures more gained, with what is left by the others."""
    rest += (degrees + figures) * _TINY
    return float(stats.f.sf(max(gained, 0.0) / figures * degrees / rest, figures, degrees))


def _squares(terms: Sequence[Floats], logs: Floats, near: Floats) -> float:
    """What the best sum of the terms leaves, relative to ``near`` (logarithms)."""
    columns = numpy.column_stack(terms) / numpy.exp(near)[:, None]
    columns /= abs(columns).max(axis=0)
    times = numpy.exp(logs - near)
    best, *_ = numpy.linalg.lstsq(columns, times, rcond=None)
    return float(((times - columns @ best) ** 2).sum())


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
    """Start at inconclusive, and move only on evidence, as results.py does."""
    law, p = growth.law, growth.p_value
    assert law is not None and p is not None and growth.constant is not None
    limit = 1 + FLAT
    beyond = abs(math.log(law.ratio)) > math.log(limit)
    if p < LEVEL and beyond and law.criterion < growth.constant:
        return _named(growth, law, p)
    if all(1 / limit < one.low_90 and one.high_90 < limit for one in (law, *growth.others)):
        return replace(growth, result="constant", reason=f"90 % within {format_percent(FLAT)}")
    if not law.fits:
        return replace(growth, reason=f"no law fits; {p_text(p)} by order: more runs tell")
    return replace(growth, reason=p_text(p))


def _named(growth: Growth, law: Law, p: float) -> Growth:
    which = "grows" if law.ratio > 1 else "falls"
    fitting = [one.name for one in (law, *growth.others) if not one.rejected]
    falls = "falls with " * (law.ratio < 1)
    power = growth.power
    assert power is not None
    if not law.fits:
        near = [one for one in (law, *growth.others) if one.near]
        if len(near) == 1:
            off = f"maximum error {_off(near[0].misfit)}, which is more than the noise"
            rest = tuple(one for one in (law, *growth.others) if one is not near[0])
            result = f"{falls}{near[0].name}"
            return replace(growth, result=result, reason=off, law=near[0], others=rest)
        if near:
            names = ", ".join(one.name for one in near)
            reason = f"these fit within {_off(MARGIN)}: {names}"
            return replace(growth, result=which, reason=reason)
        # On three numbers of ranks two together fit whatever is measured.
        both = [one.name for one in growth.mixtures if one.fits and one.p_lacking is not None]
        if power.misfit <= MARGIN or (power.fits and power.p_lacking is not None):
            if not both:
                reason = f"{' and '.join(TERMS)} do not fit; {p_text(p)}"
                return replace(growth, result=f"{falls}{power.name}", reason=reason)
            both.append(power.name)
        error = f"{law.name} has an error of {_off(law.misfit)} on {law.misfit_at}"
        reason = f"by none of these laws; {error}"
        if both:
            reason = f"by none of these alone; {' and '.join(both)} fit{'s' * (len(both) < 2)}"
        return replace(growth, result=which, reason=reason)
    if fitting == ["log2 n"] and growth.mixtures[0].fits:
        fitting.append(growth.mixtures[0].name)
    elif fitting == [law.name]:
        fitting += _shared(law.name, growth.points)
    if fitting == [law.name] and power.fits and not (law.name == "n" and power.name in _LINEAR):
        fitting.append(power.name)
    if len(fitting) > 1:
        return replace(growth, result=which, reason=f"these fit: {', '.join(fitting)}")
    out = [name for name in TERMS if name != law.name]
    return replace(
        growth, result=f"{falls}{law.name}", reason=f"{' and '.join(out)} do not fit; {p_text(p)}"
    )


_LINEAR = tuple(f"n^{p / 100:.2f}" for p in range(95, 106))  # the law n by another name


def _shared(name: str, points: Sequence[tuple[int, float]]) -> list[str]:
    """The mixtures that the data do not reject: half of the growth by this law, half by another."""
    ranks = numpy.array([float(n) for n, _ in points])
    logs = numpy.log(numpy.array([ns for _, ns in points]))

    halves = {}
    for law, of in TERMS.items():
        scale = of(ranks)
        halves[law] = (scale - scale.min()) / (scale.max() - scale.min())
    mixed = {f"{name} + {other}": halves[name] + halves[other] for other in TERMS if other != name}
    return [text for text, scale in mixed.items() if not _law(text, scale, ranks, logs).rejected]


def _off(misfit: float) -> str:
    return f"{100 * misfit:.{int(misfit < 0.1)}f} %"

"""Decide how a duration grows with the number of ranks n: not at all, or by which law.

The laws are t = a, and t = a + b f(n) with an f from the table of terms in rank_laws.py. Each law
is fitted by least squares of the logarithms of the durations, because noise is proportional to the
duration. Runs are the replicates.

A law is named only if the data do not reject it and do reject every other law, both alone and with
half of the growth. The sum of n and (n-1)/n, the latency and bandwidth of a ring, may look like
log2 n, and on three numbers of ranks it is exactly the same; log2 n is therefore named only if the
data reject this sum as well.
If the data reject every single law, three more are tried: n and (n-1)/n together, log2 n and
(n-1)/n together (a tree), and a power law a n^p. A law with an error below compare's threshold is
accepted even if noise is so small that the data reject it. Pure numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy

from torchcoll.core.units import counted, format_percent, plural
from torchcoll.parts.curves.rank_laws import ALONE, CONSTANT, MIXTURES, TERMS, RankLaw, fit_positive
from torchcoll.parts.curves.slow_sizes import Floats
from torchcoll.questions.comparison.results import p_text
from torchcoll.stats import distributions
from torchcoll.stats.power import detectable_change, holm
from torchcoll.stats.ratios import LEVEL, geometric

FEWEST = 3  # numbers of ranks: every law fits two of them exactly
TOO_FEW = "too few points"  # a result
FLAT = 0.1  # growth over the whole range: nobody would act on less
# Clocks and rounding alone cause relative deviations of this size (as in ranges.py).
_FLOOR = 0.005
_TINY = 1e-20  # sums of squares below this are rounding errors
MARGIN = 0.02  # a law with a smaller error is accepted; compare's default threshold
_POOR = 0.25  # a law with a larger error at some number of ranks is not named
# The same limit for two laws together without replicates: three parameters fit almost anything.
_POOR_ALONE = 0.1


@dataclass(frozen=True)
class Law:
    """One fitted law of growth: base_ns + slope_ns x f(n).

    slope_low, slope_high: 95 % interval of slope_ns.
    ratio: duration on the most ranks over duration on the fewest, as the law has them.
    ratio_low, ratio_high: its 95 % interval; low_90 and high_90: its 90 % interval.
    misfit: largest relative deviation of the law from the geometric mean of the runs on one number
        of ranks; misfit_at: this number.
    criterion: BIC (G. Schwarz, Annals of Statistics 6 (1978) 461); AICc does not exist for 4 runs.
    p_value: of the hypothesis of no growth.
    p_lacking: of the hypothesis that this law holds: tested against the scatter of the runs on the
        same number of ranks or, if too few were repeated, against this law with another term.
        None for fewer than 4 runs.
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
        """Whether the data contradict the law, by more than clocks and rounding explain."""
        return self.p_lacking is not None and self.p_lacking < LEVEL and self.misfit > _FLOOR

    @property
    def near(self) -> bool:
        """Whether the error of the law is too small for anyone to act on, whatever the noise."""
        return self.misfit <= MARGIN

    @property
    def fits(self) -> bool:
        return not self.rejected and self.misfit <= _POOR


@dataclass(frozen=True)
class Mixture:
    """A fit with two terms, a + b f(n) + c g(n), or a power law a n^p.

    p_lacking: as in Law; None if there are too few points.
    misfit: as in Law; infinite if a term has the opposite direction of the growth, or is 0.
    limit: a larger misfit counts as no fit.
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
    """How one duration grows with the number of ranks.

    runs: how many durations there are.
    numbers: the numbers of ranks, ascending.
    result: ``constant``, the name of a law, ``falls with`` a law, ``grows`` or ``falls`` (by no law
        that can be named), ``inconclusive`` or ``too few points``.
    reason: why, in a few words.
    law: the best law of growth; None if there are too few points.
    other_laws: the other laws, best first.
    mixtures: the fits of MIXTURES; power: the fit of the power law.
    constant: the criterion (BIC) of no growth.
    p_value: of no growth, corrected by Holm for the curves that are judged together. If the best
        law does not fit, its deviations are not noise; then only the order of the durations is
        tested (Kendall's tau).
    points: (ranks, ns) of each run.
    detectable: the growth over the range that is found in 9 of 10 repetitions, as a share; None if
        no law fits, or above 900 %.
    """

    runs: int
    numbers: tuple[int, ...]
    result: str
    reason: str
    law: Law | None = None
    other_laws: tuple[Law, ...] = ()
    mixtures: tuple[Mixture, ...] = ()
    power: Mixture | None = None
    constant: float | None = None
    p_value: float | None = None
    points: tuple[tuple[int, float], ...] = field(default=(), repr=False)
    detectable: float | None = None

    @property
    def changes(self) -> bool:
        """Whether it was found to grow or to fall."""
        return self.result not in (TOO_FEW, "constant", "inconclusive")

    @property
    def means(self) -> dict[int, float]:
        """The geometric mean of the durations on each number of ranks, in ns."""
        return {
            number: geometric(ns for ranks, ns in self.points if ranks == number) or 0.0
            for number in self.numbers
        }

    @property
    def measured(self) -> float | None:
        """Duration on the most ranks over duration on the fewest, without any law."""
        first, *_, last = self.means.values()
        return last / first if first else None

    @property
    def falls(self) -> bool:
        """Whether the best law falls with the number of ranks."""
        return self.law is not None and self.law.ratio < 1


def growths(curves: Sequence[Sequence[tuple[int, float]]]) -> list[Growth]:
    """The growth of each curve, given as (ranks, ns) of each run; Holm's correction is over all."""
    results = []
    for points in curves:
        numbers = tuple(sorted({n for n, _ in points}))
        if len(numbers) < FEWEST:
            numbers_text = counted(len(numbers), "number") + " of ranks"
            reason = f"{numbers_text}, {FEWEST} are needed"
            results.append(Growth(len(points), numbers, TOO_FEW, reason))
            continue
        ranks = numpy.array([float(n) for n, _ in points])
        logs = numpy.log(numpy.array([ns for _, ns in points]))
        laws = [_law(law.name, law.columns(ranks)[1], ranks, logs) for law in ALONE]
        laws.sort(key=lambda law: law.criterion)
        # The same data chose the best of several laws: correct for the number of laws tried.
        p = min(1.0, len(laws) * min(law.p_value for law in laws))
        if not laws[0].fits:
            p = distributions.kendall_p(ranks, logs)
        growth = Growth(
            runs=len(points),
            numbers=numbers,
            result="inconclusive",
            reason="",
            law=laws[0],
            other_laws=tuple(laws[1:]),
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
        detectable = _detectable(results[i], len(tested))
        results[i] = _judge(replace(results[i], p_value=p, detectable=detectable))
    return results


def _detectable(growth: Growth, tests: int) -> float | None:
    """tests: how many curves are judged together."""
    law, degrees = growth.law, growth.runs - 2
    if law is None or not law.fits:
        return None
    # The best of several laws understates the noise: the least favourable law that fits is used.
    fitting = (each for each in (law, *growth.other_laws) if each.fits)
    half = max(math.log(each.high_90 / each.low_90) for each in fitting) / 2
    error = half / distributions.t_quantile(0.95, degrees)
    return detectable_change(error, degrees, LEVEL / len(ALONE) / tests, FLAT)


def _criterion(squares: float, n: int, parameters: int) -> float:
    return n * math.log(squares / n + _FLOOR**2) + parameters * math.log(n)


def _law(name: str, scale: Floats, ranks: Floats, logs: Floats) -> Law:
    """Fit one law, with the logarithms of the durations at both ends as its two parameters: then no
    duration in between is below 0, and no growth means that the two parameters are equal.
    """
    low, high = float(scale.min()), float(scale.max())
    weight = (scale - low) / (high - low)
    with numpy.errstate(divide="ignore"):  # -inf at one end is meant
        of_first, of_last = numpy.log(1 - weight), numpy.log(weight)

    def deviations(ends: Floats) -> Floats:
        law: Floats = numpy.logaddexp(of_first + ends[0], of_last + ends[1])
        return law - logs

    from scipy import optimize

    start = [logs[scale == end].mean() for end in (low, high)]
    fit = optimize.least_squares(deviations, start, xtol=1e-12, ftol=1e-12, gtol=1e-12)
    squares = float((fit.fun**2).sum())
    degrees = len(logs) - 2
    covariance = numpy.linalg.inv(fit.jac.T @ fit.jac) * squares / degrees
    t_95, t_90 = (distributions.t_quantile(share, degrees) for share in (0.975, 0.95))
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
        p_value=distributions.t_p_value(change / max(error, 1e-12), degrees),
        p_lacking=_p_lacking(name, scale, ranks, logs, logs + fit.fun),
    )


def _p_lacking(name: str, scale: Floats, ranks: Floats, logs: Floats, law: Floats) -> float | None:
    """p of the hypothesis that a law, given by its logarithms, holds; None for fewer than 4 runs.

    Fisher's F against the scatter of the runs on each number of ranks. If too few numbers were
    repeated: F of adding the term of another law, by least squares relative to this law.
    """
    if len(logs) < 4:
        return None
    if _repeated(ranks):
        return _p_scatter(ranks, logs, float(((logs - law) ** 2).sum()), 2)
    other_terms = [f(ranks) for term, f in TERMS.items() if term != name]
    alone = [numpy.ones(len(ranks)), scale]
    squares_left = [_squares([*alone, term], logs, law) for term in other_terms]
    squares, degrees = float((numpy.expm1(logs - law) ** 2).sum()), len(logs) - 3
    # Correct for the number of terms tried.
    return min(
        1.0, len(other_terms) * min(_p_gained(squares - r, 1, r, degrees) for r in squares_left)
    )


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
            (other_term,) = (f(ranks) for term, f in TERMS.items() if term not in law.terms)
            squares_left = _squares([constant, *terms, other_term], logs, near)
            p = _p_gained(squares - squares_left, 1, squares_left, len(logs) - law.parameters - 1)
    return Mixture(law.name, p, misfit, _POOR if repeated else _POOR_ALONE)


def _power(ranks: Floats, logs: Floats) -> Mixture:
    """a n^p, a line in logarithms."""
    slope, intercept = distributions.line_through(numpy.log(ranks), logs)
    fitted = intercept + slope * numpy.log(ranks)
    misfit, _ = _misfit(ranks, fitted - logs)
    p = _p_lacking("", numpy.exp(fitted), ranks, logs, fitted)
    limit = _POOR if _repeated(ranks) else _POOR_ALONE
    return Mixture(f"n^{slope:.2f}", p, misfit, limit)


def _repeated(ranks: Floats) -> bool:
    """Whether enough numbers of ranks were repeated to know the noise. On three numbers of ranks
    the answer makes no difference.
    """
    return len(ranks) - len(numpy.unique(ranks)) >= 2


def _p_scatter(ranks: Floats, values: Floats, squares: float, figures: int) -> float:
    """p of a fit with this residual sum of squares, against the scatter of repeated runs."""
    numbers = numpy.unique(ranks)
    groups = [values[ranks == n] for n in numbers]
    squares_within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    return _p_gained(
        squares - squares_within, len(numbers) - figures, squares_within, len(values) - len(numbers)
    )


def _p_gained(gained: float, figures: int, squares_left: float, degrees: int) -> float:
    """p of an F test: what additional parameters gained, against the squares that remain."""
    squares_left += (degrees + figures) * _TINY
    return distributions.f_p_value(
        max(gained, 0.0) / figures * degrees / squares_left, figures, degrees
    )


def _squares(terms: Sequence[Floats], logs: Floats, near: Floats) -> float:
    """Residual sum of squares of the best sum of the terms, relative to ``near`` (logarithms)."""
    columns = numpy.column_stack(terms) / numpy.exp(near)[:, None]
    columns /= abs(columns).max(axis=0)
    times = numpy.exp(logs - near)
    best, *_ = numpy.linalg.lstsq(columns, times, rcond=None)
    return float(((times - columns @ best) ** 2).sum())


def _exp(power: float) -> float:
    """exp without overflow: with one degree of freedom an interval may exceed a float's range."""
    return math.exp(max(-700.0, min(700.0, power)))


def _misfit(ranks: Floats, off: Floats) -> tuple[float, int]:
    worst = {int(n): abs(math.expm1(-float(off[ranks == n].mean()))) for n in numpy.unique(ranks)}
    at = max(worst, key=lambda n: worst[n])
    return worst[at], at


def _judge(growth: Growth) -> Growth:
    """Set result and reason: start at inconclusive, move only on evidence."""
    law, p = growth.law, growth.p_value
    assert law is not None and p is not None and growth.constant is not None
    limit = 1 + FLAT
    beyond = abs(math.log(law.ratio)) > math.log(limit)
    if p < LEVEL and beyond and law.criterion < growth.constant:
        return _name_law(growth, law, p)
    if all(
        1 / limit < candidate.low_90 and candidate.high_90 < limit
        for candidate in (law, *growth.other_laws)
    ):
        return replace(growth, result="constant", reason=f"90 % within {format_percent(FLAT)}")
    if not law.fits:
        return replace(growth, reason=f"no law fits; {p_text(p)} by order: more runs tell")
    return replace(growth, reason=p_text(p))


def _name_law(growth: Growth, law: Law, p: float) -> Growth:
    which = "grows" if law.ratio > 1 else "falls"
    fitting = [candidate.name for candidate in (law, *growth.other_laws) if not candidate.rejected]
    falls = "falls with " * (law.ratio < 1)
    power = growth.power
    assert power is not None
    if not law.fits:
        near = [candidate for candidate in (law, *growth.other_laws) if candidate.near]
        if len(near) == 1:
            off = f"maximum error {_percent(near[0].misfit)}, which is more than the noise"
            alternatives = tuple(each for each in (law, *growth.other_laws) if each is not near[0])
            result = f"{falls}{near[0].name}"
            return replace(growth, result=result, reason=off, law=near[0], other_laws=alternatives)
        if near:
            names = ", ".join(candidate.name for candidate in near)
            reason = f"these fit within {_percent(MARGIN)}: {names}"
            return replace(growth, result=which, reason=reason)
        # On three numbers of ranks two laws together fit any measurement.
        of_two_laws = [mixture for mixture in growth.mixtures if mixture.fits]
        mixtures = [mixture.name for mixture in of_two_laws if mixture.p_lacking is not None]
        if power.misfit <= MARGIN or (power.fits and power.p_lacking is not None):
            if not mixtures:
                reason = f"{' and '.join(TERMS)} do not fit; {p_text(p)}"
                return replace(growth, result=f"{falls}{power.name}", reason=reason)
            mixtures.append(power.name)
        error = f"{law.name} has an error of {_percent(law.misfit)} on {law.misfit_at}"
        reason = f"by none of these laws; {error}"
        if mixtures:
            fit = plural(len(mixtures), "fits", "fit")
            reason = f"by none of these alone; {' and '.join(mixtures)} {fit}"
        return replace(growth, result=which, reason=reason)
    if fitting == ["log2 n"] and growth.mixtures[0].fits:
        fitting.append(growth.mixtures[0].name)
    elif fitting == [law.name]:
        fitting += _accepted_mixtures(law.name, growth.points)
    if fitting == [law.name] and power.fits and not (law.name == "n" and power.name in _LINEAR):
        fitting.append(power.name)
    if len(fitting) > 1:
        return replace(growth, result=which, reason=f"these fit: {', '.join(fitting)}")
    out = [name for name in TERMS if name != law.name]
    return replace(
        growth, result=f"{falls}{law.name}", reason=f"{' and '.join(out)} do not fit; {p_text(p)}"
    )


_LINEAR = tuple(f"n^{p / 100:.2f}" for p in range(95, 106))  # the law n by another name


def _accepted_mixtures(name: str, points: Sequence[tuple[int, float]]) -> list[str]:
    """Mixtures that the data do not reject: half of the growth by this law, half by another."""
    ranks = numpy.array([float(n) for n, _ in points])
    logs = numpy.log(numpy.array([ns for _, ns in points]))

    halves = {}
    for law, of in TERMS.items():
        scale = of(ranks)
        halves[law] = (scale - scale.min()) / (scale.max() - scale.min())
    mixed = {f"{name} + {term}": halves[name] + halves[term] for term in TERMS if term != name}
    return [text for text, scale in mixed.items() if not _law(text, scale, ranks, logs).rejected]


def _percent(misfit: float) -> str:
    return f"{100 * misfit:.{int(misfit < 0.1)}f} %"

"""Fit the law of a model over ranks: its steps, its links within and between hosts, its intervals.

The law and its intervals are chosen by leaving out one number of ranks at a time (see
model_sizes.py). The interval of a parameter is the jackknife's (R. G. Miller, Biometrika 61 (1974)
1): how far the parameter moves if one number of ranks is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy

from torchcoll.core.units import counted, format_factor
from torchcoll.parts.curves import model
from torchcoll.parts.curves.model_sizes import LEAST, LEVEL, Curve, quantile
from torchcoll.parts.curves.rank_laws import StepLaw, fit_positive, library_laws, step_laws
from torchcoll.parts.curves.size_law import fit_corrections, log_factors
from torchcoll.parts.curves.slow_sizes import Floats
from torchcoll.stats.distributions import f_quantile, normal_quantile, t_quantile

FEWEST_RANKS = 2
_INNER = 3  # numbers of ranks: with more, only the errors of those between the ends count
_TWO = 2  # numbers of ranks: if one of two is left out, no law can be fitted to the other
# By how much the time may grow otherwise than a law of a few numbers of ranks says, with each
# doubling of the ranks: over several hosts, and within one. Chosen on the published machines
# with several numbers of ranks (results/benchmarks/rank-counts-2026-11-24.txt).
_PRIOR, _PRIOR_WITHIN = 0.22, 0.08
_WIDEST = 10.0  # times or part of the prediction: a law with a wider interval says nothing
_AHEAD = 3  # doublings of the ranks over which the remaining laws are compared


@dataclass(frozen=True)
class RanksFit:
    """A fitted law over ranks.

    figures: launch overhead, then step and byte within a host, then step and byte between hosts.
    corrections: (size, logarithm of the factor).
    only_between: whether every curve has several hosts, so that all links are between hosts.
    """

    steps: StepLaw
    figures: Floats
    corrections: tuple[tuple[float, float], ...]
    only_between: bool

    def logs(self, curve: Curve) -> Floats:
        return self.at(curve.sizes, curve.ranks, curve.hosts)

    def at(self, sizes: Floats, ranks: int, hosts: int) -> Floats:
        rows = numpy.array(
            [model.terms(self.steps, s, ranks, hosts, self.only_between) for s in sizes]
        )
        return numpy.log(numpy.maximum(rows @ self.figures, 1e-3)) + log_factors(
            self.corrections, sizes
        )


def fit_ranks(steps: StepLaw, curves: Sequence[Curve], share: float) -> RanksFit:
    """Fit a law by least squares of the relative deviations; no parameter is below 0."""
    between = all(curve.hosts > 1 for curve in curves)
    rows = numpy.array(
        [
            model.terms(steps, size, curve.ranks, curve.hosts, between)
            for curve in curves
            for size in curve.sizes
        ]
    )
    sizes = numpy.concatenate([curve.sizes for curve in curves])
    times = numpy.concatenate([curve.times for curve in curves])
    parameters, _ = fit_positive(rows / times[:, None], numpy.ones(len(times)))
    uncorrected = RanksFit(steps, parameters, (), between)
    residuals = numpy.concatenate([numpy.log(c.times) - uncorrected.logs(c) for c in curves])
    return replace(uncorrected, corrections=fit_corrections(sizes, residuals, share))


@dataclass(frozen=True)
class LeftRanks:
    """A law, and what happens if one number of ranks at a time is left out.

    without: the laws fitted without each number of ranks.
    missed: the errors of these laws on the number of ranks that was left out, in logarithms.
    within: the residuals of the law itself, in logarithms.
    supported: whether the other numbers of ranks can predict the left-out one: two remain at least,
        and one of them has the same links (within a host only, or also between hosts).
    """

    fit: RanksFit
    without: tuple[RanksFit, ...]
    missed: tuple[Floats, ...]
    within: tuple[Floats, ...]
    supported: tuple[bool, ...]

    @property
    def errors(self) -> tuple[Floats, ...]:
        """The errors on each number of ranks when it was left out; the residuals of the law itself
        where the others cannot predict it, because one number alone separates no launch overhead
        from the steps, and no link that was left out can be known.
        """
        every = zip(self.missed, self.within, self.supported, strict=True)
        return tuple(missed if supported else within for missed, within, supported in every)

    @property
    def square(self) -> float:
        """The mean, over the numbers of ranks, of the mean square of ``errors``."""
        return float(numpy.mean([(residuals**2).mean() for residuals in self.errors])) + LEAST**2


def choose_ranks(
    collective: str, curves: Sequence[Curve], backend: str = ""
) -> tuple[LeftRanks, list[str]]:
    """The law that predicts left-out numbers of ranks best, and the names of all remaining laws.

    If no number of ranks can be predicted by the others, the laws are those of the library.

    A law remains if an F test of the mean squares (95 %) does not tell it from the best one. The
    errors of all sizes on one number of ranks are correlated, so each number of ranks is one degree
    of freedom, however many sizes it has.
    """
    tried = []
    shares = (0.0, 0.25, 0.5) if len(curves) > _TWO else (0.0,)
    between = [curve.hosts > 1 for curve in curves]
    supported = tuple(len(curves) > _TWO and between.count(several) > 1 for several in between)
    known_laws = step_laws(collective) if any(supported) else library_laws(collective, backend)
    for steps in known_laws:
        candidates = []
        for share in shares:
            without = []
            missed = []
            for left in curves:
                fit = fit_ranks(steps, [c for c in curves if c is not left], share)
                without.append(fit)
                missed.append(numpy.log(left.times) - fit.logs(left))
            fit = fit_ranks(steps, curves, share)
            within = tuple(numpy.log(curve.times) - fit.logs(curve) for curve in curves)
            candidates.append(LeftRanks(fit, tuple(without), tuple(missed), within, supported))
        tried.append(min(candidates, key=lambda candidate: candidate.square))
    tried.sort(key=lambda candidate: candidate.square)
    limit = f_quantile(0.95, len(curves), len(curves)) * tried[0].square
    return tried[0], [candidate.fit.steps.name for candidate in tried if candidate.square <= limit]


def jackknife(value: float, without: Sequence[float], logs: bool = False) -> model.Figure:
    """A value with its 90 % interval, from the values without each number of ranks in turn.

    logs: compute in logarithms, for a value that cannot be below 0.
    """
    n = len(without)
    if n < 3 or (logs and min(value, *without) <= 0):
        return value, min(value, *without), max(value, *without)
    values = numpy.log(without) if logs else numpy.asarray(without)
    error = math.sqrt((n - 1) / n * float(((values - values.mean()) ** 2).sum()))
    half = t_quantile((1 + LEVEL) / 2, n - 1) * error
    if logs:
        factor = math.exp(min(half, 50.0))
        return value, value / factor, value * factor
    return value, max(0.0, value - half), value + half


def over_ranks(
    collective: str, curves: Sequence[Curve], backend: str = ""
) -> tuple[model.OverRanks | None, str]:
    """The law over ranks of one kind of case; None and the reason if there are too few numbers, or
    if no law fits them within a factor of _WIDEST.
    """
    numbers = sorted({curve.ranks for curve in curves})
    if len(numbers) < FEWEST_RANKS:
        numbers_text = counted(len(numbers), "number") + " of ranks"
        return (
            None,
            f"{numbers_text}, {FEWEST_RANKS} are needed for a law over ranks: measure another",
        )
    best, remaining = choose_ranks(collective, curves, backend)
    spread = ranks_spread(collective, curves, best, remaining)
    widest = max(spread.high, 1 / spread.low)
    if widest > _WIDEST:
        listed = ", ".join(map(str, numbers))
        return (
            None,
            f"no law over ranks fits those measured ({listed}): the best one is wrong by up to "
            f"{format_factor(widest)}; measure another number",
        )
    fit = best.fit

    def figure(number: int) -> model.Figure | None:
        """A duration; None if it is 0, which means too small to be resolved."""
        value = float(fit.figures[number])
        without = [float(left_out_fit.figures[number]) for left_out_fit in best.without]
        return jackknife(value, without) if value > 0 else None

    def bandwidth(number: int) -> model.Figure | None:
        """A bandwidth; None if the time does not grow with the size. A law without a number of
        ranks whose time does not grow has no finite bandwidth, and is not in the interval.
        """
        value = float(fit.figures[number])
        slopes = [float(left_out_fit.figures[number]) for left_out_fit in best.without]
        rates = [1 / slope for slope in slopes if slope > 0]
        return jackknife(1 / value, rates, logs=True) if value > 0 and rates else None

    def link(first: int) -> model.Link | None:
        is_measured = any(fit.figures[first : first + 2])
        return (figure(first), bandwidth(first + 1)) if is_measured else None

    law = model.OverRanks(
        fit.steps.name,
        tuple(remaining),
        tuple(numbers),
        tuple(sorted({curve.hosts for curve in curves})),
        round(min(curve.sizes[0] for curve in curves)),
        round(max(curve.sizes[-1] for curve in curves)),
        figure(0),
        link(1),
        link(3),
        fit.corrections,
        spread,
        any(best.supported),
    )
    return law, ""


def ranks_spread(
    collective: str, curves: Sequence[Curve], best: LeftRanks, remaining: Sequence[str]
) -> model.Spread:
    """The interval of a prediction over ranks.

    Within the measured numbers of ranks: the jackknife+ over the left-out numbers. Beyond them it
    widens by the error of the laws without the outermost number, or by the disagreement of the
    remaining laws, whichever is larger. For a number of ranks that the others cannot predict: the
    residuals of the law, and the disagreement (see ``LeftRanks.errors``).
    """
    up, down = [], []
    errors = best.errors
    inner = slice(1, -1) if len(curves) > _INNER else slice(None)
    for left_out_fit, missed, supported in zip(
        best.without[inner], errors[inner], best.supported[inner], strict=True
    ):
        error = numpy.abs(missed)
        for curve in curves:
            shift = (left_out_fit.logs(curve) - best.fit.logs(curve)).mean() if supported else 0.0
            up.append(error + shift)
            down.append(error - shift)
    points = sum(len(missed) for missed in errors[inner])
    # The errors on one number of ranks are correlated, so there are only as many independent errors
    # as numbers of ranks: Student's t instead of the normal quantile. Within the data no correction
    # is needed, because errors of left-out ends, which are extrapolated, are larger anyway.
    share = (1 + LEVEL) / 2
    small_sample = t_quantile(share, len(curves)) / normal_quantile(share)
    scale = small_sample if len(curves) == _TWO else 1.0
    high, low = (scale * max(LEAST, quantile(numpy.concatenate(v), points)) for v in (up, down))
    half = min(high, low)
    prior = 0.0
    if len(curves) <= _INNER:
        # Too few to say how wrong the law is beyond them.
        prior = _PRIOR if any(curve.hosts > 1 for curve in curves) else _PRIOR_WITHIN
    if not any(best.supported):
        numbers = sorted(curve.ranks for curve in curves)
        gap = max(abs(math.log2(a / b)) for a, b in itertools.pairwise(numbers))
        low, high = max(low, prior * gap / 2), max(high, prior * gap / 2)
    below, above = (
        max(
            small_sample * _ranks_widening(best, curves, end),
            _disagreement(collective, curves, best, remaining, half, factor),
            prior,
        )
        for end, factor in ((0, 0.5), (-1, 2.0))
    )
    return model.Spread(math.exp(-low), math.exp(high), math.exp(below), math.exp(above), points)


def _ranks_widening(best: LeftRanks, curves: Sequence[Curve], end: int) -> float:
    """How much the error grows with each doubling of the ranks beyond one end of the data.

    The error of the law without the outermost number on that number, less the residuals of the same
    law on the others, over the distance in doublings. Predictions reach further than the data: the
    error is assumed to keep growing at this rate.
    """
    order = sorted(range(len(curves)), key=lambda i: curves[i].ranks)
    last = order[end]
    if not best.supported[last]:
        return 0.0
    outer, inner = curves[last], curves[order[1 if end == 0 else -2]]
    distance = abs(math.log2(outer.ranks / inner.ranks))
    if not distance:
        return 0.0
    outer_errors = numpy.abs(best.missed[last])
    law, inner_curves = best.without[last], [curve for curve in curves if curve is not curves[last]]
    logs = [numpy.log(curve.times) - law.logs(curve) for curve in inner_curves]
    residuals = numpy.abs(numpy.concatenate(logs))
    return (
        max(0.0, quantile(outer_errors, len(outer_errors)) - quantile(residuals, len(residuals)))
        / distance
    )


def _disagreement(
    collective: str,
    curves: Sequence[Curve],
    best: LeftRanks,
    remaining: Sequence[str],
    half: float,
    factor: float,
) -> float:
    """How much laws that fit equally well diverge with each doubling of the ranks.

    Compares the best law with the remaining laws and with the best law without one number of ranks.
    """
    ends = sorted(curves, key=lambda curve: curve.ranks)
    outer = ends[-1] if factor > 1 else ends[0]
    pairs = zip(best.without, best.supported, strict=True)
    other_laws = [law for law, supported in pairs if supported]
    for steps in step_laws(collective):
        if steps.name in remaining and steps.name != best.fit.steps.name:
            share = 0.5 if best.fit.corrections else 0.0
            other_laws.append(fit_ranks(steps, curves, share))
    rates = [0.0]
    for doublings in range(1, _AHEAD + 1):
        ranks = round(outer.ranks * factor**doublings)
        if ranks < 2:
            break
        hosts = max(1, round(outer.hosts * ranks / outer.ranks)) if outer.hosts else 0
        law = best.fit.at(outer.sizes, ranks, hosts)
        for other_law in other_laws:
            differences = numpy.abs(other_law.at(outer.sizes, ranks, hosts) - law)
            # The interval already covers ``half``; independent errors add up as squares.
            wider = numpy.sqrt(half**2 + differences**2) - half
            rates.append(float(numpy.median(wider)) / doublings)
    return max(rates)

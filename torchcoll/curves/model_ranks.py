"""The law of a model over ranks: its steps, the links it goes over, and its intervals, all of them
found by leaving numbers of ranks out (see model_sizes.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy
from scipy import stats

from torchcoll.core.units import counted
from torchcoll.curves.model import (
    Figure,
    Link,
    OverRanks,
    Spread,
    terms,
)
from torchcoll.curves.model_sizes import (
    LEAST,
    LEVEL,
    Curve,
    bandwidth_figure,
    jackknife,
    quantile,
    resolved,
)
from torchcoll.curves.rank_laws import StepLaw, fit_positive, step_laws
from torchcoll.curves.size_law import fit_corrections, log_factors
from torchcoll.stats.line import Floats

FEWEST_RANKS = 2
_INNER = 3  # numbers of ranks: of more the errors of those between the ends are taken
_TWO = 2  # numbers of ranks: leaving one out leaves no law
_AHEAD = 3  # doublings of the ranks, at which the laws that remain are asked how far they disagree


@dataclass(frozen=True)
class RanksFit:
    """Launch overhead; step and byte within a host and between hosts; factors at some sizes."""

    steps: StepLaw
    figures: Floats
    corrections: tuple[tuple[float, float], ...]
    only_between: bool

    def factor(self, size: float) -> float:
        return math.exp(float(log_factors(self.corrections, numpy.array([size]))[0]))

    def logs(self, curve: Curve) -> Floats:
        return self.at(curve.sizes, curve.ranks, curve.hosts)

    def at(self, sizes: Floats, ranks: int, hosts: int) -> Floats:
        rows = numpy.array([terms(self.steps, s, ranks, hosts, self.only_between) for s in sizes])
        return numpy.log(numpy.maximum(rows @ self.figures, 1e-3)) + log_factors(
            self.corrections, sizes
        )


def fit_ranks(steps: StepLaw, curves: Sequence[Curve], share: float) -> RanksFit:
    """Least squares of the relative deviations, no figure below 0."""
    between = all(curve.hosts > 1 for curve in curves)
    rows = numpy.array(
        [
            terms(steps, size, curve.ranks, curve.hosts, between)
            for curve in curves
            for size in curve.sizes
        ]
    )
    sizes = numpy.concatenate([curve.sizes for curve in curves])
    times = numpy.concatenate([curve.times for curve in curves])
    parameters, _ = fit_positive(rows / times[:, None], numpy.ones(len(times)))
    uncorrected = RanksFit(steps, parameters, (), between)
    residuals = numpy.concatenate(
        [numpy.log(curve.times) - uncorrected.logs(curve) for curve in curves]
    )
    return replace(uncorrected, corrections=fit_corrections(sizes, residuals, share))


@dataclass(frozen=True)
class LeftRanks:
    """A law, the laws without one number of ranks in turn, by how much they missed it (logarithms),
    and what the law itself leaves.
    """

    fit: RanksFit
    without: tuple[RanksFit, ...]
    missed: tuple[Floats, ...]
    within: tuple[Floats, ...]

    @property
    def square(self) -> float:
        """Mean over the numbers of ranks of the mean square error where it was left out. Of two one
        would be left, which tells no run from its steps: then what the law leaves of both.
        """
        errors = self.missed if len(self.missed) > _TWO else self.within
        return float(numpy.mean([(residuals**2).mean() for residuals in errors])) + LEAST**2


def choose_ranks(collective: str, curves: Sequence[Curve]) -> tuple[LeftRanks, list[str]]:
    """The law that predicts left-out numbers of ranks best, and those that leaving out cannot tell
    from it: F of the mean squares, 95 %. The errors of one number of ranks go together, so that
    each number is one degree of freedom, however many sizes it has.
    """
    tried = []
    shares = (0.0, 0.25, 0.5) if len(curves) > _TWO else (0.0,)
    for steps in step_laws(collective):
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
            candidates.append(LeftRanks(fit, tuple(without), tuple(missed), within))
        tried.append(min(candidates, key=lambda candidate: candidate.square))
    tried.sort(key=lambda candidate: candidate.square)
    limit = float(stats.f.ppf(0.95, len(curves), len(curves))) * tried[0].square
    return tried[0], [candidate.fit.steps.name for candidate in tried if candidate.square <= limit]


def over_ranks(collective: str, curves: Sequence[Curve]) -> tuple[OverRanks | None, str]:
    """The law of one kind of case; None, and why, where the numbers of ranks are too few."""
    numbers = sorted({curve.ranks for curve in curves})
    if len(numbers) < FEWEST_RANKS:
        numbers_text = counted(len(numbers), "number") + " of ranks"
        return (
            None,
            f"{numbers_text}, {FEWEST_RANKS} are needed for a law over ranks: measure another",
        )
    best, remaining = choose_ranks(collective, curves)
    spread = ranks_spread(collective, curves, best, remaining)
    fit = best.fit

    def figure(number: int) -> Figure | None:
        values = [float(left_out_fit.figures[number]) for left_out_fit in best.without]
        return resolved(float(fit.figures[number]), values)

    def link(first: int) -> Link | None:
        values = [float(left_out_fit.figures[first + 1]) for left_out_fit in best.without]
        if not any(fit.figures[first : first + 2]):
            return None
        return figure(first), bandwidth_figure(float(fit.figures[first + 1]), values)

    corrections = tuple(
        (
            size,
            jackknife(
                fit.factor(size), [left_out_fit.factor(size) for left_out_fit in best.without], True
            ),
        )
        for size, _ in fit.corrections
    )
    law = OverRanks(
        fit.steps.name,
        tuple(remaining),
        tuple(numbers),
        tuple(sorted({curve.hosts for curve in curves})),
        round(min(curve.sizes[0] for curve in curves)),
        round(max(curve.sizes[-1] for curve in curves)),
        figure(0),
        link(1),
        link(3),
        corrections,
        spread,
    )
    return law, ""


def ranks_spread(
    collective: str, curves: Sequence[Curve], best: LeftRanks, remaining: Sequence[str]
) -> Spread:
    """Within the numbers of ranks: the jackknife+ over the numbers left out. Beyond them: as the
    laws without the outermost numbers were wrong there, or as far as the laws that remain disagree.
    Of two numbers, as ``LeftRanks.square`` has it: what the law leaves, and the disagreement.
    """
    up, down = [], []
    errors = best.missed if len(curves) > _TWO else best.within
    inner = slice(1, -1) if len(curves) > _INNER else slice(None)
    for left_out_fit, missed in zip(best.without[inner], errors[inner], strict=True):
        error = numpy.abs(missed)
        for curve in curves:
            shift = (
                (left_out_fit.logs(curve) - best.fit.logs(curve)).mean()
                if len(curves) > _TWO
                else 0.0
            )
            up.append(error + shift)
            down.append(error - shift)
    points = sum(len(missed) for missed in errors[inner])
    # The errors of one number of ranks go together: there are as many as numbers of ranks. Within
    # them the errors of those left out at the ends, which are extrapolated, make up for that.
    small_sample = float(
        stats.t.ppf((1 + LEVEL) / 2, len(curves)) / stats.norm.ppf((1 + LEVEL) / 2)
    )
    scale = small_sample if len(curves) == _TWO else 1.0
    high, low = (scale * max(LEAST, quantile(numpy.concatenate(v), points)) for v in (up, down))
    half = min(high, low)
    below, above = (
        max(
            small_sample * _ranks_widening(best, curves, end),
            _disagreement(collective, curves, best, remaining, half, factor),
        )
        for end, factor in ((0, 0.5), (-1, 2.0))
    )
    return Spread(math.exp(-low), math.exp(high), math.exp(below), math.exp(above), points)


def _ranks_widening(best: LeftRanks, curves: Sequence[Curve], end: int) -> float:
    """A doubling: by how much the error of the outermost number, where it was left out, is larger
    than what that law leaves of the others, by its distance. Fewer doublings were tried than
    predictions go: what grew there is taken to grow on.
    """
    if len(curves) == _TWO:
        return 0.0
    order = sorted(range(len(curves)), key=lambda i: curves[i].ranks)
    last = order[end]
    outer, inner = curves[last], curves[order[1 if end == 0 else -2]]
    distance = abs(math.log2(outer.ranks / inner.ranks))
    if not distance:
        return 0.0
    outer_errors = numpy.abs(best.missed[last])
    law, inner_curves = best.without[last], [curve for curve in curves if curve is not curves[last]]
    residuals = numpy.abs(
        numpy.concatenate([numpy.log(curve.times) - law.logs(curve) for curve in inner_curves])
    )
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
    """A doubling: what laws that remain, and the best one without one number of ranks, differ."""
    ends = sorted(curves, key=lambda curve: curve.ranks)
    outer = ends[-1] if factor > 1 else ends[0]
    other_laws = list(best.without) if len(curves) > _TWO else []
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
            # Together with the errors that the interval holds already, as independent ones add up.
            wider = numpy.sqrt(half**2 + differences**2) - half
            rates.append(float(numpy.median(wider)) / doublings)
    return max(rates)

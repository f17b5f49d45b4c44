"""The model of a comparison: log figure = case + side + drift x run number, and its outliers.

The run number is its place in the order of starting. What drifts with time (a machine that
warms up, a neighbour that comes) is in the model, so that it is no difference of the sides; if the
order is unknown the drift is left out, and the comparison says so.

Rejected: Welch's t, which takes drift for a difference if one side was measured first, and for
noise if the runs alternate; pairs of neighbours, in which a drift under strict A B A B is a
difference again; ranks, of which six against six cannot pass Holm over 24 cases.

If one side was measured before the other, the drift can hardly be told from the difference: in
three runs each, the model called B 2.0x faster (p 0.03) although it took 23 % longer. Then the
ratio is that of the means, and a difference must be significant with the drift and without it.

Each side has its own noise: with one for both, 12 runs against 4 that are 3 times as noisy are
called different in 7 of 10 comparisons of 25 equal cases.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from scipy import special

from torchcoll.core.two_modes import parted
from torchcoll.stats import ratios

OUTLIER_LEVEL = 0.01  # with which a comparison without any outlier loses a run
MOST_OUTLIERS = 2  # more are no outliers, but what the machine does
MOST_INFLATED = 1.5  # the error of the side by the drift; with more they are not told apart
_LEAST_FREE = 0.1  # degrees of a side; with fewer its noise cannot be told from the other's
FEWEST = 3  # runs of a side that are judged, and that outliers leave
_WITH_SPREAD = 2  # runs of a side whose spread can be computed
_FEWEST_DEGREES = 3  # of the others: a line through fewer often fits by chance
_PARAMETERS = 3
# With fewer cases an outlier must be far off on the noise of its own side too: of one case of 12
# runs against 4 that are 3 times as noisy, 28 % lost a noisy run, and 12 % were called different.
_FEW_CASES = 5


@dataclass(frozen=True)
class Figures:
    """One case: a figure above 0 of each run.

    runs: (side, number) of each, side 0 is the base. order: the numbers of their starts among those
    of both sides; None if a start is unknown.
    """

    values: tuple[float, ...]
    runs: tuple[tuple[int, int], ...]
    order: tuple[float, ...] | None = None

    def of(self, side: int) -> tuple[float, ...]:
        pairs = zip(self.values, self.runs, strict=True)
        return tuple(value for value, (number, _) in pairs if number == side)

    @property
    def testable(self) -> bool:
        """Whether both sides have a spread, if not one to judge by."""
        return min(len(self.of(0)), len(self.of(1))) >= _WITH_SPREAD

    @property
    def interleaved(self) -> bool:
        """False if one side was measured before the other; True if nobody knows."""
        starts: tuple[list[float], list[float]] = ([], [])
        for (side, _), start in zip(self.runs, self.order or (), strict=self.order is not None):
            starts[side].append(start)
        base, new = starts
        return not base or not new or (max(base) >= min(new) and max(new) >= min(base))

    def without(self, left_out: Sequence[tuple[int, int]]) -> Figures:
        keep = [i for i, run in enumerate(self.runs) if run not in left_out]
        values, runs = tuple(self.values[i] for i in keep), tuple(self.runs[i] for i in keep)
        order = None if self.order is None else tuple(self.order[i] for i in keep)
        return Figures(values, runs, order)


@dataclass(frozen=True)
class Outlier:
    """A run whose figures are ``factor`` off the model of the others, with t beyond the limit."""

    run: tuple[int, int]
    factor: float
    t: float
    limit: float


@dataclass(frozen=True)
class Model:
    """The least squares of one set of runs: what does not depend on the figures.

    matrix: [run][1, side, number], without the number if it is unknown or follows from the side.
    projection: its pseudo-inverse. annihilator: what makes residuals of figures; free: its
    diagonal, 1 - leverage of each run. error: of the side, as a share of the spread of one run.
    sides: 0 and 1 of each run. weights: of the squared residuals in the variance of the side, whose
    degrees of freedom follow from means [side] and products [side][side].
    """

    matrix: numpy.ndarray
    projection: numpy.ndarray
    free: numpy.ndarray
    annihilator: numpy.ndarray
    error: float
    degrees: int
    sides: numpy.ndarray
    weights: numpy.ndarray
    means: numpy.ndarray
    products: numpy.ndarray

    @property
    def in_order(self) -> bool:
        return bool(self.matrix.shape[1] == _PARAMETERS)


@functools.lru_cache(maxsize=256)
def model_of(sides: tuple[int, ...], order: tuple[float, ...] | None) -> Model:
    matrix = numpy.column_stack((numpy.ones(len(sides)), numpy.array(sides, dtype=float)))
    if order is not None:
        full = numpy.column_stack((matrix, numpy.array(order) - numpy.mean(order)))
        matrix = full if numpy.linalg.matrix_rank(full) == _PARAMETERS else matrix
    projection = numpy.linalg.pinv(matrix)
    annihilator = numpy.eye(len(sides)) - matrix @ projection
    free = numpy.diag(annihilator)
    error = math.sqrt(float(projection[1] @ projection[1]))
    degrees, side = len(sides) - matrix.shape[1], numpy.array(sides)
    of_side = numpy.array([side == 0, side == 1])
    weights = numpy.full(len(sides), error**2 / max(degrees, 1))
    if min(of_side @ free) > _LEAST_FREE:
        weights = ((of_side @ projection[1] ** 2) / (of_side @ free))[side]
    form = annihilator * weights @ annihilator
    means, products = of_side @ numpy.diag(form), of_side @ form**2 @ of_side.T
    least = error, degrees, side, weights, means, products
    return Model(matrix, projection, free, annihilator, *least)


def _model(figures: Figures) -> Model:
    return model_of(tuple(side for side, _ in figures.runs), figures.order)


def least_squares(
    model: Model, logs: numpy.ndarray
) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """The side's effect and the spread [case...], and residuals, of logs [run][case...]."""
    coefficients = numpy.tensordot(model.projection, logs, 1)
    rest = logs - numpy.tensordot(model.matrix, coefficients, 1)
    return coefficients[1], numpy.sqrt((rest**2).sum(axis=0) / model.degrees), rest


def noise_share(model: Model, rest: numpy.ndarray) -> numpy.ndarray:
    """[case...]: the new side's variance as a share of both sides' sum; half of it unless known."""
    base, new = (
        (rest[model.sides == side] ** 2).sum(axis=0)
        / max(float(model.free[model.sides == side].sum()), ratios.NO_SPREAD)
        for side in (0, 1)
    )
    total = base + new
    return numpy.where(total > 0, new / numpy.maximum(total, ratios.NO_SPREAD**3), 0.5)


def side_error(
    model: Model, rest: numpy.ndarray, share: numpy.ndarray | float
) -> tuple[numpy.ndarray, numpy.ndarray]:
    """[case...]: the standard error of the side, each side with its own noise, and its degrees.

    The error is HC2's, pooled within a side: the sum of p^2 times the side's squared residuals over
    the sum of its 1 - leverages (p: the row of the projection that gives the side). Its degrees are
    Satterthwaite's (R. M. Bell and D. F. McCaffrey, Survey Methodology 28 (2002) 169). Without the
    run number it is Welch's t. share: the median of ``noise_share`` over the cases, because that of
    one case is too uncertain for Holm's levels (12 against 4: 14 % false alarms).
    """
    error = numpy.sqrt(numpy.tensordot(model.weights, rest**2, 1))
    noise = numpy.array([1 - numpy.asarray(share, dtype=float), numpy.asarray(share, dtype=float)])
    mean = numpy.tensordot(model.means, noise, 1)
    squares = numpy.einsum("ij,i...,j...->...", model.products, noise, noise)
    return error, mean**2 / squares


def common_share(cases: Sequence[Figures]) -> float | None:
    """The median of ``noise_share`` over the cases that can be tested; None without any."""
    shares = []
    for case in cases:
        model = _model(case)
        if case.testable and model.degrees > 0:
            rest = least_squares(model, numpy.log(case.values))[2]
            shares.append(float(noise_share(model, rest)))
    return float(numpy.median(shares)) if shares else None


def deleted_residuals(
    model: Model, rest: numpy.ndarray, own_side: bool = False
) -> tuple[numpy.ndarray, numpy.ndarray]:
    """[run][case...]: how far each run is from the model of the others, as a normal deviate of the
    same p as its t, and as a logarithm; 0 if only this run determines a parameter.

    own_side: on the noise of the others of its side alone, whose degrees of freedom are the sum of
    their 1 - leverages without it; else on that of all others.
    """
    runs = len(model.sides)
    alone = model.free < ratios.NO_SPREAD
    free = numpy.where(alone, 1.0, model.free)
    noise = numpy.ones((runs, runs))
    if own_side:
        noise = (model.sides[:, None] == model.sides[None, :]).astype(float)
    shift = model.annihilator * noise  # of the others' residuals, where one is deleted
    degrees = (noise * (model.free - model.annihilator**2 / free[:, None])).sum(axis=1)
    alone = alone | (degrees < _LEAST_FREE)
    squared = (shift**2).sum(axis=1)
    alone, free, degrees, squared = (
        arrays.reshape((-1, *[1] * (rest.ndim - 1))) for arrays in (alone, free, degrees, squared)
    )
    degrees = numpy.where(alone, 1.0, degrees)
    off = numpy.where(alone, 0.0, rest / free)
    squares = numpy.tensordot(noise, rest**2, 1) - 2 * off * numpy.tensordot(shift, rest, 1)
    squares = numpy.maximum(squares + off**2 * squared, 0.0) / degrees
    t = off / numpy.maximum(numpy.sqrt(squares / free), ratios.NO_SPREAD)
    return numpy.copysign(special.ndtri(special.stdtr(degrees, -abs(t))), t), off


def outlier_deviates(
    model: Model, rest: numpy.ndarray, cases: int | Sequence[int]
) -> tuple[numpy.ndarray, numpy.ndarray]:
    """``deleted_residuals`` by which runs are judged that are in so many ``cases`` each."""
    t, off = deleted_residuals(model, rest)
    few = numpy.broadcast_to(numpy.array(cases) < _FEW_CASES, len(model.sides))
    if few.any():
        of_own_side = deleted_residuals(model, rest, own_side=True)[0]
        few = few.reshape((-1, *[1] * (rest.ndim - 1)))
        t = numpy.where(few & (abs(of_own_side) < abs(t)), of_own_side, t)
    return t, off


def outlier_limit(runs: int) -> float:
    """What the largest of so many normal deviates passes with OUTLIER_LEVEL at most."""
    return -float(special.ndtri(OUTLIER_LEVEL / 2 / runs))


def side_ratio(figures: Figures, share: float | None = None) -> ratios.Ratio:
    """new / base at one run number, or ``ratio_of_both``; without a spread the plain ratio. share:
    ``common_share``; None takes the case's own.
    """
    ratio = _ratio_by_model(figures, share)
    if inflation(_model(figures)) <= MOST_INFLATED or not ratio.error:
        return ratio
    means = _ratio_by_model(dataclasses.replace(figures, order=None), share)
    return ratios.ratio_of_both(means, ratio) if means.error else ratio


def inflation(model: Model) -> float:
    """By how much the run number makes the error of the side larger: 1 if it is no parameter."""
    counts = [int((model.sides == side).sum()) for side in (0, 1)]
    return model.error / math.sqrt(sum(1 / count for count in counts)) if all(counts) else 1.0


def _ratio_by_model(figures: Figures, share: float | None) -> ratios.Ratio:
    """By ordinary least squares on the logarithms."""
    model, logs = _model(figures), numpy.log(figures.values)
    if figures.testable and model.degrees > 0:
        effect, one_noise, rest = least_squares(model, logs)
        spread = float(one_noise)
        noise = float(noise_share(model, rest)) if share is None else share
        error, degrees = (float(value) for value in side_error(model, rest, noise))
        if spread > ratios.NO_SPREAD and error > ratios.NO_SPREAD:
            # Of as many runs a side the error is that of the mean of both variances.
            free = [float(model.free[model.sides == side].sum()) for side in (0, 1)]
            if min(free) > _LEAST_FREE:
                squares = [(rest[model.sides == side] ** 2).sum() for side in (0, 1)]
                spread = math.sqrt((squares[0] / free[0] + squares[1] / free[1]) / 2)
            design = ratios.ORDERED if model.in_order else ratios.ONE_NOISE
            shared = 1 / (2 * (noise**2 + (1 - noise) ** 2))
            design = dataclasses.replace(design, degrees_share=shared)
            return ratios.ratio_of(float(effect), error, degrees, spread, design)
    return plain_ratio(figures)


def plain_ratio(figures: Figures) -> ratios.Ratio:
    """Of the geometric means, whenever they were measured. Both sides have a run at least."""
    base, new = (numpy.log(figures.of(side)) for side in (0, 1))
    return ratios.Ratio(ratios.exp(float(new.mean() - base.mean())))


def outliers(cases: Sequence[Figures]) -> list[Outlier]:
    """The runs that are left out of all cases: MOST_OUTLIERS at most, the furthest first.

    A run is judged by the median over the cases of its studentised deleted residual: left out case
    by case, the errors of the test would grow. Source: R. D. Cook and S. Weisberg, Residuals and
    Influence in Regression (1982), 2.2.2: the largest of n residuals by Bonferroni. Two of like
    size hide each other, so the second decides on both (B. Rosner, Technometrics 25 (1983) 165).
    """
    left: list[tuple[int, int]] = []
    looked_at: list[Outlier] = []
    shown = 0
    while len(left) < MOST_OUTLIERS:
        rest = [case.without(left) for case in cases]
        candidates = _candidates(rest)
        spare: set[tuple[int, int]] = set()
        for case in rest:
            sizes = Counter(side for side, _ in case.runs)
            spare.update(run for run in case.runs if sizes[run[0]] > FEWEST)
        able = [outlier for run, outlier in candidates.items() if run in spare]
        if not able:
            break
        looked_at.append(max(able, key=lambda outlier: abs(outlier.t)))
        left.append(looked_at[-1].run)
        if abs(looked_at[-1].t) > looked_at[-1].limit:
            shown = len(left)
    outliers = []
    for outlier in looked_at[:shown]:
        others = [run for run in left[:shown] if run != outlier.run]
        candidates = _candidates([case.without(others) for case in cases])
        # Each case that has it may be too small without the others.
        outliers.append(candidates.get(outlier.run, outlier))
    return outliers


def _candidates(cases: Sequence[Figures]) -> dict[tuple[int, int], Outlier]:
    """What each run would be as an outlier, by medians over the cases."""
    alike: dict[tuple[object, object], list[Figures]] = {}
    for case in cases:
        if case.testable and _model(case).degrees > _FEWEST_DEGREES:
            alike.setdefault((case.runs, case.order), []).append(case)
    deviates: dict[tuple[int, int], list[numpy.ndarray]] = {}
    number = Counter(run for several in alike.values() for case in several for run in case.runs)
    for several in alike.values():
        model = _model(several[0])
        logs = numpy.log([case.values for case in several]).T
        counts = [number[run] for run in several[0].runs]
        deviates_of_runs = outlier_deviates(model, least_squares(model, logs)[2], counts)
        for run, *values in zip(several[0].runs, *deviates_of_runs, strict=True):
            deviates.setdefault(run, []).append(numpy.array(values))
    candidates = {}
    for run, arrays in deviates.items():
        t, off = numpy.median(numpy.concatenate(arrays, axis=1), axis=1)
        limit = outlier_limit(len(deviates))
        candidates[run] = Outlier(run, ratios.exp(float(off)), float(t), limit)
    return candidates


# Runs may start in one of two modes, such as two placements: a slow run is slow in all its cases.
_FEWEST_RUNS = 8  # of both sides: with fewer Otsu's criterion asks for more than there is
_LEAST = 2  # runs of a mode: one slow run is an outlier
_APART = 1.1  # the modes' middles, as a ratio


@dataclass(frozen=True)
class StartModes:
    """slow, runs: of the base and of the new side. factor: by how much the slow mode is slower."""

    slow: tuple[int, int]
    runs: tuple[int, int]
    factor: float


def start_modes(cases: Sequence[Figures], more_is_faster: bool = False) -> StartModes | None:
    """The modes over the cases that all runs have; None for one, or if the modes are the sides."""
    runs = sorted({run for case in cases for run in case.runs})
    whole = [case for case in cases if sorted(case.runs) == runs]
    if len(runs) < _FEWEST_RUNS or not whole:
        return None
    values = [[value for _, value in sorted(zip(c.runs, c.values, strict=True))] for c in whole]
    logs = numpy.log(values)
    logs = -logs if more_is_faster else logs
    factors = numpy.median(logs - logs.mean(axis=1, keepdims=True), axis=0)
    order = numpy.argsort(factors)
    fast = parted(factors[order].tolist(), _LEAST)
    if fast is None:
        return None
    middles = [float(numpy.median(factors[part])) for part in (order[:fast], order[fast:])]
    factor = math.exp(middles[1] - middles[0])
    slow = [runs[place][0] for place in order[fast:]]
    counts = slow.count(0), slow.count(1)
    sizes = sum(side == 0 for side, _ in runs), sum(side == 1 for side, _ in runs)
    mixed = any(0 < count < size for count, size in zip(counts, sizes, strict=True))
    return StartModes(counts, sizes, factor) if mixed and factor >= _APART else None

"""The model of a comparison: log figure = case + side + drift x launch number, and its outliers.

The launch number is its place in the order of starting. What drifts with time (a machine that
warms up, a neighbour that comes) is in the model, so that it is no difference of the sides; where
it is unknown the drift is left out, and the comparison says so.

Rejected: Welch's t, which takes drift for a difference where one side was measured first, and for
noise where the launches alternate; pairs of neighbours, in which a drift under strict A B A B is a
difference again; ranks, of which six against six cannot pass Holm over 24 cases. The price is one
noise for both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from scipy import special

from torchcoll.analysis.stats import NO_SPREAD, ONE_NOISE, ORDERED, Ratio, exp, ratio_of

OUTLIER_LEVEL = 0.01  # with which a comparison without any outlier loses a launch
MOST_OUTLIERS = 2  # more are no outliers, but what the machine does
_FEWEST = 2  # launches of a side that must remain
_PARAMETERS = 3


@dataclass(frozen=True)
class Figures:
    """One case: a figure above 0 of each launch.

    launches: (side, number) of each, side 0 is the base; order: the number of its start among
    those of both sides, None where some start is unknown.
    """

    values: tuple[float, ...]
    launches: tuple[tuple[int, int], ...]
    order: tuple[float, ...] | None = None

    def of(self, side: int) -> tuple[float, ...]:
        own = zip(self.values, self.launches, strict=True)
        return tuple(value for value, (number, _) in own if number == side)

    @property
    def testable(self) -> bool:
        """Two launches a side at least."""
        return min(len(self.of(0)), len(self.of(1))) >= _FEWEST

    @property
    def interleaved(self) -> bool:
        """False where one side was measured before the other; True too where nobody knows."""
        if self.order is None:
            return True
        own, other = (
            [n for n, (number, _) in zip(self.order, self.launches, strict=True) if number == side]
            for side in (0, 1)
        )
        return not own or not other or (max(own) >= min(other) and max(other) >= min(own))

    def without(self, left_out: Sequence[tuple[int, int]]) -> Figures:
        keep = [i for i, launch in enumerate(self.launches) if launch not in left_out]
        return Figures(
            tuple(self.values[i] for i in keep),
            tuple(self.launches[i] for i in keep),
            None if self.order is None else tuple(self.order[i] for i in keep),
        )


@dataclass(frozen=True)
class Outlier:
    """A launch that is like no other. factor: by how much its figures are off the model of the
    others, t: its deleted residual as a normal deviate, medians over the cases.
    """

    launch: tuple[int, int]
    factor: float
    t: float
    limit: float


def matrix_of(figures: Figures) -> numpy.ndarray:
    """[launch][1, side, number]; without the number where it is unknown or tells what the side
    does: each side was started at one instant.
    """
    sides = [float(side) for side, _ in figures.launches]
    matrix = numpy.column_stack((numpy.ones(len(sides)), sides))
    if figures.order is None:
        return matrix
    number = numpy.array(figures.order) - numpy.mean(figures.order)
    full = numpy.column_stack((matrix, number))
    return full if numpy.linalg.matrix_rank(full) == _PARAMETERS else matrix


def side_ratio(figures: Figures) -> Ratio:
    """new / base at one launch number, by ordinary least squares on the logarithms.

    With one launch on a side, or without any spread, the plain ratio alone.
    """
    logs = numpy.log(figures.values)
    matrix = matrix_of(figures)
    degrees = len(logs) - matrix.shape[1]
    ordered = matrix.shape[1] == _PARAMETERS
    if figures.testable and degrees > 0:
        (_, effect, *_), *_ = numpy.linalg.lstsq(matrix, logs, rcond=None)
        spread, share = _noise(matrix, logs)
        if spread > NO_SPREAD:
            design = ORDERED if ordered else ONE_NOISE
            return ratio_of(float(effect), spread * share, degrees, spread, design)
    base, new = (numpy.log(figures.of(side)) for side in (0, 1))
    return Ratio(exp(float(new.mean() - base.mean())))


def _noise(matrix: numpy.ndarray, logs: numpy.ndarray) -> tuple[float, float]:
    """The standard deviation of one launch, and the error of the side as a share of it."""
    coefficients, *_ = numpy.linalg.lstsq(matrix, logs, rcond=None)
    rest = logs - matrix @ coefficients
    degrees = len(logs) - matrix.shape[1]
    inverse = numpy.linalg.inv(matrix.T @ matrix)
    return math.sqrt(float(rest @ rest) / degrees), math.sqrt(float(inverse[1, 1]))


def outliers(cases: Sequence[Figures]) -> list[Outlier]:
    """The launches that are left out of all cases: one at a time, MOST_OUTLIERS at most.

    A launch is judged by the median over the cases of its studentised deleted residual: it must be
    off as a whole. Left out case by case, whatever is far off would be, and the errors of the test
    would grow. Source: R. D. Cook and S. Weisberg, Residuals and Influence in Regression (1982),
    2.2.2: the largest of n residuals by Bonferroni.
    """
    found: list[Outlier] = []
    while len(found) < MOST_OUTLIERS:
        kept = [case.without([one.launch for one in found]) for case in cases]
        worst = _worst(kept)
        if worst is None:
            break
        found.append(worst)
    return found


def _worst(cases: Sequence[Figures]) -> Outlier | None:
    deviates: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for case in cases:
        if case.testable:
            for launch, off in zip(case.launches, deleted_residuals(case), strict=True):
                deviates.setdefault(launch, []).append(off)
    if not deviates:
        return None
    counts = [sum(side == number for side, _ in deviates) for number in (0, 1)]
    limit = -float(special.ndtri(OUTLIER_LEVEL / 2 / len(deviates)))
    medians = {
        launch: numpy.median(own, axis=0)
        for launch, own in deviates.items()
        if counts[launch[0]] > _FEWEST
    }
    if not medians:
        return None
    launch = max(medians, key=lambda one: abs(float(medians[one][0])))
    t, off = map(float, medians[launch])
    return Outlier(launch, exp(off), t, limit) if abs(t) > limit else None


def deleted_residuals(figures: Figures) -> list[tuple[float, float]]:
    """Of each launch how far it is from the model of the others: as a normal deviate of the same p
    as its t, so that cases with other numbers of launches can stand beside it, and as a logarithm.
    (0, 0) where the others leave nothing to judge by.
    """
    logs, matrix = numpy.log(figures.values), matrix_of(figures)
    projection = numpy.linalg.pinv(matrix)
    rest = logs - matrix @ (projection @ logs)
    free = 1 - numpy.einsum("ij,ji->i", matrix, projection)
    degrees = len(logs) - matrix.shape[1] - 1
    if degrees < 1:
        return [(0.0, 0.0)] * len(logs)
    alone = free < NO_SPREAD  # nothing but itself tells of a parameter
    off = numpy.where(alone, 0.0, rest / numpy.where(alone, 1.0, free))
    squares = numpy.maximum(float(rest @ rest) - off * rest, 0.0) / degrees
    error = numpy.maximum(numpy.sqrt(squares / numpy.where(alone, 1.0, free)), NO_SPREAD)
    t = off / error
    deviates = numpy.copysign(special.ndtri(special.stdtr(degrees, -abs(t))), t)
    return [(float(z), float(x)) for z, x in zip(deviates, off, strict=True)]

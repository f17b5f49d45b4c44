"""A law of time over size, and how wrong it is: found by leaving sizes out.

time = (latency + size / bandwidth) x factor(size): one such law for all sizes, or one for each of
the ranges that ``ranges.py`` finds, and a correction where the data bend otherwise: factors at half
as many sizes, between them straight lines in the logarithms or a spline. Which of these, and
whether any, is chosen by leaving each size out in turn.

The interval is the jackknife+ (R. F. Barber, E. J. Candes, A. Ramdas and R. J. Tibshirani, Annals
of Statistics 49 (2021) 486), in logarithms: what the laws without one size say, each with its own
left-out error. Beyond the data it widens with the distance, by as much as laws without the sizes of
one end were wrong there. Pure numbers: sizes in bytes, times in nanoseconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy
from scipy import interpolate

from torchcoll.curves.ranges import find_ranges
from torchcoll.stats.line import Floats, fit_line

FEWEST_SIZES = 3
TAIL = 3  # sizes that tell the slope beyond the largest one
_SHARE = 0.5  # corrections, of the number of sizes


@dataclass(frozen=True)
class Piece:
    """latency_ns + ns_per_byte x size, from low_bytes to high_bytes."""

    low_bytes: float
    high_bytes: float
    latency_ns: float
    ns_per_byte: float

    def at(self, sizes: Floats) -> Floats:
        """Not below a thousandth of its time at its own first size: a steep line meets zero."""
        least = 1e-3 * abs(self.latency_ns + self.ns_per_byte * self.low_bytes)
        return numpy.maximum(self.latency_ns + self.ns_per_byte * sizes, max(least, 1e-3))


@dataclass(frozen=True)
class SizeLaw:
    """pieces in order of size; corrections: (size in bytes, logarithm of the factor there).

    beyond_ns_per_byte: above the largest size the time goes on from there with this slope, that of
    the last TAIL sizes: a law of many sizes that bends cannot be right at its end.
    """

    pieces: tuple[Piece, ...]
    corrections: tuple[tuple[float, float], ...]
    beyond_ns_per_byte: float
    smooth: bool = False

    def logs(self, sizes: Floats) -> Floats:
        """Logarithms of the times in ns. Below the data the first law and factor go on."""
        last = self.pieces[-1].high_bytes
        within = numpy.minimum(sizes, last)
        logs = piecewise_logs(self.pieces, within) + log_factors(
            self.corrections, within, self.smooth
        )
        return numpy.log(numpy.exp(logs) + self.beyond_ns_per_byte * (sizes - within))

    def factor(self, size: float) -> float:
        return math.exp(float(log_factors(self.corrections, numpy.array([size]), self.smooth)[0]))


def piecewise_logs(pieces: Sequence[Piece], sizes: Floats) -> Floats:
    """Logarithms of the times of the pieces; between two of them a mean of both by distance."""
    logs = numpy.log(pieces[0].at(sizes))
    for lower, upper in itertools.pairwise(pieces):
        span = math.log(upper.low_bytes / lower.high_bytes)
        share = numpy.clip(numpy.log(sizes / lower.high_bytes) / span, 0, 1)
        logs = numpy.where(
            sizes > lower.high_bytes,
            (1 - share) * numpy.log(lower.at(sizes)) + share * numpy.log(upper.at(sizes)),
            logs,
        )
    return logs


def log_factors(
    corrections: Sequence[tuple[float, float]], sizes: Floats, smooth: bool = False
) -> Floats:
    """Logarithms of the factors at these sizes; outside of their sizes the outer one goes on."""
    if not corrections:
        return numpy.zeros(len(sizes))
    knots, logs = zip(*corrections, strict=True)
    values: Floats = _between(numpy.log(knots), smooth, sizes) @ numpy.array(logs)
    return values


def _between(knots: Floats, smooth: bool, sizes: Floats) -> Floats:
    """Of each size (rows) how much the factor at each place (columns) counts: straight lines, or a
    natural cubic spline.
    """
    x, columns = numpy.clip(numpy.log(sizes), knots[0], knots[-1]), numpy.eye(len(knots))
    if smooth:
        weights: Floats = interpolate.CubicSpline(knots, columns, bc_type="natural")(x)
        return weights
    return numpy.column_stack([numpy.interp(x, knots, unit_vector) for unit_vector in columns])


@dataclass(frozen=True)
class Form:
    """What is chosen by leaving out: a law for each of the ranges or one; corrections as a share of
    the number of sizes, and whether a spline is between them.
    """

    ranges: tuple[tuple[int, int], ...]
    share: float
    smooth: bool = False


def fit_piece(sizes: Floats, times: Floats) -> Piece:
    return Piece(float(sizes.min()), float(sizes.max()), *fit_line(sizes, times))


def fit_corrections(
    sizes: Floats, residuals: Floats, share: float, smooth: bool = False
) -> tuple[tuple[float, float], ...]:
    """Factors for what a law leaves of the logarithms, at sizes of which each has as many."""
    distinct = numpy.unique(sizes)
    count = math.ceil(len(distinct) * share)
    if count < 2:
        return ()
    knots = numpy.quantile(numpy.log(distinct), numpy.linspace(0, 1, count))
    columns = _between(knots, smooth, sizes)
    # A trace of ridge: where two knots share one size.
    figures = numpy.linalg.solve(
        columns.T @ columns + 1e-3 * numpy.eye(count), columns.T @ residuals
    )
    return tuple(zip(numpy.exp(knots).tolist(), figures.tolist(), strict=True))


def fit_form(sizes: Floats, times: Floats, form: Form) -> SizeLaw:
    """The law of this form. A range keeps its sizes where one of them was left out."""
    pieces = []
    for low, high in form.ranges:
        inside = (sizes >= low) & (sizes <= high)
        if inside.sum() > 1:
            pieces.append(fit_piece(sizes[inside], times[inside]))
    pieces = pieces or [fit_piece(sizes, times)]
    # The last range may have lost its last size: the law reaches as far as the data do.
    pieces[-1] = replace(pieces[-1], high_bytes=float(sizes[-1]))
    residuals = numpy.log(times) - piecewise_logs(pieces, sizes)
    slope = fit_piece(sizes[-TAIL:], times[-TAIL:]).ns_per_byte
    corrections = fit_corrections(sizes, residuals, form.share, form.smooth)
    return SizeLaw(tuple(pieces), corrections, slope, form.smooth)


@dataclass(frozen=True)
class Fit:
    """A law, the laws without each size in turn, and by how much they missed it (logarithms)."""

    law: SizeLaw
    form: Form
    without: tuple[SizeLaw, ...]
    missed: Floats


def fit_size_law(sizes: Floats, times: Floats, errors: Sequence[float] = ()) -> Fit:
    """The law whose form predicts left-out sizes best; sizes ascend, at least FEWEST_SIZES."""
    whole = ((int(sizes[0]), int(sizes[-1])),)
    laws = find_ranges(sizes.tolist(), times.tolist(), list(errors) or 0.0).ranges
    several = tuple((int(sizes[r.first]), int(sizes[r.last])) for r in laws)
    ranges = [whole] if len(several) < 2 else [whole, several]
    # The forms to choose from, the ones with fewer figures first.
    forms = [Form(form_ranges, 0.0) for form_ranges in ranges]
    if len(sizes) > FEWEST_SIZES:
        forms += [Form(whole, _SHARE), Form(whole, _SHARE, True), Form(ranges[-1], _SHARE)]

    def score(fit: Fit) -> float:
        """Mean square error of the sizes between the ends: an end that is left out is extrapolated.
        The mean error forgives a form that misses a jump altogether.
        """
        inner = fit.missed[1:-1] if len(fit.missed) > FEWEST_SIZES else fit.missed
        return float((inner**2).mean())

    return min((_left_out(sizes, times, form) for form in dict.fromkeys(forms)), key=score)


def _left_out(sizes: Floats, times: Floats, form: Form) -> Fit:
    logs, without, missed = numpy.log(times), [], []
    for i in range(len(sizes)):
        kept = numpy.arange(len(sizes)) != i
        law = fit_form(sizes[kept], times[kept], form)
        without.append(law)
        missed.append(float(logs[i] - law.logs(sizes[i : i + 1])[0]))
    return Fit(fit_form(sizes, times, form), form, tuple(without), numpy.array(missed))

"""Fit a law of time over size, and estimate its error by leaving sizes out.

time = (latency + size / bandwidth) x factor(size), either one such law for all sizes or one for
each of the ranges that ``ranges.py`` finds. Where the data bend otherwise, a correction is added:
factors at half as many sizes, with straight lines in the logarithms or a spline between them. The
form of the law is chosen by leaving out each size in turn.

The interval is the jackknife+ (R. F. Barber, E. J. Candes, A. Ramdas and R. J. Tibshirani, Annals
of Statistics 49 (2021) 486), in logarithms: the predictions of the laws without one size, each with
its own left-out error. Beyond the data the interval widens with the distance, by the errors of laws
that were fitted without the sizes at one end. Pure numbers: sizes in bytes, times in nanoseconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy
from scipy import interpolate

from torchcoll.parts.curves.ranges import find_ranges
from torchcoll.parts.curves.slow_sizes import Floats, fit_line

FEWEST_SIZES = 3
TAIL = 3  # the number of largest sizes that the slope beyond the data is fitted to
_SHARE = 0.5  # the number of corrections over the number of sizes


@dataclass(frozen=True)
class Piece:
    """latency_ns + ns_per_byte x size, from low_bytes to high_bytes."""

    low_bytes: float
    high_bytes: float
    latency_ns: float
    ns_per_byte: float

    def at(self, sizes: Floats) -> Floats:
        """Times in ns, at least 1/1000 of the time at low_bytes: a steep line goes below 0."""
        least = 1e-3 * abs(self.latency_ns + self.ns_per_byte * self.low_bytes)
        return numpy.maximum(self.latency_ns + self.ns_per_byte * sizes, max(least, 1e-3))


@dataclass(frozen=True)
class SizeLaw:
    """A law of time over size.

    pieces: in order of size.
    corrections: (size in bytes, logarithm of the factor there).
    beyond_ns_per_byte: the slope above the largest size, fitted to the last TAIL sizes, because a
        law that was fitted to many sizes is often off at its end.
    smooth: whether a spline connects the corrections, instead of straight lines.
    """

    pieces: tuple[Piece, ...]
    corrections: tuple[tuple[float, float], ...]
    beyond_ns_per_byte: float
    smooth: bool = False

    def logs(self, sizes: Floats) -> Floats:
        """Logarithms of the times in ns. Below the data the first piece and factor are extended."""
        last = self.pieces[-1].high_bytes
        within = numpy.minimum(sizes, last)
        logs = piecewise_logs(self.pieces, within) + log_factors(
            self.corrections, within, self.smooth
        )
        return numpy.log(numpy.exp(logs) + self.beyond_ns_per_byte * (sizes - within))


def piecewise_logs(pieces: Sequence[Piece], sizes: Floats) -> Floats:
    """Logarithms of the times of the pieces; between two pieces they are interpolated."""
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
    """Logarithms of the factors at these sizes; beyond the corrections the outermost one holds."""
    if not corrections:
        return numpy.zeros(len(sizes))
    knots, logs = zip(*corrections, strict=True)
    values: Floats = _between(numpy.log(knots), smooth, sizes) @ numpy.array(logs)
    return values


def _between(knots: Floats, smooth: bool, sizes: Floats) -> Floats:
    """The weight of the factor at each knot (columns) for each size (rows), by straight lines or a
    natural cubic spline. knots: logarithms of sizes.
    """
    x, columns = numpy.clip(numpy.log(sizes), knots[0], knots[-1]), numpy.eye(len(knots))
    if smooth:
        weights: Floats = interpolate.CubicSpline(knots, columns, bc_type="natural")(x)
        return weights
    return numpy.column_stack([numpy.interp(x, knots, unit_vector) for unit_vector in columns])


@dataclass(frozen=True)
class Form:
    """The form of a law, which is chosen by leaving sizes out.

    ranges: (first size, last size) of each piece.
    share: the number of corrections over the number of sizes; 0 for none.
    smooth: whether a spline connects the corrections.
    """

    ranges: tuple[tuple[int, int], ...]
    share: float
    smooth: bool = False


def fit_piece(sizes: Floats, times: Floats) -> Piece:
    return Piece(float(sizes.min()), float(sizes.max()), *fit_line(sizes, times))


def fit_corrections(
    sizes: Floats, residuals: Floats, share: float, smooth: bool = False
) -> tuple[tuple[float, float], ...]:
    """Fit factors to the residuals (logarithms) of a law, at quantiles of the sizes."""
    distinct = numpy.unique(sizes)
    count = math.ceil(len(distinct) * share)
    if count < 2:
        return ()
    knots = numpy.quantile(numpy.log(distinct), numpy.linspace(0, 1, count))
    columns = _between(knots, smooth, sizes)
    # A little ridge regularization, for two knots that share one size.
    figures = numpy.linalg.solve(
        columns.T @ columns + 1e-3 * numpy.eye(count), columns.T @ residuals
    )
    return tuple(zip(numpy.exp(knots).tolist(), figures.tolist(), strict=True))


def fit_form(sizes: Floats, times: Floats, form: Form) -> SizeLaw:
    """Fit a law of this form. A range keeps its limits if one of its sizes was left out."""
    pieces = []
    for low, high in form.ranges:
        inside = (sizes >= low) & (sizes <= high)
        if inside.sum() > 1:
            pieces.append(fit_piece(sizes[inside], times[inside]))
    pieces = pieces or [fit_piece(sizes, times)]
    # The largest size may have been left out: the last piece ends where the data end.
    pieces[-1] = replace(pieces[-1], high_bytes=float(sizes[-1]))
    residuals = numpy.log(times) - piecewise_logs(pieces, sizes)
    slope = fit_piece(sizes[-TAIL:], times[-TAIL:]).ns_per_byte
    corrections = fit_corrections(sizes, residuals, form.share, form.smooth)
    return SizeLaw(tuple(pieces), corrections, slope, form.smooth)


@dataclass(frozen=True)
class Fit:
    """A law, the laws fitted without each size in turn, and their errors there (logarithms)."""

    law: SizeLaw
    form: Form
    without: tuple[SizeLaw, ...]
    missed: Floats


def fit_size_law(sizes: Floats, times: Floats, errors: Sequence[float] = ()) -> Fit:
    """Fit the law whose form predicts left-out sizes best.

    sizes: ascending, at least FEWEST_SIZES. errors: relative standard errors of the times.
    """
    whole = ((int(sizes[0]), int(sizes[-1])),)
    laws = find_ranges(sizes.tolist(), times.tolist(), list(errors) or 0.0).ranges
    several = tuple((int(sizes[r.first]), int(sizes[r.last])) for r in laws)
    ranges = [whole] if len(several) < 2 else [whole, several]
    # The forms to choose from, those with fewer parameters first.
    forms = [Form(form_ranges, 0.0) for form_ranges in ranges]
    if len(sizes) > FEWEST_SIZES:
        forms += [Form(whole, _SHARE), Form(whole, _SHARE, True), Form(ranges[-1], _SHARE)]

    def score(fit: Fit) -> float:
        """Mean square error of the sizes between the ends; a left-out end would be extrapolated.
        Squares, because the mean error would accept a form that misses a jump.
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

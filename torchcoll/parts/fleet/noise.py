"""The noise of series of nights, and the evidence that a series has changed its level.

A series is the log time of a node, a group or the fleet over some cases, night by night. Its noise
is normal with one scale per series; consecutive nights may be correlated. The scale of a series
with few nights is drawn towards the scale of all series, as far as their variances differ no more
than by chance. Evidence is the likelihood ratio of a step: the sum of the standardised deviations
of the last nights over its standard deviation. A night counts at most as a third of the evidence
that is needed, so that one bad night, however bad, is no change of level.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from torchcoll.stats.distributions import MAD_TO_SIGMA, t_quantile

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WINDOW = 14  # nights: the longest window of a step that is looked for
_CLIPPED = 3.0  # scales: a larger deviation of the baseline counts as this
_WIDEST = 0.8  # correlation of consecutive nights: more cannot be told from a change of level
_SMALLEST = 1e-4  # log time: no scale is smaller
_LEAST_VARIANCE = 0.2  # of the fleet's: the variance of a series is at least this


def quiet_median(
    values: npt.NDArray[np.floating[Any]], axis: int | tuple[int, ...] | None = 0
) -> Any:
    """np.nanmedian without its warning, and faster; NaN where nothing is known."""
    if isinstance(axis, tuple) or axis is None:
        axes = range(values.ndim) if axis is None else axis
        kept = [size for n, size in enumerate(values.shape) if n not in axes]
        values = np.moveaxis(values, tuple(axes), tuple(range(len(axes)))).reshape(-1, *kept)
        axis = 0
    ordered = np.moveaxis(np.sort(values, axis=axis), axis, 0)  # NaN comes last
    count = np.isfinite(ordered).sum(axis=0)
    if not len(ordered):
        return np.full(count.shape, np.nan)[()]
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(ordered) - 1)
    pair = [np.take_along_axis(ordered, index[None], axis=0)[0] for index in (low, high)]
    return (pair[0] + pair[1]) / 2


def quiet_mean(values: npt.NDArray[np.floating[Any]], axis: int | None = 0) -> Any:
    """np.nanmean without its warning; NaN where nothing is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(values, axis=axis)


def clipped_mean(values: npt.NDArray[np.floating[Any]]) -> Any:
    """The mean over the first axis of values clipped at 2.5 robust scales from their median."""
    middle = quiet_median(values)
    limit = 2.5 * MAD_TO_SIGMA * quiet_median(np.abs(values - middle)) + 1e-9
    return middle + quiet_mean(np.clip(values - middle, -limit, limit))


def variance_factors(correlation: float, most: int) -> Floats:
    """By how much correlation increases the variance of a mean of 0, 1, ... ``most`` nights."""
    factors = np.ones(most + 1)
    for nights in range(2, most + 1):
        lags = np.arange(1, nights)
        factors[nights] = 1 + 2 * float(((1 - lags / nights) * correlation**lags).sum())
    return factors


@dataclass(frozen=True)
class NoiseBaseline:
    """What the baseline nights of series say of their noise.

    squares, fourths [N, S]: sums of powers of the clipped deviations. middles [N, S]: median
    absolute deviation. lagged [N]: sum of the products of consecutive standardised nights. pairs
    [N]: how many products. nights [N]: how many nights; 0 where the baseline is not known yet.
    """

    squares: Floats
    fourths: Floats
    middles: Floats
    lagged: Floats
    pairs: Floats
    nights: Ints

    @classmethod
    def empty(cls, series: int, subsets: int) -> NoiseBaseline:
        shape = (series, subsets)
        return cls(
            np.zeros(shape),
            np.zeros(shape),
            np.full(shape, np.nan),
            np.zeros(series),
            np.zeros(series),
            np.zeros(series, dtype=np.int64),
        )

    def grown(self, series: int, subsets: int) -> NoiseBaseline:
        """With room for more series."""
        new = NoiseBaseline.empty(series, subsets)
        for name, values in vars(self).items():
            getattr(new, name)[: len(values)] = values
        return new

    def update(self, chosen: Ints, values: Floats) -> None:
        """Sets the series ``chosen`` [K] from their baseline nights [T, K, S] (NaN: no night)."""
        left = values - clipped_mean(values)
        count = np.isfinite(values[:, :, 0]).sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            self.middles[chosen] = (
                quiet_median(np.abs(left)) * np.sqrt(count / np.maximum(count - 1, 1))[:, None]
            )
            pooled = MAD_TO_SIGMA * quiet_median(self.middles)
            clipped = np.clip(left / np.maximum(pooled, _SMALLEST), -_CLIPPED, _CLIPPED)
            filled = np.nan_to_num(clipped)
            self.squares[chosen] = (filled**2).sum(axis=0) * np.maximum(pooled, _SMALLEST) ** 2
            self.fourths[chosen] = (filled**4).sum(axis=0) * np.maximum(pooled, _SMALLEST) ** 4
        products = clipped[1:, :, 0] * clipped[:-1, :, 0]
        self.lagged[chosen] = np.nansum(products, axis=0)
        self.pairs[chosen] = np.isfinite(products).sum(axis=0)
        self.nights[chosen] = count


@dataclass(frozen=True)
class SeriesNoise:
    """scale [N, S] and its degrees of freedom [N, S]; factors: of the variance of a mean of so many
    nights.
    """

    scale: Floats
    degrees: Floats
    factors: Floats

    @classmethod
    def of(cls, baseline: NoiseBaseline, correlation: float | None = None) -> SeriesNoise:
        """correlation: of consecutive nights; None estimates it from all series together."""
        has_usual = baseline.nights >= 2
        freedom = np.maximum(baseline.nights - 1, 1)[:, None].astype(np.float64)
        variance = np.where(has_usual[:, None], baseline.squares / freedom, np.nan)
        count = int(has_usual.sum())
        total = float((freedom[:, 0] * has_usual).sum())
        pooled = np.nansum(baseline.squares, axis=0) / max(total, 1.0)
        pooled = np.maximum(pooled, _SMALLEST**2)
        kurtosis = np.nansum(baseline.fourths, axis=0) / max(total, 1.0) / pooled**2
        chance = np.maximum(kurtosis - 1, 1.2) / freedom  # of a variance over the pooled one
        relative = variance / pooled
        with np.errstate(invalid="ignore"):
            differs = (relative - 1) ** 2 - chance
            excess = np.maximum(0.0, np.nansum(differs, axis=0) / max(count - 1, 1))
        if count < 3:
            excess = np.full(variance.shape[1], 10.0)  # nothing to draw towards
        weight = excess / (excess + chance)
        with np.errstate(invalid="ignore"):
            drawn = 1 + weight * (np.nan_to_num(relative, nan=1.0) - 1)
        drawn = np.maximum(drawn, _LEAST_VARIANCE)
        uncertain = np.where(weight > 0, weight * chance, 0.0) + 2.0 / max(total, 1.0)
        if correlation is None:
            correlation = _correlation(baseline, count, total)
        return cls(
            np.sqrt(drawn * pooled),
            np.maximum(2 / uncertain, 1.0),
            variance_factors(correlation, 64),
        )

    def sum_variances(self, counts: Ints, reference_nights: npt.NDArray[Any]) -> Floats:
        """Variances of sums of standardised deviations of so many nights [T, N] from references
        that are means of so many nights [N].
        """
        references = np.maximum(reference_nights, 1)
        of_reference = self.factors[np.minimum(references, len(self.factors) - 1)] / references
        return np.asarray(counts * self.factors[counts] + counts**2 * of_reference)

    def limits(self, error: float) -> Floats:
        """What the evidence exceeds with this probability if nothing changed [N, S]."""
        return np.asarray(special.stdtrit(self.degrees, 1 - error), dtype=np.float64)


def _correlation(baseline: NoiseBaseline, count: int, total: float) -> float:
    pairs = float(baseline.pairs.sum())
    if pairs < 20:
        return 0.3
    variance = float(baseline.squares[:, 0].sum()) / max(total, 1.0)
    pooled = MAD_TO_SIGMA * float(quiet_median(baseline.middles[:, 0])) or 1.0
    products = float(baseline.lagged.sum()) / pairs * max(pooled, _SMALLEST) ** 2
    nights = total / max(count, 1) + 1
    # The mean of n nights, which is subtracted, lowers the estimate by (1 + 3 r) / n.
    shrunk = products / max(variance, _SMALLEST**2)
    corrected = (shrunk + 1 / nights) / max(1 - 3 / nights, 0.3)
    error = 1 / math.sqrt(pairs)
    return min(max(corrected - 0.5 * error, 0.0), _WIDEST)


@dataclass(frozen=True)
class StepEvidence:
    """up, down [N, S]: the largest and smallest evidence over all windows that end tonight."""

    up: Floats
    down: Floats


def evidence(
    values: Floats,
    noise: SeriesNoise,
    limits: Floats,
    reference_nights: npt.NDArray[Any],
    reach: npt.NDArray[Any],
) -> StepEvidence:
    """The evidence that series have left their reference level.

    values [T, N, S]: deviations from the reference, the last is tonight. reference_nights [N]: how
    many nights the reference is the mean of. reach [N]: how many nights back a window may begin.
    """
    sums, counts = windows(values, noise, limits, reference_nights, reach)
    with np.errstate(invalid="ignore", divide="ignore"):
        scores = sums / np.sqrt(noise.sum_variances(counts, reference_nights))[:, :, None]
    scores = np.where((counts >= 2)[:, :, None], scores, 0.0)
    return StepEvidence(scores.max(axis=0), scores.min(axis=0))


def windows(
    values: Floats,
    noise: SeriesNoise,
    limits: Floats,
    reference_nights: npt.NDArray[Any],
    reach: npt.NDArray[Any],
) -> tuple[Floats, Ints]:
    """Sums of clipped standardised deviations over the last 1, 2, ... nights [T, N, S], and the
    number of nights with values [T, N].
    """
    # Three nights at the clip exceed the limit.
    of_three = noise.sum_variances(np.full_like(reference_nights, 3), reference_nights)
    clip = 1.02 * limits * np.sqrt(of_three)[:, None] / 3
    latest = values[::-1]
    allowed = np.arange(len(latest))[:, None] < reach[None, :]
    present = np.isfinite(latest[:, :, 0]) & allowed
    with np.errstate(invalid="ignore"):
        z = np.clip(latest / noise.scale, -clip, clip)
    z = np.where(present[:, :, None], np.nan_to_num(z), 0.0)
    return np.cumsum(z, axis=0), np.cumsum(present, axis=0)


def night_of_step(values: Floats, size: float) -> int:
    """The index of the most likely first night of a step of this size that lasts to the end of
    ``values`` [T], NaN where there is no run; -1 if there is none.
    """
    sign = 1.0 if size >= 0 else -1.0
    half = abs(size) / 2
    gains = np.clip(np.nan_to_num(sign * values - half, nan=0.0), -half, half)
    likelihood = np.cumsum(gains[::-1])[::-1]
    likelihood[~np.isfinite(values)] = -np.inf
    return int(np.argmax(likelihood)) if np.isfinite(values).any() else -1


def t_width(share: float, degrees: float) -> float:
    """The half width of an interval of this share, in standard errors."""
    return t_quantile(0.5 + share / 2, degrees)

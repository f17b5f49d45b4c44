"""When a series left its baseline, and when it came back.

The mean of the last 1, 2, 3, 5 and 7 nights, and the median of the last 3, 5 and 7, are compared
with the baseline: means find a small step soonest, medians are not misled by single bad nights. The
noise is estimated in the baseline, for each window by itself, so that nights that resemble their
neighbours (correlation) need no model. The tails are as heavy as the pooled baselines do not
exclude (`effects.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchcoll.parts.fleet.effects import (
    HEAVIEST,
    Floats,
    degrees_of_freedom,
    mad_scales,
    nan_mean,
    nan_median,
)
from torchcoll.stats.distributions import mad_scale, t_quantile

# (nights, whether the median of them is taken in place of the mean)
WINDOWS = (
    (1, False),
    (2, False),
    (3, False),
    (5, False),
    (7, False),
    (3, True),
    (5, True),
    (7, True),
)
# What each window may err more than the first. Where single nights have heavy tails, a median of a
# week has light ones: its critical value falls most, for the fewest more alarms.
_ERROR_FACTORS = (1, 1, 1, 1, 1, 1, 3, 8)
_LONGEST, _MEDIAN_OF_3 = 4, 5  # indexes of the mean over a week, and of the shortest median
_FEWEST_POOLED = 8  # series: fewer cannot show how much their spreads differ
_MOST_SHARE = 0.6  # of the baseline: longer windows vary too little within it
_FEWEST_FOR_TAILS = 8  # nights: fewer look lighter-tailed than they are about their own mean
_HEAVY_TAILS = 1.6  # variance of the MAD of Student's t with 4 degrees of freedom, over normal


@dataclass(frozen=True)
class SeriesNoise:
    """What is usual of series [T, S] in their baselines.

    centre, scale [S]: mean, and robust standard deviation of a night, drawn towards that of all
    series. ratio [windows]: standard deviation of the mean of a window, out of the baseline, in
    scales, for a baseline of median length. extra [S]: what a shorter baseline adds to its square.
    degrees [windows]: of Student's t, for its tails. nights [S]: length of the baseline.
    """

    centre: Floats
    scale: Floats
    ratio: Floats
    extra: Floats
    degrees: Floats
    nights: npt.NDArray[np.int64]


def window_values(
    series: Floats, nights: int, median: bool
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The mean or median over the last ``nights`` nights [T, S], and how many of them have a value.

    A median needs more than half of the nights.
    """
    present = np.isfinite(series)
    counts = np.cumsum(present, axis=0)
    counts[nights:] -= counts[:-nights].copy()
    if not median:
        sums = np.cumsum(np.where(present, series, 0.0), axis=0)
        sums[nights:] -= sums[:-nights].copy()
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(counts > 0, sums / counts, np.nan), counts
    values = np.full(series.shape, np.nan)
    if len(series) >= nights:
        windows = np.lib.stride_tricks.sliding_window_view(series, nights, axis=0)
        whole = counts[nights - 1 :] == nights
        gaps = ~whole & (counts[nights - 1 :] * 2 > nights)
        middle = np.full(whole.shape, np.nan)
        middle[whole] = np.median(windows[whole], axis=1)
        if gaps.any():
            middle[gaps] = nan_median(windows[gaps], axis=1)
        values[nights - 1 :] = middle
    return values, counts


def estimate_noise(
    series: Floats, baseline: npt.NDArray[np.bool_], alike: bool = True
) -> SeriesNoise:
    """series [T, S]; baseline [T, S]: which nights are usual. alike: the series are of one kind, so
    that each also tells how much the others scatter.
    """
    usual = np.where(baseline, series, np.nan)
    nights = np.isfinite(usual).sum(axis=0)
    with np.errstate(invalid="ignore"):
        middle = nan_median(usual, axis=0)
        spread = mad_scales(usual - middle)
    # The MAD of n values is low on average: by 1 + 0.8/n about (Croux and Rousseeuw 1992).
    spread = spread * nights / np.maximum(nights - 0.8, 1)
    usable = np.isfinite(spread) & (nights >= 2)
    pooled = float(np.median(spread[usable])) if usable.any() else np.nan
    # Empirical Bayes: the spreads of the series differ by chance (a MAD of n normal values has a
    # relative variance of 1.36 / n); only what they differ beyond that is their own.
    weight = 1.0
    if alike and usable.sum() >= _FEWEST_POOLED:
        logs = np.log(np.maximum(spread[usable], 1e-12))
        observed = mad_scale(logs - np.median(logs)) ** 2
        by_chance = 1.36 / float(np.median(nights[usable]))
        excess = max(0.0, observed - _HEAVY_TAILS * by_chance)
        weight = excess / (excess + by_chance)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.exp(weight * np.log(spread) + (1 - weight) * np.log(pooled))
    scale = np.maximum(np.where(usable & np.isfinite(scale), scale, pooled), 1e-7)
    limit = 3 * scale
    with np.errstate(invalid="ignore"):
        centre = middle + nan_mean(np.clip(usual - middle, -limit, limit), axis=0)
    centre = np.where(np.isfinite(centre), centre, 0.0)
    ratios, degrees = [], []
    freedom = float(np.maximum(nights - 1, 0).sum())
    length = float(np.median(nights[usable])) if usable.any() else 1.0
    pooling = alike and usable.sum() >= _FEWEST_POOLED
    longest = max(
        (w for w, median in WINDOWS if not median and w <= _MOST_SHARE * length), default=1
    )
    for window, median in WINDOWS:
        means, counts = window_values(usual - centre, window, median)
        values = (means / scale)[baseline & (counts == window)]
        if window > longest or len(values) < 3:
            ratios.append(np.nan)
            degrees.append(np.nan)
            continue
        ratios.append(mad_scale(values))
        if pooling:
            degrees.append(max(1.0, min(degrees_of_freedom(values), freedom / window)))
        else:  # the spread of each is known from its own nights alone
            degrees.append(max(1.0, float(np.median(nights[usable])) - 1))
            ratios[-1] = max(ratios[-1], 1 / np.sqrt(window))
    ratio, freedoms = np.array(ratios), np.array(degrees)
    # The centre is a mean of L nights, and so is less certain than a window of w of them by w / L.
    # Within the baseline a window shares nights with the centre, which lowers its variance by that
    # of the centre; out of the baseline the variance of the centre is added instead.
    at = [w for w, _ in WINDOWS].index(longest)
    of_centre = float(np.nan_to_num(ratio[at], nan=1.0)) ** 2 * longest / max(length - longest, 1.0)
    # A longer window cannot be estimated within the baseline: as the longest that can.
    ratio = np.where(np.isnan(ratio), np.nan_to_num(ratio[at], nan=1.0), ratio)
    freedoms = np.where(np.isnan(freedoms), np.nan_to_num(freedoms[at], nan=1.0), freedoms)
    ratio = np.sqrt(ratio**2 + 2 * of_centre)
    if length < _FEWEST_FOR_TAILS:
        freedoms = np.minimum(freedoms, HEAVIEST)
    extra = of_centre * np.maximum(length / np.maximum(nights, 1) - 1, 0)
    return SeriesNoise(centre, scale, ratio, extra, freedoms, nights)


@dataclass(frozen=True)
class Scores:
    """value [T, S]: the largest window mean over its critical value, signed; an alarm beyond 1.
    effect [T, S]: the mean of that window. window [T, S]: its length in nights.
    """

    value: Floats
    effect: Floats
    window: npt.NDArray[np.int64]


def scores_of(series: Floats, noise: SeriesNoise, error: float) -> Scores:
    """error: probability of an alarm per night and window if nothing changed (two-sided); more for
    medians over 5 and 7 nights.
    """
    shape = series.shape
    best = np.zeros(shape)
    effect = np.zeros(shape)
    chosen = np.zeros(shape, dtype=np.int64)
    lengths = [window for window, median in WINDOWS if not median]
    for index, (window, median) in enumerate(WINDOWS):
        means, counts = window_values(series - noise.centre, window, median)
        # A mean with gaps has the noise of the shorter window that its nights would make, a median
        # that of fewer nights.
        shorter = np.searchsorted(lengths, np.maximum(counts, 1), side="right") - 1
        gaps = np.sqrt(window / np.maximum(counts, 1))
        ratio = noise.ratio[index] * gaps if median else noise.ratio[shorter]
        usual = noise.scale * np.sqrt(ratio**2 + noise.extra)
        probability = 1 - error * _ERROR_FACTORS[index] / 2
        critical = t_quantile(probability, noise.degrees[index])
        with np.errstate(invalid="ignore"):
            value = means / (usual * critical)
        better = (np.abs(np.nan_to_num(value)) > np.abs(best)) & np.isfinite(series)
        best = np.where(better, value, best)
        effect = np.where(better, means, effect)
        chosen = np.where(better, window, chosen)
    return Scores(best, effect, chosen)


@dataclass(frozen=True)
class Opening:
    """An incident of one series. series: its index. began: the most likely first night. detected:
    the night that raised the alarm. ended: the first good night, None if it is still open. effect:
    median over its nights.
    """

    series: int
    began: int
    detected: int
    ended: int | None
    effect: float


def open_incidents(
    series: Floats, scores: Scores, noise: SeriesNoise, judged: npt.NDArray[np.bool_], least: float
) -> list[Opening]:
    """The incidents of all series, in the order of series and time. One is over when the median of
    three nights is back.

    judged [T, S]: nights that may raise an alarm (not those of the baseline). least: smallest
    effect, in log time, that is one.
    """
    alarm = (scores.value > 1) & (scores.effect > least) & judged
    first_nights = np.arange(len(series))[:, None] - scores.window + 1
    recent, _ = window_values(series - noise.centre, 3, median=True)
    openings = []
    for number in np.flatnonzero(alarm.any(axis=0)).tolist():
        over = 0  # the night in which the last incident ended
        quiet = max(least / 2, noise.scale[number] * noise.ratio[_MEDIAN_OF_3])
        while True:
            # A window that reaches into the last incident says nothing new.
            alarms = np.flatnonzero(
                alarm[over:, number] & (first_nights[over:, number] >= over * (over > 0))
            )
            if not len(alarms):
                break
            detected = over + int(alarms[0])
            began = max(over, change_night(series[:, number] - noise.centre[number], detected))
            calm = np.flatnonzero(recent[detected + 1 :, number] < quiet)
            ended = max(detected + 1, detected + int(calm[0])) if len(calm) else None
            values = series[began:ended, number] - noise.centre[number]
            openings.append(Opening(number, began, detected, ended, float(nan_median(values))))
            if ended is None:
                break
            over = ended
    return openings


def change_night(values: Floats, detected: int, most: int = 60) -> int:
    """The most likely first night of a step that lasts until ``detected``: the start whose mean,
    times the root of its length, is largest (the likelihood of a step of unknown size from 0).
    """
    first = max(0, detected - most)
    tail = values[first : detected + 1][::-1]
    present = np.isfinite(tail)
    sums = np.cumsum(np.where(present, tail, 0.0))
    counts = np.maximum(np.cumsum(present), 1)
    likelihood = np.where(present, sums / np.sqrt(counts), -np.inf)
    return detected - int(np.argmax(likelihood))

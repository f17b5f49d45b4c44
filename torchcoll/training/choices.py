"""Which of several choices is best, by what a model says of each on the curves of some launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy import stats

from torchcoll.core.summary import paired_ratio

THRESHOLD = 0.02  # as in a comparison: a change below it is nothing that anyone would act on
# Real steps of one model differ from what the model says, cap by cap, and no launch of the curve
# tells that: a choice is worse only where it is so by more than this. With it and the intervals
# below, `worse` met the truly best in less than 5 % of simulated cases, and what is truly 10 to
# 15 % slower in 95 % where the model is right within 2 %, in 78 % within 3 % and fewer beyond, or
# where launches differ by more than 3 % (tests/benchmarks/advice_simulation.py, with a seed that it
# was not chosen on; advice.py has the real steps).
MODEL_ERROR = 0.03
# The model of FSDP2 is further from real steps: a setting that it said takes 1.161 of the best took
# 1.010 (95 % 0.933 to 1.094). Others took up to 1.7 of what it said, which calls nothing worse
# (results/benchmarks/fsdp-2026-11-22.txt).
SHARD_MODEL_ERROR = 0.20
BEST, WITHIN_NOISE, CLOSE, WORSE = "best", "within noise", "within 2 %", "worse"
UNCLEAR = "unclear"
RESULTS = ("", BEST, WITHIN_NOISE, CLOSE, UNCLEAR, WORSE)  # of a choice that is judged
_MODEL_NOTE = (
    f"{UNCLEAR}: slower on these curves, but perhaps by no more than {{:.0f}} %, as far as real "
    "steps may be from the model"
)
MODEL_NOTE = _MODEL_NOTE.format(100 * MODEL_ERROR)
SHARD_MODEL_NOTE = _MODEL_NOTE.format(100 * SHARD_MODEL_ERROR)
FINE = (BEST, WITHIN_NOISE, CLOSE, UNCLEAR)  # not called worse
Interval = tuple[float, float | None, float | None]


class Against(NamedTuple):
    """ratio: to the best. low, high: 95 % over the launches, for all choices together (Bonferroni):
    one of many is else called worse by chance; of one launch least and most of its curves.
    """

    ratio: float
    low: float | None
    high: float | None
    result: str


def interval(ratios: Sequence[float], launches: int, choices: int = 1) -> Interval:
    """The ratio on the centre, or its mean over the launches, and its interval.

    ratios: one for each of ``MeasuredCurves.every``. choices: as many intervals hold together.
    """
    if launches > 1:  # the centre is their mean, and no launch of its own
        ratio, low, high = paired_ratio(ratios[1:])
        if low is None or high is None or choices < 2:
            return ratio, low, high
        t = stats.t(launches - 1)
        wider = t.ppf(1 - 0.025 / choices) / t.ppf(0.975)
        return ratio, ratio * (low / ratio) ** wider, ratio * (high / ratio) ** wider
    return (ratios[0], min(ratios), max(ratios)) if len(ratios) > 1 else (ratios[0], None, None)


def best_of(ends: Sequence[Sequence[float]], launches: int) -> int:
    """The place of the least. ends: what each takes on each of ``MeasuredCurves.every``."""
    deciding = slice(1, None) if launches > 1 else slice(1)
    return min(range(len(ends)), key=lambda i: math.fsum(map(math.log, ends[i][deciding])))


def judge(
    own: Sequence[float],
    best: Sequence[float],
    launches: int,
    choices: int,
    *,
    spread: bool = True,
    model_error: float = MODEL_ERROR,
) -> Against:
    """A choice against the best. choices: how many are set against it. spread: False where the
    curves beside the centre tell nothing of it. model_error: how far the model may be off.
    """
    ratios = [one / base for one, base in zip(own, best, strict=True)]
    if not spread:
        return Against(ratios[0], None, None, result_of(ratios[0], None, model_error))
    ratio, low, high = interval(ratios, launches, choices)
    return Against(ratio, low, high, result_of(ratio, low, model_error))


def result_of(ratio: float, low: float | None, model_error: float = MODEL_ERROR) -> str:
    if low is not None and low <= 1:
        return WITHIN_NOISE
    if ratio <= 1 + THRESHOLD:
        return CLOSE
    return UNCLEAR if (low or ratio) <= 1 + model_error else WORSE

"""An advice and its table of choices, for DDP and FSDP2 alike: what each costs, and which is best.

``with_times`` fills a row from what a model says on each curve, ``judged`` sets the rows against
the best of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from scipy import stats

from torchcoll.core.display import Displayed
from torchcoll.core.units import format_size
from torchcoll.stats.ratios import paired_ratio
from torchcoll.training.measured_curves import CurveUsed

THRESHOLD = 0.02  # as in a comparison: a change below it is nothing that anyone would act on
# Real steps of one model differ from what the model says, cap by cap, and no run of the curve
# tells that: a choice is worse only where it is so by more than this. With it and the intervals
# below, `worse` met the truly best in less than 5 % of simulated cases, and what is truly 10 to
# 15 % slower in 95 % where the model is right within 2 %, in 78 % within 3 % and fewer beyond, or
# where runs differ by more than 3 % (tests/benchmarks/advice_simulation.py, with a seed that it
# was not chosen on; advice.py has the real steps).
MODEL_ERROR = 0.03
# The model of FSDP2 is further from real steps: a setting that it said takes 1.161 of the best took
# 1.010 (95 % 0.933 to 1.094). Others took up to 1.7 of what it said, which calls nothing worse
# (results/benchmarks/fsdp-2026-11-22.txt).
SHARD_MODEL_ERROR = 0.20
BEST, WITHIN_NOISE, CLOSE, WORSE = "best", "within noise", "within 2 %", "worse"
INCONCLUSIVE = "inconclusive"
BEYOND = "beyond the curve"
RESULTS = ("", BEST, WITHIN_NOISE, CLOSE, INCONCLUSIVE, WORSE)  # of a choice that is judged
_MODEL_NOTE = (
    f"{INCONCLUSIVE}: slower on these curves, but perhaps by no more than {{:.0f}} %, as far as "
    "real steps may be from the model"
)
MODEL_NOTE = _MODEL_NOTE.format(100 * MODEL_ERROR)
SHARD_MODEL_NOTE = _MODEL_NOTE.format(100 * SHARD_MODEL_ERROR)
NOT_WORSE = (BEST, WITHIN_NOISE, CLOSE, INCONCLUSIVE)  # not called worse
Interval = tuple[float, float | None, float | None]


@dataclass(frozen=True, kw_only=True)
class AdviceRow:
    """What one choice costs. Times in ns: of one backward pass (DDP), of one step without the
    optimiser (FSDP2).

    communication_ns: all of its calls one after the other. exposed_ns: what
    of it nothing hides; None where the time of a backward pass is not known. low, high: least and
    most over the runs of the curve; of one run on the 5th and 95th percentile of its calls.
    ratio: of the passes + exposed to that of the best; its interval is 95 % over the runs, of
    one run the range over its median and these two. result: best, ``within noise`` of it,
    ``within 2 %``, ``inconclusive`` (see MODEL_NOTE), worse; '' where nothing is judged; or BEYOND,
    where a call is larger than what was measured: there low, high and interval are None, since each
    curve would go on by its own last piece, to anywhere.
    """

    communication_ns: float | None = None
    communication_low_ns: float | None = None
    communication_high_ns: float | None = None
    exposed_ns: float | None = None
    exposed_low_ns: float | None = None
    exposed_high_ns: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    result: str = ""

    @property
    def hidden_ns(self) -> float | None:
        if self.communication_ns is None or self.exposed_ns is None:
            return None
        return self.communication_ns - self.exposed_ns


AnyRow = TypeVar("AnyRow", bound=AdviceRow)


@dataclass(repr=False, kw_only=True)
class Advice(Displayed, Generic[AnyRow]):
    """What ``advise`` found for DDP or FSDP2: a proposal of a model, which real steps can refute.

    curves: what the calls were read on; runs of them. hides: communication can run beside the
    computation. backward_ns: of a backward pass without communication; None unknown. best: the row
    with the least exposed time; None where it cannot be known.
    """

    curves: list[CurveUsed]
    runs: int
    hides: bool
    backward_ns: float | None
    rows: list[AnyRow]
    best: AnyRow | None = None
    notes: list[str] = field(default_factory=list)


def add_times(
    row: AnyRow,
    communication_ns: Sequence[float],
    exposed_ns: Sequence[float] | None,
    beyond: bool,
) -> AnyRow:
    """The row with its times, of which there is one for each of ``MeasuredCurves.every``. beyond:
    a call is larger than what was measured.
    """
    row = replace(row, communication_ns=communication_ns[0])
    if exposed_ns is not None:
        row = replace(row, exposed_ns=exposed_ns[0])
    if beyond:
        return replace(row, result=row.result or BEYOND)
    if len(communication_ns) > 1:
        low, high = min(communication_ns[1:]), max(communication_ns[1:])
        row = replace(row, communication_low_ns=low, communication_high_ns=high)
        if exposed_ns is not None:
            low, high = min(exposed_ns[1:]), max(exposed_ns[1:])
            row = replace(row, exposed_low_ns=low, exposed_high_ns=high)
    return row


def judge_rows(
    rows: Sequence[AnyRow],
    ends: Sequence[Sequence[float]],
    runs: int,
    model_error: float | None = None,
) -> list[AnyRow]:
    """The rows with ratios and results. ends: passes + exposed of each row on each curve, () where
    that is not known. Rows that have a result already are not chosen from. model_error: how far the
    model may be off, MODEL_ERROR if None.
    """
    able = [i for i, row in enumerate(rows) if not row.result]
    if not able:
        return list(rows)
    deciding = slice(1, None) if runs > 1 else slice(1)  # the runs, or the centre
    best = min(able, key=lambda i: math.fsum(map(math.log, ends[i][deciding])))
    results = []
    for i, row in enumerate(rows):
        if ends[i]:
            ratio, low, high, result = compare_to_best(
                ends[i],
                ends[best],
                runs,
                len(able) - 1,
                spread=row.exposed_low_ns is not None,
                model_error=MODEL_ERROR if model_error is None else model_error,
            )
            result = BEST if i == best else row.result or result
            row = replace(row, ratio=ratio, ratio_low=low, ratio_high=high, result=result)
        results.append(row)
    return results


def beyond_note(calls: str, largest_bytes: int) -> str:
    """calls: which of them lie beyond the curve. largest_bytes: of all of them."""
    return (
        f"{BEYOND}: {calls}; their times go on as its last piece does, without low, high and "
        "range, and they are not chosen from. Measure with -e "
        f"{format_size(1 << (largest_bytes - 1).bit_length())}"
    )


class RatioToBest(NamedTuple):
    """ratio: to the best. low, high: 95 % over the runs, for all choices together (Bonferroni):
    one of many is else called worse by chance; of one run least and most of its curves.
    """

    ratio: float
    low: float | None
    high: float | None
    result: str


def interval(ratios: Sequence[float], runs: int, choices: int = 1) -> Interval:
    """The ratio on the centre, or its mean over the runs, and its interval.

    ratios: one for each of ``MeasuredCurves.every``. choices: as many intervals hold together.
    """
    if runs > 1:  # the centre is their mean, and no run of its own
        paired = paired_ratio([1.0] * runs, ratios[1:])
        if paired.low is None or paired.high is None:  # no run differs from another
            return paired.ratio, paired.ratio, paired.ratio
        t = stats.t(runs - 1)
        wider = t.ppf(1 - 0.025 / choices) / t.ppf(0.975)
        low, high = paired.low / paired.ratio, paired.high / paired.ratio
        return paired.ratio, paired.ratio * low**wider, paired.ratio * high**wider
    return (ratios[0], min(ratios), max(ratios)) if len(ratios) > 1 else (ratios[0], None, None)


def compare_to_best(
    totals_ns: Sequence[float],
    best: Sequence[float],
    runs: int,
    choices: int,
    *,
    spread: bool = True,
    model_error: float = MODEL_ERROR,
) -> RatioToBest:
    """A choice against the best. choices: how many are set against it. spread: False where the
    curves beside the centre tell nothing of it. model_error: how far the model may be off.
    """
    ratios = [total_ns / base for total_ns, base in zip(totals_ns, best, strict=True)]
    if not spread:
        return RatioToBest(ratios[0], None, None, classify_ratio(ratios[0], None, model_error))
    ratio, low, high = interval(ratios, runs, choices)
    return RatioToBest(ratio, low, high, classify_ratio(ratio, low, model_error))


def classify_ratio(ratio: float, low: float | None, model_error: float = MODEL_ERROR) -> str:
    if low is not None and low <= 1:
        return WITHIN_NOISE
    if ratio <= 1 + THRESHOLD:
        return CLOSE
    return INCONCLUSIVE if (low or ratio) <= 1 + model_error else WORSE

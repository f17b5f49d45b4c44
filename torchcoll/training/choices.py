"""The table of choices that DDP and FSDP2 advice share: what each choice costs, and which is best.

``add_times`` fills a row with the model's times on each curve, ``judge_rows`` compares the rows
with the best of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from torchcoll.core.display import Displayed
from torchcoll.core.units import format_size
from torchcoll.stats.distributions import t_quantile
from torchcoll.stats.ratios import paired_ratio
from torchcoll.training.measured_curves import CurveUsed

THRESHOLD = 0.02  # as in a comparison: nobody would act on a smaller change
# Real steps differ from the model's prediction from cap to cap, and the runs of the curve do not
# show by how much. A choice is therefore called worse only if it is slower by more than this. With
# this value and the intervals below, `worse` hit the truly best choice in less than 5 % of
# simulated cases. Choices that are truly 10 to 15 % slower were called worse in 95 % of the cases
# if the model is right within 2 %, in 78 % within 3 %, and in fewer if its error is larger or if
# runs differ by more than 3 % (tests/benchmarks/advice_simulation.py, with a seed that was not used
# to choose this value; advice.py has the real steps).
MODEL_ERROR = 0.03
# The model of FSDP2 is further from real steps: a setting predicted to take 1.161 times the best
# took 1.010 times (95 % 0.933 to 1.094). Others took up to 1.7 times the predicted time; that error
# calls no choice worse
# (results/benchmarks/fsdp-2026-11-22.txt).
SHARD_MODEL_ERROR = 0.20
BEST, WITHIN_NOISE, CLOSE, WORSE = "best", "within noise", "within 2 %", "worse"
INCONCLUSIVE = "inconclusive"
BEYOND = "beyond the curve"
RESULTS = ("", BEST, WITHIN_NOISE, CLOSE, INCONCLUSIVE, WORSE)  # results of judged choices
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
    """The cost of one choice. Times in ns: of one backward pass (DDP), or of one step without the
    optimiser (FSDP2).

    - communication_ns: all calls one after the other.
    - exposed_ns: the part that nothing hides; None if the duration of a backward pass is unknown.
    - ..._low_ns, ..._high_ns: the least and the most over the runs of the curve; for one run, with
      the 5th and 95th percentile of its calls.
    - ratio: passes + exposed, relative to the best choice.
    - ratio_low, ratio_high: its 95 % interval over the runs; for one run, the range over its median
      and the two percentiles.
    - result: ``best``, ``within noise`` of it, ``within 2 %``, ``inconclusive`` (see MODEL_NOTE) or
      ``worse``; '' if nothing is judged; or BEYOND, if a call is larger than the measured sizes.
      Low, high and interval are then None, because each curve would be extended by its own last
      piece.
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
        """The communication that is hidden."""
        if self.communication_ns is None or self.exposed_ns is None:
            return None
        return max(0.0, self.communication_ns - self.exposed_ns)


AnyRow = TypeVar("AnyRow", bound=AdviceRow)


@dataclass(repr=False, kw_only=True)
class Advice(Displayed, Generic[AnyRow]):
    """The result of ``advise`` for DDP or FSDP2: a proposal of a model, which real steps may
    refute.

    - curves: the curves used for the calls.
    - runs: the number of runs of the curves.
    - hides: communication can run during the computation.
    - backward_ns: duration of a backward pass without communication; None if unknown.
    - best: the row with the least exposed time; None if unknown.
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
    """Returns the row with its times.

    - communication_ns, exposed_ns: one value for each of ``MeasuredCurves.all_curves``.
    - beyond: whether a call is larger than the measured sizes.
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
    """Returns the rows with ratios and results. Rows that already have a result cannot be the best.

    - ends: passes + exposed of each row on each curve; () if unknown.
    - runs: the number of runs of the curves.
    - model_error: the maximum relative error of the model; None for MODEL_ERROR.
    """
    able = [i for i, row in enumerate(rows) if not row.result]
    if not able:
        return list(rows)
    deciding = slice(1, None) if runs > 1 else slice(1)  # indices of the runs, or of the centre
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
    """Returns the note on extrapolated calls.

    - calls: which calls are beyond the curve.
    - largest_bytes: the largest of them.
    """
    return (
        f"{BEYOND}: {calls}; their times go on as its last piece does, without low, high and "
        "range, and they are not chosen from. Measure with -e "
        f"{format_size(1 << (largest_bytes - 1).bit_length())}"
    )


class RatioToBest(NamedTuple):
    """The comparison of a choice with the best.

    - ratio: passes + exposed, relative to the best.
    - low, high: 95 % over the runs, for all choices together (Bonferroni), because otherwise one of
      many would be called worse by chance. For one run, the least and the most of its curves.
    """

    ratio: float
    low: float | None
    high: float | None
    result: str


def interval(ratios: Sequence[float], runs: int, choices: int = 1) -> Interval:
    """Returns the ratio and its interval: (ratio, low, high).

    - ratios: one for each of ``MeasuredCurves.all_curves``.
    - runs: the number of runs; with several the ratio is their mean, otherwise that of the centre.
    - choices: the number of intervals that must hold together.
    """
    if runs > 1:  # the centre is the mean of the runs, not a run
        paired = paired_ratio([1.0] * runs, ratios[1:])
        if paired.low is None or paired.high is None:  # no run differs from another
            return paired.ratio, paired.ratio, paired.ratio
        wider = t_quantile(1 - 0.025 / choices, runs - 1) / t_quantile(0.975, runs - 1)
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
    """Compares a choice with the best.

    - totals_ns, best: passes + exposed on each curve.
    - choices: the number of choices that are compared with the best.
    - spread: False if only the centre is meaningful for this choice.
    - model_error: the maximum relative error of the model.
    """
    ratios = [total_ns / base for total_ns, base in zip(totals_ns, best, strict=True)]
    if not spread:
        return RatioToBest(ratios[0], None, None, classify_ratio(ratios[0], None, model_error))
    ratio, low, high = interval(ratios, runs, choices)
    return RatioToBest(ratio, low, high, classify_ratio(ratio, low, model_error))


def classify_ratio(ratio: float, low: float | None, model_error: float = MODEL_ERROR) -> str:
    """Returns the result for a ratio and the low end of its interval."""
    if low is not None and low <= 1:
        return WITHIN_NOISE
    if ratio <= 1 + THRESHOLD:
        return CLOSE
    return INCONCLUSIVE if (low or ratio) <= 1 + model_error else WORSE

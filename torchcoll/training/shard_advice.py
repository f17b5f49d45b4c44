"""What FSDP2 costs on measured curves, and which wrapping and resharding costs least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torchcoll.comparison.sides import Side
from torchcoll.core.display import OneLine
from torchcoll.core.errors import UsageError
from torchcoll.core.units import format_size
from torchcoll.training.choices import (
    BEST,
    FINE,
    SHARD_MODEL_ERROR,
    SHARD_MODEL_NOTE,
    THRESHOLD,
    UNCLEAR,
    best_of,
    judge,
)
from torchcoll.training.plan_curves import CurveUsed, PlanCurves
from torchcoll.training.sharded import BACKWARD, FORWARD, ShardPlan, Spent, spent

BEYOND = "beyond the curve"


@dataclass(frozen=True)
class ShardRow:
    """One choice. Times in ns, of one step without the optimiser; bytes of one rank.

    communication_ns: all calls one after the other; exposed_ns and hidden_ns of it: see
    training/sharded.py; None without the time of a backward pass. low, high: least and most over
    the launches of the curves, of one launch on the 5th and 95th percentile of its calls. ratio: of
    both passes + exposed to that of the best; its interval is 95 % over the launches, for all rows
    together. result: best, within noise of it, within 2 %, unclear, worse; '' where nothing
    is judged, or BEYOND where a call is larger than what was measured. sharded_bytes, peak_bytes:
    see ShardPlan.
    """

    choice: str
    calls: int
    largest_bytes: int
    sharded_bytes: int
    peak_bytes: int
    communication_ns: float
    communication_low_ns: float | None = None
    communication_high_ns: float | None = None
    exposed_ns: float | None = None
    exposed_low_ns: float | None = None
    exposed_high_ns: float | None = None
    hidden_ns: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    result: str = ""


@dataclass(repr=False)
class ShardAdvice(OneLine):
    """What ``advise`` found for plans of FSDP2: a proposal of a model, which real steps can refute.

    ranks: of the world. curves: what the calls were read on. forward_ns, backward_ns: of both
    passes without communication; None unknown. hides: communication can run beside them. best: the
    row with the least exposed time; None where it cannot be told. least: of the rows that are
    no more than 2 % slower that with the least memory at its peak.
    """

    ranks: int
    curves: list[CurveUsed]
    launches: int
    hides: bool
    forward_ns: float | None
    backward_ns: float | None
    rows: list[ShardRow]
    best: ShardRow | None = None
    least: ShardRow | None = None
    notes: list[str] = field(default_factory=list)


def advise_shards(
    plans: Sequence[ShardPlan], measured: Side, backward_ns: float | None
) -> ShardAdvice:
    """Which of the plans leaves least communication exposed on these curves.

    The forward pass is taken for half of a backward pass. Raises UsageError for plans of other
    numbers of ranks, and where no curve that could be meant is there.
    """
    ranks = plans[0].ranks
    if any(plan.ranks != ranks for plan in plans):
        got = " and ".join(map(str, dict.fromkeys(plan.ranks for plan in plans)))
        raise UsageError("plans", f"{got} ranks", "plans of as many ranks")
    curves = PlanCurves(measured)
    read = [[curves.read(plan, call) for call in plan.calls[0]] for plan in plans]
    launches, hides, count = curves.launches, curves.hides, curves.count
    passes = None if backward_ns is None else {FORWARD: backward_ns / 2, BACKWARD: backward_ns}
    rows, ends, beyond = [], [], 0
    for plan, times in zip(plans, read, strict=True):
        each = [
            spent(plan, [one.times_ns[k] for one in times], passes or {}, hides)
            for k in range(count)
        ]
        largest = max(one.size_bytes for one in times)
        out = [one.size_bytes for one in times if one.beyond]
        beyond = max([beyond, *out])
        row = _row(plan, largest, each, bool(out), passes is not None or not hides)
        rows.append(row)
        ends.append([(sum(passes.values()) if passes else 0) + one.exposed_ns for one in each])
    advice = ShardAdvice(
        ranks, curves.used, launches, hides,
        None if backward_ns is None else backward_ns / 2, backward_ns, rows,
    )  # fmt: skip
    if passes:
        _settle(advice, ends)
    problems = [f"{run.path}: {text}" for run in measured.runs for text in run.problems]
    own = dict.fromkeys(note for plan in plans for note in plan.notes)
    advice.notes = [*problems, *own, *curves.notes()]
    if any(row.result == UNCLEAR for row in advice.rows):
        advice.notes.append(SHARD_MODEL_NOTE)
    if beyond:
        advice.notes.append(
            f"{BEYOND}: calls above the largest size measured; their times go on as its last piece "
            "does, without low, high and range, and they are not chosen from. Measure with -e "
            f"{format_size(1 << (beyond - 1).bit_length())}"
        )
    return advice


def _row(
    plan: ShardPlan, largest: int, each: Sequence[Spent], beyond: bool, known: bool
) -> ShardRow:
    first, others = each[0], each[1:]
    row = ShardRow(
        plan.choice, len(plan.calls[0]), largest, plan.sharded_bytes, plan.peak_bytes,
        first.communication_ns, result=BEYOND if beyond else "",
    )  # fmt: skip
    if known:
        row = replace(row, exposed_ns=first.exposed_ns, hidden_ns=first.hidden_ns)
    if not others or beyond:
        return row
    together = [one.communication_ns for one in others]
    row = replace(row, communication_low_ns=min(together), communication_high_ns=max(together))
    if known:
        left = [one.exposed_ns for one in others]
        row = replace(row, exposed_low_ns=min(left), exposed_high_ns=max(left))
    return row


def _settle(advice: ShardAdvice, ends: Sequence[Sequence[float]]) -> None:
    """The results of the rows, the best, and of those no worse the one with the least memory."""
    able = [i for i, row in enumerate(advice.rows) if not row.result]
    if not able:
        return
    best = able[best_of([ends[i] for i in able], advice.launches)]
    for i, row in enumerate(advice.rows):
        spread = row.exposed_low_ns is not None
        found = judge(
            *(ends[i], ends[best], advice.launches, len(able) - 1),
            spread=spread,
            model_error=SHARD_MODEL_ERROR,
        )
        ratio, low, high, result = found
        result = BEST if i == best else row.result or result
        advice.rows[i] = replace(row, ratio=ratio, ratio_low=low, ratio_high=high, result=result)
    advice.best = advice.rows[best]
    # Noise that hides a difference is no reason to choose what is slower.
    fine = [row for row in advice.rows if row.result in FINE and (row.ratio or 0) <= 1 + THRESHOLD]
    advice.least = min(fine, key=lambda row: row.peak_bytes)

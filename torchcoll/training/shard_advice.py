"""The cost of FSDP2, and the cheapest wrapping and resharding: on measured curves, or on a machine
whose calls can be predicted, where the times are those of ``torchcoll plan``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchcoll.core.errors import UsageError
from torchcoll.core.traffic_spec import point_of
from torchcoll.curves.predictor import Predictor
from torchcoll.stats.sides import Side
from torchcoll.training.call_time import Duration
from torchcoll.training.choices import (
    BEST,
    INCONCLUSIVE,
    NOT_WORSE,
    SHARD_MODEL_ERROR,
    SHARD_MODEL_NOTE,
    THRESHOLD,
    Advice,
    AdviceRow,
    add_times,
    beyond_note,
    judge_rows,
)
from torchcoll.training.measured_curves import MeasuredCallTime
from torchcoll.training.sharded import BACKWARD, FORWARD, ShardPlan, step_time
from torchcoll.training.traffic_projection import plan_traffic


@dataclass(frozen=True, kw_only=True)
class ShardRow(AdviceRow):
    """One choice of wrapping and resharding.

    - exposed_ns, hidden_ns: see training/sharded.py.
    - calls, largest_bytes: the number of calls of one rank, and the largest of them.
    - sharded_bytes, peak_bytes: see ShardPlan.
    """

    choice: str
    calls: int
    largest_bytes: int
    sharded_bytes: int
    peak_bytes: int


@dataclass(repr=False, kw_only=True)
class ShardAdvice(Advice[ShardRow]):
    """The result of ``advise`` for plans of FSDP2.

    - ranks: the number of ranks in the world.
    - forward_ns: duration of a forward pass without communication; None if unknown.
    - machine: the name of the machine that predicts the times; '' for measured curves.
    - least: among the rows that are at most 2 % slower than the best, the one with the lowest peak
      memory.
    """

    ranks: int
    forward_ns: float | None
    machine: str = ""
    least: ShardRow | None = None


def advise_shards(
    plans: Sequence[ShardPlan], measured: Side, backward_ns: float | None
) -> ShardAdvice:
    """Returns which of the plans leaves the least communication exposed on these curves.

    - measured: runs with the curves.
    - backward_ns: duration of a backward pass without communication; None if unknown. The forward
      pass is assumed to take half of it.

    Raises UsageError for plans on different numbers of ranks, and if there is no unambiguous curve.
    """
    ranks = _common_ranks(plans)
    curves = MeasuredCallTime(measured)
    read: list[list[tuple[int, Duration]]] = []  # for each plan, size and duration of each call
    for plan in plans:
        read.append([])
        for call in plan.calls[0]:
            members = len(plan.members(call))
            point, _ = point_of(call, members)
            size = point.size_bytes if point else max(call.bytes_in, call.bytes_out)
            time = curves.duration(call.collective, size, members, call.dtype, call.op, call.group)
            read[-1].append((size, time))
    runs, hides, count = curves.runs, curves.hides, curves.curve_count
    passes = None if backward_ns is None else {FORWARD: backward_ns / 2, BACKWARD: backward_ns}
    rows, ends, beyond = [], [], 0
    for plan, times in zip(plans, read, strict=True):
        each = [
            step_time(plan, [time.each_ns[k] for _, time in times], passes or {}, hides)
            for k in range(count)
        ]
        row = ShardRow(
            choice=plan.choice,
            calls=len(plan.calls[0]),
            largest_bytes=max(size for size, _ in times),
            sharded_bytes=plan.sharded_bytes,
            peak_bytes=plan.peak_bytes,
        )
        out = [size for size, time in times if time.extrapolated]
        beyond = max([beyond, *out])
        exposed = [times_ns.exposed_ns for times_ns in each]
        exposed_known = passes is not None or not hides
        sums = [times_ns.communication_ns for times_ns in each]
        rows.append(add_times(row, sums, exposed if exposed_known else None, bool(out)))
        ends.append([(sum(passes.values()) if passes else 0) + value for value in exposed])
    advice = ShardAdvice(
        ranks=ranks,
        curves=curves.used,
        runs=runs,
        hides=hides,
        forward_ns=None if backward_ns is None else backward_ns / 2,
        backward_ns=backward_ns,
        rows=rows,
    )
    problems = [f"{run.path}: {text}" for run in measured.runs for text in run.problems]
    advice.notes = [*problems, *_plan_notes(plans), *curves.notes()]
    _judge(advice, ends)
    if beyond:
        advice.notes.append(beyond_note("calls above the largest size measured", beyond))
    return advice


def advise_shards_on(
    plans: Sequence[ShardPlan], machine: Predictor, backward_ns: float | None
) -> ShardAdvice:
    """Returns which of the plans leaves the least communication exposed on a machine.

    Communication, exposed time and their 90 % intervals are those of ``plan_traffic``.

    - backward_ns: as in ``advise_shards``.

    Raises UsageError for plans on different numbers of ranks, and for calls that cannot be
    predicted.
    """
    ranks = _common_ranks(plans)
    compute_ns = None if backward_ns is None else 1.5 * backward_ns
    rows, ends = [], []
    projections = [plan_traffic(machine, plan, [], compute_ns) for plan in plans]
    for plan, projection in zip(plans, projections, strict=True):
        step = projection.step
        assert step.comm_ns is not None
        row = ShardRow(
            choice=plan.choice,
            calls=step.calls,
            largest_bytes=max(planned.size_bytes for planned in step.rows),
            sharded_bytes=plan.sharded_bytes,
            peak_bytes=plan.peak_bytes,
        )
        rows.append(add_times(row, step.comm_ns, step.exposed_ns, False))
        ends.append(step.step_ns or ())
    advice = ShardAdvice(
        ranks=ranks,
        curves=[],
        runs=1,
        hides=True,
        forward_ns=None if backward_ns is None else backward_ns / 2,
        backward_ns=backward_ns,
        machine=machine.name,
        rows=rows,
        notes=[*_plan_notes(plans), *projections[0].notes, machine.intervals],
    )
    _judge(advice, ends)
    return advice


def _common_ranks(plans: Sequence[ShardPlan]) -> int:
    ranks = plans[0].ranks
    if any(plan.ranks != ranks for plan in plans):
        numbers = " and ".join(map(str, dict.fromkeys(plan.ranks for plan in plans)))
        raise UsageError("plans", f"{numbers} ranks", "plans of as many ranks")
    return ranks


def _plan_notes(plans: Sequence[ShardPlan]) -> Iterable[str]:
    return dict.fromkeys(note for plan in plans for note in plan.notes)


def _judge(advice: ShardAdvice, ends: Sequence[Sequence[float]]) -> None:
    """Compares the rows with the best of them, if the durations of the passes are known.

    - ends: as in ``judge_rows``.
    """
    if advice.backward_ns is not None:
        advice.rows = judge_rows(advice.rows, ends, advice.runs, SHARD_MODEL_ERROR)
        advice.best = next((row for row in advice.rows if row.result == BEST), None)
        # A choice that is within noise, but more than 2 % slower, is not chosen for its memory.
        fine = [
            row
            for row in advice.rows
            if row.result in NOT_WORSE and (row.ratio or 0) <= 1 + THRESHOLD
        ]
        advice.least = min(fine, key=lambda row: row.peak_bytes, default=None)
    if any(row.result == INCONCLUSIVE for row in advice.rows):
        advice.notes.append(SHARD_MODEL_NOTE)

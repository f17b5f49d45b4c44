"""A plan of a step that was captured, or planned from a model.

The step becomes stages, each a share of the computation with the calls that it needs before it, the
calls that block after it, and those that overlap with later stages and are waited for at the end of
the step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.traffic_spec import point_of
from torchcoll.parts.curves.predictor import Predictor
from torchcoll.parts.training.projection import (
    Plan,
    PlannedGroup,
    PlannedStep,
    finish,
    place_group,
    planned_step,
)
from torchcoll.parts.training.sharded import BACKWARD, FORWARD, ShardPlan, step_acts
from torchcoll.parts.training.step_program import (
    BeginCall,
    PassWork,
    ProgramAct,
    ProgramWriter,
    SentCall,
    StepProgram,
)
from torchcoll.parts.training.steps import find_steps


@dataclass(frozen=True)
class StepStage:
    """A stage of a step.

    - share: its share of the computation of its pass.
    - needs: calls that must end before it; they may run while the stage before it computes.
    - blocking: calls after it, during which nothing computes.
    - overlapping: calls after it that overlap with later stages.
    """

    phase: str
    share: float
    needs: tuple[SentCall, ...] = ()
    blocking: tuple[SentCall, ...] = ()
    overlapping: tuple[SentCall, ...] = ()


def stage_program(stages: Sequence[StepStage]) -> StepProgram:
    """Returns the stages as a program."""
    writer = ProgramWriter()
    needed = [writer.start(sent) for sent in stages[0].needs] if stages else []
    for stage, following in zip_longest(stages, stages[1:]):
        writer.wait(*needed)
        # The calls that the next stage needs are issued before the overlapping ones of this stage.
        needed = [writer.start(sent) for sent in following.needs] if following else []
        writer.work(stage.phase, stage.share)
        writer.block(stage.blocking)
        for sent in stage.overlapping:
            writer.start(sent)
    return StepProgram(tuple(writer.acts))


def shard_program(plan: ShardPlan) -> StepProgram:
    """Returns the step of a plan of FSDP2 as a program."""
    sent = []
    for call in plan.calls[0]:
        point, _ = point_of(call, len(plan.members(call)))
        size_bytes = point.size_bytes if point else max(call.bytes_in, call.bytes_out)
        sent.append(SentCall(call.group, call.collective, size_bytes))

    def send(index: int, after: Hashable | None) -> ProgramAct:
        return BeginCall(index, sent[index], after)

    return StepProgram(tuple(step_acts(plan, send, PassWork)))


def plan_traffic(
    machine: Predictor | None,
    traffic: Traffic,
    ranks: Sequence[int],
    compute_ns: float | None,
) -> Plan:
    """Returns a plan of a step that was captured or planned.

    - ranks: numbers of ranks; by default those of the traffic. Groups of all ranks grow with them,
      other groups keep their size.
    - compute_ns: the computation of a step; None if unknown.
    """
    steps = find_steps(traffic)
    rank = next((rank for rank, by_step in steps.at.items() if by_step), None)
    if rank is None or not steps.steady:
        raise UsageError("traffic", f"no call in {traffic.path or 'it'}", "a step with calls")
    calls: list[tuple[TrafficCall, SentCall]] = []  # of one rank in a steady step
    for index in steps.at[rank].get(steps.steady[-1], ()):
        call = traffic.calls[rank][index]
        point, _ = point_of(call, len(traffic.members(call)))
        if point is not None and point.size_bytes:
            calls.append((call, SentCall(call.group, point.collective, point.size_bytes)))
    if not calls:
        raise UsageError("traffic", "no collective with a size in a steady step", "one or more")
    captured_ranks = traffic.ranks
    rank_counts = list(ranks) or [captured_ranks]
    members = {sent.group: traffic.members(call) for call, sent in calls}
    if any(n != captured_ranks for n in rank_counts) and not any(
        len(group_ranks) == captured_ranks for group_ranks in members.values()
    ):
        sizes = ", ".join(f"{name} of {len(group_ranks)}" for name, group_ranks in members.items())
        raise UsageError(
            "ranks", f"groups {sizes}", f"one of all {captured_ranks} ranks, which grows with them"
        )
    if isinstance(traffic, ShardPlan):
        program = shard_program(traffic)
    else:
        program = stage_program(_stages_from_calls(traffic, calls))

    def groups(count: int, on: Predictor | None) -> dict[str, PlannedGroup]:
        placed_groups: dict[str, PlannedGroup] = {}
        for name, own_ranks in members.items():
            size = len(own_ranks)
            grown = size * count / captured_ranks if size == captured_ranks else size
            if grown != int(grown):
                raise UsageError(
                    "ranks",
                    count,
                    f"a multiple of {captured_ranks // math.gcd(captured_ranks, size)}",
                )
            number = int(grown)
            apart = own_ranks[1] - own_ranks[0] if size > 1 else 1
            placed_groups[name] = place_group(name, number, apart, on)
        return placed_groups

    def step(count: int, share: float = 1.0, on: Predictor | None = machine) -> PlannedStep:
        compute = None if compute_ns is None else compute_ns * share
        return planned_step(on, program, groups(count, on), count, {}, compute)

    first = captured_ranks if captured_ranks in rank_counts else rank_counts[0]
    what = f"a step of {traffic.source} on {captured_ranks} ranks, {len(calls)} calls a rank"
    projection = Plan(what, step(first), compute_ns=compute_ns)
    projection.notes += traffic.problems
    if len(rank_counts) > 1:
        projection.weak = [step(count) for count in rank_counts]
        projection.strong = [step(count, first / count) for count in rank_counts]
    return finish(projection, machine, lambda other: step(first, on=other))


def _stages_from_calls(
    traffic: Traffic, calls: Sequence[tuple[TrafficCall, SentCall]]
) -> list[StepStage]:
    """Returns the stages of a step from its calls.

    In a plan of FSDP2 the gathered parameters are needed by the next stage, forward as often as
    gradients are scattered, then backward. Otherwise asynchronous calls overlap, with a share of
    the computation in proportion to their bytes, and synchronous calls block.
    """
    gathers = [index for index, (call, _) in enumerate(calls) if call.bytes_out > call.bytes_in]
    if traffic.source != "plan" or not gathers:
        free = [sent.size_bytes for call, sent in calls if call.asynchronous]
        passes = [StepStage(FORWARD, 1.0)]
        for call, sent in calls:
            if call.asynchronous:
                passes.append(StepStage(BACKWARD, sent.size_bytes / sum(free), overlapping=(sent,)))
            else:
                passes.append(StepStage(BACKWARD, 0.0, blocking=(sent,)))
        return passes if free else [*passes, StepStage(BACKWARD, 1.0)]
    units = sum(call.bytes_out < call.bytes_in for call, _ in calls)
    phases = {index: FORWARD if n < units else BACKWARD for n, index in enumerate(gathers)}
    gathers_backward = BACKWARD in phases.values()
    stages: list[tuple[int, StepStage]] = []  # with their weights in the pass
    for index, (_, sent) in enumerate(calls):
        if index in phases:
            stages.append((sent.size_bytes, StepStage(phases[index], 0.0, needs=(sent,))))
        elif gathers_backward and stages and stages[-1][1].phase == BACKWARD:
            weight, last = stages[-1]
            stages[-1] = (weight, replace(last, overlapping=(*last.overlapping, sent)))
        else:  # parameters that stayed gathered: ready after their backward
            stages.append((sent.size_bytes, StepStage(BACKWARD, 0.0, overlapping=(sent,))))
    totals: dict[str, int] = defaultdict(int)
    for weight, stage in stages:
        totals[stage.phase] += weight
    shares = [replace(stage, share=weight / totals[stage.phase]) for weight, stage in stages]
    return shares if totals[BACKWARD] else [*shares, StepStage(BACKWARD, 1.0)]

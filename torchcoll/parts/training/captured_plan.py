"""A plan of a step that was captured: its calls as a program, on any number of ranks.

FSDP2 names the module of each call, which tells its calls from others that the program waits for
at once: they become the program of FSDP2's hooks (training/config_plan.py), whatever the backend
of the capture did with them. A module computes in proportion to the bytes of its calls. Other
asynchronous calls overlap with the rest of the backward pass, and synchronous ones block.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import ROOT, Traffic, TrafficCall
from torchcoll.core.traffic_spec import point_of
from torchcoll.parts.curves.predictor import Predictor
from torchcoll.parts.training.projection import (
    Computation,
    Correction,
    Plan,
    PlannedGroup,
    PlannedStep,
    finish,
    place_group,
    planned_step,
)
from torchcoll.parts.training.step_program import (
    BACKWARD,
    COPIED_OUT,
    FORWARD,
    ProgramWriter,
    SentCall,
    StepProgram,
)
from torchcoll.parts.training.steps import find_steps

Sent = tuple[TrafficCall, SentCall]


def plan_traffic(
    machine: Predictor | None,
    traffic: Traffic,
    ranks: Sequence[int],
    compute: Computation | None,
    correction: Correction | None = None,
) -> Plan:
    """Returns a plan of a step that was captured.

    - ranks: numbers of ranks, the last of which is the plan's; by default those of the traffic.
      Groups of all ranks grow with them, other groups keep their size.
    - compute: the computation of a step; None if unknown.
    - correction: of the times, by a measured step; None without one.
    """
    calls = _calls_of_a_step(traffic)
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
    program = captured_program(calls)

    def groups(count: int) -> dict[str, PlannedGroup]:
        placed_groups: dict[str, PlannedGroup] = {}
        for name, own_ranks in members.items():
            size = count if len(own_ranks) == captured_ranks else len(own_ranks)
            apart = own_ranks[1] - own_ranks[0] if len(own_ranks) > 1 else 1
            placed_groups[name] = place_group(name, size, apart, machine)
        return placed_groups

    def step(count: int, share: float = 1.0) -> PlannedStep:
        part = None if compute is None else compute.times(share)
        return planned_step(machine, program, groups(count), count, {}, part, correction=correction)

    first = captured_ranks if captured_ranks in rank_counts else rank_counts[0]
    what = f"a step of {traffic.source} on {captured_ranks} ranks, {len(calls)} calls a rank"
    steps = [step(count) for count in rank_counts]
    known = [each for each in steps if not each.only_a_guess]
    projection = Plan(what, (known or steps)[-1], notes=list(traffic.problems))
    if len(rank_counts) > 1:
        projection.weak = steps
        if compute is not None:  # without it, both tables would be the same
            projection.strong = [step(count, first / count) for count in rank_counts]
    return finish(projection, machine, correction is not None)


def _calls_of_a_step(traffic: Traffic) -> list[Sent]:
    """Returns the calls of one rank in a steady step. Raises UsageError if there are none."""
    steps = find_steps(traffic)
    rank = next((rank for rank, by_step in steps.at.items() if by_step), None)
    if rank is None or not steps.steady:
        raise UsageError("traffic", f"no call in {traffic.path or 'it'}", "a step with calls")
    calls: list[Sent] = []
    for index in steps.at[rank].get(steps.steady[-1], ()):
        call = traffic.calls[rank][index]
        point, _ = point_of(call, len(traffic.members(call)))
        if point is not None and point.size_bytes:
            calls.append((call, SentCall(call.group, point.collective, point.size_bytes)))
    if not calls:
        raise UsageError("traffic", "no collective with a size in a steady step", "one or more")
    return calls


def captured_program(calls: Sequence[Sent]) -> StepProgram:
    """Returns the calls of a step as a program."""
    if any(_gathers(call) for call, _ in calls):
        return _ShardedStep(calls).program()
    writer = ProgramWriter()
    writer.work(FORWARD, 1.0)
    free = sum(sent.size_bytes for call, sent in calls if call.asynchronous)
    for call, sent in calls:
        if call.asynchronous:
            writer.work(BACKWARD, sent.size_bytes / free)
            writer.start(sent, module=call.module)
        else:
            writer.block([sent], call.module)
    writer.work(BACKWARD, 0.0 if free else 1.0)
    return StepProgram(tuple(writer.acts))


def _gathers(call: TrafficCall) -> bool:
    """Returns whether FSDP2 gathers the parameters of a module by it."""
    return bool(call.module) and call.collective == "all_gather"


class _ShardedStep:
    """Writes the program of a step of FSDP2 from its calls, of any number of micro-batches.

    The forward pass of a micro-batch ends where a module is gathered again, or its gradients are
    scattered; the backward pass ends where the root, or what was gathered first, is gathered again.
    """

    def __init__(self, calls: Sequence[Sent]) -> None:
        self.calls, self.writer = calls, ProgramWriter()
        self.passes = list(self._passes())
        self.bytes = {
            phase: sum(
                sent.size_bytes
                for (call, sent), of_call in zip(calls, self.passes, strict=True)
                if of_call == phase and self._computes(call, phase)
            )
            for phase in (FORWARD, BACKWARD)
        }
        self.gathered: dict[str, Hashable] = {}  # modules whose all_gather is not waited for yet
        self.scattered: Hashable = None

    @staticmethod
    def _computes(call: TrafficCall, phase: str) -> bool:
        scatters = bool(call.module) and call.collective == "reduce_scatter"
        return _gathers(call) if phase == FORWARD else scatters

    def _passes(self) -> list[str]:
        """Returns the pass of each call."""
        phase, seen, passes = FORWARD, set[str](), []
        first = next(call.module for call, _ in self.calls if _gathers(call))
        for call, _ in self.calls:
            if _gathers(call):
                again = call.module in seen
                if phase == BACKWARD and call.module in (ROOT, first) and again:
                    phase, seen = FORWARD, set()
                elif phase == FORWARD and again:
                    phase = BACKWARD
                seen.add(call.module)
            elif call.module and call.collective == "reduce_scatter":
                phase = BACKWARD
            passes.append(phase)
        return passes

    def program(self) -> StepProgram:
        if not self.bytes[BACKWARD]:  # nothing is scattered
            self.bytes[BACKWARD] = 1
        for (call, sent), phase in zip(self.calls, self.passes, strict=True):
            if _gathers(call):
                self._gather(call, sent, phase)
            elif call.module and call.collective == "reduce_scatter":
                self._use(call.module)
                self.writer.work(BACKWARD, sent.size_bytes / self.bytes[BACKWARD])
                self.writer.wait(self.scattered)
                self.scattered = self.writer.start(sent, module=call.module)
            elif call.module:  # the all_reduce over replicas comes after the reduce_scatter
                self.writer.start(sent, self.scattered, call.module)
            elif call.asynchronous:
                self.writer.start(sent)
            else:
                self.writer.block([sent])
        if BACKWARD not in self.passes or not any(
            self._computes(call, BACKWARD) for call, _ in self.calls
        ):
            self.writer.work(BACKWARD, 1.0)
        return StepProgram(tuple(self.writer.acts))

    def _gather(self, call: TrafficCall, sent: SentCall, phase: str) -> None:
        if phase == BACKWARD:  # prefetched while the module before it computes
            for module in list(self.gathered):
                self._use(module)
        self.gathered[call.module] = self.writer.start(sent, COPIED_OUT, call.module)
        if phase == FORWARD:
            self._use(call.module)
            self.writer.work(FORWARD, sent.size_bytes / self.bytes[FORWARD])

    def _use(self, module: str) -> None:
        """Waits for the parameters of a module, and copies them out."""
        if module in self.gathered:
            self.writer.wait(self.gathered.pop(module))
            self.writer.mark(COPIED_OUT)

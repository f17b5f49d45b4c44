"""The communication that a training step would have on a machine.

The durations are the machine's (curves/predictor.py), one call at a time. What is hidden under
computation follows from a timeline of one rank: one lane computes, and each group has a lane on
which its calls follow one another. A stage of a step begins when the calls that it needs have
ended; its blocking calls stop everything; its overlapping calls are waited for at the end of the
step.

The ranks of a group with ranks in between share the network interfaces of their hosts with the
neighbouring groups at the same time. Such a call counts as one call with the bytes of all these
groups. Within a host nothing is assumed to be shared.

The error that all calls of a machine have in common adds up with the times, and the rest of the
errors as squares (``sum_of`` of curves/predictor.py). At the ends of the exposed time, all calls
of a group take as much longer, or shorter, as their sum does at the ends of its interval.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from torchcoll.core.errors import UsageError
from torchcoll.core.spec import point_of
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.curves.predictions import WIDEST, too_wide
from torchcoll.curves.predictor import Ends, Prediction, Predictor, sum_of
from torchcoll.training import timeline
from torchcoll.training.shapes import SentCall, Shape, StepStage, stages_from_shape
from torchcoll.training.sharded import BACKWARD, FORWARD
from torchcoll.training.steps import find_steps
from torchcoll.training.timeline import Act, Compute, Send, Wait

# Forward over backward pass: the backward pass computes two products for each one of the forward.
_FORWARD = 0.5
# It stops scaling if more than half of a step is exposed communication (weak), or if twice the
# ranks make the step less than 1.25 times as fast (strong).
HALF, GAIN = 0.5, 1.25
WEAK, STRONG = "weak", "strong"


@dataclass(frozen=True)
class PlannedGroup:
    """A group of a plan.

    - ranks: the number of its ranks.
    - hosts: the number of hosts that they are on; None if unknown.
    - concurrent: how many such groups use the interfaces of a host at the same time.
    """

    name: str
    ranks: int
    hosts: int | None = None
    concurrent: int = 1


@dataclass(frozen=True)
class PlannedRow:
    """The calls of one size of a group in a step.

    - prediction: one of them.
    """

    group: str
    collective: str
    ranks: int
    size_bytes: int
    calls: int
    prediction: Prediction

    @property
    def time_ns(self) -> Ends:
        """All of them, one after another."""
        return sum_of([(self.calls, self.prediction)])

    @property
    def extrapolated(self) -> str:
        """How far the size or ranks are outside of the machine's data; '' if within."""
        return self.prediction.beyond


@dataclass(frozen=True)
class PlannedStep:
    """A step on a given number of ranks. None: unknown without a backward time.

    - comm_ns: all calls, one after another.
    - compute_ns: the computation.
    - exposed_ns: the communication that nothing hides.
    - step_ns: the step with its computation.
    """

    ranks: int
    degrees: Mapping[str, int]
    rows: tuple[PlannedRow, ...]
    comm_ns: Ends
    compute_ns: float | None
    exposed_ns: Ends | None
    step_ns: Ends | None

    @property
    def only_a_guess(self) -> bool:
        """Whether the interval is too wide to be a prediction (curves/predictions.py)."""
        return too_wide(*self.comm_ns[1:])

    @property
    def hidden_ns(self) -> Ends | None:
        """The hidden communication, for the value and for each end of the interval."""
        if self.exposed_ns is None:
            return None
        pairs = zip(self.comm_ns, self.exposed_ns, strict=True)
        value, low, high = (max(0.0, comm - exposed) for comm, exposed in pairs)
        return value, low, high

    @property
    def efficiency(self) -> Ends | None:
        """The share of the step that computes; the low end belongs to the longest step."""
        if self.compute_ns is None or self.step_ns is None:
            return None
        value, low, high = self.step_ns
        return self.compute_ns / value, self.compute_ns / high, self.compute_ns / low


@dataclass
class Projection:
    """A plan of a training.

    - step: the step on the requested ranks, the first of several.
    - weak, strong: the steps over ranks; [] for one number of ranks.
    - concurrent: the work that ran while the machine's calls were measured; '' if none.
    - lower_bound: the calls were measured alone, on the cores that also compute.
    - depends: what the communication depends on most, in a clause.
    """

    what: str
    step: PlannedStep
    weak: list[PlannedStep] = field(default_factory=list)
    strong: list[PlannedStep] = field(default_factory=list)
    backward_ns: float | None = None
    machine: str = ""
    notes: list[str] = field(default_factory=list)
    concurrent: str = ""
    lower_bound: bool = False
    depends: str = ""

    def scaling_limit(self, kind: str) -> tuple[int | None, int | None, int | None]:
        """Returns the number of ranks from which on it no longer scales, or None if it scales up to
        the last.

        The three values are for the predicted times, and for the low and high ends of their
        intervals.
        """
        steps: list[PlannedStep] = getattr(self, kind)
        if any(step.step_ns is None or step.compute_ns is None for step in steps):
            return None, None, None
        stops: list[int | None] = [None, None, None]
        for end in range(3):
            for before, step in zip([None, *steps], steps, strict=False):
                assert step.step_ns is not None and step.compute_ns is not None
                if kind == WEAK and step.compute_ns < HALF * step.step_ns[end]:
                    stops[end] = step.ranks
                    break
                if kind == STRONG and before:
                    assert before.step_ns is not None
                    doublings = math.log2(step.ranks / before.ranks)
                    if before.step_ns[end] / step.step_ns[end] < GAIN**doublings:
                        stops[end] = before.ranks
                        break
        return stops[0], stops[1], stops[2]


def timeline_acts(
    stages: Sequence[StepStage],
    time_ns: Callable[[SentCall], float],
    passes_ns: Mapping[str, float],
) -> list[Act]:
    """Returns a step as the acts of a timeline.

    - time_ns: returns the duration of a call.
    - passes_ns: durations of the computation of FORWARD and BACKWARD.
    """
    acts: list[Act] = []

    def send(sent: SentCall) -> int:
        acts.append(Send(len(acts), sent.group, time_ns(sent)))
        return len(acts) - 1

    needed = [send(sent) for sent in stages[0].needs] if stages else []
    for stage, following in zip_longest(stages, stages[1:]):
        acts.append(Wait(tuple(needed)))
        # The calls that the next stage needs are issued before the overlapping ones of this stage.
        needed = [send(sent) for sent in following.needs] if following else []
        acts.append(Compute(stage.share * passes_ns[stage.phase]))
        for sent in stage.blocking:
            acts.append(Wait((send(sent),)))
        for sent in stage.overlapping:
            send(sent)
    return acts


def planned_step(
    machine: Predictor,
    stages: Sequence[StepStage],
    groups: Mapping[str, PlannedGroup],
    ranks: int,
    degrees: Mapping[str, int],
    backward_ns: float | None,
) -> PlannedStep:
    """Returns the times of one step. Raises UsageError for calls that cannot be predicted."""
    counts: dict[SentCall, int] = {}
    for stage in stages:
        for sent in (*stage.needs, *stage.blocking, *stage.overlapping):
            if groups[sent.group].ranks > 1 and sent.size_bytes:
                counts[sent] = counts.get(sent, 0) + 1
    predictions: dict[SentCall, Prediction] = {}
    of_groups: dict[str, list[tuple[int, Prediction]]] = {}
    rows = []
    for sent, calls in counts.items():
        group = groups[sent.group]
        size_bytes = sent.size_bytes * group.concurrent
        prediction = machine.predict(sent.collective, size_bytes, group.ranks, group.hosts)
        predictions[sent] = prediction
        of_groups.setdefault(sent.group, []).append((calls, prediction))
        rows.append(
            PlannedRow(sent.group, sent.collective, group.ranks, sent.size_bytes, calls, prediction)
        )
    comm = sum_of((row.calls, row.prediction) for row in rows)
    if backward_ns is None:
        return PlannedStep(ranks, degrees, tuple(rows), comm, None, None, None)
    passes = {FORWARD: _FORWARD * backward_ns, BACKWARD: backward_ns}
    compute = sum(
        passes[phase]
        for phase in (FORWARD, BACKWARD)
        if any(stage.phase == phase and stage.share for stage in stages)
    )

    # How much longer the calls of a group are together at each end of their interval.
    longer = {
        name: tuple(end / sums[0] for end in sums)
        for name, sums in ((name, sum_of(sent)) for name, sent in of_groups.items())
    }

    def step_at(end: int) -> float:
        def time_ns(sent: SentCall) -> float:
            prediction = predictions.get(sent)
            return prediction.time_ns * longer[sent.group][end] if prediction else 0.0

        return timeline.step_ns(timeline_acts(stages, time_ns, passes))

    step = step_at(0), step_at(1), step_at(2)
    exposed = step[0] - compute, step[1] - compute, step[2] - compute
    return PlannedStep(ranks, degrees, tuple(rows), comm, compute, exposed, step)


def place_groups(
    machine: Predictor, degrees: Mapping[str, int], inner: Sequence[str] = ("tp",)
) -> dict[str, PlannedGroup]:
    """Returns the group of each degree: ranks of ``inner`` are neighbours, those of others ``tp``
    apart.
    """
    most = machine.ranks_per_host
    groups: dict[str, PlannedGroup] = {}
    for name, ranks in degrees.items():
        apart = 1 if name in inner else math.prod(degrees.get(n, 1) for n in inner)
        groups[name] = _place_group(name, ranks, apart, most)
    return groups


def _place_group(name: str, ranks: int, apart: int, most: float | None) -> PlannedGroup:
    """Returns a group whose ranks are ``apart`` ranks from each other, ``most`` per host."""
    hosts, concurrent = None, 1
    if most is not None:
        hosts = max(1, math.ceil(ranks * apart / most - 1e-9))
        if hosts > 1:
            hosts, concurrent = min(ranks, hosts), max(1, min(apart, round(most)))
    return PlannedGroup(name, ranks, hosts, concurrent)


def plan_shape(
    machine: Predictor,
    shape: Shape | None,
    parameters: float,
    degrees: Mapping[str, int],
    ranks: Sequence[int],
    backward_ns: float | None,
    tokens: float,
    dtype: str,
) -> Projection:
    """Returns a plan from a shape.

    - ranks: numbers of ranks; dp or fsdp grows with them. The step is on the product of the
      degrees.
    - backward_ns: duration of a backward pass without communication; None if unknown.
    - tokens: tokens of one replica in a step.

    Raises UsageError for degrees whose product is none of the ranks.
    """
    outer = next((name for name in ("fsdp", "dp") if name in degrees), "dp")
    inner = math.prod(n for name, n in degrees.items() if name != outer)
    product = math.prod(degrees.values())
    ranks = list(ranks) or [product]
    odd = next((n for n in ranks if n % inner), None)
    if odd is not None:
        text = ", ".join(f"{name}={n}" for name, n in degrees.items() if name != outer)
        raise UsageError("ranks", odd, f"a multiple of {inner} ({text})")
    if product not in ranks:
        text = " x ".join(f"{name}={n}" for name, n in degrees.items())
        expected = f"{ranks[0]}" if len(ranks) == 1 else f"one of {', '.join(map(str, ranks))}"
        raise UsageError("parallel", f"{text} = {product} ranks", f"{expected}, as --ranks says")
    name = shape.name if shape else "gradients"
    what = f"{name}, {parameters:.4g} parameters of {dtype}"
    what += f", {tokens:g} tokens of each replica in a step" if shape else ""

    def step(count: int, share: float = 1.0, on: Predictor = machine) -> PlannedStep:
        step_degrees = {**degrees, outer: count // inner}
        stages = stages_from_shape(shape, parameters, step_degrees, tokens * share, dtype)
        backward = None if backward_ns is None else backward_ns * share
        placed = place_groups(on, step_degrees)
        return planned_step(on, stages, placed, count, step_degrees, backward)

    first = product
    projection = Projection(what, step(first), backward_ns=backward_ns, machine=machine.name)
    projection.depends = _depends(
        projection.step, [(text, step(first, on=other)) for text, other in machine.alternatives()]
    )
    if len(ranks) > 1:
        projection.weak = [step(count) for count in ranks]
        projection.strong = [step(count, first / count) for count in ranks]
    return _add_notes(projection, machine)


def plan_traffic(
    machine: Predictor, traffic: Traffic, ranks: Sequence[int], backward_ns: float | None
) -> Projection:
    """Returns a plan of a step that was captured or planned.

    - ranks: numbers of ranks; by default those of the traffic. Groups of all ranks grow with them,
      other groups keep their size.
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
    stages = _stages_from_calls(traffic, calls)

    def groups(count: int) -> dict[str, PlannedGroup]:
        host = machine.ranks_per_host
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
            placed_groups[name] = _place_group(name, number, apart, host)
        return placed_groups

    def step(count: int, share: float = 1.0, on: Predictor = machine) -> PlannedStep:
        backward = None if backward_ns is None else backward_ns * share
        return planned_step(on, stages, groups(count), count, {}, backward)

    first = captured_ranks if captured_ranks in rank_counts else rank_counts[0]
    what = f"a step of {traffic.source} on {captured_ranks} ranks, {len(calls)} calls a rank"
    projection = Projection(what, step(first), backward_ns=backward_ns, machine=machine.name)
    projection.depends = _depends(
        projection.step, [(text, step(first, on=other)) for text, other in machine.alternatives()]
    )
    projection.notes += traffic.problems
    if len(rank_counts) > 1:
        projection.weak = [step(count) for count in rank_counts]
        projection.strong = [step(count, first / count) for count in rank_counts]
    return _add_notes(projection, machine)


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


def _depends(step: PlannedStep, alternatives: Sequence[tuple[str, PlannedStep]]) -> str:
    """What the communication of a step depends on most: the alternative that makes it longest; of a
    machine without alternatives the calls with the largest share. '' for one kind of call.
    """
    if not step.rows:
        return ""
    if alternatives:
        text, worst = max(alternatives, key=lambda item: item[1].comm_ns[0])
        return f"{text}, it would be {worst.comm_ns[0] / step.comm_ns[0]:.2g} times that"
    times: dict[str, float] = defaultdict(float)
    for row in step.rows:
        times[f"{row.collective} of {row.group}"] += row.time_ns[0]
    name = max(times, key=lambda key: times[key])
    if len(times) < 2:
        return ""
    return f"{name} ({times[name] / step.comm_ns[0]:.0%} of it)"


def _add_notes(projection: Projection, machine: Predictor) -> Projection:
    """Adds notes on the limits of the machine and removes the steps that would be guesses."""
    guesses = sorted(
        {step.ranks for step in (*projection.weak, *projection.strong) if step.only_a_guess}
    )
    projection.weak, projection.strong = (
        [step for step in steps if step.ranks not in guesses]
        for steps in (projection.weak, projection.strong)
    )
    if guesses:
        projection.notes.append(
            f"on {', '.join(map(str, guesses))} ranks nothing is told: the 90 % interval of the "
            f"communication is wider than {WIDEST:g}x"
        )
    collectives = [row.collective for row in projection.step.rows]
    projection.concurrent = machine.concurrent_work(collectives)
    projection.lower_bound = not projection.concurrent and machine.on_cpu(collectives)
    projection.notes += machine.notes()
    every = [
        row for step in (projection.step, *projection.weak, *projection.strong) for row in step.rows
    ]
    extrapolated = dict.fromkeys(row.extrapolated for row in every if row.extrapolated)
    if extrapolated:
        count = sum(bool(row.extrapolated) for row in every)
        farthest = list(extrapolated)[-1]
        projection.notes.append(
            f"{count} of {len(every)} times are extrapolated, and their "
            f"intervals are wider: {farthest}"
        )
    projection.notes.append(
        f"calls as they are beside {projection.concurrent}, not beside the computation of this step"
        if projection.concurrent
        else "calls as they are alone: a lower bound where computation shares cores or wires with "
        "them; torchcoll model fit --concurrent takes runs that were measured beside work"
    )
    if projection.backward_ns is None:
        projection.notes.append(
            "--backward-ms MS tells how much of it is exposed, and how it scales"
        )
    else:
        projection.notes.append(
            "the forward pass is taken for half of the backward pass; a rank's calls of a group go "
            "one after another, those of different groups beside each other"
        )
    return projection

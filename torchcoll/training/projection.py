"""What communication a training step would have, on a machine that a model describes.

The times are the model's (curves/model.py), one call at a time; what hides under computation
follows from a timeline of one rank: what computes, and a wire for each group, on which calls follow
one another. A part of a step may begin when what it needs has come; what it stops for stands in the
way of everything; what it leaves behind is waited for at the end of the step.

Groups of ranks that are not beside each other go through the same interfaces as their neighbours'
groups, at the same time: such a call is taken for one of all their bytes. Within a host nothing is
taken to be shared.

Intervals add up as if the model erred alike in each call: the ends of a sum are the sums of the
ends.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

from torchcoll.core.errors import UsageError
from torchcoll.core.spec import point_of
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.curves.model import TOO_SHORT, WIDEST, MachineModel, too_wide
from torchcoll.training import timeline
from torchcoll.training.call_time import ModelCallTime
from torchcoll.training.shapes import Sent, Shape, StepPart, parts_of
from torchcoll.training.sharded import BACKWARD, FORWARD
from torchcoll.training.steps import find_steps
from torchcoll.training.timeline import Act, Compute, Send, Wait

_FORWARD = 0.5  # of the backward pass, which computes two products where the forward has one
# Where it 'stops scaling': more than half of a step is exposed communication (weak), or twice the
# ranks make the step less than 1.25 times as fast (strong).
HALF, GAIN = 0.5, 1.25
WEAK, STRONG = "weak", "strong"

Ends = tuple[float, float, float]  # value, low, high


@dataclass(frozen=True)
class PlannedGroup:
    """A group of a plan: its ranks, the hosts that they are on (None unknown), and how many such
    groups go through the interfaces of a host at once.
    """

    name: str
    ranks: int
    hosts: int | None = None
    concurrent: int = 1


@dataclass(frozen=True)
class PlannedRow:
    """The calls of one size of a group in a step. time_ns: of all of them, one after another."""

    group: str
    collective: str
    ranks: int
    size_bytes: int
    calls: int
    time_ns: Ends
    beyond: str


@dataclass(frozen=True)
class PlannedStep:
    """On so many ranks. comm_ns: all calls; exposed_ns: what of it nothing hides; step_ns: with the
    computation. None without a stated time.
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
        """As a prediction is (curves/model.py)."""
        return too_wide(*self.comm_ns[1:])

    @property
    def hidden_ns(self) -> Ends | None:
        """What is not exposed, of each end's own."""
        if self.exposed_ns is None:
            return None
        pairs = zip(self.comm_ns, self.exposed_ns, strict=True)
        value, low, high = (max(0.0, comm - exposed) for comm, exposed in pairs)
        return value, low, high

    @property
    def efficiency(self) -> Ends | None:
        """The share of the step that computes; low is that of the longest step."""
        if self.compute_ns is None or self.step_ns is None:
            return None
        value, low, high = self.step_ns
        return self.compute_ns / value, self.compute_ns / high, self.compute_ns / low


@dataclass
class Projection:
    """A plan. step: on the ranks that were asked for, the first of several; weak, strong: over
    ranks, [] with one number of them. beside: the work beside which the model's calls were
    measured, '' alone. lower_bound: they were alone, on the cores that compute.
    """

    what: str
    step: PlannedStep
    weak: list[PlannedStep] = field(default_factory=list)
    strong: list[PlannedStep] = field(default_factory=list)
    backward_ns: float | None = None
    model: Path | None = None
    notes: list[str] = field(default_factory=list)
    concurrent: str = ""
    lower_bound: bool = False

    def stops(self, kind: str) -> tuple[int | None, int | None, int | None]:
        """The number of ranks from which on it no longer scales, by the predicted times, by the
        low and by the high ends of their intervals; None: not up to the last.
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


def acts_of(
    parts: Sequence[StepPart],
    time_ns: Callable[[Sent], float],
    passes_ns: Mapping[str, float],
) -> list[Act]:
    """A step as the acts of a timeline. passes_ns: what the forward and backward pass compute."""
    acts: list[Act] = []

    def send(sent: Sent) -> int:
        acts.append(Send(len(acts), sent.group, time_ns(sent)))
        return len(acts) - 1

    needed = [send(sent) for sent in parts[0].needs] if parts else []
    for part, following in zip_longest(parts, parts[1:]):
        acts.append(Wait(tuple(needed)))
        # What the next part needs is issued before what this part leaves.
        needed = [send(sent) for sent in following.needs] if following else []
        acts.append(Compute(part.share * passes_ns[part.phase]))
        for sent in part.stops:
            acts.append(Wait((send(sent),)))
        for sent in part.leaves:
            send(sent)
    return acts


def planned_step(
    model: MachineModel,
    parts: Sequence[StepPart],
    groups: Mapping[str, PlannedGroup],
    ranks: int,
    degrees: Mapping[str, int],
    backward_ns: float | None,
) -> PlannedStep:
    """The times of one step. Raises UsageError for what the model does not have."""
    counts: dict[Sent, int] = {}
    for part in parts:
        for sent in (*part.needs, *part.stops, *part.leaves):
            if groups[sent.group].ranks > 1 and sent.size_bytes:
                counts[sent] = counts.get(sent, 0) + 1
    call_time = ModelCallTime(model)
    known = {}
    for sent in counts:
        place = groups[sent.group]
        size_bytes = sent.size_bytes * place.concurrent
        known[sent] = call_time.duration(sent.collective, size_bytes, place.ranks, place.hosts)

    def row(sent: Sent, calls: int) -> PlannedRow:
        one = known[sent]
        value, low, high = (calls * time_ns for time_ns in one.each_ns)
        place = groups[sent.group]
        return PlannedRow(
            sent.group,
            sent.collective,
            place.ranks,
            sent.size_bytes,
            calls,
            (value, low, high),
            one.extrapolated,
        )

    rows = tuple(row(sent, calls) for sent, calls in counts.items())
    value, low, high = (sum(one.time_ns[end] for one in rows) for end in range(3))
    comm = value, low, high
    if backward_ns is None:
        return PlannedStep(ranks, degrees, rows, comm, None, None, None)
    passes = {FORWARD: _FORWARD * backward_ns, BACKWARD: backward_ns}
    compute = sum(
        passes[phase]
        for phase in (FORWARD, BACKWARD)
        if any(part.phase == phase and part.share for part in parts)
    )

    def step_at(end: int) -> float:
        def time_ns(sent: Sent) -> float:
            one = known.get(sent)
            return one.each_ns[end] if one else 0.0

        return timeline.step_ns(acts_of(parts, time_ns, passes))

    step = step_at(0), step_at(1), step_at(2)
    exposed = step[0] - compute, step[1] - compute, step[2] - compute
    return PlannedStep(ranks, degrees, rows, comm, compute, exposed, step)


def fullest(model: MachineModel) -> float | None:
    """The most ranks of a host that the model has seen. Of one host alone it is without end: what
    is between hosts was not measured, so that nothing is told of it. None: it knows of no hosts.
    """
    hosts = [one.hosts for entry in model.entries for one in entry.over_sizes if one.hosts]
    if hosts and max(hosts) == 1:
        return math.inf
    return max(filter(None, (entry.ranks_per_host for entry in model.entries)), default=None)


def placed(
    model: MachineModel, degrees: Mapping[str, int], inner: Sequence[str] = ("tp",)
) -> dict[str, PlannedGroup]:
    """Each degree's groups: tp are ranks beside each other, the others are ``tp`` ranks apart."""
    most = fullest(model)
    found: dict[str, PlannedGroup] = {}
    for name, ranks in degrees.items():
        apart = 1 if name in inner else math.prod(degrees.get(n, 1) for n in inner)
        found[name] = _placed(name, ranks, apart, most)
    return found


def _placed(name: str, ranks: int, apart: int, most: float | None) -> PlannedGroup:
    """A group whose ranks are so far from each other, on hosts of ``most``."""
    hosts, concurrent = None, 1
    if most is not None:
        hosts = max(1, math.ceil(ranks * apart / most - 1e-9))
        if hosts > 1:
            hosts, concurrent = min(ranks, hosts), max(1, min(apart, round(most)))
    return PlannedGroup(name, ranks, hosts, concurrent)


def plan_shape(
    model: MachineModel,
    shape: Shape | None,
    parameters: float,
    degrees: Mapping[str, int],
    ranks: Sequence[int],
    backward_ns: float | None,
    tokens: float,
    dtype: str,
) -> Projection:
    """A plan from a shape. ranks: the first is that of the step; dp or fsdp grows with them.

    Raises UsageError for degrees that do not multiply to the ranks.
    """
    outer = next((name for name in ("fsdp", "dp") if name in degrees), "dp")
    inner = math.prod(n for name, n in degrees.items() if name != outer)
    asked = math.prod(degrees.values())
    ranks = list(ranks) or [asked]
    odd = next((n for n in ranks if n % inner), None)
    if odd is not None:
        text = ", ".join(f"{name}={n}" for name, n in degrees.items() if name != outer)
        raise UsageError("ranks", odd, f"a multiple of {inner} ({text})")
    if asked not in ranks:
        text = " x ".join(f"{name}={n}" for name, n in degrees.items())
        known = f"{ranks[0]}" if len(ranks) == 1 else f"one of {', '.join(map(str, ranks))}"
        raise UsageError("parallel", f"{text} = {asked} ranks", f"{known}, as --ranks says")
    name = shape.name if shape else "gradients"
    what = f"{name}, {parameters:.4g} parameters of {dtype}"
    what += f", {tokens:g} tokens of each replica in a step" if shape else ""

    def step(count: int, share: float = 1.0) -> PlannedStep:
        own = {**degrees, outer: count // inner}
        parts = parts_of(shape, parameters, own, tokens * share, dtype)
        backward = None if backward_ns is None else backward_ns * share
        return planned_step(model, parts, placed(model, own), count, own, backward)

    first = asked
    found = Projection(what, step(first), backward_ns=backward_ns, model=model.path)
    if len(ranks) > 1:
        found.weak = [step(count) for count in ranks]
        found.strong = [step(count, first / count) for count in ranks]
    return _noted(found, model)


def plan_traffic(
    model: MachineModel, traffic: Traffic, ranks: Sequence[int], backward_ns: float | None
) -> Projection:
    """A plan of a step that was captured or planned. ranks: as many as it has first; the groups of
    all ranks grow with them, the others stay.
    """
    steps = find_steps(traffic)
    rank = next((r for r, own in steps.at.items() if own), None)
    if rank is None or not steps.steady:
        raise UsageError("traffic", f"no call in {traffic.path or 'it'}", "a step with calls")
    calls: list[tuple[TrafficCall, Sent]] = []  # of one rank in a steady step, as messages
    for place in steps.at[rank].get(steps.steady[-1], ()):
        call = traffic.calls[rank][place]
        point, _ = point_of(call, len(traffic.members(call)))
        if point is not None and point.size_bytes:
            calls.append((call, Sent(call.group, point.collective, point.size_bytes)))
    if not calls:
        raise UsageError("traffic", "no collective with a size in a steady step", "one or more")
    own = traffic.ranks
    asked = list(ranks) or [own]
    members = {sent.group: traffic.members(call) for call, sent in calls}
    if any(n != own for n in asked) and not any(len(one) == own for one in members.values()):
        got = ", ".join(f"{name} of {len(one)}" for name, one in members.items())
        raise UsageError("ranks", f"groups {got}", f"one of all {own} ranks, which grows with them")
    parts = _parts_of_calls(traffic, calls)

    def groups(count: int) -> dict[str, PlannedGroup]:
        host = fullest(model)
        found: dict[str, PlannedGroup] = {}
        for name, own_ranks in members.items():
            size = len(own_ranks)
            grown = size * count / own if size == own else size
            if grown != int(grown):
                raise UsageError("ranks", count, f"a multiple of {own // math.gcd(own, size)}")
            number = int(grown)
            apart = own_ranks[1] - own_ranks[0] if size > 1 else 1
            found[name] = _placed(name, number, apart, host)
        return found

    def step(count: int, part: float = 1.0) -> PlannedStep:
        backward = None if backward_ns is None else backward_ns * part
        return planned_step(model, parts, groups(count), count, {}, backward)

    first = own if own in asked else asked[0]
    what = f"a step of {traffic.source} on {own} ranks, {len(calls)} calls a rank"
    found = Projection(what, step(first), backward_ns=backward_ns, model=model.path)
    found.notes += traffic.problems
    if len(asked) > 1:
        found.weak = [step(count) for count in asked]
        found.strong = [step(count, first / count) for count in asked]
    return _noted(found, model)


def _parts_of_calls(traffic: Traffic, calls: Sequence[tuple[TrafficCall, Sent]]) -> list[StepPart]:
    """A plan of shards: what gathers is needed by the next part, forward as often as gradients are
    scattered, then backward. Else what the program does not wait for leaves with its share of the
    gradients, and what it waits for stops it.
    """
    gathers = [place for place, (call, _) in enumerate(calls) if call.bytes_out > call.bytes_in]
    if traffic.source != "plan" or not gathers:
        free = [sent.size_bytes for call, sent in calls if call.asynchronous]
        passes = [StepPart(FORWARD, 1.0)]
        for call, sent in calls:
            if call.asynchronous:
                passes.append(StepPart(BACKWARD, sent.size_bytes / sum(free), leaves=(sent,)))
            else:
                passes.append(StepPart(BACKWARD, 0.0, stops=(sent,)))
        return passes if free else [*passes, StepPart(BACKWARD, 1.0)]
    units = sum(call.bytes_out < call.bytes_in for call, _ in calls)
    phases = {place: FORWARD if n < units else BACKWARD for n, place in enumerate(gathers)}
    again = BACKWARD in phases.values()
    parts: list[tuple[int, StepPart]] = []  # with what it weighs in its pass
    for place, (_, sent) in enumerate(calls):
        if place in phases:
            parts.append((sent.size_bytes, StepPart(phases[place], 0.0, needs=(sent,))))
        elif again and parts and parts[-1][1].phase == BACKWARD:
            weight, last = parts[-1]
            parts[-1] = (weight, replace(last, leaves=(*last.leaves, sent)))
        else:  # gradients of parameters that stayed: there once the backward has made them
            parts.append((sent.size_bytes, StepPart(BACKWARD, 0.0, leaves=(sent,))))
    totals: dict[str, int] = defaultdict(int)
    for weight, part in parts:
        totals[part.phase] += weight
    shares = [replace(part, share=weight / totals[part.phase]) for weight, part in parts]
    return shares if totals[BACKWARD] else [*shares, StepPart(BACKWARD, 1.0)]


def _noted(found: Projection, model: MachineModel) -> Projection:
    guesses = sorted({one.ranks for one in (*found.weak, *found.strong) if one.only_a_guess})
    found.weak, found.strong = (
        [one for one in steps if one.ranks not in guesses] for steps in (found.weak, found.strong)
    )
    if guesses:
        found.notes.append(
            f"on {', '.join(map(str, guesses))} ranks nothing is told: the 90 % interval of the "
            f"communication is wider than {WIDEST:g}x"
        )
    entries = [model.entry(name) for name in dict.fromkeys(r.collective for r in found.step.rows)]
    found.concurrent = ", ".join(dict.fromkeys(one.concurrent for one in entries if one.concurrent))
    found.lower_bound = not found.concurrent and any(
        one.kind.get("device") == "cpu" for one in entries
    )
    if fullest(model) == math.inf:
        found.notes.append(
            "the model was fitted on one host: more ranks are taken for ranks of that host, and "
            "what a network between hosts costs is not in it"
        )
    every = [row for one in (found.step, *found.weak, *found.strong) for row in one.rows]
    beyond = dict.fromkeys(row.beyond for row in every if row.beyond)
    if beyond:
        count = sum(bool(row.beyond) for row in every)
        farthest = list(beyond)[-1]
        found.notes.append(
            f"{count} of {len(every)} times are extrapolated, and their "
            f"intervals are wider: {farthest}"
        )
    found.notes.append(
        f"calls as they are beside {found.concurrent}, not beside the computation of this step"
        if found.concurrent
        else "calls as they are alone: a lower bound where computation shares cores or wires with "
        "them; torchcoll model fit --concurrent takes runs that were measured beside work"
    )
    if text := model.facts.get(TOO_SHORT):
        found.notes.append(str(text))
    if found.backward_ns is None:
        found.notes.append("--backward-ms MS tells how much of it is exposed, and how it scales")
    else:
        found.notes.append(
            "the forward pass is taken for half of the backward pass; a rank's calls of a group go "
            "one after another, those of different groups beside each other"
        )
    return found

"""A training step on one rank as data: its computation, its calls, and what waits for what.

A program is a list of acts in the order in which the host issues them. One lane computes, and each
group has its own lane, on which its calls run one after the other, as they do in one communicator;
calls of different groups do not slow each other down.

FSDP2: an all_gather is at most one ahead of the computation, because it waits until the one before
is copied out (COPIED_OUT). A unit does not send its gradients before the reduce_scatter before it
has ended, because the input buffer is in use until then. Not modelled: copying in and out, ranks
that wait for each other, and communication that slows the computation down.

Source: torch/distributed/fsdp/_fully_shard of torch 2.13: unshard, wait_for_unshard,
_backward_prefetch and post_backward of _fsdp_param_group.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple


class Wait(NamedTuple):
    """Stops the computation until these calls have ended. Unknown calls are ignored."""

    calls: tuple[Hashable, ...]


class Mark(NamedTuple):
    """Names this moment of the computation, for the ``after`` of later calls."""

    event: Hashable


@dataclass(frozen=True)
class Memory:
    """Bytes that a rank needs. Activations are an approximation.

    - buffers: whole parameters and gradients of FSDP2 at their peak, or DDP's buckets.
    - activations: kept until the backward pass, by fused kernels.
    - peak: on top of them, at the begin of the backward pass or in it: logits and their gradient,
      or a layer that is computed again.
    - unfused: what kernels that are not fused keep besides.
    """

    parameters: float
    gradients: float
    optimizer: float
    buffers: float
    activations: float
    peak: float = 0.0
    unfused: float = 0.0

    @property
    def most(self) -> float:
        """The memory with kernels that are not fused."""
        return self.total + self.unfused

    @property
    def total(self) -> float:
        kept = self.parameters + self.gradients + self.optimizer + self.buffers
        return kept + self.activations + self.peak


FORWARD, BACKWARD = "forward", "backward"
COPIED_OUT = "copied out"  # event: the parameters of the last all_gather were copied out


class SentCall(NamedTuple):
    """A call.

    - group: the name of its group.
    - size_bytes: the size S of nccl-tests.
    - what: what it carries, such as ``gradients``.
    """

    group: str
    collective: str
    size_bytes: int
    what: str = ""


class PassWork(NamedTuple):
    """A share of the computation of a pass (FORWARD or BACKWARD) of the step."""

    phase: str
    share: float


class BeginCall(NamedTuple):
    """Issues a call. It starts when the earlier calls of its lane have ended, and not before
    ``after``.

    - name: its end, for Wait and ``after``.
    - after: a call or a Mark. An event that has not happened counts as time 0; None means now.
    - module: the module or parameters behind it, by name in the model; '' if it has none.
    """

    name: Hashable
    sent: SentCall
    after: Hashable | None = None
    module: str = ""


class Idle(NamedTuple):
    """Waiting for other stages of a pipeline: while these do a share of a step's computation, and
    ``times`` the blocking calls of a micro-batch, and for calls.
    """

    share: float
    times: float
    blocking: tuple[SentCall, ...]
    waited: tuple[SentCall, ...]


class RepeatedActs(NamedTuple):
    """Micro-batches that are alike: these acts ``times`` times. One is simulated, and each of the
    others takes as long.
    """

    acts: tuple[ProgramAct, ...]
    times: int


ProgramAct = PassWork | BeginCall | Wait | Mark | Idle | RepeatedActs


@dataclass(frozen=True)
class StepProgram:
    """The acts of a step."""

    acts: tuple[ProgramAct, ...]

    def calls(self) -> Iterator[tuple[BeginCall, int]]:
        """Yields each call, and how often it is made."""
        for act in self.acts:
            repeated, times = (
                (act.acts, act.times) if isinstance(act, RepeatedActs) else ((act,), 1)
            )
            for inner in repeated:
                if isinstance(inner, BeginCall):
                    yield inner, times

    @property
    def counts(self) -> Counter[SentCall]:
        """How often each call is made in the step."""
        counts: Counter[SentCall] = Counter()
        for act, times in self.calls():
            if act.sent.size_bytes:
                counts[act.sent] += times
        return counts

    @property
    def modules(self) -> dict[SentCall, tuple[str, ...]]:
        """The modules behind each call, in the order in which they first make it."""
        names: dict[SentCall, dict[str, None]] = {}
        for act, _ in self.calls():
            if act.module:
                names.setdefault(act.sent, {})[act.module] = None
        return {sent: tuple(modules) for sent, modules in names.items()}

    def waiting_for(self, collectives: Set[str]) -> StepProgram:
        """Returns the program in which each call of these collectives is waited for at once, so
        that the host cannot run ahead either.
        """
        acts: list[ProgramAct] = []
        for act in self.acts:
            if isinstance(act, RepeatedActs):
                acts.append(
                    RepeatedActs(StepProgram(act.acts).waiting_for(collectives).acts, act.times)
                )
            elif isinstance(act, BeginCall) and act.sent.collective in collectives:
                acts += [act._replace(after=None), Wait((act.name,))]
            else:
                acts.append(act)
        return StepProgram(tuple(acts))

    def step_ns(
        self,
        time_ns: Callable[[SentCall], float],
        passes_ns: Mapping[str, float],
        lanes: Mapping[str, str] | None = None,
    ) -> float:
        """Returns the duration of the step, until the computation and all calls have ended.

        - time_ns: returns the duration of a call.
        - passes_ns: durations of the computation of FORWARD and BACKWARD in the step.
        - lanes: for each group the lane of its calls, which do not overlap. A group that is not in
          it has its own.
        """
        state = _Moment(lanes or {}, time_ns, passes_ns)
        state.run(self.acts)
        return max([state.now, *state.free.values()])

    def idle_ns(
        self, time_ns: Callable[[SentCall], float], passes_ns: Mapping[str, float]
    ) -> float:
        """Returns how long the rank waits for the other stages of the pipeline (the bubble)."""
        idle = [act for act in self.acts if isinstance(act, Idle)]
        return sum(_idle_ns(act, time_ns, passes_ns) for act in idle)


class _Moment:
    """A moment of a step: ``now`` of the computation, when the last call of each lane ends, and
    when each event happened.
    """

    def __init__(
        self,
        lanes: Mapping[str, str],
        time_ns: Callable[[SentCall], float],
        passes_ns: Mapping[str, float],
    ) -> None:
        self.lanes, self.time_ns, self.passes_ns = lanes, time_ns, passes_ns
        self.now = 0.0
        self.free: dict[str, float] = {}
        self.events: dict[Hashable, float] = {}

    def run(self, acts: Sequence[ProgramAct]) -> None:
        free, events = self.free, self.events
        for act in acts:
            if isinstance(act, PassWork):
                self.now += act.share * self.passes_ns[act.phase]
            elif isinstance(act, BeginCall):
                lane = self.lanes.get(act.sent.group, act.sent.group)
                ready = self.now if act.after is None else events.get(act.after, 0.0)
                free[lane] = max(ready, free.get(lane, 0.0)) + self.time_ns(act.sent)
                events[act.name] = free[lane]
            elif isinstance(act, Wait):
                self.now = max([self.now, *(events.get(call, 0.0) for call in act.calls)])
            elif isinstance(act, Mark):
                events[act.event] = self.now
            elif isinstance(act, Idle):
                self.now += _idle_ns(act, self.time_ns, self.passes_ns)
            else:
                self._repeat(act)

    def _repeat(self, repeat: RepeatedActs) -> None:
        now, free = self.now, dict(self.free)
        self.run(repeat.acts)
        more = repeat.times - 1
        later = more * (self.now - now)
        lanes = {
            lane: more * (end - free[lane]) if lane in free else later
            for lane, end in self.free.items()
        }
        self.now += later
        for lane in self.free:
            self.free[lane] += lanes[lane]
        marks = {act.event for act in repeat.acts if isinstance(act, Mark)}
        for event in marks:
            self.events[event] += later
        for act in repeat.acts:
            if isinstance(act, BeginCall):
                group = act.sent.group
                self.events[act.name] += lanes[self.lanes.get(group, group)]


def _idle_ns(
    act: Idle, time_ns: Callable[[SentCall], float], passes_ns: Mapping[str, float]
) -> float:
    blocking = act.times * sum(map(time_ns, act.blocking))
    return blocking + act.share * sum(passes_ns.values()) + sum(map(time_ns, act.waited))


class ProgramWriter:
    """Writes a program: gives each call a name of its own."""

    def __init__(self) -> None:
        self.acts: list[ProgramAct] = []
        self._count = 0

    def work(self, phase: str, share: float) -> None:
        if share:
            self.acts.append(PassWork(phase, share))

    def start(self, sent: SentCall, after: Hashable | None = None, module: str = "") -> Hashable:
        """Issues a call of a module and returns its name."""
        self._count += 1
        self.acts.append(BeginCall(self._count, sent, after, module))
        return self._count

    def block(self, calls: Sequence[SentCall], module: str = "") -> None:
        """Issues each call of a module and waits for it."""
        for sent in calls:
            self.acts.append(Wait((self.start(sent, module=module),)))

    def wait(self, *names: Hashable) -> None:
        self.acts.append(Wait(names))

    def mark(self, event: Hashable) -> None:
        self.acts.append(Mark(event))

    def micro_batches(self, count: int) -> Iterator[tuple[bool, bool]]:
        """Yields for each micro-batch to be written whether it is the first and the last one. The
        third one stands for all up to the last.
        """
        written = min(count, 4)
        for number in range(written):
            start = len(self.acts)
            yield number == 0, number == written - 1
            if number == 2 and count > written:
                self.acts[start:] = [RepeatedActs(tuple(self.acts[start:]), count - 3)]

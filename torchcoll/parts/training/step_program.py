"""A training step on one rank as data: its computation, its calls, and what waits for what.

A program is a list of acts in the order in which the host issues them, with calls in the place of
durations. ``bind`` gives each its time (``Act``), and ``step_ns`` the duration of them all: one
lane computes, and each group has its own lane, on which its calls run one after the other, as they
do in one communicator; calls of different groups do not slow each other down.

FSDP2: a unit computes when its all_gather has ended. On an accelerator the next all_gather runs
during that computation: in the forward pass because the host runs ahead, in the backward pass
because FSDP2 prefetches. It is at most one ahead, because it waits until the one before is copied
out (COPIED_OUT). A reduce_scatter starts when the backward pass of its unit has ended, and the next
unit does not send before it has ended, because the input buffer is in use until then. Calls of one
group run one after the other, as in one communicator; the all_reduce of HSDP is in a group of its
own. Not modelled: copying in and out, ranks that wait for each other, and communication that slows
the computation down.

Source: torch/distributed/fsdp/_fully_shard of torch 2.13: unshard, wait_for_unshard,
_backward_prefetch and post_backward of _fsdp_param_group.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple


class Compute(NamedTuple):
    """Computation of ``time_ns``, which overlaps with the calls in flight."""

    time_ns: float


class Send(NamedTuple):
    """A call of ``group`` that takes ``time_ns``.

    - call: the name of its end, for Wait and ``after``.
    - after: the event before which it does not start: a call or a Mark. An event that has not
      happened counts as time 0; None means now.

    It starts when the earlier calls of its group have ended, and not before ``after``.
    """

    call: Hashable
    group: str
    time_ns: float
    after: Hashable | None = None


class Wait(NamedTuple):
    """Stops the computation until these calls have ended. Unknown calls are ignored."""

    calls: tuple[Hashable, ...]


class Mark(NamedTuple):
    """Names this moment of the computation, for the ``after`` of later calls."""

    event: Hashable


Act = Compute | Send | Wait | Mark


def step_ns(acts: Iterable[Act]) -> float:
    """Returns the duration of the step (ns), until the computation and all calls have ended."""
    now = 0.0
    free: dict[str, float] = {}  # when the last call of each group ends
    events: dict[Hashable, float] = {}
    for act in acts:
        if isinstance(act, Compute):
            now += act.time_ns
        elif isinstance(act, Send):
            ready = now if act.after is None else events.get(act.after, 0.0)
            free[act.group] = max(ready, free.get(act.group, 0.0)) + act.time_ns
            events[act.call] = free[act.group]
        elif isinstance(act, Wait):
            now = max([now, *(events.get(call, 0.0) for call in act.calls)])
        else:
            events[act.event] = now
    return max([now, *free.values()])


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


# What a call can overlap with.
BLOCKS = "nothing: computation waits"
NEXT_LAYER = "the layer before it"
REST_OF_BACKWARD = "the rest of the backward pass"
OTHER_MICRO_BATCHES = "other micro-batches"
SHARED_EXPERTS = "shared experts, if the program does so"
NEXT_FORWARD = "the next forward pass"


class SentCall(NamedTuple):
    """A call.

    - group: the name of its group.
    - size_bytes: the size S of nccl-tests.
    - what: what it carries, such as ``gradients``.
    - overlaps: the computation, or the calls, with which it can overlap.
    """

    group: str
    collective: str
    size_bytes: int
    what: str = ""
    overlaps: str = ""


class PassWork(NamedTuple):
    """A share of the computation of a pass (FORWARD or BACKWARD) of the step."""

    phase: str
    share: float


class BeginCall(NamedTuple):
    """Issues a call.

    - name: its end, for Wait.
    - after: as in Send.
    - module: the module or parameters behind it, by name in the model; '' if it has none.
    """

    name: Hashable
    sent: SentCall
    after: Hashable | None = None
    module: str = ""


class Idle(NamedTuple):
    """Waiting for other stages of a pipeline: ``times`` the work and blocking calls of a
    micro-batch, and calls that are waited for.
    """

    times: float
    share: float
    blocking: tuple[SentCall, ...]
    waited: tuple[SentCall, ...]


ProgramAct = PassWork | BeginCall | Wait | Mark | Idle


@dataclass(frozen=True)
class StepProgram:
    """The acts of a step."""

    acts: tuple[ProgramAct, ...]

    @property
    def counts(self) -> Counter[SentCall]:
        """How often each call is made in the step."""
        return Counter(
            act.sent for act in self.acts if isinstance(act, BeginCall) if act.sent.size_bytes
        )

    @property
    def modules(self) -> dict[SentCall, tuple[str, ...]]:
        """The modules behind each call, in the order in which they first make it."""
        names: dict[SentCall, dict[str, None]] = {}
        for act in self.acts:
            if isinstance(act, BeginCall) and act.module:
                names.setdefault(act.sent, {})[act.module] = None
        return {sent: tuple(modules) for sent, modules in names.items()}

    def waiting_for(self, collectives: Set[str]) -> StepProgram:
        """Returns the program in which each call of these collectives is waited for at once, so
        that the host cannot run ahead either.
        """
        acts: list[ProgramAct] = []
        for act in self.acts:
            if isinstance(act, BeginCall) and act.sent.collective in collectives:
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
        """Returns the duration of the step.

        - time_ns: returns the duration of a call.
        - passes_ns: durations of the computation of FORWARD and BACKWARD in the step.
        - lanes: for each group the lane of its calls, which do not overlap. A group that is not in
          it has its own.
        """
        return step_ns(bind(self.acts, time_ns, passes_ns, lanes or {}))

    def idle_ns(
        self, time_ns: Callable[[SentCall], float], passes_ns: Mapping[str, float]
    ) -> float:
        """Returns how long the rank waits for the other stages of the pipeline (the bubble)."""
        idle = [act for act in self.acts if isinstance(act, Idle)]
        return sum(_idle_ns(act, time_ns, passes_ns) for act in idle)


def _idle_ns(
    act: Idle, time_ns: Callable[[SentCall], float], passes_ns: Mapping[str, float]
) -> float:
    blocking = sum(map(time_ns, act.blocking)) + act.share * sum(passes_ns.values())
    return act.times * blocking + sum(map(time_ns, act.waited))


def bind(
    acts: Iterable[ProgramAct],
    time_ns: Callable[[SentCall], float],
    passes_ns: Mapping[str, float],
    lanes: Mapping[str, str],
) -> list[Act]:
    """Returns the acts with their durations; lanes: as in ``StepProgram.step_ns``."""
    bound: list[Act] = []
    for act in acts:
        if isinstance(act, PassWork):
            bound.append(Compute(act.share * passes_ns[act.phase]))
        elif isinstance(act, BeginCall):
            group = act.sent.group
            bound.append(Send(act.name, lanes.get(group, group), time_ns(act.sent), act.after))
        elif isinstance(act, Idle):
            bound.append(Compute(_idle_ns(act, time_ns, passes_ns)))
        else:
            bound.append(act)
    return bound


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

"""A training step on one rank as data: its computation, its calls, and what waits for what.

A program is a list of acts in the order in which the host issues them, with calls in the place of
durations (``Act`` of training/timeline.py has durations). ``bind`` gives each its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from torchcoll.parts.training import timeline
from torchcoll.parts.training.timeline import Compute, Mark, Send, Wait

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
    - after: as in timeline.Send.
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
        return timeline.step_ns(bind(self.acts, time_ns, passes_ns, lanes or {}))

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
) -> list[timeline.Act]:
    """Returns the acts with their durations; lanes: as in ``StepProgram.step_ns``."""
    bound: list[timeline.Act] = []
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

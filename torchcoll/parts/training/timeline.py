"""The timeline of one training step on one rank: its computation and the concurrent calls.

A step is a list of acts in the order in which the host issues them. One lane computes. Each group
has its own lane, on which its calls run one after the other, as they do in one communicator; calls
of different groups do not slow each other down. The duration of each call is given.

FSDP2 (training/sharded.py) and a plan from a model's shape
(training/projection.py) describe their step as such acts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
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

"""A training step of FSDP2 as data, and the time and the memory that it takes on measured curves.

The model, as simple as it can be said. Forward and backward pass take times that are given, each
unit a part in proportion to its parameters. Before a unit computes, its all_gather has ended. On an
accelerator the next one runs beside that computation: in the forward pass because the host runs
ahead, in the backward pass because FSDP2 prefetches; at most one ahead, for it waits until the one
before is copied out. A reduce_scatter starts when its unit's backward pass has ended, and the next
unit does not send before it has (the input buffer is kept so long). Calls of one group run one
after the other, as they do in one communicator; the all_reduce of HSDP is in a group of its own.
*Exposed* is the end of the step without the optimiser, less both passes; the rest is hidden.

On CPUs all of it is exposed: FSDP2 waits there for each call. Not in it: copying in and out, ranks
that wait for each other, and communication that slows the computation down.

Source: torch/distributed/fsdp/_fully_shard of torch 2.13: unshard, wait_for_unshard,
_backward_prefetch and post_backward of _fsdp_param_group.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torchcoll.core.traffic import Traffic
from torchcoll.training import timeline
from torchcoll.training.timeline import Compute, Mark, Send, Wait

FORWARD, BACKWARD = "forward", "backward"
UNSHARD, USE, SEND = "unshard", "use", "send gradients"
_COPIED_OUT = "copied out"  # the last unit whose parameters were copied out of its all_gather


class Act(NamedTuple):
    """What one unit does next, in the order in which the host issues it.

    kind: UNSHARD (issues an all_gather), USE (waits for it), FORWARD and BACKWARD (compute
    ``elements`` parameters' worth), SEND (issues a reduce_scatter of gradients, and on replicas the
    all_reduce after it). calls: their places in the calls of the plan.
    """

    kind: str
    unit: int
    calls: tuple[int, ...] = ()
    elements: int = 0


@dataclass(repr=False)
class ShardPlan(Traffic):
    """One step of FSDP2 on paper: its calls on rank 0, which stands for all, and the acts around.

    choice: what was chosen of wrapping and resharding, in words. sharded_bytes: what one rank keeps
    of the parameters and of their gradients. peak_bytes: most that it holds besides at a time, of
    whole parameters, whole gradients and what is being reduced; activations and the state of the
    optimiser come on top of both, alike for every choice.
    """

    choice: str = ""
    acts: list[Act] = field(default_factory=list)
    sharded_bytes: int = 0
    peak_bytes: int = 0


class Spent(NamedTuple):
    """Times of one step in ns: all calls one after the other, and what is left of them exposed."""

    communication_ns: float
    exposed_ns: float


def spent(
    plan: ShardPlan, times_ns: Sequence[float], passes_ns: Mapping[str, float], hides: bool
) -> Spent:
    """The model above. times_ns: of each call. passes_ns: of FORWARD and BACKWARD; empty where
    they are not known, and then only communication_ns means anything.
    """
    together = sum(times_ns)
    if not hides:
        return Spent(together, together)
    calls = plan.calls[0]
    whole = {
        kind: sum(act.elements for act in plan.acts if act.kind == kind) or 1 for kind in passes_ns
    }
    acts: list[timeline.Act] = []
    reduced: int | None = None  # the reduce_scatter whose input buffer is still in use
    gathered: dict[int, int] = {}  # unit -> its all_gather
    for act in plan.acts:
        if act.kind in (FORWARD, BACKWARD):
            if act.kind in passes_ns:
                acts.append(Compute(passes_ns[act.kind] * act.elements / whole[act.kind]))
        elif act.kind == UNSHARD:
            gathered[act.unit] = place = act.calls[0]
            acts.append(Send(place, calls[place].group, times_ns[place], after=_COPIED_OUT))
        elif act.kind == USE:
            acts += [Wait((gathered.get(act.unit),)), Mark(_COPIED_OUT)]
        else:
            acts.append(Wait((reduced,)))
            after: int | None = None
            for place in act.calls:
                acts.append(Send(place, calls[place].group, times_ns[place], after))
                after = place
            reduced = act.calls[0]
    return Spent(together, timeline.step_ns(acts) - sum(passes_ns.values()))

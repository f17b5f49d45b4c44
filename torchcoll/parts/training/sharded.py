"""A training step of FSDP2 as data, with its time and memory on measured curves.

The model is deliberately simple. The times of the forward and the backward pass are given, and each
unit takes a share in proportion to its parameters. A unit computes when its all_gather has ended.
On an accelerator the next all_gather runs during that computation: in the forward pass because the
host runs ahead, in the backward pass because FSDP2 prefetches. It is at most one ahead, because it
waits until the one before is copied out. A reduce_scatter starts when the backward pass of its unit
has ended, and the next unit does not send before it has ended, because the input buffer is in use
until then. Calls of one group run one after the other, as in one communicator; the all_reduce of
HSDP is in a group of its own. *Exposed* is the duration of the step without the optimiser, less
both passes; the rest of the communication is hidden.

On CPUs all communication is exposed, because FSDP2 waits for each call there. Not modelled: copying
in and out, ranks that wait for each other, and communication that slows the computation down.

Source: torch/distributed/fsdp/_fully_shard of torch 2.13: unshard, wait_for_unshard,
_backward_prefetch and post_backward of _fsdp_param_group.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from torchcoll.core.traffic import Traffic
from torchcoll.parts.training.timeline import Mark, Wait

FORWARD, BACKWARD = "forward", "backward"
UNSHARD, USE, SEND = "unshard", "use", "send gradients"
AnyAct = TypeVar("AnyAct")
_COPIED_OUT = "copied out"  # event: the parameters of the last all_gather were copied out


class UnitAct(NamedTuple):
    """One act of a unit, in the order in which the host issues them.

    - kind: UNSHARD (issues an all_gather), USE (waits for it), FORWARD and BACKWARD (compute the
      share of ``elements`` parameters), SEND (issues a reduce_scatter of gradients, and with
      replicas the all_reduce after it).
    - calls: indices of its calls in the plan.
    """

    kind: str
    unit: int
    calls: tuple[int, ...] = ()
    elements: int = 0


@dataclass(repr=False)
class ShardPlan(Traffic):
    """One step of FSDP2 without running it: the calls of rank 0, which stands for all, and their
    acts.

    - choice: the chosen wrapping and resharding, in words.
    - sharded_bytes: bytes of the parameters and gradients that one rank keeps.
    - peak_bytes: the largest number of further bytes that it holds at a time: whole parameters,
      whole gradients and what is being reduced. Activations and the optimiser state come on top of
      both, equally for every choice.
    """

    choice: str = ""
    acts: list[UnitAct] = field(default_factory=list)
    sharded_bytes: int = 0
    peak_bytes: int = 0


def step_acts(
    plan: ShardPlan,
    send: Callable[[int, Hashable | None], AnyAct],
    compute: Callable[[str, float], AnyAct],
) -> list[AnyAct | Wait | Mark]:
    """Returns the acts of a step by the model above.

    - send: returns the act that issues a call: its index in the plan, and what it comes after.
    - compute: returns the act that computes a share of FORWARD or BACKWARD.
    """
    whole = {
        kind: sum(act.elements for act in plan.acts if act.kind == kind) or 1
        for kind in (FORWARD, BACKWARD)
    }
    acts: list[AnyAct | Wait | Mark] = []
    reduced: int | None = None  # the reduce_scatter whose input buffer is still in use
    gathered: dict[int, int] = {}  # unit -> its all_gather
    for act in plan.acts:
        if act.kind in whole:
            acts.append(compute(act.kind, act.elements / whole[act.kind]))
        elif act.kind == UNSHARD:
            gathered[act.unit] = act.calls[0]
            acts.append(send(act.calls[0], _COPIED_OUT))
        elif act.kind == USE:
            acts += [Wait((gathered.get(act.unit),)), Mark(_COPIED_OUT)]
        else:
            acts.append(Wait((reduced,)))
            after: int | None = None
            for call_index in act.calls:
                acts.append(send(call_index, after))
                after = call_index
            reduced = act.calls[0]
    return acts

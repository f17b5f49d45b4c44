"""Cases that call the backend through torch's functional collectives or DTensor.

Loaded if a case asks for it. Each call allocates its result, as it does for users of these APIs,
and waits for it: both are part of the time. Verification copies the result of its own call into the
receive buffer afterwards.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torchcoll.bench.verify import Buffers
from torchcoll.core.case import DTENSOR, Case, SizedCase
from torchcoll.core.errors import brief
from torchcoll.core.implementations import API_CALLS
from torchcoll.machine.devices import Call

if TYPE_CHECKING:
    from torchcoll.bench.session import Rank


def prepare_call(local: Rank, sizing: SizedCase, index: int, buffers: Buffers, group: Any) -> Call:
    """Return the call of a case on the current buffers. It sets ``buffers.returned``.

    index: the rank within the group. group: None is the default group.

    What the installed torch refuses is raised by the first call, where the ranks agree on it.
    """
    case = sizing.case
    group = group or local.dist.distributed_c10d._get_default_group()
    functional = importlib.import_module("torch.distributed._functional_collectives")
    make = _dtensor if case.implementation == DTENSOR else partial(_functional, functional)
    try:
        issue = make(case, sizing, index, buffers, group)
    except (ImportError, AttributeError, ValueError, AssertionError, RuntimeError) as error:
        return partial(_refuse, brief(error))
    recv, pending_type = buffers.recv, functional.AsyncCollectiveTensor

    def call() -> None:
        buffers.returned = None  # frees the last result first: no two are held at a time
        result = issue()
        if isinstance(result, pending_type):
            result = result.wait()
        buffers.returned = recv, result

    return call


def _functional(
    functional: Any, case: Case, sizing: SizedCase, index: int, buffers: Buffers, group: Any
) -> Callable[[], Any]:
    entry, send = API_CALLS[case.collective], buffers.send
    function = next(f for name in entry.functions if (f := getattr(functional, name, None)))
    sent = received = None
    if sizing.division:
        pair, ranks = sizing.division.pair, range(sizing.ranks)
        sent = [pair(index, peer) for peer in ranks]
        received = [pair(peer, index) for peer in ranks]
        send = send.narrow(0, 0, sum(sent))  # the buffer is larger if blocks move on
    return partial(function, send, *entry.arguments(_op_name(case), received, sent, group))


def _dtensor(
    case: Case, sizing: SizedCase, index: int, buffers: Buffers, group: Any
) -> Callable[[], Any]:
    """Return a redistribution between the placements that need this collective."""
    tensor = importlib.import_module("torch.distributed.tensor")
    arguments = {"Partial": (_op_name(case),), "Shard": (0,), "Replicate": ()}
    names = API_CALLS[case.collective].placements
    assert names is not None
    before, after = ([getattr(tensor, name)(*arguments[name])] for name in names)
    mesh = tensor.DeviceMesh.from_group(group, case.device)
    source = tensor.DTensor.from_local(buffers.send, mesh, before, run_check=False)
    return lambda: source.redistribute(placements=after).to_local()


def _op_name(case: Case) -> str:
    return "product" if case.op == "prod" else case.op or ""


def _refuse(reason: str) -> None:
    raise NotImplementedError(reason)

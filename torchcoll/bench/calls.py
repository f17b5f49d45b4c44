"""Calls other than plain ones: asynchronous, several in a group, through torch's functional
collectives or DTensor (with the allocation of the result), or kernels of symmetric memory.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torchcoll.bench.verify import Buffers
from torchcoll.core.case import DTENSOR, Case, SizedCase
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import brief
from torchcoll.core.implementations import API_CALLS, call_of, kernel_of
from torchcoll.machine.devices import Call

if TYPE_CHECKING:
    from torchcoll.bench.communicators import Communicator
    from torchcoll.bench.session import Rank


def asynchronous_call(case: Case, once: Call) -> Call:
    """``once`` and a wait. If that is impossible, the first call is refused."""
    if not isinstance(once, partial):
        return _refuse(f"{case.collective} is several calls, which wait for each other")
    issue = partial(once, async_op=True)
    return lambda: issue().wait()


def coalesced_call(local: Rank, case: Case, once: Call, communicator: Communicator) -> Call:
    """Several times ``once`` in a group. If that is impossible, the first call is refused."""
    entry = COLLECTIVES[case.collective]
    if not entry.has_data:
        return _refuse(f"a {case.collective} waits on the host, so several are no group")
    if not isinstance(once, partial):
        return _refuse(f"{case.collective} is a group of calls itself")
    group = communicator.group
    device: Any = local.torch.device(local.device.name)
    if case.device in communicator.backend.groups_alone:
        if not entry.collected:
            # They would be made one by one, which is no row of a group.
            return _refuse(f"{case.backend} has no group of {case.collective} on {case.device}")
        device = None
    manage = local.dist._coalescing_manager
    calls = range(case.coalesce)

    def coalesced() -> None:
        try:
            with manage(group, device):
                for _ in calls:
                    once()
        except BaseException:
            # torch leaves the group open: it would keep all calls to come, and make none of them.
            world = local.dist.distributed_c10d
            whole = group or world._get_default_group()
            world._world.pg_coalesce_state.pop(whole, None)
            if device:
                with contextlib.suppress(RuntimeError):
                    whole._end_coalescing(device)
            raise

    return coalesced


def _refuse(reason: str) -> Call:
    def refuse() -> None:
        raise NotImplementedError(reason)

    return refuse


def kernel_call(local: Rank, case: Case, buffers: Buffers, group: Any) -> Call:
    """The call of a kernel of torch's symmetric memory. group: None is the default one."""
    kernel = kernel_of(case)
    assert kernel is not None
    group = group or local.dist.distributed_c10d._get_default_group()
    return call_of(local.torch, kernel, buffers.send, buffers.recv, group.group_name)


def functional_call(
    local: Rank, sizing: SizedCase, index: int, buffers: Buffers, group: Any
) -> Call:
    """A call that sets ``buffers.returned``. If torch refuses it, the first call is refused."""
    case = sizing.case
    group = group or local.dist.distributed_c10d._get_default_group()
    functional = importlib.import_module("torch.distributed._functional_collectives")
    make = _dtensor if case.implementation == DTENSOR else partial(_functional, functional)
    try:
        issue = make(case, sizing, index, buffers, group)
    except (ImportError, AttributeError, ValueError, AssertionError, RuntimeError) as error:
        return _refuse(brief(error))
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

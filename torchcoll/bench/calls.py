"""Calls as cases make them otherwise than plainly: asynchronous, or several in one group.

Loaded where a case asks for it.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from torchcoll.core.case import Case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.machine.devices import Call

if TYPE_CHECKING:
    from torchcoll.bench.communicators import Communicator
    from torchcoll.bench.session import Rank


def called(local: Rank, case: Case, once: Call, communicator: Communicator) -> Call:
    """``once`` as the case makes it; what cannot be made so is refused in the first call."""
    if case.asynchronous:
        return _asynchronous(case, once)
    return _coalesced(local, case, once, communicator) if case.coalesce > 1 else once


def _asynchronous(case: Case, once: Call) -> Call:
    if not isinstance(once, partial):
        return _refuse(f"{case.collective} is several calls, which wait for each other")
    issue = partial(once, async_op=True)
    return lambda: issue().wait()


def _coalesced(local: Rank, case: Case, once: Call, communicator: Communicator) -> Call:
    entry = COLLECTIVES[case.collective]
    if not entry.has_data:
        return _refuse(f"a {case.collective} waits on the host, so several are no group")
    if not isinstance(once, partial):
        return _refuse(f"{case.collective} is a group of calls itself")
    group = communicator.group
    device: Any = local.torch.device(local.device.name)
    if case.device in communicator.backend.groups_alone:
        if not entry.collected:
            # They would be made one by one, which a row of a group must not tell.
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

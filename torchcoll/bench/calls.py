"""Calls as cases make them otherwise than plainly: asynchronous, or several in one group.

Loaded where a case asks for it.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from torchcoll.bench.device import Call
from torchcoll.core.case import Case

if TYPE_CHECKING:
    from torchcoll.bench.runner import Session


def called(session: Session, case: Case, once: Call, group: Any) -> Call:
    """``once`` as the case makes it; what cannot be made so is refused in the first call."""
    if case.asynchronous:
        return _asynchronous(case, once)
    return _coalesced(session, case, once, group) if case.coalesce > 1 else once


def _asynchronous(case: Case, once: Call) -> Call:
    if not isinstance(once, partial):
        return _refuse(f"{case.collective} is several calls, which wait for each other")
    issue = partial(once, async_op=True)
    return lambda: issue().wait()


def _coalesced(session: Session, case: Case, once: Call, group: Any) -> Call:
    if case.collective == "barrier":
        return _refuse("a barrier waits on the host, so several are no group")
    if not isinstance(once, partial):
        return _refuse(f"{case.collective} is a group of calls itself")
    device = session.torch.device(session.device.name)
    manage = session.dist._coalescing_manager
    calls = range(case.coalesce)

    def coalesced() -> None:
        try:
            with manage(group, device):
                for _ in calls:
                    once()
        except BaseException:
            # torch leaves the group open: it would keep all calls to come, and make none of them.
            world = session.dist.distributed_c10d
            whole = group or world._get_default_group()
            world._world.pg_coalesce_state.pop(whole, None)
            with contextlib.suppress(RuntimeError):
                whole._end_coalescing(device)
            raise

    return coalesced


def _refuse(reason: str) -> Call:
    def refuse() -> None:
        raise RuntimeError(reason)

    return refuse

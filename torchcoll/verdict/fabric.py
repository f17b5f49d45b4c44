"""Which fabric a run was measured on: stated, or shown by the links that its ranks recorded."""

from __future__ import annotations

import os
from collections.abc import Sequence

from torchcoll.core.errors import UsageError
from torchcoll.core.hardware import device_of
from torchcoll.core.result import Run
from torchcoll.verdict.rules import Fabric, guessable, load_fabric


def fabric_of(
    run: Run, stated: str | None = None, own: Sequence[str | os.PathLike[str]] = ()
) -> Fabric | None:
    """The fabric that is stated (else by the label ``fabric``), or recognised; None: not known.

    Raises UsageError for one that is not there, or that cannot be the run's.
    """
    stated = stated or run.labels.get("fabric")
    hosts = len({m["host"] for m in run.members if m.get("host")})
    if not stated:
        return _recognised(run, hosts)
    fabric = load_fabric(stated, own)
    if hosts and fabric.several_hosts != (hosts > 1):
        kind = "several hosts" if fabric.several_hosts else "one host"
        got = f"{fabric.name} for a run on {hosts} host{'s' if hosts > 1 else ''}"
        raise UsageError("fabric", got, f"a fabric of this run; {fabric.name} is for {kind}")
    return fabric


def _recognised(run: Run, hosts: int) -> Fabric | None:
    device = device_of(run)
    links = {(m.get("nvlinks"), m.get("nvlink_to_switch")) for m in run.members}
    if device is None or hosts != 1 or len(links) != 1:
        return None
    count, to_switch = links.pop()
    for fabric in guessable():
        same = fabric.nvlinks == count and fabric.to_switch == to_switch
        if device.name in fabric.devices and same:
            return fabric
    return None

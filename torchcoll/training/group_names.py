"""Process groups as a Traffic names them, and what its header says of the process."""

from __future__ import annotations

import platform
import socket
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from torchcoll.core.traffic import Group, Traffic


class GroupNames:
    """The names of process groups in one traffic, whose groups it fills. torch gives a name again
    when a group was destroyed: with other members it becomes ``NAME@2`` (``join`` tells the ranks
    apart that saw other ones).
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        # By the object, which must not live longer for being known here.
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def of(self, group: Any, device: torch.device) -> str:
        """device: of the tensors, which tells the backend that serves them."""
        name = self._names.get(group)
        if name is None:
            try:
                ranks = tuple(dist.get_process_group_ranks(group))
            except (KeyError, ValueError, RuntimeError):  # made by hand, beside torch.distributed
                ranks = ()
            try:
                backend = str(group._get_backend(device).name())
            except RuntimeError:
                backend = ""
            if backend in ("", "custom"):  # of a backend that is not torch's own it may say no more
                backend = str(dist.get_backend(group)) if ranks else ""
            new = Group(str(group.group_name), ranks, backend, str(group.group_desc))
            name = self._names[group] = self._traffic.add_group(new)
        return name


def unboxed(group: Any) -> Any:
    """The ProcessGroup of an operator's argument: itself, in a box, or its name; None: unknown."""
    try:
        if isinstance(group, str):
            return dist.distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
        return dist.ProcessGroup.unbox(group) if isinstance(group, torch.ScriptObject) else group
    except (RuntimeError, TypeError, ValueError):
        return None


def environment(seen_by: str) -> dict[str, Any]:
    """What the header of the traffic says of this process."""
    from torchcoll import __version__

    return {
        "torchcoll": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "backend": str(dist.get_backend()),
        "seen_by": seen_by,
    }

"""Process groups as a Traffic names them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from torchcoll.core.traffic import Group


def unboxed(group: Any) -> Any:
    """The ProcessGroup of an operator's argument: itself, in a box, or its name; None: unknown."""
    try:
        if isinstance(group, str):
            return dist.distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
        return dist.ProcessGroup.unbox(group) if isinstance(group, torch.ScriptObject) else group
    except (RuntimeError, TypeError, ValueError):
        return None


def group_of(group: Any, device: torch.device) -> Group:
    """Its name, its ranks of the world, and the backend that serves tensors on that device."""
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
    return Group(str(group.group_name), ranks, backend, str(group.group_desc))


def environment(seen_by: str) -> dict[str, Any]:
    """What the header of the traffic says of this process."""
    import platform
    import socket

    from torchcoll import __version__

    return {
        "torchcoll": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "backend": str(dist.get_backend()),
        "seen_by": seen_by,
    }

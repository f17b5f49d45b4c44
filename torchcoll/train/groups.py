"""Process groups as a Traffic names them."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from torchcoll.core.traffic import Group, Traffic

_captures: Counter[Path] = Counter()  # of this process, by the folder


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
        name = self._names.get(group)
        if name is None:
            found = group_of(group, device)
            name = self._names[group] = self._traffic.add_group(found)
        return name


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


def capture_name(folder: Path) -> str | None:
    """The same on all ranks for their captures of that number into the folder, and later than those
    before: when the first rank began it. None where the ranks have no store in common.
    """
    _captures[folder] += 1
    utc = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
    key = f"torchcoll/capture/{folder}/{restart}/{_captures[folder]}"
    try:
        store = dist.distributed_c10d._get_default_store()
        told: bytes = store.compare_set(key, "", f"{utc} {secrets.token_hex(4)}")
        return told.decode()
    except Exception:  # stores of others: training goes on without
        return None


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

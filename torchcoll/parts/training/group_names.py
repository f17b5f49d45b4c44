"""The names of process groups in a Traffic, and the environment recorded in its header."""

from __future__ import annotations

import contextlib
import platform
import socket
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist

from torchcoll.core.traffic import Group, Traffic


class GroupNames:
    """Names the process groups of one Traffic and adds them to it.

    torch reuses the name of a destroyed group. A group with the same name and other members becomes
    ``NAME@2`` (``join`` separates ranks that saw different ones).
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        # By id, with a weak reference, so that a process group can be freed. A WeakKeyDictionary
        # is slower.
        self._groups: dict[int, tuple[ref[Any], Group]] = {}

    def group(self, group: Any, device: torch.device) -> Group:
        """Returns a process group as the traffic has it.

        - device: the device of the tensors, which determines the backend that serves them.
        """
        seen = self._groups.get(id(group))
        if seen is None or seen[0]() is not group:
            try:
                ranks = tuple(dist.get_process_group_ranks(group))
            except (KeyError, ValueError, RuntimeError):  # made without torch.distributed
                ranks = ()
            try:
                backend = str(group._get_backend(device).name())
            except RuntimeError:
                backend = ""
            if backend in ("", "custom"):  # a third-party backend may not give its name
                backend = str(dist.get_backend(group)) if ranks else ""
            new = Group(
                str(group.group_name),
                ranks,
                backend,
                str(group.group_desc),
                self._calls_before(group),
            )
            named = self._traffic.groups[self._traffic.add_group(new)]
            seen = self._groups[id(group)] = (ref(group), named)
        return seen[1]

    def _calls_before(self, group: Any) -> int:
        """Returns how many collectives torch has counted on a group, the same on all its ranks.

        gloo counts messages too, so ranks may have different counts: that of the first rank counts
        for all. Without it, the numbers of calls would differ from those in a Flight Recorder.
        """
        try:
            count = int(group._get_sequence_number_for_group())
        except Exception:  # not all backends count
            count = 0
        if capture := self._traffic.environment.get("capture"):
            key = f"torchcoll/calls_before/{capture}/{group.group_name}"
            with contextlib.suppress(Exception):  # a lost store is no reason to end the training
                store = dist.distributed_c10d._get_default_store()
                count = int(store.compare_set(key, "", str(count)))
        return count


def unbox_group(group: Any) -> Any:
    """Returns the ProcessGroup of an operator's argument: itself, boxed, or its name; None if
    unknown.
    """
    try:
        if isinstance(group, str):
            return dist.distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
        return dist.ProcessGroup.unbox(group) if isinstance(group, torch.ScriptObject) else group
    except (RuntimeError, TypeError, ValueError):
        return None


def environment(seen_by: str) -> dict[str, Any]:
    """Returns the facts about this process for the header of the Traffic.

    - seen_by: what records the calls, such as ``capture``.
    """
    from torchcoll import __version__

    return {
        "torchcoll": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "backend": str(dist.get_backend()),
        "seen_by": seen_by,
    }

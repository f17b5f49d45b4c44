"""The process groups of a trace of torch.profiler (Kineto)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.traffic import Group
from torchcoll.reading.base import whole
from torchcoll.reading.kineto_events import IssuedCall
from torchcoll.reading.torch_names import parse_rank_list


def make_groups(info: Mapping[str, Any], calls: Iterable[IssuedCall]) -> dict[str, Group]:
    """The groups that the profiler lists, and those that are only named by calls.

    A group may have a backend for each type of device. If calls have record_param_comms the
    accelerator's backend is used.
    """
    calls = list(calls)
    on_device = any(call.has_param for call in calls)
    listed = info.get("pg_config")
    groups = {}
    for config in listed if isinstance(listed, list) else ():
        if isinstance(config, dict) and isinstance(config.get("pg_name"), str):
            ranks = _complete(config.get("ranks"), config.get("pg_size"))
            backend = _backend(str(config.get("backend_config") or ""), on_device)
            groups[config["pg_name"]] = Group(
                config["pg_name"], ranks, backend, str(config.get("pg_desc") or "")
            )
    for call in calls:
        args = call.event.args
        name = args.get("Process Group Name")
        group = groups.get(name) if isinstance(name, str) else None
        if isinstance(name, str) and (group is None or not group.ranks):
            ranks = _complete(args.get("Process Group Ranks"), args.get("Group size"))
            description = str(args.get("Process Group Description") or "")
            groups[name] = Group(
                name, ranks or _regular(args), group.backend if group else "", description
            )
    return _merge_groups(groups) if not on_device else groups


def _merge_groups(groups: dict[str, Group]) -> dict[str, Group]:
    """Merge groups with the same ranks and backend, as c10d operators do not name theirs."""
    if len(groups) < 2 or len({(g.ranks, g.backend) for g in groups.values()}) > 1:
        return groups
    first = next(iter(groups.values()))
    name = " or ".join(groups)
    return {name: Group(name, first.ranks, first.backend)}


def _complete(ranks: object, size: object) -> tuple[int, ...]:
    """The ranks; () if the profiler has shortened the list."""
    listed = parse_rank_list(ranks)
    return listed if whole(size) in (None, len(listed)) else ()


def _regular(args: Mapping[str, Any]) -> tuple[int, ...]:
    """Ranks from start, stride and size, which torch records beside the list."""
    start, stride = whole(args.get("Global rank start")), whole(args.get("Global rank stride"))
    size = whole(args.get("Group size"))
    if start is None or not stride or not size or size > MOST_RANKS:
        return ()
    return tuple(range(start, start + size * stride, stride))


def _backend(config: str, on_device: bool) -> str:
    """The backend in a text like ``cpu:gloo,cuda:nccl`` for calls on the device, or on the host."""
    pairs = [entry.split(":") for entry in config.split(",") if ":" in entry]
    fitting = [pair[1] for pair in pairs if (pair[0] != "cpu") == on_device]
    return (fitting or [pair[1] for pair in pairs] or [config])[0]

"""Reads dumps of torch's Flight Recorder: the pickle that the watchdog writes, or JSON.

A file has one rank. Layout: ``dump`` and ``dump_json`` of torch/csrc/distributed/c10d/
FlightRecorderDetail.hpp, versions 2.4 (torch 2.6) to 2.10 (torch 2.15). The times at which the
watchdog noticed that a call had started or ended are not read: they may be much too late.

``read_document`` reads the JSON or the pickle of a dump, and of a profiler's trace. The parts
``training`` and ``postmortem`` read their calls.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import ByteBudget, EventBudget
from torchcoll.core.errors import ForeignError, UnreadableError
from torchcoll.core.jsonl import chunks_of
from torchcoll.core.other_commands import begin_of, reading_command
from torchcoll.core.traffic import Group
from torchcoll.core.units import counted
from torchcoll.reading import torch_names
from torchcoll.reading.base import whole
from torchcoll.reading.large_json import members
from torchcoll.reading.safe_pickle import is_pickle, read_pickle

_LISTS = ("traceEvents", "entries")  # the long lists of a trace and of a dump
MEMORY_RATIO, ITEM_BYTES = 3, 400  # memory of objects per character of JSON, and per item
_MOST_PICKLE = 1 << 28  # bytes: 2000 calls, torch's default, with their stacks are 2 MB
_KINDS = (
    "a traffic file of torchcoll, a Kineto trace, a Flight Recorder dump or a file of NCCL "
    "Inspector"
)


def foreign(path: Path) -> ForeignError:
    """The error for a file that is neither a trace nor a dump."""
    return ForeignError(
        "trace", path, _KINDS, reading_command(begin_of(str(path)), str(path), "trace")
    )


def read_document(
    path: Path,
    problems: list[str],
    make_event: Callable[[object], tuple[object, int]] | None = None,
) -> dict[str, Any]:
    """The outermost object of a trace or a dump, of JSON or a pickle.

    make_event: returns what becomes of an event of a trace, None to drop it, and its memory in
    bytes. Without it all events are dropped.
    problems: gets a line if the file was cut off; then the object has what the file has.
    Raises UnreadableError for a file that is neither.
    """
    chunks = chunks_of(path, problems, "trace")
    first = next(chunks, b"")
    if is_pickle(first):
        return _pickled(path, itertools.chain([first], chunks), problems)
    document: dict[str, Any] = {}
    memory, events = ByteBudget("trace", path), EventBudget(path)
    try:
        for key, value, length, item in members(itertools.chain([first], chunks), _LISTS):
            if item and key == "traceEvents":
                event, size_bytes = make_event(value) if make_event else (None, 0)
                events.add(event is not None, event is None)
                if event is not None:
                    memory.add_bytes(size_bytes)
                    document[key].append(event)
                continue
            memory.add_bytes(MEMORY_RATIO * length + ITEM_BYTES)
            if item:
                document[key].append(value)
            else:
                document[key] = value
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        count = sum(len(document[key]) for key in _LISTS if isinstance(document.get(key), list))
        if not (problems or count):
            raise foreign(path) from None
        if not problems:
            problems.append(f"{path}: cut off or damaged after {counted(count, 'item')}")
    return document


def _pickled(path: Path, chunks: Iterable[bytes], problems: list[str]) -> dict[str, Any]:
    """The dict of a pickle, which is how torch's watchdog writes a dump."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > _MOST_PICKLE:
            raise UnreadableError(f"trace {path}", "a pickle of more than 256 MiB", "a smaller one")
    value = read_pickle(bytes(data), path, problems)
    if not isinstance(value, dict):
        raise foreign(path)
    return value


def group_name(entry: Mapping[str, Any]) -> tuple[str, str]:
    """(name, description) of the group of an entry. Raises KeyError, TypeError or ValueError."""
    group = entry["process_group"]
    if not isinstance(group, (list, tuple)):
        raise TypeError("a process group without name and description")
    name, description = group
    return str(name), str(description)


def backend_of_entry(entry: Mapping[str, Any]) -> str:
    return str(entry.get("profiling_name") or "").partition(":")[0]


def read_groups(data: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Group]:
    """The configured groups. On gloo they have no ranks."""
    groups = {}
    config = data.get("pg_config")
    for name, entry in config.items() if isinstance(config, dict) else ():
        if name and isinstance(entry, dict):
            ranks = torch_names.parse_rank_list(entry.get("ranks"))
            description = str(entry.get("desc") or "")
            groups[name] = Group(name, ranks, description=description)
    for entry in entries:
        try:
            name, description = group_name(entry)
        except (KeyError, TypeError, ValueError):
            continue  # who reads the entry reports it
        group = groups.get(name) or Group(name, description=description)
        groups[name] = Group(
            name, group.ranks, group.backend or backend_of_entry(entry), group.description
        )
    return groups


NO_CALLS = ("coalesced", "split", "new_window", "init")


def message_peer(name: str, collective: str, ranks: Sequence[int]) -> int | None:
    """The world rank of the peer in ``nccl:send 0->1`` and ``nccl:recv 1<-0``."""
    match = re.search(r"(?:->|<-)(\d+)", name)
    peer = whole(match[1]) if match and collective in ("send", "recv") else None
    if peer is None:
        return None
    return ranks[peer] if peer < len(ranks) else peer

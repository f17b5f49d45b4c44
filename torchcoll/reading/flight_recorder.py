"""Reads dumps of torch's Flight Recorder: the pickle that the watchdog writes, or JSON.

A file has one rank. Layout: ``dump`` and ``dump_json`` of torch/csrc/distributed/c10d/
FlightRecorderDetail.hpp, versions 2.4 (torch 2.6) to 2.10 (torch 2.15). The times at which the
watchdog noticed that a call had started or ended are not read: they may be much too late.

``read_document`` reads the JSON or the pickle of a dump, and of a profiler's trace, which the part
``training`` reads on.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import ByteBudget, EventBudget
from torchcoll.core.collectives import exchange_with_splits, uneven
from torchcoll.core.errors import ForeignError, UnreadableError
from torchcoll.core.jsonl import chunks_of
from torchcoll.core.other_commands import begin_of, reading_command
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.units import counted
from torchcoll.reading import torch_names
from torchcoll.reading.base import itemsize, number, whole
from torchcoll.reading.large_json import members
from torchcoll.reading.safe_pickle import is_pickle, read_pickle

SOURCE = "flight recorder"
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


def is_dump(data: object) -> bool:
    """Whether this is a dump, with or without entries."""
    return isinstance(data, dict) and "pg_config" in data and "version" in data


def read_dump(data: Mapping[str, Any], path: Path) -> Traffic:
    """Read the calls of one rank. Raises UnreadableError without entries or without a rank."""
    listed = data.get("entries")
    entries = [e for e in listed if isinstance(e, dict)] if isinstance(listed, list) else []
    if not entries:
        action = "Set TORCH_FR_BUFFER_SIZE=2000 before the start (torch 2.6 to 2.8: "
        action += "TORCH_NCCL_TRACE_BUFFER_SIZE)."
        what = f"Flight Recorder dump {path}"
        raise UnreadableError(what, "no entries", "entries of collectives", action)
    rank = torch_names.rank_in_name(path, bare=True)
    if rank is None:
        raise UnreadableError(
            "Flight Recorder dump", path, "a name that ends in the rank, such as fr_rank0.json"
        )
    traffic = Traffic(SOURCE, path=path)
    traffic.groups = read_groups(data, entries)
    numbers, calls = torch_names.Numbers(), []
    start = min(_created(entry) for entry in entries)
    for index, entry in enumerate(entries):
        try:
            call = _call(entry, traffic.groups, numbers, start)
        except (KeyError, TypeError, ValueError) as error:
            traffic.problems.append(f"{path}: entry {index}: unusable: {error}"[:200])
            continue
        if call:
            calls.append(call)
    traffic.calls = {rank: calls}
    if start:
        traffic.clocks = {rank: (torch_names.clock_of_rank(rank), start)}
    members = {r for group in traffic.groups.values() for r in group.ranks}
    torch_names.check_ranks(members, path)
    traffic.ranks = max(rank, *members, 0) + 1
    traffic.notes = _notes(entries, calls)
    return traffic


def _created(entry: Mapping[str, Any]) -> int:
    return whole(entry.get("time_created_ns")) or 0


def group_name(entry: Mapping[str, Any]) -> tuple[str, str]:
    """(name, description) of the group of an entry. Raises KeyError, TypeError or ValueError."""
    group = entry["process_group"]
    if not isinstance(group, (list, tuple)):
        raise TypeError("a process group without name and description")
    name, description = group
    return str(name), str(description)


def _backend(entry: Mapping[str, Any]) -> str:
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
            continue  # ``_call`` reports it
        group = groups.get(name) or Group(name, description=description)
        groups[name] = Group(name, group.ranks, group.backend or _backend(entry), group.description)
    return groups


def _call(
    entry: Mapping[str, Any], groups: Mapping[str, Group], numbers: torch_names.Numbers, start: int
) -> TrafficCall | None:
    """The call of one entry; None for an entry that is not a call, such as a split."""
    name = str(entry["profiling_name"])
    collective = torch_names.torch_collective(name)
    if collective in NO_CALLS:
        return None
    group, _ = group_name(entry)
    dtype = next(
        map(torch_names.torch_dtype, [*entry["input_dtypes"], *entry["output_dtypes"]]), None
    )
    bytes_in, bytes_out = (
        _size_bytes(entry[f"{side}_sizes"], dtype) for side in ("input", "output")
    )
    if collective == "barrier":
        bytes_in, bytes_out, dtype = 0, 0, None
    elif collective in ("send", "recv"):  # input and output of the entry are the same tensor
        bytes_in, bytes_out = (bytes_in, 0) if collective == "send" else (0, bytes_out)
    if "coalesced" not in name:
        collective = _kind_of_call(collective, entry, len(groups[group].ranks))
    peer = message_peer(name, collective, groups[group].ranks)
    recorded_number = whole(entry.get("collective_seq_id"))  # from 1 on
    own_number = numbers.next(collective, group, peer)
    duration = number(entry.get("duration_ms"))
    return TrafficCall(
        collective,
        bytes_in,
        bytes_out,
        dtype,
        peer=peer,
        group=group,
        sequence=recorded_number - 1 if recorded_number and peer is None else own_number,
        start_ns=_created(entry) - start,
        time_ns=None if duration is None else round(duration * 1e6),
        clock="host" if duration is None else "device",
        tensors=len(entry["input_sizes"]) if "coalesced" in name else 1,
    )


NO_CALLS = ("coalesced", "split", "new_window", "init")


def _kind_of_call(collective: str, entry: Mapping[str, Any], ranks: int) -> str:
    """The collective, or its uneven variant if the shapes show that."""
    sides = [entry[f"{side}_sizes"] for side in ("input", "output")]
    exchange = exchange_with_splits(collective)
    if exchange and all(len(shapes) == 1 for shapes in sides):
        # The rows of a single tensor cannot be split evenly unless their number is a multiple of
        # the number of ranks.
        rows = [shape[0] if shape else 1 for shapes in sides for shape in shapes]
        if ranks and any(count % ranks for count in rows):
            return exchange
        return uneven(collective, rows[:1], rows[1:])
    sent, received = ([torch_names.product(shape) or 0 for shape in shapes] for shapes in sides)
    return uneven(collective, sent, received)


def _size_bytes(sizes: Sequence[Sequence[int]], dtype: str | None) -> int:
    counts = [torch_names.product(shape) for shape in sizes]
    elements = sum(count for count in counts if count is not None)
    each = itemsize(dtype)
    if None in counts or elements * (each or 0) >= 1 << 62:
        raise ValueError("a shape that is none")
    if elements and each is None:
        raise ValueError(f"dtype {dtype} of unknown size")
    return elements * (each or 0)


def message_peer(name: str, collective: str, ranks: Sequence[int]) -> int | None:
    """The world rank of the peer in ``nccl:send 0->1`` and ``nccl:recv 1<-0``."""
    match = re.search(r"(?:->|<-)(\d+)", name)
    peer = whole(match[1]) if match and collective in ("send", "recv") else None
    if peer is None:
        return None
    return ranks[peer] if peer < len(ranks) else peer


def _notes(entries: Sequence[Mapping[str, Any]], calls: Sequence[TrafficCall]) -> list[str]:
    notes = []
    lost = whole(entries[0].get("record_id")) or 0
    if lost:
        kept = counted(len(entries), "call")
        notes.append(f"the buffer kept the last {kept}, and lost {lost} before")
    backends = {_backend(entry) for entry in entries}
    if all(call.time_ns is None for call in calls):
        # Calls may have no times for another reason than the variable.
        timed = any(number(entry.get("duration_ms")) is not None for entry in entries)
        action = ""
        if not timed and backends != {"gloo"}:
            action = ": TORCH_NCCL_ENABLE_TIMING=1 records those of calls that were sent alone"
        notes.append(f"the dump has no durations{action}")
    unfinished = [e for e in entries if e.get("state") != "completed" and _backend(e) != "gloo"]
    if unfinished:
        count = counted(len(unfinished), "call")
        notes.append(f"{count} had not completed when the dump was written")
    return notes

"""A dump of torch's Flight Recorder as Traffic: the calls of one rank, their sizes and times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.collectives import exchange_with_splits, uneven
from torchcoll.core.errors import UnreadableError
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.units import counted
from torchcoll.reading import torch_names
from torchcoll.reading.base import itemsize, number, whole
from torchcoll.reading.flight_recorder import (
    NO_CALLS,
    backend_of_entry,
    group_name,
    message_peer,
    read_groups,
)

SOURCE = "flight recorder"


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
        traffic.clocks = {rank: (clock_of_rank(rank), start)}
    members = {r for group in traffic.groups.values() for r in group.ranks}
    check_ranks(members, path)
    traffic.ranks = max(rank, *members, 0) + 1
    traffic.notes = _notes(entries, calls)
    return traffic


def _created(entry: Mapping[str, Any]) -> int:
    return whole(entry.get("time_created_ns")) or 0


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


def _notes(entries: Sequence[Mapping[str, Any]], calls: Sequence[TrafficCall]) -> list[str]:
    notes = []
    lost = whole(entries[0].get("record_id")) or 0
    if lost:
        kept = counted(len(entries), "call")
        notes.append(f"the buffer kept the last {kept}, and lost {lost} before")
    backends = {backend_of_entry(entry) for entry in entries}
    if all(call.time_ns is None for call in calls):
        # Calls may have no times for another reason than the variable.
        timed = any(number(entry.get("duration_ms")) is not None for entry in entries)
        action = ""
        if not timed and backends != {"gloo"}:
            action = ": TORCH_NCCL_ENABLE_TIMING=1 records those of calls that were sent alone"
        notes.append(f"the dump has no durations{action}")
    unfinished = [
        e for e in entries if e.get("state") != "completed" and backend_of_entry(e) != "gloo"
    ]
    if unfinished:
        count = counted(len(unfinished), "call")
        notes.append(f"{count} had not completed when the dump was written")
    return notes


def check_ranks(numbers: Iterable[int], path: PathLike[str]) -> None:
    """Raise UnreadableError for a rank that is too large."""
    most = max(numbers, default=0)
    if most >= MOST_RANKS:
        expected = f"ranks from 0 to {MOST_RANKS - 1}"
        raise UnreadableError(f"trace {path}", f"rank {most}", expected)


def clock_of_rank(rank: int) -> str:
    """The name of the clock of a trace or dump, in ns since 1970; clocks of hosts differ."""
    return f"time of day on rank {rank}"

"""Reads dumps of torch's Flight Recorder, as pickle and as JSON, of one rank each.

What its versions have in common is read: torch/csrc/distributed/c10d/FlightRecorder.hpp and
FlightRecorderDetail.hpp, 2.4 (torch 2.6) to 2.10 (torch 2.15). The numbers of calls are those of
``collective_seq_id``, which on gloo counts messages too, so that there the collectives of a dump
that begins with the first call are counted. send and recv are counted for each peer.

On gloo the states say nothing: a call stays ``scheduled``. But ``retired`` is set when a call has
ended, so that one without it had not ended when the dump was written. On nccl, a call that is
retired but not completed has timed out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchcoll.core.errors import UnreadableError
from torchcoll.core.units import counted
from torchcoll.parts.postmortem.evidence import (
    STATES,
    CallSeen,
    FileRead,
    GroupSeen,
    JobEvent,
    JobEvidence,
    Place,
)
from torchcoll.parts.postmortem.stack_evidence import Frame, origin, shown_frame
from torchcoll.reading.base import number, whole
from torchcoll.reading.flight_recorder import NO_CALLS, group_name, message_peer, read_groups
from torchcoll.reading.safe_pickle import is_pickle
from torchcoll.reading.torch_names import Numbers, rank_in_name, torch_collective, torch_dtype
from torchcoll.reading.traces import read_document

_WHAT = "Flight Recorder dump"
_JSON = re.compile(rb'\A\s*\{[^\0]*?"(?:pg_status|collective_seq_id|profiling_name)"\s*:')
_FRAMES = 40  # of the stack of a call
_NS_PER_MS = 1e6


def recognizes(path: Path, begin: bytes) -> bool:
    if is_pickle(begin):
        return b"pg_config" in begin or b"profiling_name" in begin
    return bool(_JSON.match(begin)) and b'"traceEvents"' not in begin


def read_evidence(path: Path, shown: str) -> list[JobEvidence]:
    """What the dump says. Raises UnreadableError for a damaged file, and for one without a rank."""
    problems: list[str] = []
    data = read_document(path, problems)
    listed = data.get("entries")
    listed = listed if isinstance(listed, list) else []
    entries = [entry for entry in listed if isinstance(entry, dict) and _has_group(entry)]
    if len(entries) < len(listed):
        problems.append(f"{path}: {counted(len(listed) - len(entries), 'call')} without a group")
    groups = read_groups(data, entries)
    rank = _rank(data, entries, shown, {name: group.ranks for name, group in groups.items()})
    if rank is None:
        expected = "a name that ends in the rank, such as nccl_trace_rank_0"
        raise UnreadableError(_WHAT, shown, expected)
    evidence = JobEvidence(problems=[text.replace(str(path), shown) for text in problems])
    evidence.files = [FileRead(shown, _WHAT, (rank,))]
    evidence.groups = {
        name: GroupSeen(name, group.ranks, group.description) for name, group in groups.items()
    }
    sizes = [len(group.ranks) for group in groups.values() if group.description == "default_pg"]
    evidence.ranks = max(sizes, default=0) or None
    # NCCL's unique id of each communicator, which all its ranks have.
    communicators = data.get("nccl_comm_state")
    if isinstance(communicators, dict):
        evidence.identities = {f"communicator {key}" for key in communicators}
    lost = whole(entries[0].get("record_id")) if entries else None
    if lost:
        evidence.problems.append(
            f"{shown}: the buffer kept the last {counted(len(entries), 'call')}, and lost {lost} "
            "before: its messages are counted from the first that it kept"
        )
    _read_calls(evidence, entries, rank, shown)
    times = [call.created_ns for call in evidence.calls if call.created_ns is not None]
    evidence.first_ns, evidence.last_ns = min(times, default=None), max(times, default=None)
    return [evidence]


def _has_group(entry: Mapping[str, Any]) -> bool:
    try:
        group_name(entry)
    except (KeyError, TypeError, ValueError):
        return False
    return True


def _rank(
    data: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    shown: str,
    members: Mapping[str, tuple[int, ...]],
) -> int | None:
    """The rank of the world that wrote the dump: as it says, by its name or that of a folder, or by
    its messages, which name their own rank first.
    """
    rank = whole(data.get("rank"))
    rank = rank_in_name(shown, bare=True) if rank is None else rank
    folder = os.path.dirname(shown)
    while rank is None and folder:
        rank, folder = rank_in_name(folder), os.path.dirname(folder)
    for entry in entries if rank is None else ():
        match = re.search(r":(?:send|recv) (\d{1,7})(?:->|<-)", str(entry.get("profiling_name")))
        ranks = members[group_name(entry)[0]] if match else ()
        if match and int(match[1]) < len(ranks):
            return ranks[int(match[1])]
    return rank


def _read_calls(
    evidence: JobEvidence, entries: Sequence[Mapping[str, Any]], rank: int, shown: str
) -> None:
    numbers = Numbers()
    is_whole = bool(entries) and not whole(entries[0].get("record_id"))
    for index, entry in enumerate(entries):
        name = str(entry.get("profiling_name"))
        backend = name.partition(":")[0]
        collective = torch_collective(name)
        group, _ = group_name(entry)
        if collective in NO_CALLS:
            continue
        peer = message_peer(name, collective, evidence.groups[group].ranks)
        counted_number = numbers.next(collective, group, peer) + 1
        if collective not in ("send", "recv") and not (is_whole and backend == "gloo"):
            recorded = entry.get("collective_seq_id", entry.get("seq_id"))
            counted_number = whole(recorded) or counted_number
        state = str(entry.get("state"))
        if state not in STATES:
            evidence.problems.append(f"{shown}: entry {index}: state {state[:40]} is not known")
            state = STATES[0]
        retired = bool(entry.get("retired"))
        duration = number(entry.get("duration_ms"))
        evidence.calls.append(
            CallSeen(
                rank,
                group,
                counted_number,
                collective,
                Place(shown),
                _shapes(entry.get("input_sizes")),
                _shapes(entry.get("output_sizes")),
                _dtype(entry),
                state,
                backend != "gloo" or ("retired" in entry and not retired),
                peer,
                whole(entry.get("time_created_ns")),
                None if duration is None else round(duration * _NS_PER_MS),
                _origin(entry.get("frames")),
            )
        )
        if retired and state != "completed" and backend != "gloo":
            limit = number(entry.get("timeout_ms"))
            after = f", whose timeout is {limit / 1000:g} s" if limit else ""
            text = f"call {counted_number} ({collective}) was given up before it completed{after}"
            evidence.events.append(
                JobEvent(
                    "timeout",
                    Place(shown),
                    text,
                    rank,
                    group=group,
                    number=counted_number,
                    collective=collective,
                )
            )


def _origin(frames: object) -> str:
    """Where the user's code made a call, of the frames of its entry."""
    stack = (
        Frame(str(frame.get("filename")), whole(frame.get("line")), str(frame.get("name")))
        for frame in (frames if isinstance(frames, list) else ())[:_FRAMES]
        if isinstance(frame, dict)
    )
    made_by = origin(stack)
    return "" if made_by is None else shown_frame(made_by)


def _shapes(sizes: object) -> tuple[tuple[int, ...], ...] | None:
    if not isinstance(sizes, list):
        return None
    shapes = [tuple(shape) for shape in sizes if isinstance(shape, (list, tuple))]
    plain = all(type(n) is int and 0 <= n < 1 << 62 for shape in shapes for n in shape)
    return tuple(shapes) if plain and len(shapes) == len(sizes) else None


def _dtype(entry: Mapping[str, Any]) -> str | None:
    sides = (entry.get("input_dtypes"), entry.get("output_dtypes"))
    types = (text for side in sides if isinstance(side, list) for text in side)
    return next(map(torch_dtype, types), None)

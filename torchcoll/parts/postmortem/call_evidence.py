"""Reads records of calls: dumps of torch's Flight Recorder, as pickle and as JSON, of one rank
each, and the rings and stacks that ``torchcoll.capture(..., on_hang="dump")`` left.

Versions of dumps: 2.4 (torch 2.6) to 2.10 (torch 2.15). The numbers of calls are those of
``collective_seq_id``. On gloo it counts messages too, so that there the collectives of a whole dump
are counted; its states say nothing, but ``retired`` is set when a call has ended. On nccl, a call
that is retired but not completed has timed out.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.call_ring import STACKS_HEAD
from torchcoll.core.collectives import DTYPES
from torchcoll.core.errors import UnreadableError, one_line
from torchcoll.core.jsonl import lines_of
from torchcoll.parts.postmortem.evidence import (
    STATES,
    CallSeen,
    FileRead,
    JobEvent,
    JobEvidence,
    Place,
)
from torchcoll.parts.postmortem.log_lines import facts_of, time_ns
from torchcoll.parts.postmortem.ring_reader import CallRing, RingCall, is_ring, read_ring
from torchcoll.parts.postmortem.stack_evidence import (
    Frame,
    describe,
    main_thread,
    origin,
    shown_frame,
)
from torchcoll.parts.postmortem.texts import kind_of
from torchcoll.reading.base import number, whole
from torchcoll.reading.flight_recorder import (
    NO_CALLS,
    group_name,
    message_peer,
    read_document,
    read_groups,
)
from torchcoll.reading.safe_pickle import is_pickle
from torchcoll.reading.torch_names import Numbers, rank_in_name, torch_collective, torch_dtype

_MOST_CALLS = 4096  # of a traffic file: the last ones
_MOST_STACKS = 1000  # dumps in one file
_LONGEST_LINE = 4096
_EXIT = re.compile(r"^SystemExit: (\d{1,3})?(?:None)?$")
_DUMP = re.compile(
    rf"^{STACKS_HEAD} (?P<utc>\S{{10,40}}): rank (?P<rank>\d{{1,7}}) of (?P<ranks>\d{{1,7}}) "
    r"on (?P<host>\S{1,255}), process (?P<pid>\d{1,9})$"
)
# The frames of a call that is captured: what a person looks for is who made the call.
_CAPTURE = re.compile(r"torchcoll/training/(?:capture|waits)\.py$")
_CALLER = re.compile(r"(?P<file>.+):(?P<line>\d{1,9}) (?P<function>.+)$")
_WHAT = "Flight Recorder dump"
_JSON = re.compile(rb'\A\s*\{[^\0]*?"(?:pg_status|collective_seq_id|profiling_name)"\s*:')
_FRAMES = 40  # of the stack of a call


def recognizes(path: Path, begin: bytes) -> bool:
    if is_ring(begin) or begin.startswith(STACKS_HEAD.encode()):
        return True
    if is_pickle(begin):
        return b"pg_config" in begin or b"profiling_name" in begin
    return bool(_JSON.match(begin)) and b'"traceEvents"' not in begin


def read_evidence(path: Path, shown: str) -> list[JobEvidence]:
    """Raises UnreadableError for a damaged file, and for a dump without a rank."""
    with open(path, "rb") as file:
        begin = file.read(1 << 12)
    if is_ring(begin):
        return [_of_ring(read_ring(path), shown)]
    if begin.startswith(STACKS_HEAD.encode()):
        return _of_stacks(path, shown)
    return [_of_dump(path, shown)]


def _of_dump(path: Path, shown: str) -> JobEvidence:
    data = read_document(path, [])
    listed = data.get("entries")
    listed = listed if isinstance(listed, list) else []
    entries = [entry for entry in listed if isinstance(entry, dict) and _has_group(entry)]
    groups = read_groups(data, entries)
    rank = _rank(data, shown)
    if rank is None:
        expected = "a name that ends in the rank, such as nccl_trace_rank_0"
        raise UnreadableError(_WHAT, shown, expected)
    evidence = JobEvidence(files=[FileRead(shown, _WHAT, (rank,))])
    evidence.groups = groups
    sizes = [len(group.ranks) for group in groups.values() if group.description == "default_pg"]
    evidence.ranks = max(sizes, default=0) or None
    # NCCL's unique id of each communicator, which all its ranks have.
    communicators = data.get("nccl_comm_state")
    if isinstance(communicators, dict):
        evidence.identities = {f"communicator {key}" for key in communicators}
    _read_calls(evidence, entries, rank, shown)
    times = [call.created_ns for call in evidence.calls if call.created_ns is not None]
    evidence.first_ns, evidence.last_ns = min(times, default=None), max(times, default=None)
    return evidence


def _has_group(entry: Mapping[str, Any]) -> bool:
    try:
        group_name(entry)
    except (KeyError, TypeError, ValueError):
        return False
    return True


def _rank(data: Mapping[str, Any], shown: str) -> int | None:
    """The rank of the world that wrote the dump: as it says, by its name or that of a folder."""
    rank = whole(data.get("rank"))
    rank = rank_in_name(shown, bare=True) if rank is None else rank
    folder = os.path.dirname(shown)
    while rank is None and folder:
        rank, folder = rank_in_name(folder), os.path.dirname(folder)
    return rank


def _read_calls(
    evidence: JobEvidence, entries: Sequence[Mapping[str, Any]], rank: int, shown: str
) -> None:
    numbers = Numbers()
    is_whole = bool(entries) and not whole(entries[0].get("record_id"))
    for entry in entries:
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
        state = state if state in STATES else STATES[0]
        retired = bool(entry.get("retired"))
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
                _origin_of_frames(entry.get("frames")),
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


def _origin_of_frames(frames: object) -> str:
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


# Captures.


def _of_ring(ring: CallRing, shown: str) -> JobEvidence:
    rank, header, place = ring.rank, ring.header, Place(shown)
    evidence = JobEvidence(ranks=ring.ranks)
    evidence.nodes[rank], evidence.pids[rank] = header["host"], header["pid"]
    for kind, name in (
        ("capture", "capture"),
        ("slurm", "slurm_job_id"),
        ("torchelastic", "torchelastic_run_id"),
    ):
        if header.get(name) not in (None, "", "none"):  # none: torchrun without a rendezvous id
            evidence.identities.add(f"{kind} {header[name]}")
    evidence.groups = ring.groups
    evidence.calls = [_of_ring_call(call, rank, place) for call in ring.calls]
    evidence.files = [FileRead(shown, "call ring", (rank,))]
    times = [header["start_ns"], *(call.created_ns for call in ring.calls[-1:])]
    if ring.alive_ns is not None:
        evidence.alive_ns[rank] = ring.alive_ns
        times.append(ring.alive_ns)
    evidence.first_ns, evidence.last_ns = min(times), max(times)

    by_serial = {call.serial: call for call in ring.calls}
    node, pid = header["host"], header["pid"]
    for serial, text in ring.errors.items():
        event = _event(text, place, rank, node, pid)
        if call := by_serial.get(serial):
            event = replace(
                event,
                group=call.group,
                number=call.number,
                collective=call.collective,
                when_ns=call.ended_ns,
            )
        evidence.events.append(event)
    if ring.end and ring.end["text"] not in ring.errors.values():
        text = ring.end["text"] or "the capture ended"
        event = _event(text, place, rank, node, pid)
        if ring.end["status"] == "complete":
            event = replace(event, kind="ending")
        evidence.events.append(replace(event, when_ns=ring.alive_ns))
    return evidence


def _of_ring_call(call: RingCall, rank: int, place: Place) -> CallSeen:
    ended = call.ended_ns is not None and not call.failed
    return CallSeen(
        rank=rank,
        group=call.group,
        number=call.number,
        collective=call.collective,
        place=place,
        sizes_in=_elements(call.bytes_in, call.dtype),
        sizes_out=_elements(call.bytes_out, call.dtype),
        dtype=call.dtype,
        state="completed" if ended else "scheduled",
        reliable_state=ended or call.certain,
        peer=call.peer,
        created_ns=call.created_ns,
        origin=_origin(call.caller),
    )


def _origin(caller: str) -> str:
    """The line that made a call, as a ring has it (``/home/me/train.py:28 step``), shortened."""
    match = _CALLER.match(caller)
    if match is None:
        return caller
    return shown_frame(Frame(match["file"], int(match["line"]), match["function"]))


def _elements(size_bytes: int, dtype: str | None) -> tuple[tuple[int, ...], ...] | None:
    """The number of elements, as the shape of one tensor; None where it is not known."""
    if dtype not in DTYPES:
        return None
    return ((size_bytes // DTYPES[dtype].itemsize,),)


def _event(text: str, place: Place, rank: int, node: str, pid: int | None) -> JobEvent:
    """An event of an exception, given as ``TYPE: MESSAGE``."""
    text = one_line(text)
    kind = kind_of(text)
    exit_code = None
    if match := _EXIT.match(text):
        exit_code = int(match[1] or 0)
        kind = "exit" if exit_code else "ending"
    elif text.startswith("KeyboardInterrupt"):
        kind = "canceled"
    addresses = facts_of(text).get("addresses", ())
    return JobEvent(
        kind, place, text, rank, node, exit_code=exit_code, pid=pid, addresses=addresses
    )


def _of_stacks(path: Path, shown: str) -> list[JobEvidence]:
    """The last dump of each rank and process: earlier ones are of the same stall or of one that
    ended.
    """
    evidence: dict[tuple[int, int, str], JobEvidence] = {}
    dumps = _dumps(path)
    for begin, lines in itertools.islice(dumps, _MOST_STACKS):
        match = _DUMP.match(lines[0])
        if match is None:
            continue
        rank, ranks, pid = int(match["rank"]), int(match["ranks"]), int(match["pid"])
        when_ns = time_ns(match["utc"])
        if not 0 <= rank < ranks <= MOST_RANKS or when_ns is None:
            continue
        job = JobEvidence(ranks=ranks, first_ns=when_ns, last_ns=when_ns)
        job.nodes[rank], job.pids[rank] = match["host"], pid
        job.alive_ns[rank] = when_ns
        capture = next((x[9:] for x in lines[1:3] if x.startswith("capture: ")), "")
        if capture.strip():
            job.identities.add(f"capture {capture.strip()}")
        job.files = [FileRead(shown, "stacks", (rank,))]
        _, frames = main_thread(lines) or (0, [])
        where, collective = describe([f for f in frames if not _CAPTURE.search(f.file)])
        stall = next((x for x in lines[1:4] if x.startswith("no call began or ended")), "")
        text = one_line(f"{where}; {stall}" if stall else where)
        place = Place(shown, begin)
        event = JobEvent("stack", place, text, rank, match["host"], pid=pid, when_ns=when_ns)
        job.events = [replace(event, collective=collective)]
        evidence[rank, pid, capture] = job
    if not evidence:
        raise UnreadableError("stacks", shown, "a dump with a complete first line")
    return list(evidence.values())


def _dumps(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (number of its first line, lines) of each dump."""
    lines: list[str] = []
    begin = 1
    for line_number, data in enumerate(lines_of(path, [], "stacks", _LONGEST_LINE), 1):
        line = data.decode("utf-8", "replace").rstrip("\r\n")
        if line.startswith(STACKS_HEAD):
            if lines:
                yield begin, lines
            lines, begin = [], line_number
        if len(lines) < _LONGEST_LINE:
            lines.append(line)
    if lines:
        yield begin, lines

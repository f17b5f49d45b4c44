"""Reads what ``torchcoll.capture(..., on_hang="dump")`` left: rings and stacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.call_ring import STACKS_HEAD, CallRing, RingCall, is_ring, read_ring
from torchcoll.core.collectives import DTYPES
from torchcoll.core.errors import UnreadableError, one_line
from torchcoll.core.jsonl import lines_of
from torchcoll.core.traffic import Group
from torchcoll.core.units import parse_utc
from torchcoll.parts.postmortem.evidence import (
    CallSeen,
    FileRead,
    GroupSeen,
    JobEvent,
    JobEvidence,
    Place,
)
from torchcoll.parts.postmortem.log_lines import facts_of
from torchcoll.parts.postmortem.stack_evidence import Frame, describe, main_thread, shown_frame
from torchcoll.parts.postmortem.texts import kind_of

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


def recognizes(path: Path, begin: bytes) -> bool:
    return is_ring(begin) or begin.startswith(STACKS_HEAD.encode())


def read_evidence(path: Path, shown: str) -> list[JobEvidence]:
    """Raises UnreadableError for a file that cannot be read."""
    with open(path, "rb") as file:
        begin = file.read(1 << 12)
    if is_ring(begin):
        return [_of_ring(read_ring(path), shown)]
    return _of_stacks(path, shown)


def _of_ring(ring: CallRing, shown: str) -> JobEvidence:
    rank, header, place = ring.rank, ring.header, Place(shown)
    evidence = JobEvidence(ranks=ring.ranks, problems=list(ring.problems))
    evidence.nodes[rank], evidence.pids[rank] = header["host"], header["pid"]
    for kind, name in (
        ("capture", "capture"),
        ("slurm", "slurm_job_id"),
        ("torchelastic", "torchelastic_run_id"),
    ):
        if header.get(name) not in (None, "", "none"):  # none: torchrun without a rendezvous id
            evidence.identities.add(f"{kind} {header[name]}")
    evidence.groups = _groups(ring.groups)
    evidence.calls = [_of_ring_call(call, rank, place) for call in ring.calls]
    evidence.files = [FileRead(shown, "call ring", (rank,))]
    times = [header["start_ns"], *(call.created_ns for call in ring.calls[-1:])]
    if ring.alive_ns is not None:
        evidence.alive_ns[rank] = ring.alive_ns
        times.append(ring.alive_ns)
    evidence.first_ns, evidence.last_ns = min(times), max(times)

    if not ring.end:
        evidence.unended.add(rank)
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
        duration_ns=max(0, call.ended_ns - call.created_ns) if ended and call.ended_ns else None,
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


def _groups(groups: dict[str, Group]) -> dict[str, GroupSeen]:
    return {name: GroupSeen(name, g.ranks, g.description) for name, g in groups.items()}


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
    for number, (begin, lines) in enumerate(dumps):
        if number >= _MOST_STACKS:
            break
        match = _DUMP.match(lines[0])
        if match is None:
            continue
        rank, ranks, pid = int(match["rank"]), int(match["ranks"]), int(match["pid"])
        when_ns = _since_1970(match["utc"])
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
    for number, data in enumerate(lines_of(path, [], "stacks", _LONGEST_LINE), 1):
        line = data.decode("utf-8", "replace").rstrip("\r\n")
        if line.startswith(STACKS_HEAD):
            if lines:
                yield begin, lines
            lines, begin = [], number
        if len(lines) < _LONGEST_LINE:
            lines.append(line)
    if lines:
        yield begin, lines


def _since_1970(utc: str) -> int | None:
    try:
        return int(parse_utc(utc).timestamp() * 1e6) * 1000
    except (ValueError, OverflowError, OSError):
        return None

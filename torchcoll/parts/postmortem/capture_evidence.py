"""Reads what torchcoll left: rings, stacks and traffic of a capture, and result files."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from torchcoll.core.backends import backend_of
from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.call_ring import STACKS_HEAD, CallRing, RingCall, is_ring, read_ring
from torchcoll.core.collectives import DTYPES
from torchcoll.core.errors import UnreadableError, one_line
from torchcoll.core.file import load_own
from torchcoll.core.jsonl import lines_of
from torchcoll.core.traffic import POINT_TO_POINT, Group, Traffic
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
from torchcoll.parts.postmortem.stack_evidence import Frame, describe, shown_frame
from torchcoll.parts.postmortem.texts import kind_of

_MOST_CALLS = 4096  # of a traffic file: the last ones
_MOST_STACKS = 1000  # dumps in one file
_LONGEST_LINE = 4096
_SCHEMA = re.compile(rb'^\s*\{\s*"record":\s*"header".{0,200}"schema":\s*"torchcoll(-traffic)?/')
_EXIT = re.compile(r"^SystemExit: (\d{1,3})?(?:None)?$")
_DUMP = re.compile(
    rf"^{STACKS_HEAD} (?P<utc>\S{{10,40}}): rank (?P<rank>\d{{1,7}}) of (?P<ranks>\d{{1,7}}) "
    r"on (?P<host>\S{1,255}), process (?P<pid>\d{1,9})$"
)
_THREAD = re.compile(r"^Thread 0x[0-9a-f]+ \[(?P<name>.*)\] \(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d{1,9}) in (?P<function>.*)$')
# The frames of a call that is captured: what a person looks for is who made the call.
_CAPTURE = re.compile(r"torchcoll/training/(?:capture|waits)\.py$")
_CALLER = re.compile(r"(?P<file>.+):(?P<line>\d{1,9}) (?P<function>.+)$")
_LOST = re.compile(r"lost ranks? (?P<ranks>\d{1,7}(?:(?:, | and )\d{1,7})*)")
_SIGNAL = re.compile(r"rank (?P<rank>\d{1,7}) \([^)]*\): (?P<name>SIG[A-Z0-9]{2,8})\b")


def recognizes(path: Path, begin: bytes) -> bool:
    first = begin.partition(b"\n")[0]
    return is_ring(begin) or begin.startswith(STACKS_HEAD.encode()) or bool(_SCHEMA.match(first))


def read_evidence(path: Path, shown: str) -> list[JobEvidence]:
    """Raises UnreadableError for a file that cannot be read."""
    with open(path, "rb") as file:
        begin = file.read(1 << 12)
    if is_ring(begin):
        return [_of_ring(read_ring(path), shown)]
    if begin.startswith(STACKS_HEAD.encode()):
        return _of_stacks(path, shown)
    match = _SCHEMA.match(begin)
    if match and match[1]:
        return [_of_traffic(Traffic.load(path), shown)]
    return [_of_results(path, shown)]


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
    counted_messages = any(
        call.collective in POINT_TO_POINT and _counts_messages(ring.groups.get(call.group))
        for call in ring.calls
    )
    evidence.files = [FileRead(shown, "call ring", (rank,), _numbering(counted_messages))]
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


def _numbering(counted_messages: bool) -> str:
    """How calls are numbered. A capture does not count send and recv as collectives, as torch does
    with some backends.
    """
    return "capture" if counted_messages else "torch"


def _counts_messages(group: Group | None) -> bool:
    return group is not None and backend_of(group.backend).counts_messages


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
        where, collective = describe(_frames(lines))
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


def _frames(lines: list[str]) -> list[Frame]:
    """The frames of the main thread, innermost first."""
    frames: list[Frame] = []
    main = False
    for line in lines:
        if match := _THREAD.match(line):
            main = match["name"] == "MainThread"
        elif main and (match := _FRAME.match(line)) and not _CAPTURE.search(match["file"]):
            frames.append(Frame(match["file"], int(match["line"]), match["function"]))
    return frames


def _since_1970(utc: str) -> int | None:
    try:
        return int(parse_utc(utc).timestamp() * 1e6) * 1000
    except (ValueError, OverflowError, OSError):
        return None


def _of_traffic(traffic: Traffic, shown: str) -> JobEvidence:
    """A file that was cut off, or whose training failed, lacks the calls that had not ended, so it
    says only which calls completed.
    """
    place, environment = Place(shown), traffic.environment
    evidence = JobEvidence(ranks=traffic.ranks, problems=list(traffic.problems))
    evidence.groups = _groups(traffic.groups)
    counted_messages = any(
        call.point_to_point and _counts_messages(traffic.groups.get(call.group))
        for calls in traffic.calls.values()
        for call in calls
    )
    numbering = _numbering(counted_messages)
    evidence.files = [
        FileRead(
            shown,
            f"traffic ({traffic.source})",
            tuple(traffic.calls),
            numbering,
            has_open_calls=False,
        )
    ]
    host = environment.get("host")
    capture = environment.get("capture")
    if isinstance(capture, str) and capture:
        evidence.identities.add(f"capture {one_line(capture)[:100]}")
        evidence.first_ns = evidence.last_ns = _since_1970(capture.split(" ")[0])
    if traffic.source != "capture":
        return evidence
    whole = traffic.end.get("status") == "complete"
    for rank, calls in traffic.calls.items():
        if isinstance(host, str) and host:
            evidence.nodes[rank] = one_line(host)[:255]
        if environment.get("every"):  # numbers are of the captured steps alone
            continue
        for call in calls[-_MOST_CALLS:]:
            group = traffic.groups.get(call.group, Group(call.group))
            before = 0 if call.point_to_point else group.calls_before
            number = call.sequence + 1 + before
            if not whole:
                key = rank, call.group
                if not call.point_to_point and call.time_ns is not None:
                    last = evidence.last_completed.get(key, 0)
                    evidence.last_completed[key] = max(last, number)
                continue
            evidence.calls.append(
                CallSeen(
                    rank=rank,
                    group=call.group,
                    number=number,
                    collective=call.collective,
                    place=place,
                    sizes_in=_elements(call.bytes_in, call.dtype),
                    sizes_out=_elements(call.bytes_out, call.dtype),
                    dtype=call.dtype,
                    state="scheduled" if call.time_ns is None else "completed",
                    reliable_state=call.time_ns is not None,
                    peer=call.peer if call.collective in POINT_TO_POINT else None,
                    duration_ns=call.time_ns,
                )
            )
        if traffic.end:
            reason, message = (traffic.end.get(name) or "" for name in ("reason", "message"))
            if not (whole or message or reason == "KeyboardInterrupt"):
                continue  # of an earlier version: the type alone does not tell what happened
            text = f"{reason}: {message}" if reason else "the capture ended"
            event = _event(text, place, rank, evidence.nodes.get(rank, ""), None)
            evidence.events.append(replace(event, kind="ending") if whole else event)
    return evidence


def _of_results(path: Path, shown: str) -> JobEvidence:
    run = load_own(path)
    place = Place(shown)
    evidence = JobEvidence(ranks=len(run.members) or None, problems=list(run.problems))
    if isinstance(run_id := run.header.get("run_id"), str):
        evidence.identities.add(f"run {one_line(run_id)[:100]}")
    evidence.first_ns = evidence.last_ns = _since_1970(str(run.header.get("start_utc")))
    for member in run.members:
        rank, host, pid = member.get("rank"), member.get("host"), member.get("pid")
        if type(rank) is int and 0 <= rank < len(run.members):
            evidence.nodes[rank] = one_line(host)[:255] if isinstance(host, str) else ""
            if type(pid) is int:
                evidence.pids[rank] = pid
    # Rank 0 writes the file, and its end says what all ranks agreed on.
    evidence.files = [FileRead(shown, "result file", tuple(evidence.nodes))]
    collective = run.in_flight.collective if run.in_flight else None
    for number, data in enumerate(run.events):
        kind, text = data.get("kind"), one_line(data.get("message") or "")
        if kind not in ("hang", "lost_rank", "signal", "suspect"):
            continue
        when_ns = _since_1970(str(data.get("utc")))
        event = JobEvent(
            "timeout" if kind == "hang" else "peer_lost",
            place,
            text,
            rank=0,
            collective=collective,
            when_ns=when_ns,
        )
        lost = _LOST.search(text)
        ended = _SIGNAL.search(text)
        if lost:
            ranks = [int(rank) for rank in re.findall(r"\d+", lost["ranks"])]
            event = replace(event, about=tuple(r for r in ranks if r in evidence.nodes))
        elif ended and ended["name"] in signal.Signals.__members__:
            number = signal.Signals[ended["name"]].value
            rank = int(ended["rank"])
            event = replace(event, kind="killed", signal=number)
            if rank in evidence.nodes:
                event = replace(event, rank=rank)
        evidence.events.append(event)
    if run.end and run.end.get("status") == "complete":
        # All ranks agreed on the exit code: not 0 if a case failed, was wrong or did not run.
        code = run.end.get("exit_code")
        exit_code = code if type(code) is int else 0
        text = "the run completed"
        text += f" with exit code {exit_code}: show the file for its cases" if exit_code else ""
        evidence.events += [
            JobEvent("ending", place, text, rank=rank, exit_code=exit_code)
            for rank in evidence.nodes or (0,)
        ]
    return evidence

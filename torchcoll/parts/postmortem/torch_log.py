"""Lines of torch's C++ code and of its elastic launcher in a log.

Texts of torch 2.0 to 2.13: ProcessGroupNCCL.cpp, TraceUtils.h, ProcessGroupGloo.cpp,
torch/distributed/elastic (multiprocessing/api.py, multiprocessing/errors, agent/server/api.py).
"""

from __future__ import annotations

import re
import signal

from torchcoll.parts.postmortem.evidence import JobEvent
from torchcoll.parts.postmortem.log_lines import (
    Handler,
    Line,
    LogScan,
    facts_of,
    quotation,
)
from torchcoll.parts.postmortem.texts import kind_of
from torchcoll.reading.torch_names import torch_collective

_ANY = re.compile("")
# [PG 1 Rank 4] of torch 2.3, [PG ID 0 PG GUID 0(default_pg) Rank 4] since 2.4.
_GROUP = re.compile(
    r"\[PG (?:ID \d{1,9} PG GUID )?([\w:.-]{1,80}?)(?:\(([^)\]]{0,80})\))? Rank (\d{1,7})\]"
)
_NUMBERS = re.compile(
    r"(?:at (?:NCCL )?work(?: sequence id)?: (-?\d{1,18}).*?)?"
    r"[Ll]ast enqueued (?:\w+ )?work: (-?\d{1,18}).{0,80}?last completed "
    r"(?:\w+ )?work: (-?\d{1,18})"
)

_ASYNC_ERROR = re.compile(
    r"Collective Work\w{1,20}\(SeqNum=(\d{1,18}), OpType=(\w{1,60}).{0,300}\) "
    r"raised the following async exception.*"
)


def _group_rank(scan: LogScan, line: Line) -> tuple[str | None, int | None]:
    """(group, rank of the world) of a line with torch's prefix, which has the rank in the group."""
    rank = scan.rank_of(line)
    match = _GROUP.search(line.text)
    if match is None:
        return None, rank
    group = scan.group(match[1], match[2] or "")
    if rank is None and group == "0":
        rank = int(match[3])
    return group, rank


def _watchdog(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    facts = facts_of(line.text)
    group, rank = _group_rank(scan, line)
    if rank is not None or group not in (None, "0"):
        facts["rank"] = rank
    scan.add("timeout", line, _after_prefix(line.text), group=group, **facts)


def _after_prefix(text: str) -> str:
    """Without what a C++ exception puts in front of its text."""
    start = max(text.find("Watchdog caught"), 0)
    return text[start:]


def _numbers(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    """How far the rank was, and the group of its timeout, whose own line does not name it."""
    group, rank = _group_rank(scan, line)
    if group is None or rank is None:
        return
    enqueued, completed = int(match[2]), int(match[3])
    scan.numbers(rank, group, enqueued, completed)
    event = scan.last_event("timeout", rank)
    if event and event.group is None and match[1] and event.number == int(match[1]):
        scan.replace(event, group=group)
    event = scan.last_event("peer_lost", rank)
    failed = _ASYNC_ERROR.search(event.text) if event and event.group is None else None
    if event and failed and enqueued == completed + 1 == int(failed[1]):
        collective = torch_collective(failed[2].lower())
        scan.replace(event, group=group, number=enqueued, collective=collective)


def _stuck(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    """The monitor found the watchdog itself stuck in a call of CUDA, or waiting for the GIL."""
    group, rank = _group_rank(scan, line)
    scan.add("timeout", line, line.text[line.text.find(match[0]) :], rank=rank, group=group)


def _complaint(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    """An error of gloo or of the store that is printed, by C++ or as a message."""
    text = line.text.strip()
    kind = kind_of(text)
    if kind == "exception":
        return
    facts = facts_of(text)
    rank = scan.rank_of(line)
    if rank is not None:
        facts["rank"] = rank
    scan.add(kind, line, quotation(text), **facts)


def _async_error(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    """An error that NCCL found in the background. The call that torch names is the oldest that it
    has not seen completed. Only if no later one was issued, it is the call in which the rank was.
    """
    _, rank = _group_rank(scan, line)
    kind = kind_of(match[0])
    if kind != "exception" and "NCCL error: invalid" not in match[0]:
        scan.add(kind, line, match[0], rank=rank)
    scan.want(8)  # NCCL's own message follows


def _truncated(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    scan.add("mismatch", line, line.text.strip())


def _loader(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    scan.add("exception", line)


def _closing(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    scan.tasks_are_ranks, scan.closing = False, True
    scan.terminated.setdefault(int(match[1]), line)


_FAILED = re.compile(
    r"failed \(exitcode: (-?\d{1,6})\) local_rank: (\d{1,7}) \(pid: (\d{1,10})\) of (?:binary|fn)"
)


def _failed(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    scan.tasks_are_ranks = False
    code, pid = int(match[1]), int(match[3])
    event = _exit(scan, line, code, pid, None, line.node)
    if event is not None:
        scan.exits[pid] = event


def _exit(
    scan: LogScan, line: Line, code: int, pid: int, rank: int | None, node: str, text: str = ""
) -> JobEvent | None:
    """Add how a process ended. What torchrun itself sent to a process, because another one had
    failed, is neither a signal nor an exit code of the event: the rank was alive until then.
    """
    ended_by_torchrun = pid in scan.terminated
    number = -code if code < 0 else None
    by_itself = number is not None and number != signal.SIGTERM and not ended_by_torchrun
    return scan.add(
        "killed" if by_itself else "exit",
        line,
        text or line.text,
        rank=rank,
        pid=pid,
        node=node,
        exit_code=None if ended_by_torchrun else code,
        signal=None if ended_by_torchrun else number,
        when_ns=None if rank is not None else line.when_ns,
    )


# The table of failures, a field to each line.
_FIELD = re.compile(r"\s{2}(time|host|rank|exitcode|error_file|traceback)\s*: (.*)")
_ROW_RANK = re.compile(r"(\d{1,7}) \(local_rank: (\d{1,7})\)")
_ROW_CODE = re.compile(r"(-?\d{1,6}) \(pid: (\d{1,10})\)")


def _in_table(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    """FailureTable reads the line."""


def _agent_ended(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    """torchrun itself was told to end, by a scheduler or a person."""
    scan.tasks_are_ranks = False
    scan.add("canceled", line, rank=None, pid=None, signal=int(match[1] or signal.SIGTERM))


# What torchrun ends the other ranks with.
_SENT = (-signal.SIGTERM, -signal.SIGKILL)


class FailureTable:
    """Reads torchrun's table of the ranks that failed. Its last row is the first failure."""

    def __init__(self, scan: LogScan) -> None:
        self.scan = scan
        self._fields: dict[str, str] = {}
        self._root = False
        self._rows: list[tuple[Line, dict[str, str]]] = []
        self._first: dict[str, str] = {}

    def read(self, line: Line) -> bool:
        if line.text.startswith(("Root Cause (", "Failures:")):
            self._root = line.text.startswith("Root")
            self.scan.want(40)
        if not line.text.startswith("  "):
            return False
        match = _FIELD.match(line.text)
        if match is None:
            return False
        self._fields[match[1]] = match[2].strip()
        self.scan.want(40)
        if match[1] == "traceback":
            self._rows.append((line, self._fields))
            self._fields = {}
            if self._root:
                self.end()
        return True

    def end(self) -> None:
        """Add the rows of a table that is complete, or that the file does not have to its end."""
        self._first = self._rows[-1][1] if self._root and self._rows else {}
        for line, fields in self._rows:
            self._row(line, fields, self._first.get("exitcode", ""))
        self._rows, self._root = [], False

    def _row(self, line: Line, fields: dict[str, str], root: str) -> None:
        scan = self.scan
        ranks = _ROW_RANK.match(fields.get("rank", ""))
        codes = _ROW_CODE.match(fields.get("exitcode", ""))
        if not ranks or not codes:
            return
        scan.tasks_are_ranks = False
        rank, pid, node = int(ranks[1]), int(codes[2]), fields.get("host", "")
        scan.process(rank, pid, node)
        scan.local_offsets.add(rank - int(ranks[2]))
        text = f"rank {ranks[0]}, exitcode {fields['exitcode']}: {fields['traceback']}"
        text = f"first observed failure: {text}" if fields is self._first else text
        event = scan.exits.pop(pid, None)
        if event is not None:
            scan.replace(event, rank=rank, node=node, text=text)
            return
        code = int(codes[1])
        # Without its lines: if the first that failed had got SIGKILL as well, somebody may have
        # killed them all.
        sent = code in _SENT and (code == -signal.SIGTERM or not root.startswith("-9 "))
        if sent and fields is not self._first and not scan.closing:
            scan.terminated.setdefault(pid, line)
        _exit(scan, line, code, pid, rank, node, text)


_RUN_ID = re.compile(r"run_id\s*: (\S{1,100})$")


def _run_id(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    if match[1] not in ("none", "None"):
        scan.evidence.identities.add(f"torchelastic {match[1]}")


_SPAWN = re.compile(
    r"ProcessExitedException: process (\d{1,6}) terminated with (?:signal (\w+)|exit code (\d+))"
)


def _spawn(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    """torch.multiprocessing.spawn, whose processes are the ranks of a job on one host."""
    number = getattr(signal, match[2], None) if match[2] else None
    scan.add(
        "exit" if number in (None, signal.SIGTERM) else "killed",
        line,
        rank=int(match[1]),
        signal=None if number is None else int(number),
        exit_code=int(match[3]) if match[3] else None,
    )


_DEVICE_ERROR = re.compile(r"CUDA error: .{1,200}|device-side assert triggered")


HANDLERS: tuple[Handler, ...] = (
    ("Watchdog caught collective operation timeout", _ANY, _watchdog),
    ("ast enqueued", _NUMBERS, _numbers),
    ("watchdog got stuck for ", re.compile(r"\w+'s watchdog got stuck for .{0,60}"), _stuck),
    (
        "raised the following async exception",
        _ASYNC_ERROR,
        _async_error,
    ),
    ("essage truncated", re.compile(r"^NET/\w+ ?: .{0,200}[Mm]essage truncated"), _truncated),
    ("op.preamble.", _ANY, _complaint),
    ("monitoredBarrier", _ANY, _complaint),
    ("mismatch between collectives on ranks", _ANY, _complaint),
    ("gloo/transport/", re.compile(r"gloo/transport/\w+/\w+\.cc:\d+\]"), _complaint),
    ("recvValue", re.compile(r"recvValue\w* failed on"), _complaint),
    ("Connection was likely closed", _ANY, _complaint),
    ("wait timeout after ", re.compile(r"[Ww]ait timeout after \d+ ?ms"), _complaint),
    ("client socket has timed out", _ANY, _complaint),
    (
        "DataLoader worker (pid",
        re.compile(r"DataLoader worker \(pid.{1,80}(?:killed by signal|exited unexpectedly)"),
        _loader,
    ),
    (
        "closing signal",
        re.compile(r"Sending process (\d{1,10}) closing signal (\w{1,20})"),
        _closing,
    ),
    (
        "forcefully exiting via",
        re.compile(r"Unable to shutdown process (\d{1,10}) via"),
        _closing,
    ),
    (
        "death signal, shutting down",
        re.compile(r"Received (?:Signals\.\w+|(\d{1,3})) death signal, shutting down workers"),
        _agent_ended,
    ),
    ("failed (exitcode: ", _FAILED, _failed),
    ("Root Cause (first observed failure)", _ANY, _in_table),
    ("Failures:", _ANY, _in_table),
    ("run_id ", _RUN_ID, _run_id),
    ("ProcessExitedException: process", _SPAWN, _spawn),
)

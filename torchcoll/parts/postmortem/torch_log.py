"""Lines of torch's C++ code, of its elastic launcher, of NCCL and of oneCCL in a log, and the
report of NCCL's RAS in the text of ``ncclras``.

Texts of torch 2.0 to 2.13 (ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp, torch/distributed/elastic),
NCCL 2.8 to 2.30 (src/misc/socket.cc, src/transport/net_ib, of RAS src/ras/client_support.cc since
2.24) and oneCCL 2021 and 2022.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, shorten
from torchcoll.libraries.nccl.log import NcclLogReader
from torchcoll.parts.postmortem.diagnosis import ranks_text
from torchcoll.parts.postmortem.evidence import JobEvent, Place
from torchcoll.parts.postmortem.log_lines import (
    Handler,
    Line,
    LogScan,
    facts_of,
    quotation,
    says,
    wants,
)
from torchcoll.parts.postmortem.texts import COMPLAINTS, kind_of
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
    # Without what a C++ exception puts in front of its text.
    text = line.text[max(line.text.find("Watchdog caught"), 0) :]
    scan.add("timeout", line, text, group=group, **facts)


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
        forced=ended_by_torchrun and scan.closing and number == signal.SIGKILL,
        when_ns=None if rank is not None else line.when_ns,
    )


# The table of failures, a field to each line.
_FIELD = re.compile(r"\s{2}(time|host|rank|exitcode|error_file|traceback)\s*: (.*)")
_ROW_RANK = re.compile(r"(\d{1,7}) \(local_rank: (\d{1,7})\)")
_ROW_CODE = re.compile(r"(-?\d{1,6}) \(pid: (\d{1,10})\)")


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
        self._root = self._alone = False
        self._rows: list[tuple[Line, dict[str, str]]] = []
        self._first: dict[str, str] = {}

    def read(self, line: Line) -> bool:
        if line.text.startswith(("Root Cause (", "Failures:")):
            self._root = line.text.startswith("Root")
            self.scan.want(40)
        self._alone |= line.text.strip() == "<NO_OTHER_FAILURES>"
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
        self._rows, self._root, self._alone = [], False, False

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
        alone_from = rank - int(ranks[2]) if self._alone and len(self._rows) == 1 else None
        event = scan.exits.pop(pid, None)
        if event is not None:
            scan.replace(event, rank=rank, node=node, text=text, alone_from=alone_from)
            return
        code = int(codes[1])
        # Without its lines: if the first that failed had got SIGKILL as well, somebody may have
        # killed them all.
        sent = code in _SENT and (code == -signal.SIGTERM or not root.startswith("-9 "))
        if sent and fields is not self._first and not scan.closing:
            scan.terminated.setdefault(pid, line)
        if event := _exit(scan, line, code, pid, rank, node, text):
            scan.replace(event, alone_from=alone_from)


_RUN_ID = re.compile(r"run_id\s*: (\S{1,100})$")


def _run_id(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    if match[1] not in ("none", "None"):
        scan.evidence.identities.add(f"torchelastic {match[1]}")


# NCCL and oneCCL.

_PEER = re.compile(r"(?:peer|to|from) ((?:\d{1,3}\.){3}\d{1,3})<\d{1,5}>")
_OWN_RANK = re.compile(r"at and around rank (\d{1,7})")

_DEVICE = re.compile(r"(?:Cuda|HIP) failure|uncorrectable (?:NVLink|ECC) error")


class NcclLines:
    """Takes the lines of NCCL to its log reader, which knows processes and communicators."""

    def __init__(self, scan: LogScan) -> None:
        self.scan = scan
        self.reader = NcclLogReader(scan.shown)

    def read_info(self, raw: bytes) -> None:
        self.reader.read([raw])

    def read_warning(self, line: Line, raw: bytes) -> None:
        self.reader.read([raw])
        text = line.text[line.text.find("NCCL WARN") + 10 :]
        kind = kind_of(f"NCCL WARN {text}")
        if kind == "exception" and not _DEVICE.search(text):
            kind = "warning"
        facts = facts_of(text)
        facts.pop("rank", None)
        facts["addresses"] = (*facts.get("addresses", ()), *_PEER.findall(text))
        facts["addresses"] = tuple(dict.fromkeys(facts["addresses"]))
        rank = self.scan.rank_of(line)
        member = _OWN_RANK.search(text)
        process = self.reader.process
        self.scan.add(
            kind,
            line,
            f"NCCL WARN {text}",
            **{
                **facts,
                "rank": int(member[1]) if member else rank,
                "pid": process.pid or None,
                "node": process.host,
            },
        )

    def end(self) -> None:
        """Which process, on which host, each rank of the largest communicator is."""
        evidence = self.scan.evidence
        members = [
            (member, process)
            for process in self.reader.processes
            for member in process.members
            if member.rank is not None and member.nranks is not None
        ]
        most = max((m.nranks or 0 for m, _ in members), default=0)
        if most < 2:
            return
        places: dict[int, set[tuple[str, int]]] = {}
        for member, process in members:
            if member.comm_id:
                evidence.identities.add(f"communicator {member.comm_id}")
            if member.nranks == most and member.rank is not None:
                places.setdefault(member.rank, set()).add((process.host, process.pid))
        # Two groups of one size give one rank two processes: neither is the world.
        if all(len(hosts) == 1 for hosts in places.values()):
            evidence.ranks = max(evidence.ranks or 0, most)
            for rank, hosts in places.items():
                host, pid = next(iter(hosts))
                self.scan.process(rank, pid or None, host)


_CCL = re.compile(r"(?::\[(\d{1,7})\] )?\|CCL_ERROR\| (.*)")


def _oneccl(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    text = match[2]
    kind = "peer_lost" if re.search(r"connection|fi_cq|socket", text) else "warning"
    rank = int(match[1]) if match[1] else scan.rank_of(line)
    scan.add(kind, line, f"|CCL_ERROR| {text}", rank=rank)


# Errors of a communicator of which another rank is the cause, and those of which any rank may be.
_OF_PEERS = ("Remote process error", "System error")
_OF_ANY_RANK = ("Invalid usage", "Invalid argument")
_MOST_EVENTS = 64  # of each kind, except for ranks without an answer


@dataclass
class _Count:
    """Ranks that launched equally many operations. size: their number. ranks: those listed."""

    launched: int
    size: int
    ranks: list[int] = field(default_factory=list)


_COMMUNICATOR = re.compile(r"#(\d{1,9})-\d{1,9} \(([0-9a-f]{1,16})\) (\w+)")
_COUNTS = re.compile(r"Communicator ranks have different (\w{1,40}) operation counts")
_REACHED = re.compile(
    r"(\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any)"
)
_MISSING = re.compile(r"Missing communicator data from (\d{1,9}) (job process|rank)")
_DEAD = re.compile(r"(\d{1,9}) job process(?:es are| is) considered dead")
_REPORTED = re.compile(r"\d{1,9} ranks reported (.{1,60})")
_RANK = re.compile(
    r"Rank (\d{1,7})(?: has (?:launched up to operation (\d{1,18})|(not launched) any operations)"
    r"| has status \w+| reported (.{1,60}?))? -- (?:GPU \S{1,40}(?: \(NVML \d{1,9}\))? managed by "
    r"process (\d{1,10}) on node (\S{1,100})|\[process information not found\])"
)
_PROCESS = re.compile(r"Process (\d{1,10}) on node (\S{1,100}) managing GPU")
# Group, communicators in it, nodes, ranks per node, ranks per communicator, ranks, status, errors.
_RAS_GROUP = re.compile(r"\s+(\d{1,9})\s+\d+\s+\d+\s+[\d-]+\s+(\d{1,7})\s+\d+\s+[A-Z]")
_TOTALS = re.compile(r"\(total\)\s.*\(total\)$")
_TOTAL = re.compile(r"[\s\d]+\s(\d{1,7})$")
_SECTION = re.compile(r"(INCOMPLETE|DEAD|TIMEOUT|Errors|Warnings)$")


class RasText:
    """Reads what ``ncclras`` prints. Of several reports in a file the last counts: a process that
    did not answer once may answer the next time. Ranks are of the world: of communicators that have
    all ranks.
    """

    def __init__(self, scan: LogScan) -> None:
        self.scan = scan
        self._begin_report()
        self._active = False

    def _begin_report(self) -> None:
        self._active = True
        self._ranks: int | None = None  # of the world
        self._is_total = False  # the next line has the totals of the job
        self._sizes: dict[int, int] = {}  # of the communicators of each group in the report
        self._section, self._error = "", ""
        self._of_world = False
        self._missing = 0  # processes that did not answer
        self._unanswered: dict[int, JobEvent] = {}
        self._processes: list[JobEvent] = []  # that did not answer, of unknown ranks
        self._counts: list[tuple[Line, str, list[_Count]]] = []
        self._errors: list[tuple[Line, int | None, str]] = []
        self._groups: list[_Count] | None = None  # of the counts whose lines follow

    def read(self, line: Line) -> bool:
        """Read a line; returns whether it is one of the report."""
        text = line.text.strip()
        if text == "Job summary":
            self._begin_report()
            self.scan.want(2000)
        if not self._active:
            return False
        if self._is_total and (match := _TOTAL.match(line.text)):
            self._is_total = False
            self._ranks = int(match[1]) if int(match[1]) <= MOST_RANKS else None
        elif _TOTALS.search(line.text):
            self._is_total = True
        elif match := _RAS_GROUP.match(line.text):
            self._sizes[int(match[1])] = int(match[2])
        elif match := _COMMUNICATOR.match(text):
            self._of_world = self._sizes.get(int(match[1])) == self._ranks
            self._section, self._groups, self._error = match[3], None, ""
            self.scan.evidence.identities.add(f"communicator 0x{int(match[2], 16):x}")
        elif match := _SECTION.match(text):
            self._section, self._of_world, self._groups = match[1], False, None
        elif match := _COUNTS.match(text):
            self._groups = []
            if self._of_world:
                self._counts.append((line, match[1], self._groups))
        elif match := _REACHED.match(text):
            if self._groups is not None:
                self._groups.append(_Count(int(match[2] or 0), int(match[1])))
        elif match := _REPORTED.match(text):
            self._error = match[1]
            if self._of_world:
                self._errors.append((line, None, match[1]))
        elif match := _MISSING.match(text):
            self._missing += int(match[1]) if match[2] == "job process" else 0
        elif match := _DEAD.match(text):
            self._missing += int(match[1])
        elif match := _RANK.match(text):
            self._rank(line, match)
        elif self._section in ("INCOMPLETE", "DEAD") and (match := _PROCESS.match(text)):
            self._processes.append(self._no_answer(line, None, int(match[1]), match[2]))
        else:
            return False
        return True

    def _rank(self, line: Line, match: re.Match[str]) -> None:
        rank = int(match[1])
        if not self._of_world or rank >= (self._ranks or 0):
            return
        pid, node = (int(match[5]), match[6]) if match[5] else (None, "")
        if pid is not None:
            self.scan.process(rank, pid, node)
        if self._section == "INCOMPLETE":
            self._unanswered.setdefault(rank, self._no_answer(line, rank, pid, node))
        elif self._section == "ERROR" and (match[4] or self._error):
            if self._errors and self._errors[-1][1] is None and not match[4]:
                self._errors.pop()  # its ranks follow
            self._errors.append((line, rank, match[4] or self._error))
        elif self._groups is not None:
            if match[2] or match[3]:
                self._groups.append(_Count(int(match[2] or 0), 1, [rank]))
            elif self._groups:
                self._groups[-1].ranks.append(rank)

    def _event(self, kind: str, line: Line | None, text: str, **facts: Any) -> JobEvent:
        place = Place(self.scan.shown, line.number if line else None)
        return JobEvent(kind, place, text, **facts)

    def _no_answer(self, line: Line, rank: int | None, pid: int | None, node: str) -> JobEvent:
        whose = f"process {pid} on {node}" if pid else "its process"
        text = f"NCCL's RAS got no answer from {whose}"
        return self._event(
            "unanswered", line, text, rank=rank, node=node, pid=pid, ranks=self._ranks
        )

    def end(self) -> None:
        """Add what the report says to the evidence."""
        if self._ranks is None:
            return
        evidence = self.scan.evidence
        evidence.ranks = max(evidence.ranks or 0, self._ranks)
        of_ranks = {(event.pid, event.node) for event in self._unanswered.values()}
        events = [e for e in self._processes if (e.pid, e.node) not in of_ranks]
        events = [*self._unanswered.values(), *events]
        if len(events) < self._missing:
            text = "NCCL's RAS got no answer from more processes than it lists"
            events.append(self._event("unanswered", None, text))
        events += [self._unequal(*counts) for counts in self._counts[:_MOST_EVENTS]]
        events += [self._reported(*error) for error in self._errors[:_MOST_EVENTS]]
        if not events and self._ranks:
            text = (
                f"NCCL's RAS got an answer from all {counted(self._ranks, 'rank')}, which report "
                "no error and launched equally many operations of each kind"
            )
            events.append(self._event("all_answered", None, text))
        evidence.events += events

    def _unequal(self, line: Line, operation: str, groups: list[_Count]) -> JobEvent:
        """Ranks launched different numbers of an operation; about: those that may be behind."""
        world = range(self._ranks or 0)
        unlisted = [group for group in groups if not group.ranks]
        if len(unlisted) == 1:
            listed = {rank for group in groups for rank in group.ranks}
            ranks = [r for r in world if r not in listed and r not in self._unanswered]
            unlisted[0].ranks = ranks if len(ranks) == unlisted[0].size else []
        groups.sort(key=lambda group: -group.launched)
        behind = {rank for group in groups[1:] for rank in group.ranks or world}
        texts = [
            f"{g.launched} by {ranks_text(g.ranks) if g.ranks else counted(g.size, 'rank')}"
            for g in groups
        ]
        text = f"NCCL's RAS counted {operation} operations: {shorten(texts, 4, ', and {} more')}"
        return self._event("unequal_counts", line, text, about=tuple(sorted(behind)))

    def _reported(self, line: Line, rank: int | None, error: str) -> JobEvent:
        suspects: tuple[int, ...] = () if rank is None else (rank,)
        if error in _OF_PEERS:
            suspects = ()
        elif error in _OF_ANY_RANK or rank is None:
            suspects = tuple(range(self._ranks or 0))
        who = "several ranks report" if rank is None else f"rank {rank} reports"
        text = f"NCCL's RAS: {who} {one_line(error)}"
        return self._event("ras_error", line, text, rank=rank, about=suspects)


_TRUNCATED = re.compile(r"^NET/\w+ ?: .{0,200}[Mm]essage truncated")
_LOADER = re.compile(r"DataLoader worker \(pid.{1,80}(?:killed by signal|exited unexpectedly)")
_CLOSING = re.compile(r"Sending process (\d{1,10}) closing signal (\w{1,20})")
_FORCED = re.compile(r"Unable to shutdown process (\d{1,10}) via")
_AGENT_ENDED = re.compile(
    r"Received (?:Signals\.\w+|(\d{1,3})) death signal, shutting down workers"
)
HANDLERS: tuple[Handler, ...] = (
    ("Watchdog caught collective operation timeout", _ANY, _watchdog),
    ("ast enqueued", _NUMBERS, _numbers),
    ("raised the following async exception", _ASYNC_ERROR, _async_error),
    ("essage truncated", _TRUNCATED, says("mismatch")),
    *((text, pattern, _complaint) for text, pattern in COMPLAINTS),
    ("DataLoader worker (pid", _LOADER, says("exception")),
    ("closing signal", _CLOSING, _closing),
    ("forcefully exiting via", _FORCED, _closing),
    ("death signal, shutting down", _AGENT_ENDED, _agent_ended),
    ("failed (exitcode: ", _FAILED, _failed),
    ("Root Cause (first observed failure)", _ANY, wants(0)),
    ("Failures:", _ANY, wants(0)),
    ("run_id ", _RUN_ID, _run_id),
    ("Job summary", re.compile(r"Job summary$"), wants(2000)),
    ("|CCL_ERROR|", _CCL, _oneccl),
)

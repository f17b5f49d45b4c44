"""Lines of NCCL and of oneCCL in a log, and the report of NCCL's RAS in the text of ``ncclras``.

Texts of NCCL 2.8 to 2.30 (src/misc/socket.cc, src/transport/net_ib) and oneCCL 2021 and 2022; of
RAS those of NCCL 2.24 to 2.30 (src/ras/client_support.cc).

RAS asks a thread of its own in each process, which answers while a collective hangs. It has no
answer from a process that has ended, that is stopped, or that cannot be reached, and it does not
say which of these, nor when. Calls are counted when they are launched, so a rank that is ahead may
wait for others, and a rank that is behind need not be late.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.errors import one_line
from torchcoll.core.units import counted
from torchcoll.libraries.nccl.log import NcclLogReader
from torchcoll.parts.postmortem.diagnosis import ranks_text
from torchcoll.parts.postmortem.evidence import JobEvent, JobEvidence, Place
from torchcoll.parts.postmortem.log_lines import Handler, Line, LogScan, facts_of
from torchcoll.parts.postmortem.texts import kind_of

_ANY = re.compile("")
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


def _ras_begins(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    scan.want(2000)


_CCL = re.compile(r"(?::\[(\d{1,7})\] )?\|CCL_ERROR\| (.*)")


def _oneccl(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    text = match[2]
    kind = "peer_lost" if re.search(r"connection|fi_cq|socket", text) else "warning"
    rank = int(match[1]) if match[1] else scan.rank_of(line)
    scan.add(kind, line, f"|CCL_ERROR| {text}", rank=rank)


HANDLERS: tuple[Handler, ...] = (
    ("Job summary", re.compile(r"Job summary$"), _ras_begins),
    ("|CCL_ERROR|", _CCL, _oneccl),
)


# Errors of a communicator of which another rank is the cause, and those of which any rank may be.
_OF_PEERS = ("Remote process error", "System error")
_OF_ANY_RANK = ("Invalid usage", "Invalid argument")
_MOST_EVENTS = 64  # of each kind, except for ranks without an answer


@dataclass(frozen=True)
class RasProcess:
    """A process that did not answer. line: of the report."""

    pid: int | None = None
    node: str = ""
    line: int | None = None


@dataclass
class RasCount:
    """Ranks that launched as many operations. size: their number. ranks: where all are listed."""

    launched: int
    size: int
    ranks: list[int] = field(default_factory=list)


@dataclass
class RasCounts:
    """The different numbers of one operation that the ranks of a communicator launched."""

    operation: str
    line: int | None = None
    groups: list[RasCount] = field(default_factory=list)


@dataclass
class RasReport:
    """Ranks are of the world: of communicators that have all ranks.

    ranks: of the world, where known. unanswered: rank -> its process. processes: without an answer
    and of no known rank. is_listed: whether all that did not answer are named. errors: (line, rank
    or None, error).
    """

    ranks: int | None = None
    unanswered: dict[int, RasProcess] = field(default_factory=dict)
    processes: list[RasProcess] = field(default_factory=list)
    is_listed: bool = True
    counts: list[RasCounts] = field(default_factory=list)
    errors: list[tuple[int | None, int | None, str]] = field(default_factory=list)

    def add_to(self, evidence: JobEvidence, shown: str) -> None:
        """Put what the report says into the evidence of the file ``shown``."""
        if self.ranks is not None:
            evidence.ranks = max(evidence.ranks or 0, self.ranks)
        world = range(self.ranks or 0)
        events = evidence.events
        processes = [*self.unanswered.items(), *((None, process) for process in self.processes)]
        for rank, process in processes:
            whose = f"process {process.pid} on {process.node}" if process.pid else "its process"
            events.append(
                JobEvent(
                    "unanswered",
                    Place(shown, process.line),
                    f"NCCL's RAS got no answer from {whose}",
                    rank,
                    process.node,
                    pid=process.pid,
                    ranks=self.ranks,
                )
            )
        if not self.is_listed:
            text = "NCCL's RAS got no answer from more processes than it lists"
            events.append(JobEvent("unanswered", Place(shown), text))
        for counts in self.counts[:_MOST_EVENTS]:
            behind, text = _describe(counts, world)
            where = Place(shown, counts.line)
            events.append(JobEvent("unequal_counts", where, text, about=behind))
        for line, rank, error in self.errors[:_MOST_EVENTS]:
            suspects: tuple[int, ...] = () if rank is None else (rank,)
            if error in _OF_PEERS:
                suspects = ()
            elif error in _OF_ANY_RANK or rank is None:
                suspects = tuple(world)
            who = "several ranks report" if rank is None else f"rank {rank} reports"
            text = f"NCCL's RAS: {who} {one_line(error)}"
            events.append(JobEvent("ras_error", Place(shown, line), text, rank, about=suspects))
        if not (processes or self.counts or self.errors) and self.is_listed and world:
            text = (
                f"NCCL's RAS got an answer from all {counted(len(world), 'rank')}, which report no "
                "error and launched equally many operations of each kind"
            )
            events.append(JobEvent("all_answered", Place(shown), text))


def _describe(counts: RasCounts, world: range) -> tuple[tuple[int, ...], str]:
    """(ranks that may be behind, one line)."""
    groups = sorted(counts.groups, key=lambda group: -group.launched)
    behind: set[int] = set()
    for group in groups[1:]:
        behind |= set(group.ranks) if group.ranks else set(world)
    texts = [
        f"{group.launched} by "
        f"{ranks_text(group.ranks) if group.ranks else counted(group.size, 'rank')}"
        for group in groups
    ]
    more = f", and {len(texts) - 4} more" if len(texts) > 4 else ""
    text = f"NCCL's RAS counted {counts.operation} operations: {', '.join(texts[:4])}{more}"
    return tuple(sorted(behind)), text


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
_GROUP = re.compile(r"\s+(\d{1,9})\s+\d+\s+\d+\s+[\d-]+\s+(\d{1,7})\s+\d+\s+[A-Z]")
_TOTALS = re.compile(r"\(total\)\s.*\(total\)$")
_TOTAL = re.compile(r"[\s\d]+\s(\d{1,7})$")
_SECTION = re.compile(r"(INCOMPLETE|DEAD|TIMEOUT|Errors|Warnings)$")


class RasText:
    """Reads what ``ncclras`` prints. Of several reports in a file the last counts: a process that
    did not answer once may answer the next time.
    """

    def __init__(self, scan: LogScan) -> None:
        self.scan = scan
        self.active = False
        self._begin_report()

    def _begin_report(self) -> None:
        self.report = RasReport()
        self._is_total = False  # the next line has the totals of the job
        self._sizes: dict[int, int] = {}  # of the communicators of each group in the report
        self._section = ""
        self._of_world = False
        self._counts: RasCounts | None = None
        self._error = ""
        self._missing = 0  # processes that did not answer
        self._processes: list[RasProcess] = []

    def read(self, line: Line) -> bool:
        """Read a line; returns whether it is one of the report."""
        text = line.text.strip()
        if text == "Job summary":
            self.active = True
            self._begin_report()
            self.scan.want(2000)
        if not self.active:
            return False
        if self._is_total and (match := _TOTAL.match(line.text)):
            self._is_total = False
            self.report.ranks = int(match[1]) if int(match[1]) <= MOST_RANKS else None
        elif _TOTALS.search(line.text):
            self._is_total = True
        elif match := _GROUP.match(line.text):
            self._sizes[int(match[1])] = int(match[2])
        elif match := _COMMUNICATOR.match(text):
            self._of_world = self._sizes.get(int(match[1])) == self.report.ranks
            self._section, self._counts, self._error = match[3], None, ""
            self.scan.evidence.identities.add(f"communicator 0x{int(match[2], 16):x}")
        elif match := _SECTION.match(text):
            self._section, self._of_world, self._counts = match[1], False, None
        elif match := _COUNTS.match(text):
            self._counts = RasCounts(match[1], line.number)
            if self._of_world:
                self.report.counts.append(self._counts)
        elif match := _REACHED.match(text):
            if self._counts is not None:
                self._counts.groups.append(RasCount(int(match[2] or 0), int(match[1])))
        elif match := _REPORTED.match(text):
            self._error = match[1]
            if self._of_world:
                self.report.errors.append((line.number, None, match[1]))
        elif match := _MISSING.match(text):
            self._missing += int(match[1]) if match[2] == "job process" else 0
        elif match := _DEAD.match(text):
            self._missing += int(match[1])
        elif match := _RANK.match(text):
            self._rank(line, match)
        elif self._section in ("INCOMPLETE", "DEAD") and (match := _PROCESS.match(text)):
            self._processes.append(RasProcess(int(match[1]), match[2], line.number))
        else:
            return False
        return True

    def _rank(self, line: Line, match: re.Match[str]) -> None:
        rank = int(match[1])
        if not self._of_world or rank >= (self.report.ranks or 0):
            return
        pid, node = (int(match[5]), match[6]) if match[5] else (None, "")
        if pid is not None:
            self.scan.process(rank, pid, node)
        if self._section == "INCOMPLETE":
            self.report.unanswered.setdefault(rank, RasProcess(pid, node, line.number))
        elif self._section == "ERROR" and (match[4] or self._error):
            if self.report.errors and self.report.errors[-1][1] is None and not match[4]:
                self.report.errors.pop()  # its ranks follow
            self.report.errors.append((line.number, rank, match[4] or self._error))
        elif self._counts is not None:
            if match[2] or match[3]:
                self._counts.groups.append(RasCount(int(match[2] or 0), 1, [rank]))
            elif self._counts.groups:
                self._counts.groups[-1].ranks.append(rank)

    def end(self) -> None:
        """Add what the report says to the evidence."""
        if self.report.ranks is None:
            return
        world = range(self.report.ranks)
        answered = set(world) - self.report.unanswered.keys()
        for counts in self.report.counts:
            unlisted = [group for group in counts.groups if not group.ranks]
            if len(unlisted) == 1:
                listed = {rank for group in counts.groups for rank in group.ranks}
                ranks = sorted(answered - listed)
                unlisted[0].ranks = ranks if len(ranks) == unlisted[0].size else []
        of_ranks = {(process.pid, process.node) for process in self.report.unanswered.values()}
        self.report.processes = [p for p in self._processes if (p.pid, p.node) not in of_ranks]
        named = len(self.report.unanswered) + len(self.report.processes)
        self.report.is_listed = named >= self._missing
        self.report.add_to(self.scan.evidence, self.scan.shown)

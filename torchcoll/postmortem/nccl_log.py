"""Lines of NCCL, of its RAS client, and of oneCCL in a log.

Texts of NCCL 2.8 to 2.30 (src/misc/socket.cc, src/transport/net_ib, src/ras/client_support.cc) and
oneCCL 2021 and 2022.
"""

from __future__ import annotations

import re

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.libraries.nccl.log import NcclLogReader
from torchcoll.postmortem.complaint_texts import facts_of, kind_of
from torchcoll.postmortem.evidence import GroupSeen
from torchcoll.postmortem.log_lines import Line
from torchcoll.postmortem.log_scan import Handler, LogScan, collective_named

_ANY = re.compile("")
_PEER = re.compile(r"(?:peer|to|from) ((?:\d{1,3}\.){3}\d{1,3})<\d{1,5}>")
_LOST = re.compile(
    r"Connection closed by remote peer|remote process exited|"
    r"Call to (?:recv|send|connect|accept)\b|"
    r"[Cc]onnect(?:ion)?\b.{0,200}(?:failed|refused|timed out|reset|returned)|[Ss]ocketPollConnect|"
    r"Socket recv failed|NET/IB ?(?:/GIN)?: Got completion (?:from peer|with error)|"
    r"NET/Socket : socket progress error|Accept failed|recv(?:ing)? .{0,40}failed"
)
_LINK = re.compile(
    r"NET/IB ?: .{0,120}(?:async (?:fatal )?event|Got (?:non-fatal )?async event).{0,80}|"
    r"NET/IB: Device \d+ marked as failed|[Ll]ink (?:is )?down"
)
_MISMATCH = re.compile(
    r"Mismatched collective detected|collective mismatch error|[Mm]essage truncated"
)
_OWN_RANK = re.compile(r"at and around rank (\d{1,7})")
_DEVICE = re.compile(
    r"Cuda failure(?: \d+)? '?(.{1,120}?)'?$|uncorrectable (?:NVLink|ECC) error|"
    r"HIP failure '?(.{1,120}?)'?$"
)


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
        kind = _kind(text)
        if kind is None:
            return
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


def _kind(text: str) -> str | None:
    if _LINK.search(text):
        return "link"
    if _MISMATCH.search(text):
        return "mismatch"
    if _DEVICE.search(text):
        return kind_of(text) if kind_of(text) == "out_of_memory" else "exception"
    return "peer_lost" if _LOST.search(text) else None


# The report of NCCL's RAS client. Ranks are of the communicator.

_COMMUNICATOR = re.compile(r"#(\d{1,9})-\d{1,9} \(([0-9a-f]{1,16})\) (\w+)")
_COUNTS = re.compile(r"Communicator ranks have different (\w{1,40}) operation counts")
_REACHED = re.compile(
    r"(\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any)"
)
_RAS_RANK = re.compile(
    r"Rank (\d{1,7})(?: has (?:launched up to operation (\d{1,18})|(not launched) any operations)"
    r"| has status \w+| reported .{1,60}?)? -- (?:GPU \S{1,40} managed by process "
    r"(\d{1,10}) on node (\S{1,100})|\[process information not found\])"
)
_RAS_PROCESS = re.compile(r"Process (\d{1,10}) on node (\S{1,100}) managing GPU")
# Group, communicators in it, nodes, ranks per node, ranks per communicator, ranks, status, errors.
_GROUP = re.compile(r"\s+(\d{1,9})\s+\d+\s+\d+\s+[\d-]+\s+(\d{1,7})\s+\d+\s+[A-Z]")
_TOTAL = re.compile(r"\s+\d+\s+\d+\s+\d+\s+\d+\s+(\d{1,7})$")
_SECTION = re.compile(r"(INCOMPLETE|DEAD|TIMEOUT|Errors|Warnings)$")


class RasReport:
    """Reads what ``ncclras`` prints. Only a communicator of all ranks has ranks of the world."""

    def __init__(self, scan: LogScan) -> None:
        self.scan = scan
        self.active = False
        self._world: int | None = None
        self._sizes: dict[int, int] = {}  # of the communicators of each group in the report
        self._section = ""
        self._communicator = ""
        self._of_world = False
        self._function = ""
        self._number: int | None = None  # operation that the listed ranks have reached
        # (communicator, function) -> operation of most ranks, and of those that are listed
        self._usual: dict[tuple[str, str], int] = {}
        self._listed: dict[tuple[str, str], dict[int, int]] = {}

    def read(self, line: Line) -> bool:
        text = line.text.strip()
        if text == "Job summary":
            self.active = True
            self.scan.want(2000)
        if not self.active:
            return False
        if match := _GROUP.match(line.text):
            self._sizes[int(match[1])] = int(match[2])
        elif match := _TOTAL.match(line.text):
            self._world = int(match[1])
        elif match := _COMMUNICATOR.match(text):
            self._of_world = self._sizes.get(int(match[1])) == self._world
            self._communicator, self._section, self._function = match[2], match[3], ""
        elif match := _SECTION.match(text):
            self._section, self._communicator, self._of_world = match[1], "", False
        elif match := _COUNTS.match(text):
            self._function = match[1]
        elif match := _REACHED.match(text):
            self._number = int(match[2] or 0)
            self._usual.setdefault((self._communicator, self._function), self._number)
        elif match := _RAS_RANK.match(text):
            self._rank(line, match)
        elif self._section == "DEAD" and (match := _RAS_PROCESS.match(text)):
            facts = {"rank": None, "pid": int(match[1]), "node": match[2]}
            self.scan.add("killed", line, f"DEAD {text}", **facts)
        else:
            return False
        return True

    def _rank(self, line: Line, match: re.Match[str]) -> None:
        rank = int(match[1])
        if not self._of_world:
            return
        if match[4]:
            self.scan.process(rank, int(match[4]), match[5])
        if self._section == "INCOMPLETE":
            text = f"INCOMPLETE {line.text.strip()}"
            self.scan.add("peer_lost", line, text, rank=None, pid=None, about=(rank,))
        number = int(match[2]) if match[2] else 0 if match[3] else self._number
        if self._function and number is not None:
            self._listed.setdefault((self._communicator, self._function), {})[rank] = number

    def end(self) -> None:
        if self._world is None:
            return
        evidence = self.scan.evidence
        evidence.ranks = max(evidence.ranks or 0, self._world)
        world = tuple(range(min(self._world, MOST_RANKS)))
        for key, listed in self._listed.items():
            communicator, function = key
            evidence.identities.add(f"communicator 0x{communicator}")
            name = f"{communicator} {function}"
            description = f"{collective_named(function)} of NCCL's communicator {communicator}"
            evidence.groups[name] = GroupSeen(name, world, description)
            for rank in world:
                number = listed.get(rank, self._usual.get(key))
                if number is not None:
                    evidence.last_number[rank, name] = number


def _ras_begins(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    scan.want(2000)


_CCL = re.compile(r"(?::\[(\d{1,7})\] )?\|CCL_ERROR\| (.*)")


def _oneccl(scan: LogScan, line: Line, match: re.Match[str]) -> None:
    text = match[2]
    kind = "peer_lost" if re.search(r"atl|ofi|connection|fi_cq|kvs|socket", text) else "exception"
    rank = int(match[1]) if match[1] else scan.rank_of(line)
    scan.add(kind, line, f"|CCL_ERROR| {text}", rank=rank)


HANDLERS: tuple[Handler, ...] = (
    ("Job summary", re.compile(r"Job summary$"), _ras_begins),
    ("|CCL_ERROR|", _CCL, _oneccl),
)

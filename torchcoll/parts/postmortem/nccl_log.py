"""Lines of NCCL and of oneCCL in a log. The report of NCCL's RAS is in ras_report.py.

Texts of NCCL 2.8 to 2.30 (src/misc/socket.cc, src/transport/net_ib) and oneCCL 2021 and 2022.
"""

from __future__ import annotations

import re

from torchcoll.libraries.nccl.log import NcclLogReader
from torchcoll.parts.postmortem.complaint_texts import facts_of, kind_of
from torchcoll.parts.postmortem.log_lines import Line
from torchcoll.parts.postmortem.log_scan import Handler, LogScan

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

"""Reads measurements between two ranks or hosts: OSU point-to-point, perftest, lists of pairs.

Of each pair the reader keeps the largest size, and the latency at 8 bytes. The two hosts are in the
command line above the output, or in a line such as ``pair 0,1``. A line of a list is
``a,b  49.36``. A MB is 10^6 bytes in OSU and 2^20 bytes in perftest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from torchcoll.core.result import CaseResult, Reported
from torchcoll.reading import base
from torchcoll.reading.table_reader import TableReader

NAME = "pairs"
_OSU = re.compile(r"#\s*OSU MPI\S*\s+.*\b(Bandwidth|Latency) Test(?:\s+v(\S+))?\s*$")
_NO_PAIRS = re.compile(r"\b(?:Multi|Multiple|All|Reduce|Gather|Scatter|Broadcast|Barrier)", re.I)
_PERFTEST = re.compile(r"\s*(?:RDMA_(?:Read|Write)|Send)\b.{0,60} BW Test\s*$")
_BANDWIDTHS = re.compile(r"\s*#bytes\s+#?iterations\s+BW peak\[(\S+)\]\s+BW average\[\S+\]")
_ROW = re.compile(r"\s*(\d+)((?:\s+\d+(?:\.\d+)?)+)\s*$")
_HOSTS = re.compile(r"\s(?:-?-hosts?|-H|--nodelist|-w)[ =](\S+?),(\S+)")
_PAIR = re.compile(r"\bpair\s+([\w.-]+)\s*(?:,|<?->|\s)\s*([\w.-]+)")
_PERFTEST_COMMAND = re.compile(
    r"(?:@([\w.-]+)[^$#]*[$#]\s*)?\bib_(?:write|read|send)_(?:bw|lat)\s.*?(?<=\s)([A-Za-z][\w.-]*)"
)
_LISTED = re.compile(
    r"\s*[(\[]?([A-Za-z][\w.-]*)(?:\s*(?:,|<?-+>|\sto\s|\|)\s*|\s+(?=\S*\d\S*\s))"
    r"([A-Za-z][\w.-]*)[)\]]?"
    r"\s*[:,|=]?\s+(\d+(?:\.\d+)?)\s*([GM]i?[Bb](?:it)?/s(?:ec)?|[GM]bps)?\s*$"
)
_LEAST_LISTED = 3
_NUMBERED = re.compile(r"0|[1-9][0-9]{0,4}")  # a rank
_UNITS = {"Gb/sec": 0.125, "MB/sec": 2**20 / 1e9, "GB/s": 1.0, "MB/s": 1e-3}
_LATENCY_BYTES = 8
_LEAST_BYTES = 1024  # smaller messages show no bandwidth
NO_ROW = f"no row of {_LATENCY_BYTES} bytes, nor of {_LEAST_BYTES} or more"
NO_HOSTS = "the names of the two hosts are not in the file: the command line has them"


def sniff(head: Sequence[str]) -> bool:
    listed = 0
    titles = [text for text in head if text.lstrip("# ").startswith("OSU MPI")]
    if titles:  # reading/osu.py reads a file that has collectives too
        return all(_OSU.match(text) and not _NO_PAIRS.search(text) for text in titles)
    for text in head:
        if _PERFTEST.match(text):
            return True
        listed += bool(_LISTED.match(text))
    return listed >= _LEAST_LISTED and listed > len(head) // 2


@dataclass
class _PairOutput:
    """The output of a test between two hosts, or a line of a list.

    rows: size in bytes -> ns. The size of a line of a list is unknown: 1.
    """

    names: tuple[str, str] | None
    line: int
    rows: dict[int, float] = field(default_factory=dict)


class _PairsReader(TableReader):
    def __init__(self, options: base.ImportOptions) -> None:
        super().__init__(options)
        self.tests: list[_PairOutput] = []
        self.hosts: tuple[str, str] | None = None
        self.kind, self.scale = "", 1.0
        self.tool, self.version = "a list of pairs", ""
        self.unit = "GB/s"

    def line(self, line: int, text: str) -> None:
        if match := _HOSTS.search(text):
            self.hosts = _short(match[1]), _short(match[2].partition(",")[0])
        elif match := _PERFTEST_COMMAND.search(text):
            self.hosts = match[1] or "local", match[2]
        elif match := _PAIR.search(text):
            self.hosts = match[1], match[2]
        elif (match := _OSU.match(text)) and not _NO_PAIRS.search(match[0]):
            self.begin(line, "OSU", match[2] or "")
            self.kind = match[1]
            self.scale = 0.5e-3 if "Bi-Directional" in match[0] else 1e-3
        elif _PERFTEST.match(text):
            self.begin(line, "perftest", "")
            self.kind = ""
        elif match := _BANDWIDTHS.match(text):
            self.kind, self.scale = "perftest", _UNITS.get(match[1], 0.0)
        elif self.kind and (match := _ROW.match(text)):
            self.row(line, base.whole(match[1]), match[2].split())
        elif match := _LISTED.match(text):
            self.listed(line, match)
        elif "Gb/s" in text or "Gbps" in text:
            self.unit = "Gb/sec"

    def begin(self, line: int, tool: str, version: str) -> None:
        self.tool, self.version = tool, version
        self.tests.append(_PairOutput(self.hosts, line))

    def row(self, line: int, size: int | None, figures: Sequence[str]) -> None:
        index = 2 if self.kind == "perftest" else 0
        value = base.number(figures[index]) if index < len(figures) else None
        if not value or not size or not self.scale or not self.tests:
            self.imported.refuse(line, f"no figure: {' '.join(figures)[:40]}")
            return
        self.imported.take()
        ns = value * 1e3 if self.kind == "Latency" else size / (value * self.scale)
        if base.number(ns):
            self.tests[-1].rows[size] = ns

    def listed(self, line: int, match: re.Match[str]) -> None:
        value = base.number(match[3])
        if not value or match[1] == match[2]:
            self.imported.refuse(line, f"no figure of a pair: {match[0].strip()[:40]}")
            return
        unit = match[4] or self.unit
        bits = "b" in unit.replace("/s", "") or "bps" in unit
        gbps = value / (8 if bits else 1) / (1000 if unit.startswith("M") else 1)
        self.imported.take()
        if base.number(1 / gbps):
            self.tests.append(_PairOutput((match[1], match[2]), line, {1: 1 / gbps}))

    def end(self) -> None:
        names: dict[str, None] = {}
        for each in self.tests:
            if each.names is None:
                self.imported.warn(NO_HOSTS)
                each.names = "first", "second"
            names |= dict.fromkeys(each.names)
        numbered = all(map(_NUMBERED.fullmatch, names))
        if numbered:
            names = dict.fromkeys(map(str, range(max(map(int, names), default=0) + 1)))
        index_of = {name: index for index, name in enumerate(names)}
        rule = "pair" if numbered else "node"
        results = [
            result
            for each in self.tests
            if each.rows
            for result in self.results_of(each, index_of, rule)
        ]
        if not results:
            return
        hosts = [{"rank": i, "host": "?" if numbered else name} for name, i in index_of.items()]
        source = {"tool": self.tool, "version": self.version, "format": "pairs"}
        run = base.make_run(results, self.options, source, ranks=len(index_of), members=hosts)
        self.imported.runs.append(run)

    def results_of(
        self, output: _PairOutput, index_of: dict[str, int], rule: str
    ) -> list[CaseResult]:
        """The latency of a pair, and the result of its largest size."""
        assert output.names is not None
        low, high = sorted(index_of[name] for name in output.names)
        latency = self.kind == "Latency" and _LATENCY_BYTES in output.rows
        sizes = [_LATENCY_BYTES] if latency else []
        if self.kind != "Latency" or max(output.rows) >= _LEAST_BYTES:
            sizes.append(max(output.rows))
        if not sizes:
            self.imported.refuse(output.line, NO_ROW)
        results = []
        for size in dict.fromkeys(sizes):
            result = base.make_result(
                "sendrecv",
                size,
                Reported(output.rows[size], statistic="mean", clock="host"),
                ranks=2,
                backend="mpi" if self.tool == "OSU" else "unknown",
                group=f"{rule}/{low}-{high}",
            )
            result.members = [low, high]
            results.append(result)
        return results


def _short(host: str) -> str:
    """A host without its slots: ``gpu07:8``."""
    return host.partition(":")[0]


read = _PairsReader.read

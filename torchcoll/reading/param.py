"""Reads PARAM's comms benchmark: rows ``COMMS-RES-<collective>-<type>``.

The time is the median over ranks of each rank's mean. Sizes are S of nccl-tests. Point-to-point
rows (ping latencies of two ranks) and quantised rows (which have several times) are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchcoll.core.result import CaseResult, Reported
from torchcoll.reading import base

NAME = "param"
_ROW = re.compile(
    r"\s*COMMS-RES-(?P<quant>QUANT-)?(?P<coll>[a-z0-9_]+)-(?P<dtype>[a-z0-9]+)(?P<tag>\S*)\s+"
    r"(?P<figures>.*\S)"
)
STARTS = re.compile(r"COMMS-RES")
_WORLD = re.compile(r"'world_size': (\d+)|groupSize (\d+)")
_BACKEND = re.compile(r"\bbackend: (\w+)")
_DEVICE = re.compile(r"host \S+, device: (\w+)")
_FIGURES = 10


def sniff(head: Sequence[str]) -> bool:
    return any("COMMS-RES" in text or "PARAM COMM environment" in text for text in head)


class _ParamReader(base.TableReader):
    def __init__(self, options: base.ImportOptions) -> None:
        super().__init__(options)
        self.listed: int | None = None
        self.ranks, self.pairs = options.ranks or 0, False
        self.backend, self.device = options.backend or "unknown", "unknown"

    def line(self, line: int, text: str) -> None:
        if match := _ROW.match(text):
            self.add(line, self.result(match))
        elif "COMMS-RES-" in text:
            self.imported.refuse(line, "half a row")
        elif "COMMS-RES" in text:
            self.pairs = "pingLatency" in text
        else:
            if match := _WORLD.search(text):
                # A group that is smaller than the world is printed after it; the group ran.
                self.listed = base.parse_ranks(match[1] or match[2])
            if not self.options.backend and (match := _BACKEND.search(text)):
                self.backend = match[1]
            if match := _DEVICE.search(text):
                self.device = match[1]

    def run_of(self, result: CaseResult) -> int:
        """All rows are of one run."""
        return 0

    def end(self) -> None:
        source = {"tool": "PARAM", "format": "text"}
        for results in self.results.values():
            run = base.make_run(results, self.options, source, ranks=self.ranks)
            self.imported.runs.append(run)

    def result(self, match: re.Match[str]) -> CaseResult | str:
        options, choose, fields = self.options, self.imported.choose, match["figures"].split()
        if self.pairs:
            return "point-to-point latency of two ranks: no collective"
        if match["quant"]:
            return "quantised: the times of quantising and of the collective are apart"
        self.ranks = choose("ranks", options.ranks, self.listed) or 0
        recorded = base.collective_named(match["coll"].removesuffix("_base"))
        name = choose("collective", options.collective, recorded)
        if name is None:
            return f"{match['coll']} is no collective that torchcoll has"
        if len(fields) != _FIGURES:
            return f"half a row: {len(fields)} figures of {_FIGURES}"
        figures = [base.number(field) for field in fields]
        size_bytes, count = base.whole(fields[0]), base.whole(fields[1])
        time = figures[2]
        if size_bytes is None:
            return f"the size is {fields[0]}"
        if not time:
            return f"the median time is {fields[2]}"
        if not size_bytes:
            return "0 bytes: nothing was sent"
        reported = Reported(
            time * 1e3,
            statistic="mean",
            over_ranks="median",
            clock="host",
            min_ns=base.ns_of_us(fields[5]),
            max_ns=base.ns_of_us(fields[6]),
            algbw_gbps=figures[7],
            busbw_gbps=figures[8],
        )
        return base.make_result(
            name,
            size_bytes,
            reported,
            ranks=self.ranks,
            dtype=choose("dtype", options.dtype, base.dtype_named(match["dtype"])),
            backend=self.backend,
            device=self.device,
            count=count,
            warnings=[f"tag {match['tag']}"] if match["tag"] else [],
        )


read = _ParamReader.read

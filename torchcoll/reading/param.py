"""Reads PARAM's comms benchmark: rows ``COMMS-RES-<collective>-<type>``.

The time is the median over ranks of each rank's mean. Sizes are S of nccl-tests. Point-to-point
rows (ping latencies of two ranks) and quantised rows (which have several times) are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchcoll.core.result import CaseResult
from torchcoll.reading import base
from torchcoll.reading.table_reader import Columns, TableReader

NAME = "param"
_ROW = re.compile(
    r"\s*COMMS-RES-(?P<quant>QUANT-)?(?P<coll>[a-z0-9_]+)-(?P<dtype>[a-z0-9]+)(?P<tag>\S*)\s+"
    r"(?P<figures>.*\S)"
)
_WORLD = re.compile(r"'world_size': (\d+)|groupSize (\d+)")
_BACKEND = re.compile(r"\bbackend: (\w+)")
_DEVICE = re.compile(r"host \S+, device: (\w+)")


def sniff(head: Sequence[str]) -> bool:
    return any("COMMS-RES" in text or "PARAM COMM environment" in text for text in head)


class _ParamReader(TableReader):
    TOOL = "PARAM"
    COLUMNS = Columns("size", ("p50",), "min", "max")
    ranks: int | None = None
    pairs, backend, device = False, "unknown", "unknown"

    def __init__(self, options: base.ImportOptions) -> None:
        super().__init__(options)
        self.names = ["size", "count", "p50", "p75", "p95", "min", "max", "algbw", "busbw", "qps"]

    def line(self, line: int, text: str) -> None:
        if match := _ROW.match(text):
            self.row(line, match)
        elif "COMMS-RES-" in text:
            self.imported.refuse(line, base.HALF_ROW)
        elif "COMMS-RES" in text:
            self.pairs = "pingLatency" in text
        else:
            if match := _WORLD.search(text):
                # A group that is smaller than the world is printed after it; the group ran.
                self.ranks = base.parse_ranks(match[1] or match[2])
            if match := _BACKEND.search(text):
                self.backend = match[1]
            if match := _DEVICE.search(text):
                self.device = match[1]

    def row(self, line: int, match: re.Match[str]) -> None:
        if self.pairs:
            self.imported.refuse(line, "point-to-point latency of two ranks: no collective")
        elif match["quant"]:
            why = "quantised: the times of quantising and of the collective are apart"
            self.imported.refuse(line, why)
        elif record := self.record(line, match["figures"].split()):
            self.add(line, self.case(match, record))

    def case(self, match: re.Match[str], record: dict[str, str]) -> CaseResult | str:
        named, dtype = match["coll"].removesuffix("_base"), base.dtype_named(match["dtype"])
        row = self.measured(record, named, self.ranks, dtype)
        if isinstance(row, str):
            return row
        figures = {
            "over_ranks": "median",
            "algbw_gbps": base.number(record["algbw"]),
            "busbw_gbps": base.number(record["busbw"]),
        }
        return self.result(
            row,
            figures=figures,
            backend=self.options.backend or self.backend,
            device=self.device,
            count=base.whole(record["count"]),
            warnings=[f"tag {match['tag']}"] if match["tag"] else [],
        )


read = _ParamReader.read

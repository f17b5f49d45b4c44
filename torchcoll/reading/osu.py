"""Reads OSU micro-benchmarks: latency of blocking and non-blocking collectives, and omb-py.

The output has no number of ranks and no bandwidth. Sizes are those of one rank's buffer; for
reduce_scatter it is the whole input.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchcoll.core.other_commands import PAIRS
from torchcoll.core.result import CaseResult
from torchcoll.reading import base
from torchcoll.reading.table_reader import Columns, TableReader, half_row

NAME = "osu"
_TITLE = re.compile(
    r"#\s*(?:OSU MPI|OMB Python MPI)(?:-(\w+))?[\s_]+(?:Non-blocking |Persistent )?(.{0,200}?)"
    r"(?:\s+(?:Non-blocking\s+)?(?:Latency|Test)\b.*?)?(?:\s+v(\S+))?\s*$"
)
_PERSONALIZED = re.compile(r"\s+Personalized Exchange$|\s+\(.*\)$")
_PAIRS = re.compile(
    r"(?:Multi|Multiple|One Sided|Put|Get|Get_accumulate|Accumulate|Fetch|Compare|Latency)\b.*"
    r"|.*(?:Bandwidth|Message Rate).*",
    re.IGNORECASE,
)
_UNITS = ("(us)", "(MB/s)", "Messages/s")
_DATATYPE = re.compile(r"#\s*Datatype:\s*([\w]+)")
_DEVICES = {"CUDA": "cuda", "ROCM": "cuda", "SYCL": "xpu", None: "cpu"}


def sniff(head: Sequence[str]) -> bool:
    return any(text.startswith(("# OSU MPI", "# OMB Python MPI")) for text in head)


class _OsuReader(TableReader):
    TOOL, BACKEND, RANKS_UNTOLD = "OSU", "mpi", True
    TIMES = ("Avg Latency(us)", "Latency (us)", "Latency(us)", "Overall(us)")
    LOW, HIGH, P99 = "Min Latency(us)", "Max Latency(us)", "P99 Tail Lat(us)"
    COLUMNS = Columns("Size", TIMES, LOW, HIGH, P99, "Iterations")
    PER_RANK = ("all_gather", "all_to_all", "all_to_all_v", "gather", "scatter")
    title, whole_title = "", ""
    kind: str | None = None
    dtype: str | None = None

    def line(self, line: int, text: str) -> None:
        text = text.rstrip()
        if match := _TITLE.match(text):
            self.finish()
            self.kind, self.title, self.version = match[1], match[2], match[3]
            self.whole_title, self.names, self.dtype = text.strip("# \t"), [], None
        elif match := _DATATYPE.match(text):
            self.dtype = base.mpi_dtype(match[1])
        elif text.startswith("#") and any(unit in text for unit in _UNITS):
            heading = re.sub(r"^#\s*(Size)(?: \(B\))?\s*", r"\1  ", text).lstrip("# ")
            self.names = re.split(r"\s{2,}", heading)
        elif (self.title and text[:1].isdigit()) or (self.names and text.strip()[:1].isdigit()):
            self.row(line, text.split())

    def row(self, line: int, fields: Sequence[str]) -> None:
        if len(fields) < len(self.names) or not self.names:
            self.imported.refuse(line, half_row(fields, self.names))
            return
        if len(fields) > len(self.names):
            named = f"the heading names {len(self.names)}"
            self.imported.warn(f"rows have {len(fields)} fields, {named}: the others are not read")
        self.add(line, self.case(dict(zip(self.names, fields, strict=False))))

    def case(self, record: dict[str, str]) -> CaseResult | str:
        title = _PERSONALIZED.sub("", self.title)
        blocking_title = title.removeprefix("I") if title[:2] != "In" else title
        named = title if base.collective_named(title) else blocking_title
        if not base.collective_named(named) and self.whole_title and _PAIRS.fullmatch(title):
            self.imported.action = PAIRS
            return f"{self.whole_title}: between pairs of ranks, no collective"
        row = self.measured(record, named, None, self.dtype)
        if isinstance(row, str):
            return row
        remark = "non-blocking: the time includes computation that overlaps"
        check = record.get("Validation")
        return self.result(
            row,
            mode="synchronized",
            device=_DEVICES.get(self.kind, "unknown"),
            wrong=None if check is None else int(check != "Pass"),
            checked=0 if check is None else 1,
            warnings=[remark] if "Overall(us)" in record else [],
        )


read = _OsuReader.read

"""Reads OSU micro-benchmarks: latency of blocking and non-blocking collectives, and omb-py.

The output has no number of ranks and no bandwidth. Sizes are those of one rank's buffer, so for
all_gather, gather, scatter and all_to_all S is size x ranks. For reduce_scatter it is the whole
input.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.other_commands import PAIRS
from torchcoll.core.result import CaseResult
from torchcoll.reading import base

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
STARTS = re.compile(
    r"#[ \t]*(?:OSU MPI|OMB Python MPI|Size\b|Datatype:|(?:Avg |Overall)[^#]*\(us\))"
    # A row: a whole number, then figures to the end of the line.
    r"|(?<![\w.:,+-])\d+(?:[ \t]+(?:[\d.]+(?:e[+-]?\d+)?|Pass|Fail|N/A|-)){1,24}[ \t]*$"
)
_UNITS = ("(us)", "(MB/s)", "Messages/s")
_DATATYPE = re.compile(r"#\s*Datatype:\s*([\w]+)")
_TIMES = ("Avg Latency(us)", "Latency (us)", "Latency(us)", "Overall(us)")
_PER_RANK = ("all_gather", "all_to_all", "all_to_all_v", "gather", "scatter")
_DEVICES = {"CUDA": "cuda", "ROCM": "cuda", "SYCL": "xpu", None: "cpu"}


def sniff(head: Sequence[str]) -> bool:
    return any(text.startswith(("# OSU MPI", "# OMB Python MPI")) for text in head)


class _OsuReader(base.TableReader):
    RANKS_UNTOLD = True

    def __init__(self, options: base.ImportOptions) -> None:
        super().__init__(options)
        self.start("", None, None)

    def start(self, name: str, kind: str | None, version: str | None) -> None:
        self.title, self.kind, self.version = name, kind, version
        self.whole_title = ""
        self.names: list[str] = []
        self.dtype: str | None = None
        self.results = {}

    def line(self, line: int, text: str) -> None:
        text = text.rstrip()
        if match := _TITLE.match(text):
            self.end()
            self.start(match[2], match[1], match[3])
            self.whole_title = text.strip("# \t")
        elif match := _DATATYPE.match(text):
            self.dtype = base.mpi_dtype(match[1])
        elif text.startswith("#") and any(unit in text for unit in _UNITS):
            self.names = re.split(
                r"\s{2,}", re.sub(r"^#\s*(Size)(?: \(B\))?\s*", r"\1  ", text).lstrip("# ")
            )
        elif (self.title and text[:1].isdigit()) or (self.names and text.strip()[:1].isdigit()):
            self.row(line, text.split())

    def row(self, line: int, fields: Sequence[str]) -> None:
        more = len(fields) - len(self.names)
        if self.names and more > 0:
            named = f"the heading names {len(self.names)}"
            self.imported.warn(f"rows have {len(fields)} fields, {named}: the others are not read")
        elif more or not self.names:
            self.imported.refuse(line, base.half_row(fields, self.names))
            return
        self.add(line, self.result(dict(zip(self.names, fields, strict=False))))

    def result(self, record: dict[str, str]) -> CaseResult | str:
        title = _PERSONALIZED.sub("", self.title)
        blocking_title = title.removeprefix("I") if title[:2] != "In" else title
        recorded = base.collective_named(title) or base.collective_named(blocking_title)
        if recorded is None and self.whole_title and _PAIRS.fullmatch(title):
            self.imported.action = PAIRS
            return f"{self.whole_title}: between pairs of ranks, no collective"
        name = self.imported.choose("collective", self.options.collective, recorded)
        if name is None:
            return f"{title or 'a test without a title'} is no collective that torchcoll has"
        entry = COLLECTIVES[name]
        ranks = self.options.ranks or 0
        printed_bytes = base.whole(record.get("Size", "0" if not entry.has_data else None))
        column = next((n for n in _TIMES if n in record), None)
        time = base.number(record[column]) if column else None
        if printed_bytes is None:
            return f"size is {record['Size']}" if "Size" in record else "no size"
        if not time:
            return base.no_figure(column, record[column]) if column else "no column of times"
        if entry.has_data and not printed_bytes:
            return base.NOTHING_SENT
        if name in _PER_RANK and not ranks:
            return f"OSU's size of {name} is for one rank, and the file has no ranks: give --ranks"
        size_bytes = printed_bytes * ranks if name in _PER_RANK else printed_bytes
        remarks = []
        if "Overall(us)" in record:
            remarks.append("non-blocking: the time includes computation that overlaps")
        check = record.get("Validation")
        reported = base.host_mean(
            name,
            time,
            size_bytes,
            printed_bytes,
            calls=base.whole(record.get("Iterations")),
            min_ns=base.ns_of_us(record.get("Min Latency(us)")),
            max_ns=base.ns_of_us(record.get("Max Latency(us)")),
            p99_ns=base.ns_of_us(record.get("P99 Tail Lat(us)")),
        )
        return base.make_result(
            name,
            size_bytes,
            reported,
            ranks=ranks,
            dtype=self.imported.choose("dtype", self.options.dtype, self.dtype),
            mode="synchronized",
            backend=self.options.backend or "mpi",
            device=_DEVICES.get(self.kind, "unknown"),
            wrong=None if check is None else int(check != "Pass"),
            checked=0 if check is None else 1,
            warnings=remarks,
        )

    def end(self) -> None:
        self.add_runs_without_ranks({"tool": "OSU", "version": self.version, "format": "text"})


read = _OsuReader.read

"""Reads the text of UCC's ucc_perftest, with or without the bandwidths of ``-F``.

``Size`` is that of one rank's source buffer: S for all_reduce, broadcast and reduce, and S / n for
all_gather and gather. For all_to_all, reduce_scatter and scatter it is S since release 1.5, and was
S / n before (tools/perf/ucc_pt_benchmark.cc, print_time; commit 19af19d7). Which of the two it is
follows from the bandwidth, or from texts that only later releases print. The bandwidth is
nccl-tests' busbw.

Times are means over ranks of each rank's mean over the calls, by the host's clock. There is an
untimed barrier before each call, or in streaming mode only before the first. The output does not
have the number of ranks. Alltoallv is refused, because its blocks may be those of a traffic matrix,
which the output does not have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import sqrt

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.result import CaseResult
from torchcoll.reading import base
from torchcoll.reading.table_reader import Columns, TableReader, check_busbw

NAME = "ucc"
_HEADING = re.compile(r"\s*Count\s+Size\s+Time, us(?:\s+((?:Bus )?Bandwidth), GB/s)?\s*$")
_SETTING = re.compile(
    r"(Collective|Memory type|Data ?type|Reduction|Operation type|Inplace|Iteration mode):\s*(\S+)"
)
_OLD_NAMES = {"Data type": "Datatype", "Operation type": "Reduction"}
_SECTION = re.compile(r"(Warmup|Iterations):\s*$")
_CALLS = re.compile(r"\s*(?:small|large)\s+(\d+)\s*$")
_ROW = re.compile(r"\s*(?:\d+|N/A)\s+(?:\d+|N/A)(?:\s+(?:[\d.]+|N/A)){0,6}\s*$")
_CHANGED = ("all_to_all", "reduce_scatter", "reduce_scatter_v", "scatter")
_COLUMNS = ["count", "size", "avg", "min", "max", "busbw", "busbw max", "busbw min"]
_DEVICES = {"host": "cpu", "cuda": "cuda", "cuda-managed": "cuda", "rocm": "cuda"}
CHANGED = (
    "UCC's size of {name} is one rank's share before release 1.5 and the whole buffer since, and "
    "the file does not tell which: print the bandwidth too (ucc_perftest -F)"
)
_LEAST = 0.1  # GB/s; with two decimals a smaller bandwidth is not precise enough


def sniff(head: Sequence[str]) -> bool:
    return any(_HEADING.match(text) for text in head)


class _UccReader(TableReader):
    TOOL, BACKEND, RANKS_UNTOLD = "UCC perftest", "ucc", True
    COLUMNS = Columns("size", ("avg",), "min", "max", "", "calls")
    PER_RANK = ("all_gather", "all_gather_v", "gather")

    def __init__(self, options: base.ImportOptions) -> None:
        super().__init__(options)
        self.begin()

    def begin(self) -> None:
        """Start reading the output of one ucc_perftest."""
        self.settings: dict[str, str] = {}
        self.section = self.bandwidth = ""
        self.calls: set[str] = set()
        self.names, self.rows = list[str](), list[tuple[int, dict[str, str]]]()

    def line(self, line: int, text: str) -> None:
        if match := _SETTING.match(text):
            if match[1] == "Collective":
                self.add_table()
                self.begin()
            self.settings[_OLD_NAMES.get(match[1], match[1])] = match[2]
        elif match := _SECTION.match(text):
            self.section = match[1]
        elif match := _HEADING.match(text):
            self.bandwidth = match[1] or ""
            self.names = _COLUMNS if match[1] else _COLUMNS[:5]
        elif self.names and _ROW.match(text):
            if record := self.record(line, text.split()):
                self.rows.append((line, record))
        elif self.section == "Iterations" and (match := _CALLS.match(text)):
            self.calls.add(match[1])

    def add_table(self) -> None:
        """Add the results of a table that has ended: its last rows may show what sizes are of."""
        for line, record in self.rows:
            self.add(line, self.case(record))

    def case(self, record: dict[str, str]) -> CaseResult | str:
        settings = self.settings
        named = settings.get("Collective", "")
        dtype = base.dtype_named(settings.get("Datatype"))
        if len(self.calls) == 1:
            record = {**record, "calls": next(iter(self.calls))}
        row = self.measured(record, named, None, dtype)
        if isinstance(row, str):
            return row
        name, entry = row.collective, COLLECTIVES[row.collective]
        if entry.has_splits and name not in (*self.PER_RANK, *_CHANGED):
            return f"the blocks of {named} may be uneven, and the file does not tell them"
        per_rank: bool | None = name in self.PER_RANK
        if name in _CHANGED:
            per_rank = self.size_is_of_one_rank(row.ranks)
        if per_rank is None:
            if self.bandwidth and not row.ranks:
                return f"the size of {name} needs the ranks: give --ranks"
            return CHANGED.format(name=name)
        placement, op = settings.get("Inplace"), settings.get("Reduction")
        streaming = settings.get("Iteration mode") == "streaming"
        busbw = base.number(record.get("busbw"))
        result = self.result(
            row,
            per_rank,
            figures={"busbw_gbps": busbw},
            op=None if op == "N/A" else op,
            in_place=placement == "1" if placement in ("0", "1") else None,
            mode="back-to-back" if streaming else "synchronized",
            device=_DEVICES.get(settings.get("Memory type", "").lower(), "unknown"),
        )
        if isinstance(result, str):
            return result
        if entry.has_splits:
            result.busiest_bytes = result.size_bytes - result.size_bytes // row.ranks
        elif row.ranks and busbw is not None:
            check_busbw(result, busbw, base.rounding(record["busbw"]))
        return result

    def size_is_of_one_rank(self, ranks: int) -> bool | None:
        """Whether the size is one rank's, where release 1.5 changed that; None if unknown."""
        if self.bandwidth == "Bus Bandwidth" or "Iteration mode" in self.settings:
            return False  # 1.6 and later
        if not ranks or not self.bandwidth:
            return None
        for _, record in reversed(self.rows):
            size, time, busbw = (base.number(record[name]) for name in ("size", "avg", "busbw"))
            if size and time and busbw and busbw >= _LEAST:
                # busbw is (n - 1) / n times size / time if the size is S, and n times as much if it
                # is S / n.
                return busbw / (size / time / 1e3) > (ranks - 1) / sqrt(ranks)
        return None

    def finish(self) -> None:
        self.add_table()
        self.add_runs()


read = _UccReader.read

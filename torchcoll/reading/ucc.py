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

from torchcoll.core.collectives import COLLECTIVES, busbw_gbps
from torchcoll.core.result import CaseResult
from torchcoll.reading import base

NAME = "ucc"
_HEADING = re.compile(r"\s*Count\s+Size\s+Time, us(?:\s+((?:Bus )?Bandwidth), GB/s)?\s*$")
_SETTING = re.compile(
    r"(Collective|Memory type|Data ?type|Reduction|Operation type|Inplace|Iteration mode):\s*(\S+)"
)
_OLD_NAMES = {"Data type": "Datatype", "Operation type": "Reduction"}
_SECTION = re.compile(r"(Warmup|Iterations):\s*$")
_CALLS = re.compile(r"\s*(?:small|large)\s+(\d+)\s*$")
_ROW = re.compile(r"\s*(?:\d+|N/A)\s+(?:\d+|N/A)(?:\s+(?:[\d.]+|N/A)){0,6}\s*$")
STARTS = re.compile(
    r"(?:Collective|Memory type|Data ?type|Reduction|Operation type|Inplace|Iteration mode|Warmup"
    r"|Iterations):|Count[ \t]+Size[ \t]+Time, us"
    r"|(?<![\w.:,+-])(?:\d+|N/A)[ \t]+(?:\d+|N/A)(?:[ \t]+(?:[\d.]+|N/A)){3,6}[ \t]*$"
)
_PER_RANK = ("all_gather", "all_gather_v", "gather")
_CHANGED = ("all_to_all", "reduce_scatter", "reduce_scatter_v", "scatter")
_COLUMNS = ("count", "size", *("avg", "min", "max") * 2)
_DEVICES = {"host": "cpu", "cuda": "cuda", "cuda-managed": "cuda", "rocm": "cuda"}
CHANGED = (
    "UCC's size of {name} is one rank's share before release 1.5 and the whole buffer since, and "
    "the file does not tell which: print the bandwidth too (ucc_perftest -F)"
)
NO_RANKS = (
    "what UCC's size of {name} is of needs the ranks, which the file does not tell: give --ranks"
)
_LEAST = 0.1  # GB/s; with two decimals a smaller bandwidth is not precise enough


def sniff(head: Sequence[str]) -> bool:
    return any(_HEADING.match(text) for text in head)


class _UccReader(base.TableReader):
    RANKS_UNTOLD = True

    def __init__(self, options: base.ImportOptions) -> None:
        super().__init__(options)
        self.begin()

    def begin(self) -> None:
        """Start reading the output of one ucc_perftest."""
        self.settings: dict[str, str] = {}
        self.section = ""
        self.calls: list[str] = []
        self.heading: re.Match[str] | None = None
        self.rows: list[tuple[int, list[str]]] = []

    def line(self, line: int, text: str) -> None:
        if match := _SETTING.match(text):
            if match[1] == "Collective":
                self.finish()
                self.begin()
            self.settings[_OLD_NAMES.get(match[1], match[1])] = match[2]
        elif match := _SECTION.match(text):
            self.section = match[1]
        elif match := _HEADING.match(text):
            self.heading = match
        elif self.heading and _ROW.match(text):
            self.rows.append((line, text.split()))
        elif self.section == "Iterations" and (match := _CALLS.match(text)):
            self.calls.append(match[1])

    def finish(self) -> None:
        """Add the results of a table that has ended: its last rows may show what sizes are of."""
        for line, fields in self.rows:
            self.add(line, self.result(fields))

    def result(self, fields: Sequence[str]) -> CaseResult | str:
        options, choose, settings = self.options, self.imported.choose, self.settings
        recorded = settings.get("Collective", "")
        name = choose("collective", options.collective, base.collective_named(recorded))
        if name is None:
            return f"{recorded or 'the table'} is no collective that torchcoll has"
        entry, ranks = COLLECTIVES[name], options.ranks or 0
        if entry.has_splits and name not in (*_PER_RANK, *_CHANGED):
            return f"the blocks of {recorded} may be uneven, and the file does not tell them"
        assert self.heading is not None
        columns = _COLUMNS if self.heading[1] else _COLUMNS[:5]
        if len(fields) != len(columns):
            return base.half_row(fields, columns)
        printed = base.whole(fields[1]) if entry.has_data else 0
        time = base.number(fields[2])
        if printed is None:
            return f"size is {fields[1]}"
        if not time:
            return base.no_figure("time", fields[2])
        if entry.has_data and not printed:
            return base.NOTHING_SENT
        per_rank: bool | None = name in _PER_RANK
        if name in _CHANGED:
            per_rank = self.size_is_of_one_rank(ranks)
        if per_rank is None and (ranks or not self.heading[1]):
            return CHANGED.format(name=name)
        if per_rank is not False and not ranks:
            return NO_RANKS.format(name=name)
        size_bytes = printed * ranks if per_rank else printed

        busbw = base.number(fields[5]) if self.heading[1] else None
        remarks = []
        if busbw is not None and ranks and not entry.has_splits:
            expected = busbw_gbps(name, size_bytes, ranks, time * 1e3)
            if text := base.contradiction(
                "busbw", busbw, expected, "size, time and ranks", base.rounding(fields[5])
            ):
                remarks.append(text)
        placement, op = settings.get("Inplace"), settings.get("Reduction")
        result = base.make_result(
            name,
            size_bytes,
            base.host_mean(
                name,
                time,
                size_bytes,
                printed,
                calls=base.whole(self.calls[0]) if len({*self.calls}) == 1 else None,
                min_ns=base.ns_of_us(fields[3]),
                max_ns=base.ns_of_us(fields[4]),
                busbw_gbps=busbw,
            ),
            ranks=ranks,
            dtype=choose("dtype", options.dtype, base.dtype_named(settings.get("Datatype"))),
            op=None if op == "N/A" else op,
            in_place=placement == "1" if placement in ("0", "1") else None,
            mode="back-to-back" if self.streaming else "synchronized",
            backend=options.backend or "ucc",
            device=_DEVICES.get(settings.get("Memory type", "").lower(), "unknown"),
            warnings=remarks,
        )
        if entry.has_splits:
            result.busiest_bytes = size_bytes - size_bytes // ranks
        return result

    @property
    def streaming(self) -> bool:
        return self.settings.get("Iteration mode") == "streaming"

    def size_is_of_one_rank(self, ranks: int) -> bool | None:
        """Whether the size is one rank's, where release 1.5 changed that; None if unknown."""
        assert self.heading is not None
        if self.heading[1] == "Bus Bandwidth" or "Iteration mode" in self.settings:
            return False  # 1.6 and later
        for _, fields in reversed(self.rows):
            if not ranks or not self.heading[1] or len(fields) != len(_COLUMNS):
                continue
            size, time, _, _, average = map(base.number, fields[1:6])
            if size and time and average and average >= _LEAST:
                # busbw is (n - 1) / n times size / time if the size is S, and n times as much if it
                # is S / n.
                return average / (size / time / 1e3) > (ranks - 1) / sqrt(ranks)
        return None

    def end(self) -> None:
        self.finish()
        self.add_runs_without_ranks({"tool": "UCC perftest", "format": "text"})


read = _UccReader.read

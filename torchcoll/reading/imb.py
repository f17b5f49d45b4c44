"""Reads the text output of the Intel MPI Benchmarks (IMB-MPI1), without bandwidths of collectives.

``#bytes`` is X of the user's guide. For all_reduce, broadcast and reduce S = X. For all_gather,
gather, scatter and all_to_all X is what one rank exchanges with each other rank, so S = X np.
Reduce_scatter reduced X bytes in all up to release 2019, and X np bytes since 2019 Update 1
(src_c/IMB_reduce_scatter.c, commit df3db3a). Blocks of Allgatherv and Alltoallv are even.

``t_avg`` is the mean over ranks of each rank's mean over the calls. Since 2017 there is an untimed
barrier before each call of a collective, unless ``-sync off`` is given. Barrier and Sendrecv are
timed as one loop. ``Mbytes/sec`` of Sendrecv counts both directions, and is not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.other_commands import PAIRS
from torchcoll.core.result import CaseResult
from torchcoll.reading import base
from torchcoll.reading.table_reader import NOTE, Columns, TableReader

NAME = "imb"
_TITLE = re.compile(
    r"#\s*(?:Intel ?\(R\)|PALLAS) MPI Bench\w+(?: Suite)? V?([^,]{1,60}), ((?:MPI|IMB)\S* part.*)"
)
_NO_BARRIERS = re.compile(r"#.* -sync +(?:off|0|no|disable)\b")  # the command line
# Out of a spreadsheet lines have tabs, and numbers at their end.
_BENCHMARK = re.compile(r"#\s*Benchmarking\s+(?:Multi-)?(\w+)(?:\t+\d+)?\s*$")
_PROCESSES = re.compile(r"#\s*#processes\s*=\s*(\d+)")
_NAMED = re.compile(r"(?:[-*#]+ )?([A-Z][A-Za-z_]+)\s*[:\uff1a]$")  # above a table in a mail
_NAMED_ROW = re.compile(r"([A-Z][A-Za-z_]+)\s+(\d+)\s+(\d+\s+\d+\s.*)")
_NAMED_ROWS = re.compile(r"#?Benchmarking\s+#procs\s+(#bytes\s.*)")
_GROUPS = re.compile(r"#\s*\( ?\d+ groups of \d+ processes each running simultaneous")
_TYPE = re.compile(r"#\s*MPI_(Datatype(?: for reductions)?|Op)\s*:\s*(MPIX?_\w+)")
_HEADING = re.compile(r"(?:Group\s+)?(?:#bytes\s+)?#repetitions\s+(?:t\S*\[usec\]|Mbytes/sec)")
_END = re.compile(r"#\s*All processes entering MPI_Finalize")
_FAILED = re.compile(r"(?:\d+\s+){1,2}(out-of-mem|int-overflow|time-out)\b")
_LOOPS = ("barrier", "sendrecv")  # timed as a loop without barriers
_PAIRS = re.compile(r"Ping(?:Pong|Ping)(?:(?:Any|Specific)Source)?|Uniband|Biband")
_WRONG = 1e-2  # limit for the column that -DCHECK adds (IMB_declare.h, TOL)
REDUCE_SCATTER = (
    "IMB's size of Reduce_scatter is that of the whole input up to release 2019, and since 2019 "
    "Update 1 of one rank's part: the file does not name the release"
)


def sniff(head: Sequence[str]) -> bool:
    lines = [text.lstrip() for text in head]
    if any(_TITLE.match(text) or _NAMED_ROWS.match(text) for text in lines):
        return True
    # oneCCL's benchmark has more columns, and a colon after 'Benchmarking'.
    return any(map(_HEADING.match, lines)) and not any(
        "stddev" in text or "elem_count" in text or "Benchmarking:" in text for text in lines
    )


class _ImbReader(TableReader):
    TOOL, BACKEND = "Intel MPI Benchmarks", "mpi"
    COLUMNS = Columns("bytes", ("t_avg[usec]",), "t_min[usec]", "t_max[usec]", "", "repetitions")
    PER_RANK = (
        "all_gather",
        "all_gather_v",
        "all_to_all",
        "all_to_all_v",
        "gather",
        "scatter",
        "reduce_scatter",
    )

    def __init__(self, options: base.ImportOptions) -> None:
        super().__init__(options)
        self.begin()

    def begin(self) -> None:
        """Start reading the output of a program."""
        self.version = self.section = ""  # from the title: 2021.3 and 'MPI-1 part (GPU)'
        self.barriers = True  # between calls, unless the command line disables them
        self.types: dict[str, str] = {}
        self.ended = False
        self.read_from: dict[str, str] = {}  # collective -> benchmark that it is read from
        self.start_table("")

    def start_table(self, benchmark: str) -> None:
        self.benchmark, self.names = benchmark, list[str]()
        self.ranks, self.in_groups = 0, False

    def line(self, line: int, text: str) -> None:
        text = text.strip()
        if text[:1].isdigit():
            if self.names:
                self.row(line, text)
        elif match := _TITLE.match(text):
            if self.version or self.results:
                self.finish()
                self.begin()
                self.outputs += 1
            self.version, self.section = match[1].strip(), match[2]
        elif match := _BENCHMARK.match(text):
            self.start_table(match[1])
        elif match := _PROCESSES.match(text):
            self.ranks = base.parse_ranks(match[1]) or 0
        elif _GROUPS.match(text):
            self.in_groups = True
        elif match := _TYPE.match(text):
            self.types[match[1]] = match[2]
        elif _NO_BARRIERS.match(text):
            self.barriers = False
        elif match := _NAMED.match(text):
            self.start_table(match[1])
        elif match := _NAMED_ROWS.match(text):
            self.names = match[1].replace("#", "").split()
        elif match := _NAMED_ROW.match(text):
            self.benchmark, self.ranks = match[1], base.parse_ranks(match[2]) or 0
            self.row(line, match[3])
        elif _HEADING.match(text):
            self.names = text.replace("#", "").split()
        elif _END.match(text):
            self.ended = True

    def row(self, line: int, text: str) -> None:
        fields = text.split()
        if len(fields) != len(self.names):
            fields = NOTE.split(text, maxsplit=1)[0].split()
        if match := _FAILED.match(text):
            self.imported.refuse(line, f"IMB did not measure this size: {match[1]}")
        elif self.in_groups:
            self.imported.refuse(line, "groups that ran at once (-multi) are not read")
        elif record := self.record(line, fields):
            self.add(line, self.case(record))

    def case(self, record: dict[str, str]) -> CaseResult | str:
        if _PAIRS.fullmatch(self.benchmark):
            self.imported.action = PAIRS
            return f"{self.benchmark}: between pairs of ranks, no collective"
        collective = self.options.collective or base.collective_named(self.benchmark)
        has_op = collective is not None and COLLECTIVES[collective].has_op
        dtype = base.mpi_dtype(
            self.types.get("Datatype for reductions" if has_op else "Datatype", "")
        )
        row = self.measured(record, self.benchmark, self.ranks, dtype)
        if isinstance(row, str):
            return row
        name, entry = row.collective, COLLECTIVES[row.collective]
        first = self.read_from.setdefault(name, self.benchmark)
        if first != self.benchmark:
            return f"{self.benchmark}: {name} is read from {first} of the same output"
        row.printed_bytes -= row.printed_bytes % (base.itemsize(row.dtype) or 1)
        if entry.has_data and not row.printed_bytes:
            return "less than one element: nothing was sent"
        per_rank = None
        if self.benchmark == "Reduce_scatter":
            if not self.version:
                return REDUCE_SCATTER
            per_rank = self.version != "2019" and self.year >= 2019
        defects = base.number(record.get("defects"))
        result = self.result(
            row,
            per_rank,
            op=self.types.get("Op", "").removeprefix("MPI_").lower() or None,
            mode=self.mode(name),
            device="unknown" if "GPU" in self.section else "cpu",
            wrong=None if defects is None else int(defects > _WRONG),
            checked=0 if defects is None else 1,
        )
        if entry.has_splits and isinstance(result, CaseResult):
            result.warnings = [f"measured as MPI_{self.benchmark} with equal parts"]
            result.busiest_bytes = row.printed_bytes * (row.ranks - 1)
        return result

    @property
    def year(self) -> int:
        """The year of the release; 0 before 2017, when releases had version numbers."""
        match = re.match(r"20\d\d\b", self.version)
        return int(match[0]) if match else 0

    def mode(self, collective: str) -> str:
        if not self.year:
            return "unknown"
        loop = collective in _LOOPS or not self.barriers
        return "back-to-back" if loop else "synchronized"

    def finish(self) -> None:
        cut = self.version and not self.ended
        self.add_runs("# All processes entering MPI_Finalize" if cut else "")


read = _ImbReader.read

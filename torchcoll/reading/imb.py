"""Reads the text output of the Intel MPI Benchmarks (IMB-MPI1), without bandwidths of collectives.

``#bytes`` is X of the user's guide. For all_reduce, broadcast and reduce S = X. For all_gather,
gather, scatter and all_to_all X is what one rank exchanges with each other rank, so S = X np.
Reduce_scatter reduced X bytes in all up to release 2019, and X np bytes since 2019 Update 1
(src_c/IMB_reduce_scatter.c, commit df3db3a). Blocks of Allgatherv and Alltoallv are even.

``t_avg`` is the mean over ranks of each rank's mean over the calls, by MPI_Wtime (src_c/
IMB_output.c, IMB_calculate_times). Since 2017 there is an untimed barrier before each call of a
collective, unless ``-sync off`` is given. Barrier and Sendrecv are timed as one loop.
``Mbytes/sec`` is not read, because that of Sendrecv counts both sent and received bytes.

A file may contain the outputs of several programs, one after the other; each is a run. With -multi
several groups of processes run at once, each in its own row (-multi 1) or all in one (-multi 0).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.other_commands import PAIRS
from torchcoll.core.result import CaseResult
from torchcoll.reading import base

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
_GROUPS = re.compile(r"#\s*\( ?(\d+) groups of (\d+) processes each running simultaneous")
_GROUP = re.compile(r"#\s*Group\s+(\d{1,9})\s*:((?:\s+\d+)+)\s*$")
_TYPE = re.compile(r"#\s*MPI_(Datatype(?: for reductions)?|Op)\s*:\s*(MPIX?_\w+)")
_HEADING = re.compile(r"(?:Group\s+)?(?:#bytes\s+)?#repetitions\s+(?:t\S*\[usec\]|Mbytes/sec)")
_END = re.compile(r"#\s*All processes entering MPI_Finalize")
_FAILED = re.compile(r"(?:\d+\s+){1,2}(out-of-mem|int-overflow|time-out)\b")
STARTS = re.compile(
    r"#[ \t]*(?:(?:Intel ?\(R\)|PALLAS) MPI Bench|Benchmarking |#processes = |\( ?\d+ groups of "
    r"|Group[ \t]+\d+[ \t]*:|MPI_(?:Datatype|Op)\b|Calling sequence|All processes entering)"
    r"|(?:Group[ \t]+)?(?:#bytes[ \t]+)?#repetitions[ \t]"
    # A row: whole numbers, then figures to the end of the line, or why there are none.
    r"|(?<![\w.:,+-])(?:[A-Z]\w+[ \t]+(?=\d+[ \t]+\d+[ \t]+\d+[ \t]))?"
    r"\d+(?:(?:[ \t]+[\d.]+){3,8}[ \t]*$|(?:[ \t]+\d+)?[ \t]+(?:out-|int-|time-)o)"
)
_PER_RANK = (
    "all_gather",
    "all_gather_v",
    "all_to_all",
    "all_to_all_v",
    "gather",
    "scatter",
    "reduce_scatter",
)
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


class _ImbReader(base.TableReader):
    def __init__(self, options: base.ImportOptions) -> None:
        super().__init__(options)
        self.runs = 0
        self.begin()

    def begin(self) -> None:
        """Start reading the output of a program."""
        self.runs += 1
        self.version = self.section = ""  # from the title: 2021.3 and 'MPI-1 part (GPU)'
        self.barriers = True  # between calls, unless the command line disables them
        self.types: dict[str, str] = {}
        self.ended = False
        self.read_from: dict[str, str] = {}  # collective -> benchmark that it is read from
        self.results = {}
        self.start_table("")

    def start_table(self, benchmark: str) -> None:
        self.benchmark = benchmark
        self.columns: list[str] = []
        self.ranks, self.groups = 0, 1
        self.members: dict[int, list[int]] = {}  # group -> ranks; IMB shortens long lists

    def line(self, line: int, text: str) -> None:
        text = text.strip()
        if text[:1].isdigit():
            if self.columns:
                self.row(line, text)
        elif match := _TITLE.match(text):
            if self.version or self.results:
                self.finish()
                self.begin()
            self.version, self.section = match[1].strip(), match[2]
        elif match := _BENCHMARK.match(text):
            self.start_table(match[1])
        elif match := _PROCESSES.match(text):
            self.ranks = base.parse_ranks(match[1]) or 0
        elif match := _GROUPS.match(text):
            self.groups = base.parse_ranks(match[1]) or 1
            self.ranks = base.parse_ranks(match[2]) or 0
        elif match := _GROUP.match(text):
            self.members[int(match[1])] = [base.whole(rank) or 0 for rank in match[2].split()]
        elif match := _TYPE.match(text):
            self.types[match[1]] = match[2]
        elif _NO_BARRIERS.match(text):
            self.barriers = False
        elif match := _NAMED.match(text):
            self.start_table(match[1])
        elif match := _NAMED_ROWS.match(text):
            self.columns = match[1].replace("#", "").split()
        elif match := _NAMED_ROW.match(text):
            self.benchmark, self.ranks = match[1], base.parse_ranks(match[2]) or 0
            self.row(line, match[3])
        elif _HEADING.match(text):
            self.columns = text.replace("#", "").split()
        elif _END.match(text):
            self.ended = True

    def row(self, line: int, text: str) -> None:
        fields = text.split()
        if len(fields) != len(self.columns):
            fields = base.NOTE.split(text, maxsplit=1)[0].split()
        if match := _FAILED.match(text):
            self.imported.refuse(line, f"IMB did not measure this size: {match[1]}")
        elif len(fields) != len(self.columns):
            self.imported.refuse(line, base.half_row(fields, self.columns))
        else:
            self.add(line, self.result(dict(zip(self.columns, fields, strict=True))))

    def run_of(self, result: CaseResult) -> int:
        """The number of ranks in all groups."""
        return result.ranks * self.groups

    def result(self, record: dict[str, str]) -> CaseResult | str:
        options, choose = self.options, self.imported.choose
        if _PAIRS.fullmatch(self.benchmark):
            self.imported.action = PAIRS
            return f"{self.benchmark}: between pairs of ranks, no collective"
        name = choose("collective", options.collective, base.collective_named(self.benchmark))
        if name is None:
            if not self.benchmark:
                return "the table names no benchmark: give --collective"
            return f"{self.benchmark} is no collective that torchcoll has"
        first = self.read_from.setdefault(name, self.benchmark)
        if first != self.benchmark:
            return f"{self.benchmark}: {name} is read from {first} of the same output"
        entry = COLLECTIVES[name]
        ranks = choose("ranks", options.ranks, self.ranks) or 0
        datatype = "Datatype for reductions" if entry.has_op else "Datatype"
        recorded = base.mpi_dtype(self.types.get(datatype, ""))
        dtype = choose("dtype", options.dtype, recorded)

        printed = base.whole(record.get("bytes", "0" if not entry.has_data else None))
        time = base.number(record.get("t_avg[usec]"))
        if printed is None:
            return f"bytes is {record['bytes']}" if "bytes" in record else "no column of bytes"
        if not time:
            cell = record.get("t_avg[usec]")
            return base.no_figure("t_avg[usec]", cell) if cell else "no column t_avg[usec]"
        sent = printed - printed % (base.itemsize(dtype) or 1)
        if entry.has_data and not sent:
            return "less than one element: nothing was sent" if printed else base.NOTHING_SENT
        per_rank: bool | None = name in _PER_RANK
        if self.benchmark == "Reduce_scatter":
            per_rank = self.reduce_scatter_per_rank
        if per_rank is None:
            return REDUCE_SCATTER
        if per_rank and not ranks:
            return f"IMB's size of {name} is for one rank, and the file has no ranks: give --ranks"
        size_bytes = sent * ranks if per_rank else sent

        remarks = []
        if entry.has_splits:
            remarks.append(f"measured as MPI_{self.benchmark} with equal parts")
        group = self.group(record.get("Group"))
        if self.groups > 1 and "Group" not in record:
            remarks.append(f"{self.groups} groups at once: the times are those of all groups")
        defects = base.number(record.get("defects"))
        result = base.make_result(
            name,
            size_bytes,
            base.host_mean(
                name,
                time,
                size_bytes,
                sent,
                calls=base.whole(record.get("repetitions")),
                min_ns=base.ns_of_us(record.get("t_min[usec]")),
                max_ns=base.ns_of_us(record.get("t_max[usec]")),
            ),
            ranks=ranks,
            dtype=dtype,
            op=self.types.get("Op", "").removeprefix("MPI_").lower() or None,
            mode=self.mode(name),
            backend=options.backend or "mpi",
            device="unknown" if "GPU" in self.section else "cpu",
            wrong=None if defects is None else int(defects > _WRONG),
            checked=0 if defects is None else 1,
            warnings=remarks,
            group=group,
        )
        if entry.has_splits and ranks:
            result.busiest_bytes = sent * (ranks - 1)
        return result

    @property
    def reduce_scatter_per_rank(self) -> bool | None:
        """Whether #bytes of Reduce_scatter is one rank's share; None for an unknown release."""
        if not self.version:
            return None
        return self.version != "2019" and self.year >= 2019

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

    def group(self, index: str | None) -> str | None:
        """The sub-groups as ``--groups`` takes them, with the number of this row's group."""
        if self.groups < 2:
            return None
        size, members = self.ranks, self.members
        rule = f"div:{size}"
        if any(ranks != [*range(n * size, (n + 1) * size)] for n, ranks in members.items()):
            rule = ";".join(",".join(map(str, ranks)) for ranks in members.values())
        return rule if index is None else f"{rule}/{index}"

    def end(self) -> None:
        self.finish()
        base.number_runs(self.imported, self.runs)

    def finish(self) -> None:
        """Add a Run for each number of ranks in the output that has ended."""
        end: dict[str, Any] = {"status": "complete"}
        if self.version and not self.ended:
            reason = "the output stops before '# All processes entering MPI_Finalize'"
            end = {"status": base.TRUNCATED, "reason": reason}
        source = {"tool": "Intel MPI Benchmarks", "version": self.version, "format": "text"}
        source["run"] = str(self.runs)
        self.imported.runs += base.runs_of_ranks(self.results, self.options, source, end=end)


read = _ImbReader.read

"""Reads the text and the CSV (-o) of oneCCL's benchmark. Neither has bandwidths.

Sizes are those of one buffer of the call, from which S of nccl-tests follows
(examples/benchmark/src/*/*_strategy.hpp). For all_gather and all_to_all they are per rank and per
peer, so S = bytes x ranks. For reduce_scatter they are the whole input, so S = bytes.

A file may have the outputs of several benchmarks, one after the other, as job scripts write them;
each is a run. With ``-i 1 -w 0`` each row is one call, in the order of the process: its ``ordinal``
is the number of timed calls before it, and the time of its first call is t_max. There is a barrier
on a separate communicator before each call (examples/benchmark/src/benchmark.cpp).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.result import CaseResult
from torchcoll.reading import base
from torchcoll.reading.writers import without_log

NAME = "oneccl"
_NAMES = re.compile(r"#\s*Benchmarking:\s*(.*\S)")
_PROCESSES = re.compile(r"#\s*#processes:\s*(\d+)")
_OPTION = re.compile(r"\s+([a-z_]+):\s+(\S.*?)\s*$")
STARTS = re.compile(
    r"#[ \t]*(?:Benchmarking:|#processes:|ranks,|All done)|#bytes\b|options:[ \t]*$"
    r"|(?:datatype|reduction):[ \t]|(?<![\w.:,+-])\d+(?:[ \t]+[\d.]+(?:e[+-]?\d+)?){5,12}[ \t]*$"
)
# A heading without these columns is broken, and so are its rows. Early versions have no
# #elem_count.
_COLUMNS = ("bytes", "t_avg[usec]")
_CSV_COLUMNS = {"ranks", "collective", "dtype", "#elements/buffer", "message_size", "t_avg[usec]"}
_PER_RANK = ("all_gather", "all_to_all", "all_to_all_v")
_DEVICES = {"host": "cpu", "sycl": "xpu"}
FIRST_CALLS = (
    "-i 1 -w 0: each row is one call, in the order of the process; torchcoll cold reads them so"
)
UNTIMED = (
    "check: last: between two rows later versions repeat the call once, untimed, for the check; "
    "-c off leaves that out"
)
SUMMED = (
    "the time is the sum over several collectives ({names}), of no single one: "
    "run the benchmark with one --coll at a time"
)
EMPTY = (
    "reduce_scatter of {count} elements on {ranks} ranks does nothing in oneCCL: an empty call was "
    "timed"
)


def sniff(head: Sequence[str]) -> bool:
    return any(
        "t_avg[usec]" in text and ("#bytes" in text or text.startswith("#ranks,")) for text in head
    )


class _OneCclReader(base.TableReader):
    def __init__(self, options: base.ImportOptions) -> None:
        super().__init__(options)
        self.runs = 0
        self.begin()

    def begin(self) -> None:
        self.runs += 1
        self.options_begun = False  # whether its options have begun
        self.settings: dict[str, str] = {}
        self.names: list[str] = []  # the columns
        self.collectives: list[str] = []
        self.csv = False
        self.ended = False
        self.rows = 0
        self.results = {}
        self.equal_rows: list[tuple[int, Mapping[str, str]]] = []  # CSV rows with equal figures

    def line(self, line: int, text: str) -> None:
        text = without_log(text)[0].strip("\n")
        plain = text.strip()
        if not plain:
            return
        if plain.startswith("#ranks,"):
            names = plain[1:].split(",")
            self.csv, self.names = True, names if set(names) >= _CSV_COLUMNS else []
        elif "t_avg[usec]" in plain:
            names = plain.replace("#", "").split()
            self.csv, self.names = False, names if set(_COLUMNS) <= set(names) else []
        elif plain == "options:":
            self.next_run(self.options_begun)
            self.options_begun = True
        elif match := _NAMES.match(plain):
            self.next_run(self.ended)
            self.collectives = match[1].split()
        elif match := _PROCESSES.match(plain):
            self.settings["processes"] = match[1]
        elif plain.startswith("# All done"):
            self.ended = True
        elif plain.startswith(("datatype:", "reduction:")):
            key, _, value = plain.partition(":")
            self.settings[key] = value.strip()
        elif match := _OPTION.match(text):
            self.settings[match[1]] = match[2]
        elif self.names and plain[0].isdigit():
            self.row(line, plain)

    def next_run(self, another: bool) -> None:
        """Begin the output of another benchmark, if ``another``."""
        if another:
            self.finish()
            self.begin()

    def row(self, line: int, text: str) -> None:
        fields = next(csv.reader([text])) if self.csv else text.split()
        if len(fields) != len(self.names):
            if "," in text or len(fields) > 3:
                self.imported.refuse(line, base.half_row(fields, self.names))
            return
        record = dict(zip(self.names, fields, strict=True))
        if not self.csv:
            if len(self.collectives) > 1:
                self.imported.refuse(line, SUMMED.format(names=", ".join(self.collectives)))
                return
            self.add_record(line, self.text_record(record))
            return
        if self.equal_rows and not _same_timing(self.equal_rows[0][1], record):
            self.flush()
        self.equal_rows.append((line, record))

    def text_record(self, record: Mapping[str, str]) -> dict[str, str]:
        s = self.settings
        return {
            "ranks": s.get("processes", ""),
            "collective": self.collectives[0] if self.collectives else "",
            "reduction": s.get("reduction", ""),
            "dtype": s.get("datatype", ""),
            "elements/buffer": record.get("elem_count", ""),
            "message_size": record["bytes"],
            "buffers": s.get("buf_count", "1"),
            "together": "yes",
            **record,
        }

    def flush(self) -> None:
        """Add the CSV rows with equal figures.

        If they have several collectives the benchmark timed these together and repeated the sum for
        each of them, so the rows are refused.
        """
        names = list(dict.fromkeys(record["collective"] for _, record in self.equal_rows))
        for line, record in self.equal_rows:
            if len(names) > 1:
                self.imported.refuse(line, SUMMED.format(names=", ".join(names)))
            else:
                self.add_record(line, {k.lstrip("#"): v for k, v in record.items()})
        self.equal_rows = []

    @property
    def first_calls(self) -> bool:
        """Whether each row is one call, the process's first included. A CSV has no warm-up."""
        iterations = (self.settings.get("iters"), self.settings.get("warmup_iters"))
        return not self.csv and iterations == ("1", "0")

    def add_record(self, line: int, record: Mapping[str, str]) -> None:
        result = self.result(record)
        if self.first_calls:
            self.imported.warn(FIRST_CALLS)
            if self.settings.get("check") == "last":
                self.imported.warn(UNTIMED)
            if isinstance(result, CaseResult):
                result.ordinal = self.rows
        self.rows += 1
        self.add(line, result)
        if isinstance(result, str) and "does nothing" in result:
            self.imported.warn("rows of an empty reduce_scatter are dropped")

    def result(self, record: Mapping[str, str]) -> CaseResult | str:
        choose, recorded = self.imported.choose, re.sub(r"gatherv$", "gather", record["collective"])
        name = choose("collective", self.options.collective, base.collective_named(recorded))
        ranks = choose("ranks", self.options.ranks, base.parse_ranks(record["ranks"])) or 0
        dtype = choose("dtype", self.options.dtype, base.dtype_named(record["dtype"]))
        count = base.whole(record["elements/buffer"])
        size_bytes = base.whole(record["message_size"])
        if not record["elements/buffer"] and size_bytes is not None:
            count = size_bytes // (base.itemsize(dtype) or 1)
        time = base.number(record.get("t_avg[usec]"))
        buffers = base.whole(record.get("buffers")) or 1
        if name is None:
            return f"unknown collective {record['collective'] or '(none named)'}"
        if count is None:
            return f"elem_count is {record['elements/buffer']}"
        if size_bytes is None:
            return f"bytes is {record['message_size']}"
        if not time:
            return f"t_avg[usec] is {record.get('t_avg[usec]')}"
        # Sizes in the text are those of all buffers, and in the CSV those of one.
        if record.get("together"):
            count, size_bytes = count // buffers, size_bytes // buffers
        if not size_bytes and COLLECTIVES[name].has_data and not self.first_calls:
            return "0 elements: nothing was sent"
        if name == "reduce_scatter" and ranks and count < ranks:
            return EMPTY.format(count=count, ranks=ranks)
        remarks = []
        printed = size_bytes
        size = base.itemsize(dtype) or 1
        per_call = count
        if name in _PER_RANK:
            if not ranks:
                return f"the size of {name} is for one rank: give --ranks"
            size_bytes *= ranks
        elif name == "reduce_scatter" and ranks:
            per_call = count // ranks
            if count % ranks:
                remarks.append("the tail of the buffer is not sent (no whole share for each rank)")
                printed = size_bytes = per_call * ranks * size
        if record.get("collective") in ("allgatherv", "alltoallv"):
            remarks.append(f"measured as {record['collective']} with equal parts")
        reduction = record.get("reduction") or None
        reported = base.host_mean(
            name,
            time,
            size_bytes,
            printed,
            calls=base.whole(record.get("repetitions")),
            first_call_ns=base.ns_of_us(record.get("t_max[usec]")) if self.first_calls else None,
            min_ns=base.ns_of_us(record.get("t_min[usec]")),
            max_ns=base.ns_of_us(record.get("t_max[usec]")),
        )
        if buffers > 1:
            remarks.append(f"{buffers} buffers in flight: the time is of all of them")
        placement = self.settings.get("inplace")
        backend = self.settings.get("backend", "")
        return base.make_result(
            name,
            size_bytes,
            reported,
            ranks=ranks,
            dtype=dtype,
            op=reduction,
            in_place=None if placement is None else placement == "1",
            backend=self.options.backend or "ccl",
            device=_DEVICES.get(backend, "unknown"),
            count=per_call,
            coalesce=buffers,
            warnings=remarks,
        )

    def end(self) -> None:
        self.finish()
        base.number_runs(self.imported, self.runs)

    def finish(self) -> None:
        """Add a Run for each number of ranks in the output that has ended."""
        if self.equal_rows:
            self.flush()
        done: dict[str, Any] = {"status": "complete"}
        if not self.csv and not self.ended:
            done = {"status": "truncated", "reason": "the output stops before '# All done'"}
        source = {"tool": "oneCCL benchmark", "format": "CSV" if self.csv else "text"}
        source["run"] = str(self.runs)
        environment = {"libraries": {"ccl": "oneCCL"}}
        self.imported.runs += base.runs_of_ranks(
            self.results, self.options, source, environment=environment, end=done
        )


read = _OneCclReader.read


def _same_timing(a: Mapping[str, str], b: Mapping[str, str]) -> bool:
    keys = ("#elements/buffer", "message_size", "t_min[usec]", "t_max[usec]", "t_avg[usec]")
    return all(a.get(key) == b.get(key) for key in keys)

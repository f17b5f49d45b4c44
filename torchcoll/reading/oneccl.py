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

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torchcoll.core.result import CaseResult
from torchcoll.reading import base
from torchcoll.reading.table_reader import Columns, TableReader

NAME = "oneccl"
_NAMES = re.compile(r"#\s*Benchmarking:\s*(.*\S)")
_PROCESSES = re.compile(r"#\s*#processes:\s*(\d+)")
_OPTION = re.compile(r"\s+([a-z_]+):\s+(\S.*?)\s*$")
# The text's names of columns -> those of the CSV. Early versions have no #elem_count.
_CSV_NAMES = {"bytes": "message_size", "elem_count": "elements/buffer"}
# A heading without these columns is broken, and so are its rows.
_COLUMNS = {"message_size", "t_avg[usec]"}
_CSV_COLUMNS = _COLUMNS | {"ranks", "collective", "dtype", "elements/buffer"}
_TIMING = ("elements/buffer", "message_size", "t_min[usec]", "t_max[usec]", "t_avg[usec]")
_DEVICES = {"host": "cpu", "sycl": "xpu"}
SUMMED = (
    "the time is the sum over several collectives ({names}), of no single one: "
    "run the benchmark with one --coll at a time"
)


def sniff(head: Sequence[str]) -> bool:
    return any(
        "t_avg[usec]" in text and ("#bytes" in text or text.startswith("#ranks,")) for text in head
    )


class _OneCclReader(TableReader):
    TOOL, BACKEND = "oneCCL benchmark", "ccl"
    COLUMNS = Columns(
        "message_size", ("t_avg[usec]",), "t_min[usec]", "t_max[usec]", "", "repetitions"
    )
    PER_RANK = ("all_gather", "all_to_all", "all_to_all_v")
    ENVIRONMENT: ClassVar[Mapping[str, Any]] = {"libraries": {"ccl": "oneCCL"}}

    def __init__(self, options: base.ImportOptions) -> None:
        super().__init__(options)
        self.begin()

    def begin(self) -> None:
        self.options_begun = self.ended = False
        self.settings: dict[str, str] = {}
        self.names, self.collectives = list[str](), list[str]()
        self.form = "text"
        self.rows = 0
        self.equal_rows: list[tuple[int, Mapping[str, str]]] = []  # CSV rows with equal figures

    def line(self, line: int, text: str) -> None:
        plain = text.strip()
        if plain.startswith("#ranks,"):
            names = plain.replace("#", "").split(",")
            self.form, self.names = "CSV", names if set(names) >= _CSV_COLUMNS else []
        elif "t_avg[usec]" in plain:
            names = [_CSV_NAMES.get(name, name) for name in plain.replace("#", "").split()]
            self.form, self.names = "text", names if set(names) >= _COLUMNS else []
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
        elif self.names and plain[:1].isdigit():
            self.row(line, plain)

    def next_run(self, another: bool) -> None:
        """Begin the output of another benchmark, if ``another``."""
        if another:
            self.finish()
            self.begin()
            self.outputs += 1

    def row(self, line: int, text: str) -> None:
        fields = text.split("," if self.form == "CSV" else None)
        if len(fields) <= 3 and self.form == "text":  # prose
            return
        record = self.record(line, fields)
        if record is None:
            return
        if self.form == "CSV":
            if self.equal_rows and _timing(self.equal_rows[0][1]) != _timing(record):
                self.flush()
            self.equal_rows.append((line, record))
        elif len(self.collectives) > 1:
            self.imported.refuse(line, SUMMED.format(names=", ".join(self.collectives)))
        else:
            self.add_record(line, record)

    def flush(self) -> None:
        """Add the CSV rows with equal figures. Those of several collectives were timed together,
        and are refused.
        """
        names = list(dict.fromkeys(record["collective"] for _, record in self.equal_rows))
        for line, record in self.equal_rows:
            if len(names) > 1:
                self.imported.refuse(line, SUMMED.format(names=", ".join(names)))
            else:
                self.add_record(line, record)
        self.equal_rows = []

    @property
    def first_calls(self) -> bool:
        """Whether each row is one call, the process's first included. A CSV has no warm-up."""
        iterations = (self.settings.get("iters"), self.settings.get("warmup_iters"))
        return self.form == "text" and iterations == ("1", "0")

    def add_record(self, line: int, record: Mapping[str, str]) -> None:
        result = self.case(record)
        if self.first_calls:
            each = "each row is one call, in the order of the process"
            self.imported.warn(f"-i 1 -w 0: {each}; torchcoll cold reads them so")
            if isinstance(result, CaseResult):
                result.ordinal = self.rows
        self.rows += 1
        self.add(line, result)

    def case(self, record: Mapping[str, str]) -> CaseResult | str:
        settings = self.settings
        named = record.get("collective") or next(iter(self.collectives), "")
        ranks = base.parse_ranks(record.get("ranks") or settings.get("processes"))
        dtype = base.dtype_named(record.get("dtype") or settings.get("datatype"))
        row = self.measured(
            record, re.sub(r"gatherv$", "gather", named), ranks, dtype, self.first_calls
        )
        if isinstance(row, str):
            return row
        buffers = base.whole(record.get("buffers") or settings.get("buf_count")) or 1
        itemsize = base.itemsize(row.dtype) or 1
        elements = base.whole(record.get("elements/buffer"))
        count = row.printed_bytes // itemsize if elements is None else elements
        if self.form == "text":  # its sizes are those of all buffers
            count, row.printed_bytes = count // buffers, row.printed_bytes // buffers
        remarks = []
        if row.collective == "reduce_scatter" and row.ranks:
            if count < row.ranks:
                what = f"reduce_scatter of {count} elements on {row.ranks} ranks"
                return f"{what} does nothing in oneCCL: an empty call was timed"
            if count % row.ranks:
                remarks.append("the tail of the buffer is not sent (no whole share for each rank)")
                row.printed_bytes = count // row.ranks * row.ranks * itemsize
            count //= row.ranks
        if record.get("collective") in ("allgatherv", "alltoallv"):
            remarks.append(f"measured as {named} with equal parts")
        if buffers > 1:
            remarks.append(f"{buffers} buffers in flight: the time is of all of them")
        placement = settings.get("inplace")
        figures = {}
        if self.first_calls:
            figures["first_call_ns"] = base.ns_of_us(record.get("t_max[usec]"))
        return self.result(
            row,
            figures=figures,
            op=record.get("reduction") or settings.get("reduction") or None,
            in_place=None if placement is None else placement == "1",
            device=_DEVICES.get(settings.get("backend", ""), "unknown"),
            count=count,
            coalesce=buffers,
            warnings=remarks,
        )

    def finish(self) -> None:
        self.flush()
        self.add_runs("# All done" if self.form == "text" and not self.ended else "")


read = _OneCclReader.read


def _timing(record: Mapping[str, str]) -> list[str | None]:
    return [record.get(name) for name in _TIMING]

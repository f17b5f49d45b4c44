"""DeepSpeed: ds_bench / communication benchmarks, and the summary of its comms logger.

Its 'Throughput' of all_reduce is 2 S / t and its unit Gbps by default, so only size and time are
read. The bench prints the size of all_gather as one rank's input. The logger's averages leave out
the slowest and fastest tenth, and its reduce_scatter_tensor counts the whole input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from torchcoll.core.result import CaseResult, Given
from torchcoll.importers.base import (
    Imported,
    Line,
    Options,
    collective_named,
    make_result,
    make_run,
    number,
)

NAME = "deepspeed"
_TITLE = re.compile(r"-{4} Performance of (\S+) on (\d+) devices -{4}")
_LOGGER = re.compile(r"Comm\. Op\s+Message Size\s+Count")
_DESCRIPTION = re.compile(r"(\d+)x(\d+)")
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SCALES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_PER_RANK = ("all_gather",)
_LOGGED = re.compile(
    r"\s+([\d.]+) ?([KMGT]?B)\s+(\d+)\s+([\d.eE+-]+)\s+([\d.eE+-]+)\s+([\d.eE+-]+)\s+([\d.eE+-]+)"
)


def sniff(head: Sequence[str]) -> bool:
    return any(_TITLE.search(text) or _LOGGER.search(text) for text in head)


def read(lines: Iterable[Line], options: Options) -> Imported:
    found = Imported()
    reader = _Reader(options, found)
    for line, text in lines:
        reader.line(line, text.rstrip())
    for (ranks, kind), results in reader.results.items():
        source = {"tool": "DeepSpeed", "format": kind}
        found.runs.append(make_run(results, options, source, ranks=ranks))
    return found


class _Reader:
    def __init__(self, options: Options, found: Imported) -> None:
        self.options, self.found = options, found
        self.title, self.ranks, self.raw_unit = "", options.ranks or 0, ""
        self.logger = False
        self.results: dict[tuple[int, str], list[CaseResult]] = {}

    def line(self, line: int, text: str) -> None:
        if match := _TITLE.search(text):
            self.title, self.logger = match[1], False
            self.ranks = self.options.ranks or int(match[2])
        elif _LOGGER.search(text):
            self.logger, self.title = True, ""
        elif "Duration" in text and "Size" in text:
            unit = re.search(r"Duration \((\w+)\)", text)
            self.raw_unit = unit[1] if unit else ""
        elif self.logger:
            self.logged(line, text)
        elif self.title and text[:1].isdigit():
            self.add(line, self.bench(re.split(r"\s{2,}", text)), "bench")

    def add(self, line: int, result: CaseResult | str, kind: str) -> None:
        if isinstance(result, str):
            self.found.refuse(line, result)
        else:
            self.found.rows += 1
            self.results.setdefault((self.ranks, kind), []).append(result)

    def bench(self, fields: Sequence[str]) -> CaseResult | str:
        if len(fields) < 5:
            return f"half a row: {len(fields)} of 5 columns"
        name = self.options.collective or collective_named(self.title)
        if name is None:
            return f"{self.title} is no collective that torchcoll has"
        elements = _DESCRIPTION.fullmatch(fields[1])
        if not elements:
            return f"the description {fields[1]} has no elements x bytes"
        value, _, unit = fields[2].partition(" ")
        scale = _SCALES.get(unit or self.raw_unit or "us")
        time = number(value)
        if not time or scale is None:
            return "no duration"
        nbytes = int(elements[1]) * int(elements[2])
        if name in _PER_RANK:
            nbytes *= self.ranks
        return self.result(name, nbytes, time * scale, "mean", None, [])

    def logged(self, line: int, text: str) -> None:
        match = _LOGGED.fullmatch(text)
        if match is None:
            word = text.strip().lstrip("|").split()
            if len(word) == 1 and not text.startswith(" "):
                self.title = word[0]
            elif text[:1] == " " and text.strip()[:1].isdigit():
                self.found.refuse(line, "half a row")
            return
        name = self.options.collective or collective_named(self.title)
        if name is None:
            self.found.refuse(line, f"{self.title or '(no name)'} is no collective of torchcoll")
            return
        size, latency = number(match[1]), number(match[5])
        if not size or not latency:
            self.found.refuse(line, "no size or no latency")
            return
        remarks = []
        if match[2] != "B":
            remarks.append(f"the size was printed as {match[1]} {match[2]}: rounded")
        nbytes = round(size * _UNITS[match[2]])
        if name == "all_gather":  # logged is what a rank sends
            if not self.ranks:
                why = "the logger's size of all_gather is for one rank: give --ranks"
                self.found.refuse(line, why)
                return
            nbytes *= self.ranks
        given = "mean without the slowest and fastest tenth"
        result = self.result(name, nbytes, latency * 1e6, given, int(match[3]), remarks)
        self.add(line, result, "comms logger")

    def result(
        self,
        name: str,
        nbytes: int,
        time_ns: float,
        statistic: str,
        calls: int | None,
        remarks: Sequence[str],
    ) -> CaseResult:
        given = Given(time_ns, statistic, "rank0", "host", calls)
        if name in _PER_RANK and self.ranks:
            given = replace(given, nbytes=nbytes // self.ranks, size_basis="per rank")
        return make_result(
            name,
            nbytes,
            given,
            ranks=self.ranks,
            dtype=self.options.dtype,
            backend=self.options.backend or "unknown",
            warnings=remarks,
        )

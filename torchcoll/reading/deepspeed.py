"""Reads DeepSpeed's ds_bench / communication benchmarks, and the summary of its comms logger.

Its 'Throughput' of all_reduce is 2 S / t, by default in Gbps. So bandwidths are computed from size
and time, with a warning if the printed busbw contradicts them. The benchmark prints the size of
all_gather as one rank's input. The logger counts the argument ``tensor`` (deepspeed/comm/utils.py),
which is one rank's share in all_gather, gather and scatter, and the whole buffer in the others. Its
averages do not include the slowest and the fastest tenth. Its clock is the device's or the host's,
depending on the accelerator (utils/timer.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from torchcoll.core.collectives import busbw_gbps
from torchcoll.core.result import CaseResult, Reported
from torchcoll.reading import base

NAME = "deepspeed"
_TITLE = re.compile(r"-{4} Performance of (\S+) on (\d+) devices -{4}")
_LOGGER = re.compile(r"Comm\. Op\s+Message Size\s+Count")
# With "debug": true the line also has the caller.
_OPERATION = re.compile(r"(?:\|\s*)?(\S+)(?: \| \[Caller Func: .*\])?\s*")
TRIMMED = "mean without the slowest and fastest tenth"
STRAGGLER = "straggler effect: the least over the ranks call by call, which no rank took"
STARTS = re.compile(
    r"-{4} Performance of|Size \(Bytes\)|Comm\. Op\s+Message Size"
    r"|(?<![\w.:,+-])[\d.]+(?: [KMGT]?B)?\s+\d+x\d+\s"
)
_DESCRIPTION = re.compile(r"(\d+)x(\d+)")
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SCALES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_PER_RANK = ("all_gather", "gather", "scatter")
_LOGGED = re.compile(r"\s+([\d.]+) ?([KMGT]?B)\s+(\d+)((?:\s+[\d.eE+-]+){1,8})")
_MEAN = "Avg Latency(ms)"
_BUSBW = re.compile(r"busbw\w*\s*\((G[bB])ps\)", re.IGNORECASE)


def sniff(head: Sequence[str]) -> bool:
    return any(_TITLE.search(text) or _LOGGER.search(text) for text in head)


class _DeepSpeedReader(base.TableReader):
    def __init__(self, options: base.ImportOptions) -> None:
        super().__init__(options)
        self.title, self.ranks, self.raw_unit = "", options.ranks or 0, ""
        self.logger, self.figures = False, [""]  # figures: names of the columns of figures
        self.heading = ""

    def run_of(self, result: CaseResult) -> tuple[int, str]:
        return self.ranks, "comms logger" if self.logger else "bench"

    def end(self) -> None:
        for (ranks, kind), results in self.results.items():
            source = {"tool": "DeepSpeed", "format": kind}
            self.imported.runs.append(base.make_run(results, self.options, source, ranks=ranks))

    def line(self, line: int, text: str) -> None:
        text = text.rstrip()
        if match := _TITLE.search(text):
            self.title, self.logger = match[1], False
            self.ranks = self.options.ranks or base.parse_ranks(match[2]) or 0
        elif _LOGGER.search(text):
            self.logger, self.title, self.heading = True, "", text
            names = re.split(r"(?<=\))\s+|\s{2,}", text[text.index("Comm. Op") :].strip())
            self.figures = names[3:]  # after the operation, the size and the count
        elif "Duration" in text and "Size" in text:
            unit = re.search(r"Duration \((\w+)\)", text)
            self.raw_unit, self.heading = unit[1] if unit else "", text
        elif self.logger:
            self.logged(line, text)
        elif self.title and text.lstrip()[:1].isdigit():
            self.add(line, self.bench(re.split(r"\s{2,}", text.strip())))

    def bench(self, fields: Sequence[str]) -> CaseResult | str:
        if len(fields) < 5:
            return f"half a row: {len(fields)} of 5 columns"
        elements = _DESCRIPTION.fullmatch(fields[1])
        if not elements:
            return f"the description {fields[1]} has no elements x bytes"
        value, _, unit = fields[2].partition(" ")
        scale = _SCALES.get(unit or self.raw_unit or "us")
        time = base.number(value)
        if not time or scale is None:
            return f"duration is {fields[2]}"
        reported = Reported(time * scale, "mean", "rank0", "host")
        count, each = base.whole(elements[1]), base.whole(elements[2])
        size_bytes = base.whole((count or 0) * (each or 0))
        if not size_bytes:
            return f"the description {fields[1]} has no elements x bytes"
        return self.case(size_bytes, reported, fields[4], value)

    def case(
        self,
        size_bytes: int,
        reported: Reported,
        busbw: str,
        time: str,
        remarks: Sequence[str] = (),
    ) -> CaseResult | str:
        """The result for a size of DeepSpeed's, or why there is none.

        busbw, time: as they are printed; the heading has the unit of busbw, or there is none.
        """
        options, ranks = self.options, self.ranks
        name = base.collective_named(self.title) or options.collective  # every row names its own
        if name is None:
            return f"{self.title or '(no name)'} is no collective that torchcoll has"
        if name in _PER_RANK:
            if not ranks:
                return f"the size of {name} is for one rank: give --ranks"
            reported = replace(reported, size_bytes=size_bytes, size_basis="per rank")
            size_bytes *= ranks
        unit, time_value = _BUSBW.search(self.heading), base.number(time)
        if unit and ranks and reported.time_ns and time_value:
            scale = 0.125 if unit[1].endswith("b") else 1.0
            expected = busbw_gbps(name, size_bytes, ranks, reported.time_ns)
            step = base.rounding(busbw) * scale + base.rounding(time) / time_value * (expected or 0)
            gbps, basis = (base.number(busbw) or 0.0) * scale, "size, time and ranks"
            remarks = [*remarks, base.contradiction("busbw", gbps, expected, basis, step)]
        return base.make_result(
            name,
            size_bytes,
            reported,
            ranks=ranks,
            dtype=options.dtype,
            backend=options.backend or "unknown",
            warnings=[text for text in remarks if text],
        )

    def logged(self, line: int, text: str) -> None:
        match = _LOGGED.fullmatch(text)
        if match is None:
            if operation := _OPERATION.fullmatch(text):
                self.title = operation[1]
            elif text[:1] == " " and text.strip()[:1].isdigit():
                self.imported.refuse(line, "half a row")
            return
        figures = dict(zip(self.figures, match[4].split(), strict=False))
        size, latency = base.number(match[1]), base.number(figures.get(_MEAN))
        if not size or not latency:
            why = f"size is {match[1]} {match[2]}, average latency is {figures.get(_MEAN)}"
            straggler = _MEAN not in figures and any("straggler" in name for name in self.figures)
            self.imported.refuse(line, STRAGGLER if straggler else why)
            return
        remarks = []
        if match[2] != "B":
            remarks.append(f"the size was printed as {match[1]} {match[2]}: rounded")
        reported = Reported(latency * 1e6, TRIMMED, "rank0", calls=base.whole(match[3]))
        size_bytes = base.whole(float(round(size * _UNITS[match[2]])))
        if size_bytes is None:
            self.imported.refuse(line, f"size is {match[1]} {match[2]}")
            return
        busbw = next((figures[name] for name in figures if _BUSBW.match(name)), "")
        self.add(line, self.case(size_bytes, reported, busbw, figures[_MEAN], remarks))


read = _DeepSpeedReader.read

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
from typing import Any

from torchcoll.core.result import CaseResult
from torchcoll.reading import base
from torchcoll.reading.table_reader import Columns, TableReader, check_busbw

NAME = "deepspeed"
_TITLE = re.compile(r"-{4} Performance of (\S+) on (\d+) devices -{4}")
_LOGGER = re.compile(r"Comm\. Op\s+Message Size\s+Count")
# With "debug": true the line also has the caller.
_OPERATION = re.compile(r"(?:\|\s*)?(\S+)(?: \| \[Caller Func: .*\])?\s*")
TRIMMED = "mean without the slowest and fastest tenth"
STRAGGLER = "straggler effect: the least over the ranks call by call, which no rank took"
_DESCRIPTION = re.compile(r"(\d+)x(\d+)")
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SCALES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_LOGGED = re.compile(r"\s+([\d.]+) ?([KMGT]?B)\s+(\d+)((?:\s+[\d.eE+-]+){1,8})")
_MEAN = "Avg Latency(ms)"
_BUSBW = re.compile(r"busbw\w*\s*\((G[bB])ps\)", re.IGNORECASE)


def sniff(head: Sequence[str]) -> bool:
    return any(_TITLE.search(text) or _LOGGER.search(text) for text in head)


class _DeepSpeedReader(TableReader):
    TOOL = "DeepSpeed"
    COLUMNS = Columns("size", ("time",), calls="calls")
    PER_RANK = ("all_gather", "gather", "scatter")
    ROWS_NAMED = True
    title = raw_unit = ""
    ranks: int | None = None
    heading = ""

    def line(self, line: int, text: str) -> None:
        text = text.rstrip()
        if match := _TITLE.search(text):
            self.begin("bench", match[1])
            self.ranks = base.parse_ranks(match[2])
        elif _LOGGER.search(text):
            self.begin("comms logger", "")
            self.heading = text
            names = re.split(r"(?<=\))\s+|\s{2,}", text[text.index("Comm. Op") :].strip())
            self.names = names[3:]  # after the operation, the size and the count
        elif "Duration" in text and "Size" in text:
            unit = re.search(r"Duration \((\w+)\)", text)
            self.raw_unit, self.heading = unit[1] if unit else "us", text
        elif self.form == "comms logger":
            self.logged(line, text)
        elif self.title and text.lstrip()[:1].isdigit():
            self.add(line, self.bench(re.split(r"\s{2,}", text.strip())))

    def begin(self, form: str, title: str) -> None:
        if form != self.form:
            self.add_runs()
        self.form, self.title = form, title

    def bench(self, fields: Sequence[str]) -> CaseResult | str:
        if len(fields) < 5:
            return f"{base.HALF_ROW}: {len(fields)} of 5 columns"
        elements = _DESCRIPTION.fullmatch(fields[1])
        if not elements:
            return f"the description {fields[1]} has no elements x bytes"
        value, _, unit = fields[2].partition(" ")
        time, scale = base.number(value), _SCALES.get(unit or self.raw_unit)
        if not time or scale is None:
            return f"duration is {fields[2]}"
        size_bytes = (base.whole(elements[1]) or 0) * (base.whole(elements[2]) or 0)
        figures = {"over_ranks": "rank0"}
        return self.case(size_bytes, time * scale / 1e3, fields[4], value, figures)

    def case(
        self, size_bytes: int, time_us: float, busbw: str, time: str, figures: dict[str, Any]
    ) -> CaseResult | str:
        """The result for a size of DeepSpeed's, or why there is none. busbw, time: as printed."""
        row = self.measured(
            {"size": str(size_bytes), "time": repr(time_us)}, self.title, self.ranks
        )
        result = row if isinstance(row, str) else self.result(row, figures=figures)
        unit, printed_time = _BUSBW.search(self.heading), base.number(time)
        if isinstance(result, CaseResult) and unit and result.ranks and printed_time:
            scale = 0.125 if unit[1].endswith("b") else 1.0
            gbps = (base.number(busbw) or 0.0) * scale
            step = base.rounding(busbw) * scale + base.rounding(time) / printed_time * gbps
            check_busbw(result, gbps, step)
        return result

    def logged(self, line: int, text: str) -> None:
        match = _LOGGED.fullmatch(text)
        if match is None:
            if operation := _OPERATION.fullmatch(text):
                self.title = operation[1]
            elif text[:1] == " " and text.strip()[:1].isdigit():
                self.imported.refuse(line, base.HALF_ROW)
            return
        figures = dict(zip(self.names, match[4].split(), strict=False))
        size, latency = base.number(match[1]), base.number(figures.get(_MEAN))
        if not size or not latency:
            why = f"size is {match[1]} {match[2]}, average latency is {figures.get(_MEAN)}"
            self.imported.refuse(line, STRAGGLER if "straggler" in str(self.names) else why)
            return
        of_case = {
            "statistic": TRIMMED,
            "over_ranks": "rank0",
            "clock": "unknown",
            "calls": base.whole(match[3]),
        }
        busbw = next((figures[name] for name in figures if _BUSBW.match(name)), "")
        size_bytes = round(size * _UNITS[match[2]])
        result = self.case(size_bytes, latency * 1e3, busbw, figures[_MEAN], of_case)
        self.add(line, result)


read = _DeepSpeedReader.read

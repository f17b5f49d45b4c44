"""Reads HCCL's hccl_test (Ascend): a table of sizes, times and whether the results were correct.

The table names neither the collective nor the ranks. ``data_size`` is S: the whole buffer for
all_gather and reduce_scatter, and what one rank sends for all_to_all
(opbase_test/*_rootinfo_test.cc). The time is measured by events on the root's stream around all
calls and divided by their number. There is a warning if the bandwidth does not follow from size and
time, in GB/s or in the GiB/s of early releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.result import CaseResult, Reported
from torchcoll.importers.base import (
    NOTHING_SENT,
    Imported,
    ImportOptions,
    Line,
    collective_in,
    contradiction,
    half_row,
    make_result,
    make_run,
    no_figure,
    number,
    rounding,
    whole,
)

NAME = "hccl"
_HEADING = re.compile(r"\s*data_size\(Bytes\):?.*\bave?g_time\(us\)")
_PROGRAM = re.compile(r"\b(\w+)_test\b")  # in the command line: bin/all_reduce_test
_CALLS = re.compile(r".*\biters is (\d+)")
STARTS = re.compile(
    r"data_size\(Bytes\)|the minbytes is|mpirun\b"
    r"|(?<![\w.:,+-])\d+[ \t]*\|[ \t]*[\d.]+[ \t]*\|[ \t]*[\d.]+[ \t]*\|"
)
_GIB = (1 << 30) / 1e9


def sniff(head: Sequence[str]) -> bool:
    return any(_HEADING.match(text) for text in head)


def read(lines: Iterable[Line], options: ImportOptions) -> Imported:
    imported = Imported()
    columns: list[str] = []
    calls: int | None = None
    named = collective_in(options.file)
    results: list[CaseResult] = []
    for line, text in lines:
        if _HEADING.match(text):
            columns = [name.partition("(")[0].rstrip(": ") for name in _fields(text)]
        elif match := _CALLS.match(text):
            calls = whole(match[1])
        elif columns and "|" in text and text.strip()[:1].isdigit():
            fields = _fields(text)
            if len(fields) != len(columns):
                imported.refuse(line, half_row(fields, columns))
                continue
            record = dict(zip(columns, fields, strict=True))
            result = _result(record, named, calls, options, imported)
            if isinstance(result, str):
                imported.refuse(line, result)
            else:
                imported.take()
                results.append(result)
        elif match := _PROGRAM.search(text):
            named = collective_in(match[1]) or named
    if results:
        source = {"tool": "hccl_test", "format": "text"}
        ranks = options.ranks or 0
        imported.runs.append(make_run(results, options, source, ranks=ranks))
        if not ranks:
            imported.warn("the file does not tell the ranks: give --ranks for bus bandwidth")
    return imported


def _fields(text: str) -> list[str]:
    return [field.strip() for field in text.strip().strip("|").split("|")]


def _result(
    record: dict[str, str],
    named: str | None,
    calls: int | None,
    options: ImportOptions,
    imported: Imported,
) -> CaseResult | str:
    name = imported.choose("collective", options.collective, named)
    if name is None:
        return "hccl_test does not name the collective: give --collective"
    entry = COLLECTIVES[name]
    size_bytes = whole(record.get("data_size"))
    given_time = record.get("aveg_time", record.get("avg_time", ""))  # the tool has both spellings
    time = number(given_time)
    if size_bytes is None:
        return f"data_size is {record.get('data_size')}"
    if not time:
        return no_figure("avg_time", given_time)
    if entry.has_data and not size_bytes:
        return NOTHING_SENT
    algbw = number(record.get("alg_bandwidth"))
    expected = size_bytes / (time * 1e3)
    step = rounding(record.get("alg_bandwidth", ""))
    remark = contradiction("algbw", algbw, expected, "size and time", step)
    if contradiction("algbw", algbw, expected / _GIB, "size and time", step) == "":
        remark = ""
    check = record.get("check_result", "").lower()
    return make_result(
        name,
        size_bytes,
        Reported(time * 1e3, statistic="mean", over_ranks="rank0", clock="device", calls=calls),
        ranks=options.ranks or 0,
        dtype=options.dtype,
        mode="back-to-back",
        backend=options.backend or "hccl",
        wrong={"success": 0, "failed": 1}.get(check),
        checked=1,
        warnings=[remark] if remark else [],
    )

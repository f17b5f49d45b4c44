"""Reads rccl-tests' table files (-x FILE -Z csv or json). nccl_tests_text.py reads its text.

CSV: ``numCycle,collective,[nodes,ranks,ranksPerNode,gpusPerRank | gpus],size,type,redop,inplace,
time,algbw,busbw,wrong``; columns are read by name, because they depend on the build. Older
releases have a comma at the end of lines and no brackets (ROCm/rccl-tests PR 140).
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence

from torchcoll.core.bounds import MOST_TEXT
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.result import CaseResult
from torchcoll.importers.base import (
    Imported,
    ImportOptions,
    Line,
    collective_named,
    dtype_named,
    half_row,
    itemsize,
    number,
    parse_ranks,
    rounding,
    runs_of_ranks,
    whole,
)
from torchcoll.importers.nccl_tests import Block, NcclTestsRow, NcclTestsRun, make_results

NAME = "rccl-tests"
LONG_LINES = True
_NEEDED = {"collective", "size", "time", "busbw"}
STARTS = re.compile(r'(?<!")numCycle,')
_OBJECT = re.compile(r"\{[^{}]*\}")


def sniff(head: Sequence[str]) -> bool:
    for text in head[:50]:
        if "numCycle" in text and {n.strip(' "{}[]:') for n in re.split(r"[,:]", text)} >= _NEEDED:
            return True
    text = "".join(head)[:2000]
    return "numCycle" in text and '"busbw"' in text


def read(lines: Iterable[Line], options: ImportOptions) -> Imported:
    imported = Imported()
    cases: dict[tuple[str, int], list[NcclTestsRow]] = {}
    for line, record in _records(lines, imported):
        row = _row(record, line, options, imported)
        if isinstance(row, str):
            imported.refuse(line, row)
            continue
        name, ranks, parsed = row
        cases.setdefault((name, ranks), []).append(parsed)
    by_ranks: dict[int, list[CaseResult]] = {}
    for (name, ranks), rows in cases.items():
        results = make_results(rows, NcclTestsRun(name, ranks), imported)
        by_ranks.setdefault(ranks, []).extend(results)
    by_ranks = {ranks: results for ranks, results in by_ranks.items() if results}
    source = {"tool": "rccl-tests", "format": "table"}
    libraries = {"libraries": {"nccl": "RCCL"}}
    imported.runs += runs_of_ranks(by_ranks, options, source, environment=libraries)
    return imported


def _records(lines: Iterable[Line], imported: Imported) -> Iterable[tuple[int, Mapping[str, str]]]:
    """Yield (line, record) for each row of a CSV, or for each JSON object with or without a
    list.
    """
    names: list[str] = []
    opened = ""  # the beginning of an object that spans several lines
    for line, text in lines:
        text = opened + text.strip()
        start = text.rfind("{")
        opened = f"{text[start:]} " if start > text.rfind("}") else ""
        opened = opened if len(opened) < MOST_TEXT else ""
        objects = _OBJECT.findall(text)
        if objects or text[:1] in "[]{}":
            for fragment in objects:
                try:
                    data = json.loads(re.sub(r",\s*}", "}", fragment))
                    yield line, {str(k): str(v) for k, v in data.items()}
                except ValueError:
                    imported.refuse(line, "a broken JSON object")
            continue
        fields = [field.strip() for field in next(csv.reader([text.rstrip(",")]), [])]
        if "numCycle" in fields:
            names = fields
        elif not names or not fields:
            continue
        elif len(fields) != len(names):
            imported.refuse(line, half_row(fields, names))
        else:
            yield line, dict(zip(names, fields, strict=True))
    if opened:
        imported.refuse(0, "the last JSON object has no end")


def _row(
    record: Mapping[str, str], line: int, options: ImportOptions, imported: Imported
) -> tuple[str, int, NcclTestsRow] | str:
    recorded = collective_named(record.get("collective", ""))
    name = imported.choose("collective", options.collective, recorded)
    if name is None:
        return f"unknown collective {record.get('collective')}"
    size, time = whole(record.get("size")), number(record.get("time"))
    if size is None:
        return f"size is {record.get('size')}"
    if not time:
        return f"time is {record.get('time')}"
    listed = parse_ranks(record.get("ranks", record.get("gpus")))
    ranks = imported.choose("ranks", options.ranks, listed) or 0
    dtype = imported.choose("dtype", options.dtype, dtype_named(record.get("type"))) or ""
    each = itemsize(dtype)
    entry = COLLECTIVES[name]
    count = size // (each * entry.parts(ranks)) if each and ranks else 0
    placement = record.get("inplace", "").lower()
    wrong = number(record.get("wrong"))
    bandwidth = record.get("busbw", "")
    block = Block(
        placement in ("1", "true") if placement else None,
        time * 1e3,
        number(record.get("algbw")),
        number(bandwidth),
        time_step_ns=rounding(record.get("time", "")) * 1e3,
        bw_step=rounding(bandwidth) if bandwidth else 0.0,
        wrong=None if wrong is None else int(wrong),
    )
    op = record.get("redop", "").lower()
    return (
        name,
        ranks,
        NcclTestsRow(
            line, size, count, dtype, op if op not in ("", "none") else None, None, [block]
        ),
    )

"""torchcoll's own output in the text format of nccl-tests (--format nccl-tests, export).

nccl-tests would have the mean over calls, of nccl on cuda, back to back. What torchcoll measured it
says in comment lines (runs/export.py), and they are believed here; what they leave out (the
clock, the device of a backend that has several) is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torchcoll.core.backends import only_device
from torchcoll.core.dtypes import DTYPES
from torchcoll.core.result import CaseResult, Run
from torchcoll.importers import nccl_tests_text
from torchcoll.importers.base import Imported, ImportOptions, Line, whole

NAME = "torchcoll-text"
_FIRST = re.compile(r"# .* in the text format of nccl-tests$")
STARTS = re.compile(
    rf"# [^#]{{1,200}} in the text format of|# torchcoll: |{nccl_tests_text.STARTS.pattern}"
)
_REUSE = re.compile(r"# torchcoll: buffer reuse: (\w+)")
_RAN = re.compile(r"# torchcoll: torch\.distributed \S+ on (\S+), mode ([\w-]+)")
_OURS = re.compile(r"# torchcoll: time is the (median|period) over calls of (.*)")
_SOURCE = re.compile(
    r"# torchcoll: time = (.+?) over calls, (?:over ranks: (\w+)|(\w+) over ranks)[,:]"
)
_CALLS = re.compile(r"# torchcoll: calls a case: warmup .*, timed (\d+)$")
_ONLY = re.compile(r"# torchcoll: measured (in-place|out-of-place) only")
_UNPLACED = "# torchcoll: placement unknown"
_READINGS = {"the slowest rank": "max", "the mean over ranks": "mean", "the fastest rank": "min"}


def sniff(head: Sequence[str]) -> bool:
    return any(_FIRST.match(text.rstrip()) for text in head)


def read(lines: Iterable[Line], options: ImportOptions) -> Imported:
    found = Imported()
    for block in _blocks(lines):
        part = nccl_tests_text.read(iter(block), options)
        found.rows += part.rows
        found.refused += part.refused
        for text in part.warnings:
            found.warn(text)
        for run in part.runs:
            _correct(run, [text for _, text in block], options)
        found.runs += part.runs
    return found


def _blocks(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """One block for each collective on each backend."""
    block: list[Line] = []
    for line, text in lines:
        if block and _FIRST.match(text.rstrip()):
            yield block
            block = []
        block.append((line, text))
    yield block


def _correct(run: Run, texts: Sequence[str], options: ImportOptions) -> None:
    """What the comments say, in place of what nccl-tests would have done."""
    backend = mode = buffer_reuse = statistic = over_ranks = "unknown"
    calls, only, unplaced = None, None, False
    for text in (text.rstrip() for text in texts):
        if match := _RAN.match(text):
            backend, mode = match[1].rstrip(","), match[2]
        elif match := _REUSE.match(text):
            buffer_reuse = match[1]
        elif match := _OURS.match(text):
            statistic, over_ranks = match[1], _READINGS.get(match[2], match[2])
        elif match := _SOURCE.match(text):
            statistic, over_ranks = match[1], match[2] or match[3]
        elif match := _CALLS.match(text):
            calls = whole(match[1]) or None
        elif match := _ONLY.match(text):
            only = match[1] == "in-place"
        unplaced = unplaced or text.startswith(_UNPLACED)
    backend = options.backend or backend
    device = only_device(backend) or "unknown"
    known = {"statistic": statistic, "over_ranks": over_ranks, "clock": "unknown", "calls": calls}
    kept = True if unplaced else only
    run.results = [
        _corrected(result, known, backend, device, mode, buffer_reuse, unplaced)
        for result in run.results
        if kept is None or result.case.in_place is kept
    ]
    for member in run.members:
        member.pop("device", None)
        for name in [name for name in ("host", "device_name") if member.get(name) == "unknown"]:
            del member[name]
    if not any(member.get("host") for member in run.members):
        run.members = []
    environment = run.header["environment"]
    environment.pop("libraries", None)
    for name in [name for name in ("host", "device_name") if environment.get(name) == "unknown"]:
        del environment[name]
    run.header["source"] |= {"tool": "torchcoll", "format": "nccl-tests text"}


def _corrected(
    result: CaseResult,
    known: dict[str, Any],
    backend: str,
    device: str,
    mode: str,
    buffer_reuse: str,
    unplaced: bool,
) -> CaseResult:
    assert result.reported
    case = result.case
    result.case = replace(
        case,
        backend=backend,
        device=device,
        mode=mode,
        dtype=case.dtype if case.dtype in DTYPES else None,
        in_place=None if unplaced else case.in_place,
        buffer_reuse=buffer_reuse,
    )
    # A bandwidth that is not known is printed as 0 there.
    reported = result.reported
    known = known | {n: getattr(reported, n) or None for n in ("algbw_gbps", "busbw_gbps")}
    result.reported = replace(reported, **known)
    return result

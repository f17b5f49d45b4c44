"""Reads the JSON of NCCL's RAS, which ``ncclras -f json`` prints from NCCL 2.28 on.

src/ras/client_support.cc, jsonWriteHeader() and below. NCCL 2.28 writes no comma between nvml_dev
and status of a rank without an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.errors import UnreadableError
from torchcoll.core.units import format_bytes
from torchcoll.importers.base import whole
from torchcoll.postmortem.evidence import FileRead, JobEvidence
from torchcoll.postmortem.ras_report import RasCount, RasCounts, RasProcess, RasReport

_WHAT = "NCCL RAS report"
# What the server answers before the report, where another program than ncclras asked it.
_BEGIN = re.compile(rb'\A(?:SERVER PROTOCOL \d+\s+|OK\s+)*\{\s*"nccl_version"\s*:')
_NO_COMMA = re.compile(r'("nvml_dev": -?\d+)(\s*"status")')
_LARGEST = 256 << 20  # bytes
# ncclResult_t, in the words of the text report.
_ERRORS = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
}
_IN_PROGRESS = 7


def recognizes(path: Path, begin: bytes) -> bool:
    return bool(_BEGIN.match(begin)) and b'"communicators' in begin


def read_evidence(path: Path, shown: str) -> list[JobEvidence]:
    """What the report says of the ranks. Raises UnreadableError for one that is cut off, too large,
    or has no communicator.
    """
    size_bytes = path.stat().st_size
    if size_bytes > _LARGEST:
        value = f"{shown} of {format_bytes(size_bytes)}"
        raise UnreadableError(_WHAT, value, f"at most {format_bytes(_LARGEST)}")
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        data = json.loads(_NO_COMMA.sub(r"\1,\2", text[text.index("{") :]))
    except (ValueError, RecursionError):
        raise UnreadableError(_WHAT, shown, "complete JSON, or the text of ncclras") from None
    communicators = list(_objects(data, "communicators"))
    if not communicators:
        raise UnreadableError(_WHAT, f"{shown} without a communicator", "one of a running job")
    evidence = JobEvidence(files=[FileRead(shown, _WHAT)])
    processes = {
        (rank.get("host"), whole(rank.get("pid")), whole(rank.get("cuda_dev")))
        for communicator in communicators
        for key in ("ranks", "missing_ranks")
        for rank in _objects(communicator, key)
    }
    report = RasReport()
    for communicator in communicators:
        if re.fullmatch(r"0x[0-9a-f]{1,16}", str(communicator.get("hash"))):
            evidence.identities.add(f"communicator {communicator['hash']}")
        size = whole(communicator.get("size")) or 0
        if len(processes) <= size <= MOST_RANKS:  # it has a rank of each GPU: all of the job
            report.ranks = size
            _read_communicator(communicator, size, report, evidence)
    report.processes = [] if report.ranks else _without_answer(communicators)
    report.add_to(evidence, shown)
    return [evidence]


def _read_communicator(
    communicator: Mapping[str, Any], size: int, report: RasReport, evidence: JobEvidence
) -> None:
    launched: dict[str, dict[int, list[int]]] = {}
    for entry in _objects(communicator, "ranks"):
        rank = _rank(entry, size, evidence)
        if rank is None:
            continue
        for name in ("init_state", "async_error"):
            code = whole(_object(entry, "status").get(name))
            if code and code != _IN_PROGRESS:
                report.errors.append((None, rank, _ERRORS.get(code, "Unexpected error")))
        for operation, number in _object(entry, "collective_counts").items():
            count = whole(number)
            if count is not None:
                by_count = launched.setdefault(str(operation)[:40], {})
                by_count.setdefault(count, []).append(rank)
    for operation, by_count in launched.items():
        if len(by_count) > 1:
            groups = [RasCount(count, len(ranks), ranks) for count, ranks in by_count.items()]
            report.counts.append(RasCounts(operation, None, groups))
    for entry in _objects(communicator, "missing_ranks"):
        rank = _rank(entry, size, evidence)
        if rank is not None and _object(entry, "status").get("unresponsive") is True:
            report.unanswered.setdefault(rank, _process(entry))


def _rank(entry: Mapping[str, Any], size: int, evidence: JobEvidence) -> int | None:
    """The rank of an entry, with its process noted; None for one that the communicator has not."""
    rank, process = whole(entry.get("rank")), _process(entry)
    if rank is None or not 0 <= rank < size:
        return None
    if process.pid is not None:
        evidence.pids.setdefault(rank, process.pid)
        evidence.nodes.setdefault(rank, process.node)
    return rank


def _without_answer(communicators: list[Mapping[str, Any]]) -> list[RasProcess]:
    """The processes that did not answer, where no communicator has all ranks."""
    processes = {
        _process(entry)
        for communicator in communicators
        for entry in _objects(communicator, "missing_ranks")
        if _object(entry, "status").get("unresponsive") is True
    }
    return sorted(processes, key=lambda process: (process.node, process.pid or 0))


def _process(entry: Mapping[str, Any]) -> RasProcess:
    """pid -1 and host ``unknown``: RAS does not know the process."""
    pid = whole(entry.get("pid"))
    if pid is None or pid <= 0:
        return RasProcess()
    return RasProcess(pid, str(entry.get("host"))[:100])


def _object(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = entry.get(key)
    return value if isinstance(value, dict) else {}


def _objects(data: object, key: str) -> Iterator[Mapping[str, Any]]:
    values = data.get(key) if isinstance(data, dict) else None
    for value in values if isinstance(values, list) else ():
        if isinstance(value, dict):
            yield value

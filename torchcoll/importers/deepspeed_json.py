"""Reads DeepSpeed's comms logger as JSON: either of its two dictionaries, as a script saves them.

``json.dump(deepspeed.comm.log_summary(return_dict=True), file)``: summary, straggler_analysis,
metadata; or ``comms_logger.get_raw_data()``: operation -> bytes -> [calls, [ms, ...], [..], [..]]
(deepspeed/utils/comms_logging.py, since its pull request 7404 of July 2025). Both have one rank.
The bandwidths are not read: algbw of all_reduce is 2 S / t in Gbit/s, and those of reduce_scatter
were n times too high in older versions. deepspeed.py documents the sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.result import CaseResult, Reported
from torchcoll.core.summary import median
from torchcoll.importers.base import Imported, ImportOptions, Line, make_run, number, whole
from torchcoll.importers.deepspeed import STRAGGLER, TRIMMED, make_case
from torchcoll.importers.large_json import decode, document

NAME = "deepspeed-json"
LONG_LINES = True
_RAW = re.compile(r'\{\s*"[^"]+"\s*:\s*\{\s*"\d+"\s*:\s*\[\s*\d+\s*,\s*\[')
WORLD = "the ranks are all of the job ({n}): the logger does not tell the group of a call"


def sniff(head: Sequence[str]) -> bool:
    text = "".join(head).lstrip()
    return bool(_RAW.match(text)) or (text[:1] == "{" and '"avg_latency_ms"' in text)


def read(lines: Iterable[Line], options: ImportOptions) -> Imported:
    imported = Imported()
    data, cut = decode(document(lines))
    if cut:
        imported.warn("the file is cut off: what is whole was read")
    if not isinstance(data, Mapping):
        imported.refuse(0, "no JSON object")
        return imported
    summary, metadata = data.get("summary"), _mapping(data.get("metadata"))
    world = whole(metadata.get("world_size")) or 0
    ranks = options.ranks or (world if world <= MOST_RANKS else 0)
    if ranks and not options.ranks:
        imported.warn(WORLD.format(n=ranks))
    if data.get("straggler_analysis"):
        imported.warn(f"straggler_analysis was not read: {STRAGGLER}")
    over_ranks = "rank0" if metadata.get("rank") == 0 else "unknown"
    results: list[CaseResult] = []
    for operation, size, record in _records(data if summary is None else summary):
        reported = _summed(record, over_ranks) if summary is not None else _raw(record)
        size_bytes, label = whole(size), str(operation).split(" | [Caller Func")[0]
        if reported is None or not size_bytes:
            imported.refuse(0, f"{label} {size}: no size or no latency")
            continue
        result = make_case(label, size_bytes, reported, options, ranks)
        if isinstance(result, str):
            imported.refuse(0, result)
        else:
            results.append(result)
    imported.take(len(results))
    if results:
        source = {"tool": "DeepSpeed", "format": "comms logger, JSON"}
        imported.runs.append(make_run(results, options, source, ranks=ranks))
    return imported


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _records(operations: object) -> Iterator[tuple[str, str, object]]:
    """(operation, bytes, record) of each size of each operation."""
    for operation, sizes in _mapping(operations).items():
        for size, record in _mapping(sizes).items():
            yield operation, size, record


def _summed(record: object, over_ranks: str) -> Reported | None:
    fields = _mapping(record)
    latency_ms = number(fields.get("avg_latency_ms"))
    calls = whole(fields.get("count"))
    return Reported(latency_ms * 1e6, TRIMMED, over_ranks, calls=calls) if latency_ms else None


def _raw(record: object) -> Reported | None:
    """Median, min and max of all latencies of one rank. The file does not name the rank."""
    listed = record[1] if isinstance(record, list) and len(record) > 1 else None
    times = [number(ms) for ms in listed] if isinstance(listed, list) else []
    durations = [ms * 1e6 for ms in times if ms]
    if not durations or len(durations) < len(times):
        return None
    low, high = min(durations), max(durations)
    return Reported(median(durations), "median", calls=len(durations), min_ns=low, max_ns=high)

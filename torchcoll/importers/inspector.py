"""Reads NCCL Inspector: one JSON object for each collective that a rank ran.

Up to format v4.2 each record has a header and metadata (ext-profiler/inspector/inspector.cc). From
v4.3 on only the dump_stats record has them, before the records of one communicator
(plugins/profiler/inspector/inspector_json.cc). The records of one call are matched across ranks by
communicator and sequence number. A case has all calls of one collective and size, with a sample for
each rank and call. The size of AllGather and ReduceScatter is one rank's (inspectorComputeCollBw).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchcoll.core.bounds import MOST_RECORDS
from torchcoll.core.collectives import busbw_gbps
from torchcoll.core.result import CaseResult, Reported
from torchcoll.core.units import format_ranges
from torchcoll.importers.base import (
    Imported,
    ImportOptions,
    Line,
    collective_named,
    contradiction,
    make_result,
    make_run,
    number,
    parse_ranks,
    whole,
)

NAME = "nccl-inspector"
LONG_LINES = True
_PER_RANK = ("all_gather", "reduce_scatter")
_GPU_CLOCK = "kernel_gpu"  # kernel_cpu and collective_cpu are times of the host's clock
_BATCH = ("coll_records", "p2p_records", "proxy_records")
_NOT_COLLECTIVE = {"p2p_perf": "point-to-point: no collective", "proxy_trace": "network: no call"}
LOST = (
    "{n} collectives were overwritten before Inspector wrote them: those here are not all "
    "(NCCL_INSPECTOR_DUMP_COLL_RING_SIZE)"
)
FEW = (
    "records of rank {ranks} of {all} only: Inspector writes one file a process, and a call takes "
    "as long as its slowest rank. Read them together: cat DIR/*.log | torchcoll import -"
)


@dataclass
class _Calls:
    """The calls of one case.

    times: sequence number -> rank -> ns.
    choices: algorithm and protocol of the calls.
    printed_gbps, expected_gbps: sums of busbw over the ``with_busbw`` records that have one: as the
        record has it, and as it follows from the record's time.
    """

    times: dict[int, dict[int, int]] = field(default_factory=dict)
    choices: dict[str, None] = field(default_factory=dict)
    printed_gbps: float = 0.0
    expected_gbps: float = 0.0
    with_busbw: int = 0
    clocks: set[str] = field(default_factory=set)


# communicator, collective, bytes, ranks
_Cases = dict[tuple[str, str, int, int], _Calls]
_Hosts = dict[tuple[str, int], dict[int, str]]  # communicator, ranks -> rank -> host


def sniff(head: Sequence[str]) -> bool:
    return any(
        "coll_exec_time_us" in text or "inspector_output_format_version" in text for text in head
    )


def read(lines: Iterable[Line], options: ImportOptions) -> Imported:
    imported = Imported()
    cases: _Cases = {}
    hosts: _Hosts = {}
    marker: dict[str, Any] = {}
    left = lost = 0  # left: how many further records the marker belongs to
    for line, text in lines:
        text = text.strip().rstrip(",")
        if not text or text in "[]":
            continue
        for record in _objects(text, line, imported):
            stats = record.get("dump_stats")
            if isinstance(stats, Mapping):
                marker, left = _flat(record), 1 + sum(whole(stats.get(k)) or 0 for k in _BATCH)
                lost += whole(stats.get("coll_dropped_since_last_dump")) or 0
                continue
            why = _take(record, marker if left else {}, cases, hosts, options)
            if why:
                imported.refuse(line, why)
            else:
                imported.take(most=MOST_RECORDS)
        left = max(0, left - 1)
    if lost:
        imported.warn(LOST.format(n=lost))
    by_ranks: dict[int, list[CaseResult]] = {}
    for (_, name, size_bytes, ranks), calls in cases.items():
        by_ranks.setdefault(ranks, []).append(_result(name, size_bytes, ranks, calls, options))
        ranks_seen = {rank for call in calls.times.values() for rank in call}
        if len(ranks_seen) < ranks:
            imported.warn(FEW.format(ranks=format_ranges(sorted(ranks_seen)), all=ranks))
    for ranks, results in by_ranks.items():
        groups = [host_of_rank for (_, n), host_of_rank in hosts.items() if n == ranks]
        complete = len(groups) == 1 and _is_all(groups[0], ranks)
        members = [{"rank": r, "host": groups[0][r]} for r in range(ranks)] if complete else []
        source = {"tool": "NCCL Inspector", "format": "JSON"}
        imported.runs.append(make_run(results, options, source, ranks=ranks, members=members))
    return imported


def _objects(text: str, line: int, imported: Imported) -> Iterable[Mapping[str, Any]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        imported.refuse(line, "half a row: no whole JSON object")
        return
    for record in data if isinstance(data, list) else [data]:
        if isinstance(record, Mapping):
            yield record
        else:
            imported.refuse(line, "no JSON object")


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of a record without nesting, as Inspector's exporter also writes them."""
    flat: dict[str, Any] = {}
    for key in ("header", "metadata", "coll_perf"):
        group = record.get(key)
        flat.update(group if isinstance(group, Mapping) else {})
    flat.update({k: v for k, v in record.items() if not isinstance(v, Mapping)})
    return flat


def _take(
    record: Mapping[str, Any],
    marker: Mapping[str, Any],
    cases: _Cases,
    hosts: _Hosts,
    options: ImportOptions,
) -> str:
    """Add one record to ``cases``. Returns '', or why it cannot be added.

    marker: the fields of the last dump_stats.
    """
    flat = _flat(record)
    if "coll" not in flat:
        return next((why for key, why in _NOT_COLLECTIVE.items() if key in record), "no collective")
    if "n_ranks" not in flat:
        if not marker:
            return "no header: the dump_stats record before it is missing"
        flat = {**marker, **flat}
    name = collective_named(str(flat["coll"])) or options.collective  # every record names its own
    ranks = options.ranks or parse_ranks(flat.get("n_ranks"))
    rank, number_ = whole(flat.get("rank")), whole(flat.get("coll_sn"))
    size_bytes, time = whole(flat.get("coll_msg_size_bytes")), number(flat.get("coll_exec_time_us"))
    if name is None:
        return f"{flat['coll']} is no collective that torchcoll has"
    if not ranks or rank is None or number_ is None or size_bytes is None or not time:
        return "no ranks, rank, sequence number, size or time"
    if not size_bytes:
        return "0 bytes: nothing was sent"
    total = size_bytes * ranks if name in _PER_RANK else size_bytes
    case = (str(flat.get("id")), name, total, ranks)
    calls = cases.setdefault(case, _Calls())
    calls.times.setdefault(number_, {})[rank] = round(time * 1000)
    calls.clocks.add(str(flat.get("coll_timing_source") or "unknown"))
    expected, printed = busbw_gbps(name, total, ranks, time * 1000), flat.get("coll_busbw_gbs")
    if expected and (busbw := number(printed)):
        calls.printed_gbps += busbw
        calls.expected_gbps += expected
        calls.with_busbw += 1
    if choice := " ".join(str(flat[k]) for k in ("coll_algo", "coll_proto") if flat.get(k)):
        calls.choices[choice] = None
    hosts.setdefault((case[0], ranks), {})[rank] = str(flat.get("hostname") or "?")
    return ""


def _is_all(by_rank: Mapping[int, object], ranks: int) -> bool:
    """Whether the keys are the ranks 0 to ``ranks`` - 1. A file may claim any number of ranks."""
    return len(by_rank) == ranks and max(by_rank) < ranks


def _result(
    name: str, size_bytes: int, ranks: int, calls: _Calls, options: ImportOptions
) -> CaseResult:
    times = calls.times
    whole_calls = [call for _, call in sorted(times.items()) if _is_all(call, ranks)]
    clock = "device" if calls.clocks == {_GPU_CLOCK} else "host"
    all_times = [ns for call in times.values() for ns in call.values()]
    ranks_seen = {rank for call in times.values() for rank in call}
    over_ranks = "mean" if len(ranks_seen) == ranks else "rank0" if ranks_seen == {0} else "unknown"
    reported = Reported(sum(all_times) / len(all_times), "mean", over_ranks, clock, len(times))
    if name in _PER_RANK:
        reported = replace(reported, size_bytes=size_bytes // ranks, size_basis="per rank")
    remarks = []
    if not whole_calls:
        remarks.append("no call has the records of all ranks: their mean")
    elif len(whole_calls) < len(times):
        missing = len(times) - len(whole_calls)
        remarks.append(f"{missing} of {len(times)} calls lack the record of some rank: left out")
    if len(calls.choices) > 1:
        remarks.append(f"several algorithms together: {', '.join(calls.choices)}")
    if len(calls.clocks) > 1:
        remarks.append(f"several clocks together: {', '.join(sorted(calls.clocks))}")
    if "unknown" in calls.clocks:
        remarks.append("the clock is not known: read as the host's")
    if calls.with_busbw:
        means = calls.printed_gbps / calls.with_busbw, calls.expected_gbps / calls.with_busbw
        remarks += filter(None, [contradiction("busbw", *means, "size, time and ranks", 0.0)])
    result = make_result(
        name,
        size_bytes,
        reported,
        ranks=ranks,
        dtype=options.dtype,
        backend=options.backend or "nccl",
        device="cuda",
        warnings=remarks,
    )
    if whole_calls:
        result.time_ns = {clock: [[call[rank] for call in whole_calls] for rank in range(ranks)]}
        result.members = list(range(ranks))
    return result

"""NCCL Inspector: one JSON object for each collective that a rank ran.

Both layouts: the nested one (header, metadata, coll_perf) and the flat one. Ranks of one collective
are joined by communicator and sequence number; a case is all collectives of one kind and size, with
a sample for each rank and collective. Its size of AllGather and ReduceScatter is for one rank.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchcoll.core.result import CaseResult, Given
from torchcoll.importers.base import (
    Imported,
    Line,
    Options,
    collective_named,
    make_result,
    make_run,
    number,
    whole,
)

NAME = "nccl-inspector"
_PER_RANK = ("all_gather", "reduce_scatter")

# communicator, collective, bytes, ranks -> sequence number -> rank -> ns
_Times = dict[int, dict[int, int]]


def sniff(head: Sequence[str]) -> bool:
    return any("coll_exec_time_us" in text for text in head)


def read(lines: Iterable[Line], options: Options) -> Imported:
    found = Imported()
    cases: dict[tuple[str, str, int, int], _Times] = {}
    hosts: dict[int, str] = {}
    clocks: set[str] = set()
    for line, text in lines:
        text = text.strip().rstrip(",")
        if not text or text in "[]":
            continue
        for record in _objects(text, line, found):
            why = _take(record, cases, hosts, clocks, options)
            if why:
                found.refuse(line, why)
            else:
                found.rows += 1
    by_ranks: dict[int, list[CaseResult]] = {}
    for (_, name, nbytes, ranks), times in cases.items():
        by_ranks.setdefault(ranks, []).append(_result(name, nbytes, ranks, times, clocks, options))
    for ranks, results in by_ranks.items():
        known = len(hosts) == ranks and set(hosts) == set(range(ranks))
        members = [{"rank": r, "host": hosts[r]} for r in range(ranks)] if known else []
        source = {"tool": "NCCL Inspector", "format": "JSON"}
        found.runs.append(make_run(results, options, source, ranks=ranks, members=members))
    return found


def _objects(text: str, line: int, found: Imported) -> Iterable[Mapping[str, Any]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        found.refuse(line, "half a row: no whole JSON object")
        return
    for record in data if isinstance(data, list) else [data]:
        if isinstance(record, Mapping):
            yield record
        else:
            found.refuse(line, "no JSON object")


def _take(
    record: Mapping[str, Any],
    cases: dict[tuple[str, str, int, int], _Times],
    hosts: dict[int, str],
    clocks: set[str],
    options: Options,
) -> str:
    """Puts one record in its place; else why it has none."""
    flat: dict[str, Any] = {}
    for key in ("header", "metadata", "coll_perf"):
        part = record.get(key)
        flat.update(part if isinstance(part, Mapping) else {})
    flat.update({k: v for k, v in record.items() if not isinstance(v, Mapping)})
    if "coll" not in flat:
        return (
            "point-to-point: no collective" if any("p2p" in k for k in record) else "no collective"
        )
    name = options.collective or collective_named(str(flat["coll"]))
    ranks = options.ranks or whole(flat.get("n_ranks"))
    rank, number_ = whole(flat.get("rank")), whole(flat.get("coll_sn"))
    nbytes, time = whole(flat.get("coll_msg_size_bytes")), number(flat.get("coll_exec_time_us"))
    if name is None:
        return f"{flat['coll']} is no collective that torchcoll has"
    if not ranks or rank is None or number_ is None or nbytes is None or not time:
        return "no ranks, rank, sequence number, size or time"
    if not nbytes:
        return "0 bytes: nothing was sent"
    total = nbytes * ranks if name in _PER_RANK else nbytes
    case = (str(flat.get("id")), name, total, ranks)
    cases.setdefault(case, {}).setdefault(number_, {})[rank] = round(time * 1000)
    hosts.setdefault(rank, str(flat.get("hostname") or "?"))
    clocks.add(str(flat.get("coll_timing_source") or ""))
    return ""


def _result(
    name: str, nbytes: int, ranks: int, times: _Times, clocks: set[str], options: Options
) -> CaseResult:
    whole_calls = [call for _, call in sorted(times.items()) if set(call) == set(range(ranks))]
    clock = "device" if clocks and all("gpu" in c or "kernel" in c for c in clocks) else "host"
    every = [ns for call in times.values() for ns in call.values()]
    given = Given(sum(every) / len(every), "mean", "mean", "all records", len(times))
    if name in _PER_RANK:
        given = replace(given, nbytes=nbytes // ranks, size_basis="per rank")
    remarks = []
    if len(whole_calls) < len(times):
        missing = len(times) - len(whole_calls)
        remarks.append(f"{missing} of {len(times)} calls lack the record of some rank: left out")
    result = make_result(
        name,
        nbytes,
        given,
        ranks=ranks,
        dtype=options.dtype,
        backend=options.backend or "nccl",
        device="cuda",
        warnings=remarks if whole_calls else ["no call has the records of all ranks: their mean"],
    )
    if whole_calls:
        result.time_ns = {clock: [[call[rank] for call in whole_calls] for rank in range(ranks)]}
        result.members = list(range(ranks))
    return result

"""Reads PARAM's comms benchmark: rows ``COMMS-RES-<collective>-<type>``.

The time is the median over ranks of each rank's mean. Sizes are S of nccl-tests. Point-to-point
rows (ping latencies of two ranks) and quantised rows (which have several times) are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torchcoll.core.result import CaseResult, Reported
from torchcoll.reading import base

NAME = "param"
_ROW = re.compile(
    r"\s*COMMS-RES-(?P<quant>QUANT-)?(?P<coll>[a-z0-9_]+)-(?P<dtype>[a-z0-9]+)(?P<tag>\S*)\s+"
    r"(?P<figures>.*\S)"
)
STARTS = re.compile(r"COMMS-RES")
_WORLD = re.compile(r"'world_size': (\d+)|groupSize (\d+)")
_BACKEND = re.compile(r"\bbackend: (\w+)")
_DEVICE = re.compile(r"host \S+, device: (\w+)")
_FIGURES = 10


def sniff(head: Sequence[str]) -> bool:
    return any("COMMS-RES" in text or "PARAM COMM environment" in text for text in head)


def read(lines: Iterable[base.Line], options: base.ImportOptions) -> base.Imported:
    imported = base.Imported()
    listed, ranks = None, options.ranks or 0
    backend, device = options.backend or "unknown", "unknown"
    pairs = False
    results: list[CaseResult] = []
    for line, text in lines:
        if "COMMS-RES" not in text:
            if match := _WORLD.search(text):
                # A group that is smaller than the world is printed after it; the group ran.
                listed = base.parse_ranks(match[1] or match[2])
            if not options.backend and (match := _BACKEND.search(text)):
                backend = match[1]
            if match := _DEVICE.search(text):
                device = match[1]
            continue
        match = _ROW.match(text)
        if match is None:
            if "COMMS-RES-" in text:
                imported.refuse(line, "half a row")
            else:
                pairs = "pingLatency" in text
            continue
        if pairs:
            imported.refuse(line, "point-to-point latency of two ranks: no collective")
            continue
        if match["quant"]:
            imported.refuse(
                line, "quantised: the times of quantising and of the collective are apart"
            )
            continue
        ranks = imported.choose("ranks", options.ranks, listed) or 0
        result = _result(match, options, ranks, backend, device, imported)
        if isinstance(result, str):
            imported.refuse(line, result)
        else:
            imported.take()
            results.append(result)
    if results:
        source = {"tool": "PARAM", "format": "text"}
        imported.runs.append(base.make_run(results, options, source, ranks=ranks))
    return imported


def _result(
    match: re.Match[str],
    options: base.ImportOptions,
    ranks: int,
    backend: str,
    device: str,
    imported: base.Imported,
) -> CaseResult | str:
    fields = match["figures"].split()
    recorded = base.collective_named(match["coll"].removesuffix("_base"))
    name = imported.choose("collective", options.collective, recorded)
    if name is None:
        return f"{match['coll']} is no collective that torchcoll has"
    if len(fields) != _FIGURES:
        return f"half a row: {len(fields)} figures of {_FIGURES}"
    figures = [base.number(field) for field in fields]
    size_bytes, count = base.whole(fields[0]), base.whole(fields[1])
    time = figures[2]
    if size_bytes is None:
        return f"the size is {fields[0]}"
    if not time:
        return f"the median time is {fields[2]}"
    if not size_bytes:
        return "0 bytes: nothing was sent"
    reported = Reported(
        time * 1e3,
        statistic="mean",
        over_ranks="median",
        clock="host",
        min_ns=base.ns_of_us(fields[5]),
        max_ns=base.ns_of_us(fields[6]),
        algbw_gbps=figures[7],
        busbw_gbps=figures[8],
    )
    return base.make_result(
        name,
        size_bytes,
        reported,
        ranks=ranks,
        dtype=imported.choose("dtype", options.dtype, base.dtype_named(match["dtype"])),
        backend=backend,
        device=device,
        count=count,
        warnings=[f"tag {match['tag']}"] if match["tag"] else [],
    )

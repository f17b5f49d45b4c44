"""``trace --step`` beside HolisticTraceAnalysis, and clocks aligned by calls beside the true ones.

python tests/benchmarks/steps.py hta TRACE IDLE COMPUTE OVERLAP WINDOW_US
    ours over the window that HolisticTraceAnalysis looked at (its get_temporal_breakdown and
    get_comm_comp_overlap; it leaves the last step out and copies out of the computation)
python tests/benchmarks/steps.py clocks FOLDER
    traces of ranks of one host, whose stamps are of one clock: what the calls alone tell
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from torchcoll.core.intervals import Span, Union, merged, uncovered
from torchcoll.importers import traces
from torchcoll.training.clocks import measure_offsets
from torchcoll.training.joined import join_ranks


def spans(path: str, copies: bool) -> tuple[list[Span], list[Span]]:
    """(communication, computation) of a trace of one rank; copies: with memory operations."""
    true = traces.make_event

    def chosen(one: object) -> object:
        memory = isinstance(one, dict) and str(one.get("cat")) in ("gpu_memcpy", "gpu_memset")
        return None if memory and not copies else true(one)

    traces.make_event = chosen  # type: ignore[assignment]
    traffic = traces.read_traffic([path])
    traces.make_event = true
    ((rank, calls),) = traffic.calls.items()
    sent = [call.span for call in calls if call.span]
    return merged([*sent, *traffic.apart.get(rank, [])]), traffic.computing[rank]


def total(spans_: Iterable[Span]) -> int:
    return Union(spans_).total


def hta(path: str, idle: str, compute: str, overlap: str, window_us: str) -> None:
    sent, busy = spans(path, copies=True)
    until = min(start for start, _ in [*sent, *busy]) + round(float(window_us) * 1000)

    def cut(own: Iterable[Span]) -> list[Span]:
        return merged((start, min(end, until)) for start, end in own if start < until)

    window = float(window_us) * 1000
    ours_idle = 1 - total([*cut(sent), *cut(busy)]) / window
    sent, busy = map(cut, spans(path, copies=False))
    alone = sum(end - start for start, end in uncovered(sent, busy))
    ours = (ours_idle, total(busy) / window, 1 - alone / total(sent))
    print(Path(path).name)
    for name, mine, theirs in zip(
        ("idle", "computing", "overlap"), ours, (idle, compute, overlap), strict=True
    ):
        print(f"  {name:10} {100 * mine:6.2f} %   HTA {theirs} %")


def clocks(folder: str) -> None:
    traffic = traces.read_traffic([folder])
    zeros: dict[int, int] = {}
    for file in sorted(Path(folder).iterdir()):
        whole = file.read_bytes()
        data = json.loads(gzip.decompress(whole) if file.suffix == ".gz" else whole)
        events = [one for one in map(traces.make_event, data["traceEvents"]) if one]
        base = int(data.get("baseTimeNanoseconds") or 0)
        zeros[data["distributedInfo"]["rank"]] = base + min(one.start for one in events)
    joined, _ = join_ranks(traffic)
    found = measure_offsets(traffic, dict.fromkeys(c for own in joined.values() for c in own))
    print(f"{Path(folder).name}: {found.text or found.problem}")
    for rank, added in found.added_ns.items():
        off = added - (zeros[rank] - zeros[0])
        print(f"  rank {rank}: {off / 1e3:+9.1f} us off, bound {found.error_ns[rank] / 1e3:.1f} us")


if __name__ == "__main__":
    {"hta": hta, "clocks": clocks}[sys.argv[1]](*sys.argv[2:])

"""Reads traces of torch.profiler (Kineto), of one rank each.

A profile ends when the profiler stops, which need not be when the job did. So its calls are
numbered apart from those of other sources, and only compared with those of other profiles. A call
that the trace shows to the end has completed; of any other nothing is known, as a profiler records
a kernel after it has ended.
"""

from __future__ import annotations

import re
from pathlib import Path

from torchcoll.core.errors import UnreadableError
from torchcoll.core.units import format_bytes
from torchcoll.parts.postmortem.evidence import CallSeen, FileRead, GroupSeen, JobEvidence, Place
from torchcoll.reading.base import whole
from torchcoll.reading.kineto import is_trace, read_trace
from torchcoll.reading.traces import read_document

_WHAT = "Kineto trace"
_BEGIN = re.compile(rb'\A\s*\{[^\0]*?"(?:traceEvents|distributedInfo|deviceProperties)"\s*:')
_LARGEST = 256 << 20  # bytes: about 10 s to read
_LAST = 2000  # calls that are kept


def recognizes(path: Path, begin: bytes) -> bool:
    return bool(_BEGIN.match(begin))


def read_evidence(path: Path, shown: str) -> list[JobEvidence]:
    """The last calls of the trace.

    Raises UnreadableError for a trace that is damaged, too large, without a rank or without calls.
    """
    size_bytes = path.stat().st_size
    if size_bytes > _LARGEST:
        raise UnreadableError(
            _WHAT,
            f"{shown} of {format_bytes(size_bytes)}",
            f"at most {format_bytes(_LARGEST)}",
            "torchcoll trace reads it.",
        )
    problems: list[str] = []
    data = read_document(path, problems)
    if not is_trace(data):
        raise UnreadableError("file", shown, "a trace of torch.profiler")
    # The name is that in the folder: ``path`` may be an unpacked copy.
    traffic, _ = read_trace(data, Path(shown), without_sizes=True)
    evidence = JobEvidence(problems=[text.replace(str(path), shown) for text in problems])
    ranks = tuple(traffic.calls)
    evidence.files = [FileRead(shown, _WHAT, ranks, numbering="profile", has_open_calls=False)]
    evidence.groups = {
        name: GroupSeen(name, group.ranks, group.description)
        for name, group in traffic.groups.items()
    }
    info = data.get("distributedInfo")
    evidence.ranks = whole(info.get("world_size")) if isinstance(info, dict) else None
    for rank, calls in traffic.calls.items():
        if isinstance(host := data.get("host_name"), str):  # newer torch
            evidence.nodes[rank] = host
        for call in calls[-_LAST:]:
            has_time = rank in traffic.clocks and call.start_ns is not None
            start = traffic.clocks[rank][1] + (call.start_ns or 0) if has_time else None
            evidence.calls.append(
                CallSeen(
                    rank,
                    call.group,
                    call.sequence + 1,
                    call.collective,
                    Place(shown),
                    dtype=call.dtype,
                    state="scheduled" if call.time_ns is None else "completed",
                    reliable_state=call.time_ns is not None,
                    peer=call.peer,
                    created_ns=start,
                    duration_ns=call.time_ns,
                )
            )
    times = [call.created_ns for call in evidence.calls if call.created_ns is not None]
    evidence.first_ns, evidence.last_ns = min(times, default=None), max(times, default=None)
    return [evidence]

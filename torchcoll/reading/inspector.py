"""NCCL Inspector: one JSON object for each collective that a rank ran, in a file per process.

The ranks of a job do not begin a call together, and each rank's time includes its waiting for the
others. So a call takes as long as it does on the rank that arrived last, whose time is the
shortest, and its bandwidth is computed from that. This needs the records of all ranks of the
communicator. What the records say of jobs is in inspector_records.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from torchcoll.core.collectives import COLLECTIVES, busbw_gbps
from torchcoll.core.result import LAST_TO_ARRIVE, CaseResult, Reported, Run
from torchcoll.core.units import format_ranges
from torchcoll.reading import base
from torchcoll.reading.inspector_records import (
    ALL_FILES,
    ENQUEUED,
    GPU_CLOCK,
    LOST,
    PER_RANK,
    Job,
    JobCommunicator,
    Log,
    Record,
    add_records,
    find_jobs,
    is_json,
    is_last_call,
)

NAME = "nccl-inspector"
LONG_LINES = True
_MESSAGES = "{n} messages between two ranks are no collectives: torchcoll trace reads them"
_FEW = (
    "communicator {name}: records of rank {ranks} of {all} only: another may have arrived "
    "last: no bandwidth is known. " + ALL_FILES
)
_SOME = "a rank that is there may have waited for another: no bandwidth"
_ROOTED = (
    "rooted: ranks leave at different times, so the shortest need not be the last: no bandwidth"
)
_MIXED = "{n} of {all} calls have several clocks ({clocks}), which cannot be compared: left out"


def sniff(head: Sequence[str]) -> bool:
    return any(is_json(text) or is_last_call(text) for text in head)


def read(lines: Iterable[base.Line], options: base.ImportOptions) -> base.Imported:
    return read_together([lines], options)


def read_together(
    files: Iterable[Iterable[base.Line]], options: base.ImportOptions
) -> base.Imported:
    """The runs in several files: one for each job."""
    imported, log = base.Imported(), Log()
    for lines in files:
        add_records(log, lines, options, imported)
    if log.lost:
        imported.warn(LOST.format(n=log.lost))
    jobs = find_jobs(log, imported)
    for number, job in enumerate(jobs, 1):
        _warn(job, imported)
        results = [r for c in job.communicators for r in _results(c, job, options)]
        named = options
        if len(jobs) > 1:
            which = f"{options.file} (job {number} of {len(jobs)}, {job.name})"
            named = replace(options, file=which)
        if results:
            imported.runs.append(_run(job, results, named))
    return imported


def _warn(job: Job, imported: base.Imported) -> None:
    if job.numbering:
        imported.warn(job.numbering)
    messages = sum(len(communicator.messages) for communicator in job.communicators)
    if messages:
        imported.warn(_MESSAGES.format(n=messages))
    for communicator in job.communicators:
        if communicator.calls and len(communicator.processes) < communicator.ranks:
            imported.warn(
                _FEW.format(
                    name=communicator.identity,
                    ranks=format_ranges(sorted(communicator.processes)),
                    all=communicator.ranks,
                )
            )


def _run(job: Job, results: Sequence[CaseResult], options: base.ImportOptions) -> Run:
    hosts = {
        member: communicator.hosts[rank]
        for communicator in job.communicators
        for rank, member in communicator.members.items()
    }
    complete = len(hosts) == job.ranks
    members = [{"rank": rank, "host": hosts[rank]} for rank in range(job.ranks)] if complete else []
    source = {"tool": "NCCL Inspector", "format": "JSON", "job": job.name}
    start = None
    if job.first_us and job.first_us < 1 << 52:
        start = datetime.fromtimestamp(job.first_us / 1e6, timezone.utc).isoformat()
    return base.make_run(
        results, options, source, ranks=job.ranks, members=members, start_utc=start
    )


def _results(
    communicator: JobCommunicator, job: Job, options: base.ImportOptions
) -> Iterable[CaseResult]:
    """A result for each collective and size of a communicator."""
    calls_by_case: dict[tuple[str, int], list[dict[int, Record]]] = defaultdict(list)
    for (name, _), by_rank in sorted(communicator.calls.items()):
        sizes = Counter(record.total_bytes for record in by_rank.values())
        for size_bytes in sizes:  # more than one only where the ranks do not count alike
            alike = {r: record for r, record in by_rank.items() if record.total_bytes == size_bytes}
            calls_by_case[name, size_bytes].append(alike)
    group = None
    if len(job.communicators) > 1:
        group = communicator.label or communicator.identity
        same = [c for c in job.communicators if (c.label or c.identity) == group]
        if len(same) > 1:
            group = f"{group}/{same.index(communicator)}"
    for (name, size_bytes), calls in calls_by_case.items():
        yield _result(name, size_bytes, communicator, calls, group, options)


def _result(
    name: str,
    size_bytes: int,
    communicator: JobCommunicator,
    calls: Sequence[Mapping[int, Record]],
    group: str | None,
    options: base.ImportOptions,
) -> CaseResult:
    ranks = communicator.ranks
    records = [record for call in calls for record in call.values()]
    whole_calls = [call for call in calls if len(call) == ranks]
    timed = [call for call in whole_calls if len({r.timing for r in call.values()}) == 1]
    clocks = {r.timing for call in timed or calls for r in call.values()}
    clock = "device" if clocks == {GPU_CLOCK} else "host"
    seen = {rank for call in calls for rank in call}
    over_ranks = "mean" if len(seen) == ranks else "rank0" if seen == {0} else "unknown"
    # Without bandwidths, which no mean of waiting ranks can give.
    reported = Reported(
        sum(record.time_ns for record in records) / len(records),
        "mean",
        over_ranks,
        clock,
        len(calls),
        contradictory=True,
    )
    if name in PER_RANK:
        reported = replace(reported, size_bytes=size_bytes // ranks, size_basis="per rank")
    remarks = []
    rooted = COLLECTIVES[name].has_root
    if rooted:
        remarks.append(_ROOTED)
    elif not whole_calls:
        remarks.append(f"no call has the records of all {ranks} ranks: {_SOME}")
    elif len(whole_calls) < len(calls):
        missing = len(calls) - len(whole_calls)
        remarks.append(f"{missing} of {len(calls)} calls lack the record of some rank: left out")
    if len(timed) < len(whole_calls):
        names = ", ".join(sorted({r.timing for call in whole_calls for r in call.values()}))
        mixed = len(whole_calls) - len(timed)
        remarks.append(_MIXED.format(n=mixed, all=len(calls), clocks=names))
    choices = list(dict.fromkeys(record.choice for record in records if record.choice))
    if len(choices) > 1:
        remarks.append(f"several algorithms together: {', '.join(choices)}")
    if len(clocks) > 1:
        remarks.append(f"several clocks together: {', '.join(sorted(clocks))}")
    if ENQUEUED in clocks:
        remarks.append(f"{ENQUEUED}: waiting in the stream is in the time, busbw is a lower bound")
    if "unknown" in clocks:
        remarks.append("the clock is not known: read as the host's")
    pairs = [
        (record.printed_gbps, gbps)
        for record in records
        if record.printed_gbps and (gbps := busbw_gbps(name, size_bytes, ranks, record.time_ns))
    ]
    if pairs:
        printed, expected = (sum(figures) / len(pairs) for figures in zip(*pairs, strict=True))
        text = base.contradiction("busbw", printed, expected, "size, time and ranks", 0.0)
        remarks += [text] if text else []
    result = base.make_result(
        name,
        size_bytes,
        reported,
        ranks=ranks,
        dtype=options.dtype,
        backend=options.backend or "nccl",
        device="cuda",
        warnings=remarks,
        group=group,
    )
    if timed and not rooted:
        result.reported = replace(reported, over_ranks=LAST_TO_ARRIVE, contradictory=False)
        result.time_ns = {clock: [[call[rank].time_ns for call in timed] for rank in range(ranks)]}
        result.members = [communicator.members[rank] for rank in range(ranks)]
    return result

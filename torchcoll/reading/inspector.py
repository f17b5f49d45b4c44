"""NCCL Inspector: one JSON object for each collective that a rank ran, in a file per process.

The ranks do not begin a call together, and each rank's time includes its waiting. So a call takes
as long as on the rank that arrived last, whose time is the shortest; this needs the records of all
ranks. For ``torchcoll trace`` the calls of a job become Traffic.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from torchcoll.core.collectives import COLLECTIVES, Layout
from torchcoll.core.errors import UnreadableError
from torchcoll.core.opening import common_folder
from torchcoll.core.result import LAST_TO_ARRIVE, CaseResult, Reported, Run
from torchcoll.core.traffic import POINT_TO_POINT, Group, Traffic, TrafficCall
from torchcoll.core.units import counted, format_ranges
from torchcoll.reading import base
from torchcoll.reading.inspector_records import (
    ALL_FILES,
    ENQUEUED,
    GPU_CLOCK,
    KERNEL_CLOCKS,
    LOST,
    PER_RANK,
    CallKey,
    Job,
    JobCommunicator,
    Log,
    Record,
    add_records,
    find_jobs,
    is_json,
)
from torchcoll.reading.source import Source

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
    return any(map(is_json, head))


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
    if len(clocks) > 1:
        remarks.append(f"several clocks together: {', '.join(sorted(clocks))}")
    if ENQUEUED in clocks:
        remarks.append(f"{ENQUEUED}: waiting in the stream is in the time, busbw is a lower bound")
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


# The calls of each rank as Traffic, joined by communicator.

SOURCE = "nccl inspector"


def is_inspector(begin: bytes) -> bool:
    """Whether a file that begins so has calls of NCCL Inspector."""
    return sniff(begin.decode("utf-8", "replace").splitlines())


def read_inspector(paths: Sequence[Path]) -> list[Traffic]:
    """The traffic of each job in the files, the oldest first.

    Raises UnreadableError if they have no call.
    """
    imported, log = base.Imported(), Log()
    for lines in _lines(paths):
        add_records(log, lines, base.ImportOptions(), imported)
    jobs = find_jobs(log, imported)
    if not jobs:
        refused = next((reason for _, reason in imported.refusals()), "no call")
        raise UnreadableError("NCCL Inspector", f"{paths[0]}: {refused}", "calls of collectives")
    notes = list(imported.warnings)
    if log.lost:
        notes.append(LOST.format(n=log.lost))
    if imported.refused:
        notes.append(f"{counted(len(imported.refused), 'line')} of Inspector's were not read")
    folder = paths[0] if len(paths) == 1 else Path(common_folder(paths))
    return [_traffic(job, notes, folder) for job in jobs]


def _lines(paths: Iterable[Path]) -> Iterator[Iterable[base.Line]]:
    for path in paths:
        yield Source(str(path)).lines()


def _traffic(job: Job, notes: Sequence[str], path: Path) -> Traffic:
    traffic = Traffic(SOURCE, job.ranks, notes=[*notes], path=path)
    if job.numbering:
        traffic.notes.append(job.numbering)
    hosts: dict[int, str] = {}
    calls: dict[int, list[tuple[int, int, TrafficCall]]] = {}
    started: dict[str, int] = {}  # host -> the first stamp of its ranks: the 0 of its clock
    for communicator in job.communicators:
        for record in _records(communicator):
            if record.started_us:
                first = started.setdefault(record.host, record.started_us)
                started[record.host] = min(first, record.started_us)
    for communicator in job.communicators:
        seen = communicator.members
        complete = len(seen) == communicator.ranks
        if not complete:
            traffic.notes.append(
                f"communicator {communicator.identity}: records of rank {format_ranges(seen)} of "
                f"{communicator.ranks} only: who came last is not known. {ALL_FILES}"
            )
        members = [seen[rank] for rank in range(communicator.ranks)] if complete else []
        name = traffic.add_group(
            Group(communicator.identity, tuple(members), "nccl", communicator.label)
        )
        hosts |= {m: communicator.hosts[rank] for rank, m in communicator.members.items()}
        numbers = _numbers(communicator)
        for record in _records(communicator):
            rank = communicator.members[record.rank]
            sequence = numbers.get((record.name, record.number), record.number)
            zero = started.get(record.host)
            call = _call(record, communicator, name, sequence, zero)
            stamp = record.started_us or record.dumped_us or 0
            of_rank = calls.setdefault(rank, [])
            of_rank.append((stamp, len(of_rank), call))
    traffic.calls = {
        rank: [call for *_, call in sorted(each, key=lambda item: item[:2])]
        for rank, each in sorted(calls.items())
    }
    traffic.clocks = {
        rank: (host, 1000 * started[host]) for rank, host in hosts.items() if host in started
    }
    traffic.environment = {"hosts": {str(rank): hosts[rank] for rank in sorted(hosts)}}
    if job.first_us:
        traffic.environment["written"] = job.name
    return traffic


def _records(communicator: JobCommunicator) -> Iterator[Record]:
    for by_rank in communicator.calls.values():
        yield from by_rank.values()
    yield from communicator.messages


def _numbers(communicator: JobCommunicator) -> dict[CallKey, int]:
    """Each call of a communicator -> its number among those of all collectives."""

    def order(key: CallKey) -> int:
        record = communicator.calls[key][min(communicator.calls[key])]
        return record.started_us or record.dumped_us or 0

    return {key: number for number, key in enumerate(sorted(communicator.calls, key=order))}


def _call(
    record: Record, communicator: JobCommunicator, group: str, sequence: int, zero: int | None
) -> TrafficCall:
    """zero: the first stamp of the host, in us; None where there is no stamp."""
    bytes_in = bytes_out = record.size_bytes
    peer = None
    if record.name in POINT_TO_POINT:
        bytes_in = record.size_bytes if record.name == "send" else 0
        bytes_out = record.size_bytes - bytes_in
        peer = communicator.members.get(-1 if record.peer is None else record.peer)
    elif not (entry := COLLECTIVES[record.name]).has_splits and not entry.has_root:
        count = record.total_bytes // entry.parts(record.ranks)
        bytes_in, bytes_out = entry.elements(Layout(record.rank, record.ranks, count, 0))

    def since_zero_ns(us: int | None) -> int | None:
        return None if zero is None or not us else 1000 * (us - zero)

    return TrafficCall(
        record.name,
        bytes_in,
        bytes_out,
        group=group,
        sequence=sequence,
        start_ns=since_zero_ns(record.started_us),
        time_ns=record.time_ns,
        clock="device" if record.timing in KERNEL_CLOCKS else "host",
        algorithm=record.choice.replace(" ", "/"),
        began_ns=since_zero_ns(record.kernel_us),
        logged_ns=1000 * record.dumped_us if record.dumped_us else None,
        peer=peer,
    )

"""Reads the files of NCCL Inspector as Traffic: the calls of each rank, joined by communicator.

Inspector writes one JSON object for each collective that a rank ran, in a file per process. Each
rank's time includes its waiting for the others: the last one to arrive has the shortest time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from torchcoll.core.collectives import COLLECTIVES, Layout
from torchcoll.core.errors import UnreadableError
from torchcoll.core.opening import common_folder
from torchcoll.core.traffic import POINT_TO_POINT, Group, Traffic, TrafficCall
from torchcoll.core.units import counted, format_ranges
from torchcoll.reading import base
from torchcoll.reading.inspector_records import (
    ALL_FILES,
    KERNEL_CLOCKS,
    LOST,
    CallKey,
    Job,
    JobCommunicator,
    Log,
    Record,
    add_records,
    find_jobs,
)
from torchcoll.reading.source import Source

SOURCE = "nccl inspector"


def is_inspector(begin: bytes) -> bool:
    """Whether a file that begins so has calls of NCCL Inspector."""
    return b"coll_exec_time_us" in begin or b"inspector_output_format_version" in begin


def read_inspector(paths: Sequence[Path]) -> list[Traffic]:
    """The traffic of each job in the files, the oldest first.

    Raises UnreadableError if they have no call.
    """
    imported, log = base.Imported(), Log()
    for lines in _lines(paths):
        add_records(log, lines, imported)
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

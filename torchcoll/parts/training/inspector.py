"""Reads the files of NCCL Inspector as Traffic: the calls of each rank, joined by communicator.

Inspector writes one JSON object for each collective that a rank ran, in a file per process. Each
rank's time includes its waiting for the others: the last one to arrive has the shortest time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from torchcoll.core.bounds import MOST_RECORDS
from torchcoll.core.collectives import COLLECTIVES, Layout
from torchcoll.core.errors import UnreadableError
from torchcoll.core.opening import common_folder
from torchcoll.core.traffic import POINT_TO_POINT, Group, Traffic, TrafficCall
from torchcoll.core.units import counted, format_ranges
from torchcoll.reading import base
from torchcoll.reading.source import Source

SOURCE = "nccl inspector"


def is_inspector(begin: bytes) -> bool:
    """Whether a file that begins so has calls of NCCL Inspector."""
    return b"coll_exec_time_us" in begin or b"inspector_output_format_version" in begin


def read_inspector(paths: Sequence[Path]) -> list[Traffic]:
    """The traffic of each job in the files, the oldest first. UnreadableError without any."""
    imported, log = base.Imported(), Log()
    for path in paths:
        add_records(log, Source(str(path)).lines(), imported)
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


def _traffic(job: Job, notes: Sequence[str], path: Path) -> Traffic:
    traffic = Traffic(SOURCE, job.ranks, notes=[*notes], path=path)
    if job.numbering:
        traffic.notes.append(job.numbering)
    hosts: dict[int, str] = {}
    calls: dict[int, list[TrafficCall]] = {}
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
            calls.setdefault(rank, []).append(_call(record, communicator, name, sequence))
    traffic.calls = {
        rank: sorted(of_rank, key=lambda call: call.logged_ns or 0)
        for rank, of_rank in sorted(calls.items())
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
        return record.dumped_us or 0

    return {key: number for number, key in enumerate(sorted(communicator.calls, key=order))}


def _call(record: Record, communicator: JobCommunicator, group: str, sequence: int) -> TrafficCall:
    bytes_in = bytes_out = record.size_bytes
    peer = None
    if record.name in POINT_TO_POINT:
        bytes_in = record.size_bytes if record.name == "send" else 0
        bytes_out = record.size_bytes - bytes_in
        peer = communicator.members.get(-1 if record.peer is None else record.peer)
    elif not (entry := COLLECTIVES[record.name]).has_splits and not entry.has_root:
        count = record.total_bytes // entry.parts(record.ranks)
        bytes_in, bytes_out = entry.elements(Layout(record.rank, record.ranks, count, 0))

    return TrafficCall(
        record.name,
        bytes_in,
        bytes_out,
        group=group,
        sequence=sequence,
        time_ns=record.time_ns,
        clock="device" if record.timing in KERNEL_CLOCKS else "host",
        algorithm=record.choice.replace(" ", "/"),
        logged_ns=1000 * record.dumped_us if record.dumped_us else None,
        peer=peer,
    )


PER_RANK = ("all_gather", "reduce_scatter")  # Inspector's size of these is that of one rank
KERNEL_CLOCKS = ("kernel_gpu", "kernel_cpu")  # of these the time is that of the kernel
_BATCH = ("coll_records", "p2p_records", "proxy_records")
LOST = (
    "{n} collectives were overwritten before Inspector wrote them: those here are not all "
    "(NCCL_INSPECTOR_DUMP_COLL_RING_SIZE)"
)
RESTARTED = (
    "{n} calls are recorded twice, with different times, as by a job that began again with the "
    "same NCCL_COMM_ID: only the later ones are read. Give every start a folder of its own"
)
# ensureDir() of inspector.cc, NCCL 2.28 to 2.30: mkdir() fails where another process was faster.
ALL_FILES = (
    "Inspector writes a file per process: read the whole folder. If some wrote none, make "
    "NCCL_INSPECTOR_DUMP_DIR before the job starts: processes that make it at the same time fail, "
    "and write nothing"
)


class Record(NamedTuple):
    """One call or message as one rank recorded it.

    rank, ranks: in the communicator, and its size. pid: None where not recorded. dumped_us: when
    it was written, since 1970. name: a collective of torchcoll, ``send`` or ``recv``. number: the
    count of NCCL. size_bytes: as Inspector prints it. choice: algorithm and protocol. peer: of a
    message, in the communicator.
    """

    communicator: str
    label: str
    rank: int
    ranks: int
    host: str
    pid: int | None
    dumped_us: int | None
    name: str
    number: int
    size_bytes: int
    time_ns: int
    timing: str
    choice: str
    peer: int | None = None

    @property
    def total_bytes(self) -> int:
        """The size S of nccl-tests."""
        return self.size_bytes * self.ranks if self.name in PER_RANK else self.size_bytes


Process = tuple[str, int, int]  # host, pid (-1: not recorded), index of its GPU
CallKey = tuple[str, int]  # collective, number


@dataclass
class JobCommunicator:
    """One communicator of a job.

    hosts, processes: by rank in it. members: rank in it -> rank of the job. calls: of its
    collectives -> rank in it -> record. messages: sends and receives.
    """

    identity: str
    ranks: int
    label: str = ""
    hosts: dict[int, str] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    members: dict[int, int] = field(default_factory=dict)
    calls: dict[CallKey, dict[int, Record]] = field(default_factory=dict)
    messages: list[Record] = field(default_factory=list)


@dataclass
class Job:
    """The communicators of one job, and its processes. ranks: size of the world, as far as seen.

    numbering: how the ranks of the job are numbered. first_us: of writing, since 1970.
    """

    communicators: list[JobCommunicator]
    ranks: int = 0
    numbering: str = ""
    first_us: int | None = None

    @property
    def name(self) -> str:
        """The largest communicator, and when it was first written of."""
        began = f" from {_clock(self.first_us)}" if self.first_us else ""
        return f"{self.communicators[0].identity} of {self.communicators[0].ranks} ranks{began}"


@dataclass
class Log:
    """The records of some files. lost: calls that Inspector says it did not write."""

    records: list[Record] = field(default_factory=list)
    lost: int = 0


def add_records(log: Log, lines: Iterable[base.Line], imported: base.Imported) -> None:
    """Add the records of one file. Lines that cannot be used are refused in ``imported``."""
    marker: dict[str, Any] = {}
    left = 0  # how many further records the marker belongs to
    for line, text in lines:
        text = text.strip().rstrip(",")
        if not text or text in "[]" or text.startswith("#"):
            continue
        for record in _objects(text, line, imported):
            stats = record.get("dump_stats")
            if isinstance(stats, Mapping):
                marker, left = _flat(record), 1 + sum(base.whole(stats.get(k)) or 0 for k in _BATCH)
                log.lost += base.whole(stats.get("coll_dropped_since_last_dump")) or 0
                continue
            if "proxy_trace" in record:
                imported.refuse(line, "network: no call")
                continue
            flat = _flat(record)
            if "n_ranks" not in flat and ("coll" in flat or "p2p" in flat):
                if not left:
                    imported.refuse(line, "no header: the dump_stats record before it is missing")
                    continue
                flat = {**marker, **flat}
            _add(log, flat, line, imported)
        left = max(0, left - 1)


def _objects(text: str, line: int, imported: base.Imported) -> Iterator[Mapping[str, Any]]:
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
    for key in ("header", "metadata", "coll_perf", "p2p_perf"):
        group = record.get(key)
        flat.update(group if isinstance(group, Mapping) else {})
    flat.update({k: v for k, v in record.items() if not isinstance(v, Mapping)})
    return flat


def _add(log: Log, flat: Mapping[str, Any], line: int, imported: base.Imported) -> None:
    """Add one record, or refuse it with the reason."""
    message = "p2p" in flat
    if not message and "coll" not in flat:
        imported.refuse(line, "no collective")
        return
    kind = "p2p" if message else "coll"
    ranks = base.parse_ranks(flat.get("n_ranks"))
    rank, count = base.whole(flat.get("rank")), base.whole(flat.get(f"{kind}_sn"))
    size_bytes = base.whole(flat.get(f"{kind}_msg_size_bytes"))
    time_us = base.number(flat.get(f"{kind}_exec_time_us"))
    source = str(flat.get(f"{kind}_timing_source") or "unknown")[:40]
    name = str(flat[kind]).lower() if message else base.collective_named(str(flat[kind]))
    why = ""
    if message and name not in POINT_TO_POINT:
        why = "point-to-point: neither Send nor Recv"
    elif name is None:
        why = f"{flat['coll']} is no collective that torchcoll has"
    elif not ranks or rank is None or count is None or size_bytes is None or time_us is None:
        why = "no ranks, rank, sequence number, size or time"
    elif time_us <= 0:
        why = f"its time is {time_us:g} us, by {source}"
    elif rank >= ranks:
        why = f"rank {rank} of {ranks}"
    elif not size_bytes:
        why = "0 bytes: nothing was sent"
    if why or not (name and ranks and time_us and size_bytes) or rank is None or count is None:
        imported.refuse(line, why)
        return
    label = flat.get("comm_name")
    record = Record(
        str(flat.get("id"))[:80],
        label[:80] if isinstance(label, str) and label != "unknown" else "",
        rank,
        ranks,
        str(flat.get("hostname") or "?")[:256],
        base.whole(flat.get("pid")),
        base.whole(flat.get("dump_timestamp_us")) or None,
        name,
        count,
        size_bytes,
        round(time_us * 1000),
        source,
        " ".join(str(flat[k])[:40] for k in ("coll_algo", "coll_proto") if flat.get(k)),
        base.whole(flat.get("p2p_peer")) if message else None,
    )
    log.records.append(record)
    imported.take(most=MOST_RECORDS)


def _clock(us: int) -> str:
    try:
        return datetime.fromtimestamp(us / 1e6, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{us} us"


def find_jobs(log: Log, imported: base.Imported) -> list[Job]:
    """The jobs of the records, the first to write first.

    Processes are of one job if a communicator connects them. Of a call that a rank recorded twice
    the last record counts.
    """
    records: dict[tuple[object, ...], Record] = {}
    ranks_of_process: dict[tuple[object, ...], set[int]] = defaultdict(set)
    repeated = replaced = 0
    for record in sorted(log.records, key=lambda record: record.dumped_us or 0):
        identity = (record.communicator, record.ranks)
        call = (identity, record.rank, record.name, record.number, record.peer)
        if before := records.get(call):
            same = before == record._replace(dumped_us=before.dumped_us)
            repeated, replaced = repeated + same, replaced + (not same)
        records[call] = record
        ranks_of_process[record.host, record.pid, identity].add(record.rank)
    if repeated:
        imported.warn(f"{repeated} records are there twice: each counts once")
    if replaced:
        imported.warn(RESTARTED.format(n=replaced))
    communicators: dict[tuple[str, int], JobCommunicator] = {}
    for record in records.values():
        identity = (record.communicator, record.ranks)
        local_ranks = sorted(ranks_of_process[record.host, record.pid, identity])
        pid = -1 if record.pid is None else record.pid
        communicator = communicators.setdefault(identity, JobCommunicator(*identity))
        communicator.label = communicator.label or record.label
        communicator.hosts[record.rank] = record.host
        place = local_ranks.index(record.rank)
        communicator.processes[record.rank] = (record.host, pid, place)
        if record.name in POINT_TO_POINT:
            communicator.messages.append(record)
        else:
            calls = communicator.calls.setdefault((record.name, record.number), {})
            calls[record.rank] = record
    jobs = [_job(each) for each in _connected(list(communicators.values()))]
    return sorted(jobs, key=lambda job: (job.first_us or 0, job.name))


def _connected(communicators: list[JobCommunicator]) -> list[list[JobCommunicator]]:
    """The communicators of each set of processes that they connect."""
    parent: dict[Process, Process] = {}

    def root(process: Process) -> Process:
        while parent.setdefault(process, process) != process:
            parent[process] = parent[parent[process]]
            process = parent[process]
        return process

    for communicator in communicators:
        first, *others = communicator.processes.values()
        for other in others:
            parent[root(other)] = root(first)
    sets: dict[Process, list[JobCommunicator]] = defaultdict(list)
    for communicator in communicators:
        sets[root(next(iter(communicator.processes.values())))].append(communicator)
    return list(sets.values())


def _job(communicators: list[JobCommunicator]) -> Job:
    """The job of these communicators. The largest one that has all processes is the world."""
    job = Job(sorted(communicators, key=lambda c: (-c.ranks, c.identity)))
    processes = {p for communicator in communicators for p in communicator.processes.values()}
    worlds = [c for c in job.communicators if set(c.processes.values()) == processes]
    if worlds:
        world = worlds[0]
        job.ranks = world.ranks
        rank_of = {process: rank for rank, process in world.processes.items()}
    else:
        job.ranks = len(processes)
        rank_of = {process: rank for rank, process in enumerate(sorted(processes))}
        job.numbering = (
            "no communicator has all processes: ranks are numbered by the host and the pid"
        )
    for communicator in job.communicators:
        communicator.members = {
            rank: rank_of[process] for rank, process in communicator.processes.items()
        }
    records = (r for c in communicators for call in c.calls.values() for r in call.values())
    messages = (r for c in communicators for r in c.messages)
    stamps = [r.dumped_us for each in (records, messages) for r in each if r.dumped_us]
    job.first_us = min(stamps, default=None)
    return job

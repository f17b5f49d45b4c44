"""Reads the records of NCCL Inspector, and sorts them into jobs and communicators.

Inspector writes JSON lines, one file per process (``HOST-pidPID.log``). In 2.28 to 2.30 (format
v4.0 to v4.2) each record has a header and metadata; from v4.3 on only the ``dump_stats`` record
before those of a communicator (plugins/profiler/inspector/inspector_json.cc). NCCL counts the calls
of a communicator for each collective separately.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, NamedTuple

from torchcoll.core.bounds import MOST_RECORDS
from torchcoll.core.traffic import POINT_TO_POINT
from torchcoll.reading import base

PER_RANK = ("all_gather", "reduce_scatter")  # Inspector's size of these is that of one rank
GPU_CLOCK = "kernel_gpu"  # kernel_cpu and collective_cpu are times of the host's clock
KERNEL_CLOCKS = (GPU_CLOCK, "kernel_cpu")  # of these the time is that of the kernel
ENQUEUED = "collective_cpu"  # from the enqueue on, so that waiting in the stream is in it
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
    count of NCCL. size_bytes: as Inspector prints it. started_us, kernel_us: when the call was
    enqueued and its kernel began, since 1970 (verbose output); None where not recorded. choice:
    algorithm and protocol.  peer: of a message, in the
    communicator.
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
    started_us: int | None = None
    kernel_us: int | None = None
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

    numbering: how the ranks of the job are numbered. first_us, last_us: of writing, since 1970.
    """

    communicators: list[JobCommunicator]
    ranks: int = 0
    processes: dict[Process, int] = field(default_factory=dict)
    numbering: str = ""
    first_us: int | None = None
    last_us: int | None = None

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


def is_json(text: str) -> bool:
    return "coll_exec_time_us" in text or "inspector_output_format_version" in text


def add_records(
    log: Log, lines: Iterable[base.Line], options: base.ImportOptions, imported: base.Imported
) -> None:
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
            _add(log, flat, line, options, imported)
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


def _add(
    log: Log,
    flat: Mapping[str, Any],
    line: int,
    options: base.ImportOptions,
    imported: base.Imported,
) -> None:
    """Add one record, or refuse it with the reason."""
    message = "p2p" in flat
    if not message and "coll" not in flat:
        imported.refuse(line, "no collective")
        return
    kind = "p2p" if message else "coll"
    ranks = options.ranks or base.parse_ranks(flat.get("n_ranks"))
    rank, count = base.whole(flat.get("rank")), base.whole(flat.get(f"{kind}_sn"))
    size_bytes = base.whole(flat.get(f"{kind}_msg_size_bytes"))
    time_us = base.number(flat.get(f"{kind}_exec_time_us"))
    source = str(flat.get(f"{kind}_timing_source") or "unknown")[:40]
    # Every record names its own collective.
    name = str(flat[kind]).lower() if message else base.collective_named(str(flat[kind]))
    name = name if message else name or options.collective
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
    stamps = flat.get("event_trace_ts")
    started = kernel = None
    if isinstance(stamps, Mapping):
        started = base.whole(stamps.get(f"{kind}_start_ts")) or None
        channels = stamps.get("kernel_events")
        begins = [
            base.whole(channel.get("kernel_start_ts"))
            for channel in (channels if isinstance(channels, list) else ())
            if isinstance(channel, Mapping)
        ]
        kernel = min((begin for begin in begins if begin), default=None)
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
        started,
        kernel,
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
        job.processes = {process: rank for rank, process in world.processes.items()}
    else:
        job.ranks = len(processes)
        job.processes = {process: rank for rank, process in enumerate(sorted(processes))}
        job.numbering = (
            "no communicator has all processes: ranks are numbered by the host and the pid"
        )
    for communicator in job.communicators:
        communicator.members = {
            rank: job.processes[process] for rank, process in communicator.processes.items()
        }
    records = (r for c in communicators for call in c.calls.values() for r in call.values())
    messages = (r for c in communicators for r in c.messages)
    stamps = [r.dumped_us for each in (records, messages) for r in each if r.dumped_us]
    job.first_us, job.last_us = min(stamps, default=None), max(stamps, default=None)
    return job

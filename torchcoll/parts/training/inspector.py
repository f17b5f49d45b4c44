"""Reads the files of NCCL Inspector as Traffic: the calls of each rank, joined by communicator.

Inspector writes one JSON object for each collective that a rank ran, in a file per process. Each
rank's time includes its waiting for the others: the last one to arrive has the shortest time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
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


def read_inspector(paths: Sequence[Path]) -> Traffic:
    """The traffic of the latest job in the files. Raises UnreadableError without any."""
    imported = base.Imported()
    records: list[Record] = []
    lost = sum(_add_records(records, Source(str(path)).lines(), imported) for path in paths)
    jobs = _jobs(_communicators(records, imported))
    if not jobs:
        refused = next((reason for _, reason in imported.refusals()), "no call")
        raise UnreadableError("NCCL Inspector", f"{paths[0]}: {refused}", "calls of collectives")
    notes = list(imported.warnings)
    if lost:
        notes.append(LOST.format(n=lost))
    if imported.refused:
        notes.append(f"{counted(len(imported.refused), 'line')} of Inspector's were not read")
    if len(jobs) > 1:
        of_others = ", ".join(f"{job[0].identity} of {job[0].ranks} ranks" for job in jobs[:-1])
        notes.append(f"the files are of {len(jobs)} jobs, this is the latest: left out {of_others}")
    folder = paths[0] if len(paths) == 1 else Path(common_folder(paths))
    return _traffic(jobs[-1], notes, folder)


def _traffic(job: Sequence[JobCommunicator], notes: Sequence[str], path: Path) -> Traffic:
    """The traffic of one job. The largest communicator that has all processes is the world."""
    traffic = Traffic(SOURCE, notes=[*notes], path=path)
    processes = {process for communicator in job for process in communicator.processes.values()}
    for world in job:
        if set(world.processes.values()) == processes:
            traffic.ranks = world.ranks
            rank_of = {process: rank for rank, process in world.processes.items()}
            break
    else:
        traffic.ranks = len(processes)
        rank_of = {process: rank for rank, process in enumerate(sorted(processes))}
        traffic.notes.append(
            "no communicator has all processes: ranks are numbered by the host and the pid"
        )
    for communicator in job:
        seen = {rank: rank_of[process] for rank, process in communicator.processes.items()}
        complete = len(seen) == communicator.ranks
        if not complete:
            traffic.notes.append(
                f"communicator {communicator.identity}: records of rank {format_ranges(seen)} of "
                f"{communicator.ranks} only: who came last is not known. {ALL_FILES}"
            )
        members = tuple(seen[rank] for rank in range(communicator.ranks)) if complete else ()
        group = Group(communicator.identity, members, "nccl", communicator.label)
        name = traffic.add_group(group)
        numbers = communicator.numbers()
        for record in communicator.records:
            sequence = numbers.get((record.name, record.number), record.number)
            call = _call(record, seen, name, sequence)
            traffic.calls.setdefault(seen[record.rank], []).append(call)
    traffic.calls = {
        rank: sorted(traffic.calls[rank], key=lambda call: call.logged_ns or 0)
        for rank in sorted(traffic.calls)
    }
    hosts = {str(rank): host for (host, _, _), rank in sorted(rank_of.items(), key=itemgetter(1))}
    traffic.environment = {"hosts": hosts}
    return traffic


def _call(record: Record, members: Mapping[int, int], group: str, sequence: int) -> TrafficCall:
    bytes_in = bytes_out = record.size_bytes
    peer = None
    if record.name in POINT_TO_POINT:
        bytes_in = record.size_bytes if record.name == "send" else 0
        bytes_out = record.size_bytes - bytes_in
        peer = members.get(-1 if record.peer is None else record.peer)
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


@dataclass
class JobCommunicator:
    """One communicator of a job. processes: by rank in it."""

    identity: str
    ranks: int
    label: str = ""
    processes: dict[int, Process] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)

    def numbers(self) -> dict[tuple[str, int], int]:
        """Its collectives, by name and number -> number among those of all names."""
        first: dict[tuple[str, int], Record] = {}  # of the lowest rank
        for record in self.records:
            if record.name not in POINT_TO_POINT:
                key = record.name, record.number
                first[key] = min(first.get(key, record), record, key=attrgetter("rank"))
        ordered = sorted(first, key=lambda key: first[key].dumped_us or 0)
        return {key: number for number, key in enumerate(ordered)}


def _add_records(records: list[Record], lines: Iterable[base.Line], imported: base.Imported) -> int:
    """Adds the records of one file, and returns how many calls Inspector did not write. Lines that
    cannot be used are refused in ``imported``.
    """
    marker: dict[str, Any] = {}
    left = lost = 0  # left: how many further records the marker belongs to
    for line, text in lines:
        text = text.strip().rstrip(",")
        if not text or text in "[]" or text.startswith("#"):
            continue
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            imported.refuse(line, "half a row: no whole JSON object")
            data = []
        for record in data if isinstance(data, list) else [data]:
            stats = record.get("dump_stats") if isinstance(record, Mapping) else None
            if isinstance(stats, Mapping):
                marker, left = _flat(record), 1 + sum(base.whole(stats.get(k)) or 0 for k in _BATCH)
                lost += base.whole(stats.get("coll_dropped_since_last_dump")) or 0
                continue
            try:
                records.append(_record(record, marker if left else None))
                imported.take(most=MOST_RECORDS)
            except ValueError as error:
                imported.refuse(line, str(error))
        left = max(0, left - 1)
    return lost


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of a record without nesting, as Inspector's exporter also writes them."""
    flat: dict[str, Any] = {}
    for key in ("header", "metadata", "coll_perf", "p2p_perf"):
        group = record.get(key)
        flat.update(group if isinstance(group, Mapping) else {})
    flat.update({k: v for k, v in record.items() if not isinstance(v, Mapping)})
    return flat


def _record(data: object, marker: Mapping[str, Any] | None) -> Record:
    """Returns one record. Raises ValueError with the reason why it cannot be used.

    - marker: the header of the batch that the record is in; None outside of a batch.
    """
    if not isinstance(data, Mapping):
        raise ValueError("no JSON object")
    if "proxy_trace" in data:
        raise ValueError("network: no call")
    flat = _flat(data)
    kind = "p2p" if "p2p" in flat else "coll"
    if kind not in flat:
        raise ValueError("no collective")
    if "n_ranks" not in flat:
        if marker is None:
            raise ValueError("no header: the dump_stats record before it is missing")
        flat = {**marker, **flat}
    name = str(flat[kind]).lower() if kind == "p2p" else base.collective_named(str(flat[kind]))
    if kind == "p2p" and name not in POINT_TO_POINT:
        raise ValueError("point-to-point: neither Send nor Recv")
    if name is None:
        raise ValueError(f"{flat['coll']} is no collective that torchcoll has")
    ranks = base.parse_ranks(flat.get("n_ranks"))
    rank, count = base.whole(flat.get("rank")), base.whole(flat.get(f"{kind}_sn"))
    size_bytes = base.whole(flat.get(f"{kind}_msg_size_bytes"))
    time_us = base.number(flat.get(f"{kind}_exec_time_us"))
    source = str(flat.get(f"{kind}_timing_source") or "unknown")[:40]
    if not ranks or rank is None or count is None or size_bytes is None or time_us is None:
        raise ValueError("no ranks, rank, sequence number, size or time")
    if time_us <= 0:
        raise ValueError(f"its time is {time_us:g} us, by {source}")
    if rank >= ranks:
        raise ValueError(f"rank {rank} of {ranks}")
    if not size_bytes:
        raise ValueError("0 bytes: nothing was sent")
    label = flat.get("comm_name")
    return Record(
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
        base.whole(flat.get("p2p_peer")) if kind == "p2p" else None,
    )


def _communicators(
    every: Sequence[Record], imported: base.Imported
) -> dict[tuple[str, int], JobCommunicator]:
    """The communicators of the records. Of a call that a rank recorded twice the last record
    counts.
    """
    records: dict[tuple[object, ...], Record] = {}
    ranks_of_process: dict[tuple[object, ...], set[int]] = defaultdict(set)
    repeated = replaced = 0
    for record in sorted(every, key=lambda record: record.dumped_us or 0):
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
        index = local_ranks.index(record.rank)
        communicator.processes[record.rank] = (record.host, pid, index)
        communicator.records.append(record)
    return communicators


def _jobs(communicators: Mapping[tuple[str, int], JobCommunicator]) -> list[list[JobCommunicator]]:
    """The communicators of each job, the largest first; the first job to write first. Processes are
    of one job if a communicator connects them.
    """
    jobs: list[tuple[set[Process], list[JobCommunicator]]] = []
    for communicator in communicators.values():
        processes, connected = set(communicator.processes.values()), [communicator]
        apart = []
        for job in jobs:
            if job[0].isdisjoint(processes):
                apart.append(job)
            else:
                processes |= job[0]
                connected += job[1]
        jobs = [*apart, (processes, connected)]
    ordered = [sorted(job, key=lambda each: (-each.ranks, each.identity)) for _, job in jobs]
    return sorted(
        ordered, key=lambda job: min(r.dumped_us or 0 for each in job for r in each.records)
    )

"""Groups the ranks in NCCL's logs into communicators, and the processes into jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torchcoll.core.units import counted
from torchcoll.libraries.logged import LoggedJob
from torchcoll.libraries.nccl.log import NcclLogReader
from torchcoll.libraries.nccl.messages import Member, NcclProcess, Tuned

Key = tuple[object, ...]


@dataclass
class NcclCommunicator:
    """The ranks of one communicator that the log has.

    parent: key of the communicator that it was split from.
    cut: number of incomplete lines in its files.
    """

    members: list[Member] = field(default_factory=list)
    parent: Key | None = None
    cut: int = 0

    @property
    def nranks(self) -> int | None:
        return next((m.nranks for m in self.members if m.nranks is not None), None)

    @property
    def nodes(self) -> int | None:
        return max((m.nodes for m in self.members if m.nodes is not None), default=None)

    @property
    def slowest(self) -> Member | None:
        """The rank whose 'Init timings' are the longest; None where no rank has them."""
        timed = [m for m in self.members if "total" in m.timings]
        return max(timed, key=lambda m: m.timings["total"], default=None)

    @property
    def state(self) -> str:
        """The last state that the ranks logged; with numbers of ranks where they differ."""
        states = Counter(
            (m.ended.lower() or ("complete" if m.complete else "not complete"))
            for m in self.members
            if m.rank is not None
        )
        names = {"destroy": "destroyed", "abort": "aborted", "revoke": "revoked"}
        texts = {names.get(state, state): count for state, count in states.items()}
        several = len(texts) > 1
        text = ", ".join(f"{n} on {count}" if several else n for n, count in texts.items())
        if "not complete" in texts and self.cut:
            text += f" ({counted(self.cut, 'line')} of the log cut)"
        return text or "unknown"

    @property
    def rings(self) -> dict[int, tuple[int, ...]]:
        """Channel -> ranks in order. NCCL truncates long rings in its log."""
        return next((m.rings for m in self.members if m.rings), {})

    @property
    def ring_count(self) -> int:
        return max((m.ring_count for m in self.members), default=0)

    @property
    def tuning(self) -> list[Tuned]:
        return next((m.tuning for m in self.members if m.tuning), [])


@dataclass
class NcclJob(LoggedJob):
    """Processes that share communicators, or processes of one file without any communicator.

    version: of a line without a prefix, where no process logs its version: NCCL <= 2.23 prints it
        so, once.
    """

    processes: list[NcclProcess]
    communicators: list[NcclCommunicator]
    version: str = ""

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(process.host for process in self.processes if process.host))

    @property
    def transports(self) -> Counter[str]:
        return self.total("transports")

    def pairs(self, kind: str) -> set[tuple[int, int]]:
        return self._pairs.get(kind, set())

    @cached_property
    def _pairs(self) -> dict[str, set[tuple[int, int]]]:
        pairs_by_kind: dict[str, set[tuple[int, int]]] = {}
        for process in self.processes:
            for kind, pairs in process.pairs.items():
                pairs_by_kind.setdefault(kind, set()).update(pairs)
        return pairs_by_kind


def communicators(processes: Iterable[NcclProcess]) -> dict[Key, NcclCommunicator]:
    """Every communicator of these processes, in the order of the log.

    From 2.18 on all ranks of a communicator print the same commId; the ranks of a split have the
    same parent, split number and color. In older logs the n-th communicator of a process belongs
    with the n-th of the other processes that has as many ranks, as long as no rank occurs twice.
    """
    groups: dict[Key, NcclCommunicator] = {}
    # (ranks, rank) -> how many communicators of that size already have this rank.
    ranks_taken: Counter[tuple[int | None, int]] = Counter()
    for process in processes:
        handles: dict[str, Key] = {}
        for member in process.members:
            parent = handles.get(member.parent)
            if member.comm_id:
                key: Key = ("id", member.comm_id, member.nranks)
            elif member.split:
                key = ("split", parent or process.file, *member.split, member.nranks)
            elif member.rank is None:  # the line that begins this communicator is missing
                key = ("lines", member)
            else:
                key = ("size", member.nranks, ranks_taken[member.nranks, member.rank])
                ranks_taken[member.nranks, member.rank] += 1
            group = groups.setdefault(key, NcclCommunicator(parent=parent))
            group.members.append(member)
            if member.handle:
                handles[member.handle] = key
    return groups


def jobs(readers: Sequence[NcclLogReader]) -> list[NcclJob]:
    """Group the processes of these files into jobs: by shared communicators, or else by file."""
    processes = [process for reader in readers for process in reader.processes]
    groups = communicators(processes)
    owner = {m: process for process in processes for m in process.members}
    leader = {process: process for process in processes}

    def root(key: NcclProcess) -> NcclProcess:
        while leader[key] != key:
            leader[key] = leader[leader[key]]  # path halving: shortens later searches
            key = leader[key]
        return key

    def join(some: Iterable[NcclProcess]) -> None:
        first, *peers = some
        for peer in peers:
            leader[root(peer)] = root(first)

    cut = {reader.file: reader.tally.counts["cut"] for reader in readers}
    for group in groups.values():
        group.cut = sum(cut[file] for file in {owner[m].file for m in group.members})
        join([owner[member] for member in group.members])
    connected = {owner[m] for g in groups.values() for m in g.members if m.rank is not None}
    # (host, process id) -> file -> job leader -> the process, for processes with a communicator
    by_pid: dict[tuple[str, int], dict[str, dict[NcclProcess, NcclProcess]]] = {}
    for process in processes:
        if process in connected:
            in_file = by_pid.setdefault((process.host, process.pid), {})
            in_file.setdefault(process.file, {}).setdefault(root(process), process)
    alone: dict[str, list[NcclProcess]] = {}
    for process in processes:
        if process in connected:
            continue
        files = by_pid.get((process.host, process.pid), {})
        candidates = [leaders for file, leaders in files.items() if file != process.file]
        if len(set().union(*candidates)) == 1:  # the log of its process continues in another file
            join([*candidates[0].values(), process])
        else:
            alone.setdefault(process.file, []).append(process)
    for some in alone.values():
        join(some)
    members: dict[NcclProcess, list[NcclProcess]] = {}
    for process in processes:
        members.setdefault(root(process), []).append(process)
    groups_by_job: dict[NcclProcess, list[NcclCommunicator]] = {}
    for group in groups.values():
        groups_by_job.setdefault(root(owner[group.members[0]]), []).append(group)
    versions = {reader.file: reader.version for reader in readers}
    jobs = []
    for key, job in members.items():
        version = next((versions[p.file] for p in job if versions.get(p.file)), "")
        jobs.append(NcclJob(job, groups_by_job.get(key, []), version))
    return jobs

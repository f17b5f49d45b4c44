"""Which ranks of NCCL's log are one communicator, and which processes are one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from torchcoll.core.units import counted
from torchcoll.libraries.logged import LoggedCall
from torchcoll.libraries.nccl.log import Graph, Member, NcclLogReader, NcclProcess, Tuned

Key = tuple[object, ...]
Counted = TypeVar("Counted")


@dataclass
class NcclCommunicator:
    """The ranks that the log has of one communicator. ``parent``: what it was split from. cut:
    lines of its files that are not whole.
    """

    members: list[Member] = field(default_factory=list)
    parent: Key | None = None
    cut: int = 0  # lines of its files that are not whole

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
        """How far the log follows it: what its ranks say, where they differ with how many."""
        words = Counter(
            (m.ended.lower() or ("complete" if m.complete else "not complete"))
            for m in self.members
            if m.rank is not None
        )
        names = {"destroy": "destroyed", "abort": "aborted", "revoke": "revoked"}
        texts = {names.get(word, word): count for word, count in words.items()}
        several = len(texts) > 1
        text = ", ".join(f"{n} on {count}" if several else n for n, count in texts.items())
        if "not complete" in texts and self.cut:
            text += f" ({counted(self.cut, 'line')} of the log cut)"
        return text or "unknown"

    @property
    def rings(self) -> dict[int, tuple[int, ...]]:
        """Channel -> ranks in order, of which long ones are cut in the log."""
        return next((m.rings for m in self.members if m.rings), {})

    @property
    def graphs(self) -> list[Graph]:
        found = (m.graphs for m in sorted(self.members, key=lambda m: m.rank or 0))
        return next((graphs for graphs in found if graphs), [])

    @property
    def tuning(self) -> list[Tuned]:
        return next((m.tuning for m in self.members if m.tuning), [])


@dataclass
class NcclJob:
    """Processes that communicate with each other, or of which nobody says with whom."""

    processes: list[NcclProcess]
    communicators: list[NcclCommunicator]
    version: str = ""  # where no process tells it: NCCL <= 2.23 prints it once, without a prefix

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(process.file for process in self.processes))

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(process.host for process in self.processes if process.host))

    @property
    def calls(self) -> Counter[LoggedCall]:
        return _together(process.calls for process in self.processes)

    @property
    def warnings(self) -> Counter[str]:
        return _together(process.warnings for process in self.processes)

    @property
    def transports(self) -> Counter[str]:
        return _together(process.transports for process in self.processes)

    def pairs(self, kind: str) -> set[tuple[int, int]]:
        return self._pairs.get(kind, set())

    @cached_property
    def _pairs(self) -> dict[str, set[tuple[int, int]]]:
        found: dict[str, set[tuple[int, int]]] = {}
        for process in self.processes:
            for kind, pairs in process.pairs.items():
                found.setdefault(kind, set()).update(pairs)
        return found


def _together(counters: Iterable[Counter[Counted]]) -> Counter[Counted]:
    """Their sum. ``sum`` copies all that it has by then for each of them."""
    total: Counter[Counted] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def communicators(processes: Iterable[NcclProcess]) -> dict[Key, NcclCommunicator]:
    """Every communicator of these processes, in the order of the log.

    Ranks belong together by the commId, which all of them print (from 2.18 on); those of a split
    by its parent, number and color. In older logs the n-th of a process is that of its peers with
    as many ranks, as long as no rank is there twice.
    """
    found: dict[Key, NcclCommunicator] = {}
    # (ranks, rank) -> how many communicators of that size have this rank: the first ones, all.
    taken: Counter[tuple[int | None, int]] = Counter()
    for process in processes:
        handles: dict[str, Key] = {}
        for member in process.members:
            parent = handles.get(member.parent)
            if member.comm_id:
                key: Key = ("id", member.comm_id, member.nranks)
            elif member.split:
                key = ("split", parent or process.file, *member.split, member.nranks)
            elif member.rank is None:  # lines of a communicator whose own line is missing
                key = ("lines", member)
            else:
                key = ("size", member.nranks, taken[member.nranks, member.rank])
                taken[member.nranks, member.rank] += 1
            group = found.setdefault(key, NcclCommunicator(parent=parent))
            group.members.append(member)
            if member.handle:
                handles[member.handle] = key
    return found


def jobs(readers: Sequence[NcclLogReader]) -> list[NcclJob]:
    """The jobs of these files. Processes of no communicator are together by their file."""
    processes = [process for reader in readers for process in reader.processes]
    groups = communicators(processes)
    owner = {m: process for process in processes for m in process.members}
    leader = {process: process for process in processes}

    def root(key: NcclProcess) -> NcclProcess:
        while leader[key] != key:
            leader[key] = leader[leader[key]]  # halves the way for who asks next
            key = leader[key]
        return key

    def join(some: Iterable[NcclProcess]) -> None:
        first, *others = some
        for other in others:
            leader[root(other)] = root(first)

    cut = {reader.file: reader.tally.counts["cut"] for reader in readers}
    for group in groups.values():
        group.cut = sum(cut[file] for file in {owner[m].file for m in group.members})
        join([owner[member] for member in group.members])
    connected = {owner[m] for g in groups.values() for m in g.members if m.rank is not None}
    # (host, process number) -> file -> the first of each job that it is in
    known: dict[tuple[str, int], dict[str, dict[NcclProcess, NcclProcess]]] = {}
    for process in processes:
        if process in connected:
            in_file = known.setdefault((process.host, process.pid), {})
            in_file.setdefault(process.file, {}).setdefault(root(process), process)
    alone: dict[str, list[NcclProcess]] = {}
    for process in processes:
        if process in connected:
            continue
        files = known.get((process.host, process.pid), {})
        others = [same for file, same in files.items() if file != process.file]
        if len(set().union(*others)) == 1:  # its log goes on in another file
            join([*others[0].values(), process])
        else:
            alone.setdefault(process.file, []).append(process)
    for some in alone.values():
        join(some)
    members: dict[NcclProcess, list[NcclProcess]] = {}
    for process in processes:
        members.setdefault(root(process), []).append(process)
    made: dict[NcclProcess, list[NcclCommunicator]] = {}
    for group in groups.values():
        made.setdefault(root(owner[group.members[0]]), []).append(group)
    versions = {reader.file: reader.version for reader in readers}
    return [
        NcclJob(
            own,
            made.get(key, []),
            next((versions[p.file] for p in own if versions.get(p.file)), ""),
        )
        for key, own in members.items()
    ]

"""Which ranks of NCCL's log are one communicator, and which processes are one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torchcoll.core.units import counted
from torchcoll.libraries.logged import LoggedCall
from torchcoll.libraries.nccl.log import Graph, Member, NcclLogReader, NcclProcess, Tuned

Key = tuple[object, ...]


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
        return sum((process.calls for process in self.processes), Counter())

    @property
    def warnings(self) -> Counter[str]:
        return sum((process.warnings for process in self.processes), Counter())

    @property
    def transports(self) -> Counter[str]:
        return sum((process.transports for process in self.processes), Counter())

    def pairs(self, kind: str) -> set[tuple[int, int]]:
        return set().union(*(process.pairs.get(kind, set()) for process in self.processes))


def communicators(processes: Iterable[NcclProcess]) -> dict[Key, NcclCommunicator]:
    """Every communicator of these processes, in the order of the log.

    Ranks belong together by the commId, which all of them print (from 2.18 on); those of a split
    by its parent, number and color. In older logs the n-th of a process is that of its peers with
    as many ranks, as long as no rank is there twice.
    """
    found: dict[Key, NcclCommunicator] = {}
    for process in processes:
        handles: dict[str, Key] = {}
        for member in process.members:
            parent = handles.get(member.parent)
            if member.comm_id:
                key: Key = ("id", member.comm_id, member.nranks)
            elif member.split:
                key = ("split", parent or process.file, *member.split, member.nranks)
            else:
                key = _first_free(found, process, member)
            group = found.setdefault(key, NcclCommunicator(parent=parent))
            group.members.append(member)
            if member.handle:
                handles[member.handle] = key
    return found


def _first_free(found: dict[Key, NcclCommunicator], process: NcclProcess, member: Member) -> Key:
    if member.rank is None:  # lines of a communicator whose own line is missing
        return ("lines", member)
    number = 0
    while group := found.get(("size", member.nranks, number)):
        if all(other.rank != member.rank for other in group.members):
            break
        number += 1
    return ("size", member.nranks, number)


def jobs(readers: Sequence[NcclLogReader]) -> list[NcclJob]:
    """The jobs of these files. Processes of no communicator are together by their file."""
    processes = [process for reader in readers for process in reader.processes]
    groups = communicators(processes)
    owner = {m: process for process in processes for m in process.members}
    leader = {process: process for process in processes}

    def root(key: NcclProcess) -> NcclProcess:
        while leader[key] != key:
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
    alone: dict[str, list[NcclProcess]] = {}
    for process in processes:
        if process in connected:
            continue
        same = [p for p in processes if p in connected and _same_process(p, process)]
        if len({root(p) for p in same}) == 1:  # its log goes on in another file
            join([same[0], process])
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


def _same_process(one: NcclProcess, other: NcclProcess) -> bool:
    return (one.host, one.pid) == (other.host, other.pid) and one.file != other.file

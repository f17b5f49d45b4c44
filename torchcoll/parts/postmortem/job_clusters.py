"""Tells the jobs apart whose files are in one folder.

Files with a common identity are of one job. Files without one join the others of their folder, and
folders join their siblings, unless something contradicts: another identity of the same kind,
another number of ranks, a second file of the same kind from the same rank, or times that are more
than a day apart. A console repeats what the logs of ranks have: equal lines and processes prove
that it is of their job, and other lines of the same ranks that it is not.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from torchcoll.core.opening import common_folder
from torchcoll.core.traffic import Group
from torchcoll.parts.postmortem.evidence import LOGS, JobEvidence

# Kinds of identities of which a job can have several: one for each process group, for example.
_SEVERAL_IN_ONE_JOB = {"communicator", "host", "pod", "step"}
# Kinds of events in which a rank itself speaks.
_SAID_BY_THE_RANK = ("exception", "timeout", "peer_lost", "mismatch")
_DAY_NS = 86_400 * 10**9
# torchrun starts a job again in the same log folder: each attempt ends for a reason of its own.
_ATTEMPT = re.compile(r"(?:^|/)(attempt_\d+)(?:/|$)")


@dataclass
class FileEvidence:
    """What one file says of one job. shown: its path relative to the folder."""

    shown: str
    evidence: JobEvidence

    @property
    def attempt(self) -> str:
        match = _ATTEMPT.search(self.shown.replace(os.sep, "/"))
        return match[1] if match else ""


@dataclass
class _Cluster:
    """Files that are of one job."""

    files: list[FileEvidence]
    identities: set[str] = field(default_factory=set)
    # (folder, kind of file, rank)
    sources: set[tuple[str, str, int]] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    attempts: set[str] = field(default_factory=set)
    pids: dict[int, int] = field(default_factory=dict)
    named_pids: set[int] = field(default_factory=set)  # by events without a rank, as of the kernel
    # (rank, what it says) in a log of its own, and in a console
    log_lines: set[tuple[int, str]] = field(default_factory=set)
    console_lines: set[tuple[int, str]] = field(default_factory=set)
    first_ns: int | None = None
    last_ns: int | None = None

    @classmethod
    def of(cls, file: FileEvidence) -> _Cluster:
        evidence = file.evidence
        cluster = cls([file], set(evidence.identities))
        cluster.first_ns, cluster.last_ns = evidence.first_ns, evidence.last_ns
        if evidence.ranks is not None:
            cluster.sizes.add(evidence.ranks)
        if file.attempt:
            cluster.attempts.add(file.attempt)
        folder = os.path.dirname(file.shown)
        for seen in evidence.files:
            what = "log" if seen.what in LOGS else seen.what
            cluster.sources |= {(folder, what, rank) for rank in seen.ranks}
        is_log = any(seen.what in LOGS for seen in evidence.files)
        file_ranks = {rank for seen in evidence.files for rank in seen.ranks}
        for event in evidence.events if is_log else ():
            if event.rank is not None and event.kind in _SAID_BY_THE_RANK:
                is_own = event.rank in file_ranks
                cluster.sources.add((folder, "log" if is_own else "console", event.rank))
                lines = cluster.log_lines if is_own else cluster.console_lines
                lines.add((event.rank, event.text))
        cluster.pids = dict(evidence.pids)
        cluster.named_pids = {e.pid for e in evidence.events if e.pid and e.rank is None}
        return cluster

    def add(self, other: _Cluster) -> None:
        self.files += other.files
        self.identities |= other.identities
        self.sources |= other.sources
        self.sizes |= other.sizes
        self.attempts |= other.attempts
        self.pids |= other.pids
        self.named_pids |= other.named_pids
        self.log_lines |= other.log_lines
        self.console_lines |= other.console_lines
        times = [t for t in (self.first_ns, other.first_ns) if t is not None]
        self.first_ns = min(times, default=None)
        times = [t for t in (self.last_ns, other.last_ns) if t is not None]
        self.last_ns = max(times, default=None)

    @property
    def is_general(self) -> bool:
        """Whether the files are of a host or a cluster rather than of a job."""
        return not self.sources and not self.identities

    def shares_identity(self, other: _Cluster) -> bool:
        if self.attempts and other.attempts and not self.attempts & other.attempts:
            return False
        return bool(self.identities & other.identities)

    def proofs(self, other: _Cluster) -> int:
        """How much proves that both are of one job: processes, and lines of a console."""
        pids = sum(other.pids.get(rank) == pid for rank, pid in self.pids.items())
        pids += len(self.named_pids & set(other.pids.values()))
        pids += len(other.named_pids & set(self.pids.values()))
        lines = len(self.console_lines & other.log_lines)
        return pids + lines + len(self.log_lines & other.console_lines)

    def contradicts(self, other: _Cluster) -> bool:
        """Whether the two cannot be of one job."""
        if self.attempts and other.attempts and self.attempts != other.attempts:
            return True
        mine, others = _by_kind(self.identities), _by_kind(other.identities)
        if any(not mine[kind] & others[kind] for kind in mine.keys() & others.keys()):
            return True
        if self.sizes and other.sizes and not self.sizes & other.sizes:
            return True
        for cluster, sized in ((self, other), (other, self)):
            highest = max((rank for _, _, rank in cluster.sources), default=-1)
            if sized.sizes and highest >= max(sized.sizes):
                return True
        if any(other.pids.get(rank, pid) != pid for rank, pid in self.pids.items()):
            return True
        folders: dict[tuple[str, int], set[str]] = defaultdict(set)
        for folder, what, rank in self.sources:
            folders[what, rank].add(folder)
        for folder, what, rank in other.sources:
            # Two dumps of a rank in one folder are of two moments.
            if folders.get((what, rank), {folder}) != {folder}:
                return True
        for console, log in (
            (self.console_lines, other.log_lines),
            (other.console_lines, self.log_lines),
        ):
            if {rank for rank, _ in console} & {rank for rank, _ in log} and not console & log:
                return True
        return self.distance_ns(other) > _DAY_NS

    def distance_ns(self, other: _Cluster) -> int:
        """Time between them; 0 if they overlap or have no times."""
        if self.first_ns is None or other.first_ns is None:
            return 0
        assert self.last_ns is not None and other.last_ns is not None
        return max(0, self.first_ns - other.last_ns, other.first_ns - self.last_ns)


def jobs_of(files: Sequence[FileEvidence]) -> list[JobEvidence]:
    """The jobs that the files are of, those of most files first."""
    clusters: dict[str, list[_Cluster]] = defaultdict(list)
    for cluster in _joined_by_identity([_Cluster.of(file) for file in files]):
        clusters[_common_folder(cluster)].append(cluster)
    # From the deepest folder upwards.
    depths = sorted({folder.count(os.sep) + bool(folder) for folder in clusters}, reverse=True)
    for depth in range(depths[0] if depths else 0, -1, -1):
        for folder in [f for f in clusters if f.count(os.sep) + bool(f) == depth]:
            joined = _joined_in_folder(clusters.pop(folder))
            if depth:
                clusters[os.path.dirname(folder)] += joined
            else:
                clusters[folder] = joined
    jobs = [_merged(cluster) for cluster in clusters[""]]
    return sorted(jobs, key=lambda job: (-len(job.files), job.name))


def _joined_by_identity(clusters: Iterable[_Cluster]) -> list[_Cluster]:
    joined: list[_Cluster] = []
    for cluster in clusters:
        same = [other for other in joined if cluster.shares_identity(other)]
        for other in same:
            cluster.add(other)
        joined = [other for other in joined if other not in same] + [cluster]
    return joined


def _joined_in_folder(clusters: list[_Cluster]) -> list[_Cluster]:
    """Join what can be of one job. A cluster that could be of several jobs joins the one for which
    most proofs speak, or else the one nearest in time, and stays alone if none is.
    """
    joined: list[_Cluster] = []
    order = sorted(
        clusters, key=lambda c: (c.is_general, -len(_by_kind(c.identities)), -len(c.files))
    )
    for cluster in order:
        possible = [other for other in joined if not other.contradicts(cluster)]
        proofs = {id(other): other.proofs(cluster) for other in possible}
        if most := max(proofs.values(), default=0):
            possible = [other for other in possible if proofs[id(other)] == most]
        if len(possible) > 1 and cluster.first_ns is not None and not cluster.is_general:
            nearest = min(other.distance_ns(cluster) for other in possible)
            possible = [other for other in possible if other.distance_ns(cluster) == nearest]
        if len(possible) == 1:
            possible[0].add(cluster)
        else:
            joined.append(cluster)
    return joined


def _merged(cluster: _Cluster) -> JobEvidence:
    job = JobEvidence(identities=cluster.identities)
    job.first_ns, job.last_ns = cluster.first_ns, cluster.last_ns
    job.ranks = max(cluster.sizes, default=None)
    variants: _Variants = defaultdict(list)
    # Files that know the members of a group come first: they tell groups of one name apart.
    files = sorted(cluster.files, key=lambda file: file.shown)
    files.sort(key=lambda file: not any(g.ranks for g in file.evidence.groups.values()))
    for file in files:
        evidence = file.evidence
        names = _group_names(evidence, variants)
        for rank, node in evidence.nodes.items():
            job.nodes.setdefault(rank, node)
        for rank, pid in evidence.pids.items():
            job.pids.setdefault(rank, pid)
        for rank, when_ns in evidence.alive_ns.items():
            job.alive_ns[rank] = max(when_ns, job.alive_ns.get(rank, 0))
        for old, group in evidence.groups.items():
            new = names.get(old, old)
            earlier = job.groups.get(new)
            if earlier is None or (group.ranks and not earlier.ranks):
                job.groups[new] = group
        if any(old != new for old, new in names.items()):
            calls = [replace(c, group=names.get(c.group, c.group)) for c in evidence.calls]
            events = [
                event if event.group is None else replace(event, group=names.get(event.group))
                for event in evidence.events
            ]
        else:
            calls, events = evidence.calls, evidence.events
        job.calls += calls
        job.events += events
        for numbers, of_file in (
            (job.last_number, evidence.last_number),
            (job.last_completed, evidence.last_completed),
        ):
            for (rank, old), number in of_file.items():
                key = (rank, names.get(old, old))
                numbers[key] = max(number, numbers.get(key, 0))
        job.files += evidence.files
        job.texts.add(evidence.texts)
    # A log quotes more of an error than a record of calls does: the call, and the line of code.
    logs = {seen.path for seen in job.files if seen.what in LOGS}
    job.events.sort(key=lambda event: event.place.path not in logs)
    job.name = _name(cluster)
    return job


# Name -> the different groups that have it.
_Variants = dict[str, list[Group]]


def _group_names(evidence: JobEvidence, variants: _Variants) -> dict[str, str]:
    """Name in the file -> key in the job. The second group of a name becomes ``NAME@2``.

    torch gives parallel sub-groups that split_group makes the same name, and reuses the name of a
    destroyed group.
    """
    ranks = {rank for file in evidence.files for rank in file.ranks}
    groups = dict(evidence.groups)
    mentioned = [call.group for call in evidence.calls]
    mentioned += [event.group for event in evidence.events if event.group is not None]
    mentioned += [group for _, group in evidence.last_number]
    for name in mentioned:
        groups.setdefault(name, Group(name))
    names = {}
    for name, group in groups.items():
        group_variants = variants[name]
        fits = [
            index
            for index, other in enumerate(group_variants)
            if not other.ranks
            or (group.ranks == other.ranks if group.ranks else ranks & set(other.ranks))
        ]
        if not fits and (group.ranks or not group_variants):
            fits = [len(group_variants)]
            group_variants.append(group)
        names[name] = f"{name}@{fits[0] + 1}" if fits and fits[0] else name
    return names


def _name(cluster: _Cluster) -> str:
    """What the job is called: its identity, or the folder that its files have in common."""
    names = sorted(i for i in cluster.identities if i.split(" ")[0] not in _SEVERAL_IN_ONE_JOB)
    attempt = f" {min(cluster.attempts)}".replace("_", " ") if cluster.attempts else ""
    return (names[0] if names else _common_folder(cluster)) + attempt


def _common_folder(cluster: _Cluster) -> str:
    folders = [os.path.dirname(file.shown) for file in cluster.files]
    return common_folder(folders) if all(folders) else ""


def _by_kind(identities: Iterable[str]) -> dict[str, set[str]]:
    kinds: dict[str, set[str]] = defaultdict(set)
    for identity in identities:
        kind = identity.split(" ")[0]
        if kind not in _SEVERAL_IN_ONE_JOB:
            kinds[kind].add(identity)
    return kinds

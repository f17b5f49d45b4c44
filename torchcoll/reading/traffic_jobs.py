"""Tells apart the jobs whose files are in one folder, each a trace or a dump of one rank.

Files are of one job unless something contradicts: a rank that is there twice, another number of
ranks, a group that one of its members does not know, or times that are more than a day apart. Of
several files of one rank, those with one name but for the rank belong together (``a_rank0.json``
and ``a_rank1.json``), and of one name those that began at about the same time.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchcoll.core.opening import common_folder
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import format_ranges, shorten_list

_DAY_NS = 86_400 * 10**9
_NAMED = 4  # files, in a note
_RANK = re.compile(r"(rank[_-]?)\d+|\d+(?=(?:\.[a-z]+)*$)", re.IGNORECASE)


@dataclass(frozen=True)
class RankFile:
    """What one file has. first_step: the first one that a profiler marked; None without marks."""

    traffic: Traffic
    first_step: int | None = None

    @property
    def path(self) -> Path:
        return self.traffic.path or Path()

    @property
    def began_ns(self) -> int | None:
        """When its first call was issued, since 1970; None where the file does not say it."""
        return min(self.created_ns, default=None)

    @property
    def created_ns(self) -> set[int]:
        """When its calls were issued, since 1970."""
        return {
            self.traffic.clocks[rank][1] + call.start_ns
            for rank, calls in self.traffic.calls.items()
            if rank in self.traffic.clocks
            for call in calls
            if call.start_ns is not None
        }

    @property
    def world(self) -> int | None:
        """The number of ranks of the job; None where the file does not say it."""
        groups = self.traffic.groups.values()
        sizes = [len(group.ranks) for group in groups if group.description == "default_pg"]
        return max(sizes, default=0) or None


@dataclass
class _Job:
    files: list[RankFile] = field(default_factory=list)
    ranks: dict[int, RankFile] = field(default_factory=dict)
    # (name, ranks) of each group whose ranks are known -> a file that has it
    groups: dict[tuple[str, tuple[int, ...]], RankFile] = field(default_factory=dict)
    worlds: set[int] = field(default_factory=set)
    times: list[int] = field(default_factory=list)

    def add(self, files: Iterable[RankFile]) -> None:
        for file in files:
            self.files.append(file)
            self.ranks |= dict.fromkeys(file.traffic.calls, file)
            for group in file.traffic.groups.values():
                if group.ranks:
                    self.groups.setdefault((group.name, group.ranks), file)
            self.worlds |= set() if file.world is None else {file.world}
            self.times += [] if file.began_ns is None else [file.began_ns]

    def contradiction(self, other: _Job) -> str:
        """Why the two are not one job; '' if nothing says so."""
        for rank in sorted(self.ranks.keys() & other.ranks.keys()):
            return f"rank {rank} is in both {_names([self.ranks[rank], other.ranks[rank]])}"
        if self.worlds and other.worlds and self.worlds.isdisjoint(other.worlds):
            return f"one has {min(self.worlds)} ranks and the other {min(other.worlds)}"
        return (
            self._group_contradiction(other)
            or other._group_contradiction(self)
            or self._time_contradiction(other)
        )

    def _group_contradiction(self, other: _Job) -> str:
        others = {name for name, _ in other.groups}
        for name, ranks in self.groups:
            consistent = (name, ranks) in other.groups or name not in others
            if not consistent and not other.ranks.keys().isdisjoint(ranks):
                return f"group {name} has the ranks {format_ranges(ranks)} in one of them only"
        return ""

    def _time_contradiction(self, other: _Job) -> str:
        if not self.times or not other.times:
            return ""
        gap = max(min(other.times) - max(self.times), min(self.times) - max(other.times))
        return "they are more than a day apart" if gap > _DAY_NS else ""


def split_jobs(files: Sequence[RankFile], folder: Path) -> list[list[RankFile]]:
    """The files of each job. With several, a note in the first file of each says so."""
    files = _without_copies(files)
    alike: dict[tuple[str, str, str], list[RankFile]] = defaultdict(list)
    for file in files:
        pattern = _RANK.sub(r"\1*", file.path.name)
        alike[file.traffic.source, str(file.path.parent), pattern].append(file)
    jobs: dict[str, list[_Job]] = defaultdict(list)  # by source
    reasons: list[str] = []
    for (source, _, _), same_name in alike.items():
        for cluster in _by_time(same_name):
            contradictions = []
            for job in jobs[source]:
                if not (contradiction := job.contradiction(cluster)):
                    job.add(cluster.files)
                    break
                contradictions.append(contradiction)
            else:
                jobs[source].append(cluster)
                reasons += contradictions[:1]
    split = [job.files for of_source in jobs.values() for job in of_source]
    if len(split) == 1:
        return split
    what = f"{folder} holds {len(split)} jobs" if reasons else f"{folder} holds {len(jobs)} kinds"
    reason = f", told apart because {reasons[0]}" if reasons else " of files"
    for number, job_files in enumerate(split, 1):
        note = f"{what}{reason}: this is number {number}, of {_names(job_files)}"
        job_files[0] = with_note(job_files[0], note)
    return split


def with_note(file: RankFile, note: str) -> RankFile:
    traffic = dataclasses.replace(file.traffic, notes=[note, *file.traffic.notes])
    return dataclasses.replace(file, traffic=traffic)


def _names(files: Sequence[RankFile]) -> str:
    """Their names, with what differs of their folders."""
    folder = common_folder(file.path.parent for file in files)
    names = [os.path.relpath(file.path, folder) for file in files]
    names = shorten_list(names, _NAMED)
    return " and ".join(names) if len(names) < 3 else ", ".join(names)


def _by_time(files: Sequence[RankFile]) -> list[_Job]:
    """Files that differ in their ranks alone. A rank that comes again begins another job, and a
    file belongs to the latest job that does not have its rank.
    """
    clusters: list[_Job] = []
    for file in sorted(files, key=lambda file: file.began_ns or 0):
        ranks = file.traffic.calls.keys()
        latest = next((c for c in reversed(clusters) if ranks.isdisjoint(c.ranks)), None)
        if latest is None:
            latest = _Job()
            clusters.append(latest)
        latest.add([file])
    for cluster in clusters:
        cluster.files.sort(key=lambda file: file.path)
    return clusters


def _without_copies(files: Sequence[RankFile]) -> list[RankFile]:
    """Of several dumps of one process, the one with the most calls."""
    kept: list[RankFile] = []
    of_rank: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    for file in files:
        key = (file.traffic.source, tuple(file.traffic.calls))
        for index in of_rank[key]:
            if not _same_process(kept[index], file):
                continue
            more, less = sorted((kept[index], file), key=_calls, reverse=True)
            names = _names([less, more])
            note = f"{names} have calls in common: the one with more of them is read"
            kept[index] = with_note(more, note)
            break
        else:
            of_rank[key].append(len(kept))
            kept.append(file)
    return kept


def _calls(file: RankFile) -> int:
    return sum(map(len, file.traffic.calls.values()))


def _same_process(file: RankFile, other: RankFile) -> bool:
    if file.traffic.clocks and other.traffic.clocks:
        return not file.created_ns.isdisjoint(other.created_ns)
    return bool(file.traffic.calls) and file.traffic.calls == other.traffic.calls


def shown_path(files: Sequence[RankFile]) -> Path:
    """The file, or what the paths of the files have in common."""
    return Path(common_folder(file.path for file in files))

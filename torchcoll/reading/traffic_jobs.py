"""Tells apart the jobs whose files are in one folder, each a trace or a dump of one rank.

Files are of one job unless a rank is there twice, the number of ranks differs, or they are more
than a day apart. Of several files of one rank, those with one name but for the rank belong together
(``a_rank0.json`` and ``a_rank1.json``), and of one name those that began at about the same time.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torchcoll.core.opening import common_folder
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import shorten_list

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

    @cached_property
    def began_ns(self) -> int | None:
        """When its first call was issued, since 1970; None where the file does not say it."""
        starts = (
            self.traffic.clocks[rank][1] + call.start_ns
            for rank, calls in self.traffic.calls.items()
            if rank in self.traffic.clocks
            for call in calls
            if call.start_ns is not None
        )
        return min(starts, default=None)

    @property
    def world(self) -> int | None:
        """The number of ranks of the job; None where the file does not say it."""
        groups = self.traffic.groups.values()
        sizes = [len(group.ranks) for group in groups if group.description == "default_pg"]
        return max(sizes, default=0) or None


def split_jobs(files: Sequence[RankFile], folder: Path) -> list[list[RankFile]]:
    """The files of each job. With several, a note in the first file of each says so."""
    alike: dict[tuple[str, str, str], list[RankFile]] = defaultdict(list)
    for file in files:
        pattern = _RANK.sub(r"\1*", file.path.name)
        alike[file.traffic.source, str(file.path.parent), pattern].append(file)
    jobs: dict[str, list[list[RankFile]]] = defaultdict(list)  # by source
    reasons: list[str] = []
    for (source, _, _), same_name in alike.items():
        for cluster in _by_time(same_name):
            contradictions = []
            for job in jobs[source]:
                if not (contradiction := _contradiction(job, cluster)):
                    job += cluster
                    break
                contradictions.append(contradiction)
            else:
                jobs[source].append(cluster)
                reasons += contradictions[:1]
    split = [job for of_source in jobs.values() for job in of_source]
    if len(split) == 1:
        return split
    what = f"{folder} holds {len(split)} jobs" if reasons else f"{folder} holds {len(jobs)} kinds"
    reason = f", told apart because {reasons[0]}" if reasons else " of files"
    for number, job_files in enumerate(split, 1):
        note = f"{what}{reason}: this is number {number}, of {_names(job_files)}"
        job_files[0] = with_note(job_files[0], note)
    return split


def _contradiction(job: Sequence[RankFile], other: Sequence[RankFile]) -> str:
    """Why the files of the two are not of one job; '' if nothing says so."""
    file_of = {rank: file for file in job for rank in file.traffic.calls}
    for file in other:
        for rank in sorted(file_of.keys() & file.traffic.calls.keys()):
            return f"rank {rank} is in both {_names([file_of[rank], file])}"
    worlds, times = (
        [{value for file in files if (value := getattr(file, name))} for files in (job, other)]
        for name in ("world", "began_ns")
    )
    if all(worlds) and worlds[0].isdisjoint(worlds[1]):
        return f"one has {min(worlds[0])} ranks and the other {min(worlds[1])}"
    if all(times):
        gap = max(min(times[1]) - max(times[0]), min(times[0]) - max(times[1]))
        return "they are more than a day apart" if gap > _DAY_NS else ""
    return ""


def with_note(file: RankFile, note: str) -> RankFile:
    traffic = dataclasses.replace(file.traffic, notes=[note, *file.traffic.notes])
    return dataclasses.replace(file, traffic=traffic)


def _names(files: Sequence[RankFile]) -> str:
    """Their names, with what differs of their folders."""
    folder = common_folder(file.path.parent for file in files)
    names = [os.path.relpath(file.path, folder) for file in files]
    names = shorten_list(names, _NAMED)
    return " and ".join(names) if len(names) < 3 else ", ".join(names)


def _by_time(files: Sequence[RankFile]) -> list[list[RankFile]]:
    """Files that differ in their ranks alone. A rank that comes again begins another job, and a
    file belongs to the latest job that does not have its rank.
    """
    clusters: list[list[RankFile]] = []
    for file in sorted(files, key=lambda file: file.began_ns or 0):
        ranks = file.traffic.calls.keys()
        for cluster in reversed(clusters):
            if all(ranks.isdisjoint(each.traffic.calls) for each in cluster):
                cluster.append(file)
                break
        else:
            clusters.append([file])
    return [sorted(cluster, key=lambda file: file.path) for cluster in clusters]


def shown_path(files: Sequence[RankFile]) -> Path:
    """The file, or what the paths of the files have in common."""
    return Path(common_folder(file.path for file in files))

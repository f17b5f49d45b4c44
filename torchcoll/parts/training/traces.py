"""Reads Traffic from captures, Kineto traces, Flight Recorder dumps and NCCL Inspector's files.

In a folder, files are of one job unless a rank is there twice, the number of ranks differs, or they
are more than a day apart. Files with one name but for the rank belong together.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torchcoll.core.errors import ForeignError, UnreadableError, UsageError
from torchcoll.core.file import is_traffic
from torchcoll.core.opening import common_folder, from_stdin
from torchcoll.core.other_commands import TRACE, begin_of
from torchcoll.core.traffic import Traffic, join, latest
from torchcoll.core.units import counted, format_ranges, shorten, shorten_list
from torchcoll.parts.training.inspector import is_inspector, read_inspector
from torchcoll.parts.training.kineto import is_trace, read_trace
from torchcoll.parts.training.kineto_events import Event, make_event
from torchcoll.reading.flight_recorder import (
    ITEM_BYTES,
    MEMORY_RATIO,
    foreign,
    is_dump,
    read_document,
    read_dump,
)
from torchcoll.reading.safe_pickle import is_pickle

_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_EVENT_BYTES = 300  # memory of an event without arguments
_MOST_DEPTH = 16  # folders below folders


def read_traffic(paths: Iterable[str | os.PathLike[str]]) -> Traffic:
    """Read and join the files of one job. Raises as ``read_jobs``, UsageError for several jobs."""
    jobs = _find_jobs(paths)
    if len(jobs) > 1:
        folders = " and ".join(str(shown_path(job)) for job in jobs[:2])
        value = f"{folders} and more" if len(jobs) > 2 else folders
        action = "Name its files: torchcoll trace PATH shows which those are."
        raise UsageError(f"files of {len(jobs)} jobs", value, "those of one", action)
    return _join_job(jobs[0])


def read_jobs(paths: Iterable[str | os.PathLike[str]]) -> list[Traffic]:
    """Read files and folders with one rank per file, and join the files of each job.

    A folder without such files has them in its subfolders. Raises UnreadableError for a file of
    another format, without communication or without a rank, and UsageError if the files do not
    belong together.
    """
    return [_join_job(job) for job in _find_jobs(paths)]


def _find_jobs(paths: Iterable[str | os.PathLike[str]]) -> list[list[RankFile]]:
    files_of = {path: _files(path) for path in (Path(os.fspath(from_stdin(p))) for p in paths)}
    inspected = dict.fromkeys(
        file
        for files in files_of.values()
        for file in files
        if file.is_file() and is_inspector(begin_of(str(file)))
    )
    inspected_jobs = [[RankFile(job)] for job in read_inspector([*inspected])] if inspected else []
    files_of = {
        path: remaining
        for path, files in files_of.items()
        if (remaining := [file for file in files if file not in inspected])
    }
    jobs: list[list[RankFile]] = []
    for path, files in files_of.items():
        if not path.is_dir():
            jobs.append([_read(file) for file in files])
            continue
        read = _read_folder(files)
        captures = [file for file in read if file.traffic.source == "capture"]
        others = [file for file in read if file.traffic.source != "capture"]
        jobs += split_jobs(others, path)
        if captures:
            latest_captures = latest([file.traffic for file in captures], path)
            jobs.append([RankFile(traffic) for traffic in latest_captures])
    if len(files_of) > 1:
        jobs = [[file for job in jobs for file in job]]
    return [*jobs, *inspected_jobs]


def _join_job(files: Sequence[RankFile]) -> Traffic:
    _check_steps(files)
    traffics = [file.traffic for file in files]
    ranks = max(traffic.ranks for traffic in traffics)
    with_all_ranks = [
        t if t.source == "capture" else dataclasses.replace(t, ranks=ranks) for t in traffics
    ]
    joined = _fill_ranks(join(with_all_ranks))
    joined.path = shown_path(files)
    return joined


def _files(path: Path) -> list[Path]:
    """The file, or those of a folder that can be read: if there are none, of its subfolders."""
    if not path.is_dir():
        return [path]
    folders = [path]
    for _ in range(_MOST_DEPTH):
        entries = sorted(entry for folder in folders for entry in folder.iterdir())
        files = [entry for entry in entries if entry.is_file()]
        if fitting := [f for f in files if f.name.endswith(_SUFFIXES) or _begins_as_rank(f)]:
            return fitting
        folders = [entry for entry in entries if entry.is_dir() and entry.name[0] != "."]
    expected = (
        f"files {', '.join(_SUFFIXES)}, dumps of the Flight Recorder or NCCL Inspector's in it"
    )
    raise UnreadableError("folder", path, expected)


def _begins_as_rank(path: Path) -> bool:
    """Whether it can be a dump, a pickle or JSON without a suffix, or a file of NCCL Inspector."""
    begin = begin_of(str(path))
    return is_pickle(begin) or bool(TRACE.match(begin)) or is_inspector(begin)


def _read_folder(files: Sequence[Path]) -> list[RankFile]:
    """What the files of a folder have. Files of other formats are left out, with a note."""
    read: list[RankFile] = []
    foreign: dict[Path, ForeignError] = {}
    for file in files:
        try:
            read.append(_read(file))
        except ForeignError as error:
            foreign[file] = error
    if not read:
        raise next(iter(foreign.values()))
    if foreign:
        names = shorten([*map(str, foreign)], 1, ", ...")
        note = f"left out {counted(len(foreign), 'file')} of other formats: {names}"
        read[0] = with_note(read[0], note)
    return read


def _read(path: Path) -> RankFile:
    """Return what one file has."""
    if is_traffic(path):
        return RankFile(Traffic.load(path))
    problems: list[str] = []
    data = read_document(path, problems, _event)
    if problems:
        raise UnreadableError("trace", problems[0], "a whole file")
    if is_trace(data):
        return RankFile(*read_trace(data, path))
    if is_dump(data):
        return RankFile(read_dump(data, path))
    raise foreign(path)


def _event(record: object) -> tuple[Event | None, int]:
    """The event, None if it is not needed, and its estimated memory."""
    event = make_event(record)
    return event, _event_bytes(event) if event else 0


def _event_bytes(event: Event) -> int:
    """Estimated memory of an event. Most events have no arguments."""
    if not event.args:
        return _EVENT_BYTES
    texts = sum(len(v) for v in event.args.values() if isinstance(v, str))
    lists = sum(len(str(v)) for v in event.args.values() if isinstance(v, (list, dict)))
    items = ITEM_BYTES // 4 * len(event.args)
    return _EVENT_BYTES + items + texts + MEMORY_RATIO * lists


def _check_steps(files: Sequence[RankFile]) -> None:
    """Raise UsageError if traces begin with different steps: calls are counted from the start."""
    firsts = {file.first_step: file.path for file in files}
    if len(firsts) > 1:
        paths = " and ".join(str(path) for path in list(firsts.values())[:2])
        steps = " and ".join("none" if first is None else str(first) for first in list(firsts)[:2])
        action = "Read one rank alone, or profile all with one schedule."
        raise UsageError(f"first step of {paths}", steps, "the same of all ranks", action)


def _fill_ranks(traffic: Traffic) -> Traffic:
    """Fill in the ranks of groups, which a Flight Recorder on gloo does not have.

    torch's default group has all ranks. Another group has the ranks that made calls in it, if all
    ranks were read. The dump of a single rank does not have the number of ranks.
    """
    if traffic.source != "flight recorder":
        return traffic
    if len(traffic.calls) == 1 and not any(group.ranks for group in traffic.groups.values()):
        traffic.notes.append(
            "the dump does not say how many ranks there are: read those of all ranks together"
        )
        return traffic
    everyone = set(traffic.calls) == set(range(traffic.ranks))
    for name, group in traffic.groups.items():
        if group.ranks:
            continue
        makers = [r for r, calls in traffic.calls.items() if any(c.group == name for c in calls)]
        if group.description == "default_pg":
            traffic.groups[name] = dataclasses.replace(group, ranks=tuple(range(traffic.ranks)))
        elif everyone:
            traffic.groups[name] = dataclasses.replace(group, ranks=tuple(sorted(makers)))
            traffic.notes.append(
                f"group {name}: its ranks are not known, taken for {format_ranges(makers)}, which "
                "made calls in it"
            )
    return traffic


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

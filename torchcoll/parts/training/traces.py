"""Reads Traffic from captures, Kineto traces, Flight Recorder dumps and NCCL Inspector's files.

In a folder, files are of one job unless a rank is there twice, or they are more than a day apart.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torchcoll.core.errors import ForeignError, UnreadableError, UsageError
from torchcoll.core.file import is_traffic
from torchcoll.core.opening import common_folder, from_stdin
from torchcoll.core.other_commands import TRACE, begin_of
from torchcoll.core.traffic import Traffic, join, latest
from torchcoll.core.units import counted, format_ranges, shorten
from torchcoll.parts.training.flight_dump import is_dump, read_dump
from torchcoll.parts.training.inspector import is_inspector, read_inspector
from torchcoll.parts.training.kineto import is_trace, read_trace
from torchcoll.parts.training.kineto_events import Event, make_event
from torchcoll.reading.flight_recorder import (
    ITEM_BYTES,
    MEMORY_RATIO,
    foreign,
    read_document,
)
from torchcoll.reading.safe_pickle import is_pickle

_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_EVENT_BYTES = 300  # memory of an event without arguments
_MOST_DEPTH = 16  # folders below folders


def read_traffic(paths: Iterable[str | os.PathLike[str]]) -> Traffic:
    """Read files and folders with one rank per file, and join the ranks of one job.

    A folder without such files has them in its subfolders. Of several jobs in a folder the latest
    is read; a note names the files that are left out. Raises UnreadableError for a file of another
    format, without communication or without a rank, and UsageError if the files do not belong
    together.
    """
    read: list[RankFile] = []
    inspected: list[Path] = []
    for path in (Path(os.fspath(from_stdin(p))) for p in paths):
        files = _files(path)
        of_inspector = [f for f in files if f.is_file() and is_inspector(begin_of(str(f)))]
        inspected += of_inspector
        files = [file for file in files if file not in of_inspector]
        if files:
            read += _read_folder(files, path) if path.is_dir() else map(_read, files)
    if inspected:
        read.append(RankFile(read_inspector(list(dict.fromkeys(inspected)))))
    return _join_job(read)


def _join_job(files: Sequence[RankFile]) -> Traffic:
    _check_steps(files)
    traffics = [file.traffic for file in files]
    ranks = max(traffic.ranks for traffic in traffics)
    with_all_ranks = [
        t if t.source == "capture" else dataclasses.replace(t, ranks=ranks) for t in traffics
    ]
    joined = _fill_ranks(join(with_all_ranks))
    joined.path = Path(common_folder(file.path for file in files))
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


def _read_folder(files: Sequence[Path], folder: Path) -> list[RankFile]:
    """The files of the latest job. Files of other formats are left out, with a note."""
    read: list[RankFile] = []
    foreign: dict[Path, ForeignError] = {}
    for file in files:
        try:
            read.append(_read(file))
        except ForeignError as error:
            foreign[file] = error
    if not read:
        raise next(iter(foreign.values()))
    job = _latest_job(read, folder)
    if foreign:
        names = shorten([*map(str, foreign)], 1, ", ...")
        job[0].add_note(f"left out {counted(len(foreign), 'file')} of other formats: {names}")
    return job


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
    if not event or not event.args:  # as most
        return event, _EVENT_BYTES if event else 0
    texts = sum(len(v) for v in event.args.values() if isinstance(v, str))
    lists = sum(len(str(v)) for v in event.args.values() if isinstance(v, (list, dict)))
    items = ITEM_BYTES // 4 * len(event.args)
    return event, _EVENT_BYTES + items + texts + MEMORY_RATIO * lists


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


@dataclass(frozen=True)
class RankFile:
    """What one file has. first_step: the first one that a profiler marked; None without marks."""

    traffic: Traffic
    first_step: int | None = None

    @property
    def path(self) -> Path:
        return self.traffic.path or Path()

    @cached_property
    def began_ns(self) -> int:
        """When its first call was issued, since 1970; 0 where the file does not say it."""
        starts = (
            self.traffic.clocks[rank][1] + call.start_ns
            for rank, calls in self.traffic.calls.items()
            if rank in self.traffic.clocks
            for call in calls
            if call.start_ns is not None
        )
        return min(starts, default=0)

    def add_note(self, note: str) -> None:
        self.traffic.notes.insert(0, note)


def _latest_job(files: Sequence[RankFile], folder: Path) -> list[RankFile]:
    """The files of the latest job in a folder, of one format; a note names those of other jobs.

    A rank that comes again begins another job, and so does a file of a day later. A file belongs
    to the latest job that does not have its rank.
    """
    captures = [file.traffic for file in files if file.traffic.source == "capture"]
    if captures:
        return [RankFile(traffic) for traffic in latest(captures, folder)]
    # Traces of a profiler have more than dumps of the Flight Recorder.
    source = max(file.traffic.source for file in files)
    jobs: list[list[RankFile]] = []
    for file in sorted(files, key=lambda file: file.began_ns):
        if file.traffic.source != source:
            continue
        for job in reversed(jobs):
            ranks = {rank for each in job for rank in each.traffic.calls}
            near = not job[0].began_ns or file.began_ns - job[0].began_ns < _DAY_NS
            if near and ranks.isdisjoint(file.traffic.calls):
                job.append(file)
                break
        else:
            jobs.append([file])
    job = sorted(jobs[-1], key=lambda file: file.path)
    paths = {file.path for file in job}
    others = [os.path.relpath(file.path, folder) for file in files if file.path not in paths]
    if others:
        names = shorten(others, _NAMED, ", {} more")
        job[0].add_note(f"{folder}: its latest job is read; left out {names}")
    return job

"""Finds log files, recognises the library of each by its lines, and reads them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from torchcoll.core.bounds import MOST_TEXT
from torchcoll.core.errors import UnreadableError
from torchcoll.core.jsonl import lines_of
from torchcoll.core.other_commands import begin_of, reading_command
from torchcoll.core.stdin import from_stdin
from torchcoll.libraries.nccl import jobs as nccl_jobs
from torchcoll.libraries.nccl import log as nccl
from torchcoll.libraries.oneccl import log as oneccl

LogReader = nccl.NcclLogReader | oneccl.OneCclLogReader
Job = nccl_jobs.NcclJob | oneccl.OneCclJob

_NCCL = re.compile(rb" NCCL (?:INFO|WARN|TRACE|CALL) ")
_ONECCL = re.compile(rb"\d\)?(?::\[\d+\])? \|CCL_[A-Z]+\||^\|[A-Z]+\| \[\w+:\d+\]")

_LOG_FOLDER, _RESULTS = ".jsonl.logs", (".jsonl", ".jsonl.gz")
_WRITES = "A run with --library-log writes such a log."


def list_log_files(paths: Iterable[str]) -> list[str]:
    """List the log files among ``paths``: files as they are given, and the files of folders, with
    rank2.log before rank10.log.

    In a folder of results (also of a matrix) these are the files that --library-log wrote next to
    each result, in ``x.jsonl.logs``. Results themselves are skipped. Raises UnreadableError for a
    folder without logs.
    """
    files: list[str] = []
    for path in paths:
        if not os.path.isdir(path):
            files.append(os.fspath(from_stdin(path)))
            continue
        entries = sorted(os.scandir(path), key=_by_number)
        folders = [e for e in entries if e.is_dir() and e.name.endswith(_LOG_FOLDER)]
        inside = [e for folder in folders for e in sorted(os.scandir(folder), key=_by_number)]
        shown = [e for e in entries if e.name[0] != "." and not e.name.endswith(_RESULTS)]
        logs = [entry.path for entry in inside or shown if entry.is_file()]
        files += logs
        if not logs:
            raise UnreadableError("log", path, "a file, or a folder with logs", _WRITES)
    return list(dict.fromkeys(files))


def _by_number(entry: os.DirEntry[str]) -> tuple[int, str]:
    return len(entry.name), entry.name


def read_log(path: str) -> tuple[LogReader, list[str]]:
    """Read a log (also .gz): (the reader that has it, what was wrong with the file).

    Raises UnreadableError for a file that cannot be read or has no line of NCCL, RCCL or oneCCL.
    """
    problems: list[str] = []
    reader = _reader(path)
    reader.read(lines_of(Path(path), problems, "log", MOST_TEXT))
    return reader, problems


def _reader(path: str) -> LogReader:
    for line in lines_of(Path(path), [], "log", MOST_TEXT):
        if _NCCL.search(line):
            return nccl.NcclLogReader(path)
        if _ONECCL.search(line):
            return oneccl.OneCclLogReader(path)
    raise UnreadableError(
        "log",
        path,
        "lines of NCCL, RCCL or oneCCL",
        reading_command(begin_of(path), path, "log") or _WRITES,
    )


def group_jobs(readers: Sequence[LogReader]) -> list[Job]:
    """Group the processes in these files into jobs, for each library."""
    return [
        *nccl_jobs.jobs([reader for reader in readers if isinstance(reader, nccl.NcclLogReader)]),
        *oneccl.jobs([reader for reader in readers if isinstance(reader, oneccl.OneCclLogReader)]),
    ]

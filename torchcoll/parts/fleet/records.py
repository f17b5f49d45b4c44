"""What `collect`, `fleet` and `history` keep: a RunSummary per run, a CaseSummary per case.

The samples stay in the result file; a summary has its path and its SHA-256.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from torchcoll.core.case import Case
from torchcoll.core.errors import UnreadableError, tell
from torchcoll.core.file import files_of_run
from torchcoll.core.opening import is_stdin
from torchcoll.core.result import CaseResult, Run, case_from_json, check_ranks, check_texts
from torchcoll.core.run_facts import host_names, node_of
from torchcoll.core.skipping import may_skip, skip
from torchcoll.core.summary import Row, libraries_of, summarise
from torchcoll.core.units import shorten
from torchcoll.reading.inputs import (
    Inside,
    Source,
    expand,
    load_all,
    resolve_sources,
    split_label,
)
from torchcoll.stats.sides import known_of, start_of

DAY_US = 86_400_000_000
NIGHT_START_US = 43_200_000_000  # a night begins at 12:00 UTC
CLOCK_OFF_US = 300_000_000  # 5 minutes: more than any transfer is early
OK, WRONG, FAILED, SKIPPED = "ok", "wrong", "failed", "skipped"
# Facts that name the run itself: they differ from run to run and cannot explain a difference.
_OF_ONE_RUN = {"hosts", "label=node", "label=run", "label=cell", "label=round", "label=date"}


def sha256_of(data: Any) -> str:
    """A hash of what JSON can hold, whatever the order of its names."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class CaseKey:
    """What is the same case in every run: the request, the number of ranks, and what was timed.

    statistic: what the time is of the calls (median, period, mean, ...). clock: host or device.
    """

    case: Case
    ranks: int
    statistic: str
    clock: str

    @classmethod
    def of(cls, result: CaseResult, row: Row) -> CaseKey:
        """row: the summary of ``result``."""
        return cls(result.case, result.ranks, row.statistic or "", row.clock or "")

    def to_json(self) -> dict[str, Any]:
        key = {"ranks": self.ranks, "statistic": self.statistic, "clock": self.clock}
        return {"case": self.case.to_json(), **key}

    def to_row(self) -> dict[str, Any]:
        """The fields side by side, for rows of JSON and CSV."""
        return {**self.case.to_json(), **{k: v for k, v in self.to_json().items() if k != "case"}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseKey:
        """Raises KeyError, TypeError or ValueError for what no case can be."""
        case = case_from_json(data["case"])
        check_ranks(data["ranks"])
        check_texts(data["statistic"], data["clock"])
        return cls(case, data["ranks"], data["statistic"], data["clock"])

    @cached_property
    def sha256(self) -> str:
        """The same for equal keys, on every machine: what a store identifies the case by."""
        return sha256_of(self.to_json())


@dataclass(frozen=True)
class CaseSummary:
    """The figures of one case in one run. Times in ns, bandwidths in GB/s, None where unknown.

    time_ns: the slowest rank's, as ``statistic`` of the key says. low_ns, high_ns: 5th and 95th
    percentile of the calls. status: ok; wrong (verification failed); skipped (also unsupported);
    otherwise failed. Only ``ok`` has a time that may be compared.
    """

    key: CaseKey
    status: str
    reason: str = ""
    size_bytes: int = 0
    time_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    p99_ns: float | None = None
    first_call_ns: float | None = None
    second_call_ns: float | None = None
    calls: int = 0
    algbw_gbps: float | None = None
    busbw_gbps: float | None = None
    verified: str = "unchecked"


_OF_ROW = [
    each.name for each in fields(CaseSummary) if each.name not in ("key", "status", "time_ns")
]


@dataclass(frozen=True)
class RunSummary:
    """One run, without its cases.

    run_id: of the file's header; of an imported run a hash of its figures and labels. start_us,
    received_us: when it began by the clock of its host, and when its file was last written, in us
    of UTC since 1970. node: the label ``node``, else the host if all ranks ran on one, else ''.
    facts: versions, devices, variables and labels by name. status: complete, interrupted, failed or
    truncated.
    """

    run_id: str
    path: str
    file_sha256: str
    node: str
    hosts: tuple[str, ...]
    ranks: int
    device_name: str
    start_us: int | None
    received_us: int | None
    status: str
    exit_code: int | None
    wall_s: float | None
    facts: Mapping[str, str]
    labels: Mapping[str, str]


def summarise_run(
    run: Run, file: str = "", received_us: int | None = None
) -> tuple[RunSummary, tuple[CaseSummary, ...]]:
    """Reduces a loaded run to what is kept of it.

    file: which it was read from; '' takes the path of the run, which an imported run has none of.
    received_us: None takes the time at which the file was last written. Raises OSError if the file
    has gone.
    """
    hosts = tuple(host_names(run.members) or host_names([run.environment]))
    node = node_of(run)
    facts = known_of(run)
    start = start_of(run)
    end = run.end or {}
    path = Path(file) if file else run.path
    content = path.read_bytes() if path and path.is_file() else b""
    cases = tuple(
        _summarise_case(*item) for item in zip(run.results, libraries_of(run), strict=True)
    )
    file_sha256 = hashlib.sha256(content).hexdigest() if content else ""
    if received_us is None and content and path:
        received_us = int(path.stat().st_mtime * 1e6)
    # An imported run has no identity of its own, and a file may hold several: its figures are one.
    text = f"{start} {node} {sorted(run.labels.items())} {[(c.key, c.time_ns) for c in cases]}"
    figures_sha256 = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    summary = RunSummary(
        run_id=figures_sha256 if run.source else str(run.header.get("run_id") or figures_sha256),
        path=str(path or run.source.get("file") or ""),
        file_sha256=file_sha256,
        node=node,
        hosts=hosts,
        ranks=run.ranks,
        device_name=facts.get("device_name", ""),
        start_us=None if start is None else int(start * 1e6),
        received_us=received_us,
        status=str(end.get("status") or "truncated"),
        exit_code=end.get("exit_code"),
        wall_s=end.get("wall_s"),
        facts={k: v for k, v in facts.items() if k not in _OF_ONE_RUN},
        labels=dict(run.labels),
    )
    return summary, cases


def _summarise_case(result: Any, library: str | None) -> CaseSummary:
    row = summarise(result, library=library)
    statuses = {"ok": OK, "wrong": WRONG, "unsupported": SKIPPED, "skipped": SKIPPED}
    return CaseSummary(
        key=CaseKey.of(result, row),
        status=statuses.get(row.outcome, FAILED),
        time_ns=row.median_ns,
        **{name: getattr(row, name) for name in _OF_ROW},
    )


_NAMED = 5


def files_of(path: str) -> list[Source]:
    """The files of a folder or glob; of a folder that has only folders, such as one for each night,
    the files below it. Raises UnreadableError if there are none.
    """
    try:
        return expand(path)
    except UnreadableError:
        folder = glob.escape(path)
        if not os.path.isdir(path) or not any(map(os.path.isfile, glob.glob(f"{folder}/*/*"))):
            raise
        return expand(f"{folder}/**/*")


def runs_with_paths(arguments: Iterable[str]) -> Iterator[tuple[Run, str]]:
    """Yields the runs of files, folders and globs with their files, each read when it is its turn.

    A ``label=PATH`` names its runs. Files of folders and globs that are no results, or that cannot
    be read, are named on stderr. Raises UnreadableError for a file that was named and cannot be
    read, and for a folder or glob without any run.
    """
    seen: set[str] = set()
    refused: list[UnreadableError] = []
    number = 0
    for argument in arguments:
        label, path = split_label(argument)
        errors: dict[str, UnreadableError] = {}
        files = [file for file in files_of(path) if not isinstance(file, Run)]
        for file in files:
            if str(file) in seen:
                continue
            seen.update(map(str, files_of_run(file)))
            try:
                if label:
                    runs = [r for r in resolve_sources([f"{label}={file}"]) if isinstance(r, Run)]
                else:
                    runs = load_all([file])
            except UnreadableError as error:
                if isinstance(file, Inside):
                    errors[str(file)] = error
                elif may_skip():
                    refused.append(error)
                else:
                    raise
                continue
            number += len(runs)
            yield from ((run, "" if is_stdin(file) else str(file)) for run in runs)
        if errors and len(errors) == len(files):
            raise next(iter(errors.values()))
        if errors:
            names = shorten(list(errors), _NAMED)
            tell(f"torchcoll: note: skipped files that could not be read as results: {names}")
    skip(refused, number > 0)

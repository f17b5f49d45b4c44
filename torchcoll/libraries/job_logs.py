"""Facts and tables of a job's logs, as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.core.units import format_ranges
from torchcoll.core.variables import kept_value, masked, masked_texts
from torchcoll.libraries.log_files import Job, LogReader
from torchcoll.libraries.logged import LoggedCall, ranges
from torchcoll.libraries.nccl.jobs import NcclCommunicator, NcclJob
from torchcoll.libraries.oneccl import log as oneccl

Row = dict[str, Any]
# The kinds of lines that a file's Tally counts (libraries/logged.py).
KINDS = ("understood", "known", "cut", "unknown", "other")


@dataclass
class JobLog:
    """What the logs of one job contain.

    facts: name -> value.
    variables: name -> value of the environment variables that are set, or differ from the default.
    tables: name -> rows. All rows of a table have the same keys, and no table is empty.
    warnings: text -> how often it occurs.
    crashes: who crashed, such as ``rank 1 (Segmentation fault)``.
    """

    facts: dict[str, Any]
    variables: dict[str, str] = field(default_factory=dict)
    tables: dict[str, list[Row]] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    files: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)


def job_log(job: Job) -> JobLog:
    """The facts and tables of one job."""
    log = _nccl_log(job) if isinstance(job, NcclJob) else _oneccl_log(job)
    log.facts = masked_texts({k: v for k, v in log.facts.items() if v not in (None, "", [])})
    log.tables = {table: masked_texts(rows) for table, rows in log.tables.items() if rows}
    warnings = log.warnings
    log.warnings = Counter()
    for text, count in warnings.items():
        log.warnings[masked(text)] += count
    return log


def file_rows(readers: Sequence[LogReader]) -> list[Row]:
    """A row for each file: its lines by kind, and examples of those that were not understood."""
    return [
        {
            "file": reader.file,
            "lines": reader.tally.lines,
            **{kind: reader.tally.counts[kind] for kind in KINDS},
            "examples": [{"line": n, "text": masked(text)} for n, text in reader.tally.examples],
        }
        for reader in readers
    ]


def _nccl_log(job: NcclJob) -> JobLog:
    processes = job.processes
    numbered = list(enumerate(job.communicators))
    facts = {
        "library": "RCCL" if any(p.library == "RCCL" for p in processes) else "NCCL",
        "version": _values(p.version for p in processes) or job.version,
        "git": _values(p.git for p in processes),
        "cuda_driver": _values(p.driver for p in processes),
        "processes": len(processes),
        "hosts": job.hosts,
        "ranks": max((group.nranks or 0 for group in job.communicators), default=0) or None,
        "network": _values(p.network for p in processes),
        "tuner": _values(p.tuner for p in processes),
        "nvls_multicast": _values(p.nvls for p in processes),
    }
    tables = {
        "communicators": [_communicator(n, g) for n, g in numbered if g.nranks is not None],
        "rings": [row for n, g in numbered for row in _rings(n, g)],
        "graphs": [{"communicator": n, **g._asdict()} for n, c in numbered for g in c.graphs],
        "transports": [
            {"kind": kind, "connections": count, "pairs": len(job.pairs(kind)) or None}
            for kind, count in sorted(job.transports.items())
        ],
        "tuning": [
            {"communicator": n, **cell._asdict()}
            for n, g in numbered
            for cell in g.tuning
            if cell.algbw_gbps
        ],
        "choices": _choices(job.calls),
    }
    variables: dict[str, dict[str, None]] = {}
    for process in processes:
        for name, value in process.variables.items():
            variables.setdefault(name, {})[value] = None
    named = {name: _several_values(name, values) for name, values in sorted(variables.items())}
    return JobLog(facts, named, tables, job.warnings, job.files)


def _several_values(name: str, values: Iterable[str]) -> str:
    """The values of a variable as they may be shown."""
    return _values(kept_value(name, value) for value in values)


def _values(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(filter(None, texts)))


def _communicator(number: int, group: NcclCommunicator) -> Row:
    slowest, bootstraps = group.slowest, [m.bootstrap for m in group.members if m.bootstrap]
    phases = dict(slowest.timings) if slowest else {}
    total = phases.pop("total", None)
    # A line without its last phase ("rest") was cut, and a longer phase may have followed.
    largest = max(phases, key=lambda name: phases[name]) if "rest" in phases else None
    channels: Counter[str] = Counter()
    for member in group.members:
        channels |= Counter(member.channels)
    return {
        "communicator": number,
        "made_by": _values(m.made_by for m in group.members) or None,
        "ranks": group.nranks,
        "ranks_seen": sum(m.rank is not None for m in group.members),
        "nodes": group.nodes,
        "init_s": total,
        "slowest_rank": slowest.rank if slowest else None,
        "largest_part": largest,
        "largest_part_s": phases[largest] if largest else None,
        "bootstrap_s": max((b["total"] for b in bootstraps if "total" in b), default=None),
        "coll_channels": channels.get("coll"),
        "nvls_channels": channels.get("nvls"),
        "p2p_channels": channels.get("p2p"),
        "nvls": any(m.nvls for m in group.members) or None,
        "state": group.state,
    }


def _rings(number: int, group: NcclCommunicator) -> list[Row]:
    """A row for each distinct ring of two ranks or more, with the channels that have it."""
    orders: dict[tuple[int, ...], list[int]] = {}
    for channel, order in sorted(group.rings.items()):
        if len(order) > 1:
            orders.setdefault(order, []).append(channel)
    return [
        {
            "communicator": number,
            "channels": format_ranges(channels),
            "order": list(order),
            "whole": group.nranks is None or len(order) == group.nranks,
        }
        for order, channels in orders.items()
    ]


def _oneccl_log(job: oneccl.OneCclJob) -> JobLog:
    facts = {
        "library": "oneCCL",
        "version": job.first("version"),
        "libfabric": job.first("libfabric"),
        "processes": job.whole,
        "threads": job.threads if job.threads and job.threads != job.whole else None,
        "ranks": job.size,
        "transport": job.first("transport"),
        "provider": job.first("provider"),
        "launcher": job.first("launcher"),
    }
    changed: dict[str, tuple[dict[str, None], str]] = {}
    for process in job.processes:
        for name, (value, default) in process.changed.items():
            changed.setdefault(name, ({}, default))[0][value] = None
    # A rank's local number and the number of local ranks are not settings.
    variables = {
        name: f"{_several_values(name, values)} (default {default})"
        for name, (values, default) in sorted(changed.items())
        if name not in ("CCL_LOCAL_RANK", "CCL_LOCAL_SIZE")
    }
    tables = {
        "selection": [line._asdict() for line in job.selection],
        "choices": _choices(job.calls),
    }
    return JobLog(facts, variables, tables, job.warnings, job.files, job.crashes)


def _choices(calls: Counter[LoggedCall]) -> list[Row]:
    return [
        {
            "function": size_range.function or None,
            "low": size_range.low,
            "high": size_range.high,
            "unit": size_range.unit,
            "size_basis": size_range.basis or None,
            "sizes": size_range.sizes,
            "choice": list(size_range.labels),
            "channels": list(size_range.channels) or None,
            "calls": size_range.calls,
        }
        for size_range in ranges(calls)
    ]

"""Finds and reads logs, and makes facts, tables and the answer of ``torchcoll log`` from them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.core import units
from torchcoll.core.answer import Answer
from torchcoll.core.bounds import MOST_TEXT
from torchcoll.core.errors import UnreadableError, one_line
from torchcoll.core.jsonl import lines_of
from torchcoll.core.opening import from_stdin
from torchcoll.core.other_commands import begin_of, reading_command
from torchcoll.core.units import format_ranges
from torchcoll.core.variables import kept_value, masked, masked_texts
from torchcoll.libraries.known_variables import FORCING
from torchcoll.libraries.logged import LoggedCall, ranges
from torchcoll.libraries.nccl import jobs as nccl_jobs
from torchcoll.libraries.nccl import log as nccl
from torchcoll.libraries.nccl.jobs import NcclCommunicator, NcclJob
from torchcoll.libraries.nccl.slow_paths import SlowPath, slow_paths
from torchcoll.libraries.oneccl import log as oneccl

if TYPE_CHECKING:
    from torchcoll.libraries.dumps import Dump
LogReader = nccl.NcclLogReader | oneccl.OneCclLogReader
Job = nccl_jobs.NcclJob | oneccl.OneCclJob

_NCCL = re.compile(rb" NCCL (?:INFO|WARN|TRACE|CALL) ")
_ONECCL = re.compile(rb"\d\)?(?::\[\d+\])? \|CCL_[A-Z]+\||^\|[A-Z]+\| \[\w+:\d+\]")

_LOG_FOLDER = ".jsonl.logs"
# Endings of results, pictures and scripts in a folder of logs.
_NO_LOGS = (".jsonl", ".jsonl.gz", ".svg", ".png", ".pdf", ".py", ".sh", ".ipynb")
WRITES = "A run with --library-log writes such a log."


def list_log_files(paths: Iterable[str]) -> list[str]:
    """The log files among ``paths`` and in folders, rank2.log before rank10.log; of results the
    logs of --library-log beside them. Raises UnreadableError without any.
    """
    files: list[str] = []
    for path in paths:
        if not os.path.isdir(path):
            files.append(os.fspath(from_stdin(path)))
            continue
        entries = sorted(os.scandir(path), key=_by_number)
        folders = [e for e in entries if e.is_dir() and e.name.endswith(_LOG_FOLDER)]
        inside = [e for folder in folders for e in sorted(os.scandir(folder), key=_by_number)]
        shown = [e for e in entries if e.name[0] != "." and not e.name.endswith(_NO_LOGS)]
        logs = [entry.path for entry in inside or shown if entry.is_file()]
        files += logs
        if not logs:
            raise UnreadableError("log", path, "a file, or a folder with logs", WRITES)
    return list(dict.fromkeys(files))


def _by_number(entry: os.DirEntry[str]) -> tuple[int, str]:
    return len(entry.name), entry.name


def read_log(path: str) -> tuple[LogReader, list[str]]:
    """(reader that has a log, problems of the file). Raises UnreadableError for any other file."""
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
    action = reading_command(begin_of(path), path, "log") or WRITES
    raise UnreadableError("log", path, "lines of NCCL, RCCL or oneCCL", action)


def group_jobs(readers: Sequence[LogReader]) -> list[Job]:
    """Group the processes in these files into jobs, for each library."""
    of_nccl = [reader for reader in readers if isinstance(reader, nccl.NcclLogReader)]
    of_oneccl = [reader for reader in readers if isinstance(reader, oneccl.OneCclLogReader)]
    return [*nccl_jobs.jobs(of_nccl), *oneccl.jobs(of_oneccl)]


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
    slow_paths: why the communication is slow, as the log proves it.
    """

    facts: dict[str, Any]
    variables: dict[str, str] = field(default_factory=dict)
    tables: dict[str, list[Row]] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    files: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    slow_paths: list[SlowPath] = field(default_factory=list)


def job_log(job: Job) -> JobLog:
    """The facts and tables of one job."""
    log = _nccl_log(job) if isinstance(job, NcclJob) else _oneccl_log(job)
    log.facts = masked_texts({k: v for k, v in log.facts.items() if v not in (None, "", [])})
    log.tables = {table: masked_texts(rows) for table, rows in log.tables.items() if rows}
    warnings, log.warnings = log.warnings, Counter()
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
    named = {n: _values(kept_value(n, v) for v in of_n) for n, of_n in sorted(variables.items())}
    paths = slow_paths(processes)
    return JobLog(facts, named, tables, job.warnings, job.files, slow_paths=paths)


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
            "of_channels": group.ring_count,
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
        name: f"{_values(kept_value(name, value) for value in values)} (default {default})"
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


_MOST_CRASHES = 8
_MOST_FUNCTIONS = 2  # with their choices
_MOST_SETTINGS = 3
_VERSION = re.compile(r"\d+(?:\.\d+)+")
# Variables that say what is logged or how ranks were launched, and no way of communicating.
_ASIDE = re.compile(r"N?CCL_(DEBUG|LOG_|DUMP_|PROCESS_LAUNCHER|GRAPH_DUMP|TOPO_DUMP)")
_OFF = re.compile(r"NCCL_(\w+)_DISABLE")
# Messages at the level of a warning that report a normal choice.
_HARMLESS = ("did not find MPI-launcher specific variables",)
_LOG_MORE = "log the choices too: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING"


def logs_answer(jobs: Sequence[JobLog], dumps: Sequence[Dump]) -> Answer | None:
    """What these files show; None for topologies alone, unless one is damaged."""
    problems = _dump_problems(dumps)
    if not jobs:
        return Answer(one_line("; ".join(problems)), "doubt") if problems else None
    if len(jobs) == 1:
        answer = job_answer(jobs[0])
        before = "".join(f"{one_line(problem)}; " for problem in problems)
        level = "doubt" if problems else answer.level
        return replace(answer, level=level, before=before + answer.before)
    files = list(dict.fromkeys(file for job in jobs for file in job.files))
    text = f"{units.counted(len(jobs), 'job')} in {units.counted(len(files), 'log')}"
    troubles = [warning for job in jobs for warning in _troubles(job)]
    choices = Counter(chosen for job in jobs if (chosen := _chosen(job)))
    named = units.shorten(list(choices), 1, "; and {} more", between="; ")
    number = sum(choices.values())
    verb = units.plural(number, "logs its choices", "log their choices")
    text += f": {number} of them {verb}: {named}" if choices else ", none with its choices"
    forced = Counter(setting for job in jobs for setting in _forced(job))
    settings = [f"{setting} in {count}" for setting, count in forced.items()]
    settings = units.shorten_list(settings, _MOST_SETTINGS, "{} more settings")
    texts = [*problems, *units.shorten_list(troubles, 1, "{} more"), text, *settings]
    return Answer(one_line("; ".join(texts)), "doubt" if problems or troubles else "")


def job_answer(job: JobLog) -> Answer:
    """What one job did."""
    library = f"{job.facts['library']} {_version(job)}".rstrip()
    chosen, troubles, paths, size = _chosen(job), _troubles(job), _paths(job), _size_text(job)
    details = _forced(job)
    if chosen:
        text = f"{library} chose {chosen}"
        details += [size] if size else []
    else:
        by = "with" if job.tables.get("communicators") else "logged by"
        facts = _planned(job) + (f" {by} {size}" if size else "")
        facts += f" over {paths}" if paths else ""
        text = library + (facts or " of unknown version" * (" " not in library))
    harmless = sum(warning.startswith(_HARMLESS) for warning in job.warnings)
    details += [units.counted(harmless, "harmless warning")] if harmless else []
    before = "".join(f"{one_line(text)}; " for text in troubles)
    is_bare = not (chosen or troubles or paths) and job.facts["library"] != "oneCCL"
    return Answer(
        one_line("; ".join([text, *details])),
        "doubt" if troubles else "",
        before=before,
        next_step=job.slow_paths[0].remedy if job.slow_paths else _LOG_MORE if is_bare else "",
    )


def _version(job: JobLog) -> str:
    match = _VERSION.search(str(job.facts.get("version") or ""))
    return match[0] if match else ""


def _planned(job: JobLog) -> str:
    """What a log without choices has: `` expects 9.00 GB/s ...``, `` built 2 rings ...``; or ''."""
    if rows := job.tables.get("tuning"):
        best = max(rows, key=lambda row: row["algbw_gbps"])
        more = f", best of {len(rows)} combinations" if len(rows) > 1 else ""
        text = f" expects {units.format_bandwidth(best['algbw_gbps'])} GB/s of algbw for "
        return f"{text}{best['function']} by {best['algorithm']}/{best['protocol']}{more},"
    if rows := job.tables.get("rings"):
        longest = max(len(row["order"]) for row in rows)
        ranks = units.counted(1 + max(max(row["order"]) for row in rows), "rank")
        if any(row["ranks"] == longest for row in job.tables.get("communicators", [])):
            return f" built {units.counted(len(rows), 'ring')} of {ranks},"
        rings = units.counted(max(row["of_channels"] for row in rows), "ring")
        shown = f"{len(rows)} of them, cut off after {units.counted(longest, 'rank')}"
        return f" built {rings} over at least {ranks} (the log shows {shown}),"
    return ""


def _size_text(job: JobLog) -> str:
    """``2 ranks on 1 host``, ``1 of 2 ranks logged (node01)``; '' where the log has neither."""
    facts = job.facts
    groups = job.tables.get("communicators", [])
    ranks, logged = max(((row["ranks"], row["ranks_seen"]) for row in groups), default=(0, 0))
    if 0 < logged < ranks:
        names = units.shorten(facts.get("hosts") or ["host unknown"], 2)
        return f"{logged} of {units.counted(ranks, 'rank')} logged ({names})"
    counts = []
    if ranks := facts.get("ranks"):
        counts.append(units.counted(ranks, "rank"))
    elif processes := facts.get("processes"):
        counts.append(f"{processes} {units.plural(processes, 'process', 'processes')}")
    hosts = f"on {units.counted(len(facts['hosts']), 'host')}" if facts.get("hosts") else ""
    return " ".join(filter(None, [*counts, hosts]))


def _paths(job: JobLog) -> str:
    """Transports, or transport and provider."""
    kinds = [row["kind"] for row in job.tables.get("transports", [])]
    if transport := job.facts.get("transport"):
        kinds.append(str(transport).removeprefix("atl-").upper())
    text = units.shorten(kinds, 2)
    provider = job.facts.get("provider")
    return f"{text}, provider {provider}" if text and provider else text


def _chosen(job: JobLog) -> str:
    """``RING/LL for Broadcast to 16K and RING/SIMPLE from 32K (1 to 4 channels)``."""
    by_function: dict[str, list[dict[str, Any]]] = {}
    for row in job.tables.get("choices", []):
        by_function.setdefault(row["function"] or "calls that are not named", []).append(row)
    texts = []
    for function, rows in by_function.items():
        spans = []
        for number, row in enumerate(rows):
            sizes = ""
            if len(rows) > 1:
                sizes = f" {_from_to(row, first=number == 0, last=number == len(rows) - 1)}"
            of = f" for {function}" if number == 0 else ""
            spans.append(f"{', '.join(row['choice'])}{of}{sizes}")
        channels = [channel for row in rows for channel in row["channels"] or ()]
        text = units.shorten_middle(spans, 4)
        texts.append(" and ".join([", ".join(text[:-1]), text[-1]]) if len(text) > 1 else text[0])
        if channels:
            ends = dict.fromkeys((min(channels), max(channels)))
            noun = units.plural(max(channels), "channel", "channels")
            texts[-1] += f" ({' to '.join(map(str, ends))} {noun})"
    return units.shorten(texts, _MOST_FUNCTIONS, "; {} more functions", between="; ")


def _from_to(row: dict[str, Any], first: bool, last: bool) -> str:
    low, high, what = row["low"], row["high"], " elements"
    if row["unit"] != "elements":
        low, high, what = units.format_size(low), units.format_size(high), ""
    if first:
        return f"to {high}{what}"
    if last:
        return f"from {low}{what}"
    return f"at {low}{what}" if low == high else f"from {low} to {high}{what}"


def _forced(job: JobLog) -> list[str]:
    """What the environment forces, the algorithms first."""
    shown = {path.variable for path in job.slow_paths}
    named = [
        (name, value)
        for name, value in job.variables.items()
        if not _ASIDE.match(name) and name not in shown
    ]
    named.sort(key=lambda item: (item[0] not in FORCING, not _OFF.fullmatch(item[0])))
    texts = []
    for name, text in named:
        value = os.path.basename(text)  # of a path its end tells what it is
        if (match := _OFF.fullmatch(name)) and value == "1":
            texts.append(f"{match[1]} is switched off by {name}=1")
        else:
            texts.append(f"{name}={value}{' is forced' if name in FORCING else ''}")
    return units.shorten_list(texts, _MOST_SETTINGS, "{} more settings")


def _troubles(job: JobLog) -> list[str]:
    """Crashes; otherwise slow paths and the warnings that are more than a normal choice."""
    if job.crashes:
        return [f"crashed: {units.shorten(job.crashes, _MOST_CRASHES)}"]
    paths = [path.text for path in job.slow_paths]
    texts = [text for text, _ in job.warnings.most_common() if not text.startswith(_HARMLESS)]
    number = units.counted(len(texts), "warning")
    shown = units.shorten(texts, 1, ", and {} more")
    return [*paths, f"{number} of the library: {shown}"] if texts else paths


def _dump_problems(dumps: Sequence[Dump]) -> list[str]:
    problems = []
    for dump in dumps:
        problems += [
            f"GPU {row['gpu']} has {units.counted(row['links'], 'link')}, most have {row['usual']}"
            for row in dump.facts.get("odd_links") or []
        ]
        problems += [f"{dump.file} is cut off"] if dump.facts.get("cut") else []
    return problems

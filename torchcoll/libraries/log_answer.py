"""The answer of ``torchcoll log``: what the library chose, what was forced, and what went wrong."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchcoll.core import units
from torchcoll.core.answer import Answer
from torchcoll.core.errors import one_line
from torchcoll.libraries.known_variables import FORCING

if TYPE_CHECKING:
    from torchcoll.libraries.dumps import Dump
    from torchcoll.libraries.job_logs import JobLog

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
    """What these files show: of one job in a sentence, of several how many chose what.

    None for topologies alone, of which their limits are the answer, unless one is damaged.
    """
    problems = _dump_problems(dumps)
    if not jobs:
        return Answer(one_line("; ".join(problems)), "doubt") if problems else None
    if len(jobs) == 1:
        answer = _job_answer(jobs[0])
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


def job_text(job: JobLog) -> str:
    """What one job did, in a sentence, where there are several."""
    return _job_answer(job).headline


def _job_answer(job: JobLog) -> Answer:
    library = f"{job.facts['library']} {_version(job)}".rstrip()
    chosen, troubles, paths, size = _chosen(job), _troubles(job), _paths(job), _size_text(job)
    details = _forced(job)
    if chosen:
        text = f"{library} chose {chosen}"
        details += [size] if size else []
    else:
        text = f"{library} with {size}" if size else library
        text += f" over {paths}" if paths else ""
    harmless = sum(map(_is_harmless, job.warnings))
    details += [units.counted(harmless, "harmless warning")] if harmless else []
    before = "".join(f"{one_line(text)}; " for text in troubles)
    is_bare = not (chosen or troubles or paths) and job.facts["library"] != "oneCCL"
    return Answer(
        one_line("; ".join([text, *details])),
        "doubt" if troubles else "",
        before=before,
        next_step=_LOG_MORE if is_bare else "",
    )


def _version(job: JobLog) -> str:
    match = _VERSION.search(str(job.facts.get("version") or ""))
    return match[0] if match else "of unknown version"


def _size_text(job: JobLog) -> str:
    """``2 ranks on 1 host``; '' where the log has neither."""
    facts = job.facts
    processes = facts.get("processes")
    counts = []
    if ranks := facts.get("ranks"):
        counts.append(units.counted(ranks, "rank"))
    elif processes:
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
    low, high = row["low"], row["high"]
    if row["unit"] != "elements":
        low, high = units.format_size(low), units.format_size(high)
    what = " elements" if row["unit"] == "elements" else ""
    if first:
        return f"to {high}{what}"
    if last:
        return f"from {low}{what}"
    return f"at {low}{what}" if low == high else f"from {low} to {high}{what}"


def _forced(job: JobLog) -> list[str]:
    """What the environment forces, the algorithms first."""
    named = [(name, value) for name, value in job.variables.items() if not _ASIDE.match(name)]
    named.sort(key=lambda item: (item[0] not in FORCING, not _OFF.fullmatch(item[0])))
    texts = []
    for name, text in named:
        value = os.path.basename(text)  # of a path its end tells what it is
        match = _OFF.fullmatch(name)
        if match and value == "1":
            texts.append(f"{match[1]} is switched off by {name}=1")
        else:
            texts.append(f"{name}={value}" if name not in FORCING else f"{name}={value} is forced")
    return units.shorten_list(texts, _MOST_SETTINGS, "{} more settings")


def _is_harmless(warning: str) -> bool:
    return warning.startswith(_HARMLESS)


def _troubles(job: JobLog) -> list[str]:
    """Crashes; otherwise the warnings that are more than a normal choice."""
    if job.crashes:
        return [f"crashed: {units.shorten(job.crashes, _MOST_CRASHES)}"]
    texts = [text for text, _ in job.warnings.most_common() if not _is_harmless(text)]
    if not texts:
        return []
    number = units.counted(len(texts), "warning")
    return [f"{number} of the library: {units.shorten(texts, 1, ', and {} more')}"]


def _dump_problems(dumps: Sequence[Dump]) -> list[str]:
    problems = []
    for dump in dumps:
        odd = dump.facts.get("odd_links") or []
        problems += [
            f"GPU {row['gpu']} has {units.counted(row['links'], 'link')}, most have {row['usual']}"
            for row in odd
        ]
        problems += [f"{dump.file} is cut off"] if dump.facts.get("cut") else []
    return problems

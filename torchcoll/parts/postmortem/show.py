"""How the diagnosis of ``torchcoll postmortem`` is displayed: the answer, then its evidence."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from torchcoll.core.answer import Answer, short_names, worst_level
from torchcoll.core.display import Displayed
from torchcoll.core.errors import UnreadableError, one_line, path_text
from torchcoll.core.opening import common_folder
from torchcoll.core.other_commands import begin_of, reading_commands
from torchcoll.core.units import counted, format_ranges, plural, shorten, shorten_list
from torchcoll.parts.postmortem.diagnose import diagnose
from torchcoll.parts.postmortem.diagnosis import Diagnosis, shortened
from torchcoll.parts.postmortem.job_folder import FolderEvidence, files_of, read_folder
from torchcoll.parts.postmortem.texts import about_kind
from torchcoll.parts.postmortem.waits_charts import waits_charts
from torchcoll.report.chart import PALETTE, Chart, bar_chart, bars, plain
from torchcoll.report.formats import print_forms
from torchcoll.report.grid import Grid
from torchcoll.report.page import Section, TitledGrids

SCHEMA = "torchcoll-postmortem/1"
_NOT_IN_JSON = ("job", "calls", "says", "details")  # fields of a diagnosis
FORMATS = ("table", "markdown", "json", "line")
_NO_NAME = "(no name)"  # of a job of files in several folders
_MOST_NAMES = 3  # of jobs with one cause
_MOST_CAUSES = 9  # that are counted, beside the jobs of unknown cause
_WAITING = "waiting for a rank without a log"
_MOST_PICTURES = 4  # of single jobs
_LEFT_OUT = 5  # files that are named


@dataclass(repr=False)
class Postmortem(Displayed):
    """Why the jobs ended whose files are below a folder; diagnoses: those that failed first."""

    folder: FolderEvidence
    diagnoses: list[Diagnosis]


def postmortem(path: str, progress: Callable[[str], None] | None = None) -> Postmortem:
    """Finds what stopped or ended jobs, from the files that these left below ``path``.

    Raises UnreadableError if no file says anything. progress: gets a text before each file.
    """
    text = path_text(path, "path", "a folder, a file or -")
    return diagnosed(read_folder(text, progress))


def diagnosed(folder: FolderEvidence) -> Postmortem:
    return Postmortem(folder, sorted(map(diagnose, folder.jobs), key=_urgency))


def show_postmortem(result: Postmortem, format: str, file: TextIO | None = None) -> None:
    """Print the diagnoses; of several jobs a line for each, and below them the evidence of each job
    that left several files.
    """
    folder, diagnoses = result.folder, result.diagnoses
    if format == "line":
        for name, diagnosis in zip(_names(diagnoses), diagnoses, strict=True):
            print(f"{name}: " * bool(name) + answer_of(diagnosis, folder).text, file=file)
        return
    titled = _titled(folder, diagnoses)
    print_forms(titled, [], _document(folder, diagnoses), format, file)


def postmortem_charts(result: Postmortem) -> list[Chart]:
    """Who waited for whom; of several jobs how many ended of each cause, and a few of the jobs."""
    diagnoses = result.diagnoses
    if len(diagnoses) == 1:
        return waits_charts(diagnoses[0])
    names = _names(diagnoses)
    causes = _causes(names, diagnoses)
    texts = [plain(f"{cause}: {shorten(jobs, _MOST_NAMES)}") for cause, jobs in causes.items()]
    trace = bars("jobs", [len(jobs) for jobs in causes.values()], texts, PALETTE[0])
    axis = {"rangemode": "tozero", "title": {"text": "jobs"}, "tickformat": "d"}
    title, caption = f"Why {len(diagnoses)} jobs ended", ["the most frequent cause is on top"]
    overview = bar_chart(title, [*map(plain, causes)], [trace], axis, caption)
    pictures = [
        replace(chart, title=plain(name))
        for name, diagnosis in zip(names, diagnoses, strict=True)
        for chart in waits_charts(diagnosis)
    ]
    return [overview, *pictures[:_MOST_PICTURES]]


def _titled(folder: FolderEvidence, diagnoses: list[Diagnosis]) -> list[tuple[str, list[Grid]]]:
    names = _names(diagnoses)
    if len(diagnoses) == 1:
        titled = [("", [_grid(diagnoses[0], answer_of(diagnoses[0], folder))])]
    else:
        titled = [("", [_list(folder, names, diagnoses)])]
        for name, diagnosis in zip(names, diagnoses, strict=True):
            if len(diagnosis.job.files) > 1:
                grid = _grid(diagnosis, answer_of(diagnosis, folder), alone=False)
                ranks = f", {counted(diagnosis.job.ranks, 'rank')}" if diagnosis.job.ranks else ""
                titled.append((f"{name}{ranks}", [grid]))
        asked = dict.fromkeys(text for each in diagnoses for text in each.collect_next)
        titled[-1][1].append(Grid([], [], above=_next_time([*asked])))
    if folder.left_out:
        titled[-1][1].append(Grid([], [], above=_left_out(folder)))
    return titled


def job_sections(arguments: Sequence[str]) -> dict[str, tuple[Section, list[Chart]]]:
    """The arguments without results whose files say why a job ended, with a section and charts for
    each.
    """
    sections = {}
    for argument in arguments:
        try:
            paths = [path for _, path in files_of(argument, FolderEvidence(argument))]
            if any("show" in reading_commands(begin_of(path)) for path in paths):
                continue
            result = postmortem(argument)
        except UnreadableError:
            continue
        if _urgency(result.diagnoses[0]) > 1:
            continue
        titled = _titled(result.folder, result.diagnoses)
        section = Section(
            f"Why the {plural(len(result.diagnoses), 'job')} ended",
            commands=[f"torchcoll postmortem {shlex.quote(argument)}"],
            tables=[TitledGrids(title, grids) for title, grids in titled],
        )
        sections[argument] = section, postmortem_charts(result)
    return sections


def _names(diagnoses: list[Diagnosis]) -> list[str]:
    """The file of each job, or the name or folder of a job of several files."""
    names = []
    for diagnosis in diagnoses:
        paths = [file.path for file in diagnosis.job.files]
        name = diagnosis.job.name
        if len(diagnoses) > 1:
            name = paths[0] if len(paths) == 1 else name or common_folder(paths) or _NO_NAME
        names.append(one_line(name))
    return names


def _causes(names: list[str], diagnoses: list[Diagnosis]) -> dict[str, list[str]]:
    """The jobs that ended of each cause, the most frequent first."""
    causes: dict[str, list[str]] = {}
    for name, diagnosis in zip(short_names(names), diagnoses, strict=True):
        cause = about_kind("called", diagnosis.kind) or diagnosis.kind.replace("_", " ")
        if diagnosis.kind == "unknown" and diagnosis.waiting:
            cause = _WAITING
        causes.setdefault(cause, []).append(name.removesuffix(".log"))
    return dict(sorted(causes.items(), key=lambda each: -len(each[1])))


def _list(folder: FolderEvidence, names: list[str], diagnoses: list[Diagnosis]) -> Grid:
    """The number of jobs with each cause, and a line for each job."""
    answers = [answer_of(diagnosis, folder) for diagnosis in diagnoses]
    last = (_WAITING, about_kind("called", "unknown"), about_kind("called", "none"))
    causes = _causes(names, diagnoses).items()
    counts = {cause: f"{len(of)} {cause} ({shorten(of, _MOST_NAMES)})" for cause, of in causes}
    texts = [text for cause, text in counts.items() if cause not in last]
    texts = shorten_list(texts, _MOST_CAUSES, "{} more causes")
    texts += [counts[cause] for cause in last if cause in counts]
    level = worst_level(*(answer.level for answer in answers))
    path = os.path.join(folder.path, diagnoses[0].job.files[0].path)
    example = f"the evidence of one: torchcoll postmortem {shlex.quote(path)}"
    next_step = example if len(diagnoses[0].job.files) == 1 else ""
    answer = Answer(f"{len(names)} jobs: {', '.join(texts)}", level, next_step=next_step)
    lines = [
        f"{name}: {replace(each, next_step='').text}"
        for name, each in zip(names, answers, strict=True)
    ]
    return Grid([], [], above=lines, answer=answer)


def _urgency(diagnosis: Diagnosis) -> int:
    """0 for a job that failed, 3 for one that ended as it should."""
    if diagnosis.kind == "none":
        return 3
    if diagnosis.kind == "unknown":
        return 1 if diagnosis.waiting or diagnosis.candidates else 2
    return 0


def answer_of(diagnosis: Diagnosis, folder: FolderEvidence) -> Answer:
    level = "bad"
    if diagnosis.kind == "none":
        level = "doubt" if diagnosis.details else "good"
    elif diagnosis.kind == "unknown" or not (diagnosis.culprits or diagnosis.nodes):
        level = "doubt"
    worst = tuple(f"rank {rank}" for rank in diagnosis.culprits)
    details = tuple(diagnosis.details)
    if folder.unread:
        shown, why = folder.unread[0]
        count = f"{len(folder.unread)} of {counted(folder.files, 'file')}"
        details += (f"{count} could not be read, such as {one_line(shown)} ({why})",)
        level = "doubt" if level == "good" else level
    return Answer(
        diagnosis.headline, level, worst=worst, details=details, next_step=diagnosis.remedy
    )


def _grid(diagnosis: Diagnosis, answer: Answer, alone: bool = True) -> Grid:
    """alone: there is no other job, so the answer and what to collect belong to this table."""
    lines = [] if alone else answer.lines
    for line in diagnosis.evidence:
        who = "" if line.rank is None else f"rank {line.rank}: "
        lines.append(f"evidence: {who}{shortened(line.text)}  [{line.place}]")
    lines += [f"reason: {text}" for text in diagnosis.reasons]
    if alone:
        further = [text for text in diagnosis.collect_next if f"collect {text}" != diagnosis.remedy]
        lines += _next_time(further)
    lines.append(_sources(diagnosis))
    return Grid([], [], above=lines, answer=answer if alone else None)


def _next_time(texts: Sequence[str]) -> list[str]:
    return [f"next time, collect {'; '.join(texts)}"] if texts else []


def _sources(diagnosis: Diagnosis) -> str:
    """``read: 8 Flight Recorder dumps of ranks 0-7, 1 kernel log``."""
    kinds: dict[str, tuple[int, set[int]]] = {}
    for seen in diagnosis.job.files:
        count, ranks = kinds.get(seen.what, (0, set()))
        kinds[seen.what] = (count + 1, ranks | set(seen.ranks))
    texts = []
    for what, (count, ranks) in kinds.items():
        of = f" of {plural(len(ranks), 'rank')} {format_ranges(ranks)}" if ranks else ""
        texts.append(f"{what}{f' ({count} files)' if count > 1 else ''}{of}")
    return f"read: {'; '.join(texts)}"


def _left_out(folder: FolderEvidence) -> list[str]:
    texts = [f"{path} ({why})" for path, why in folder.left_out]
    shown = shorten(texts, _LEFT_OUT, ", and {} more (--format json names all)")
    return [f"skipped {counted(len(texts), 'file')}: {shown}"]


def _document(folder: FolderEvidence, diagnoses: list[Diagnosis]) -> dict[str, Any]:
    answer = answer_of(diagnoses[0], folder)
    return {
        "schema": SCHEMA,
        "jobs": [_job_object(diagnosis) for diagnosis in diagnoses],
        "left_out": [{"file": path, "why": why} for path, why in folder.left_out],
        "unread": [path for path, _ in folder.unread],
        "answer": answer.to_json(),
    }


def _job_object(diagnosis: Diagnosis) -> dict[str, Any]:
    job = diagnosis.job
    return {
        "job": job.name,
        "identities": sorted(job.identities),
        "ranks": job.ranks,
        **{name: value for name, value in vars(diagnosis).items() if name not in _NOT_IN_JSON},
        "evidence": [
            {"text": line.text, "rank": line.rank, "file": line.place.path, "line": line.place.line}
            for line in diagnosis.evidence
        ],
        "files": [{"file": f.path, "what": f.what, "ranks": list(f.ranks)} for f in job.files],
    }

"""How the diagnosis of ``torchcoll postmortem`` is displayed: the answer, then its evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TextIO

from torchcoll.core.answer import Answer
from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_ranges, plural, shorten
from torchcoll.parts.postmortem.diagnosis import Diagnosis, shortened
from torchcoll.parts.postmortem.job_folder import FolderEvidence
from torchcoll.report.formats import print_forms
from torchcoll.report.grid import Grid

SCHEMA = "torchcoll-postmortem/1"
FORMATS = ("table", "markdown", "json", "line")
NO_NAME = "(no name)"  # of a job, as --job takes it
_LEFT_OUT = 5  # files that are named


def show_postmortem(
    folder: FolderEvidence,
    diagnoses: list[Diagnosis],
    format: str,
    file: TextIO | None = None,
) -> None:
    """Print the diagnoses; of several jobs those that failed first."""
    diagnoses = sorted(diagnoses, key=_urgency)
    if format == "line":
        for diagnosis in diagnoses:
            name = one_line(diagnosis.job.name)
            print(f"{name}: " * bool(name) + answer_of(diagnosis, folder).text, file=file)
        return
    titled = []
    for diagnosis in diagnoses:
        title, answer = "", answer_of(diagnosis, folder)
        if len(diagnoses) > 1:
            name = f"Job {one_line(diagnosis.job.name) or NO_NAME}"
            ranks = f", {counted(diagnosis.job.ranks, 'rank')}" if diagnosis.job.ranks else ""
            title = f"{name}{ranks}"
            answer = replace(answer, before=f"{name}: {answer.before}")
        titled.append((title, [_grid(diagnosis, answer)]))
    if folder.left_out:
        titled[-1][1].append(Grid([], [], above=_left_out(folder)))
    document = _document(folder, diagnoses)
    print_forms(titled, [], document, format, file)


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


def _grid(diagnosis: Diagnosis, answer: Answer) -> Grid:
    lines = []
    for line in diagnosis.evidence:
        who = "" if line.rank is None else f"rank {line.rank}: "
        lines.append(f"evidence: {who}{shortened(line.text)}  [{line.place}]")
    lines += [f"reason: {text}" for text in diagnosis.reasons]
    further = [text for text in diagnosis.collect_next if f"collect {text}" != diagnosis.remedy]
    lines += [f"next time, collect {text}" for text in further]
    lines.append(_sources(diagnosis))
    return Grid([], [], above=lines, answer=answer)


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
        "kind": diagnosis.kind,
        "detail": diagnosis.detail,
        "certainty": diagnosis.certainty,
        "headline": diagnosis.headline,
        "culprits": list(diagnosis.culprits),
        "nodes": list(diagnosis.nodes),
        "candidates": list(diagnosis.candidates),
        "waiting": list(diagnosis.waiting),
        "group": diagnosis.group,
        "collective": diagnosis.collective,
        "number": diagnosis.number,
        "reasons": diagnosis.reasons,
        "remedy": diagnosis.remedy,
        "evidence": [
            {"text": line.text, "rank": line.rank, "file": line.place.path, "line": line.place.line}
            for line in diagnosis.evidence
        ],
        "collect_next": diagnosis.collect_next,
        "files": [{"file": f.path, "what": f.what, "ranks": list(f.ranks)} for f in job.files],
    }

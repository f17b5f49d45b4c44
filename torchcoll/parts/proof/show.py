"""How a proof is displayed: the answer, a row a part, the reasons."""

from __future__ import annotations

from collections import Counter
from typing import Any, TextIO

from torchcoll.core.answer import Answer
from torchcoll.core.units import format_digits
from torchcoll.parts.proof.judge import FAILED, NOT_RUN, PROVEN, STATUSES, Figure, PartResult
from torchcoll.parts.proof.prove import CLAIMS, Report
from torchcoll.report.formats import print_forms
from torchcoll.report.grid import Grid, Head, make_grid

SCHEMA = "torchcoll-proof/1"


def show_report(report: Report, format: str = "table", file: TextIO | None = None) -> None:
    """Print the table, or ``json``. Raises UsageError for an unknown format."""
    print_forms([("", [_grid(report)])], [], _document(report), format, file)


def answer_of(report: Report) -> Answer:
    counts = Counter(part.status for part in report.parts)
    proven, total = counts[PROVEN], len(report.parts)
    headline = f"{proven} of {total} parts proven on {report.machine.described}"
    for status in STATUSES[1:]:
        if names := [part.name for part in report.parts if part.status == status]:
            headline += f"; {status}: {', '.join(names)}"
    level = "good"
    if counts[FAILED]:
        level = "bad"
    elif counts[NOT_RUN] or report.status != "complete":
        level = "doubt"
    return Answer(headline, level, {status: counts[status] for status in STATUSES})


def _grid(report: Report) -> Grid:
    columns = [
        (Head("part", left=True), lambda part: part.name),
        (Head("result", left=True), lambda part: part.status),
        (Head("figure", left=True, drop=1), _figure_cell),
        (Head("tolerance", left=True, drop=2), _tolerance_cell),
        (Head("s", drop=3), lambda part: f"{part.seconds:.0f}"),
    ]
    grid = make_grid(columns, report.parts)
    grid.answer = answer_of(report)
    grid.below = [f"{part.name}: {_sentence(part)}" for part in report.parts]
    minutes = f"{report.wall_s / 60:.1f} minutes"
    duration = minutes if report.wall_s >= 60 else f"{report.wall_s:g} s"
    torch = (report.machine.facts.get("environment") or {}).get("torch")
    grid.above = [
        f"{report.status}, {duration}, begun {report.start_utc}; torch {torch or 'unknown'}"
    ]
    return grid


def _sentence(part: PartResult) -> str:
    question = CLAIMS[part.name].question if part.name in CLAIMS else ""
    return f"{question} {part.status}: {part.reason}".strip()


def _worst_figure(part: PartResult) -> Figure | None:
    """The figure that decided: the least certain one that is not within its tolerance, else the
    first that has a tolerance.
    """
    judged = [f for f in part.figures if f.least is not None or f.most is not None]
    if outside := [f for f in judged if not f.inside]:
        return max(outside, key=lambda f: (f.high or f.value) - (f.low or f.value))
    return next(iter(judged or part.figures), None)


def _figure_cell(part: PartResult) -> str:
    figure = _worst_figure(part)
    if figure is None:
        return "-"
    text = f"{figure.name}: {format_digits(figure.value)}"
    if figure.low is not None and figure.high is not None:
        text += f" ({format_digits(figure.low)} to {format_digits(figure.high)})"
    return f"{text} {figure.unit}".rstrip()


def _tolerance_cell(part: PartResult) -> str:
    figure = _worst_figure(part)
    if figure is None or (figure.least is None and figure.most is None):
        return "-"
    if figure.least is None:
        return f"at most {figure.most:g}"
    if figure.most is None:
        return f"at least {figure.least:g}"
    return f"{figure.least:g} to {figure.most:g}"


def _document(report: Report) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "status": report.status,
        "start_utc": report.start_utc,
        "wall_s": report.wall_s,
        "machine": {
            "backend": report.machine.backend,
            "device": report.machine.device,
            "ranks": report.machine.ranks,
            "shared": report.machine.shared,
            "library": report.machine.library,
            "facts": dict(report.machine.facts),
        },
        "parts": [part.to_json() for part in report.parts],
    }

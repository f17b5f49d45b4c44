"""How verdicts are displayed: of one run, and of several in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from torchcoll.core.answer import Answer
from torchcoll.core.errors import one_line
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import Run
from torchcoll.core.units import shorten
from torchcoll.questions.check.judging import Verdict
from torchcoll.questions.check.limits import NO_REFERENCE, PASS, WORDS
from torchcoll.report.destination import Destination
from torchcoll.report.formats import View, json_text, run_object
from torchcoll.report.grid import Grid, Head, print_grids
from torchcoll.report.header import header_lines, requested_cases

FORMATS = ("table", "markdown", "json")
_REASONS = 3  # that several runs have, in one sentence
_WHAT_RAN = 2  # lines of a run's header: the collective, and where it ran


def show_verdicts(
    runs: Sequence[Run], verdicts: Sequence[Verdict], format: str, file: TextIO | None = None
) -> None:
    """Print the verdict of each run, and of several one sentence over all of them.

    In json an object for each run: ``schema``, ``run`` and ``verdict``.
    """
    out = Destination(file)
    if format == "json":
        objects = [run_object(r, View(), verdict=v) for r, v in zip(runs, verdicts, strict=True)]
        for judged, verdict in zip(objects, verdicts, strict=True):
            del judged["rows"]
            judged["answer"] = verdict.answer.to_json()
        out.write(json_text(objects))
        out.flush()
        return
    titles = [one_line(r.path or r.header.get("run_id") or "run") for r in runs]
    titled, answers = [], [verdict.answer for verdict in verdicts]
    for run, title, answer, verdict in zip(runs, titles, answers, verdicts, strict=True):
        rows = summarise_run(run)
        above = header_lines(run, rows or requested_cases(run), "max", [])[:_WHAT_RAN]
        grid = Grid(*_notable_cases(verdict), above=above, answer=answer)
        titled.append((title if len(runs) > 1 else "", [grid]))
    several = over_all(list(zip(titles, verdicts, strict=True))) if len(runs) > 1 else None
    print_grids(titled, format, out, several)
    out.flush()


def _notable_cases(verdict: Verdict) -> tuple[list[Head], list[list[str]]]:
    """The cases that good runs call slow, doubtful or too noisy."""
    cases = verdict.by_good_runs.notable_cases() if verdict.by_good_runs else []
    heads = [
        Head("case", left=True),
        Head("time"),
        Head("usual"),
        Head("change"),
        Head("state", left=True),
    ]
    return (heads, [list(case) for case in cases]) if cases else ([], [])


def over_all(named: Sequence[tuple[str, Verdict]], unjudged: bool = True) -> Answer:
    """One answer over several runs, given as (name, verdict): how many have which, and the worst.

    unjudged: whether it counts the runs without a reference.
    """
    words = [verdict.word for _, verdict in named]
    counts = [
        f"{words.count(word)} {word}"
        for word in WORDS
        if word in words and (unjudged or word != NO_REFERENCE)
    ]
    worst = next(word for word in WORDS if word in words)
    of_worst = [(name, verdict.answer) for name, verdict in named if verdict.word == worst]
    level = of_worst[0][1].level
    text = f"{len(named)} runs: {', '.join(counts)}" if level else f"{len(named)} runs, none judged"
    facts: dict[str, Any] = {"counts": {word: words.count(word) for word in WORDS}}
    if worst == PASS:
        return Answer(text, level, **facts)
    facts["worst"] = tuple(name for name, _ in of_worst)
    reasons: dict[str, list[str]] = {}
    for name, answer in of_worst:
        reason = answer.worst[0] if answer.worst else answer.headline
        reasons.setdefault(reason, []).append(one_line(name))
    if len(reasons) == 1 and (len(of_worst) > 1 or not level):
        [reason] = of_worst[0][1].worst[:1] or reasons
        return Answer(f"{text}: {reason}", level, **facts)
    texts = [f"{shorten(names, 1)}: {why}" for why, names in list(reasons.items())[:_REASONS]]
    left = sum(len(names) for names in list(reasons.values())[_REASONS:])
    texts += [f"and {left} more"] if left else []
    return Answer(f"{text} ({'; '.join(texts)})", level, **facts)

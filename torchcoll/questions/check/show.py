"""How verdicts are displayed: of one run, of several in one sentence, and as JUnit XML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TextIO

from torchcoll.core.errors import one_line
from torchcoll.core.metrics import case_labels, unique_labels
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.questions.check.judging import Verdict
from torchcoll.questions.check.limits import CANNOT_TELL, FAIL
from torchcoll.questions.check.measured_show import measured_answer, over_all
from torchcoll.report.destination import Destination
from torchcoll.report.formats import View, json_text, run_object
from torchcoll.report.grid import Grid, Head, print_grids
from torchcoll.report.header import header_lines, requested_cases
from torchcoll.report.junit import JunitTest, junit_document

FORMATS = ("table", "markdown", "json")
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
    titled = []
    for run, title, verdict in zip(runs, titles, verdicts, strict=True):
        rows, answer = summarise_run(run), verdict.answer
        if not verdict.judged and (measured := measured_answer(rows)):
            answer = replace(answer, details=(measured.headline, *answer.details))
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


def junit_text(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> str:
    """A test suite per run, with a test for the verdict and one for each case, which has the labels
    of its metrics as its name.
    """
    suites = []
    for run, verdict in zip(runs, verdicts, strict=True):
        # A run that was compared with nothing, or not decided, has not passed.
        passed = verdict.judged and verdict.word != CANNOT_TELL
        kind = "failure" if verdict.word == FAIL else "" if passed else "skipped"
        tests = [JunitTest("verdict", kind, verdict.line)]
        labels = unique_labels([case_labels(result.case) for result in run.results])
        for row, of_case in zip(summarise_run(run), labels, strict=True):
            title = " ".join(f"{name}={value}" for name, value in of_case.items())
            text = f"{row.status}: {row.reason or row.verified}"
            expected = row.outcome in EXPECTED_STATUSES
            kind = "failure" if not expected else "skipped" if row.status != "ok" else ""
            tests.append(JunitTest(title, kind, text if kind else "", row.median_ns))
        suites.append((str(run.path or run.header.get("run_id") or "run"), tests))
    return junit_document(suites, "torchcoll")

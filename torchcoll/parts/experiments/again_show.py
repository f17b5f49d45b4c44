"""How the answer of ``torchcoll again`` is displayed: one sentence, the cases, what differed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

from torchcoll.core.answer import CANNOT_TELL, Answer, worst_level
from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_change, format_difference, format_percent, shorten
from torchcoll.parts.experiments.agreement import Agreement, CaseAgreement
from torchcoll.questions.comparison.results import NOTABLE
from torchcoll.questions.comparison.wording import QUIETER
from torchcoll.report.formats import Forms, print_results
from torchcoll.report.grid import Head, make_grid
from torchcoll.stats.needed import MOST_ADVISED
from torchcoll.stats.side_faults import SideFaults

SCHEMA = "torchcoll-again/1"
_LEVELS = {"reproduced": "good", "not reproduced": "bad"}
_MOST_DIFFERENCES = 6


@dataclass(frozen=True)
class Rerun:
    """What was run again.

    file: its name. differences: facts that differ between the file and the new runs. notes: what
    could not be run as it was. folder: of the new runs. shares: what share of its own limit each
    side reaches, on different hardware; '' if that is not known. faults: what of the new runs is
    wrong, failed or missing. disturbance: what else the machine did during a new run.
    """

    file: str
    agreement: Agreement
    differences: Sequence[str]
    notes: Sequence[str]
    folder: str
    shares: str = ""
    faults: SideFaults = field(default_factory=SideFaults)
    disturbance: str = ""

    @property
    def answer(self) -> Answer:
        """The verdict with its evidence, in one sentence; what is wrong, failed or missing in the
        new runs comes first.
        """
        answer, faults = _answer_of_the_rest(self), self.faults
        return replace(
            answer,
            before="".join(f"{text}. " for text in faults.texts) + answer.before,
            level=worst_level(answer.level, faults.level),
            counts={**answer.counts, **faults.counts},
        )


def _answer_of_the_rest(rerun: Rerun) -> Answer:
    """The verdict on the cases that the new runs have right."""
    result = rerun.agreement
    name = one_line(rerun.file)
    if result.ratio is None or result.high is None:
        text = f"cannot be compared with {name}: {result.reason}"
        return Answer(text, "doubt", details=(rerun.shares,) if rerun.shares else ())
    width = format_difference(result.high)
    cases = counted(len(result.cases), "case")
    runs = f"{counted(result.runs, 'run')}, {cases}"
    what = f"the new runs are {format_change(1 / result.ratio)} over all cases"
    details = []
    furthest = max(result.open_cases, key=lambda case: abs(math.log(case.ratio)), default=None)
    if furthest and max(furthest.ratio, 1 / furthest.ratio) >= NOTABLE:
        details.append(f"{furthest.name} looks {format_change(1 / furthest.ratio)}")
    if rerun.differences:
        shown = list(map(one_line, rerun.differences))
        differences = shorten(shown, _MOST_DIFFERENCES, "; and {} more", between="; ")
        details.append(f"differences: {differences}")
    counts = {
        "cases": len(result.cases),
        "differing": sum(case.differs for case in result.cases),
        "open": len(result.open_cases),
    }
    if result.verdict == "cannot tell":
        noisiest = max(result.open_cases, key=lambda case: case.bound)
        more = 2 * result.runs
        step = f"make more runs (--runs {more})" if more <= MOST_ADVISED else QUIETER
        if rerun.disturbance:
            host, _, what_else = one_line(rerun.disturbance).partition(": ")
            most = min(more, MOST_ADVISED)
            step = f"measure again while {host} does nothing else ({what_else}), with --runs {most}"
        return Answer(
            name,
            "doubt",
            counts,
            details=tuple(details),
            verb="is reproduced",
            scope=_open_text(rerun, noisiest, what),
            certainty=CANNOT_TELL,
            next_step=step,
        )
    if result.verdict == "reproduced":
        limit = format_percent(result.threshold)
        text = (
            f"reproduced {name}: {what}, within the noise of {width}, and no case "
            f"differs by {limit} ({runs})"
        )
    else:
        text = f"not reproduced {name}: {what}, and runs differ by up to {width}"
        if worst := result.worst:
            text += f"; most in {worst.name}: {format_change(1 / worst.ratio)}"
        text += f" ({runs})"
    named = tuple(case.name for case in result.cases if case.differs)
    return Answer(text, _LEVELS.get(result.verdict, "doubt"), counts, named, tuple(details))


def _open_text(rerun: Rerun, noisiest: CaseAgreement, what: str) -> str:
    """Why it cannot be told. A bound of twice the time or more is no size to act on.

    what: how the new runs differ over all cases.
    """
    result = rerun.agreement
    limit = format_percent(result.threshold)
    number = f"{len(result.open_cases)} of {counted(len(result.cases), 'case')}"
    runs = counted(result.runs, "run")
    if noisiest.bound >= 1:
        return (
            f": {runs} vary too much to exclude a difference of {limit} in {number} "
            f"(most in {noisiest.name})"
        )
    return (
        f": {what}, but differences up to {format_difference(1 + noisiest.bound)} cannot be "
        f"excluded ({number}, most in {noisiest.name}; {limit} was asked; {runs})"
    )


def show_rerun(rerun: Rerun, format: str, file: TextIO | None = None) -> None:
    """Print the answer and a row for each case. Raises UsageError for an unknown format."""
    result = rerun.agreement
    grid = make_grid(
        [
            (Head("case", left=True), lambda case: case.name),
            (Head("new runs"), lambda case: format_change(1 / case.ratio)),
            (Head("at most"), lambda case: format_difference(1 + case.bound)),
            (Head("p"), lambda case: f"{case.p:.2g}"),
            (Head("result", left=True), lambda case: _result_text(case, result)),
        ],
        result.cases,
    )
    grid.answer = rerun.answer
    grid.below = [
        *(f"note: {one_line(note)}" for note in rerun.notes),
        "at most: the largest difference that is not excluded (2.5 % error)",
        "p: of a difference as large between runs that do not differ, for this case alone",
        f"new runs: {rerun.folder}",
    ]
    rows = [_row(case) for case in result.cases]
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "file": rerun.file,
        "verdict": result.verdict,
        "faults": rerun.faults.to_json(),
        "ratio": result.ratio,
        "low": result.low,
        "high": result.high,
        "runs": result.runs,
        "file_runs": result.file_runs,
        "differences": list(rerun.differences),
        "notes": list(rerun.notes),
        "shares": rerun.shares,
        "rows": rows,
    }
    print_results([Forms([grid], document)], format, file)


def _result_text(case: CaseAgreement, result: Agreement) -> str:
    if case.differs:
        return "differs"
    within = f"within {format_percent(result.threshold)}"
    return "cannot tell" if case in result.open_cases else within


def _row(case: CaseAgreement) -> dict[str, Any]:
    return {
        "case": case.name,
        "ratio": case.ratio,
        "p": case.p,
        "bound": case.bound,
        "differs": case.differs,
    }

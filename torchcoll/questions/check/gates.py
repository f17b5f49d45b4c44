"""The verdict for build servers: JUnit XML."""

from __future__ import annotations

from collections.abc import Sequence

from torchcoll.core.metrics import case_labels, unique_labels
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.questions.check.judging import Verdict
from torchcoll.questions.check.limits import CANNOT_TELL, FAIL
from torchcoll.report.junit import JunitTest, junit_document


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

"""The verdict for other programs: JUnit XML for build servers, health events for schedulers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torchcoll.core.errors import one_line
from torchcoll.core.metrics import case_labels, unique_labels
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.core.run_facts import host_names
from torchcoll.questions.check.judging import Verdict
from torchcoll.questions.check.limits import FAIL
from torchcoll.report.junit import JunitTest, junit_document

HEALTH_SCHEMA = "torchcoll-health/1"


def junit_text(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> str:
    """A test suite per run, with a test for the verdict and one for each case, which has the labels
    of its metrics as its name.
    """
    suites = []
    for run, verdict in zip(runs, verdicts, strict=True):
        kind = "failure" if verdict.word == FAIL else "" if verdict.is_decided else "skipped"
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


def health_text(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> str:
    """A JSON object per run and line, by which a scheduler can drain a node.

    healthy: False for FAIL, None if nothing was decided. verdict, message: the word and the line.
    causes: why cases failed. suspects: the hosts that the run accuses.
    """
    lines = []
    for run, verdict in zip(runs, verdicts, strict=True):
        failed = [row for row in summarise_run(run) if row.outcome not in EXPECTED_STATUSES]
        event: dict[str, Any] = {
            "schema": HEALTH_SCHEMA,
            "healthy": verdict.word != FAIL if verdict.is_decided else None,
            "verdict": verdict.word,
            "message": verdict.line,
            "causes": list(dict.fromkeys(one_line(row.reason) for row in failed if row.reason)),
            "hosts": host_names(run.members),
            "suspects": host_names([e for e in run.events if e.get("kind") == "suspect"]),
            "start_utc": run.header.get("start_utc"),
            "job": run.header.get("job_id"),
            "file": str(run.path) if run.path else None,
        }
        lines.append(json.dumps(event) + "\n")
    return "".join(lines)

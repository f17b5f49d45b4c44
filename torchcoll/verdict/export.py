"""The verdict for machines: JUnit XML for build servers, a health event for schedulers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.verdict.judge import FAIL, Verdict

HEALTH_SCHEMA = "torchcoll-health/1"


def junit_text(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> str:
    """One test suite a run: a test for each case, and one for the verdict."""
    suites = []
    for run, verdict in zip(runs, verdicts, strict=True):
        name = str(run.path or run.header.get("run_id") or "run")
        tests = [_test("verdict", verdict.line if verdict.word == FAIL else "")]
        skipped = 0
        for row in summarise_run(run):
            title = " ".join(str(x) for x in (row.collective, row.nbytes, row.dtype, row.op) if x)
            if row.status in EXPECTED_STATUSES and row.status != "ok":
                skipped += 1
                tests.append(_test(title, skipped=f"{row.status}: {row.reason}"))
            else:
                bad = row.status != "ok" or row.verified == "wrong"
                words = row.reason or row.verified
                tests.append(_test(title, f"{row.status}: {words}" if bad else ""))
        failures = sum("<failure" in test for test in tests)
        suites.append(
            f"<testsuite name={quoteattr(name)} tests={quoteattr(str(len(tests)))} "
            f'failures="{failures}" skipped="{skipped}">\n{"".join(tests)}</testsuite>\n'
        )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n{"".join(suites)}</testsuites>\n'


def _test(name: str, failure: str = "", skipped: str = "") -> str:
    inner = f"<failure message={quoteattr(failure)}>{escape(failure)}</failure>" if failure else ""
    inner = f"<skipped message={quoteattr(skipped)}/>" if skipped else inner
    return f'<testcase classname="torchcoll" name={quoteattr(name)}>{inner}</testcase>\n'


def health_text(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> str:
    """One JSON object a line and run: what a scheduler needs to drain a node.

    hosts: those of the run. suspects: hosts that a pairs run accuses. start_utc, job: as recorded.
    """
    lines = []
    for run, verdict in zip(runs, verdicts, strict=True):
        variables = run.environment.get("variables") or {}
        jobs = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
        event: dict[str, Any] = {
            "schema": HEALTH_SCHEMA,
            "healthy": verdict.word != FAIL,
            "verdict": verdict.word,
            "message": verdict.line,
            "hosts": list(dict.fromkeys(m["host"] for m in run.members if m.get("host"))),
            "suspects": list(
                dict.fromkeys(
                    e["host"] for e in run.events if e.get("kind") == "suspect" and e.get("host")
                )
            ),
            "start_utc": run.header.get("start_utc"),
            "job": next((variables[name] for name in jobs if variables.get(name)), None),
            "file": str(run.path) if run.path else None,
        }
        lines.append(json.dumps(event) + "\n")
    return "".join(lines)

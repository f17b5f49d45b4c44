"""The verdict for machines: JUnit XML for build servers, a health event for schedulers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import quoteattr

from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.core.units import one_line
from torchcoll.verdict.judge import Verdict
from torchcoll.verdict.words import FAIL, NO_REFERENCE

HEALTH_SCHEMA = "torchcoll-health/1"


def junit_text(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> str:
    """One test suite a run: a test for the verdict, and one for each case."""
    suites = [_suite(run, verdict) for run, verdict in zip(runs, verdicts, strict=True)]
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n{"".join(suites)}</testsuites>\n'


def _suite(run: Run, verdict: Verdict) -> str:
    name = one_line(run.path or run.header.get("run_id") or "run")
    failed = [verdict.word == FAIL]
    # What nothing was held against has not passed.
    skipped = int(verdict.word == NO_REFERENCE)
    kind = "failure" if failed[0] else "skipped" if skipped else ""
    tests = [_test("verdict", kind, verdict.line)]
    for row in summarise_run(run):
        what = (row.collective, row.nbytes or row.nbytes_requested, row.dtype, row.op)
        title = " ".join(str(part) for part in what if part)
        text = f"{row.status}: {row.reason or row.verified}"
        expected = row.status in EXPECTED_STATUSES and row.verified != "wrong"
        kind = "failure" if not expected else "skipped" if row.status != "ok" else ""
        failed.append(not expected)
        skipped += kind == "skipped"
        tests.append(_test(title, kind, text))
    counts = f'tests="{len(tests)}" failures="{sum(failed)}" skipped="{skipped}"'
    return f"<testsuite name={quoteattr(name)} {counts}>\n{''.join(tests)}</testsuite>\n"


def _test(name: str, kind: str, text: str) -> str:
    """``kind``: failure, skipped, or '' for a test that passed."""
    message = f"<{kind} message={quoteattr(one_line(text))}/>" if kind else ""
    head = f'<testcase classname="torchcoll" name={quoteattr(one_line(name))}'
    return f"{head}>{message}</testcase>\n" if message else f"{head}/>\n"


def health_text(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> str:
    """One JSON object a line and run: what a scheduler needs to drain a node.

    healthy: False where the verdict is FAIL, None without a reference. verdict, message: its
    word and its line. causes: why cases failed or are not possible. hosts: those of the run.
    suspects: the hosts that it accuses. start_utc, job: as recorded. file: its path.
    """
    lines = []
    for run, verdict in zip(runs, verdicts, strict=True):
        event: dict[str, Any] = {
            "schema": HEALTH_SCHEMA,
            "healthy": None if verdict.word == NO_REFERENCE else verdict.word != FAIL,
            "verdict": verdict.word,
            "message": verdict.line,
            "causes": _causes(run),
            "hosts": _hosts(run.members),
            "suspects": _hosts([e for e in run.events if e.get("kind") == "suspect"]),
            "start_utc": run.header.get("start_utc"),
            "job": run.header.get("job_id"),
            "file": str(run.path) if run.path else None,
        }
        lines.append(json.dumps(event) + "\n")
    return "".join(lines)


def _causes(run: Run) -> list[str]:
    rows = [row for row in summarise_run(run) if row.status not in EXPECTED_STATUSES]
    return list(dict.fromkeys(one_line(row.reason) for row in rows if row.reason))


def _hosts(records: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(one["host"]) for one in records if one.get("host")))

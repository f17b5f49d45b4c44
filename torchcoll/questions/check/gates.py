"""The verdict for other programs: JUnit XML for build servers, health events for schedulers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torchcoll.core.case import DIMENSIONS, NATIVE, SETTINGS
from torchcoll.core.errors import one_line
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.core.run_facts import host_names
from torchcoll.core.summary import Row
from torchcoll.questions.check.judging import Verdict
from torchcoll.questions.check.limits import FAIL
from torchcoll.report.junit import JunitTest, junit_document

HEALTH_SCHEMA = "torchcoll-health/1"


def junit_text(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> str:
    """A test suite per run, with a test for the verdict and one for each case."""
    suites = []
    for run, verdict in zip(runs, verdicts, strict=True):
        # A run that was compared with nothing has not passed.
        kind = "failure" if verdict.word == FAIL else "" if verdict.judged else "skipped"
        tests = [JunitTest("verdict", kind, verdict.line)]
        names: Counter[str] = Counter()
        rows = summarise_run(run)
        for row, title in zip(rows, _titles(rows), strict=True):
            names[title] += 1
            title += f" #{names[title]}" if names[title] > 1 else ""
            text = f"{row.status}: {row.reason or row.verified}"
            expected = row.outcome in EXPECTED_STATUSES
            kind = "failure" if not expected else "skipped" if row.status != "ok" else ""
            tests.append(JunitTest(title, kind, text if kind else "", row.median_ns))
        suites.append((str(run.path or run.header.get("run_id") or "run"), tests))
    return junit_document(suites, "torchcoll")


_ALWAYS = (
    "collective",
    "dtype",
    "op",
    "root",
    "in_place",
    "backend",
    "implementation",
    "group",
    *(setting.name for setting in SETTINGS if setting.title),
    "splits",
    "mode",
)
_OF_SAMPLES = ("communicator", "clock")  # a test has one name, whether its case ran or not
# A title has these where cases differ in nothing else.
_OTHERS = tuple(name for name in DIMENSIONS if name not in (*_ALWAYS, *_OF_SAMPLES))


def _titles(rows: Sequence[Row]) -> list[str]:
    """The names of the cases, with every dimension in which they differ."""
    titles = list(map(_title, rows))
    alike: dict[str, list[Row]] = {}
    for row, title in zip(rows, titles, strict=True):
        alike.setdefault(title, []).append(row)
    names = []
    for row, title in zip(rows, titles, strict=True):
        differing = [n for n in _OTHERS if len({getattr(r, n) for r in alike[title]}) > 1]
        names.append(" ".join([title, *(f"{name} {getattr(row, name)}" for name in differing)]))
    return names


def _title(row: Row) -> str:
    """The name of a case, by which build servers recognise a test."""
    parts = [
        row.collective,
        str(row.size_bytes or row.size_bytes_requested or ""),
        row.dtype,
        row.op,
        None if row.root is None else f"root {row.root}",
        {True: "in place", False: "out of place", None: None}[row.in_place],
        f"on {row.backend}",
        f"by {row.implementation}" if row.implementation != NATIVE else None,
        f"group {row.group}" if row.group else None,
        *(
            setting.title.format(name=setting.name, value=value)
            for setting in SETTINGS
            if (value := getattr(row, setting.name)) != setting.default
        ),
        f"splits {row.splits}" if row.splits else None,
        row.mode if row.mode != "unknown" else None,
    ]
    return " ".join(filter(None, parts))


def health_text(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> str:
    """A JSON object per run and line, by which a scheduler can drain a node.

    healthy: False for FAIL, None if nothing was judged. verdict, message: the word and the line.
    causes: why cases failed. suspects: the hosts that the run accuses.
    """
    lines = []
    for run, verdict in zip(runs, verdicts, strict=True):
        failed = [row for row in summarise_run(run) if row.outcome not in EXPECTED_STATUSES]
        event: dict[str, Any] = {
            "schema": HEALTH_SCHEMA,
            "healthy": verdict.word != FAIL if verdict.judged else None,
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

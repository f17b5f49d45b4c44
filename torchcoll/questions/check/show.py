"""How verdicts are displayed: of one run, of several in one sentence, and for other programs as
JUnit XML, health events and metrics.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TextIO

from torchcoll.core import metrics
from torchcoll.core.errors import one_line
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.core.run_facts import host_names
from torchcoll.core.summary import Row
from torchcoll.core.units import parse_utc
from torchcoll.questions.check.baseline import baseline_pairs
from torchcoll.questions.check.judging import Verdict
from torchcoll.questions.check.limits import CANNOT_TELL, FAIL, WORDS
from torchcoll.questions.check.measured_show import measured_answer, over_all
from torchcoll.report.destination import Destination
from torchcoll.report.formats import View, json_text, run_object
from torchcoll.report.grid import Grid, Head, print_grids
from torchcoll.report.header import header_lines, requested_cases
from torchcoll.report.junit import JunitTest, junit_document

FORMATS = ("table", "markdown", "json")
HEALTH_SCHEMA = "torchcoll-health/1"
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


def _passed(verdict: Verdict) -> bool | None:
    """None for a run that was compared with nothing, or not decided: it has not passed."""
    if verdict.word == FAIL:
        return False
    return True if verdict.judged and verdict.word != CANNOT_TELL else None


def junit_text(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> str:
    """A test suite per run, with a test for the verdict and one for each case, which has the labels
    of its metrics as its name.
    """
    suites = []
    for run, verdict in zip(runs, verdicts, strict=True):
        kind = {True: "", False: "failure", None: "skipped"}[_passed(verdict)]
        tests = [JunitTest("verdict", kind, verdict.line)]
        labels = metrics.unique_labels([metrics.case_labels(result.case) for result in run.results])
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

    healthy: False for FAIL, None for CANNOT TELL and if nothing was judged. verdict, message: the
    verdict and its text. causes: why cases failed. suspects: the hosts that the run accuses.
    """
    lines = []
    for run, verdict in zip(runs, verdicts, strict=True):
        failed = [row for row in summarise_run(run) if row.outcome not in EXPECTED_STATUSES]
        event: dict[str, Any] = {
            "schema": HEALTH_SCHEMA,
            "healthy": _passed(verdict),
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


# As metrics for Prometheus. Those of a case are of its slowest rank, as in every table.

_HELP = {
    "verdict": "1 for the verdict of torchcoll check on the run, 0 for the other verdicts.",
    "run_start_timestamp_seconds": "When the run began, in seconds since 1970.",
    "case_ok": "1 if the case was measured, 0 if it failed or gave wrong results.",
    "case_time_seconds": "Median time of one call, on the slowest rank.",
    "case_bus_bandwidth_gbs": "Bus bandwidth in GB/s, as nccl-tests computes it.",
    "case_baseline_deviation_ratio": "Time / time in the baseline - 1: 0.08 is 8 % slower.",
}

Series = tuple[str, metrics.Labels, float]


def check_metrics_of(
    runs: Sequence[Run], verdicts: Sequence[Verdict], baseline: Run | None = None
) -> list[metrics.Metric]:
    """The metrics of these runs. Of several runs with the same labels the one that began last
    counts: a file of metrics says how things are, not how they were.
    """
    values: dict[str, dict[tuple[tuple[str, str], ...], tuple[metrics.Labels, float]]] = {
        name: {} for name in _HELP
    }
    pairs = zip(runs, verdicts, strict=True)
    for run, verdict in sorted(pairs, key=lambda pair: _start_s(pair[0]) or 0.0):
        for name, labels, value in _series(run, verdict, baseline):
            key = tuple((label, str(text)) for label, text in labels.items())
            values[name][key] = (labels, value)
    return [
        metrics.Metric(name, _HELP[name], list(series.values()))
        for name, series in values.items()
        if series
    ]


def _series(run: Run, verdict: Verdict, baseline: Run | None) -> Iterator[Series]:
    common = metrics.run_labels(run)
    for each in WORDS:
        yield "verdict", {**common, "verdict": each}, float(verdict.word == each)
    start_s = _start_s(run)
    if start_s is not None:
        yield "run_start_timestamp_seconds", common, start_s
    rows = summarise_run(run)
    deviations = _deviations(run, rows, verdict, baseline)
    of_cases = metrics.unique_labels([metrics.case_labels(result.case) for result in run.results])
    for row, labels in zip(rows, of_cases, strict=True):
        yield from _case_series(row, {**common, **labels}, deviations.get(id(row)))


def _deviations(
    run: Run, rows: Sequence[Row], verdict: Verdict, baseline: Run | None
) -> dict[int, float]:
    """Time / time in the baseline - 1, by the id of the row."""
    if verdict.by_good_runs is not None:
        return verdict.by_good_runs.deviations(run, rows)
    if baseline is None:
        return {}
    good = [row for row in rows if row.is_right]
    return {
        id(row): row.median_ns / old.median_ns - 1
        for row, old in baseline_pairs(good, baseline)
        if row.median_ns and old.median_ns
    }


def _case_series(row: Row, labels: metrics.Labels, deviation: float | None) -> Iterator[Series]:
    if row.is_right or row.outcome not in EXPECTED_STATUSES:
        yield "case_ok", labels, float(row.is_right)
    if not row.is_right or row.median_ns is None:
        return
    yield "case_time_seconds", labels, row.median_ns / row.coalesce / 1e9
    if row.busbw_gbps is not None:
        yield "case_bus_bandwidth_gbs", labels, row.busbw_gbps
    if deviation is not None:
        yield "case_baseline_deviation_ratio", labels, deviation


def _start_s(run: Run) -> float | None:
    text = run.header.get("start_utc")
    try:
        return parse_utc(str(text)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None

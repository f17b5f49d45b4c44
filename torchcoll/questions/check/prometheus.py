"""The cases and the verdict of runs as metrics for Prometheus: ``check --metrics``.

Those of a case are of its slowest rank, as in every table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchcoll.core import metrics
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.core.summary import Row
from torchcoll.core.units import parse_utc
from torchcoll.questions.check.baseline import baseline_pairs
from torchcoll.questions.check.judging import Verdict
from torchcoll.questions.check.limits import WORDS

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

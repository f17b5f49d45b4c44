"""The cases and the verdict of runs as metrics for Prometheus: ``check --metrics``.

NCCL Inspector has a series per GPU with that GPU's own time, and so do the metrics ``rank_...``;
those of a case are of its slowest rank, as in every table.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

from torchcoll.core import metrics
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import EXPECTED_STATUSES, CaseResult, Run
from torchcoll.core.summary import Row, bandwidths, default_clock, steady_figure
from torchcoll.core.units import parse_utc
from torchcoll.questions.check.baseline import baseline_pairs
from torchcoll.questions.check.judging import Verdict
from torchcoll.questions.check.limits import WORDS

_HELP = {
    "verdict": "1 for the verdict of torchcoll check on the run, 0 for the other verdicts.",
    "run_start_timestamp_seconds": "When the run began, in seconds since 1970.",
    "run_info": "Always 1; the labels are what the run recorded: device and versions.",
    "case_ok": "1 if the case was measured, 0 if it failed or gave wrong results.",
    "case_time_seconds": "Median time of one call, on the slowest rank.",
    "case_bus_bandwidth_gbs": "Bus bandwidth in GB/s, as nccl-tests computes it.",
    "case_baseline_deviation_ratio": "Time / time in the baseline - 1: 0.08 is 8 % slower.",
    "rank_time_seconds": "Time of one call on this rank, with waiting for others.",
    "rank_bus_bandwidth_gbs": "Bus bandwidth in GB/s by the time of this rank.",
}
_FACTS = ("torchcoll", "torch", "python", "kernel", "driver")
_NOT_OF_A_NAME = re.compile(r"\W", re.ASCII)

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
    order = sorted(range(len(runs)), key=lambda index: _start_s(runs[index]) or 0.0)
    for index in order:
        for name, labels, value in _series(runs[index], verdicts[index], baseline):
            identity = metrics.run_labels(runs[index]) if name == "run_info" else labels
            key = tuple((label, str(text)) for label, text in identity.items())
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
    yield "run_info", {**_info(run), **common}, 1.0
    rows = summarise_run(run)
    deviations = _deviations(run, rows, verdict, baseline)
    of_cases = metrics.unique_labels([metrics.case_labels(result.case) for result in run.results])
    for row, result, labels in zip(rows, run.results, of_cases, strict=True):
        yield from _case_series(row, {**common, **labels}, deviations.get(id(row)))
        if row.is_right:
            yield from _rank_series(run, result, labels)


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


def _rank_series(run: Run, result: CaseResult, labels: metrics.Labels) -> Iterator[Series]:
    clock = default_clock(result)
    samples = result.time_ns.get(clock or "", [])
    ranks = result.members or range(len(samples))
    for rank, times in zip(ranks, samples, strict=False):
        alone = dataclasses.replace(result, time_ns={clock or "": [times]})
        time_ns = steady_figure(alone, clock)
        if not time_ns:
            continue
        of_rank = {**metrics.rank_labels(run, rank), **labels}
        yield "rank_time_seconds", of_rank, time_ns / result.case.coalesce / 1e9
        busbw_gbps = bandwidths(result, time_ns)[1]
        if busbw_gbps is not None:
            yield "rank_bus_bandwidth_gbs", of_rank, busbw_gbps


def _info(run: Run) -> Mapping[str, object]:
    environment = run.environment
    devices = [str(member["device_name"]) for member in run.members if member.get("device_name")]
    facts = {name: environment.get(name) for name in _FACTS}
    libraries = environment.get("libraries") or {}
    facts |= {_label_name(name): version for name, version in libraries.items()}
    facts["device_name"] = ", ".join(dict.fromkeys(devices))
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _label_name(name: str) -> str:
    """What may be the name of a label: two underscores at the beginning are Prometheus' own."""
    plain = _NOT_OF_A_NAME.sub("_", name).lstrip("_")
    return plain if plain and not plain[0].isdigit() else f"library_{plain}"


def _start_s(run: Run) -> float | None:
    text = run.header.get("start_utc")
    try:
        return parse_utc(str(text)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None

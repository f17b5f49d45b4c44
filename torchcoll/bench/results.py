"""What every rank has sent of a case, or of a pair, put together. Loaded on rank 0 alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torchcoll.bench.verify import tolerance_ulp
from torchcoll.core.case import Case, Sizing, size_case
from torchcoll.core.result import CaseResult, Verification


def results_of(
    parts: Sequence[tuple[int, ...]],
    sizing: Sizing,
    gathered: list[dict[str, Any]],
    steady: Sequence[list[dict[str, list[int]]]],
    stops: Sequence[str] = (),
    **facts: Any,
) -> list[CaseResult]:
    """The result of each sub-group; with one part of all ranks that of the case.

    gathered: [rank] of samples. steady: [batch][rank][clock]. stops: why
    the calls ended, of each sub-group; none where there were none. facts: fields of CaseResult.
    """
    stops = stops or [""] * len(parts)
    for rank, words in enumerate(gathered):
        words["time"] = {
            clock: [ns for batch in steady for ns in batch[rank][clock]]
            for clock in (steady[0][rank] if steady else ())
        }
    if len(parts) == 1:
        return [_result(sizing, parts[0], gathered, stop=stops[0], **facts)]
    results = []
    for number, part in enumerate(parts):
        case = replace(sizing.case, group=f"{sizing.case.group}/{number}")
        own = size_case(case, len(part))
        ranks = [gathered[rank] for rank in part]
        result = _result(own, part, ranks, stop=stops[number], **facts)
        result.members = list(part)
        results.append(result)
    return results


def _result(
    sizing: Sizing,
    ranks: Sequence[int],
    gathered: list[dict[str, Any]],
    status: str = "ok",
    **facts: Any,
) -> CaseResult:
    result = _sized(sizing, status, sizing.ranks, **facts)
    first = gathered[0]
    if not first.get("cold"):
        return result
    result.cold_ns = [s["cold"] for s in gathered]
    result.cold_start_ns = [s["cold_start"] for s in gathered]
    result.lead_ns = [s["lead"] for s in gathered] if first["lead"] else []
    result.warmup_ns = [s["warmup"] for s in gathered] if first["warmup"] else []
    result.time_ns = {
        clock: [s["time"][clock] for s in gathered]
        for clock, durations in first["time"].items()
        if durations
    }
    if first["connect"] is not None:
        result.connect_ns = [s["connect"] for s in gathered]
    if "checked" in first:
        counts = [(s["checked"], s["wrong"], s["changed"]) for s in gathered]
        _verify(result, ranks, counts, tolerance_ulp(sizing.case, sizing.ranks))
    if result.settled is None:
        result.warnings.append(
            f"cold calls did not settle within {len(result.cold_ns[0])}, as rank 0 saw them"
        )
    if result.calls_per_sample > 1:
        result.warnings.append(
            f"each sample is the mean of up to {result.calls_per_sample} calls: "
            "events cost too much here"
        )
    return result


def result_of_pair(case: Case, ranks: list[int], gathered: list[Any]) -> CaseResult:
    """Of these ranks, two or two nodes' worth. gathered: of each rank its cold and steady
    durations, and (elements checked, elements wrong) or None.
    """
    result = _sized(
        size_case(case, 2),
        "ok",
        len(ranks),
        cold_ns=[cold for cold, _, _ in gathered],
        time_ns={"host": [steady for _, steady, _ in gathered]},
        batches=[len(gathered[0][1])],
        members=ranks,
        ordinal=None,  # of a connection nobody counts the calls
        stop="count",
    )
    if gathered[0][2]:
        _verify(result, ranks, [(*checked, 0) for _, _, checked in gathered])
    return result


def _sized(sizing: Sizing, status: str, ranks: int, **facts: Any) -> CaseResult:
    return CaseResult(
        sizing.case,
        status,
        ranks,
        count=sizing.count,
        nbytes=sizing.nbytes,
        nbytes_in=sizing.nbytes_in,
        nbytes_out=sizing.nbytes_out,
        busiest_nbytes=sizing.busiest_nbytes,
        **facts,
    )


def _verify(
    result: CaseResult, ranks: Sequence[int], counts: list[tuple[int, int, int]], tolerance: int = 0
) -> None:
    """counts: elements checked, elements wrong and elements of the input changed, of each rank."""
    checked, wrong, changed = (sum(column) for column in zip(*counts, strict=True))
    odd = tuple(rank for rank, (_, *n) in zip(ranks, counts, strict=True) if any(n))
    result.verification = Verification(checked, wrong, odd, tolerance, changed)
    told = [f"{wrong} of {checked} elements wrong"] if wrong else []
    told += [f"{changed} elements of the input changed"] if changed else []
    if told:
        result.status = "wrong"
        result.reason = ", ".join(told)

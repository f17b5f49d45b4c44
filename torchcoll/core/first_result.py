"""Time to first result: what the first call of a launch costs, connecting included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import over_ranks


def first_results(results: Sequence[CaseResult]) -> list[CaseResult]:
    """The case that made the first call of the launch, in all of its sub-groups."""
    ran = [r for r in results if r.ordinal == 0 and r.cold_ns and all(r.cold_ns)]
    return [r for r in ran if replace(r.case, group=None) == replace(ran[0].case, group=None)]


def first_call_ns(firsts: Sequence[CaseResult], how: str = "max") -> float:
    """The first call of ``first_results``, over the ranks of all sub-groups."""
    rows = [
        (members[place] if place < len(members) else place, row)
        for result in firsts
        for members in [result.members]
        for place, row in enumerate(result.cold_ns)
    ]
    return over_ranks([row for _, row in sorted(rows, key=lambda pair: pair[0])], how)[0]


def first_result_ns(run: Run) -> float | None:
    """Connecting and the first call of a launch, each as its slowest rank saw it; None where the
    launch did not make its own communicator, or no rank told.
    """
    firsts = first_results(run.results)
    if not firsts or run.header.get("connects") == "before":
        return None
    return first_call_ns(firsts) + _connect_ns(run, firsts)


def _connect_ns(run: Run, firsts: Sequence[CaseResult]) -> int:
    # A backend that connects within init_process_group cannot tell the two apart.
    within = run.header.get("connects") == "init_process_group"
    own = [ns for result in firsts for ns in result.connect_ns]
    ways = [own, *([run.phases.get("init_process_group") or []] if within else [])]
    return max(next((way for way in [*ways, run.phases.get("communicator") or []] if way), [0]))

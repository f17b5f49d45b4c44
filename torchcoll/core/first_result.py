"""Time to first result: what the first call of a launch costs, connecting included."""

from __future__ import annotations

from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import over_ranks


def first_result_ns(run: Run) -> float | None:
    """Connecting and the first call of a launch, each as its slowest rank saw it; None where the
    launch did not make its own communicator, or no rank told.
    """
    first = next((r for r in run.results if r.ordinal == 0 and r.cold_ns and all(r.cold_ns)), None)
    if first is None or run.header.get("connects") == "before":
        return None
    return over_ranks(first.cold_ns)[0] + _connect_ns(run, first)


def _connect_ns(run: Run, first: CaseResult) -> int:
    # A backend that connects within init_process_group cannot tell the two apart.
    within = run.header.get("connects") == "init_process_group"
    ways = [first.connect_ns, *([run.phases.get("init_process_group") or []] if within else [])]
    return max(next((way for way in [*ways, run.phases.get("communicator") or []] if way), [0]))

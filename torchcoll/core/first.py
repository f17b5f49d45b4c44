"""The first call of a launch, and what connecting before it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import over_ranks


def first_results(results: Sequence[CaseResult]) -> list[CaseResult]:
    """The case that made the first call of a communicator, in all of its sub-groups."""
    ran = [r for r in results if r.ordinal == 0 and r.cold_ns and all(r.cold_ns)]
    if not ran:
        return []
    first = replace(ran[0].case, group=None)
    # Of a launch that made a group for every pair of ranks these are most of its cases.
    alike = (r for r in ran if (r.case.nbytes, r.case.root) == (first.nbytes, first.root))
    return [r for r in alike if replace(r.case, group=None) == first]


def cold_by_rank(results: Sequence[CaseResult]) -> dict[int, list[int]]:
    """Rank of the launch, ascending -> its cold calls, of one case in all of its sub-groups."""
    found = {
        result.members[place] if place < len(result.members) else place: row
        for result in results
        for place, row in enumerate(result.cold_ns)
    }
    return dict(sorted(found.items()))


def connect_ns(launch: Run, firsts: Sequence[CaseResult], how: str = "max") -> float:
    """What making the communicator of these results took before their first call; 0 where the
    first call itself connects.

    With --fresh-group a case has made its own. A backend that connects within
    ``init_process_group`` cannot tell the two apart, so all of it counts; where nothing is
    communicated nothing connects.
    """
    alone = launch.ranks == 1 or {result.case.backend for result in firsts} == {"fake"}
    within = launch.header.get("connects") == "init_process_group" and not alone
    own = [ns for result in firsts for ns in result.connect_ns]
    ways = [own, *([launch.phases.get("init_process_group") or []] if within else [])]
    ways.append(launch.phases.get("communicator") or [])
    # 0 is what a rank has that took no part.
    known = (over_ranks([[ns] for ns in way], how)[0] for way in ways if way)
    return next((ns for ns in known if ns), 0)


def first_result_ns(launch: Run, firsts: Sequence[CaseResult] | None = None) -> float | None:
    """Time to first result: connecting and the first call of a launch.

    The slowest rank's connect and the slowest rank's first call: the ranks meet between the two, so
    the maxima follow each other. None where the launch did not make its own communicator, or no
    rank told.
    """
    firsts = first_results(launch.results) if firsts is None else firsts
    if not firsts or launch.header.get("connects") == "before":
        return None
    first = over_ranks(list(cold_by_rank(firsts).values()), "max")[0]
    return first + connect_ns(launch, firsts)

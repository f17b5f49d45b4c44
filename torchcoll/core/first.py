"""The first call of a launch, and what connecting before it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import over_ranks


def backends_of(results: Sequence[CaseResult]) -> list[str]:
    """Those of the cases, in the order in which they ran."""
    return list(dict.fromkeys(result.case.backend for result in results))


def first_results(results: Sequence[CaseResult], backend: str | None = None) -> list[CaseResult]:
    """The case that made the first call of a communicator, in all of its sub-groups; of that
    backend, else of the one that ran first.
    """
    ran = [r for r in results if r.ordinal == 0 and r.cold_ns and all(r.cold_ns)]
    ran = [r for r in ran if r.case.backend == backend] if backend else ran
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


def connects(launch: Run, backend: str) -> str | None:
    """Where that backend of the launch connected: ``init_process_group``, ``communicator``, ``first
    call``, ``never``, or ``before`` the launch. None where nothing tells, which then is of no
    weight: an imported file has no such phase. ``unknown`` of a second backend in files of versions
    that told the first one's alone.
    """
    of_each = launch.header.get("connects_of") or {}
    if backend in of_each:
        return str(of_each[backend])
    asked = str((launch.header.get("spec") or {}).get("backend") or backend)
    known = launch.header.get("connects")
    return known if backend == asked.split(",")[0] or known == "before" else "unknown"


def first_call_ns(firsts: Sequence[CaseResult], how: str = "max") -> float:
    """The first call of these results, as the slowest rank saw it if not read otherwise."""
    return over_ranks(list(cold_by_rank(firsts).values()), how)[0]


def connect_ns(launch: Run, firsts: Sequence[CaseResult], how: str = "max") -> float:
    """What making the communicator of these results took before their first call; 0 where the
    first call itself connects, and where nothing tells.

    With --fresh-group a case has made its own. A backend that connects within
    ``init_process_group`` (as the second of a launch: in its ``new_group``) cannot tell the two
    apart, so all of it counts; where nothing is communicated nothing connects.
    """
    backend = firsts[0].case.backend if firsts else ""
    where = connects(launch, backend)
    own = [ns for result in firsts for ns in result.connect_ns]
    ways = [own]
    if where == "init_process_group" and launch.ranks != 1 and backend != "fake":
        names = (f"new_group_{backend}", "init_process_group")
        ways.append(next((launch.phases[n] for n in names if launch.phases.get(n)), []))
    if where != "unknown":
        ways.append(launch.phases.get("communicator") or [])
    # 0 is what a rank has that took no part.
    known = (over_ranks([[ns] for ns in way], how)[0] for way in ways if way)
    return next((ns for ns in known if ns), 0)


def first_result_ns(
    launch: Run, firsts: Sequence[CaseResult] | None = None, backend: str | None = None
) -> float | None:
    """Time to first result: connecting and the first call of a launch, of that backend, else of
    the one that ran first.

    The slowest rank's connect and the slowest rank's first call: the ranks meet between the two, so
    the maxima follow each other. None where the launch did not make its own communicator, or no
    rank told.
    """
    firsts = first_results(launch.results, backend) if firsts is None else firsts
    if not firsts or connects(launch, firsts[0].case.backend) in ("before", "unknown"):
        return None
    return first_call_ns(firsts) + connect_ns(launch, firsts)

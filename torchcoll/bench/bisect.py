"""--bisect: all_reduce on halves of the ranks, both at once, each in a group of its own.

For faults that pairs do not show: what only many ranks at once load (a switch, a rail), or what
only the library's own algorithms use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchcoll.core.case import size_case
from torchcoll.core.crowding import crowded
from torchcoll.core.errors import brief
from torchcoll.core.halving import LEAST, Group, Halving, halve
from torchcoll.core.tournament import Units
from torchcoll.core.units import format_ranges

if TYPE_CHECKING:
    from torchcoll.bench.runner import Session

_TIMES = 2  # each step; the better one counts, for what slows a half for a moment is no fault of it


def bisect(
    session: Session, units: Units, threshold: float, told: Callable[[str], None]
) -> Halving:
    """Halve the units; rank 0 records what it came to. Collective."""
    before = session.spec, session.parts, session.part
    case, span = session.sizings[-1].case, session.sizings[-1].span_nbytes
    step = 0

    def speeds(first: Group, second: Group) -> tuple[float, float]:
        nonlocal step
        step += 1
        parts = [ranks_of(units, first), ranks_of(units, second)]
        rest = {*range(session.ranks)} - {rank for part in parts for rank in part}
        parts += [tuple(sorted(rest))] if rest else []
        session.parts = tuple(parts)
        session.part = next(part for part in parts if session.rank in part)
        own = replace(case, group=f"bisect {step}")
        sizing = size_case(own, max(map(len, parts)), span_nbytes=span)
        seen: list[tuple[float, float]] = []
        for _ in range(_TIMES):
            told(f"bisect, step {step}")
            try:
                session.one_case(sizing)
            except RuntimeError as error:
                sizes = " and ".join(str(len(part)) for part in parts)
                session.trouble(f"groups of {sizes} ranks: {brief(error)}")
            seen.append(session.control.decide(_speeds(session, len(parts))))
        return max(one[0] for one in seen), max(one[1] for one in seen)

    hosts = [member["host"] for member in session.control.members]

    def comparable(first: Group, second: Group) -> bool:
        """As many ranks on as many nodes: else one half has slower ways, and no fault."""
        shapes = [Counter(hosts[rank] for rank in ranks_of(units, g)) for g in (first, second)]
        return sorted(shapes[0].values()) == sorted(shapes[1].values())

    session.spec = replace(session.spec, fresh_group=True)
    try:
        found = halve(range(len(units)), speeds, threshold, comparable)
    finally:
        session.spec, session.parts, session.part = before
    if session.recorder:
        # The group's own members know no affinity, those of the run do.
        members = session.recorder.run.members
        _record(session.recorder, members, case.device == "cpu", units, found)
    return found


def ranks_of(units: Units, group: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(rank for unit in group for rank in units[unit]))


def _speeds(session: Session, parts: int) -> list[float] | None:
    """busbw of the first two of the sub-groups that ran last; 0 where one failed."""
    if session.run is None:
        return None
    from torchcoll.core.summary import summarise

    rows = [summarise(result) for result in session.run.results[-parts:]]
    return [row.busbw_gbps or 0.0 if row.status == "ok" else 0.0 for row in rows[:2]]


def _record(
    recorder: Any, members: list[dict[str, Any]], on_cpu: bool, units: Units, found: Halving
) -> None:
    if not found.steps:
        why = f"{len(units)} are too few to halve, {2 * LEAST} needed"
        if len(units) >= 2 * LEAST:
            why = "no two halves have as many ranks on as many nodes, so none are comparable"
        recorder.event("bisect", f"bisect: {why}")
        return
    # That with the slow half: later ones may have found both of its halves alike.
    last = next((step for step in found.steps if found.group in step.halves), found.steps[-1])
    halves = " and ".join(
        f"{speed:.3f} GB/s on ranks {format_ranges(ranks_of(units, half))}"
        for half, speed in zip(last.halves, last.speeds, strict=True)
    )
    if not found.group:
        recorder.event("bisect", f"bisect: both halves are alike, {halves} (all_reduce busbw)")
        return
    ranks = ranks_of(units, found.group)
    hosts = list(dict.fromkeys(members[rank]["host"] for rank in ranks))
    waiting = {host for host, _ in crowded(members)} if on_cpu else set()
    told = {members[rank]["host"] for half in last.halves for rank in ranks_of(units, half)}
    if told & waiting:
        names = ", ".join(sorted(told & waiting)[:8])
        recorder.event(
            "bisect",
            f"bisect: {halves}, but ranks wait for a core on {names}: no fault is sought there",
        )
        return
    message = (
        f"bisect: ranks {format_ranges(ranks)} ({', '.join(hosts[:8])}) do all_reduce at "
        f"{100 * found.ratio:.0f} % of the busbw of the other half ({halves})"
    )
    where = {"host": hosts[0]} if len(hosts) == 1 else {"hosts": hosts}
    recorder.event("suspect", message, ranks=list(ranks), **where)

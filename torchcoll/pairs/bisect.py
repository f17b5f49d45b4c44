"""--bisect: which half of the ranks (nodes) is slow, and which half of that, until it is small.

For faults that pairs do not show: what only many ranks at once load (a switch, a rail), or what
only the library's own algorithms use.

``halve`` is pure: what a step costs is told by a function, ``bisect`` or a test's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchcoll.bench.session import Session
from torchcoll.bench.sweep import Sweep
from torchcoll.core.case import size_case
from torchcoll.core.errors import brief
from torchcoll.core.shared_cores import oversubscribed_hosts
from torchcoll.core.units import format_ranges
from torchcoll.pairs.schedule import Units

Group = tuple[int, ...]
# Of both halves at once, in order: how fast each is. The rest of the units do as they like.
Speeds = Callable[[Group, Group], tuple[float, float]]

Comparable = Callable[[Group, Group], bool]

LEAST = 2  # units of a group that has anything to communicate


@dataclass(frozen=True)
class Step:
    halves: tuple[Group, Group]
    speeds: tuple[float, float]


@dataclass(frozen=True)
class Halving:
    """``group``: the smallest one that is slower than its other half; () where there is none.

    ``ratio``: its speed over that of the other half.
    """

    group: Group
    ratio: float
    steps: tuple[Step, ...]


def halve(
    units: Sequence[int],
    speeds: Speeds,
    threshold: float,
    comparable: Comparable = lambda first, second: True,
) -> Halving:
    """Go on with the slower half while it is slower by ``threshold`` (a share) and has two halves
    that can communicate. Where both halves are alike, the fault is in both, between them, or
    nowhere: halving ends. So it does where the halves are not ``comparable``.

    Both halves have the same number of units, for busbw depends on it where latency counts (a ring
    of three takes twice the steps of one of two): of an odd number the last is left out first, and
    where the others are alike, the first.
    """
    group: Group = tuple(units)
    found: Group = ()
    ratio, steps = 1.0, []
    while len(group) >= 2 * LEAST:
        middle = len(group) // 2
        slower: Group = ()
        for start in range(1 + len(group) % 2):
            halves = group[start : start + middle], group[start + middle : start + 2 * middle]
            if not comparable(*halves):
                continue
            stated = speeds(*halves)
            steps.append(Step(halves, stated))
            slow = 0 if stated[0] < stated[1] else 1
            if stated[slow] < (1 - threshold) * stated[1 - slow]:
                slower, ratio = halves[slow], stated[slow] / stated[1 - slow]
                break
        if not slower:
            break
        group = found = slower
    return Halving(found, ratio, tuple(steps))


_TIMES = 2  # each step; the better one counts, for what slows a half for a moment is no fault of it


def bisect(
    session: Session, units: Units, threshold: float, stated: Callable[[str], None]
) -> Halving:
    """Halve the units; rank 0 records what it came to. Collective."""
    spec = replace(session.spec, fresh_group=True)
    case, span = session.sizings[-1].case, session.sizings[-1].span_bytes
    step = 0

    def speeds(first: Group, second: Group) -> tuple[float, float]:
        nonlocal step
        step += 1
        parts = [ranks_of(units, first), ranks_of(units, second)]
        rest = {*range(session.local.ranks)} - {rank for part in parts for rank in part}
        parts += [tuple(sorted(rest))] if rest else []
        sweep = Sweep(session, spec, tuple(parts))
        own = replace(case, group=f"bisect {step}")
        sizing = size_case(own, max(map(len, parts)), span_bytes=span)
        seen: list[tuple[float, float]] = []
        for _ in range(_TIMES):
            stated(f"bisect, step {step}")
            try:
                sweep.one_case(sizing)
            except RuntimeError as error:
                sizes = " and ".join(str(len(part)) for part in parts)
                session.local.abort(f"groups of {sizes} ranks: {brief(error)}")
            seen.append(session.local.control.decide(_speeds(session, len(parts))))
        return max(one[0] for one in seen), max(one[1] for one in seen)

    hosts = [member["host"] for member in session.local.control.members]

    def comparable(first: Group, second: Group) -> bool:
        """As many ranks on as many nodes: else one half has slower ways, and no fault."""
        shapes = [Counter(hosts[rank] for rank in ranks_of(units, g)) for g in (first, second)]
        return sorted(shapes[0].values()) == sorted(shapes[1].values())

    found = halve(range(len(units)), speeds, threshold, comparable)
    if session.recorder:
        # The group's own members know no affinity, those of the run do.
        members = session.recorder.run.members
        record_halving(session.recorder, members, case.device == "cpu", units, found)
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


def record_halving(
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
    waiting = {host for host, _ in oversubscribed_hosts(members)} if on_cpu else set()
    stated = {members[rank]["host"] for half in last.halves for rank in ranks_of(units, half)}
    if stated & waiting:
        names = ", ".join(sorted(stated & waiting)[:8])
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

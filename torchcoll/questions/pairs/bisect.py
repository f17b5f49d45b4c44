"""--bisect: find the slow half of the ranks (or nodes), then its slow half, until it is small.

This finds faults that pairs do not show: in parts that only many ranks load at once (a switch, a
rail), or that only the library's algorithms use.

``halve`` is pure: it gets the measurement as a function, from ``bisect`` or from a test."""

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
from torchcoll.questions.pairs.schedule import Units

Group = tuple[int, ...]
# Measures both halves at the same time and returns the speed of each. Other units are ignored.
Speeds = Callable[[Group, Group], tuple[float, float]]

Comparable = Callable[[Group, Group], bool]

LEAST = 2  # units of a half: a single one has nobody to communicate with


@dataclass(frozen=True)
class Step:
    halves: tuple[Group, Group]
    speeds: tuple[float, float]


@dataclass(frozen=True)
class Halving:
    """The result of halving.

    group: the smallest group that is slower than its other half; () if there is none.
    ratio: its speed over the speed of the other half.
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
    """Continue with the slower half while it is slower by ``threshold`` and can be halved again.

    Halving ends if both halves are alike, because then the fault is in both, between them, or
    nowhere. It also ends if the halves are not ``comparable``.

    Both halves have the same number of units, because busbw depends on this number if latency
    matters (a ring of three takes twice the steps of a ring of two). With an odd number the last
    unit is left out first; if the halves are alike then, the first one is left out instead.
    """
    group: Group = tuple(units)
    slow_group: Group = ()
    ratio, steps = 1.0, []
    while len(group) >= 2 * LEAST:
        middle = len(group) // 2
        slower: Group = ()
        for start in range(1 + len(group) % 2):
            halves = group[start : start + middle], group[start + middle : start + 2 * middle]
            if not comparable(*halves):
                continue
            busbw = speeds(*halves)
            steps.append(Step(halves, busbw))
            slower_half = 0 if busbw[0] < busbw[1] else 1
            if busbw[slower_half] < (1 - threshold) * busbw[1 - slower_half]:
                slower, ratio = halves[slower_half], busbw[slower_half] / busbw[1 - slower_half]
                break
        if not slower:
            break
        group = slow_group = slower
    return Halving(slow_group, ratio, tuple(steps))


_TIMES = 2  # measurements of each step: the better one counts, to ignore a short disturbance


def bisect(
    session: Session, units: Units, threshold: float, on_progress: Callable[[str], None]
) -> Halving:
    """Halve the units with all_reduce; rank 0 records the result. Collective.

    on_progress: called with a short description of each step.
    """
    spec = replace(session.spec, fresh_group=True)
    case, span = session.sizings[-1].case, session.sizings[-1].span_bytes
    step = 0

    def speeds(first: Group, second: Group) -> tuple[float, float]:
        nonlocal step
        step += 1
        subgroups = [unit_ranks(units, first), unit_ranks(units, second)]
        busy = {rank for subgroup in subgroups for rank in subgroup}
        remaining_ranks = {*range(session.local.ranks)} - busy
        subgroups += [tuple(sorted(remaining_ranks))] if remaining_ranks else []
        sweep = Sweep(session, spec, tuple(subgroups))
        step_case = replace(case, group=f"bisect {step}")
        sizing = size_case(step_case, max(map(len, subgroups)), span_bytes=span)
        attempts: list[tuple[float, float]] = []
        for _ in range(_TIMES):
            on_progress(f"bisect, step {step}")
            try:
                sweep.one_case(sizing)
            except RuntimeError as error:
                sizes = " and ".join(str(len(subgroup)) for subgroup in subgroups)
                session.local.abort(f"groups of {sizes} ranks: {brief(error)}")
            attempts.append(session.local.control.decide(_speeds(session, len(subgroups))))
        return max(attempt[0] for attempt in attempts), max(attempt[1] for attempt in attempts)

    hosts = session.local.control.hosts

    def comparable(first: Group, second: Group) -> bool:
        """Whether both halves spread their ranks over nodes alike; if not, one may be slower
        without a fault.
        """
        shapes = [Counter(hosts[rank] for rank in unit_ranks(units, g)) for g in (first, second)]
        return sorted(shapes[0].values()) == sorted(shapes[1].values())

    halving = halve(range(len(units)), speeds, threshold, comparable)
    if session.recorder:
        # The members of the run record the CPU affinity; those of the group do not.
        members = session.recorder.run.members
        record_halving(session.recorder, members, case.device == "cpu", units, halving)
    return halving


def unit_ranks(units: Units, group: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(rank for unit in group for rank in units[unit]))


def _speeds(session: Session, subgroups: int) -> list[float] | None:
    """busbw of the two halves in the latest step; 0 for one that failed; None on other ranks.

    subgroups: how many sub-groups ran in this step: the halves, and one of the other ranks.
    """
    if session.run is None:
        return None
    from torchcoll.core.summary import summarise

    rows = [summarise(result) for result in session.run.results[-subgroups:]]
    return [row.busbw_gbps or 0.0 if row.is_right else 0.0 for row in rows[:2]]


def record_halving(
    recorder: Any, members: list[dict[str, Any]], on_cpu: bool, units: Units, halving: Halving
) -> None:
    """Record the result as an event: a suspect if a slow half was found."""
    if not halving.steps:
        reason = f"{len(units)} are too few to halve, {2 * LEAST} needed"
        if len(units) >= 2 * LEAST:
            reason = "no two halves have as many ranks on as many nodes, so none are comparable"
        recorder.event("bisect", f"bisect: {reason}")
        return
    # The step that found the slow half: in later steps its own halves were alike.
    last_step = next(
        (step for step in halving.steps if halving.group in step.halves), halving.steps[-1]
    )
    halves = " and ".join(
        f"{speed:.3f} GB/s on ranks {format_ranges(unit_ranks(units, half))}"
        for half, speed in zip(last_step.halves, last_step.speeds, strict=True)
    )
    if not halving.group:
        recorder.event("bisect", f"bisect: both halves are alike, {halves} (all_reduce busbw)")
        return
    ranks = unit_ranks(units, halving.group)
    hosts = list(dict.fromkeys(members[rank]["host"] for rank in ranks))
    waiting_hosts = {host for host, _ in oversubscribed_hosts(members)} if on_cpu else set()
    halves_ranks = [rank for half in last_step.halves for rank in unit_ranks(units, half)]
    compared_hosts = {members[rank]["host"] for rank in halves_ranks}
    if compared_hosts & waiting_hosts:
        names = ", ".join(sorted(compared_hosts & waiting_hosts)[:8])
        text = f"bisect: {halves}, but ranks wait for a core on {names}: no fault is sought there"
        recorder.event("bisect", text)
        return
    message = (
        f"bisect: ranks {format_ranges(ranks)} ({', '.join(hosts[:8])}) do all_reduce at "
        f"{100 * halving.ratio:.0f} % of the busbw of the other half ({halves})"
    )
    location = {"host": hosts[0]} if len(hosts) == 1 else {"hosts": hosts}
    recorder.event("suspect", message, ranks=list(ranks), **location)

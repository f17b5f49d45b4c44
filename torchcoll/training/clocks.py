"""What the clocks of ranks differ by, as the calls that they made together tell.

A collective in which every rank needs all others ends on no rank before all have begun it. So of
two ranks, with what is added to the stamps of the second to have those of the first:

    start of the first  - end of the second  <=  added  <=  end of the first  - start of the second

which is F. Cristian's bound (Probabilistic clock synchronization, 1989), with a collective in place
of a message there and back. The bounds of many calls are intersected. Within them the offset is the
median of the differences of the ends, for ranks leave such a call at about the same time. Its error
is the distance to the farther bound: nothing is assumed but that clocks run alike meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from torchcoll.core.collectives import COLLECTIVES, has_splits
from torchcoll.core.summary import median
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import format_ranges, time_text
from torchcoll.training.joined import Joined


@dataclass(frozen=True)
class Offsets:
    """What to add to each rank's stamps to have those of the first, in ns.

    added_ns, error_ns: rank -> ns; a rank that cannot be aligned is missing. The error is what the
    offset is off by at most. agree_ns: by how much the ends of one call differ from it, the median;
    None where no end was needed. text: how, in a sentence. problem: why some are missing, or ''.
    """

    added_ns: dict[int, int]
    error_ns: dict[int, int]
    agree_ns: float | None
    text: str
    problem: str = ""


@dataclass
class _Bound:
    """Of one rank beside another: low <= added <= high, and the differences of their ends."""

    low: float
    high: float
    ends: list[int]


def measured_offsets(traffic: Traffic, calls: Iterable[Joined]) -> Offsets:
    """calls: those to measure by. One clock that all ranks name needs none."""
    ranks = sorted(traffic.calls)
    if not ranks:
        return Offsets({}, {}, None, "no rank")
    known = [traffic.clocks.get(rank) for rank in ranks]
    names = {clock[0] if clock else "" for clock in known}
    if len(ranks) == 1:
        return Offsets({ranks[0]: 0}, {ranks[0]: 0}, None, "")
    if len(names) == 1 and "" not in names:
        zeros = {rank: traffic.clocks[rank][1] for rank in ranks}
        added = {rank: zero - zeros[ranks[0]] for rank, zero in zeros.items()}
        return Offsets(added, dict.fromkeys(ranks, 0), None, "one host, one clock: no error")
    bounds = _bounds(calls)
    # From the first rank on, over ranks that share calls with one that is aligned already.
    added, error, off = {ranks[0]: 0}, {ranks[0]: 0}, []
    concurrent: dict[int, list[int]] = defaultdict(list)
    contradict: set[int] = set()
    for first, other in bounds:
        concurrent[first].append(other)
    waiting, count = [ranks[0]], 0
    for rank in waiting:  # which grows
        for other in sorted(concurrent[rank]):
            bound = bounds[rank, other]
            if other in added:
                continue
            if bound.low > bound.high:
                contradict.add(other)
                continue
            middle = min(max(median(bound.ends), bound.low), bound.high)
            added[other] = added[rank] + round(middle)
            farther = max(bound.high - middle, middle - bound.low)
            error[other] = error[rank] + round(farther)
            off.append(median([abs(gap - middle) for gap in bound.ends]))
            count = max(count, len(bound.ends))
            waiting.append(other)
    missing = [rank for rank in ranks if rank not in added]
    text = problem = ""
    if off:
        text = (
            f"clocks aligned by the ends of up to {count} calls that ranks made together, which "
            f"agree within {time_text(max(off), 3)} (median); at most "
            f"{time_text(max(error.values()), 3)} off, for no rank leaves such a call "
            "before all have begun it"
        )
    if missing:
        which = f"rank{'s' * (len(missing) > 1)} {format_ranges(missing)}"
        why = "there is no collective of theirs with others that tells when it began and ended"
        if contradict & set(missing):
            why = (
                "no one offset fits all calls (a clock that was set or drifts, or traces that are "
                "not of one run)"
            )
        problem = f"the clocks of {which} cannot be aligned with rank {ranks[0]}: {why}"
    return Offsets(added, error, max(off, default=None), text, problem)


def _bounds(calls: Iterable[Joined]) -> dict[tuple[int, int], _Bound]:
    """(rank, other) -> bounds of what is added to the stamps of the other; of each call the first
    rank with each of the rest, both ways.
    """
    found: dict[tuple[int, int], _Bound] = {}
    for one in calls:
        # Only where every rank needs all others, and each tells when it began and ended.
        collective = next(iter(one.calls.values())).collective
        entry = COLLECTIVES.get(collective)
        if entry is None or entry.has_root or has_splits(collective) or len(one.calls) < 2:
            continue
        if not all(call.span for call in one.calls.values()):
            continue
        first, *rest = sorted(one.calls)
        begin, end = one.calls[first].span or (0, 0)
        for other in rest:
            start, stop = one.calls[other].span or (0, 0)
            bound = found.setdefault((first, other), _Bound(float("-inf"), float("inf"), []))
            bound.low, bound.high = max(bound.low, begin - stop), min(bound.high, end - start)
            bound.ends.append(end - stop)
    for (first, other), bound in list(found.items()):
        found[other, first] = _Bound(-bound.high, -bound.low, [-gap for gap in bound.ends])
    return found

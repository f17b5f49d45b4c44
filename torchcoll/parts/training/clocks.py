"""Measures the offsets between the clocks of ranks from the calls that they made together.

A collective in which every rank needs all others ends on no rank before all have begun it. So for
two ranks, and the offset to be added to the stamps of the second to get those of the first:

    start of the first  - end of the second  <=  offset  <=  end of the first  - start of the second

This is F. Cristian's bound (Probabilistic clock synchronization, 1989), with a collective in place
of a message and its reply. The bounds of many calls are intersected. Within them, the offset is the
median of the differences of the ends, because ranks leave such a call at about the same time. Its
error is the distance to the farther bound. The only assumption is that the clocks run at the same
rate meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from torchcoll.core.collectives import COLLECTIVES, has_splits
from torchcoll.core.summary import median
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import format_ns, format_ranges, plural
from torchcoll.parts.training.joined import JoinedCall


@dataclass(frozen=True)
class Offsets:
    """The offset to add to each rank's stamps to get those of the first rank, in ns.

    - added_ns: rank -> offset; a rank that cannot be aligned is missing.
    - error_ns: rank -> maximum error of the offset.
    - agree_ns: by how much the ends of one call differ from the offset, median; None if no ends
      were needed.
    - text: the method, in a sentence.
    - problem: why ranks are missing, or ''.
    """

    added_ns: dict[int, int]
    error_ns: dict[int, int]
    agree_ns: float | None
    text: str
    problem: str = ""


@dataclass
class _Bound:
    """Bounds of the offset of one rank relative to another, and the differences of their ends.

    low <= offset <= high.
    """

    low: float
    high: float
    ends: list[int]


def measure_offsets(traffic: Traffic, calls: Iterable[JoinedCall]) -> Offsets:
    """Returns the clock offsets of all ranks of the traffic.

    - calls: the calls to measure with. If all ranks name one clock, none are needed.
    """
    ranks = sorted(traffic.calls)
    if not ranks:
        return Offsets({}, {}, None, "no rank")
    clocks = [traffic.clocks.get(rank) for rank in ranks]
    names = {clock[0] if clock else "" for clock in clocks}
    if len(ranks) == 1:
        return Offsets({ranks[0]: 0}, {ranks[0]: 0}, None, "")
    if len(names) == 1 and "" not in names:
        zeros = {rank: traffic.clocks[rank][1] for rank in ranks}
        added = {rank: zero - zeros[ranks[0]] for rank, zero in zeros.items()}
        return Offsets(added, dict.fromkeys(ranks, 0), None, "one host, one clock: no error")
    bounds = _bounds(calls)
    # Ranks are aligned starting from the first, through calls shared with an aligned rank.
    added, error, deviations = {ranks[0]: 0}, {ranks[0]: 0}, []
    neighbours: dict[int, list[int]] = defaultdict(list)
    contradicting: set[int] = set()
    for first, peer in bounds:
        neighbours[first].append(peer)
    waiting, count = [ranks[0]], 0
    for rank in waiting:  # the loop appends to it
        for peer in sorted(neighbours[rank]):
            bound = bounds[rank, peer]
            if peer in added:
                continue
            if bound.low > bound.high:
                contradicting.add(peer)
                continue
            middle = min(max(median(bound.ends), bound.low), bound.high)
            added[peer] = added[rank] + round(middle)
            farther = max(bound.high - middle, middle - bound.low)
            error[peer] = error[rank] + round(farther)
            deviations.append(median([abs(gap - middle) for gap in bound.ends]))
            count = max(count, len(bound.ends))
            waiting.append(peer)
    missing = [rank for rank in ranks if rank not in added]
    text = problem = ""
    if deviations:
        text = (
            f"clocks aligned by the ends of up to {count} calls that ranks made together, which "
            f"agree within {format_ns(max(deviations), 3)} (median); at most "
            f"{format_ns(max(error.values()), 3)} off, for no rank leaves such a call "
            "before all have begun it"
        )
    if missing:
        which = f"{plural(len(missing), 'rank')} {format_ranges(missing)}"
        why = "no collective with other ranks has its begin and end recorded"
        if contradicting & set(missing):
            why = (
                "no one offset fits all calls (a clock that was set or drifts, or traces that are "
                "not of one run)"
            )
        problem = f"the clocks of {which} cannot be aligned with rank {ranks[0]}: {why}"
    return Offsets(added, error, max(deviations, default=None), text, problem)


def _bounds(calls: Iterable[JoinedCall]) -> dict[tuple[int, int], _Bound]:
    """Returns (rank, peer) -> bounds of the offset to add to the stamps of the peer.

    Each call gives the bounds of its first rank with each of its other ranks, in both directions.
    """
    bounds: dict[tuple[int, int], _Bound] = {}
    for joined in calls:
        # Only collectives in which every rank needs all others, with begin and end on each rank.
        collective = next(iter(joined.calls.values())).collective
        entry = COLLECTIVES.get(collective)
        if entry is None or entry.has_root or has_splits(collective) or len(joined.calls) < 2:
            continue
        if not all(call.span for call in joined.calls.values()):
            continue
        first, *peers = sorted(joined.calls)
        begin, end = joined.calls[first].span or (0, 0)
        for peer in peers:
            start, stop = joined.calls[peer].span or (0, 0)
            bound = bounds.setdefault((first, peer), _Bound(float("-inf"), float("inf"), []))
            bound.low, bound.high = max(bound.low, begin - stop), min(bound.high, end - start)
            bound.ends.append(end - stop)
    for (first, peer), bound in list(bounds.items()):
        bounds[peer, first] = _Bound(-bound.high, -bound.low, [-gap for gap in bound.ends])
    return bounds

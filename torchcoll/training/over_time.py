"""How the steps of a capture changed over its hours: drift, and which rank was late when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchcoll.core.summary import median
from torchcoll.core.traffic import Traffic
from torchcoll.stats.drift import TimeDrift, drift_of
from torchcoll.training.joined import JoinedCall, join_ranks, unsplit_reason
from torchcoll.training.late import late_ranks

MOST_ROWS = 24
_ROUND_S = (1, 5, 15, 60, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 7 * 86400)


@dataclass(frozen=True)
class Stretch:
    """A stretch of time. None is unknown.

    from_s, to_s: since the capture began. steps: captured in it. step_ns: how long one took on the
    slowest rank; wait_ns, transfer_ns: of a step, added up over its calls, the longest time of
    their ranks less the shortest, and the shortest: medians over the steps. late_rank: the one that
    came last to most calls; late_share: to so many of those that tell it.
    """

    from_s: float
    to_s: float
    steps: int
    step_ns: float
    wait_ns: float | None
    transfer_ns: float | None
    late_rank: int | None
    late_share: float | None


@dataclass(frozen=True)
class OverTime:
    """drift: of the time of a step, over all of them."""

    stretches: tuple[Stretch, ...]
    drift: TimeDrift | None


def over_time(traffic: Traffic) -> OverTime | None:
    """None where the capture took every step (``every`` of ``torchcoll.capture``). traffic: with
    its ends cut at the marks.
    """
    every = traffic.environment.get("every")
    if type(every) is not int or every < 2 or not traffic.steps:
        return None
    joined, _ = join_ranks(traffic)
    count = min(len(spans) for spans in traffic.steps.values())
    split: dict[int, dict[JoinedCall, None]] = defaultdict(
        dict
    )  # those that tell wait from transfer
    for rank, calls in traffic.calls.items():
        for call, one in zip(calls, joined[rank], strict=True):
            if call.step is not None and not unsplit_reason(one):
                split[call.step][one] = None
    took = [
        max(spans[k][1] - spans[k][0] for spans in traffic.steps.values()) for k in range(count)
    ]
    first = traffic.steps[min(traffic.steps)]
    # The shortest round length of which there are not too many.
    whole_s = first[count - 1][1] / 1e9
    fits = (length for length in _ROUND_S if whole_s <= MOST_ROWS * length)
    length_s = next(fits, whole_s / MOST_ROWS)
    steps_of: dict[int, list[int]] = defaultdict(list)
    for k in range(count):
        steps_of[int(first[k][0] / 1e9 // length_s)].append(k)
    stretches = [
        _stretch(place * length_s, length_s, steps, took, split, traffic.source)
        for place, steps in sorted(steps_of.items())
    ]
    return OverTime(tuple(stretches), drift_of(took))


def _stretch(
    from_s: float,
    length_s: float,
    steps: Sequence[int],
    took: Sequence[int],
    calls: Mapping[int, Mapping[JoinedCall, None]],
    source: str,
) -> Stretch:
    known = [[one.times_ns.values() for one in calls[k]] for k in steps if k in calls]
    waits = [sum(max(times) - min(times) for times in step) for step in known]
    transfers = [sum(min(times) for times in step) for step in known]
    rows, _ = late_ranks([one for k in steps for one in calls.get(k, ())], source)
    worst = max(rows, key=lambda row: row.last, default=None)
    told = sum(row.last for row in rows)
    late = worst if worst and worst.last else None
    return Stretch(
        from_s,
        from_s + length_s,
        len(steps),
        median([took[k] for k in steps]),
        median(waits) if waits else None,
        median(transfers) if transfers else None,
        late.rank if late else None,
        late.last / told if late else None,
    )

"""How the steps of a long capture changed: drift, and which rank was late when."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchcoll.core.summary import median
from torchcoll.core.traffic import Traffic
from torchcoll.parts.training.arrivals import SplitCall, split_traffic
from torchcoll.parts.training.joined import JoinedCall, join_ranks, unsplit_reason
from torchcoll.stats.drift import TimeDrift, drift_of

MOST_ROWS = 24
_ROUND_S = (1, 5, 15, 60, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 7 * 86400)


@dataclass(frozen=True)
class Stretch:
    """A stretch of time of the capture. None: unknown.

    - from_s, to_s: its bounds in seconds since the capture began.
    - steps: the number of captured steps in it.
    - step_ns: the duration of a step on the slowest rank, median over the steps.
    - wait_ns: the longest less the shortest duration of each call's ranks, added up over a step;
      median over the steps.
    - transfer_ns: the shortest duration of each call's ranks, added up over a step; median over the
      steps.
    - late_rank: the rank that caused most waiting (training/arrivals.py).
    - late_share: its share of the waiting.
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
    """A capture over time; ``drift`` is that of the step duration over all captured steps."""

    stretches: tuple[Stretch, ...]
    drift: TimeDrift | None


def over_time(traffic: Traffic) -> OverTime | None:
    """Returns the stretches of a sampled capture, or None if the capture took every step.

    - traffic: a Traffic with its ends cut at the marks (``cut_at_marks``).
    """
    every = traffic.environment.get("every")
    if type(every) is not int or every < 2 or not traffic.steps:
        return None
    joined, _ = join_ranks(traffic)
    count = min(len(spans) for spans in traffic.steps.values())
    # Step -> its calls that can be split into wait and transfer.
    split: dict[int, dict[JoinedCall, None]] = defaultdict(dict)
    for rank, calls in traffic.calls.items():
        for call, joined_call in zip(calls, joined[rank], strict=True):
            if call.step is not None and not unsplit_reason(joined_call):
                split[call.step][joined_call] = None
    took = [
        max(spans[k][1] - spans[k][0] for spans in traffic.steps.values()) for k in range(count)
    ]
    first = traffic.steps[min(traffic.steps)]
    # The shortest round number of seconds that gives at most MOST_ROWS stretches.
    whole_s = first[count - 1][1] / 1e9
    fits = (length for length in _ROUND_S if whole_s <= MOST_ROWS * length)
    length_s = next(fits, whole_s / MOST_ROWS)
    steps_by_round: dict[int, list[int]] = defaultdict(list)
    for k in range(count):
        steps_by_round[int(first[k][0] / 1e9 // length_s)].append(k)
    arrived: dict[int, list[SplitCall]] = defaultdict(list)  # by step
    for split_call in split_traffic(traffic).calls:
        arrived[split_call.order[0]].append(split_call)
    stretches = [
        _stretch(index * length_s, length_s, steps, took, split, arrived)
        for index, steps in sorted(steps_by_round.items())
    ]
    return OverTime(tuple(stretches), drift_of(took))


def _stretch(
    from_s: float,
    length_s: float,
    steps: Sequence[int],
    took: Sequence[int],
    calls: Mapping[int, Mapping[JoinedCall, None]],
    arrived: Mapping[int, Sequence[SplitCall]],
) -> Stretch:
    step_times = [
        [joined_call.times_ns.values() for joined_call in calls[k]] for k in steps if k in calls
    ]
    waits = [sum(max(times) - min(times) for times in step) for step in step_times]
    transfers = [sum(min(times) for times in step) for step in step_times]
    caused: Counter[int] = Counter()
    for split_call in (each for k in steps for each in arrived.get(k, ())):
        if split_call.last is not None:
            caused[split_call.last] += split_call.wait_ns
    late = max(caused, key=lambda rank: caused[rank], default=None)
    total = sum(caused.values())
    return Stretch(
        from_s,
        from_s + length_s,
        len(steps),
        median([took[k] for k in steps]),
        median(waits) if waits else None,
        median(transfers) if transfers else None,
        late if total else None,
        caused[late] / total if late is not None and total else None,
    )

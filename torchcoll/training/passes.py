"""Counts the backward passes in a step, and measures what is left exposed after one.

Models that accumulate gradients without no_sync, and programs with several models, run several
passes in a step. Counted as one, they would be several times the gradients over a pass that
contains everything in between, and the resulting proposal would be wrong. The criterion: DDP waits
for all its buckets at the end of a pass, so nothing is in flight when the next one begins. That
alone proves nothing, because small buckets end before the next one is ready, so the sizes must
repeat too. If both leave it open, only the user knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchcoll.core.errors import UsageError
from torchcoll.core.summary import median
from torchcoll.core.traffic import TrafficCall
from torchcoll.core.units import format_ns
from torchcoll.training.late import LATE, may_end_late

Calls = Sequence[TrafficCall]
# One interval between calls may be most of a backward pass, because early layers of a CNN compute
# much and have few gradients. A larger share than this suggests two models with other work between.
_LONGEST_SHARE = 0.9
_ACTION = (
    "Say how many a step has, 1 if it is one: --accumulate N (accumulate of torchcoll.advise). Of "
    "several models capture one at a time"
)


def call_sizes(calls: Calls) -> tuple[int, ...]:
    """Returns the bytes of each call."""
    return tuple(call.bytes_in for call in calls)


def most_common(sequences: Sequence[Calls]) -> list[Calls]:
    """Returns the sequences of calls that have the most common sizes."""
    sizes = Counter(map(call_sizes, sequences)).most_common(1)[0][0]
    return [calls for calls in sequences if call_sizes(calls) == sizes]


def split_passes(calls: Calls, count: int) -> list[Calls]:
    """Splits the calls into ``count`` equal passes; into one if they are not alike.

    With no_sync only the last pass sends.
    """
    size, remainder = divmod(len(calls), count)
    passes = [calls[i : i + size] for i in range(0, len(calls), size or 1)]
    return passes if size and not remainder and len(set(map(call_sizes, passes))) == 1 else [calls]


def count_passes(steps: Sequence[Calls]) -> int:
    """Returns the number of backward passes in a step.

    - steps: the gradient calls of each step of each rank.

    Raises UsageError if the calls may be one pass as well as several.
    """
    steps = most_common(steps)
    number = len(steps[0])
    quiet, timed_steps = _idle_starts(steps)
    counts = []
    for count in range(2, number + 1):
        borders = range(number // count, number, number // count)
        if number % count or len(split_passes(steps[0], count)) < count:
            continue
        least = min(quiet[index] for index in borders)
        most = max((n for index, n in quiet.items() if index not in borders), default=0)
        if timed_steps and count < number and least >= max(3 * most, timed_steps / 4, 1):
            return count
        if least or not timed_steps:
            counts.append(count)
    if counts:
        actual = f"{number} all_reduce a step, whose sizes repeat {counts[-1]} times"
        raise UsageError("backward passes", actual, "calls that tell how many they are", _ACTION)
    issued = [calls for calls in steps if all(call.start_ns is not None for call in calls)]
    if number > 2 and issued:
        waits = [
            median([(c[i].start_ns or 0) - (c[i - 1].start_ns or 0) for c in issued])
            for i in range(1, number)
        ]
        longest = max(range(1, number), key=lambda i: waits[i - 1])
        if 2 * quiet[longest] > timed_steps and waits[longest - 1] > _LONGEST_SHARE * sum(waits):
            actual = (
                f"{number} all_reduce a step, {longest} of them "
                f"{format_ns(waits[longest - 1])} before the others"
            )
            raise UsageError("backward passes", actual, "the calls of one", _ACTION)
    return 1


def find_second_pass(steps: Sequence[Calls]) -> int | None:
    """Returns the index of the call at which another model's backward pass may begin, or None.

    There are at least two calls before and after it, and only there nothing is in flight. A slow
    layer looks the same, so this is only a hint.
    """
    steps = most_common(steps)
    quiet, timed_steps = _idle_starts(steps)
    index = max(range(len(steps[0])), key=lambda index: quiet[index])
    most_elsewhere = max((n for i, n in quiet.items() if i != index), default=0)
    alone = timed_steps and quiet[index] >= max(3 * most_elsewhere, timed_steps / 2, 1)
    return index if alone and 2 <= index <= len(steps[0]) - 2 else None


def _idle_starts(steps: Sequence[Calls]) -> tuple[Counter[int], int]:
    """Returns the number of steps in which nothing was in flight at each call's start, by call
    index, and the number of steps with the necessary stamps.

    At the border of two passes the count may be lower than the number of steps: a capture may learn
    of an end late, when the next call has been issued. Measured with forked ranks on two cores: 5
    to 12 of 12 steps at borders, 0 or 1 elsewhere.
    """
    idle_starts: Counter[int] = Counter()
    timed = [calls for calls in steps if all(call.clock == "host" and call.span for call in calls)]
    for calls in timed:
        end = 0
        for index, call in enumerate(calls):
            start = call.start_ns or 0
            idle_starts[index] += index > 0 and end <= start
            end = max(end, start + (call.time_ns or 0))
    return idle_starts, len(timed)


def measured_exposed(passes: Sequence[Calls], source: str) -> tuple[float | None, str]:
    """Returns the communication exposed after a backward pass (ns, median over passes) and a
    description of what was measured; (None, '') if unknown.

    - passes: the calls of each pass.
    - source: the source of their traffic.

    The exposed time is that of the calls if all have one, otherwise from host stamps: from the
    issue of the last call to the end of all calls.
    """
    if all(call.exposed_ns is not None for calls in passes for call in calls):
        sums = [sum(call.exposed_ns or 0 for call in calls) for calls in passes]
        which = (
            "that the program waited for" if source == "capture" else "under which nothing else ran"
        )
        return median(sums), f"all_reduce of a pass {which}"
    exposed = []
    for calls in passes:
        if all(call.clock == "host" and call.span for call in calls):
            end = max((call.start_ns or 0) + (call.time_ns or 0) for call in calls)
            exposed.append(end - max(call.start_ns or 0 for call in calls))
    what = "from the issue of the last all_reduce of a pass to the end of all"
    late = any(may_end_late(call, source) for calls in passes for call in calls)
    return (median(exposed), what + f"; the ends are {LATE}" * late) if exposed else (None, "")

"""How many backward passes the all_reduce calls of a step are, and what was left after one.

Models that accumulate gradients without no_sync, and programs with several models, make several
in a step. Taken for one, they are so many times the gradients, over a pass that holds all that
lies between them: a proposal that is simply wrong. What tells them apart: DDP waits for all its
buckets at the end of a pass, so that nothing is in flight when the next one begins. That alone
proves nothing, for small buckets end before the next is ready; so sizes that repeat count too.
Where it cannot be known, only the user can say it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchcoll.core.errors import UsageError
from torchcoll.core.summary import median
from torchcoll.core.traffic import TrafficCall
from torchcoll.core.units import time_text
from torchcoll.training.late import LATE, heard_late

Calls = Sequence[TrafficCall]
# One interval of a backward pass may be most of it, for early layers of a CNN compute much and have
# few gradients; hardly so much of it. Two models with something in between are beyond that.
_APART = 0.9
_SAY = (
    "Say how many a step has, 1 if it is one: --accumulate N (accumulate of torchcoll.advise). Of "
    "several models capture one at a time"
)


def sizes_of(calls: Calls) -> tuple[int, ...]:
    return tuple(call.bytes_in for call in calls)


def usual(each: Sequence[Calls]) -> list[Calls]:
    """Those with the sizes that most have."""
    sizes = Counter(map(sizes_of, each)).most_common(1)[0][0]
    return [calls for calls in each if sizes_of(calls) == sizes]


def split(calls: Calls, count: int) -> list[Calls]:
    """So many passes, where they are alike; else one: with no_sync only the last one sends."""
    size, rest = divmod(len(calls), count)
    parts = [calls[i : i + size] for i in range(0, len(calls), size or 1)]
    return parts if size and not rest and len(set(map(sizes_of, parts))) == 1 else [calls]


def count_passes(steps: Sequence[Calls]) -> int:
    """How many backward passes a step has. steps: the gradients of each step of each rank.

    Raises UsageError where calls may as well be one pass as several.
    """
    steps = usual(steps)
    number = len(steps[0])
    quiet, known = _quiet(steps)
    counts = []
    for count in range(2, number + 1):
        borders = range(number // count, number, number // count)
        if number % count or len(split(steps[0], count)) < count:
            continue
        least = min(quiet[place] for place in borders)
        most = max((n for place, n in quiet.items() if place not in borders), default=0)
        if known and count < number and least >= max(3 * most, known / 4, 1):
            return count
        if least or not known:
            counts.append(count)
    if counts:
        got = f"{number} all_reduce a step, whose sizes repeat {counts[-1]} times"
        raise UsageError("backward passes", got, "calls that tell how many they are", _SAY)
    issued = [calls for calls in steps if all(call.start_ns is not None for call in calls)]
    if number > 2 and issued:
        waits = [
            median([(c[i].start_ns or 0) - (c[i - 1].start_ns or 0) for c in issued])
            for i in range(1, number)
        ]
        longest = max(range(1, number), key=lambda i: waits[i - 1])
        if 2 * quiet[longest] > known and waits[longest - 1] > _APART * sum(waits):
            got = (
                f"{number} all_reduce a step, {longest} of them "
                f"{time_text(waits[longest - 1])} before the others"
            )
            raise UsageError("backward passes", got, "the calls of one", _SAY)
    return 1


def second_pass(steps: Sequence[Calls]) -> int | None:
    """The one place where calls may be those of another model: two or more before it, as many from
    it on, and nothing in flight there alone. A slow layer does the same, so this is but a hint.
    """
    steps = usual(steps)
    quiet, known = _quiet(steps)
    place = max(range(len(steps[0])), key=lambda place: quiet[place])
    others = max((n for other, n in quiet.items() if other != place), default=0)
    alone = known and quiet[place] >= max(3 * others, known / 2, 1)
    return place if alone and 2 <= place <= len(steps[0]) - 2 else None


def _quiet(steps: Sequence[Calls]) -> tuple[Counter[int], int]:
    """Before which calls nothing was in flight, in how many steps; and of how many that is known.

    At the border of two passes it need not be all: a capture may hear of an end late, when the next
    call has been issued. Seen in forks on two cores: 5 to 12 of 12 at borders, 0 or 1 elsewhere.
    """
    found: Counter[int] = Counter()
    known = [calls for calls in steps if all(call.clock == "host" and call.span for call in calls)]
    for calls in known:
        end = 0
        for place, call in enumerate(calls):
            start = call.start_ns or 0
            found[place] += place > 0 and end <= start
            end = max(end, start + (call.time_ns or 0))
    return found, len(known)


def measured_exposed(passes: Sequence[Calls], source: str) -> tuple[float | None, str]:
    """What was left after a backward pass, the median over passes, and what that is.

    As a trace has it, else from the issue of the last call to the end of all, where stamps are the
    host's. None where nothing tells. source: of the traffic.
    """
    if all(call.exposed_ns is not None for calls in passes for call in calls):
        sums = [sum(call.exposed_ns or 0 for call in calls) for calls in passes]
        return median(sums), "all_reduce of a pass under which nothing else ran"
    found = []
    for calls in passes:
        if all(call.clock == "host" and call.span for call in calls):
            end = max((call.start_ns or 0) + (call.time_ns or 0) for call in calls)
            found.append(end - max(call.start_ns or 0 for call in calls))
    what = "from the issue of the last all_reduce of a pass to the end of all"
    late = any(heard_late(call, source) for calls in passes for call in calls)
    return (median(found), what + f"; they {LATE}" * late) if found else (None, "")

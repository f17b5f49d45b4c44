"""Which steps of a training send alike, and how the others differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torchcoll.core.collectives import has_splits
from torchcoll.core.errors import UsageError
from torchcoll.core.summary import median
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.units import format_ranges, format_size, time_text
from torchcoll.training.late import LATE, heard_late

_MOST = 3  # so many kinds of calls of an odd step are named
_MOST_STEPS = 1_000_000  # each is looked at, so that a broken number would never end


class Kind(NamedTuple):
    """What makes calls one row of a table. Sizes of all_to_all_v, which vary by nature, are None.

    group: the place of the group among those of this rank that are alike, see ``kinds_of``.
    """

    collective: str
    bytes_in: int | None
    bytes_out: int | None
    dtype: str | None
    op: str | None
    asynchronous: bool | None
    group: tuple[str, int, int]

    def __str__(self) -> str:
        size = "" if self.bytes_in is None else format_size(self.bytes_in or self.bytes_out or 0)
        return " ".join(filter(None, (self.collective, size, self.dtype)))


def kinds_of(calls: Sequence[TrafficCall], groups: Mapping[str, Group]) -> list[Kind]:
    """The kind of each call of one rank.

    On a mesh every rank has its own group of each dimension, which all do alike: so a group is
    known by its description, its size and its place among the groups of this rank that share both,
    not by its name.
    """
    places: dict[str, tuple[str, int, int]] = {}
    seen: Counter[tuple[str, int]] = Counter()
    found = []
    for call in calls:
        if call.group not in places:
            own = groups.get(call.group) or Group(call.group)
            alike = (described(own), len(own.ranks))
            places[call.group] = (*alike, seen[alike])
            seen[alike] += 1
        vary = has_splits(call.collective)
        kind = Kind(
            call.collective,
            None if vary else call.bytes_in,
            None if vary else call.bytes_out,
            call.dtype,
            call.op,
            call.asynchronous,
            places[call.group],
        )
        found.append(kind)
    return found


def described(group: Group) -> str:
    """What the program calls a group; torch's word for 'nothing' is ``undefined``."""
    return "" if group.description == "undefined" else group.description


@dataclass
class Steps:
    """The steps that the figures are of.

    steady: numbers of the steps that send alike, or, where ``varying``, of all. marked: False where
    no step was marked, then all calls are step 0. duration_ns: of one steady step, the slowest
    rank's; None without marks. kinds[rank], at[rank][step]: the kind of each call, and the places
    of the calls of a step in ``traffic.calls[rank]``. notes: which steps differ, what is left out.
    """

    steady: tuple[int, ...]
    total: int
    marked: bool
    varying: bool
    kinds: dict[int, list[Kind]]
    at: dict[int, dict[int, list[int]]]
    duration_ns: float | None = None
    notes: list[str] = field(default_factory=list)

    def reduce(self, of_step: Callable[[int], float | None]) -> float | None:
        """A figure over the steady steps: their median, or their mean where they vary.

        None where no step has it.
        """
        values = [value for step in self.steady if (value := of_step(step)) is not None]
        if not values:
            return None
        return sum(values) / len(values) if self.varying else median(values)

    @property
    def statistic(self) -> str:
        return "mean" if self.varying else "median"


def steps_of(traffic: Traffic) -> Steps:
    """The steady steps: those that send what most steps send.

    DDP's first step sends one bucket of everything, and the last may be cut: an average over them
    is what no step does. Of several most common ones the latest counts, and steps that send nothing
    (gradient accumulation) only where all do. Where less than half of the steps are alike, the
    figures are means over all.
    """
    kinds = {rank: kinds_of(calls, traffic.groups) for rank, calls in traffic.calls.items()}
    marked = any(traffic.steps.values()) or any(
        call.step is not None for calls in traffic.calls.values() for call in calls
    )
    at: dict[int, dict[int, list[int]]] = {}
    for rank, calls in traffic.calls.items():
        own: dict[int, list[int]] = defaultdict(list)
        for place, call in enumerate(calls):
            if call.step is not None or not marked:
                own[call.step or 0].append(place)
        at[rank] = own
    total = _total(traffic, at) if marked else 1
    sent = [_signature(kinds, at, step) for step in range(total)]
    usual = _usual(sent)
    alike = tuple(step for step, one in enumerate(sent) if one == usual)
    busy = sum(any(one.values()) for one in sent)
    varying = 2 * len(alike) < busy
    steady = tuple(range(total)) if varying else alike
    found = Steps(steady, total, marked, varying, kinds, at)
    found.notes = _notes(traffic, found, sent, alike)
    if marked:
        found.duration_ns = found.reduce(lambda step: _duration(traffic, step))
    return found


Sent = dict[int, Counter[Kind]]  # rank -> what it sends in a step


def _total(traffic: Traffic, at: Mapping[int, Mapping[int, Sequence[int]]]) -> int:
    """Steps that were marked on every rank that marks any; a rank that was cut off has fewer."""
    marked = [len(spans) for spans in traffic.steps.values() if spans]
    if marked:
        return min(marked)
    total = max((s + 1 for own in at.values() for s in own), default=1)
    if total > _MOST_STEPS:
        where = traffic.path or "the traffic"
        raise UsageError(f"steps of {where}", total, f"{_MOST_STEPS} at most where none is marked")
    return total


def _signature(
    kinds: Mapping[int, Sequence[Kind]], at: Mapping[int, Mapping[int, Sequence[int]]], step: int
) -> Sent:
    return {rank: Counter(kinds[rank][i] for i in own.get(step, ())) for rank, own in at.items()}


def _usual(sent: Sequence[Sent]) -> Sent:
    """What most steps send, the latest of several; what sends something before what does not."""
    groups: dict[object, list[int]] = defaultdict(list)
    for step, one in enumerate(sent):
        content = ((rank, kind, n) for rank, own in one.items() for kind, n in own.items())
        groups[frozenset(content)].append(step)
    steps = max(groups.values(), key=lambda own: (any(sent[own[0]].values()), len(own), own[-1]))
    return sent[steps[0]]


def _duration(traffic: Traffic, step: int) -> float | None:
    spans = [own[step] for own in traffic.steps.values() if step < len(own)]
    return max((end - start for start, end in spans), default=None)


def _notes(traffic: Traffic, found: Steps, sent: Sequence[Sent], alike: Sequence[int]) -> list[str]:
    if not found.marked:
        text = "no step is marked: all calls are one step"
        return [text] if traffic.source != "plan" else []
    notes = []
    if found.varying:
        notes.append(
            f"the steps vary: at most {len(alike)} of {found.total} send alike; "
            "figures are means over all of them"
        )
    else:
        notes += _odd_steps(sent, alike)
    counts = {len(own) for own in traffic.steps.values() if own}
    if len(counts) > 1:
        notes.append(
            f"the ranks marked {min(counts)} to {max(counts)} steps: the first {min(counts)} count"
        )
    outside = sum(
        call.step is None or call.step >= found.total
        for calls in traffic.calls.values()
        for call in calls
    )
    if outside:
        ranks = f" of {len(traffic.calls)} ranks" if len(traffic.calls) > 1 else ""
        calls = "1 call" if outside == 1 else f"{outside} calls"
        notes.append(f"{calls}{ranks} outside of the marked steps: left out")
    return notes


def _odd_steps(sent: Sequence[Sent], alike: Sequence[int]) -> list[str]:
    """Which steps are not among those of the table, and what they send instead."""
    usual = sent[alike[0]]
    odd: dict[str, list[int]] = defaultdict(list)
    for step, one in enumerate(sent):
        if one != usual:
            odd[_difference(one, usual)].append(step)
    return [
        f"left out: step{'s' * (len(steps) > 1)} {format_ranges(steps)} of {len(sent)}: {text}"
        for text, steps in odd.items()
    ]


def _difference(one: Sent, usual: Sent) -> str:
    if not any(one.values()):
        return "no calls"
    found: dict[str, list[int]] = defaultdict(list)
    for rank in usual:
        if one[rank] != usual[rank]:
            found[_changed(one[rank], usual[rank])].append(rank)
    text, ranks = next(iter(found.items()))
    if len(ranks) == len(usual):
        return text
    others = " (other ranks differ in other calls)" if len(found) > 1 else ""
    return f"{text} on rank {format_ranges(ranks)}{others}"


def _changed(one: Counter[Kind], usual: Counter[Kind]) -> str:
    more, fewer = one - usual, usual - one
    if more and fewer:
        return f"{_listed(more)} in place of {_listed(fewer)}"
    return f"{_listed(more or fewer)} {'more' if more else 'fewer'}"


def _listed(kinds: Mapping[Kind, int]) -> str:
    """``2 all_reduce 1M float32 and 4 other calls``."""
    many = sorted(kinds.items(), key=lambda pair: -pair[1] * (pair[0].bytes_in or 0))
    words = [f"{count} {kind}" for kind, count in many[:_MOST]]
    rest = sum(count for _, count in many[_MOST:])
    return ", ".join(words) + (f" and {rest} other call{'s' if rest > 1 else ''}" if rest else "")


# -------------------------------------------------------------------------------------------------
# How many backward passes the all_reduce calls of a step are, and what was left after one.
#
# Models that accumulate gradients without no_sync, and programs with several models, make several
# in a step. Taken for one, they are so many times the gradients, over a pass that holds all that
# lies between them: a proposal that is simply wrong. What tells them apart: DDP waits for all its
# buckets at the end of a pass, so that nothing is in flight when the next one begins. That alone
# proves nothing, for small buckets end before the next is ready; so sizes that repeat count too.
# Where it cannot be known, only the user can say it.

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
    known = [calls for calls in steps if all(map(_stamped, calls))]
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
        if all(map(_stamped, calls)):
            end = max((call.start_ns or 0) + (call.time_ns or 0) for call in calls)
            found.append(end - max(call.start_ns or 0 for call in calls))
    what = "from the issue of the last all_reduce of a pass to the end of all"
    late = any(heard_late(call, source) for calls in passes for call in calls)
    return (median(found), what + f"; they {LATE}" * late) if found else (None, "")


def _stamped(call: TrafficCall) -> bool:
    """Whether its issue and its end are known, both of the host."""
    return call.start_ns is not None and call.time_ns is not None and call.clock == "host"

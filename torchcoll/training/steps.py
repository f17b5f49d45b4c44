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
from torchcoll.core.units import format_ranges, format_size

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
    sent: list[Sent] = [
        {rank: Counter(kinds[rank][i] for i in places.get(step, ())) for rank, places in at.items()}
        for step in range(total)
    ]
    usual = _usual(sent)
    alike = tuple(step for step, one in enumerate(sent) if one == usual)
    busy = sum(any(one.values()) for one in sent)
    varying = 2 * len(alike) < busy
    steady = tuple(range(total)) if varying else alike
    found = Steps(steady, total, marked, varying, kinds, at)
    found.notes = _notes(traffic, found, sent, alike)

    def duration_ns(step: int) -> float | None:
        spans = [marks[step] for marks in traffic.steps.values() if step < len(marks)]
        return max((end - start for start, end in spans), default=None)

    found.duration_ns = found.reduce(duration_ns) if marked else None
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


def _usual(sent: Sequence[Sent]) -> Sent:
    """What most steps send, the latest of several; what sends something before what does not."""
    groups: dict[object, list[int]] = defaultdict(list)
    for step, one in enumerate(sent):
        content = ((rank, kind, n) for rank, own in one.items() for kind, n in own.items())
        groups[frozenset(content)].append(step)
    steps = max(groups.values(), key=lambda own: (any(sent[own[0]].values()), len(own), own[-1]))
    return sent[steps[0]]


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
        # Which steps are not among those of the table, and what they send instead.
        odd: dict[str, list[int]] = defaultdict(list)
        for step, one in enumerate(sent):
            if one != sent[alike[0]]:
                odd[_difference(one, sent[alike[0]])].append(step)
        notes += [
            f"left out: step{'s' * (len(steps) > 1)} {format_ranges(steps)} of {len(sent)}: {text}"
            for text, steps in odd.items()
        ]
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


def _difference(one: Sent, usual: Sent) -> str:
    if not any(one.values()):
        return "no calls"
    found: dict[str, list[int]] = defaultdict(list)
    for rank in usual:
        if one[rank] != usual[rank]:
            more, fewer = one[rank] - usual[rank], usual[rank] - one[rank]
            text = f"{_listed(more or fewer)} {'more' if more else 'fewer'}"
            if more and fewer:
                text = f"{_listed(more)} in place of {_listed(fewer)}"
            found[text].append(rank)
    text, ranks = next(iter(found.items()))
    if len(ranks) == len(usual):
        return text
    others = " (other ranks differ in other calls)" if len(found) > 1 else ""
    return f"{text} on rank {format_ranges(ranks)}{others}"


def _listed(kinds: Mapping[Kind, int]) -> str:
    """``2 all_reduce 1M float32 and 4 other calls``."""
    many = sorted(kinds.items(), key=lambda pair: -pair[1] * (pair[0].bytes_in or 0))
    words = [f"{count} {kind}" for kind, count in many[:_MOST]]
    rest = sum(count for _, count in many[_MOST:])
    return ", ".join(words) + (f" and {rest} other call{'s' if rest > 1 else ''}" if rest else "")

"""One step of a training on all of its ranks: computation, communication, waits, and who was late.

Each figure of a rank is of its own step on its own clock, so that no alignment is in it:

    computing + exposed + idle = the step        exposed + hidden = communicating

Idle is when neither ran. A capture tells no computation: then what is not communication is not
told, never idle. A wait is what a rank's call took longer than that of the rank that came last
(training/late.py).

The critical path is walked backwards, from the end of the step on the rank that ended last: through
computation as long as some runs, else through what ended last, a call or a computation; between
them it is idle. From a call that waited for another rank it goes on there, where the last rank
began it. This needs no clock in common: the ends of one call are the same moment. It sees none of
the dependencies between streams and host: what ended last before something begins is taken for
what it waited for.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scipy.stats import binom

from torchcoll.core.backends import backend_of
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UsageError
from torchcoll.core.intervals import Span, Union, merged
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.units import format_ranges, time_text
from torchcoll.training.clocks import Offsets, measured_offsets
from torchcoll.training.joined import Joined, join_ranks
from torchcoll.training.late import cut_at_marks, error_ns, late_ranks
from torchcoll.training.steps import Steps, described, steps_of

COMPUTING, EXPOSED, IDLE = "computing", "exposed", "idle"
_CHANCE = 0.05  # over all ranks (Bonferroni)
UNTOLD = "not told which"  # communication of no call that is known


@dataclass(frozen=True, eq=False)
class StepCall:
    """A call while it ran, on its rank's clock. wait_ns: what it took longer than on the rank that
    came last; None where that is not known. group: of the traffic.
    """

    call: TrafficCall
    joined: Joined
    start: int
    end: int
    wait_ns: int | None


@dataclass
class RankStep:
    """The step of one rank. Times in ns; None: the source does not tell.

    computing: None as well. calls: that ran in it, by start; exposed: when only calls did, of those
    that this is known of. waits: by the group, when its calls waited for their last rank and none
    of it was moving: what is behind another call is queued. last: of the calls of all steady steps,
    the share in which this rank came last; even: the share if all came last equally often. path:
    its share of the critical path.
    late: ``9 of 9`` of the steps, in which it came last most often, where chance alone makes that
    of no rank in 95 %; else ''.
    """

    rank: int
    start: int
    end: int
    computing: list[Span] | None
    calls: list[StepCall]
    exposed: list[Span] | None
    computing_ns: int | None
    communicating_ns: int
    exposed_ns: int | None
    idle_ns: int | None
    waits: dict[str, list[Span]]
    wait_ns: int | None
    last: float | None = None
    even: float | None = None
    path: float | None = None
    late: str = ""

    @property
    def step_ns(self) -> int:
        return self.end - self.start

    @property
    def hidden_ns(self) -> int | None:
        return None if self.exposed_ns is None else self.communicating_ns - self.exposed_ns


@dataclass
class WholeStep:
    """What ``whole_step`` found. number: of the step, of total. path: what the critical path is
    made of, shares by COMPUTING, EXPOSED and IDLE (where a computation is not told: '' for both of
    the others). late_ns: by how much ends may be stamped late. groups: name -> what it is called.
    """

    traffic: str
    source: str
    world: int
    number: int
    total: int
    marked: bool
    ranks: list[RankStep]
    offsets: Offsets
    path: dict[str, float]
    groups: dict[str, str]
    late_ns: int
    notes: list[str] = field(default_factory=list)

    @property
    def known(self) -> bool:
        """Whether the computation of every rank is."""
        return all(one.computing is not None for one in self.ranks)


def whole_step(traffic: Traffic, number: int | None = None) -> WholeStep:
    """number: of the step, from 0; None: of those that send alike the one of median duration.

    Raises UsageError for a step that is not there, and where no call tells when it ran.
    """
    whole, traffic = traffic, cut_at_marks(traffic)
    if not any(call.span for calls in traffic.calls.values() for call in calls):
        raise UsageError(
            "step",
            f"no call of {traffic.path or traffic.source} that tells when it ran",
            "a capture, or a profiler trace with what ran (on GPUs: activities CUDA)",
        )
    steps = steps_of(traffic)
    if number is None:
        # Of the steady steps the one of median duration, on the slowest rank.
        durations = {}
        for step in steps.steady:
            spans = [marks[step] for marks in traffic.steps.values() if step < len(marks)]
            durations[step] = max((end - start for start, end in spans), default=0)
        by_duration = sorted(steps.steady, key=durations.__getitem__)
        number = by_duration[(len(by_duration) - 1) // 2]
    elif not 0 <= number < steps.total:
        raise UsageError("step", number, f"0 to {steps.total - 1}, as were marked")
    joined, separate = join_ranks(traffic)
    ranks = [
        _rank_step(traffic, rank, span, joined[rank])
        for rank, span in _spans(traffic, steps, number).items()
    ]
    if not any(one.calls for one in ranks):
        raise UsageError("step", f"{number}, in which no call ran", "one that communicates")
    offsets = step_offsets(whole, number)
    found = WholeStep(
        str(traffic.path or "traffic"),
        traffic.source,
        traffic.ranks,
        number,
        steps.total,
        steps.marked,
        ranks,
        offsets,
        {},
        {name: described(group) or name for name, group in traffic.groups.items()},
        max((error_ns(one.joined, traffic.source) for r in ranks for one in r.calls), default=0),
    )
    _tell_late(found, traffic, steps, joined)
    if not separate:
        _walk(found)
    whole_notes = [f"of all that was recorded: {note}" for note in traffic.notes]
    found.notes = [*traffic.problems, *_notes(found, traffic), *separate, *whole_notes]
    return found


def _spans(traffic: Traffic, steps: Steps, number: int) -> dict[int, Span]:
    """Rank -> the step on its own clock; without marks all that the rank did."""
    found = {}
    for rank, calls in traffic.calls.items():
        marked = traffic.steps.get(rank, [])
        if number < len(marked):
            found[rank] = marked[number]
        elif not steps.marked:
            spans = [one.span for one in calls if one.span]
            spans += traffic.computing.get(rank, []) + traffic.apart.get(rank, [])
            if spans:
                found[rank] = min(start for start, _ in spans), max(end for _, end in spans)
    return found


def _rank_step(traffic: Traffic, rank: int, span: Span, joined: Sequence[Joined]) -> RankStep:
    begin, end = span
    computing = None
    if rank in traffic.computing:
        computing = merged(_cut(one, span) for one in traffic.computing[rank])
    calls = []
    for call, one in zip(traffic.calls[rank], joined, strict=True):
        ran = call.span
        if ran and ran[0] < end and ran[1] > begin:
            calls.append(StepCall(call, one, *ran, wait_of(call, one)))
    apart = TrafficCall(UNTOLD, 0, 0, group=UNTOLD)
    for start, end_ in traffic.apart.get(rank, ()):
        if start < end and end_ > begin:
            calls.append(StepCall(apart, Joined({rank: apart}), start, end_, None))
    calls.sort(key=lambda one: (one.start, one.end))
    talking = merged(_cut((one.start, one.end), span) for one in calls)
    total = sum(b - a for a, b in talking)
    exposed, idle = None, None
    if computing is not None:
        exposed = uncovered(talking, computing)
        idle = end - begin - sum(b - a for a, b in merged([*talking, *computing]))
    else:
        # Whether the program did nothing else meanwhile: it called on the host and not async.
        on_host = {
            name: backend_of(group.backend).on_host for name, group in traffic.groups.items()
        }
        if all(
            one.call.asynchronous is False
            and one.call.clock == "host"
            and on_host.get(one.call.group)
            for one in calls
        ):
            exposed = talking
    waits: dict[str, list[Span]] = {}
    for name in {one.call.group for one in calls}:
        own = [one for one in calls if one.call.group == name]
        waiting = merged(_cut((one.start, one.start + (one.wait_ns or 0)), span) for one in own)
        moving = merged((one.start + (one.wait_ns or 0), one.end) for one in own)
        waits[name] = uncovered(waiting, moving)
    waited = any(one.wait_ns is not None for one in calls)
    return RankStep(
        rank,
        begin,
        end,
        computing,
        calls,
        exposed,
        None if computing is None else sum(b - a for a, b in computing),
        total,
        None if exposed is None else sum(b - a for a, b in exposed),
        idle,
        waits,
        Union(itertools.chain.from_iterable(waits.values())).total if waited else None,
    )


def _cut(one: Span, span: Span) -> Span:
    return max(one[0], span[0]), min(one[1], span[1])


def common(found: WholeStep) -> dict[int, Span]:
    """Rank -> the step on one clock, that of the first rank; where clocks cannot be aligned all
    begin at 0.
    """
    if found.offsets.problem:
        return {one.rank: (0, one.step_ns) for one in found.ranks}
    added = found.offsets.added_ns
    return {
        one.rank: (one.start + added[one.rank], one.end + added[one.rank]) for one in found.ranks
    }


def uncovered(spans: Sequence[Span], hiding: Sequence[Span]) -> list[Span]:
    """What of the spans is outside of the others; none of either touch, and they ascend."""
    found: list[Span] = []
    place = 0
    for start, end in spans:
        while place < len(hiding) and hiding[place][1] <= start:
            place += 1
        at, i = start, place
        while i < len(hiding) and hiding[i][0] < end:
            if hiding[i][0] > at:
                found.append((at, hiding[i][0]))
            at, i = max(at, hiding[i][1]), i + 1
        if at < end:
            found.append((at, end))
    return found


def wait_of(call: TrafficCall, one: Joined) -> int | None:
    """What the call took longer than on the rank that came last; None where that is not known."""
    known = call.time_ns is not None and _splits(one)
    return (call.time_ns or 0) - min(one.times_ns.values()) if known else None


def _splits(one: Joined) -> bool:
    """Whether the shortest of its times is that of the rank that came last, as in ``cost``."""
    call = next(iter(one.calls.values()))
    entry = COLLECTIVES.get(call.collective)
    known = entry is not None and not entry.has_root and one.completion_ns is not None
    return known and 1 < len(one.members) == len(one.calls)


def step_offsets(traffic: Traffic, number: int | None) -> Offsets:
    """By all calls; where clocks do not run alike over all of them, by those of the step alone."""
    joined, _ = join_ranks(traffic)
    calls = list(dict.fromkeys(one for own in joined.values() for one in own))
    found = measured_offsets(traffic, calls)
    if not found.problem or number is None:
        return found
    own = [one for one in calls if any(call.step == number for call in one.calls.values())]
    nearer = measured_offsets(traffic, own)
    return nearer if len(nearer.added_ns) > len(found.added_ns) else found


def _tell_late(
    found: WholeStep, traffic: Traffic, steps: Steps, joined: Mapping[int, Sequence[Joined]]
) -> None:
    """How often each rank came last, over the steady steps. The calls of one step go together, for
    who is late to one is late to the next: each step is one vote of each group, for its rank that
    came last most. Of all groups together it would mostly be one of that which calls most.
    """
    every: list[Joined] = []
    steps_of_group: Counter[tuple[int, ...]] = Counter()
    votes: Counter[tuple[tuple[int, ...], int]] = Counter()
    for step in steps.steady:
        own = {joined[rank][i]: None for rank, at in steps.at.items() for i in at.get(step, ())}
        groups: dict[tuple[int, ...], list[Joined]] = defaultdict(list)
        for call in filter(_splits, own):
            groups[tuple(sorted(call.members))].append(call)
        for members, calls in groups.items():
            every += calls
            steps_of_group[members] += 1
            rows, _ = late_ranks(calls, traffic.source)
            most = max(row.last for row in rows)
            first = [row.rank for row in rows if row.last == most]
            votes.update([(members, first[0])] if most and len(first) == 1 else [])
    tests = sum(map(len, steps_of_group))
    rows, _ = late_ranks(every, traffic.source)
    by_rank = {row.rank: row for row in rows}
    for one in found.ranks:
        row = by_rank.get(one.rank)
        if row:
            one.last, one.even = row.share, row.expected
            chances = [
                (float(binom.sf(votes[members, one.rank] - 1, count, 1 / len(members))), members)
                for members, count in steps_of_group.items()
                if one.rank in members
            ]
            chance, members = min(chances)
            text = f"{votes[members, one.rank]} of {steps_of_group[members]}"
            one.late = text if chance * tests < _CHANCE else ""


class _Lane:
    """What ran on a rank, asked what ran or ended just before a moment."""

    def __init__(self, one: RankStep) -> None:
        self.one = one
        self.computing = one.computing or []
        self.begins = [start for start, _ in self.computing]
        self.calls = sorted((c for c in one.calls if c.end > c.start), key=lambda call: call.end)
        self.ends = [call.end for call in self.calls]


def _walk(found: WholeStep) -> None:
    """The critical path: its shares of each kind, and of each rank."""
    lanes = {one.rank: _Lane(one) for one in found.ranks}
    added = found.offsets.added_ns
    alone = found.offsets.problem != ""
    last = max(
        found.ranks, key=lambda one: one.step_ns if alone else one.end + added.get(one.rank, 0)
    )
    kinds: Counter[str] = Counter()
    ranks: Counter[int] = Counter()
    rest = IDLE if found.known else ""
    rank, time = last.rank, last.end
    passed: set[Joined] = set()

    def go(until: int, kind: str) -> None:
        nonlocal time
        until = max(until, lanes[rank].one.start)
        kinds[kind] += time - until
        ranks[rank] += time - until
        time = until

    while time > lanes[rank].one.start:
        lane = lanes[rank]
        # The last computation that began before, and the last call that ended by then: one that
        # ended later held nothing up.
        begun = bisect_left(lane.begins, time) - 1
        ran = lane.computing[begun] if begun >= 0 else None
        done = bisect_right(lane.ends, time) - 1
        call = lane.calls[done] if done >= 0 else None
        ended = max(ran[1] if ran else lane.one.start, call.end if call else lane.one.start)
        if ran and ran[1] >= ended:
            go(min(time, ran[1]), rest)
            go(ran[0], COMPUTING)
            continue
        go(ended, rest)
        if call is None or time <= lane.one.start:
            continue
        go(call.start + (call.wait_ns or 0), EXPOSED)
        times = call.joined.times_ns  # who came last: its own time is the shortest
        other = min(times, key=times.__getitem__, default=-1)
        there = call.joined.calls[other].span if other in lanes else None
        known = (call.wait_ns or 0) > error_ns(call.joined, found.source)
        if known and there and call.joined not in passed:
            rank, time = other, there[0]
        else:
            go(call.start, EXPOSED)
        passed.add(call.joined)
    total = sum(kinds.values())
    if total:
        found.path = {kind: ns / total for kind, ns in kinds.items()}
        for one in found.ranks:
            one.path = ranks[one.rank] / total


def _notes(found: WholeStep, traffic: Traffic) -> list[str]:
    notes = [text] if (text := found.offsets.problem or found.offsets.text) else []
    if found.late_ns:
        notes.append(
            "the end of an asynchronous call is stamped up to "
            f"{time_text(found.late_ns, 3)} late: waits are known within that, and no shorter one "
            "leads the critical path to another rank"
        )
    unknown = [one.rank for one in found.ranks if one.computing is None]
    if unknown:
        told = "a capture does not tell" if traffic.source == "capture" else "no source tells"
        notes.append(
            f"{told} what rank{'s' * (len(unknown) > 1)} {format_ranges(unknown)} computed: what "
            "is not communication there may be computation or idle"
        )
    if not found.marked:
        notes.append("no step is marked: all that was recorded is one")
    missing = len(traffic.calls) - len(found.ranks)
    if missing:
        notes.append(f"{missing} of {len(traffic.calls)} ranks have no such step")
    if len(traffic.calls) < traffic.ranks:
        notes.append(
            f"{len(traffic.calls)} of {traffic.ranks} ranks: waits, who was late and the critical "
            "path take all ranks of a group"
        )
    untimed: dict[str, int] = defaultdict(int)
    for own in traffic.calls.values():
        for call in own:
            untimed[call.collective] += call.step == found.number and call.span is None
    for name, count in untimed.items():
        if count:
            notes.append(f"{count} {name} of the step do not tell when they ran: not drawn")
    return notes

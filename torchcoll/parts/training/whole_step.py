"""One step of a training on all of its ranks: computation, communication, waits and late ranks.

Each figure of a rank describes its own step on its own clock, so it does not depend on clock
alignment:

    computing + exposed + idle = the step        exposed + hidden = communicating

A rank is idle when it neither computes nor communicates. A capture does not record computation;
what is not communication is then unknown, not idle. Waits, and the begin of a call, are those of
the ledger (training/ledger.py).

The critical path is followed backwards, from the end of the step on the rank that ended last. It
runs through computation as long as there is any, otherwise through whatever ended last, a call or a
computation; the gaps between them are idle. From a call that waited for another rank, it continues
on that rank, at the moment when the last rank began the call. No common clock is needed, because a
call ends at the same moment on all ranks. Dependencies between streams and host are not visible:
whatever ended last before something begins is assumed to be what it waited for.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from torchcoll.core.errors import UsageError
from torchcoll.core.intervals import Span, Union, merged, uncovered
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.units import format_ns, format_ranges, plural
from torchcoll.parts.training.arrivals import Arrivals, find_arrivals
from torchcoll.parts.training.joined import JoinedCall, Offsets, error_ns, measure_offsets
from torchcoll.parts.training.ledger import Ledger, LedgerEntry, waiting_spans
from torchcoll.parts.training.steps import group_description

COMPUTING, EXPOSED, IDLE = "computing", "exposed", "idle"
UNKNOWN_CALLS = "unknown call"  # communication that belongs to no recorded call


@dataclass(frozen=True, eq=False)
class StepCall:
    """A call while it ran, with its start and end on its rank's clock (ns).

    - call: the call; its group is one of the traffic.
    - entry: the collective in the ledger.
    - moving: when its last rank began it, as far as this rank's wait tells.
    - wait_ns: how long this rank waited for the last one; None if unknown.
    """

    call: TrafficCall
    entry: LedgerEntry
    start: int
    end: int
    moving: int
    wait_ns: int | None


@dataclass
class RankStep:
    """The step of one rank. Times in ns; None: the source does not record them.

    - start, end: its bounds on the rank's clock.
    - computing: the spans of computation.
    - calls: the calls that ran in the step, by start.
    - exposed: the spans in which only calls ran, for calls where this is known.
    - waits: group -> the spans in which its calls waited for their last rank and none of the group
      was moving data; a call behind another one is queued, not waiting.
    - last: the share of the calls of all steady steps in which this rank came last.
    - even: the share if all ranks came last equally often.
    - caused_ns: the waiting of all other ranks in the calls in which it came last, in a step: the
      mean over the steady steps.
    - path: its share of the critical path.
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
    caused_ns: int | None = None
    path: float | None = None

    @property
    def step_ns(self) -> int:
        return self.end - self.start

    @property
    def hidden_ns(self) -> int | None:
        return None if self.exposed_ns is None else self.communicating_ns - self.exposed_ns


@dataclass
class WholeStep:
    """The result of ``whole_step``.

    - number: the number of the step, out of total.
    - path: what the critical path consists of: shares by COMPUTING, EXPOSED and IDLE ('' for
      computing or idle if the computation is not recorded).
    - groups: name of a group -> its description.
    - late_ns: by how much ends may be stamped late.
    - arrivals: who caused the waiting, over all steady steps; None if no call can be split.
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
    arrivals: Arrivals | None
    notes: list[str] = field(default_factory=list)

    @property
    def computation_known(self) -> bool:
        """Whether the computation of every rank is recorded."""
        return all(rank.computing is not None for rank in self.ranks)


def whole_step(ledger: Ledger, number: int | None = None) -> WholeStep:
    """Returns one step of the ledger's traffic on all ranks.

    - number: the number of the step, from 0; None: the one of median duration among the steady
      steps.

    Raises UsageError if there is no such step, or if no call has begin and end.
    """
    traffic, steps = ledger.traffic, ledger.steps
    if not any(call.span for calls in traffic.calls.values() for call in calls):
        raise UsageError(
            "step",
            f"no call of {traffic.path or traffic.source} with times",
            "a capture, or a profiler trace with what ran (on GPUs: activities CUDA)",
        )
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
    ranks = [_rank_step(ledger, rank, span) for rank, span in _spans(ledger, number).items()]
    if not any(rank.calls for rank in ranks):
        raise UsageError("step", f"{number}, in which no call ran", "one that communicates")
    offsets = step_offsets(ledger, number)
    result = WholeStep(
        str(traffic.path or "traffic"),
        traffic.source,
        traffic.ranks,
        number,
        steps.total,
        steps.marked,
        ranks,
        offsets,
        {},
        {name: group_description(group) or name for name, group in traffic.groups.items()},
        max(
            (error_ns(each.entry.joined, traffic.source) for r in ranks for each in r.calls),
            default=0,
        ),
        find_arrivals(ledger),
    )
    _add_arrivals(result)
    if not ledger.notes:
        _trace_critical_path(result)
    whole_notes = [f"of all that was recorded: {note}" for note in traffic.notes]
    result.notes = [*traffic.problems, *_notes(result, traffic), *ledger.notes, *whole_notes]
    return result


def _spans(ledger: Ledger, number: int) -> dict[int, Span]:
    """Returns rank -> span of the step on its own clock; without marks, all its activity."""
    traffic = ledger.traffic
    spans_by_rank = {}
    for rank, calls in traffic.calls.items():
        marked = traffic.steps.get(rank, [])
        if number < len(marked):
            spans_by_rank[rank] = marked[number]
        elif not ledger.steps.marked:
            spans = [call.span for call in calls if call.span]
            spans += traffic.computing.get(rank, []) + traffic.apart.get(rank, [])
            if spans:
                spans_by_rank[rank] = min(start for start, _ in spans), max(end for _, end in spans)
    return spans_by_rank


def _rank_step(ledger: Ledger, rank: int, span: Span) -> RankStep:
    """Returns the step of one rank.

    - span: its bounds on the rank's clock.
    """
    traffic = ledger.traffic
    begin, end = span
    computing = None
    if rank in traffic.computing:
        computing = merged(_clip(busy, span) for busy in traffic.computing[rank])
    calls = []
    for call, entry in zip(traffic.calls[rank], ledger.entries[rank], strict=True):
        ran = call.span
        if ran and ran[0] < end and ran[1] > begin:
            moving, wait_ns = ledger.moving_ns[id(call)], entry.waits_ns.get(rank)
            calls.append(StepCall(call, entry, *ran, moving, wait_ns))
    apart = TrafficCall(UNKNOWN_CALLS, 0, 0, group=UNKNOWN_CALLS)
    for start, end_ in traffic.apart.get(rank, ()):
        if start < end and end_ > begin:
            entry = LedgerEntry(JoinedCall({rank: apart}), UNKNOWN_CALLS, {}, "no call")
            calls.append(StepCall(apart, entry, start, end_, start, None))
    calls.sort(key=lambda step_call: (step_call.start, step_call.end))
    talking = merged(_clip((step_call.start, step_call.end), span) for step_call in calls)
    total = sum(b - a for a, b in talking)
    exposed, idle = None, None
    if computing is not None:
        exposed = uncovered(talking, computing)
        idle = end - begin - sum(b - a for a, b in merged([*talking, *computing]))
    else:
        waiting_for = waiting_spans(traffic, [step_call.call for step_call in calls])
        if waiting_for is not None:
            exposed = merged(_clip(waiting, span) for waiting in waiting_for)
    waits: dict[str, list[Span]] = {}
    for name in {step_call.call.group for step_call in calls}:
        group_calls = [step_call for step_call in calls if step_call.call.group == name]
        waiting = merged(
            _clip((each.moving - (each.wait_ns or 0), each.moving), span) for each in group_calls
        )
        transfers = merged((each.moving, each.end) for each in group_calls)
        waits[name] = uncovered(waiting, transfers)
    waited = any(step_call.wait_ns is not None for step_call in calls)
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


def _clip(interval: Span, span: Span) -> Span:
    return max(interval[0], span[0]), min(interval[1], span[1])


def aligned_spans(whole: WholeStep) -> dict[int, Span]:
    """Returns rank -> span of the step on the clock of the first rank.

    If the clocks cannot be aligned, all ranks begin at 0.
    """
    if whole.offsets.problem:
        return {rank_step.rank: (0, rank_step.step_ns) for rank_step in whole.ranks}
    added = whole.offsets.added_ns
    return {
        rank_step.rank: (
            rank_step.start + added[rank_step.rank],
            rank_step.end + added[rank_step.rank],
        )
        for rank_step in whole.ranks
    }


def step_offsets(ledger: Ledger, number: int) -> Offsets:
    """Returns the clock offsets from all calls, or from the calls of the step alone if that aligns
    more ranks.

    The latter helps if the clocks do not run at the same rate over the whole traffic.
    """
    offsets = ledger.offsets
    if not offsets.problem:
        return offsets
    step_calls = [
        joined_call
        for joined_call in ledger.joined_before_the_cut
        if any(call.step == number for call in joined_call.calls.values())
    ]
    nearer = measure_offsets(ledger.whole, step_calls)
    return nearer if len(nearer.added_ns) > len(offsets.added_ns) else offsets


def _add_arrivals(whole: WholeStep) -> None:
    """Sets how often each rank came last over the steady steps, and the waiting that it caused."""
    rows = whole.arrivals.ranks if whole.arrivals else []
    for rank_step in whole.ranks:
        of_rank = [row for row in rows if row.rank == rank_step.rank]
        if calls := sum(row.calls for row in of_rank):
            rank_step.last = sum(row.last for row in of_rank) / calls
            rank_step.even = sum(row.chance * row.calls for row in of_rank) / calls
            steps = max(row.steps for row in of_rank) if whole.marked else 1
            rank_step.caused_ns = round(sum(row.caused_ns for row in of_rank) / steps)


class _Lane:
    """The spans of one rank, searchable for what ran or ended just before a moment."""

    def __init__(self, rank_step: RankStep) -> None:
        self.rank_step = rank_step
        self.computing = rank_step.computing or []
        self.begins = [start for start, _ in self.computing]
        self.calls = sorted(
            (c for c in rank_step.calls if c.end > c.start), key=lambda call: call.end
        )
        self.ends = [call.end for call in self.calls]
        self.moving = {call.entry: call.moving for call in self.calls}


def _trace_critical_path(whole: WholeStep) -> None:
    """Sets the critical path: its shares by kind and by rank."""
    lanes = {rank_step.rank: _Lane(rank_step) for rank_step in whole.ranks}
    added = whole.offsets.added_ns
    unaligned = whole.offsets.problem != ""
    latest = max(
        whole.ranks,
        key=lambda rank_step: (
            rank_step.step_ns if unaligned else rank_step.end + added.get(rank_step.rank, 0)
        ),
    )
    kinds: Counter[str] = Counter()
    ranks: Counter[int] = Counter()
    unknown_kind = IDLE if whole.computation_known else ""
    rank, time = latest.rank, latest.end
    passed: set[LedgerEntry] = set()

    def walk_back(until: int, kind: str) -> None:
        nonlocal time
        until = max(until, lanes[rank].rank_step.start)
        kinds[kind] += time - until
        ranks[rank] += time - until
        time = until

    while time > lanes[rank].rank_step.start:
        lane = lanes[rank]
        # The last computation that began before this moment, and the last call that ended by then;
        # a call that ended later did not delay anything.
        begun = bisect_left(lane.begins, time) - 1
        ran = lane.computing[begun] if begun >= 0 else None
        done = bisect_right(lane.ends, time) - 1
        call = lane.calls[done] if done >= 0 else None
        ended = max(
            ran[1] if ran else lane.rank_step.start, call.end if call else lane.rank_step.start
        )
        if ran and ran[1] >= ended:
            walk_back(min(time, ran[1]), unknown_kind)
            walk_back(ran[0], COMPUTING)
            continue
        walk_back(ended, unknown_kind)
        if call is None or time <= lane.rank_step.start:
            continue
        walk_back(call.moving, EXPOSED)
        last = call.entry.last
        if (
            last in lanes
            and call.entry in lanes[last].moving
            and (call.wait_ns or 0) > call.entry.error_ns
            and call.entry not in passed
        ):
            rank, time = last, lanes[last].moving[call.entry]
        else:
            walk_back(call.start, EXPOSED)
        passed.add(call.entry)
    total = sum(kinds.values())
    if total:
        whole.path = {kind: ns / total for kind, ns in kinds.items()}
        for rank_step in whole.ranks:
            rank_step.path = ranks[rank_step.rank] / total


def _notes(whole: WholeStep, traffic: Traffic) -> list[str]:
    notes = [text] if (text := whole.offsets.problem or whole.offsets.text) else []
    if whole.late_ns:
        notes.append(
            "the end of an asynchronous call is stamped up to "
            f"{format_ns(whole.late_ns, 3)} late: waits follow from when each rank began it"
        )
    unknown = [rank_step.rank for rank_step in whole.ranks if rank_step.computing is None]
    if unknown:
        source = "a capture does not record" if traffic.source == "capture" else "no source records"
        notes.append(
            f"{source} what {plural(len(unknown), 'rank')} {format_ranges(unknown)} computed: what "
            "is not communication there may be computation or idle"
        )
    if not whole.marked:
        notes.append("no step is marked: all that was recorded is one")
    missing = len(traffic.calls) - len(whole.ranks)
    if missing:
        notes.append(f"{missing} of {len(traffic.calls)} ranks have no such step")
    if len(traffic.calls) < traffic.ranks:
        notes.append(
            f"{len(traffic.calls)} of {traffic.ranks} ranks: waits, who was late and the critical "
            "path take all ranks of a group"
        )
    untimed: dict[str, int] = defaultdict(int)
    for calls in traffic.calls.values():
        for call in calls:
            untimed[call.collective] += call.step == whole.number and call.span is None
    for name, count in untimed.items():
        if count:
            notes.append(f"{count} {name} of the step do not tell when they ran: not drawn")
    return notes

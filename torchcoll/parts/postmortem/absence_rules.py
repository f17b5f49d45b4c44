"""Rules about ranks that did not come: stopped, in other code, late, or without any record."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from torchcoll.core.units import format_duration
from torchcoll.parts.postmortem import job_facts
from torchcoll.parts.postmortem.diagnosis import (
    Diagnosis,
    EvidenceLine,
    call_name,
    group_name,
    rank_names,
)
from torchcoll.parts.postmortem.evidence import CallSeen
from torchcoll.parts.postmortem.job_facts import MARGIN_NS, in_user_code
from torchcoll.parts.postmortem.standing import GroupStanding, Standings

_LEAST_NS = 1_000_000_000  # smaller delays stop no job
_FEWEST_CALLS = 5  # that tell the difference between two clocks
_TIMES_USUAL = 10  # the spread of the calls before
_MANY = 16  # ranks: whether the median is taken with or without one of them makes no difference
_EXPLAINED = 0.5  # of a delay, by another rank that came late to the call before


@dataclass(frozen=True)
class LateCall:
    """A rank that issued a call ``late_ns`` after the others of the group."""

    rank: int
    group: GroupStanding
    number: int
    late_ns: int
    call: CallSeen


def late_ranks(standings: Standings, nodes: Mapping[int, str]) -> list[LateCall]:
    """Ranks that came late to the last call of a group, and were not held up by another rank in
    their own call before: from the times at which the ranks of a group issued the same calls.

    Clocks of hosts differ. The usual difference between a rank and the others of its group, over
    the calls before, is subtracted where there are enough calls; between ranks of one host the
    clocks are the same.
    """
    late_calls: list[LateCall] = []
    offsets = {key: _usual_lateness(g, nodes) for key, g in standings.groups.items()}
    before = _calls_before(standings)
    for key, group in standings.groups.items():
        if len(group.calls) < 2:
            continue
        number = max(group.last.values())
        times = _times(group, number)
        for rank, lateness_ns in sorted(_lateness(times).items()):
            if rank not in offsets[key]:
                continue
            usual, spread = offsets[key][rank]
            late_ns = lateness_ns - usual
            if late_ns < max(_LEAST_NS, _TIMES_USUAL * spread):
                continue
            call = group.calls[rank][number]
            previous = before.get(id(call))
            if previous is not None and _was_held_up(previous, late_ns, standings, offsets):
                continue
            late_calls.append(LateCall(rank, group, number, round(late_ns), call))
    return late_calls


def _times(group: GroupStanding, number: int) -> dict[int, int]:
    return {
        rank: calls[number].created_ns or 0
        for rank, calls in group.calls.items()
        if number in calls and calls[number].created_ns
    }


def _lateness(times: Mapping[int, int]) -> dict[int, float]:
    """How long each rank came after the others; negative if before them. {} for one rank."""
    if len(times) < 2:
        return {}
    if len(times) > _MANY:
        middle = median(times.values())
        return {rank: time - middle for rank, time in times.items()}
    return {
        rank: time - median(t for other, t in times.items() if other != rank)
        for rank, time in times.items()
    }


def _usual_lateness(
    group: GroupStanding, nodes: Mapping[int, str]
) -> dict[int, tuple[float, float]]:
    """Rank -> (its median lateness, the median deviation from it) over all calls but the last."""
    last = max(group.last.values(), default=0)
    numbers = sorted({n for calls in group.calls.values() for n in calls if n < last})[-50:]
    seen: dict[int, list[float]] = defaultdict(list)
    for number in numbers:
        times = _times(group, number)
        if len(times) == len(group.calls) and len(times) > 1:
            for rank, lateness_ns in _lateness(times).items():
                seen[rank].append(lateness_ns)
    hosts = {nodes.get(rank) for rank in group.calls}
    same_host = len(hosts) == 1 and None not in hosts
    usual = {}
    for rank in group.calls:
        values = seen[rank]
        if len(values) >= _FEWEST_CALLS:
            middle = median(values)
            usual[rank] = (middle, median(abs(value - middle) for value in values))
        elif same_host:
            usual[rank] = (0.0, 0.0)
    return usual


def _calls_before(standings: Standings) -> dict[int, CallSeen]:
    """id of a call -> the call that its rank issued before it, in whatever group."""
    of_rank: dict[int, list[CallSeen]] = defaultdict(list)
    for group in standings.groups.values():
        for rank, calls in group.calls.items():
            of_rank[rank] += [call for call in calls.values() if call.created_ns is not None]
    before = {}
    for calls_of_rank in of_rank.values():
        calls_of_rank.sort(key=lambda call: call.created_ns or 0)
        for previous, call in pairwise(calls_of_rank):
            before[id(call)] = previous
    return before


def _was_held_up(
    previous: CallSeen,
    late_ns: float,
    standings: Standings,
    offsets: Mapping[str, Mapping[int, Sequence[float]]],
) -> bool:
    """Whether another rank came so late to the call before that it explains the delay."""
    group = standings.groups[previous.group]
    rank = previous.rank
    if any(last < previous.number for last in group.last.values()):
        return True
    times = _times(group, previous.number)
    usual = offsets[previous.group]
    for other, time in times.items():
        if other != rank and rank in times:
            offset = usual[other][0] - usual[rank][0] if other in usual and rank in usual else 0
            if time - times[rank] - offset > _EXPLAINED * late_ns:
                return True
    return False


_MOST_LINES = 12  # of evidence
_ALIVE_MARGIN_NS = 2_000_000_000  # a process records once a second that it runs


def broke_off(facts: job_facts.JobFacts) -> Diagnosis | None:
    """The only rank whose record has no end, while all others ended with a complaint of a peer.

    A launcher that ends the job leaves records without an end too, of innocent ranks. So either all
    others must have lost a connection, which the process that is gone first causes, or this process
    must have ceased to run before the others complained.
    """
    job, events = facts.job, facts.events
    explained = events.complaining | events.endings.keys() | events.causes.keys()
    unended = [rank for rank in job.unended if rank not in explained]
    if len(unended) != 1 or set(job.alive_ns) != set(facts.ranks):
        return None
    rank = unended[0]
    others = facts.others(unended)
    if not others or not events.complaining >= set(others):
        return None
    complaints = [
        complaints[other]
        for other in others
        for complaints in (events.timeouts, events.peer_lost)
        if other in complaints
    ]
    times = [event.when_ns for event in complaints if event.when_ns is not None]
    same_host = len({job.nodes.get(member, "") for member in facts.ranks}) == 1
    margin_ns = _ALIVE_MARGIN_NS if same_host else MARGIN_NS
    before = bool(times) and job.alive_ns[rank] < min(times) - margin_ns
    lost = all(e.kind == "peer_lost" and "timed out" not in e.text for e in complaints)
    if not (before or lost):
        return None
    result = Diagnosis(job, kind="stopped", culprits=(rank,), certainty="likely")
    job_facts.name_call(facts, result, (rank,))
    result.waiting = others
    result.reasons.append(
        "its record has no end; those of all other ranks end with a complaint about a peer"
    )
    if before:
        result.reasons.append(job_facts.last_ran(facts, unended))
    return result


def elsewhere(facts: job_facts.JobFacts) -> Diagnosis | None:
    """By their stacks, some ranks wait in communication and others do not."""
    stacks = facts.events.stacks
    away = tuple(rank for rank, stack in sorted(stacks.items()) if in_user_code(stack))
    waiting = tuple(rank for rank in sorted(stacks) if rank not in away)
    if not waiting or not away or len(away) > len(waiting):
        return None
    if facts.shown_to_wait & set(away):
        return None  # taken before or after the job stood still
    result = Diagnosis(facts.job, kind="user_code", culprits=away, certainty="likely")
    job_facts.name_call(facts, result, away)
    result.waiting = tuple(sorted({*result.waiting, *waiting} - set(away)))
    result.reasons.append("its stack is in user code, and those of the others are not")
    for rank in (*away, *waiting[:1]):
        result.evidence.append(EvidenceLine(stacks[rank].text, stacks[rank].place, rank))
    return result


def came_late(facts: job_facts.JobFacts) -> Diagnosis | None:
    """All made the last call, and a rank made it so late that the others may have given up."""
    if not facts.events.complaining and not facts.standings.waits:
        return None
    late = late_ranks(facts.standings, facts.job.nodes)
    if not late:
        return None
    ranks = tuple(sorted({item.rank for item in late}))
    latest = max(late, key=lambda item: item.late_ns)
    result = Diagnosis(facts.job, kind="slow", culprits=ranks, certainty="likely")
    result.group, result.number = group_name(latest.group), latest.number
    result.collective = latest.call.collective
    result.waiting = tuple(r for r in latest.group.ranks if r not in ranks)
    duration = format_duration(latest.late_ns / 1e9)
    result.reasons.append(f"it issued this call {duration} after the others")
    for item in late[:_MOST_LINES]:
        text = (
            f"it issued {call_name(item.call, item.group)} {format_duration(item.late_ns / 1e9)} "
            "after the others"
        )
        result.evidence.append(EvidenceLine(text, item.call.place, item.rank))
    _late_stack(facts, result, late)
    return result


def _late_stack(facts: job_facts.JobFacts, result: Diagnosis, late: Collection[LateCall]) -> None:
    for item in late:
        stack = facts.events.stacks.get(item.rank)
        if stack is not None and in_user_code(stack):
            result.kind = "user_code"
            result.evidence.append(EvidenceLine(stack.text, stack.place, item.rank))


def unanswered(facts: job_facts.JobFacts) -> Diagnosis | None:
    """Ranks from which NCCL's RAS got no answer, while it got one from others.

    A rank that is recorded to have waited for others ended because of them. Of the others RAS does
    not say why: a rank that is stopped, one that failed, and one that gave up look alike.
    """
    events = facts.events
    if not events.unanswered or None in events.unanswered:
        return None
    numbered = [event for event in events.unanswered.values() if event.rank is not None]
    if any((event.ranks or 0) < len(facts.ranks) for event in numbered):
        return None  # RAS reached a part of the job: its numbers may be those of a group
    explained = events.complaining | facts.shown_to_wait | events.endings.keys()
    missing = {rank for rank in events.unanswered if rank is not None} - explained
    if not missing:
        return None
    suspects = missing | {rank for event in events.ras for rank in event.about} - explained
    if len(suspects) == len(facts.ranks) or facts.job.ranks is None:
        return None
    result = Diagnosis(facts.job, kind="stopped", certainty="likely")
    chosen = tuple(sorted(suspects))
    job_facts.name_call(facts, result, chosen)
    if len(chosen) == 1:
        result.culprits = chosen
        result.reasons.append(
            "NCCL's RAS got an answer from all other ranks"
            if len(events.unanswered) == 1
            else "the other ranks without an answer for NCCL's RAS had waited, or ended as planned"
        )
        result.reasons.append(
            "the process ended, is stopped, or cannot be reached, and RAS does not say whether it "
            "was the first that failed"
        )
    else:
        result.candidates, result.certainty = chosen, "possible"
        result.reasons.append(
            f"NCCL's RAS got no answer from {rank_names(facts.job, sorted(missing))}, and does not "
            "say which was the first that failed"
        )
        if suspects != missing:
            others = rank_names(facts.job, suspects - missing)
            result.reasons.append(f"NCCL's RAS reports an error of {others}, or fewer operations")
    _add_wait(facts, result, chosen)
    return result


def _add_wait(facts: job_facts.JobFacts, result: Diagnosis, ranks: Collection[int]) -> None:
    """Lines about the call in which others wait for these ranks, if one is recorded."""
    wait = facts.graph.wait_for(ranks)
    if wait is not None:
        group = facts.standings.groups.get(wait.key)
        job_facts.add_standing(facts, result, group, facts.first_open(wait))


def _cleared(facts: job_facts.JobFacts) -> set[int]:
    """Ranks that are shown to wait in a call that another rank makes alike. Of a rank that only
    complains, or is alone in a call, it is not known whether it waits in the right one.
    """
    cleared: set[int] = set()
    for group in facts.standings.groups.values():
        number = max(group.last.values(), default=0)
        ranks = {rank for rank in group.last if group.call(rank, number)}
        differs = any(difference.group is group for difference in facts.differences)
        if len(ranks) > 1 and not differs:
            cleared |= ranks & facts.shown_to_wait
    # A record that ended as it should does not have the call in which its rank waited later.
    return cleared - facts.events.endings.keys()


def _odd_ones(facts: job_facts.JobFacts, silent: tuple[int, ...]) -> tuple[int, ...]:
    """The silent rank, and the ranks that failed in another call than most."""
    calls = facts.where_they_failed
    usual, _ = Counter(calls.values()).most_common(1)[0] if calls else ("", 0)
    return tuple(sorted({*silent, *(rank for rank, call in calls.items() if call != usual)}))


def left_nothing(facts: job_facts.JobFacts) -> Diagnosis | None:
    """Nobody is behind by the records: the cause is among the ranks that are not shown to wait."""
    events = facts.events
    if not events.complaining and not facts.shown_to_wait:
        return None
    suspects = facts.others(_cleared(facts))
    blamed = [r for r in facts.others(events.complaining) if events.blamed_by.get(r)]
    without_complaint = facts.others(events.complaining)
    result = Diagnosis(facts.job, kind="stopped", certainty="likely")
    chosen: tuple[int, ...] = suspects
    if len(blamed) == 1:
        chosen = tuple(blamed)
        result.reasons.append("the complaints of the others name it, and it has none itself")
    elif len(without_complaint) == 1 and without_complaint[0] in facts.quiet | facts.spoke:
        chosen = without_complaint
        calls = {facts.where_they_failed.get(rank, "") for rank in events.complaining}
        if len(calls) > 1 or len(events.complaining) < 2:
            # The launcher may have ended it just before it gave up as well.
            chosen = tuple(facts.ranks) if len(facts.ranks) < 3 else _odd_ones(facts, chosen)
        result.reasons.append("its log is the only one without a complaint")
    elif facts.job.ranks is None and not facts.has_table:
        return None  # there may be more ranks than any file mentions
    elif len(suspects) == 1 and (
        suspects[0] in events.timeouts or job_facts.waits(facts, suspects[0])
    ):
        return None  # each waits for the others
    elif len(suspects) == 1:
        result.reasons.append("all other ranks are recorded in the same call, waiting")
    if not chosen or len(chosen) == len(facts.ranks):
        return None
    job_facts.name_call(facts, result, chosen)
    if len(chosen) == 1:
        result.culprits = chosen
    else:
        result.candidates, result.certainty = chosen, "possible"
        result.reasons.append("the other ranks are recorded in the same call, waiting")
    silent = [rank for rank in chosen if rank in facts.silent]
    if silent:
        result.reasons.append(f"no file says anything about {rank_names(facts.job, silent)}")
    _add_wait(facts, result, chosen)
    if result.culprits:
        job_facts.refine_by_events(facts, result, result.culprits)
    return result

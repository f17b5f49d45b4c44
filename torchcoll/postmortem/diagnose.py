"""Concludes from the evidence of one job what happened first, to which rank.

The rules, in this order: ranks that made different calls; a rank that ended for a reason of its
own; a rank that the others wait for; ranks that wait for each other; a rank that came late; a rank
of which nothing is left; what the complaints say; a link. A rank that only reports that another one
was missing is never the cause. Where the evidence leaves a choice, all that it allows are
candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from torchcoll.core.units import counted, format_duration
from torchcoll.postmortem.call_differences import CallDifference, find_difference
from torchcoll.postmortem.causes import (
    MARGIN_NS,
    Cause,
    Complaints,
    earliest,
    in_user_code,
    sort_events,
    waits_in_communication,
    without_told_to_end,
)
from torchcoll.postmortem.collecting import what_to_collect
from torchcoll.postmortem.diagnosis import Diagnosis, EvidenceLine
from torchcoll.postmortem.evidence import CallSeen, FileRead, JobEvent, JobEvidence
from torchcoll.postmortem.lateness import LateCall, late_ranks
from torchcoll.postmortem.sentences import (
    call_name,
    describe_call,
    group_name,
    headline,
    rank_names,
)
from torchcoll.postmortem.standing import GroupStanding, OpenCall, Standings, standings_of
from torchcoll.postmortem.wait_graph import WaitGraph, wait_graph

_ENDED_BY_ITSELF = ("exception", "disk_full", "out_of_memory")
_MOST_LINES = 12  # of evidence
_ALIVE_MARGIN_NS = 2_000_000_000  # a process says once a second that it runs


class _Facts:
    """What is known of a job, sorted once for all rules."""

    def __init__(self, job: JobEvidence) -> None:
        self.job = job
        self.standings: Standings = standings_of(job)
        self.events: Complaints = sort_events(job)
        self.late_complaints = self.events.late_complaints(job.nodes)
        waited = self.events.complaining - self.late_complaints
        self.graph: WaitGraph = wait_graph(self.standings, waited)
        # Ranks that are shown to have waited for others: none of these is the first cause.
        self.shown_to_wait = waited | {
            rank
            for rank, waits in self.standings.waits.items()
            if any(wait.call and wait.call.reliable_state for wait in waits)
        }
        causes = without_told_to_end(
            self.events.causes,
            len(self.standings.ranks),
            bool(self.events.complaining or self.events.canceled),
        )
        self.causes = earliest(causes, job) if causes else {}
        differences = map(find_difference, self.standings.groups.values())
        self.differences = [difference for difference in differences if difference]
        # Ranks whose log was read, and says nothing.
        logs = [file for file in job.files if _has_complaints(file)]
        self.quiet = {rank for file in logs for rank in file.ranks} - {
            event.rank for event in job.events
        }
        # Ranks of which no file says anything about the rank itself.
        self.silent = [
            rank
            for rank in self.standings.ranks
            if rank not in self.standings.recorded
            and not any(rank in file.ranks for file in job.files)
            and not any(event.rank == rank for event in job.events)
        ]

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.standings.ranks

    def others(self, ranks: Collection[int]) -> tuple[int, ...]:
        return tuple(rank for rank in self.ranks if rank not in ranks)


def _has_complaints(file: FileRead) -> bool:
    """Whether a file is where a rank would complain: its stderr, or a log of both streams."""
    if file.what not in ("stderr", "log"):
        return False
    return not file.path.endswith(".out") or "slurm" in file.path


def diagnose(job: JobEvidence) -> Diagnosis:
    facts = _Facts(job)
    rules = (
        _different_calls,
        _ended_by_itself,
        _reported_mismatch,
        _waited_for,
        _wait_for_each_other,
        _reported_link,
        _stopped_running,
        _broke_off,
        _came_late,
        _elsewhere,
        _left_nothing,
        _link,
        _canceled,
        _ended_well,
    )
    diagnosis = Diagnosis(job)
    for rule in rules:
        concluded = rule(facts)
        if concluded is not None:
            diagnosis = concluded
            break
    else:
        _unknown(facts, diagnosis)
    diagnosis.culprits = tuple(sorted(diagnosis.culprits))
    diagnosis.candidates = tuple(sorted(diagnosis.candidates))
    if not diagnosis.nodes:
        named = [job.nodes[rank] for rank in diagnosis.culprits if rank in job.nodes]
        diagnosis.nodes = tuple(dict.fromkeys(named))
    _add_complaints(facts, diagnosis)
    _add_contradictions(facts, diagnosis)
    diagnosis.collect_next = what_to_collect(job, diagnosis, facts.standings)
    diagnosis.headline = headline(diagnosis, facts.standings)
    return diagnosis


def _different_calls(facts: _Facts) -> Diagnosis | None:
    """Ranks that made different calls with one number."""
    if not facts.differences:
        return None
    difference = min(facts.differences, key=lambda d: (_created_ns(d), d.group.key))
    group, number = difference.group, difference.number
    culprits = difference.minority or difference.all_ranks
    for rank in culprits:
        if (cause := facts.causes.get(rank)) and _came_before_call(cause, group.call(rank, number)):
            return None  # an exception first, then for example the barrier of a `finally`
    usual = difference.calls[0]
    result = Diagnosis(
        facts.job,
        kind="missing_call" if difference.what == "skipped" else "mismatch",
        detail=None if difference.what == "skipped" else difference.what,
        culprits=culprits,
        group=group_name(group),
        collective=usual.collective,
        number=number,
        certainty="certain" if len(difference.all_ranks) == len(group.ranks) else "likely",
    )
    if difference.minority:
        majority = difference.ranks[0]
        result.waiting = majority
        result.reasons.append(
            f"{counted(len(majority), 'rank')} made the same call, and "
            f"{rank_names(facts.job, culprits)} another one"
        )
    else:
        result.reasons.append(
            "the ranks are divided evenly: their calls do not tell which of them are wrong"
        )
    for call, ranks in zip(difference.calls, difference.ranks, strict=True):
        text = f"{rank_names(facts.job, ranks)}: call {number} is {describe_call(call)}"
        stack = f", from {call.stack[0]}" if call.stack else ""
        result.evidence.append(EvidenceLine(text + stack, call.place, ranks[0]))
    missing = [rank for rank in group.ranks if rank not in difference.all_ranks]
    if missing:
        result.reasons.append(f"this call of {rank_names(facts.job, missing)} is not recorded")
    return result


def _created_ns(difference: CallDifference) -> int:
    return min((call.created_ns or 0 for call in difference.calls), default=0)


def _came_before_call(cause: Cause, call: CallSeen | None) -> bool:
    """Whether a rank failed before it made a call, by its own clock."""
    if cause.kind not in _ENDED_BY_ITSELF or call is None:
        return False
    when_ns = cause.event.when_ns
    return when_ns is not None and call.created_ns is not None and when_ns < call.created_ns


def _ended_by_itself(facts: _Facts) -> Diagnosis | None:
    """Ranks that were killed, failed, or ended otherwise for a reason of their own."""
    causes = facts.causes
    awaited = {*facts.graph.roots, *facts.graph.unrecorded}
    if awaited:
        # A rank that waits for another one was alive when that one was missing already.
        chosen = {r: c for r, c in causes.items() if r in awaited}
        free = {r: c for r, c in causes.items() if r not in facts.graph.waiting}
        causes = chosen or free
        if not causes and facts.graph.roots:
            return None
        causes = causes or facts.causes
    elif facts.graph.cycle:
        causes = {r: c for r, c in causes.items() if r not in facts.graph.cycle}
    if not causes:
        return None
    kinds = Counter(cause.kind for cause in causes.values())
    kind = kinds.most_common(1)[0][0]
    first = min(causes.values(), key=lambda c: (c.kind != kind, c.event.when_ns or 0, c.rank))
    same = {r: c for r, c in causes.items() if (c.kind, c.detail) == (first.kind, first.detail)}
    culprits = tuple(sorted(causes))
    result = Diagnosis(facts.job, kind=first.kind, culprits=culprits)
    result.detail = first.detail if len(same) == len(causes) else None
    _name_call(facts, result, culprits, [cause.event for cause in causes.values()])
    for rank, cause in sorted(causes.items())[:_MOST_LINES]:
        result.evidence.append(EvidenceLine(cause.event.text, cause.event.place, rank))
    supported = bool(awaited & set(culprits)) or _all_blame(facts, culprits)
    accounted = all(
        rank in culprits or rank in facts.events.complaining or rank in facts.graph.waiting
        for rank in facts.ranks
    )
    if len(causes) == 1:
        result.certainty = "certain" if supported or accounted else "likely"
        if supported:
            result.reasons.append("the others wait for it, or name it")
        elif accounted:
            result.reasons.append("all other ranks only report that another one was missing")
        else:
            result.reasons.append("it is the only rank with a failure of its own")
            if facts.silent:
                silent = rank_names(facts.job, facts.silent)
                result.reasons.append(
                    f"no file says anything about {silent}, which may have failed before"
                )
    elif len(same) == len(facts.ranks):
        result.certainty = "likely"
        result.reasons.append("all ranks failed in the same way")
    else:
        result.certainty = "likely" if len(same) == len(causes) else "possible"
        result.reasons.append("the times do not tell which of them failed first")
    return result


def _all_blame(facts: _Facts, ranks: Collection[int]) -> bool:
    blamed = {rank for rank, by in facts.events.blamed_by.items() if by - set(ranks)}
    return bool(blamed) and blamed <= set(ranks)


def _name_call(
    facts: _Facts,
    result: Diagnosis,
    ranks: Collection[int],
    events: Collection[JobEvent] = (),
) -> None:
    """Fill in the call in which others wait for these ranks, and who waits."""
    wait = facts.graph.wait_for(ranks)
    if wait is not None:
        _name_wait(facts, result, wait)
        result.waiting = tuple(rank for rank in facts.graph.waiting if rank not in ranks)
        return
    complaints = [*facts.events.timeouts.values(), *facts.events.peer_lost.values()]
    named = [e for e in [*complaints, *events] if e.number is not None or e.collective is not None]
    # Without a number only what all name alike is the call.
    if named and (named[0].number is not None or len({e.collective for e in named}) == 1):
        event = named[0]
        group = facts.standings.groups.get(event.group or "")
        result.group = group_name(group) if group else event.group
        result.number, result.collective = event.number, event.collective
        if group and event.number is not None and event.collective is None:
            result.collective = group.collective(event.number)
    result.waiting = tuple(sorted(facts.events.complaining - set(ranks)))


def _name_wait(facts: _Facts, result: Diagnosis, wait: OpenCall) -> None:
    group = facts.standings.groups.get(wait.key)
    result.group = group_name(group) if group else wait.key
    result.number = wait.number
    if wait.call is not None:
        result.collective = wait.call.collective
    elif wait.event is not None and wait.event.collective:
        result.collective = wait.event.collective
    elif group is not None:
        result.collective = group.collective(wait.number)


def _reported_mismatch(facts: _Facts) -> Diagnosis | None:
    """torch or the library found the mismatch itself; the calls are not recorded."""
    events = facts.events.mismatches
    if not events:
        return None
    pairs = [{event.rank, *event.about} for event in events if event.rank is not None]
    involved = {rank for pair in pairs for rank in pair if rank is not None}
    in_all = set.intersection(*(set(pair) for pair in pairs)) if pairs else set()
    result = Diagnosis(facts.job, kind="mismatch", certainty="likely")
    event = events[0]
    result.collective, result.number = event.collective, event.number
    group = facts.standings.groups.get(event.group or "")
    result.group = group_name(group) if group else event.group
    text = " ".join(event.text for event in events).lower()
    for detail in ("dtype", "size", "shape", "length", "order"):
        if detail in text:
            result.detail = {"shape": "size", "length": "size"}.get(detail, detail)
            break
    named = any(event.about for event in events)
    if named and len(in_all) == 1 and len(pairs) > 1:
        result.culprits = tuple(in_all)
        result.reasons.append("every report of a mismatch names it")
    elif named:
        result.culprits = tuple(sorted(involved))
        result.reasons.append("the reports name these ranks, and not which of them is wrong")
    elif len(facts.ranks) == 2:
        result.culprits = facts.ranks
        result.reasons.append("two ranks disagree: the reports do not tell which is wrong")
    elif facts.graph.roots:
        result.culprits = facts.graph.roots
        _name_call(facts, result, facts.graph.roots)
        result.reasons.append("the others wait for it in a call that it did not make")
    else:
        agreeing = _agreeing_ranks(facts)
        suspects = facts.others(agreeing) if agreeing else facts.ranks
        if len(suspects) == 1:
            result.culprits = suspects
        else:
            result.candidates, result.certainty = suspects, "possible"
        if agreeing:
            names = rank_names(facts.job, agreeing)
            result.reasons.append(f"the recorded calls of {names} agree with each other")
            _name_most_common_wait(facts, result)
        else:
            result.reasons.append(
                "a rank that reports a mismatch need not be the one that is wrong"
            )
    for event in events[:_MOST_LINES]:
        result.evidence.append(EvidenceLine(event.text, event.place, event.rank))
    return result


def _agreeing_ranks(facts: _Facts) -> tuple[int, ...]:
    """Ranks that are recorded in the last call of the group of all ranks, if there are several: the
    calls of one number have been compared, and do not differ.
    """
    for group in facts.standings.groups.values():
        if group.is_default and group.last:
            number = max(group.last.values())
            ranks = tuple(rank for rank in group.ranks if group.call(rank, number))
            if len(ranks) > 1:
                return ranks
    return ()


def _waited_for(facts: _Facts) -> Diagnosis | None:
    """Ranks that have not made a call that the others are in, and wait for nobody themselves."""
    roots = facts.graph.roots
    if not roots:
        return None
    wait = facts.graph.wait_for(roots)
    assert wait is not None
    group = facts.standings.groups.get(wait.key)
    result = Diagnosis(facts.job, kind="stopped", culprits=roots)
    _name_call(facts, result, roots)
    ahead: tuple[int, ...] = ()
    if group is not None and wait.peer is None:
        ahead = tuple(r for r, last in sorted(group.last.items()) if last >= wait.number)
    if ahead and len(roots) >= 2 * len(ahead):
        if not all(rank in facts.events.endings for rank in roots):
            # They may wait for each other in a way that is not recorded, such as messages.
            result.culprits, result.candidates, result.certainty = (), roots, "possible"
            result.reasons.append("their records end before the call in which the others are")
            _add_standing(facts, result, group, wait)
            return result
        # Few ranks made a call that many others did not make.
        result.kind, result.culprits, result.waiting = "missing_call", ahead, ahead
        result.certainty = "likely"
        result.reasons.append(f"the other {counted(len(roots), 'rank')} ended without this call")
        _add_standing(facts, result, group, wait)
        return result
    sure = wait.event is not None or (wait.call is not None and wait.call.reliable_state)
    sure = sure or set(ahead) <= facts.events.complaining
    result.certainty = "certain" if sure and len(roots) == 1 else "likely"
    result.reasons.append(
        f"the record of {rank_names(facts.job, roots)} ends before the call in which the others are"
    )
    if not sure:
        result.reasons.append("the source does not record which calls completed")
    _refine_by_events(facts, result, roots)
    _add_standing(facts, result, group, wait)
    alive = facts.job.alive_ns
    if roots[0] in alive and max(alive.values()) - alive[roots[0]] > MARGIN_NS:
        result.reasons.append(_last_ran(facts, roots[:1]))
    return result


def _refine_by_events(facts: _Facts, result: Diagnosis, ranks: Collection[int]) -> None:
    """Say why a rank does not come, where an event of the rank tells."""
    events = facts.events
    for rank in ranks:
        event = events.stacks.get(rank)
        if event is not None and in_user_code(event):
            result.kind = "user_code"
            result.evidence.append(EvidenceLine(event.text, event.place, rank))
        elif rank in events.endings:
            result.kind = "missing_call"
            event = events.endings[rank]
            result.evidence.append(EvidenceLine(event.text, event.place, rank))
        elif rank in events.peer_lost and events.timeouts:
            result.kind = "slow"
            event = events.peer_lost[rank]
            result.reasons.append("it was alive when the others had given up")
            result.evidence.append(EvidenceLine(event.text, event.place, rank))


def _add_standing(
    facts: _Facts, result: Diagnosis, group: GroupStanding | None, wait: OpenCall
) -> None:
    """Evidence lines with the last calls of the culprits, and the call of those who wait."""
    if group is None:
        return
    name = group_name(group)
    for rank in result.culprits[:3]:
        last = group.last.get(rank)
        if last is not None and (call := group.call(rank, last)):
            state = f" ({call.state})" if call.reliable_state else ""
            text = f"its last call of group {name} is {last}, {describe_call(call)}{state}"
            result.evidence.append(EvidenceLine(text, call.place, rank))
    waiting = [
        call
        for rank, calls in sorted(group.calls.items())
        if rank not in result.culprits and (call := calls.get(wait.number))
    ]
    if waiting:
        ranks = rank_names(facts.job, [call.rank for call in waiting])
        verb = "is" if len(waiting) == 1 else "are"
        text = f"{ranks} {verb} in call {wait.number} of group {name}"
        text += f", {describe_call(waiting[0])}"
        result.evidence.append(EvidenceLine(text, waiting[0].place))


def _wait_for_each_other(facts: _Facts) -> Diagnosis | None:
    """Ranks that wait for each other in different groups."""
    cycle = facts.graph.cycle
    if not cycle:
        return None
    edges = [edge for edge in facts.graph.edges if edge.wait.rank in cycle]
    edges = [edge for edge in edges if edge.behind & set(cycle)]
    result = Diagnosis(facts.job, kind="mismatch", detail="group", culprits=cycle)
    messages = all(edge.wait.peer is not None for edge in edges)
    keys = {edge.wait.key for edge in edges}
    if messages or len(keys) == 1:
        result.detail = "order"
    reliable = all(e.wait.event or (e.wait.call and e.wait.call.reliable_state) for e in edges)
    result.certainty = "certain" if reliable else "likely"
    result.waiting = tuple(rank for rank in facts.graph.waiting if rank not in cycle)
    result.reasons.append("each of these ranks waits for another one of them")
    _name_wait(facts, result, edges[0].wait)
    for edge in edges[:_MOST_LINES]:
        call = edge.wait.call
        if call is None:
            continue
        awaited = rank_names(facts.job, sorted(edge.behind & set(cycle)))
        group = facts.standings.groups.get(edge.wait.key)
        text = f"it waits for {awaited} in {call_name(call, group)}"
        result.evidence.append(EvidenceLine(text, call.place, edge.wait.rank))
    return result


def _stopped_running(facts: _Facts) -> Diagnosis | None:
    """Ranks whose processes ran no longer, long before those of the others."""
    alive = facts.job.alive_ns
    events = facts.events
    if len(alive) < 2:
        return None
    latest = max(alive.values())
    early = tuple(
        rank
        for rank, when_ns in sorted(alive.items())
        if latest - when_ns > MARGIN_NS
        and rank not in events.complaining
        and rank not in events.endings
    )
    if not early or 2 * len(early) > len(alive):
        return None
    result = Diagnosis(facts.job, kind="stopped", culprits=early, certainty="likely")
    _name_call(facts, result, early)
    _refine_by_events(facts, result, early)
    result.reasons.append(_last_ran(facts, early))
    return result


def _broke_off(facts: _Facts) -> Diagnosis | None:
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
    complaints = [
        complaints[other]
        for other in others
        for complaints in (events.timeouts, events.peer_lost)
        if other in complaints
    ]
    if not others or not events.complaining >= set(others):
        return None
    times = [event.when_ns for event in complaints if event.when_ns is not None]
    same_host = len({job.nodes.get(member, "") for member in facts.ranks}) == 1
    margin_ns = _ALIVE_MARGIN_NS if same_host else MARGIN_NS
    before = bool(times) and job.alive_ns[rank] < min(times) - margin_ns
    lost = all(e.kind == "peer_lost" and "timed out" not in e.text for e in complaints)
    if not (before or lost):
        return None
    result = Diagnosis(job, kind="stopped", culprits=(rank,), certainty="likely")
    _name_call(facts, result, (rank,))
    result.waiting = others
    result.reasons.append(
        "its record has no end; those of all other ranks end with a complaint about a peer"
    )
    if before:
        result.reasons.append(_last_ran(facts, unended))
    return result


def _last_ran(facts: _Facts, ranks: Collection[int]) -> str:
    alive = facts.job.alive_ns
    before_ns = max(alive.values()) - max(alive[rank] for rank in ranks)
    whose = "its process" if len(ranks) == 1 else "their processes"
    return f"{whose} last ran {format_duration(before_ns / 1e9)} before those of other ranks"


def _elsewhere(facts: _Facts) -> Diagnosis | None:
    """By their stacks, some ranks wait in communication and others do not."""
    stacks = facts.events.stacks
    away = tuple(rank for rank, stack in sorted(stacks.items()) if in_user_code(stack))
    waiting = tuple(rank for rank in sorted(stacks) if rank not in away)
    if not waiting or not away or len(away) > len(waiting):
        return None
    if facts.shown_to_wait & set(away):
        return None  # taken before or after the job stood still
    result = Diagnosis(facts.job, kind="user_code", culprits=away, certainty="likely")
    _name_call(facts, result, away)
    result.waiting = tuple(sorted({*result.waiting, *waiting} - set(away)))
    result.reasons.append("its stack is in user code, and those of the others are not")
    for rank in (*away, *waiting[:1]):
        result.evidence.append(EvidenceLine(stacks[rank].text, stacks[rank].place, rank))
    return result


def _came_late(facts: _Facts) -> Diagnosis | None:
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


def _late_stack(facts: _Facts, result: Diagnosis, late: Collection[LateCall]) -> None:
    for item in late:
        stack = facts.events.stacks.get(item.rank)
        if stack is not None and in_user_code(stack):
            result.kind = "user_code"
            result.evidence.append(EvidenceLine(stack.text, stack.place, item.rank))


def _cleared(facts: _Facts) -> set[int]:
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
    return cleared


def _waits(facts: _Facts, rank: int) -> bool:
    stack = facts.events.stacks.get(rank)
    return stack is not None and waits_in_communication(stack)


def _left_nothing(facts: _Facts) -> Diagnosis | None:
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
    elif len(without_complaint) == 1 and without_complaint[0] in facts.quiet:
        chosen = without_complaint
        result.reasons.append("its log is the only one without a complaint")
    elif facts.job.ranks is None:
        return None  # there may be more ranks than any file mentions
    elif len(suspects) == 1 and (suspects[0] in events.timeouts or _waits(facts, suspects[0])):
        return None  # each waits for the others
    elif len(suspects) == 1:
        result.reasons.append("all other ranks are recorded in the same call, waiting")
    if not chosen or len(chosen) == len(facts.ranks):
        return None
    _name_call(facts, result, chosen)
    if len(chosen) == 1:
        result.culprits = chosen
    else:
        result.candidates, result.certainty = chosen, "possible"
        result.reasons.append("the other ranks are recorded in the same call, waiting")
    silent = [rank for rank in chosen if rank in facts.silent]
    if silent:
        result.reasons.append(f"no file says anything about {rank_names(facts.job, silent)}")
    wait = facts.graph.wait_for(chosen)
    if wait is not None:
        _add_standing(facts, result, facts.standings.groups.get(wait.key), wait)
    if result.culprits:
        _refine_by_events(facts, result, result.culprits)
    return result


def _reported_link(facts: _Facts) -> Diagnosis | None:
    return _link(facts) if facts.events.links else None


def _link(facts: _Facts) -> Diagnosis | None:
    """Nobody is behind, and a connection failed."""
    job, events = facts.job, facts.events
    hosts: list[str] = []
    for event in [*events.links, *events.timeouts.values(), *events.peer_lost.values()]:
        node = event.node or (job.nodes.get(event.rank, "") if event.rank is not None else "")
        named = [job.addresses.get(address, address) for address in event.addresses]
        if event.kind == "link" or (named and event.kind == "timeout"):
            hosts += [node, *named]
    if not events.links and not (events.timeouts and facts.standings.waits):
        return None
    result = Diagnosis(job, kind="link", certainty="possible")
    result.nodes = tuple(dict.fromkeys(host for host in hosts if host))
    common = _name_most_common_wait(facts, result)
    group = facts.standings.groups.get(common.key) if common else None
    if group is not None and len(result.waiting) == len(group.ranks):
        result.reasons.append("all ranks of the group are in the same call")
    if events.links:
        result.certainty = "likely"
        for event in events.links[:_MOST_LINES]:
            result.evidence.append(EvidenceLine(event.text, event.place, event.rank))
    elif not result.nodes:
        return None
    return result


def _canceled(facts: _Facts) -> Diagnosis | None:
    """The scheduler or a person ended the whole job."""
    if not facts.events.canceled:
        return None
    event = facts.events.canceled[0]
    result = Diagnosis(facts.job, kind="canceled", certainty="certain")
    text = " ".join(event.text for event in facts.events.canceled).lower()
    for detail, phrases in (
        ("time limit", ("time limit", "timelimit", "deadline")),
        ("preemption", ("preempt",)),
        ("memory limit", ("memory",)),
        ("by a person", ("scancel", "by user", "by uid", "cancelled by", "canceled by")),
    ):
        if any(phrase in text for phrase in phrases):
            result.detail = detail
            break
    if event.node:
        result.nodes = (event.node,)
    for event in facts.events.canceled[:_MOST_LINES]:
        result.evidence.append(EvidenceLine(event.text, event.place, event.rank))
    return result


def _ended_well(facts: _Facts) -> Diagnosis | None:
    if not facts.events.endings or facts.others(facts.events.endings):
        return None
    result = Diagnosis(facts.job, kind="none", certainty="certain")
    result.reasons.append("every rank ended as it should")
    return result


def _unknown(facts: _Facts, result: Diagnosis) -> None:
    if _name_most_common_wait(facts, result) is None:
        result.waiting = tuple(sorted(facts.events.complaining))


def _name_most_common_wait(facts: _Facts, result: Diagnosis) -> OpenCall | None:
    """Fill in the call in which most ranks were, and these ranks."""
    waits = [wait for waits in facts.standings.waits.values() for wait in waits]
    if not waits:
        return None
    counts = Counter((wait.key, wait.number) for wait in waits)
    call = counts.most_common(1)[0][0]
    same = [wait for wait in waits if (wait.key, wait.number) == call]
    _name_wait(facts, result, same[0])
    result.waiting = tuple(sorted({wait.rank for wait in same}))
    return same[0]


def _add_complaints(facts: _Facts, result: Diagnosis) -> None:
    """A line for each kind of complaint, with the first place that has it."""
    for events, what in (
        (facts.events.timeouts, "a call did not end in time"),
        (facts.events.peer_lost, "another rank closed the connection, or is gone"),
    ):
        complaints = {rank: event for rank, event in events.items() if rank not in result.culprits}
        if complaints:
            rank, event = min(complaints.items(), key=lambda item: (item[1].when_ns or 0, item[0]))
            verb = "reports" if len(complaints) == 1 else "report"
            names = rank_names(facts.job, sorted(complaints))
            text = f"{names} {verb}: {what}: {event.text}"
            result.evidence.append(
                EvidenceLine(text, event.place, rank if len(complaints) == 1 else None)
            )
    for event in facts.events.canceled[:1]:
        if result.kind != "canceled":
            result.evidence.append(EvidenceLine(event.text, event.place, event.rank))


def _add_contradictions(facts: _Facts, result: Diagnosis) -> None:
    named = set(result.culprits) | set(result.candidates)
    if not named:
        return
    for rank, by in sorted(facts.events.blamed_by.items()):
        if rank not in named and rank not in facts.events.complaining:
            result.contradictions.append(
                f"{rank_names(facts.job, sorted(by))} {'names' if len(by) == 1 else 'name'} "
                f"{rank_names(facts.job, [rank])}"
            )
    for rank, cause in sorted(facts.events.causes.items()):
        if rank not in named and cause.kind != "canceled" and len(result.contradictions) < 5:
            result.contradictions.append(
                f"{rank_names(facts.job, [rank])} has a failure of its own ({cause.event.place}: "
                f"{cause.event.text}), later or while it waited"
            )
    behind = [r for r in facts.graph.roots if r not in named and result.kind != "mismatch"]
    if behind:
        result.contradictions.append(
            f"the record of {rank_names(facts.job, behind)} also ends before the call in which "
            "others are"
        )

"""Rules about calls: ranks that made different calls, that others wait for, or that wait for each
other.
"""

from __future__ import annotations

from collections import Counter

from torchcoll.core.errors import one_line
from torchcoll.core.units import counted
from torchcoll.parts.postmortem import diagnosis, job_facts
from torchcoll.parts.postmortem.evidence import ENDED_BY_ITSELF, CallSeen
from torchcoll.parts.postmortem.job_facts import MARGIN_NS, Cause
from torchcoll.parts.postmortem.standing import CallDifference, GroupStanding, find_difference

_MOST_LINES = 12  # of evidence


def different_calls(facts: job_facts.JobFacts) -> diagnosis.Diagnosis | None:
    """Ranks that made different calls with one number."""
    if not facts.differences:
        return None
    difference = min(facts.differences, key=lambda d: (_created_ns(d), d.group.key))
    group, number = difference.group, difference.number
    for rank in difference.minority or difference.all_ranks:
        if (cause := facts.causes.get(rank)) and _came_before_call(cause, group.call(rank, number)):
            return None  # an exception first, then for example the barrier of a `finally`
    return _of_difference(facts, difference)


def timed_out_in_different_calls(facts: job_facts.JobFacts) -> diagnosis.Diagnosis | None:
    """Ranks whose logs name different calls of one number as those that did not end in time.

    They are compared with each other only: where the calls of a rank are recorded, the record may
    have another name for the same call, such as barrier.
    """
    by_group: dict[str, GroupStanding] = {}
    for rank, event in facts.events.timeouts.items():
        recorded = facts.standings.groups.get(event.group or "")
        if recorded is None or event.number is None or not event.collective:
            continue
        if event.elements is None:  # not of a watchdog
            continue
        named = GroupStanding(recorded.key, recorded.group, recorded.members)
        by_group.setdefault(recorded.key, named).calls[rank][event.number] = CallSeen(
            rank,
            recorded.key,
            event.number,
            event.collective,
            event.place,
            sizes_in=((event.elements,),),
            state="started",
        )
    for _, group in sorted(by_group.items()):
        if difference := find_difference(group):
            return _of_difference(facts, difference)
    return None


def failed_in_different_calls(facts: job_facts.JobFacts) -> diagnosis.Diagnosis | None:
    """By the tracebacks of all ranks, a few failed in another call than most."""
    calls = facts.where_they_failed
    ended = {event.rank for event in facts.ends}
    if facts.job.ranks is None and not ended >= set(facts.ranks):
        return None  # there may be more ranks than any file mentions
    if set(calls) != set(facts.ranks) or facts.job.calls or facts.late_complaints - _late(facts):
        return None
    kinds = Counter(calls.values())
    names = {call.partition(" ")[0] for call in kinds}
    if len(kinds) != 2 or names & {"send", "recv", "isend", "irecv"}:
        return None
    (usual, most), (_, few) = kinds.most_common()
    if most < 2 * few and len(facts.ranks) > 2:
        return None
    odd = [rank for rank, call in calls.items() if call != usual]
    culprits = tuple(sorted(odd)) if len(facts.ranks) > 2 else tuple(facts.ranks)
    detail = "collective" if len(names) > 1 else "order"
    result = diagnosis.Diagnosis(facts.job, kind="mismatch", detail=detail, certainty="likely")
    result.culprits = culprits
    result.waiting = tuple(rank for rank in facts.ranks if rank not in culprits)
    result.collective = usual.partition(" ")[0]
    for call, _ in kinds.most_common():
        ranks = sorted(rank for rank, rank_call in calls.items() if rank_call == call)
        event = facts.events.timeouts.get(ranks[0]) or facts.events.peer_lost[ranks[0]]
        text = f"{diagnosis.rank_names(facts.job, ranks)}: failed in {call.replace(' ', ' at ')}"
        result.evidence.append(diagnosis.EvidenceLine(text, event.place))
    result.reasons.append("the tracebacks of all ranks show the call in which each was")
    return result


def _late(facts: job_facts.JobFacts) -> set[int]:
    """Ranks that found the others gone in another call than these: they were late because of it."""
    calls = facts.where_they_failed
    usual = {calls.get(rank) for rank in facts.events.timeouts}
    return {rank for rank in facts.late_complaints if calls.get(rank) not in usual}


def survived_differences(facts: job_facts.JobFacts) -> list[str]:
    """The first call of each group that ranks made differently, and that completed nevertheless:
    some backends add up what they get, whatever it is.
    """
    texts = []
    for group in facts.standings.groups.values():
        difference = find_difference(group, survived=True)
        if difference is not None and difference.what in ("collective", "size", "dtype"):
            kinds = [
                f"{diagnosis.describe_call(call)} on {diagnosis.ranks_text(ranks)}"
                for call, ranks in zip(difference.calls, difference.ranks, strict=True)
            ]
            texts.append(
                f"but call {difference.number} of group {diagnosis.group_name(group)} differs in "
                f"{difference.what}: {', '.join(kinds[:2])}: its result may be wrong"
            )
    return texts


def _of_difference(facts: job_facts.JobFacts, difference: CallDifference) -> diagnosis.Diagnosis:
    group, number = difference.group, difference.number
    culprits = difference.minority or difference.all_ranks
    usual = difference.calls[0]
    result = diagnosis.Diagnosis(
        facts.job,
        kind="missing_call" if difference.what == "skipped" else "mismatch",
        detail=None if difference.what == "skipped" else difference.what,
        culprits=culprits,
        group=diagnosis.group_name(group),
        collective=usual.collective,
        number=number,
        certainty="certain" if len(difference.all_ranks) == len(group.ranks) else "likely",
    )
    if difference.minority:
        majority = difference.ranks[0]
        result.waiting = majority
        result.reasons.append(
            f"{counted(len(majority), 'rank')} made the same call, and "
            f"{diagnosis.rank_names(facts.job, culprits)} another one"
        )
    else:
        result.reasons.append(
            "the ranks are divided evenly: their calls do not tell which of them are wrong"
        )
    for call, ranks in zip(difference.calls, difference.ranks, strict=True):
        text = f"call {number} is {diagnosis.describe_call(call)}"
        text += f", from {one_line(call.origin)}" if call.origin else ""
        if len(ranks) == 1:
            result.evidence.append(diagnosis.EvidenceLine(text, call.place, ranks[0]))
        else:
            text = f"{diagnosis.rank_names(facts.job, ranks)}: {text}"
            result.evidence.append(diagnosis.EvidenceLine(text, call.place))
    missing = [rank for rank in group.ranks if rank not in difference.all_ranks]
    if missing:
        result.reasons.append(
            f"this call of {diagnosis.rank_names(facts.job, missing)} is not recorded"
        )
    return result


def _created_ns(difference: CallDifference) -> int:
    return min((call.created_ns or 0 for call in difference.calls), default=0)


def _came_before_call(cause: Cause, call: CallSeen | None) -> bool:
    """Whether a rank failed before it made a call, by its own clock."""
    if cause.kind not in ENDED_BY_ITSELF or call is None:
        return False
    when_ns = cause.event.when_ns
    return when_ns is not None and call.created_ns is not None and when_ns < call.created_ns


def reported_mismatch(facts: job_facts.JobFacts) -> diagnosis.Diagnosis | None:
    """torch or the library found the mismatch itself; the calls are not recorded."""
    events = facts.events.mismatches
    quoted = [f for f in facts.job.texts.findings if f.text.cause == "mismatch"]
    if not events or (quoted and len({event.rank for event in events}) < 2 and not facts.job.calls):
        return None  # text_rules.proven_by_text quotes both calls
    pairs = [{event.rank, *event.about} for event in events if event.rank is not None]
    involved = {rank for pair in pairs for rank in pair if rank is not None}
    in_all = set.intersection(*(set(pair) for pair in pairs)) if pairs else set()
    result = diagnosis.Diagnosis(facts.job, kind="mismatch", certainty="likely")
    event = events[0]
    result.collective, result.number = event.collective, event.number
    group = facts.standings.groups.get(event.group or "")
    result.group = diagnosis.group_name(group) if group else event.group
    texts = [event.text.lower() for event in events]
    truncated = [text for text in texts if "message truncated" in text]
    text = " ".join(text for text in texts if text not in truncated)
    for detail in ("dtype", "size", "shape", "length", "order"):
        if detail in text:
            result.detail = {"shape": "size", "length": "size"}.get(detail, detail)
            break
    if truncated:
        result.reasons.append(
            "a message that is too long follows from any mismatch: another collective, another "
            "size or another order"
        )
    named = any(event.about for event in events)
    if named and len(in_all) == 1 and len(pairs) > 1:
        result.culprits = tuple(in_all)
        result.reasons.append("every report of a mismatch names it")
    elif named:
        result.culprits = tuple(sorted(involved))
        result.reasons.append("the reports name these ranks, and not which of them is wrong")
    elif len(facts.ranks) == 2:
        result.culprits = tuple(facts.ranks)
        result.reasons.append("two ranks disagree: the reports do not tell which is wrong")
    elif facts.graph.roots:
        result.culprits = facts.graph.roots
        job_facts.name_call(facts, result, facts.graph.roots)
        result.reasons.append("the others wait for it in a call that it did not make")
    else:
        agreeing = _agreeing_ranks(facts)
        suspects = facts.others(agreeing) if agreeing else tuple(facts.ranks)
        if len(suspects) == 1:
            result.culprits = suspects
        else:
            result.candidates, result.certainty = suspects, "possible"
        if agreeing:
            names = diagnosis.rank_names(facts.job, agreeing)
            result.reasons.append(f"the recorded calls of {names} agree with each other")
            job_facts.name_most_common_wait(facts, result)
        else:
            result.reasons.append(
                "a rank that reports a mismatch need not be the one that is wrong"
            )
    for event in events[:_MOST_LINES]:
        result.evidence.append(diagnosis.EvidenceLine(event.text, event.place, event.rank))
    return result


def _agreeing_ranks(facts: job_facts.JobFacts) -> tuple[int, ...]:
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


def waited_for(facts: job_facts.JobFacts) -> diagnosis.Diagnosis | None:
    """Ranks that have not made a call that the others are in, and wait for nobody themselves."""
    roots = facts.graph.roots
    if not roots:
        return None
    wait = facts.graph.wait_for(roots)
    assert wait is not None
    group = facts.standings.groups.get(wait.key)
    result = diagnosis.Diagnosis(facts.job, kind="stopped", culprits=roots)
    job_facts.name_call(facts, result, roots)
    ahead: tuple[int, ...] = ()
    if group is not None and wait.peer is None:
        ahead = tuple(r for r, last in sorted(group.last.items()) if last >= wait.number)
    if ahead and len(roots) >= 2 * len(ahead):
        if not all(rank in facts.events.endings for rank in roots):
            # They may wait for each other in a way that is not recorded, such as messages.
            result.culprits, result.candidates, result.certainty = (), roots, "possible"
            result.reasons.append("their records end before the call in which the others are")
            job_facts.add_standing(facts, result, group, wait)
            return result
        # Few ranks made a call that many others did not make.
        result.kind, result.culprits, result.waiting = "missing_call", ahead, ahead
        result.certainty = "likely"
        result.reasons.append(f"the other {counted(len(roots), 'rank')} ended without this call")
        job_facts.add_standing(facts, result, group, wait)
        return result
    sure = wait.event is not None or (wait.call is not None and wait.call.reliable_state)
    sure = sure or set(ahead) <= facts.events.complaining
    alive = facts.job.alive_ns
    stopped = roots[0] in alive and max(alive.values()) - alive[roots[0]] > MARGIN_NS
    first = facts.first_open(wait)
    names = diagnosis.rank_names(facts.job, roots)
    lasts = [group.last.get(rank, 0) for rank in roots] if group else [0]
    if first.number < wait.number and min(lasts) >= first.number:
        # The others issued calls ahead, and in the call that stopped them all ranks may be.
        sure = sure and stopped
        result.reasons.append(
            f"{names} had made this call too; the record ends before call {wait.number}, which the "
            "others had issued"
        )
    else:
        result.reasons.append(f"the record of {names} ends before the call in which the others are")
    result.certainty = "certain" if sure and len(roots) == 1 else "likely"
    if not sure:
        result.reasons.append("the source does not record which calls completed")
    job_facts.refine_by_events(facts, result, roots)
    job_facts.add_standing(facts, result, group, first)
    if stopped:
        result.reasons.append(job_facts.last_ran(facts, roots[:1]))
    return result


def wait_for_each_other(facts: job_facts.JobFacts) -> diagnosis.Diagnosis | None:
    """Ranks that wait for each other in different groups."""
    cycle = facts.graph.cycle
    if not cycle:
        return None
    edges = [edge for edge in facts.graph.edges if edge.wait.rank in cycle]
    edges = [edge for edge in edges if edge.behind & set(cycle)]
    result = diagnosis.Diagnosis(facts.job, kind="mismatch", detail="group", culprits=cycle)
    messages = all(edge.wait.peer is not None for edge in edges)
    keys = {edge.wait.key for edge in edges}
    if messages or len(keys) == 1:
        result.detail = "order"
    reliable = all(e.wait.event or (e.wait.call and e.wait.call.reliable_state) for e in edges)
    result.certainty = "certain" if reliable else "likely"
    result.waiting = tuple(rank for rank in facts.graph.waiting if rank not in cycle)
    result.reasons.append("each of these ranks waits for another one of them")
    job_facts.name_wait(facts, result, edges[0].wait)
    for edge in edges[:_MOST_LINES]:
        call = edge.wait.call
        if call is None:
            continue
        awaited = diagnosis.rank_names(facts.job, sorted(edge.behind & set(cycle)))
        group = facts.standings.groups.get(edge.wait.key)
        text = f"it waits for {awaited} in {diagnosis.call_name(call, group)}"
        result.evidence.append(diagnosis.EvidenceLine(text, call.place, edge.wait.rank))
    return result

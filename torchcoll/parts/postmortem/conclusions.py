"""The rules: what the evidence of a job proves. Each returns None where it proves nothing."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Collection

from torchcoll.core.errors import one_line
from torchcoll.core.units import counted
from torchcoll.parts.postmortem import diagnosis
from torchcoll.parts.postmortem.evidence import ENDED_BY_ITSELF, JobEvent
from torchcoll.parts.postmortem.job_facts import MARGIN_NS, JobFacts, in_user_code
from torchcoll.parts.postmortem.standing import CallDifference, find_difference

_MOST_LINES = 12  # of evidence


def different_calls(facts: JobFacts) -> diagnosis.Diagnosis | None:
    """Ranks that made different calls with one number."""
    if not facts.differences:
        return None
    difference = min(facts.differences, key=lambda d: (_created_ns(d), d.group.key))
    for rank in difference.minority(facts.standings.groups) or difference.all_ranks:
        cause = facts.causes.get(rank)
        call = difference.group.call(rank, difference.number)
        failed_ns = cause.event.when_ns if cause and cause.kind in ENDED_BY_ITSELF else None
        if failed_ns and call and failed_ns < (call.created_ns or 0):
            return None  # an exception first, then for example the barrier of a `finally`
    return _of_difference(facts, difference)


def failed_in_different_calls(facts: JobFacts) -> diagnosis.Diagnosis | None:
    """By the tracebacks of all ranks, a few failed in another call than most."""
    calls = facts.where_they_failed
    ended = {event.rank for event in facts.ends}
    if facts.job.ranks is None and not ended >= set(facts.ranks):
        return None  # there may be more ranks than any file mentions
    if set(calls) != set(facts.ranks) or facts.job.calls:
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
    result.calls = {rank: (None, call.replace(" ", " at ")) for rank, call in calls.items()}
    for call, _ in kinds.most_common():
        ranks = sorted(rank for rank, rank_call in calls.items() if rank_call == call)
        event = facts.events.timeouts.get(ranks[0]) or facts.events.peer_lost[ranks[0]]
        text = f"{facts.names(ranks)}: failed in {call.replace(' ', ' at ')}"
        result.cite(text, event.place)
    result.reasons.append("the tracebacks of all ranks show the call in which each was")
    return result


def survived_differences(facts: JobFacts) -> list[str]:
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


def _of_difference(facts: JobFacts, difference: CallDifference) -> diagnosis.Diagnosis:
    group, number = difference.group, difference.number
    minority = difference.minority(facts.standings.groups)
    culprits = minority or difference.all_ranks
    usual = difference.calls[0]
    result = diagnosis.Diagnosis(
        facts.job,
        kind="mismatch",
        detail=difference.what,
        culprits=culprits,
        group=diagnosis.group_name(group),
        collective=usual.collective,
        number=number,
        certainty="certain" if len(difference.all_ranks) == len(group.ranks) else "likely",
    )
    if minority:
        result.waiting = tuple(rank for rank in difference.all_ranks if rank not in minority)
        where = ""
        if len(result.waiting) <= len(minority):
            result.certainty, where = "likely", ", as the groups beside theirs did"
        result.reasons.append(
            f"{counted(len(result.waiting), 'rank')} made the same call{where}, and "
            f"{facts.names(culprits)} another one"
        )
    else:
        result.reasons.append(
            "the ranks are divided evenly: their calls do not tell which of them are wrong"
        )
    for call, ranks in zip(difference.calls, difference.ranks, strict=True):
        text = f"call {number} is {diagnosis.describe_call(call)}"
        result.calls |= dict.fromkeys(ranks, (number, diagnosis.describe_call(call)))
        text += f", from {one_line(call.origin)}" if call.origin else ""
        if len(ranks) == 1:
            result.cite(text, call.place, ranks[0])
        else:
            text = f"{facts.names(ranks)}: {text}"
            result.cite(text, call.place)
    missing = [rank for rank in group.ranks if rank not in difference.all_ranks]
    if missing:
        result.reasons.append(f"this call of {facts.names(missing)} is not recorded")
    return result


def _created_ns(difference: CallDifference) -> int:
    return min((call.created_ns or 0 for call in difference.calls), default=0)


def reported_mismatch(facts: JobFacts) -> diagnosis.Diagnosis | None:
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
        facts.name_call(result, facts.graph.roots)
        result.reasons.append("the others wait for it in a call that it did not make")
    else:
        result.candidates, result.certainty = tuple(facts.ranks), "possible"
        result.reasons.append("a rank that reports a mismatch need not be the one that is wrong")
    result.quote(events[:_MOST_LINES])
    return result


def waited_for(facts: JobFacts) -> diagnosis.Diagnosis | None:
    """Ranks that have not made a call that the others are in, and wait for nobody themselves."""
    roots = facts.graph.roots
    if not roots:
        return None
    wait = facts.graph.wait_for(roots)
    assert wait is not None
    group = facts.standings.groups.get(wait.key)
    result = diagnosis.Diagnosis(facts.job, kind="stopped", culprits=roots)
    facts.name_call(result, roots)
    ahead: tuple[int, ...] = ()
    if group is not None and wait.peer is None:
        ahead = tuple(r for r, last in sorted(group.last.items()) if last >= wait.number)
    if ahead and len(roots) >= 2 * len(ahead):
        if not all(rank in facts.events.endings for rank in roots):
            # They may wait for each other in a way that is not recorded, such as messages.
            result.culprits, result.candidates, result.certainty = (), roots, "possible"
            result.reasons.append("their records end before the call in which the others are")
            facts.add_standing(result, group, wait)
            return result
        # Few ranks made a call that many others did not make.
        result.kind, result.culprits, result.waiting = "missing_call", ahead, ahead
        result.certainty = "likely"
        result.reasons.append(f"the other {counted(len(roots), 'rank')} ended without this call")
        facts.add_standing(result, group, wait)
        return result
    sure = wait.event is not None or (wait.call is not None and wait.call.reliable_state)
    sure = sure or set(ahead) <= facts.events.complaining
    alive = facts.job.alive_ns
    stopped = roots[0] in alive and max(alive.values()) - alive[roots[0]] > MARGIN_NS
    first = facts.first_open(wait)
    names = facts.names(roots)
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
    facts.refine_by_events(result, roots)
    facts.add_standing(result, group, first)
    if stopped:
        result.reasons.append(facts.last_ran(roots[:1]))
    return result


def wait_for_each_other(facts: JobFacts) -> diagnosis.Diagnosis | None:
    """Ranks that wait for each other in different groups."""
    cycle = facts.graph.cycle
    if not cycle:
        return None
    edges = [e for e in facts.graph.edges if e.wait.rank in cycle and e.behind & set(cycle)]
    result = diagnosis.Diagnosis(facts.job, kind="mismatch", detail="group", culprits=cycle)
    if all(e.wait.peer is not None for e in edges) or len({e.wait.key for e in edges}) == 1:
        result.detail = "order"
    reliable = all(e.wait.event or (e.wait.call and e.wait.call.reliable_state) for e in edges)
    result.certainty = "certain" if reliable else "likely"
    result.waiting = tuple(rank for rank in facts.graph.waiting if rank not in cycle)
    result.reasons.append("each of these ranks waits for another one of them")
    facts.name_wait(result, edges[0].wait)
    for edge in edges[:_MOST_LINES]:
        if call := edge.wait.call:
            awaited = facts.names(edge.behind & set(cycle))
            group = facts.standings.groups.get(edge.wait.key)
            text = f"it waits for {awaited} in {diagnosis.call_name(call, group)}"
            result.cite(text, call.place, edge.wait.rank)
    return result


# How ranks ended.


def ended_by_itself(facts: JobFacts) -> diagnosis.Diagnosis | None:
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
    result = diagnosis.Diagnosis(facts.job, kind=first.kind, culprits=culprits)
    result.detail = first.detail if len(same) == len(causes) else None
    facts.name_call(result, culprits, [cause.event for cause in causes.values()])
    for rank, cause in sorted(causes.items())[:_MOST_LINES]:
        result.cite(cause.event.text, cause.event.place, rank)
    supported = bool(awaited & set(culprits)) or _all_blame(facts, culprits)
    alone = next((e for e in facts.ends if e.alone_from is not None and e.rank in causes), None)
    silent = [r for r in facts.silent if not alone or r < (alone.alone_from or 0)]
    known_world = facts.job.ranks is not None or len(facts.ranks) > len(culprits)
    heard = {*culprits, *facts.events.complaining, *facts.graph.waiting}
    accounted = known_world and heard.union({*facts.silent} - {*silent}).issuperset(facts.ranks)
    if len(causes) == 1:
        # torchrun speaks of its own host: ranks of later hosts may have failed before.
        certain = supported or (accounted and not alone)
        result.certainty = "certain" if certain else "likely"
        if supported:
            result.reasons.append("the others wait for it, or name it")
        elif accounted and alone:
            where = f" on {one_line(alone.node)}" if alone.node else ""
            result.reasons.append(f"torchrun{where} reports no other failure")
        elif accounted:
            result.reasons.append("all other ranks only report that another one was missing")
        else:
            result.reasons.append("it is the only rank with a failure of its own")
            if silent:
                text = f"no file says anything about {facts.names(silent)}"
                result.reasons.append(f"{text}, which may have failed before")
    elif len(same) == len(facts.ranks):
        result.certainty = "likely"
        result.reasons.append("all ranks failed in the same way")
    else:
        result.certainty = "likely" if len(same) == len(causes) else "possible"
        result.reasons.append("the times do not tell which of them failed first")
    return result


def _all_blame(facts: JobFacts, ranks: Collection[int]) -> bool:
    blamed = {rank for rank, by in facts.events.blamed_by.items() if by - set(ranks)}
    return bool(blamed) and blamed <= set(ranks)


def link(facts: JobFacts) -> diagnosis.Diagnosis | None:
    """A device or a driver reported a fault of a connection."""
    job, links = facts.job, facts.events.links
    if not links:
        return None
    result = diagnosis.Diagnosis(job, kind="link", certainty="likely")
    hosts: list[str] = []
    for event in links:
        node = event.node or (job.nodes.get(event.rank, "") if event.rank is not None else "")
        hosts += [node, *event.addresses]
    result.nodes = tuple(dict.fromkeys(host for host in hosts if host))
    facts.name_most_common_wait(result)
    result.quote(links[:_MOST_LINES])
    return result


def canceled(facts: JobFacts) -> diagnosis.Diagnosis | None:
    """The scheduler or a person ended the whole job."""
    if not facts.events.canceled:
        return None
    event = facts.events.canceled[0]
    result = diagnosis.Diagnosis(facts.job, kind="canceled", certainty="certain")
    text = " ".join(event.text for event in facts.events.canceled).lower()
    for detail, phrases in (
        ("time limit", ("time limit", "timelimit", "timeout", "deadline")),
        ("preemption", ("preempt",)),
        ("memory limit", ("memory",)),
        ("by a person", ("scancel", "by user", "by uid", "cancelled by", "canceled by")),
    ):
        if any(phrase in text for phrase in phrases):
            result.detail = detail
            break
    if event.node:
        result.nodes = (event.node,)
    result.quote(facts.events.canceled[:_MOST_LINES])
    return result


def ended_well(facts: JobFacts) -> diagnosis.Diagnosis | None:
    if not facts.events.endings or facts.others(facts.events.endings):
        return None
    result = diagnosis.Diagnosis(facts.job, kind="none", certainty="certain")
    result.reasons.append("every rank ended as it should")
    return result


def ended_without_a_word(facts: JobFacts) -> diagnosis.Diagnosis | None:
    """A rank that ended with an exit code or by abort(), or left early with 0, and wrote no error,
    while the others only lost it or were ended by the launcher.

    Of a rank whose own lines are not in the files, the error may stand in them.
    """
    rows = {event.rank: event for event in facts.ends if event.rank is not None}
    complaining = facts.events.complaining | facts.mismatching
    failed = {rank for rank, event in rows.items() if _failed(event)}
    mute = sorted((failed - complaining) & facts.spoke)
    mute = [rank for rank in mute if rank not in facts.events.endings]
    if not mute and facts.has_table:
        gone = facts.spoke - rows.keys() - complaining
        others = set(facts.ranks) - gone
        if len(gone) == 1 and others & complaining and others <= rows.keys():
            return _left_early(facts, next(iter(gone)))
    if len(mute) != 1 or not facts.events.complaining - set(mute) | (rows.keys() - failed):
        return None
    rank, event = mute[0], rows[mute[0]]
    if any(r not in complaining and r != rank for r in failed):
        return None  # another rank failed, and its lines are missing
    aborted = event.signal == signal.SIGABRT
    result = diagnosis.Diagnosis(facts.job, kind="killed" if aborted else "exit", culprits=(rank,))
    result.detail = "SIGABRT" if aborted else f"exit code {event.exit_code}"
    result.certainty = "likely"
    facts.name_call(result, (rank,))
    result.cite(event.text, event.place, rank)
    result.reasons.append("it wrote no error; the other ranks only lost it, or were ended later")
    return result


def _failed(event: JobEvent) -> bool:
    """Whether the launcher says that a rank ended badly for a reason of its own."""
    return (event.exit_code or 0) > 0 or event.signal == signal.SIGABRT


def _left_early(facts: JobFacts, rank: int) -> diagnosis.Diagnosis:
    result = diagnosis.Diagnosis(facts.job, "missing_call", culprits=(rank,), certainty="likely")
    facts.name_call(result, (rank,))
    text = "the launcher does not have it among the ranks that failed: it ended with exit code 0"
    result.reasons.append(text)
    return result


# Ranks that did not come: stopped, in other code, or without any record.


def did_not_end(facts: JobFacts) -> diagnosis.Diagnosis | None:
    """A rank that torchrun had to kill: SIGTERM had not ended it, while it ended other ranks."""
    forced = {event.rank for event in facts.ends if event.forced and event.rank is not None}
    if len(forced) != 1 or not facts.events.complaining or forced & facts.events.complaining:
        return None
    culprits = tuple(forced)
    result = diagnosis.Diagnosis(facts.job, "stopped", culprits=culprits, certainty="likely")
    facts.name_call(result, culprits)
    event = next(event for event in facts.ends if event.forced)
    result.quote([event])
    result.reasons.append("SIGTERM did not end it: it is stopped, or hangs in a driver")
    return result


def elsewhere(facts: JobFacts) -> diagnosis.Diagnosis | None:
    """By their stacks, some ranks wait in communication and others do not."""
    stacks = facts.events.stacks
    away = tuple(rank for rank, stack in sorted(stacks.items()) if in_user_code(stack))
    waiting = tuple(rank for rank in sorted(stacks) if rank not in away)
    if not waiting or not away or len(away) > len(waiting):
        return None
    if facts.shown_to_wait & set(away):
        return None  # taken before or after the job stood still
    result = diagnosis.Diagnosis(facts.job, kind="user_code", culprits=away, certainty="likely")
    facts.name_call(result, away)
    result.waiting = tuple(sorted({*result.waiting, *waiting} - set(away)))
    result.reasons.append("its stack is in user code, and those of the others are not")
    for rank in (*away, *waiting[:1]):
        result.cite(stacks[rank].text, stacks[rank].place, rank)
    return result


def unanswered(facts: JobFacts) -> diagnosis.Diagnosis | None:
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
    result = diagnosis.Diagnosis(facts.job, kind="stopped", certainty="likely")
    chosen = tuple(sorted(suspects))
    facts.name_call(result, chosen)
    if len(chosen) == 1:
        result.culprits = chosen
        result.reasons.append(
            "NCCL's RAS got no answer from its process: it ended, is stopped, or is not reachable"
        )
    else:
        result.candidates, result.certainty = chosen, "possible"
        names = facts.names(missing)
        result.reasons.append(
            f"NCCL's RAS got no answer from {names}, and does not say which failed first"
        )
        if suspects != missing:
            others = facts.names(suspects - missing)
            result.reasons.append(f"NCCL's RAS reports an error of {others}, or fewer operations")
    _add_wait(facts, result, chosen)
    return result


def _add_wait(facts: JobFacts, result: diagnosis.Diagnosis, ranks: Collection[int]) -> None:
    """Lines about the call in which others wait for these ranks, if one is recorded."""
    wait = facts.graph.wait_for(ranks)
    if wait is not None:
        group = facts.standings.groups.get(wait.key)
        facts.add_standing(result, group, facts.first_open(wait))


def _cleared(facts: JobFacts) -> set[int]:
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


def _odd_ones(facts: JobFacts, silent: tuple[int, ...]) -> tuple[int, ...]:
    """The silent rank, and the ranks that failed in another call than most."""
    calls = facts.where_they_failed
    usual, _ = Counter(calls.values()).most_common(1)[0] if calls else ("", 0)
    return tuple(sorted({*silent, *(rank for rank, call in calls.items() if call != usual)}))


def left_nothing(facts: JobFacts) -> diagnosis.Diagnosis | None:
    """Nobody is behind by the records: the cause is among the ranks that are not shown to wait."""
    events = facts.events
    if not events.complaining and not facts.shown_to_wait:
        return None
    suspects = facts.others(_cleared(facts))
    blamed = [r for r in facts.others(events.complaining) if events.blamed_by.get(r)]
    without_complaint = facts.others(events.complaining)
    rings = {rank for f in facts.job.files if f.what == "call ring" for rank in f.ranks}
    heard = facts.quiet | facts.spoke | rings  # ranks whose complaint would be in the files
    result = diagnosis.Diagnosis(facts.job, kind="stopped", certainty="likely")
    chosen: tuple[int, ...] = suspects
    if len(blamed) == 1:
        chosen = tuple(blamed)
        result.reasons.append("the complaints of the others name it, and it has none itself")
    elif len(without_complaint) == 1 and without_complaint[0] in heard:
        chosen = without_complaint
        calls = {facts.where_they_failed.get(rank, "") for rank in events.complaining}
        if len(calls) > 1 or len(events.complaining) < 2:
            # The launcher may have ended it just before it gave up as well.
            chosen = tuple(facts.ranks) if len(facts.ranks) < 3 else _odd_ones(facts, chosen)
        result.reasons.append("its log or record is the only one without a complaint")
    elif facts.job.ranks is None and not facts.has_table:
        return None  # there may be more ranks than any file mentions
    elif len(suspects) == 1 and suspects[0] in {*events.timeouts, *facts.waiting_by_stack}:
        return None  # each waits for the others
    elif len(suspects) == 1:
        result.reasons.append("all other ranks are recorded in the same call, waiting")
    if not chosen or len(chosen) == len(facts.ranks):
        return None
    facts.name_call(result, chosen)
    if len(chosen) == 1:
        result.culprits = chosen
    else:
        result.candidates, result.certainty = chosen, "possible"
        result.reasons.append("the other ranks are recorded in the same call, waiting")
    silent = [rank for rank in chosen if rank in facts.silent]
    if silent:
        result.reasons.append(f"no file says anything about {facts.names(silent)}")
    _add_wait(facts, result, chosen)
    if result.culprits:
        facts.refine_by_events(result, result.culprits)
    return result

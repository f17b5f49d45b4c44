"""Rules about how ranks ended: by themselves, without a word, by a link, or with their job."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Collection

from torchcoll.parts.postmortem.diagnosis import Diagnosis, EvidenceLine, rank_names
from torchcoll.parts.postmortem.evidence import JobEvent
from torchcoll.parts.postmortem.job_facts import JobFacts, name_call, name_most_common_wait

_MOST_EVENT_LINES = 12  # of evidence


def ended_by_itself(facts: JobFacts) -> Diagnosis | None:
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
    name_call(facts, result, culprits, [cause.event for cause in causes.values()])
    for rank, cause in sorted(causes.items())[:_MOST_EVENT_LINES]:
        result.evidence.append(EvidenceLine(cause.event.text, cause.event.place, rank))
    supported = bool(awaited & set(culprits)) or _all_blame(facts, culprits)
    known_world = facts.job.ranks is not None or len(facts.ranks) > len(culprits)
    accounted = known_world and all(
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


def _all_blame(facts: JobFacts, ranks: Collection[int]) -> bool:
    blamed = {rank for rank, by in facts.events.blamed_by.items() if by - set(ranks)}
    return bool(blamed) and blamed <= set(ranks)


def reported_link(facts: JobFacts) -> Diagnosis | None:
    return link(facts) if facts.events.links else None


def link(facts: JobFacts) -> Diagnosis | None:
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
    common = name_most_common_wait(facts, result)
    group = facts.standings.groups.get(common.key) if common else None
    if group is not None and len(result.waiting) == len(group.ranks):
        result.reasons.append("all ranks of the group are in the same call")
    if events.links:
        result.certainty = "likely"
        for event in events.links[:_MOST_EVENT_LINES]:
            result.evidence.append(EvidenceLine(event.text, event.place, event.rank))
    elif not result.nodes:
        return None
    return result


def canceled(facts: JobFacts) -> Diagnosis | None:
    """The scheduler or a person ended the whole job."""
    if not facts.events.canceled:
        return None
    event = facts.events.canceled[0]
    result = Diagnosis(facts.job, kind="canceled", certainty="certain")
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
    for event in facts.events.canceled[:_MOST_EVENT_LINES]:
        result.evidence.append(EvidenceLine(event.text, event.place, event.rank))
    return result


def ended_well(facts: JobFacts) -> Diagnosis | None:
    if not facts.events.endings or facts.others(facts.events.endings):
        return None
    result = Diagnosis(facts.job, kind="none", certainty="certain")
    result.reasons.append("every rank ended as it should")
    # A run that completed can still have cases that failed.
    for event in facts.events.endings.values():
        if event.exit_code:
            result.detail = f"exit code {event.exit_code}"
            result.evidence.append(EvidenceLine(event.text, event.place))
            break
    return result


def ended_without_a_word(facts: JobFacts) -> Diagnosis | None:
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
    result = Diagnosis(facts.job, kind="killed" if aborted else "exit", culprits=(rank,))
    result.detail = "SIGABRT" if aborted else f"exit code {event.exit_code}"
    result.certainty = "likely"
    name_call(facts, result, (rank,))
    result.evidence.append(EvidenceLine(event.text, event.place, rank))
    result.reasons.append("it wrote no error; the other ranks only lost it, or were ended later")
    return result


def _failed(event: JobEvent) -> bool:
    """Whether the launcher says that a rank ended badly for a reason of its own."""
    return (event.exit_code or 0) > 0 or event.signal == signal.SIGABRT


def _left_early(facts: JobFacts, rank: int) -> Diagnosis:
    result = Diagnosis(facts.job, kind="missing_call", culprits=(rank,), certainty="likely")
    name_call(facts, result, (rank,))
    text = "the launcher does not have it among the ranks that failed: it ended with exit code 0"
    result.reasons.append(text)
    return result

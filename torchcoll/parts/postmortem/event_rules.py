"""Rules about events: ranks that ended by themselves, links, and jobs that somebody ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from torchcoll.parts.postmortem.diagnosis import Diagnosis, EvidenceLine
from torchcoll.parts.postmortem.job_facts import JobFacts, name_call, name_most_common_wait
from torchcoll.parts.postmortem.sentences import (
    rank_names,
)

_MOST_LINES = 12  # of evidence


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
        for event in events.links[:_MOST_LINES]:
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
    for event in facts.events.canceled[:_MOST_LINES]:
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

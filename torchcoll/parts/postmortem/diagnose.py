"""Concludes from the evidence of one job what happened first, to which rank.

The rules are tried in the order of ``diagnose``; the first that concludes something decides. A rank
that only reports that another one was missing is never the cause. Where the evidence leaves a
choice, all that it allows are candidates. Rules about events are here: ranks that ended by
themselves, links, and jobs that somebody ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from torchcoll.parts.postmortem import absence_rules, call_rules, text_rules
from torchcoll.parts.postmortem.diagnosis import (
    Diagnosis,
    EvidenceLine,
    headline,
    rank_names,
    remedy_of,
)
from torchcoll.parts.postmortem.evidence import RAS_KINDS, JobEvidence
from torchcoll.parts.postmortem.job_facts import (
    JobFacts,
    name_call,
    name_most_common_wait,
    waits_in_communication,
)
from torchcoll.parts.postmortem.standing import Standings

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


_MOST = 4
_WHAT_ENDED = (
    "what ended processes: dmesg -T of the nodes, and sacct -j JOB or kubectl describe pod"
)


def what_to_collect(job: JobEvidence, diagnosis: Diagnosis, standings: Standings) -> list[str]:
    """What to collect next time, so that the evidence decides what it left open.

    Returns the most telling first; [] where the answer is certain and says why.
    """
    lines = []
    if diagnosis.kind in ("stopped", "unknown") and not _has_endings(job, diagnosis):
        lines.append(
            "what the launcher itself printed (torchrun, srun or mpirun, on each node): it has the "
            "exit code or signal of each rank"
        )
    if diagnosis.certainty == "certain":
        if diagnosis.kind == "stopped":
            lines.append(_WHAT_ENDED)
        return lines
    logged = {event.rank for event in job.events if event.kind not in RAS_KINDS}
    missing = [rank for rank in standings.ranks if rank not in standings.recorded]
    reliable = any(call.reliable_state for call in job.calls)
    if not standings.recorded or not reliable:
        lines.append(
            "the last calls of every rank: torchcoll.capture(..., on_hang='dump'), or for NCCL "
            "TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 (torch 2.6 to 2.8: "
            "TORCH_NCCL_TRACE_BUFFER_SIZE)"
        )
    elif missing:
        lines.append("the dumps of all ranks: TORCH_FR_DUMP_TEMP_FILE in a folder that all share")
    if any(rank not in logged for rank in standings.ranks):
        lines.append("stderr of every rank: torchrun --log-dir LOGS --redirects 3")
    sampled = {event.rank for event in job.events_of("stack")}
    doubtful = diagnosis.kind in ("stopped", "slow", "unknown", "user_code")
    if doubtful and not sampled.issuperset(standings.ranks):
        lines.append("what Python does while the job hangs: py-spy dump --pid PID on each node")
    if diagnosis.kind in ("stopped", "killed", "unknown", "link"):
        lines.append(_WHAT_ENDED)
    if diagnosis.kind == "link":
        lines.append("NCCL_DEBUG=WARN, and the port counters of both nodes")
    return lines[:_MOST]


def _has_endings(job: JobEvidence, diagnosis: Diagnosis) -> bool:
    """Whether a file says how the ranks in question ended; of an unknown rank, how any ended."""
    ended = {event.rank for event in job.events_of("exit", "killed", "canceled", "ending")}
    return bool(ended & set(diagnosis.culprits or diagnosis.candidates or ended))


_MOST_LINES = 4  # of one kind
_UNDECIDED = ("killed", "out_of_memory", "disk_full", "node_failed", "exception", "exit", "stack")


def diagnose(job: JobEvidence) -> Diagnosis:
    facts = JobFacts(job)
    rules = (
        call_rules.different_calls,
        ended_by_itself,
        call_rules.timed_out_in_different_calls,
        call_rules.reported_mismatch,
        text_rules.proven_by_text,
        call_rules.waited_for,
        call_rules.wait_for_each_other,
        reported_link,
        absence_rules.stopped_running,
        absence_rules.broke_off,
        absence_rules.came_late,
        absence_rules.elsewhere,
        absence_rules.unanswered,
        absence_rules.left_nothing,
        text_rules.missing_from_reports,
        link,
        text_rules.hinted_by_text,
        canceled,
        ended_well,
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
    _add_ras(facts, diagnosis)
    _add_contradictions(facts, diagnosis)
    diagnosis.collect_next = what_to_collect(job, diagnosis, facts.standings)
    diagnosis.headline = headline(diagnosis, facts.standings)
    diagnosis.remedy = diagnosis.remedy or remedy_of(diagnosis)
    return diagnosis


def _unknown(facts: JobFacts, result: Diagnosis) -> None:
    counts = next((event for event in facts.events.ras if event.kind == "unequal_counts"), None)
    if counts is not None:
        result.says = f"the evidence does not tell what happened first; {counts.text}"
        result.remedy = (
            "take stacks of ranks with each count while it hangs (py-spy dump): a rank that has "
            "launched more operations may wait for those that have launched fewer"
        )
    if name_most_common_wait(facts, result) is None:
        result.waiting = tuple(sorted(facts.events.complaining))
    _add_undecided(facts, result)


def _add_undecided(facts: JobFacts, result: Diagnosis) -> None:
    """Lines with how processes ended and where they stood, which no rule could attribute to a rank
    or to a cause.
    """
    events = [
        event
        for event in facts.job.events_of(*_UNDECIDED)
        if not (event.kind == "stack" and waits_in_communication(event))
        and not (event.kind == "exit" and not event.exit_code)
    ]
    for event in sorted(events, key=lambda event: _UNDECIDED.index(event.kind))[:_MOST_LINES]:
        text = event.text
        if event.rank is None and event.pid is not None and str(event.pid) not in text:
            text = f"process {event.pid}: {text}"
        result.evidence.append(EvidenceLine(text, event.place, event.rank))


def _add_complaints(facts: JobFacts, result: Diagnosis) -> None:
    """A line for each kind of complaint, with the first place that has it."""
    for events, what in (
        (facts.events.timeouts, "a call did not end in time"),
        (facts.events.peer_lost, "another rank closed the connection, or is gone"),
    ):
        complaints = {rank: event for rank, event in events.items() if rank not in result.culprits}
        if complaints:
            rank, event = min(complaints.items(), key=lambda item: (item[1].when_ns or 0, item[0]))
            if len(complaints) == 1:
                line = EvidenceLine(f"{what}: {event.text}", event.place, rank)
            else:
                names = rank_names(facts.job, sorted(complaints))
                line = EvidenceLine(f"{names} report: {what}: {event.text}", event.place)
            result.evidence.append(line)
    for event in facts.events.canceled[:1]:
        if result.kind != "canceled":
            result.evidence.append(EvidenceLine(event.text, event.place, event.rank))


def _add_ras(facts: JobFacts, result: Diagnosis) -> None:
    """Lines with what NCCL's RAS reports, if the job did not end as it should."""
    if result.kind in ("none", "canceled"):
        return
    events = facts.events
    if events.unanswered:
        ranks = [rank for rank in events.unanswered if rank is not None]
        event = next(iter(events.unanswered.values()))
        text = event.text
        if len(ranks) == len(events.unanswered):
            text = f"NCCL's RAS got no answer from {rank_names(facts.job, ranks)}"
        result.evidence.append(EvidenceLine(text, event.place))
    for event in events.ras[:_MOST_LINES]:
        if event.kind != "all_answered" or result.kind == "unknown":
            result.evidence.append(EvidenceLine(event.text, event.place))


def _add_contradictions(facts: JobFacts, result: Diagnosis) -> None:
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
    missing = [rank for rank in facts.events.unanswered if rank is not None and rank not in named]
    missing = [rank for rank in missing if rank not in facts.events.complaining]
    if missing and not facts.events.endings.keys() >= set(missing):
        result.contradictions.append(
            f"NCCL's RAS got no answer from {rank_names(facts.job, missing)}"
        )
    behind = [r for r in facts.graph.roots if r not in named and result.kind != "mismatch"]
    if behind:
        result.contradictions.append(
            f"the record of {rank_names(facts.job, behind)} also ends before the call in which "
            "others are"
        )

"""Concludes from the evidence of one job what happened first, to which rank.

The rules are tried in the order of ``diagnose``; the first that concludes something decides. A rank
that only reports that another one was missing is never the cause. Where the evidence leaves a
choice, all that it allows are candidates.
"""

from __future__ import annotations

from torchcoll.parts.postmortem.absence_rules import (
    broke_off,
    came_late,
    elsewhere,
    left_nothing,
    stopped_running,
    unanswered,
)
from torchcoll.parts.postmortem.call_rules import (
    different_calls,
    reported_mismatch,
    timed_out_in_different_calls,
    wait_for_each_other,
    waited_for,
)
from torchcoll.parts.postmortem.causes import waits_in_communication
from torchcoll.parts.postmortem.collecting import what_to_collect
from torchcoll.parts.postmortem.diagnosis import Diagnosis, EvidenceLine
from torchcoll.parts.postmortem.event_rules import (
    canceled,
    ended_by_itself,
    ended_well,
    link,
    reported_link,
)
from torchcoll.parts.postmortem.evidence import JobEvidence
from torchcoll.parts.postmortem.job_facts import JobFacts, name_most_common_wait
from torchcoll.parts.postmortem.sentences import (
    headline,
    rank_names,
)

_MOST_LINES = 4  # of one kind
_UNDECIDED = ("killed", "out_of_memory", "disk_full", "node_failed", "exception", "exit", "stack")


def diagnose(job: JobEvidence) -> Diagnosis:
    facts = JobFacts(job)
    rules = (
        different_calls,
        ended_by_itself,
        timed_out_in_different_calls,
        reported_mismatch,
        waited_for,
        wait_for_each_other,
        reported_link,
        stopped_running,
        broke_off,
        came_late,
        elsewhere,
        unanswered,
        left_nothing,
        link,
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
    return diagnosis


def _unknown(facts: JobFacts, result: Diagnosis) -> None:
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

"""Concludes from the evidence of one job what happened first, to which rank.

The rules are tried in the order of ``diagnose``; the first that concludes something decides. A rank
that only reports that another one was missing is never the cause. Where the evidence leaves a
choice, all that it allows are candidates.
"""

from __future__ import annotations

from torchcoll.core.units import counted, plural
from torchcoll.parts.postmortem import conclusions, text_rules
from torchcoll.parts.postmortem.diagnosis import (
    Diagnosis,
    headline,
    ranks_text,
    remedy_of,
    shortened,
)
from torchcoll.parts.postmortem.evidence import LOGS, RAS_KINDS, JobEvidence
from torchcoll.parts.postmortem.job_facts import (
    JobFacts,
    waits_in_communication,
)
from torchcoll.parts.postmortem.standing import Standings

_MOST = 3
_WHAT_ENDED = "what ended processes (dmesg -T, sacct -j JOB or kubectl describe pod)"


def what_to_collect(job: JobEvidence, diagnosis: Diagnosis, standings: Standings) -> list[str]:
    """What to collect next time, so that the evidence decides what it left open.

    Returns the most telling first; [] where the answer is certain and says why.
    """
    lines = []
    if diagnosis.kind in ("stopped", "unknown") and not _has_endings(job, diagnosis):
        lines.append("the exit code or signal of each rank, which the launcher prints")
    if diagnosis.certainty == "certain":
        if diagnosis.kind == "stopped":
            lines.append(_WHAT_ENDED)
        return lines
    missing = [rank for rank in standings.ranks if rank not in standings.recorded]
    reliable = any(call.reliable_state for call in job.calls)
    if not standings.recorded or not reliable:
        lines.append(
            "the last calls of every rank (TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_BUFFER_SIZE=2000; "
            "up to torch 2.8 TORCH_NCCL_TRACE_BUFFER_SIZE)"
        )
    elif missing:
        lines.append(
            "the dumps of all ranks, in a folder that all share (TORCH_FR_DUMP_TEMP_FILE, up to "
            "torch 2.8 TORCH_NCCL_DEBUG_INFO_TEMP_FILE)"
        )
    logged = {event.rank for event in job.events if event.kind not in RAS_KINDS}
    logged |= {rank for file in job.files if file.what in LOGS for rank in file.ranks}
    if not logged.issuperset(standings.ranks):
        lines.append("stderr of every rank (torchrun --log-dir)")
    sampled = {event.rank for event in job.events_of("stack")}
    doubtful = diagnosis.kind in ("stopped", "slow", "unknown", "user_code")
    if doubtful and not sampled.issuperset(standings.ranks):
        lines.append("stacks while the job hangs (torchcoll postmortem --live FOLDER)")
    if diagnosis.kind in ("stopped", "killed", "unknown"):
        lines.append(_WHAT_ENDED)
    return lines[:_MOST]


def _has_endings(job: JobEvidence, diagnosis: Diagnosis) -> bool:
    """Whether a file says how the ranks in question ended; of an unknown rank, how any ended."""
    ended = {event.rank for event in job.events_of("exit", "killed", "canceled", "ending")}
    ended |= {event.rank for event in job.events_of("timeout")} & set(diagnosis.culprits)
    return bool(ended & set(diagnosis.culprits or diagnosis.candidates or ended))


_MOST_LINES = 4  # of one kind
_UNDECIDED = (
    "killed",
    "out_of_memory",
    "disk_full",
    "node_failed",
    "exception",
    "exit",
    "stack",
    "warning",
)


def diagnose(job: JobEvidence) -> Diagnosis:
    facts = JobFacts(job)
    in_order = (
        conclusions.different_calls,
        text_rules.device_fault,
        conclusions.ended_by_itself,
        conclusions.ended_without_a_word,
        conclusions.failed_in_different_calls,
        conclusions.reported_mismatch,
        text_rules.proven_by_text,
        conclusions.waited_for,
        conclusions.wait_for_each_other,
        conclusions.link,
        conclusions.elsewhere,
        conclusions.did_not_end,
        conclusions.unanswered,
        conclusions.left_nothing,
        text_rules.missing_from_reports,
        text_rules.raised_by_a_rank,
        text_rules.hinted_by_text,
        conclusions.canceled,
        conclusions.ended_well,
    )
    diagnosis = Diagnosis(job)
    for rule in in_order:
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
    if diagnosis.kind == "none":
        diagnosis.details += conclusions.survived_differences(facts)
    _add_complaints(facts, diagnosis)
    _add_ras(facts, diagnosis)
    diagnosis.collect_next = what_to_collect(job, diagnosis, facts.standings)
    logged = {rank for file in job.files if file.what in LOGS for rank in file.ranks}
    if logged and not (job.events or job.calls or job.last_number or job.texts):
        diagnosis.says = f"no failure in {counted(len(job.files), 'log')} ({ranks_text(logged)})"
        ends = [*dict.fromkeys(map(shortened, job.texts.ends))]
        if len(ends) == 1:
            verb = plural(len(job.files), "it ends", "they end")
            diagnosis.says += f": {verb} with {ends[0]!r}"
        del diagnosis.collect_next[1:]
    diagnosis.headline = headline(diagnosis, facts.standings)
    diagnosis.remedy = diagnosis.remedy or remedy_of(diagnosis)
    return diagnosis


def _unknown(facts: JobFacts, result: Diagnosis) -> None:
    first = next((event for event in facts.ends if event.text.startswith("first observed")), None)
    silent = first is not None and first.rank not in facts.events.complaining | facts.spoke
    if first is not None and first.exit_code and first.rank is not None and silent:
        result.says = (
            f"{facts.names([first.rank])} was the first that torchrun saw ending, with "
            f"exit code {first.exit_code}; its own words are not in the files"
        )
        result.remedy = "look at its traceback: stderr of each rank (torchrun --log-dir, --tee 3)"
    counts = next((event for event in facts.events.ras if event.kind == "unequal_counts"), None)
    if counts is not None:
        result.says = f"the evidence does not tell what happened first; {counts.text}"
        result.remedy = (
            "take stacks of ranks with each count while it hangs (py-spy dump): a rank that has "
            "launched more operations may wait for those that have launched fewer"
        )
    warning = next(iter(facts.job.events_of("warning")), None)
    if warning is not None and not result.says and not facts.events.complaining:
        result.says = f"the evidence does not tell what happened first; {shortened(warning.text)}"
    if facts.name_most_common_wait(result) is None:
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
        result.cite(text, event.place, event.rank)


def _add_complaints(facts: JobFacts, result: Diagnosis) -> None:
    """A line for each kind of complaint, with the first place that has it."""
    for events, what in (
        (facts.events.timeouts, "a call did not end in time"),
        (facts.events.peer_lost, "another rank closed the connection, or is gone"),
    ):
        complaints = {rank: event for rank, event in events.items() if rank not in result.culprits}
        if complaints:
            rank, event = min(complaints.items(), key=lambda item: (item[1].when_ns or 0, item[0]))
            what = "a call of NCCL failed" if "system error" in event.text else what
            if len(complaints) == 1 and event.place in {line.place for line in result.evidence}:
                continue
            if len(complaints) == 1:
                result.cite(f"{what}: {event.text}", event.place, rank)
            else:
                names = facts.names(sorted(complaints))
                result.cite(f"{names} report: {what}: {event.text}", event.place)
    quoted = {line.place for line in result.evidence}
    faults = [e for e in facts.job.events if "NVRM: Xid" in e.text and e.place not in quoted]
    result.quote(faults[:_MOST_LINES])
    if result.kind != "canceled":
        result.quote(facts.events.canceled[:1])


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
            text = f"NCCL's RAS got no answer from {facts.names(ranks)}"
        result.cite(text, event.place)
    for event in events.ras[:_MOST_LINES]:
        if event.kind != "all_answered" or result.kind == "unknown":
            result.cite(event.text, event.place)

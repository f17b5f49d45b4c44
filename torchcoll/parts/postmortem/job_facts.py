"""What is known of a job, sorted once for all rules, and how a rule fills in a diagnosis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from torchcoll.core.units import format_duration, plural
from torchcoll.parts.postmortem import diagnosis, standing
from torchcoll.parts.postmortem.causes import (
    Complaints,
    earliest,
    in_user_code,
    sort_events,
    waits_in_communication,
    without_told_to_end,
)
from torchcoll.parts.postmortem.evidence import RAS_KINDS, FileRead, JobEvent, JobEvidence


class JobFacts:
    """What is known of a job, sorted once for all rules."""

    def __init__(self, job: JobEvidence) -> None:
        self.job = job
        self.standings: standing.Standings = standing.standings_of(job)
        self.events: Complaints = sort_events(job)
        self.late_complaints = self.events.late_complaints(job.nodes)
        waited = self.events.complaining - self.late_complaints
        self.graph: standing.WaitGraph = standing.wait_graph(self.standings, waited)
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
        differences = map(standing.find_difference, self.standings.groups.values())
        self.differences = [difference for difference in differences if difference]
        # Ranks whose log was read, and says nothing.
        logs = [file for file in job.files if _has_complaints(file)]
        self.quiet = {rank for file in logs for rank in file.ranks} - {
            event.rank for event in job.events if event.kind not in RAS_KINDS
        }
        # Ranks of which no file says anything about the rank itself.
        heard = self.standings.recorded | {event.rank for event in job.events}
        heard |= {rank for file in job.files for rank in file.ranks}
        self.silent = [rank for rank in self.standings.ranks if rank not in heard]

    @property
    def ranks(self) -> range:
        return self.standings.ranks

    def others(self, ranks: Collection[int]) -> tuple[int, ...]:
        return tuple(rank for rank in self.ranks if rank not in ranks)

    def first_open(self, wait: standing.OpenCall) -> standing.OpenCall:
        """The call in which the ranks of this wait were, if they had issued calls ahead.

        A group completes its calls in their order. So a rank of which several calls are open is in
        the first of them, which may be a call that the rank it waits for had made as well.
        """
        if wait.peer is not None:
            return wait
        firsts: list[standing.OpenCall] = []
        for of_rank in self.standings.waits.values():
            same = [w for w in of_rank if w.key == wait.key and w.peer is None]
            here = [w for w in same if w.number == wait.number]
            recorded = [w for w in same if w.call is not None and w.call.reliable_state]
            if here:
                firsts.append(min([*here, *recorded], key=lambda w: w.number))
        counts = Counter(first.number for first in firsts)
        return min(firsts, key=lambda w: (-counts[w.number], w.number), default=wait)


def _has_complaints(file: FileRead) -> bool:
    """Whether a file is where a rank would complain: its stderr, or a log of both streams."""
    if file.what not in ("stderr", "log"):
        return False
    return not file.path.endswith(".out") or "slurm" in file.path


def name_call(
    facts: JobFacts,
    result: diagnosis.Diagnosis,
    ranks: Collection[int],
    events: Collection[JobEvent] = (),
) -> None:
    """Fill in the call in which others wait for these ranks, and who waits."""
    wait = facts.graph.wait_for(ranks)
    if wait is not None:
        name_wait(facts, result, facts.first_open(wait))
        result.waiting = tuple(rank for rank in facts.graph.waiting if rank not in ranks)
        return
    complaints = [*facts.events.timeouts.values(), *facts.events.peer_lost.values()]
    named = [e for e in [*complaints, *events] if e.number is not None or e.collective is not None]
    # Without a number only what all name alike is the call.
    if named and (named[0].number is not None or len({e.collective for e in named}) == 1):
        event = named[0]
        group = facts.standings.groups.get(event.group or "")
        result.group = diagnosis.group_name(group) if group else event.group
        result.number, result.collective = event.number, event.collective
        if group and event.number is not None and event.collective is None:
            result.collective = group.collective(event.number)
    result.waiting = tuple(sorted(facts.events.complaining - set(ranks)))


def name_wait(facts: JobFacts, result: diagnosis.Diagnosis, wait: standing.OpenCall) -> None:
    group = facts.standings.groups.get(wait.key)
    result.group = diagnosis.group_name(group) if group else wait.key
    if not wait.is_exact:
        return
    result.number = wait.number
    if wait.call is not None:
        result.collective = wait.call.collective
    elif wait.event is not None and wait.event.collective:
        result.collective = wait.event.collective
    elif group is not None:
        result.collective = group.collective(wait.number)


def name_most_common_wait(facts: JobFacts, result: diagnosis.Diagnosis) -> standing.OpenCall | None:
    """Fill in the call in which most ranks were, and these ranks. The last call of a rank may have
    ended where the source records no states and the rank does not complain.
    """
    waited = facts.shown_to_wait | facts.events.complaining
    waits = [
        wait
        for waits_of_rank in facts.standings.waits.values()
        for wait in waits_of_rank
        if wait.call is None or wait.rank in waited
    ]
    if not waits:
        return None
    counts = Counter((wait.key, wait.number) for wait in waits)
    call = counts.most_common(1)[0][0]
    same = [wait for wait in waits if (wait.key, wait.number) == call]
    name_wait(facts, result, same[0])
    result.waiting = tuple(sorted({wait.rank for wait in same}))
    return same[0]


def add_standing(
    facts: JobFacts,
    result: diagnosis.Diagnosis,
    group: standing.GroupStanding | None,
    wait: standing.OpenCall,
) -> None:
    """Evidence lines with the last calls of the culprits, and the call of those who wait."""
    if group is None:
        return
    name = diagnosis.group_name(group)
    for rank in result.culprits[:3]:
        last = group.last.get(rank)
        if last is not None and (call := group.call(rank, last)):
            state = f" ({call.state})" if call.reliable_state else ""
            text = (
                f"its last call of group {name} is {last}, {diagnosis.describe_call(call)}{state}"
            )
            result.evidence.append(diagnosis.EvidenceLine(text, call.place, rank))
    waiting = [
        call
        for rank, calls in sorted(group.calls.items())
        if rank not in result.culprits and (call := calls.get(wait.number))
    ]
    if waiting:
        ranks = diagnosis.rank_names(facts.job, [call.rank for call in waiting])
        verb = plural(len(waiting), "is", "are")
        text = f"{ranks} {verb} in call {wait.number} of group {name}"
        text += f", {diagnosis.describe_call(waiting[0])}"
        result.evidence.append(diagnosis.EvidenceLine(text, waiting[0].place))


def refine_by_events(facts: JobFacts, result: diagnosis.Diagnosis, ranks: Collection[int]) -> None:
    """Say why a rank does not come, where an event of the rank tells."""
    events = facts.events
    for rank in ranks:
        event = events.stacks.get(rank)
        if event is not None and in_user_code(event):
            result.kind = "user_code"
            result.evidence.append(diagnosis.EvidenceLine(event.text, event.place, rank))
        elif rank in events.endings:
            result.kind = "missing_call"
            event = events.endings[rank]
            result.evidence.append(diagnosis.EvidenceLine(event.text, event.place, rank))
        elif rank in events.peer_lost and events.timeouts:
            result.kind = "slow"
            event = events.peer_lost[rank]
            result.reasons.append("it was alive when the others had given up")
            result.evidence.append(diagnosis.EvidenceLine(event.text, event.place, rank))


def last_ran(facts: JobFacts, ranks: Collection[int]) -> str:
    alive = facts.job.alive_ns
    before_ns = max(alive.values()) - max(alive[rank] for rank in ranks)
    whose = "its process" if len(ranks) == 1 else "their processes"
    return f"{whose} last ran {format_duration(before_ns / 1e9)} before those of other ranks"


def waits(facts: JobFacts, rank: int) -> bool:
    stack = facts.events.stacks.get(rank)
    return stack is not None and waits_in_communication(stack)

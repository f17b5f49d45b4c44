"""What is known of a job, sorted once for all rules, and how a rule fills in a diagnosis.

Events are causes, which end a rank by themselves, or complaints of ranks that only noticed that
another one was missing.
"""

from __future__ import annotations

import math
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from torchcoll.core.units import format_duration, plural
from torchcoll.parts.postmortem import diagnosis, standing
from torchcoll.parts.postmortem.evidence import (
    ENDED_BY_ITSELF,
    RAS_KINDS,
    FileRead,
    JobEvent,
    JobEvidence,
)
from torchcoll.parts.postmortem.texts import kind_of

# Where a stack shows that a rank waits in communication, whatever called it.
_WAITING_FRAME = re.compile(
    r"\bwaits\.py:\d+|"
    r"torch/distributed/(?!(?:fsdp|optim|checkpoint|algorithms|elastic|run)\b)|distributed_c10d|"
    r"ProcessGroup|c10d|torch/cuda/__init__\.py:\d+ synchronize|"
    r"\b(?:all_reduce|all_gather\w*|reduce_scatter\w*|all_to_all\w*|broadcast|barrier|"
    r"monitored_barrier|isend|irecv|recv) \("
)
_OF_DEVICE = re.compile(r"CUDA|HIP|XPU|\bGPU\b|device memory|OutOfMemoryError")
_OF_KERNEL = re.compile(
    r"oom[-_]kill|OOMKilled|Out of memory: Kill|out_of_memory|oom killer|oom event", re.IGNORECASE
)
# What ends ranks because another one failed: the launcher's signals, and abort() by the watchdog of
# NCCL or by gloo where a message does not fit.
_TOLD_TO_END = ("SIGTERM", "SIGINT", "SIGHUP", "SIGABRT")
# Events of two hosts are ordered in time if they are further apart than their clocks may be.
SAME_HOST_MARGIN_NS, MARGIN_NS = 200_000_000, 5_000_000_000
# The most telling first: a rank that is killed for its memory is also 'killed'.
_SPECIFIC = ("node_failed", "out_of_memory", "disk_full", "exception", "killed", "canceled")


@dataclass(frozen=True)
class Cause:
    """What ended a rank by itself. kind and detail: as in diagnosis.py."""

    rank: int
    kind: str
    detail: str | None
    event: JobEvent


@dataclass
class Complaints:
    """What ranks report of others, and how each ended."""

    causes: dict[int, Cause] = field(default_factory=dict)
    timeouts: dict[int, JobEvent] = field(default_factory=dict)
    peer_lost: dict[int, JobEvent] = field(default_factory=dict)
    mismatches: list[JobEvent] = field(default_factory=list)
    links: list[JobEvent] = field(default_factory=list)
    canceled: list[JobEvent] = field(default_factory=list)  # of the whole job
    endings: dict[int, JobEvent] = field(default_factory=dict)
    stacks: dict[int, JobEvent] = field(default_factory=dict)
    # Ranks without an answer for NCCL's RAS, None for unknown ranks, and what else it reports.
    unanswered: dict[int | None, JobEvent] = field(default_factory=dict)
    ras: list[JobEvent] = field(default_factory=list)
    # rank -> ranks that blame it
    blamed_by: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    @property
    def complaining(self) -> set[int]:
        return set(self.timeouts) | set(self.peer_lost)


def waits_in_communication(stack: JobEvent) -> bool:
    """Whether a ``stack`` event shows that its rank waits for others, and does not compute."""
    return stack.collective is not None or bool(_WAITING_FRAME.search(stack.text))


def in_user_code(stack: JobEvent) -> bool:
    """Whether a ``stack`` event shows code that is neither communication nor that of a library."""
    return not waits_in_communication(stack) and not stack.text.startswith("in library code")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _rank_of(event: JobEvent, job: JobEvidence) -> int | None:
    """The rank of an event, by its process where it names none, as a kernel's log does."""
    if event.rank is not None or event.pid is None:
        return event.rank
    ranks = [rank for rank, pid in job.pids.items() if pid == event.pid]
    if event.node and len(ranks) > 1:
        ranks = [rank for rank in ranks if job.nodes.get(rank, event.node) == event.node]
    return ranks[0] if len(ranks) == 1 else None


def sort_events(job: JobEvidence) -> Complaints:
    result = Complaints()
    ranks_of_node: dict[str, list[int]] = defaultdict(list)
    for member, node in job.nodes.items():
        ranks_of_node[node].append(member)
    causes: dict[int, list[Cause]] = defaultdict(list)
    last_calls_ns: dict[int, int] = {}
    for call in job.calls:
        if call.created_ns is not None:
            last_calls_ns[call.rank] = max(last_calls_ns.get(call.rank, 0), call.created_ns)
    marks = any(event.fatal for event in job.events)  # torch marks exceptions that end a rank
    for event in job.events:
        if marks and event.fatal is False and event.kind in ENDED_BY_ITSELF:
            continue
        rank = _rank_of(event, job)
        if event.kind == "unanswered":
            result.unanswered.setdefault(rank, event)
            continue
        if event.kind in RAS_KINDS:
            result.ras.append(event)
            continue
        if event.kind == "node_failed":
            for member in ranks_of_node.get(event.node, ()) if rank is None else (rank,):
                causes[member].append(Cause(member, "node_failed", None, event))
            continue
        if event.kind == "link":
            result.links.append(event)
            continue
        if event.kind == "canceled" and (rank is None or event.text.startswith("KeyboardInt")):
            result.canceled.append(event)
            continue
        if rank is None:
            continue
        for blamed in event.about:
            if blamed != rank:
                result.blamed_by[blamed].add(rank)
        cause = _cause(event, rank)
        if cause is not None:
            causes[rank].append(cause)
        elif event.kind in ("timeout", "peer_lost", "exception"):
            complaints = result.timeouts if event.kind == "timeout" else result.peer_lost
            if rank not in complaints or _precedes(event, complaints[rank]):
                complaints[rank] = event
        elif event.kind == "mismatch":
            result.mismatches.append(event)
        elif event.kind == "ending" or (event.kind == "exit" and event.exit_code == 0):
            result.endings[rank] = event
        elif event.kind == "stack" and (event.when_ns or math.inf) > last_calls_ns.get(rank, 0):
            # A stack from before the last call, as of loading the model, explains nothing later.
            result.stacks[rank] = event
    for rank, of_rank in causes.items():
        best = min(of_rank, key=lambda cause: _SPECIFIC.index(cause.kind))
        by_signal = best.detail in ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL", "SIGABRT")
        before = [result.timeouts.get(rank), result.peer_lost.get(rank)]
        reported = any(event.rank == rank for event in result.mismatches)
        # A rank that had complained, and ended then, was told to end.
        if not reported and not any(e and (by_signal or _precedes(e, best.event)) for e in before):
            result.causes[rank] = best
    return result


def _cause(event: JobEvent, rank: int) -> Cause | None:
    if event.kind == "out_of_memory" or (event.kind == "killed" and _OF_KERNEL.search(event.text)):
        detail = "python"
        if event.signal == signal.SIGKILL or _OF_KERNEL.search(event.text):
            detail = "kernel"
        elif _OF_DEVICE.search(event.text):
            detail = "device"
        return Cause(rank, "out_of_memory", detail, event)
    if event.kind == "disk_full":
        return Cause(rank, "disk_full", None, event)
    if event.kind == "exception":
        if kind_of(event.text) in ("peer_lost", "timeout"):
            return None
        return Cause(rank, "exception", None, event)
    number = event.signal
    if event.kind == "exit" and number is None and event.exit_code is not None:
        if event.exit_code < 0:
            number = -event.exit_code
        elif event.exit_code > 128:
            number = event.exit_code - 128
    if event.kind in ("killed", "exit") and number is not None:
        return Cause(rank, "killed", signal_name(number), event)
    if event.kind == "killed":
        return Cause(rank, "killed", None, event)
    if event.kind == "canceled":
        return Cause(rank, "canceled", None, event)
    return None


def _precedes(first: JobEvent, second: JobEvent) -> bool:
    """Whether the first of two events of one rank came first, as far as is known."""
    if first.place.path == second.place.path and first.place.line and second.place.line:
        return first.place.line < second.place.line
    if first.when_ns is not None and second.when_ns is not None:
        return first.when_ns < second.when_ns
    return False


def earliest(causes: dict[int, Cause], job: JobEvidence) -> dict[int, Cause]:
    """The causes that may have come first. Clocks of two hosts may differ by ``MARGIN_NS``; a cause
    without a time may be the first.
    """

    def came_before(first: Cause, second: Cause) -> bool:
        node = job.nodes.get(first.rank)
        same_host = node is not None and node == job.nodes.get(second.rank)
        margin_ns = SAME_HOST_MARGIN_NS if same_host else MARGIN_NS
        times = first.event.when_ns, second.event.when_ns
        return None not in times and (times[1] or 0) - (times[0] or 0) > margin_ns

    return {
        rank: cause
        for rank, cause in causes.items()
        if not any(came_before(other, cause) for other in causes.values())
    }


def without_told_to_end(
    causes: dict[int, Cause], ranks: int, is_explained: bool
) -> dict[int, Cause]:
    """The causes without the signals that ranks get when another one failed. If nothing else is
    known and all ranks got such a signal, somebody ended the job with it.
    """
    others = {
        rank: cause
        for rank, cause in causes.items()
        if cause.kind != "killed" or cause.detail not in _TOLD_TO_END
    }
    if others or is_explained or len(causes) < ranks:
        return others
    return causes


_ORIGIN = re.compile(r" \[(\S+:\d+) [^\]]+\]$")


class JobFacts:
    """What is known of a job, sorted once for all rules."""

    def __init__(self, job: JobEvidence) -> None:
        self.job = job
        self.standings: standing.Standings = standing.standings_of(job)
        self.events: Complaints = sort_events(job)
        waited = self.events.complaining
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
        # What launchers say of the end of ranks, and ranks of which any line was read.
        self.ends = [event for event in job.events_of("exit", "killed") if "exit" in event.text]
        self.has_table = any("(local_rank: " in event.text for event in self.ends)
        stacks = self.events.stacks
        self.waiting_by_stack = {r for r, s in stacks.items() if waits_in_communication(s)}
        self.mismatching = {event.rank for event in self.events.mismatches}
        local = job.texts.seen_local if job.ranks is None or job.ranks <= 64 else set()
        self.spoke = job.texts.seen | local | {r for f in logs for r in f.ranks}
        self.spoke &= set(self.standings.ranks) | local
        heard = self.standings.recorded | {event.rank for event in job.events}
        heard |= {rank for file in job.files for rank in file.ranks}
        self.silent = [rank for rank in self.standings.ranks if rank not in heard]

    @property
    def ranks(self) -> range:
        return self.standings.ranks

    def names(self, ranks: Collection[int]) -> str:
        """``rank 3 on node07``."""
        return diagnosis.rank_names(self.job, ranks)

    def others(self, ranks: Collection[int]) -> tuple[int, ...]:
        return tuple(rank for rank in self.ranks if rank not in ranks)

    @property
    def where_they_failed(self) -> dict[int, str]:
        """Rank -> the call that its complaint names, with the line of the user's code, as far as
        the complaint is a traceback: ``all_reduce train.py:74``.
        """
        calls = {}
        for events in (self.events.peer_lost, self.events.timeouts):
            for rank, event in events.items():
                if event.collective and (place := _ORIGIN.search(event.text)):
                    calls[rank] = f"{event.collective} {place[1]}"
        return calls

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

    def name_call(
        self,
        result: diagnosis.Diagnosis,
        ranks: Collection[int],
        events: Collection[JobEvent] = (),
    ) -> None:
        """Fill in the call in which others wait for these ranks, and who waits."""
        wait = self.graph.wait_for(ranks)
        if wait is not None:
            self.name_wait(result, self.first_open(wait))
            result.waiting = tuple(rank for rank in self.graph.waiting if rank not in ranks)
            return
        complaints = [*self.events.timeouts.values(), *self.events.peer_lost.values()]
        stacks = [e for rank, e in self.events.stacks.items() if rank not in ranks]
        complaints += [*events, *(each for each in stacks if each.collective != "wait")]
        named = [e for e in complaints if e.number is not None or e.collective is not None]
        # Without a number only what all name alike is the call.
        if named and (named[0].number is not None or len({e.collective for e in named}) == 1):
            event = named[0]
            group = self.standings.groups.get(event.group or "")
            result.group = diagnosis.group_name(group) if group else event.group
            result.number, result.collective = event.number, event.collective
            if group and event.number is not None and event.collective is None:
                result.collective = group.collective(event.number)
        result.waiting = tuple(
            sorted((self.events.complaining | self.waiting_by_stack) - set(ranks))
        )

    def name_wait(self, result: diagnosis.Diagnosis, wait: standing.OpenCall) -> None:
        group = self.standings.groups.get(wait.key)
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

    def name_most_common_wait(self, result: diagnosis.Diagnosis) -> standing.OpenCall | None:
        """Fill in the call in which most ranks were, and these ranks.

        The last call of a rank may have ended where the source records no states and the rank does
        not complain.
        """
        waited = self.shown_to_wait | self.events.complaining
        waits = [
            wait
            for waits_of_rank in self.standings.waits.values()
            for wait in waits_of_rank
            if wait.call is None or wait.rank in waited
        ]
        if not waits:
            return None
        counts = Counter((wait.key, wait.number) for wait in waits)
        call = counts.most_common(1)[0][0]
        same = [wait for wait in waits if (wait.key, wait.number) == call]
        self.name_wait(result, same[0])
        result.waiting = tuple(sorted({wait.rank for wait in same}))
        return same[0]

    def add_standing(
        self,
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
                text = f"{diagnosis.describe_call(call)}{state}"
                result.cite(f"its last call of group {name} is {last}, {text}", call.place, rank)
        waiting = [
            call
            for rank, calls in sorted(group.calls.items())
            if rank not in result.culprits and (call := calls.get(wait.number))
        ]
        if waiting:
            ranks = self.names([call.rank for call in waiting])
            verb = plural(len(waiting), "is", "are")
            text = f"{ranks} {verb} in call {wait.number} of group {name}"
            text += f", {diagnosis.describe_call(waiting[0])}"
            result.cite(text, waiting[0].place)

    def refine_by_events(self, result: diagnosis.Diagnosis, ranks: Collection[int]) -> None:
        """Say why a rank does not come, where an event of the rank tells."""
        events = self.events
        for rank in ranks:
            event = events.stacks.get(rank)
            if event is not None and in_user_code(event):
                result.kind = "user_code"
                result.cite(event.text, event.place, rank)
            elif rank in events.endings:
                result.kind = "missing_call"
                event = events.endings[rank]
                result.cite(event.text, event.place, rank)
            elif rank in events.peer_lost and events.timeouts:
                result.kind = "slow"
                event = events.peer_lost[rank]
                result.reasons.append("it was alive when the others had given up")
                result.cite(event.text, event.place, rank)

    def last_ran(self, ranks: Collection[int]) -> str:
        alive = self.job.alive_ns
        before_ns = max(alive.values()) - max(alive[rank] for rank in ranks)
        whose = "its process" if len(ranks) == 1 else "their processes"
        return f"{whose} last ran {format_duration(before_ns / 1e9)} before those of other ranks"


def _has_complaints(file: FileRead) -> bool:
    """Whether a file is where a rank would complain: its stderr, or a log of both streams."""
    if file.what not in ("stderr", "log"):
        return False
    return not file.path.endswith(".out") or "slurm" in file.path

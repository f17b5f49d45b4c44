"""What NCCL Inspector's files say of a dead job: which call of each communicator a rank completed.

NCCL counts the calls of a communicator for each collective separately, so a group here is a
communicator and a collective (``0x7f8c all_reduce``), whose numbers all its ranks share. Inspector
writes at intervals, and calls below 8 KiB not at all: the last record may be older than the last
call that completed.
"""

from __future__ import annotations

from pathlib import Path

from torchcoll.core.errors import UnreadableError
from torchcoll.parts.postmortem.evidence import FileRead, GroupSeen, JobEvidence
from torchcoll.reading.base import Imported
from torchcoll.reading.inspector import Job, Log, add_records, find_jobs, is_inspector
from torchcoll.reading.source import Source

_CALLS = "NCCL Inspector"
_INTERVAL = (
    "Inspector writes at intervals (NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS): later calls "
    "may have completed"
)


def recognizes(path: Path, begin: bytes) -> bool:
    return is_inspector(begin)


def read_evidence(path: Path, shown: str) -> list[JobEvidence]:
    """The jobs in a file. Raises UnreadableError for a file without a call."""
    imported, log = Imported(), Log()
    add_records(log, Source(str(path)).lines(), imported)
    jobs = [_of_job(job, shown) for job in find_jobs(log, imported)]
    if not jobs:
        why = next((reason for _, reason in imported.refusals()), "no record")
        raise UnreadableError(_CALLS, f"{shown}: {why}", "calls of collectives")
    for evidence in jobs:
        evidence.problems += [f"{shown}:{lines}: {why}" for lines, why in imported.refusals()]
        evidence.problems += [f"{shown}: {text}" for text in imported.warnings]
    return jobs


def _of_job(job: Job, shown: str) -> JobEvidence:
    """Ranks are those of the largest communicator that has all processes of the file."""
    evidence = JobEvidence(name=job.name, ranks=job.ranks, problems=[f"{shown}: {_INTERVAL}"])
    evidence.first_ns = 1000 * job.first_us if job.first_us else None
    evidence.last_ns = 1000 * job.last_us if job.last_us else None
    if job.numbering:
        evidence.ranks = None
        evidence.problems.append(f"{shown}: {job.numbering}")
    for communicator in job.communicators:
        evidence.identities.add(f"communicator {communicator.identity}")
        for rank, member in communicator.members.items():
            evidence.nodes[member] = communicator.hosts[rank]
            pid = communicator.processes[rank][1]
            if pid >= 0:
                evidence.pids[member] = pid
        whole_world = communicator.ranks == job.ranks and not job.numbering
        ranks = tuple(range(job.ranks)) if whole_world and job.ranks <= 1 << 16 else ()
        for (collective, number), by_rank in communicator.calls.items():
            group = f"{communicator.identity} {collective}"
            evidence.groups[group] = GroupSeen(group, ranks, communicator.label)
            for rank in by_rank:
                member = communicator.members[rank]
                # NCCL counts from 0.
                last = max(evidence.last_completed.get((member, group), 0), number + 1)
                evidence.last_completed[member, group] = last
    ranks_seen = tuple(sorted(evidence.nodes))
    evidence.files = [FileRead(shown, _CALLS, ranks_seen, "nccl inspector")]
    return evidence

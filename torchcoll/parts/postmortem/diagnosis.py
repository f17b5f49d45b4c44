"""What ended or stopped a job, concluded from the evidence that its files left.

``torchcoll postmortem FOLDER --format json`` prints::

    {
      "schema": "torchcoll-postmortem/1",
      "answer": {"level": "bad", "headline": ...},      of the first job
      "jobs": [
        {
          "job": "slurm 4711",                          "" where nothing names it
          "identities": ["slurm 4711"],
          "ranks": 8,                                   null where not known
          "kind": "out_of_memory",                      one of KINDS
          "detail": "kernel",                           one of DETAILS[kind], null where not known
          "certainty": "certain",                       one of CERTAINTIES
          "headline": "rank 3 on node07 was killed ...",
          "culprits": [3],                              ranks that are named as the cause
          "nodes": ["node07"],                          nodes of these ranks, or both ends of a link
          "candidates": [],                             ranks among which the cause is, where it
                                                        cannot be told which; never with culprits
          "waiting": [0, 1, 2, 4, 5, 6, 7],             ranks that waited
          "group": "0",                                 null where not known, as those below
          "collective": "all_reduce",
          "number": 41,                                 of the call in its group, from 1
          "reasons": ["the kernel's log names process 4711, which was rank 3", ...],
          "evidence": [{"text": ..., "rank": 3, "file": "node07/dmesg.txt", "line": 17}, ...],
          "contradictions": ["..."],
          "collect_next": ["..."],
          "files": [{"file": ..., "what": "stderr", "ranks": [3]}, ...]
        }
      ],
      "left_out": [{"file": "notes.txt", "why": "not a format that postmortem reads"}, ...]
    }

``culprits`` are named with certainty certain, likely or possible. Where the evidence leaves a
choice, ``culprits`` is empty, ``candidates`` has all that it allows, the certainty is possible, and
``kind`` is what is common to them. With kind ``unknown`` both lists may be empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torchcoll.parts.postmortem.evidence import JobEvidence, Place

KINDS = (
    "mismatch",  # ranks made different calls: order, collective, size, dtype or group
    "missing_call",  # a rank never made a call that the others wait in, and went on or ended
    "killed",  # by a signal
    "out_of_memory",  # of the device, of the host (kernel), or a Python MemoryError
    "disk_full",
    "exception",
    "stopped",  # a rank no longer takes part; why is not recorded
    "user_code",  # a rank stays in code that is no collective
    "slow",  # a rank comes late to calls that do complete
    "link",  # no rank is behind the others; a connection between two hosts failed
    "node_failed",
    "canceled",  # the whole job, by the scheduler or a person
    "none",  # every rank ended as it should
    "unknown",  # the evidence does not tell
)
DETAILS = {
    "mismatch": ("order", "collective", "size", "dtype", "group"),
    "killed": ("SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGINT", "SIGSTOP"),
    "out_of_memory": ("device", "kernel", "python"),
    "canceled": ("time limit", "memory limit", "by a person", "preemption"),
}
CERTAINTIES = ("certain", "likely", "possible", "unknown")


@dataclass(frozen=True)
class EvidenceLine:
    """One observation and the file that has it. rank: None for a line about several or no rank."""

    text: str
    place: Place
    rank: int | None = None


@dataclass
class Diagnosis:
    """What happened to a job. The fields are those of the JSON above."""

    job: JobEvidence
    kind: str = "unknown"
    detail: str | None = None
    certainty: str = "unknown"
    headline: str = ""
    culprits: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    candidates: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    group: str | None = None
    collective: str | None = None
    number: int | None = None
    reasons: list[str] = field(default_factory=list)
    evidence: list[EvidenceLine] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    collect_next: list[str] = field(default_factory=list)

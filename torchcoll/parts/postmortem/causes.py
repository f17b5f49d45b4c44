"""Causes, which end a rank by themselves, and complaints of ranks that only noticed that another
one was missing: from the text of an error, and from all events of a job.

Texts of torch 2.0 to 2.13 (torch/csrc/distributed/c10d), gloo (gloo/transport/tcp) and NCCL.
"""

from __future__ import annotations

import math
import re
import signal
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchcoll.parts.postmortem.evidence import RAS_KINDS, JobEvent, JobEvidence
from torchcoll.parts.postmortem.log_lines import addresses_in, ranks_in
from torchcoll.reading.torch_names import torch_collective

_MEMORY = re.compile(
    r"^(?:\w+\.)*MemoryError\b|OutOfMemoryError|(?:CUDA|HIP|XPU|MPS|NPU)(?: error:)? out of memory|"
    r"CUBLAS_STATUS_ALLOC_FAILED|can't allocate memory|Cannot allocate memory|"
    r"Unable to allocate .{1,40} for an array|OUT_OF_(?:DEVICE|HOST)_MEMORY|"
    r"Cuda failure.{0,9}out of mem"
)
_DISK = re.compile(
    r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]|"
    r"PytorchStreamWriter failed writing"
)
_MISMATCH = re.compile(
    r"Detected mismatch between collectives|op\.preamble\.length|preamble\.roffset|"
    r"Mismatched collective detected|collective mismatch error|[Mm]essage truncated"
)
_TIMEOUT = re.compile(
    r"[Tt]imed out waiting|[Ss]ocket [Tt]imeout|[Ww]ait timeout|[Tt]imed out after|Read timeout|"
    r"collective operation timeout|failed to pass monitoredBarrier|Application timeout|"
    r"timed out in monitoredBarrier|client socket has timed out|barrier timeout after|"
    r"timeout in call to|Operation timed out|socket .{1,200} timed out after"
)
_LOST = re.compile(
    r"[Cc]onnection (?:was )?(?:closed|reset|refused|aborted|timed out)|pair closure|"
    r"[Bb]roken pipe|recvValue|Failed to (?:recv|send), (?:got|sent) 0 bytes|remote process exited|"
    r"ncclRemoteError|DistNetworkError|DistStoreError|Socket (?:unexpectedly )?closed|"
    r"ncclSystemError|(?:NCCL|communicator).{0,40}(?:aborted|abort flag)|Got completion from peer|"
    r"NET/IB ?: Got completion with error"
)


def kind_of(text: str) -> str:
    """What an error with this text is: a complaint about other ranks, or what ended the rank.

    One of evidence.EVENT_KINDS.
    """
    if "successfully reached monitoredBarrier" in text:
        return "peer_lost"
    for kind, pattern in (
        ("mismatch", _MISMATCH),
        ("out_of_memory", _MEMORY),
        ("disk_full", _DISK),
        ("timeout", _TIMEOUT),
        ("peer_lost", _LOST),
    ):
        if pattern.search(text):
            return kind
    return "exception"


_WATCHDOG = re.compile(
    r"\[Rank (\d{1,7})\] Watchdog caught collective operation timeout: "
    r"Work\w{1,20}\((?:SeqNum=(\d{1,18}), )?OpType=(\w{1,60})(?:, NumelIn=(\d{1,18}))?"
)
_FINGERPRINT = re.compile(
    r"Rank (\d{1,7}) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=(\d{1,18}),? ?)?OpType=(\w{1,60})"
)
_DIFFERENCES = re.compile(
    r"(Op type: \S{1,80} \S{1,60}|Sequence number: \S{1,40} \S{1,40}|Tensor shapes: .{1,200}?"
    r"(?=  |$)|Tensor dtypes: \S{1,60} \S{1,60})"
)
_BARRIER = re.compile(r"Ranks? ([\d, ]{1,4000}?) failed to pass monitoredBarrier")
_SPEAKER = re.compile(r"\[Rank (\d{1,7})\]|\bRank (\d{1,7}) (?:successfully|timed out in)")


def facts_of(text: str) -> dict[str, Any]:
    """Fields of a JobEvent for an error with this text: about, rank, number, collective, elements,
    addresses.

    rank is missing where the text does not say whose it is.
    """
    facts: dict[str, Any] = {}
    if match := _WATCHDOG.search(text):
        facts["rank"] = int(match[1])
        facts["collective"] = torch_collective(match[3].lower())
        if match[2] and facts["collective"] not in ("send", "recv"):
            facts["number"] = int(match[2])
            facts["elements"] = int(match[4]) if match[4] else None
    elif fingerprints := _FINGERPRINT.findall(text):
        facts["rank"] = int(fingerprints[0][0])
        facts["about"] = tuple(int(rank) for rank, _, _ in fingerprints[1:2])
        facts["collective"] = torch_collective(fingerprints[0][2].lower())
    elif match := _BARRIER.search(text):
        facts["about"] = ranks_in(match[1])
        facts["collective"] = "monitored_barrier"
    if "rank" not in facts and (speaker := _SPEAKER.search(text)):
        facts["rank"] = int(speaker[1] or speaker[2])
    if addresses := addresses_in(text):
        facts["addresses"] = addresses
    return facts


def quotation(text: str) -> str:
    """The part of a text that tells: of a mismatch of torch's debug mode, what differs."""
    head, separator, aspects = text.partition("Collectives differ in the following aspects:")
    if not separator:
        return text
    ranks = [rank for rank, _, _ in _FINGERPRINT.findall(head)]
    first = _DIFFERENCES.search(aspects.replace("\t", "  "))
    what = first[1].strip() if first else aspects.strip()
    names = f" Rank {ranks[0]} ... but Rank {ranks[1]} ..." if len(ranks) > 1 else ""
    return f"Detected mismatch between collectives on ranks.{names} {what}"


# Exceptions that a rank raises because another one is missing, whatever the reader took them for.
_COMMUNICATION = re.compile(
    r"DistBackendError|DistNetworkError|DistStoreError|Connection (?:closed|reset) by|"
    r"pair closure|NCCL (?:error|communicator)|ProcessGroup(?:NCCL|Gloo|XCCL)|Socket Timeout|"
    r"\[c10d\]|[Ww]ait timeout|Timed out waiting|[Bb]roken pipe|SignalException|KeyboardInterrupt|"
    r"ChildFailedError|BackendCompilerFailed.*timeout"
)
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
# Within this time all ranks of a host notice that one of them is gone.
LATE_NS = 1_000_000_000
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
    # Causes that came after the rank itself had complained: it was told to end.
    consequences: dict[int, Cause] = field(default_factory=dict)
    timeouts: dict[int, JobEvent] = field(default_factory=dict)
    peer_lost: dict[int, JobEvent] = field(default_factory=dict)
    mismatches: list[JobEvent] = field(default_factory=list)
    links: list[JobEvent] = field(default_factory=list)
    # Of the whole job: the scheduler or a person ended it.
    canceled: list[JobEvent] = field(default_factory=list)
    endings: dict[int, JobEvent] = field(default_factory=dict)
    stacks: dict[int, JobEvent] = field(default_factory=dict)
    # Ranks from which NCCL's RAS got no answer, and what else it reports. A rank of None stands for
    # processes of which the rank is not known.
    unanswered: dict[int | None, JobEvent] = field(default_factory=dict)
    ras: list[JobEvent] = field(default_factory=list)
    # rank -> ranks that blame it
    blamed_by: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    @property
    def complaining(self) -> set[int]:
        return set(self.timeouts) | set(self.peer_lost)

    def late_complaints(self, nodes: Mapping[int, str]) -> set[int]:
        """Ranks that only found the others gone, later than the others complained, or where the
        others had timed out: they may be those for whom the others had waited.
        """
        times = [e.when_ns for e in (*self.timeouts.values(), *self.peer_lost.values())]
        known_times = [time for time in times if time is not None]
        hosts = {nodes.get(rank) for rank in self.complaining}
        same_host = len(hosts) == 1 and None not in hosts
        margin_ns = LATE_NS if same_host else MARGIN_NS
        late = set()
        for rank, event in self.peer_lost.items():
            if rank in self.timeouts:
                continue
            if event.when_ns is None:
                if self.timeouts:
                    late.add(rank)
            elif event.when_ns - min(known_times) > margin_ns:
                late.add(rank)
        return late


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
    for event in job.events:
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
        if event.kind == "canceled" and rank is None:
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
        if reported or any(e and (by_signal or _precedes(e, best.event)) for e in before):
            result.consequences[rank] = best
        else:
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
        return None if _COMMUNICATION.search(event.text) else Cause(rank, "exception", None, event)
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
    without a time may be the first, unless a file has it below another one.
    """
    kept = {}
    for rank, cause in causes.items():
        if not any(_came_before(other, cause, job) for other in causes.values()):
            kept[rank] = cause
    return kept or dict(causes)


def _came_before(first: Cause, second: Cause, job: JobEvidence) -> bool:
    if first is second:
        return False
    if first.event.when_ns is not None and second.event.when_ns is not None:
        nodes = job.nodes.get(first.rank), job.nodes.get(second.rank)
        same_host = nodes[0] is not None and nodes[0] == nodes[1]
        margin_ns = SAME_HOST_MARGIN_NS if same_host else MARGIN_NS
        return second.event.when_ns - first.event.when_ns > margin_ns
    return False


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

"""What the texts of torch, gloo and NCCL say of the rank that writes them and of others.

Texts of torch 2.0 to 2.13 (torch/csrc/distributed/c10d), gloo (gloo/transport/tcp) and NCCL.
"""

from __future__ import annotations

import re
from typing import Any

from torchcoll.parts.postmortem.log_scan import addresses_in, ranks_in
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

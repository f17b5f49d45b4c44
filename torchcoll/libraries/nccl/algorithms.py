"""Which algorithm and protocol NCCL chose for a call: its TUNING lines, and names of kernels.

Formats by version (NCCL's src/enqueue.cc, scheduler/symmetric_sched.cc, ce_coll.cc; RCCL alike)::

    <= 2.19      nothing (TRACE builds: as 2.20)
    2.20 - 2.22  1024 Bytes -> Algo 1 proto 0 time 12.3
    2.23         AllReduce: 1024 Bytes -> Algo 1 proto 0 time 12.3
    2.24 -       AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1} [...]
    2.27 -       AllReduce [Symmetric]: 1024 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4 ...
    2.29 -       AllGather [Copy Engine]: 1024 Bytes -> cudaMemcpyBatchAsync

Rank 0 of a communicator writes them, once a call (once a capture for CUDA graphs). Calls that are
made of sends and receives (all_to_all, gather, scatter, sendrecv) have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchcoll.core.result import CaseResult, Choice
from torchcoll.libraries.logged import LoggedCall

# torch's collectives that NCCL has kernels for.
FUNCTIONS = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
_PLAIN = {name.replace("_", ""): name for name in (*ALGORITHMS, *PROTOCOLS)}
TOTAL, PER_RANK = "total", "per rank"
# torch's barrier is an all-reduce of so many bytes, and NCCL 2.20 to 2.22 names no function.
_BARRIER_BYTES = 4

_NUMBERED = re.compile(r"(?:(\w+): )?(\d+) Bytes -> Algo (\d+) +proto (\d+) +time [\d.]+", re.I)
_NAMED = re.compile(
    r"(\w+): (\d+) Bytes -> Algo (\w+) +proto (\w+) +channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}", re.I
)
_SYMMETRIC = re.compile(
    r"(\w+) \[Symmetric\]: (\d+) Bytes -> Kernel (\w+) nchannels (\d+) nthreads \d"
)
_COPIED = re.compile(r"(\w+) \[(Copy Engine|Hierarchical CE)\]: (\d+) Bytes -> \w")


def canonical(name: str) -> str | None:
    """``NVLS_TREE`` for NVLSTree, nvls_tree, ...; None where NCCL has no such name."""
    return _PLAIN.get(name.replace("_", "").upper())


def call_of(message: str) -> LoggedCall | None:
    """The call of a TUNING line; None for a line that is none, or not whole.

    A line that ends early is refused, not guessed: ``proto LL`` may be the start of LL128.
    """
    if found := _NAMED.search(message):
        function, size_bytes, algorithm, protocol, low, high = found.groups()
        names = canonical(algorithm), canonical(protocol)
        if names[0] not in ALGORITHMS or names[1] not in PROTOCOLS:
            return None
        channels = int(high) - int(low) + 1
        return LoggedCall(
            function, int(size_bytes), str(names[0]), str(names[1]), channels, PER_RANK
        )
    if found := _NUMBERED.search(message):
        function, size_bytes, algorithm, protocol = found.groups()
        if int(algorithm) >= len(ALGORITHMS) or int(protocol) >= len(PROTOCOLS):
            return None
        names = ALGORITHMS[int(algorithm)], PROTOCOLS[int(protocol)]
        return LoggedCall(function or "", int(size_bytes), *names, None, TOTAL)
    if found := _SYMMETRIC.search(message):
        kernel = found[3].removeprefix(f"{found[1]}_")
        return LoggedCall(found[1], int(found[2]), "SYMMETRIC", kernel, int(found[4]), PER_RANK)
    if found := _COPIED.search(message):
        function, engine, size_bytes = found.groups()
        name = "COPY_ENGINE" if engine == "Copy Engine" else "HIERARCHICAL_CE"
        return LoggedCall(function, int(size_bytes), name, basis=PER_RANK)
    return None


def logged_bytes(collective: str, size_bytes: int, ranks: int, basis: str) -> int:
    """The bytes that NCCL's log gives for a case of size S = ``size_bytes`` (nccl-tests' size).

    Up to 2.23 it gives what the cost model gets: all bytes of all ranks. From 2.24 on the count of
    the call: for all-gather what a rank sends, for reduce-scatter what it receives.
    """
    per_rank = basis == PER_RANK and collective in ("all_gather", "reduce_scatter")
    return size_bytes // ranks if per_rank and ranks else size_bytes


def choices_of(result: CaseResult, calls: Iterable[LoggedCall]) -> list[Choice]:
    """What NCCL chose for a case, each choice once, of ``calls`` that its log has beside it.

    Calls of other functions and sizes (barriers, another communicator's) are left out. [] for what
    NCCL has no line for, and for one rank, which communicates with nobody.
    """
    case, found = result.case, dict[Choice, None]()
    function = FUNCTIONS.get(case.collective)
    if function is None or result.ranks < 2 or not result.size_bytes:
        return []
    for call in calls:
        if call.function not in (function, ""):
            continue
        if not call.function and call.size <= _BARRIER_BYTES:
            continue
        if call.size == logged_bytes(case.collective, result.size_bytes, result.ranks, call.basis):
            found[Choice(call.algorithm, call.protocol, call.channels)] = None
    return list(found)


_KERNEL = re.compile(
    rf"nccl(?:Dev)?Kernel_(?!SendRecv)\w*?_({'|'.join(sorted(ALGORITHMS, key=len, reverse=True))})"
    r"_(LL128|LL|SIMPLE)(?![A-Za-z0-9])"
)
_SYMMETRIC_KERNEL = re.compile(r"ncclSymk?(?:Dev)?Kernel_[A-Za-z]+_(\w+?)(?:_[a-z]+_[a-z]+\d+)?\b")


def choice_of_kernel(name: str) -> Choice | None:
    """What the name of a CUDA kernel says: ``ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)``.

    A hint only: NCCL has kernels of its own for common combinations, and lets them run others too
    (NVIDIA/nccl#1595: RING_LL in the name where Simple was forced). None for other kernels, and for
    sends and receives, which have no algorithm (up to 2.18 their name says RING_SIMPLE).
    """
    if found := _KERNEL.search(name):
        return Choice(found[1], found[2], source="kernel name")
    if found := _SYMMETRIC_KERNEL.search(name):
        return Choice("SYMMETRIC", found[1], source="kernel name")
    return None

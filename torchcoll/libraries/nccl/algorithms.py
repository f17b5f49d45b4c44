"""The algorithm and protocol that NCCL chose for a call, from its TUNING lines and kernel names.

Formats by version (NCCL's src/enqueue.cc, scheduler/symmetric_sched.cc, ce_coll.cc; RCCL alike)::

    <= 2.19      nothing (TRACE builds: as 2.20)
    2.20 - 2.22  1024 Bytes -> Algo 1 proto 0 time 12.3
    2.23         AllReduce: 1024 Bytes -> Algo 1 proto 0 time 12.3
    2.24 -       AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1} [...]
    2.27 -       AllReduce [Symmetric]: 1024 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4 ...
    2.29 -       AllGather [Copy Engine]: 1024 Bytes -> cudaMemcpyBatchAsync

Rank 0 of a communicator writes such a line for each call (with CUDA graphs: for each capture).
Calls that consist of sends and receives (all_to_all, gather, scatter, sendrecv) have none.
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
# torch's barrier is an all-reduce of this many bytes, and NCCL 2.20 to 2.22 does not name the
# function.
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


def parse_call(message: str) -> LoggedCall | None:
    """Parse a TUNING line; None for others, and if cut: ``proto LL`` may begin LL128."""
    if match := _NAMED.search(message):
        function, size_bytes, algorithm, protocol, low, high = match.groups()
        chosen = canonical(algorithm) or "", canonical(protocol) or ""
        if chosen[0] not in ALGORITHMS or chosen[1] not in PROTOCOLS:
            return None
        channels = int(high) - int(low) + 1
        return LoggedCall(function, int(size_bytes), *chosen, channels, PER_RANK)
    if match := _NUMBERED.search(message):
        function, size_bytes, algorithm, protocol = match.groups()
        if int(algorithm) >= len(ALGORITHMS) or int(protocol) >= len(PROTOCOLS):
            return None
        names = ALGORITHMS[int(algorithm)], PROTOCOLS[int(protocol)]
        return LoggedCall(function or "", int(size_bytes), *names, None, TOTAL)
    if match := _SYMMETRIC.search(message):
        kernel = match[3].removeprefix(f"{match[1]}_")
        return LoggedCall(match[1], int(match[2]), "SYMMETRIC", kernel, int(match[4]), PER_RANK)
    if match := _COPIED.search(message):
        function, engine, size_bytes = match.groups()
        name = "COPY_ENGINE" if engine == "Copy Engine" else "HIERARCHICAL_CE"
        return LoggedCall(function, int(size_bytes), name, basis=PER_RANK)
    return None


def logged_bytes(collective: str, size_bytes: int, ranks: int, basis: str) -> int:
    """The bytes that NCCL logs for a case of ``size_bytes`` (the size as nccl-tests defines it).

    Up to 2.23 NCCL logs the size that its cost model uses: all bytes of all ranks (``TOTAL``). From
    2.24 on it logs the count of the call (``PER_RANK``): what one rank sends in an all-gather and
    what it receives in a reduce-scatter.
    """
    per_rank = basis == PER_RANK and collective in ("all_gather", "reduce_scatter")
    return size_bytes // ranks if per_rank and ranks else size_bytes


def choices_of(result: CaseResult, calls: Iterable[LoggedCall]) -> list[Choice]:
    """The distinct choices that NCCL logged for a case, without other functions and sizes; [] for a
    collective without such lines, and for one rank.
    """
    case, choices = result.case, dict[Choice, None]()
    function = FUNCTIONS.get(case.collective)
    if function is None or result.ranks < 2 or not result.size_bytes:
        return []
    for call in calls:
        barrier = not call.function and call.size <= _BARRIER_BYTES
        size = logged_bytes(case.collective, result.size_bytes, result.ranks, call.basis)
        if call.function in (function, "") and not barrier and call.size == size:
            choices[Choice(call.algorithm, call.protocol, call.channels)] = None
    return list(choices)


_KERNEL = re.compile(
    rf"nccl(?:Dev)?Kernel_(?!SendRecv)\w*?_({'|'.join(sorted(ALGORITHMS, key=len, reverse=True))})"
    r"_(LL128|LL|SIMPLE)(?![A-Za-z0-9])"
)
_SYMMETRIC_KERNEL = re.compile(r"ncclSymk?(?:Dev)?Kernel_[A-Za-z]+_(\w+?)(?:_[a-z]+_[a-z]+\d+)?\b")


def kernel_choice(name: str) -> Choice | None:
    """Parse the name of a CUDA kernel: ``ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)``.

    The name is only a hint: NCCL specialises kernels for common combinations and also runs other
    combinations in them (NVIDIA/nccl#1595: RING_LL in the name although Simple was forced). None
    for other kernels, and for sends and receives, which have no algorithm (although up to 2.18
    their names contain RING_SIMPLE).
    """
    if match := _KERNEL.search(name):
        return Choice(match[1], match[2], source="kernel name")
    if match := _SYMMETRIC_KERNEL.search(name):
        return Choice("SYMMETRIC", match[1], source="kernel name")
    return None

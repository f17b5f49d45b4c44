"""How torch's traces name collectives, types, groups and ranks: shared by their readers."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UnreadableError
from torchcoll.core.traffic import TrafficCall
from torchcoll.importers.base import dtype_named, whole

_NAMES = {
    "allreduce": "all_reduce",
    "sparseallreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all_v",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "recvanysource": "recv",
    "barrier": "barrier",
    "monitoredbarrier": "monitored_barrier",
    "allreducebarrier": "barrier",  # how nccl does it
}
_FORM = re.compile(r"(intotensor|coalesced|tensor|single|base|oop)$")
# Of those who call a type by the type of its memory, or by ATen's name, what find_dtype lacks.
_DTYPES = {
    "byte": "uint8",
    "unsignedchar": "uint8",
    "signedchar": "int8",
    "shortint": "int16",
    "longint": "int64",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
}
_BOUND = 1 << 62  # sizes from here on are none
HIDDEN_OP = "the reduce operation is not in the trace: it is shown as unknown"


def torch_collective(name: str) -> str:
    """The collective that torch calls so in a trace; the name itself where it is another thing.

    ``c10d::_allgather_base_``, ``_allgather_base``, ``nccl:_all_gather_base``; what stands behind a
    blank (``nccl:send 0->1``) does not belong to it.
    """
    plain = re.sub(r"^\w+::?", "", name.strip()).split(" ")[0]
    key = plain.replace("_", "").lower()
    while (shorter := _FORM.sub("", key)) != key:
        key = shorter
    return _NAMES.get(key, plain)


def torch_dtype(text: object) -> str | None:
    """torch's name of a type as a trace has it: ``Float``, ``c10::BFloat16``, ``long int``."""
    if not isinstance(text, str) or text.endswith("List") or text == "Scalar":
        return None
    plain = text.removeprefix("c10::").replace(" ", "").lower()
    plain = re.sub(r"<.*>", lambda inner: inner[0][1:-1], plain)  # complex<float>
    return _DTYPES.get(plain) or dtype_named(plain)


def rank_in_name(path: str | os.PathLike[str], bare: bool = False) -> int | None:
    """The rank in a file name: the number behind ``rank``; ``bare``: else the last number of all.

    A bare number may be that of a process, as in what tensorboard's handler writes.
    """
    stem = re.sub(r"(\.pt\.trace)?(\.jsonl?)?(\.gz)?$", "", os.path.basename(path))
    matches = re.findall(r"rank[_-]?(\d+)", stem, re.IGNORECASE)
    matches = matches or (re.findall(r"(\d+)$", stem) if bare else [])
    rank = whole(matches[-1]) if matches else None
    return None if rank is None or rank >= MOST_RANKS else rank


def parse_rank_list(value: object) -> tuple[int, ...]:
    """The ranks of a group: a list, or its text; () where it is neither or was shortened."""
    if isinstance(value, str):
        inner = value.strip().removeprefix("[").removesuffix("]")
        value = [whole(item) if item.strip().isdecimal() else None for item in inner.split(",")]
    good = isinstance(value, list) and all(type(n) is int and 0 <= n < _BOUND for n in value)
    return tuple(value) if good and isinstance(value, list) else ()


def product(shape: Iterable[object]) -> int | None:
    """Elements of a tensor; None where the shape is none, or no memory holds that many."""
    total = 1
    for number in shape:
        if type(number) is not int or number < 0:
            return None
        total *= number
        if total >= _BOUND:
            return None
    return total


def check_ranks(numbers: Iterable[int], path: os.PathLike[str]) -> None:
    """Raises UnreadableError for a rank beyond what a world may have."""
    most = max(numbers, default=0)
    if most >= MOST_RANKS:
        expected = f"ranks from 0 to {MOST_RANKS - 1}"
        raise UnreadableError(f"trace {path}", f"rank {most}", expected)


class Numbers:
    """Numbers the calls of a rank as a capture does: see TrafficCall.sequence."""

    def __init__(self) -> None:
        self._next: Counter[tuple[object, ...]] = Counter()

    def next(self, collective: str, group: str, peer: int | None) -> int:
        key = (group, collective, peer) if collective in ("send", "recv") else (group,)
        self._next[key] += 1
        return self._next[key] - 1


def hidden_op(calls: Sequence[TrafficCall]) -> list[str]:
    """The note about reduce operations, where a call has one."""
    names = {call.collective for call in calls if call.op is None}
    return [HIDDEN_OP] if any(n in COLLECTIVES and COLLECTIVES[n].has_op for n in names) else []

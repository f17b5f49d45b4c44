"""Names of collectives, types, groups and ranks in torch's traces, for all readers of traces."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.reading.base import dtype_named, whole

_NAMES = {
    "allreduce": "all_reduce",
    "sparseallreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all_v",
    **{name: name for name in ("broadcast", "reduce", "gather", "scatter", "send", "recv")},
    "recvanysource": "recv",
    "barrier": "barrier",
    "monitoredbarrier": "monitored_barrier",
    "allreducebarrier": "barrier",  # nccl's barrier
}
_FORM = re.compile(r"(intotensor|coalesced|tensor|single|base|oop)$")
# C++ and ATen names of types that find_dtype does not have.
_DTYPES = {
    "byte": "uint8",
    "unsignedchar": "uint8",
    "signedchar": "int8",
    "shortint": "int16",
    "longint": "int64",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
}
_BOUND = 1 << 62  # sizes must be below


@lru_cache(maxsize=4096)  # dumps have few names, each thousands of times
def torch_collective(name: str) -> str:
    """The collective for a name in torch's traces, or the plain name if it is not a collective.

    ``c10d::_allgather_base_`` and ``nccl:_all_gather_base`` are all_gather; text after a blank is
    ignored.
    """
    plain = re.sub(r"^\w+::?", "", name.strip()).split(" ")[0]
    key = plain.replace("_", "").lower()
    while (shorter := _FORM.sub("", key)) != key:
        key = shorter
    return _NAMES.get(key, plain)


def torch_dtype(text: object) -> str | None:
    """torch's name of a type in a trace: ``Float``, ``c10::BFloat16``, ``long int``."""
    if not isinstance(text, str) or text.endswith("List") or text == "Scalar":
        return None
    plain = text.removeprefix("c10::").replace(" ", "").lower()
    plain = re.sub(r"<.*>", lambda inner: inner[0][1:-1], plain)  # complex<float>
    return _DTYPES.get(plain) or dtype_named(plain)


def rank_in_name(path: str | os.PathLike[str], bare: bool = False) -> int | None:
    """The number after ``rank`` in a file name. bare: or else a number at its end."""
    stem = re.sub(r"(\.pt\.trace)?(\.jsonl?|\.pickle|\.pkl)?(\.gz)?$", "", os.path.basename(path))
    matches = re.findall(r"rank[_-]?(\d+)", stem, re.IGNORECASE)
    matches = matches or (re.findall(r"(\d+)$", stem) if bare else [])
    rank = whole(matches[-1]) if matches else None
    return None if rank is None or rank >= MOST_RANKS else rank


def parse_rank_list(value: object) -> tuple[int, ...]:
    """The ranks in a list or in its text; () for anything else, and if the list was shortened."""
    if isinstance(value, str):
        inner = value.strip().removeprefix("[").removesuffix("]")
        value = [whole(item) if item.strip().isdecimal() else None for item in inner.split(",")]
    good = isinstance(value, list) and all(type(n) is int and 0 <= n < _BOUND for n in value)
    return tuple(value) if good and isinstance(value, list) else ()


def product(shape: Iterable[object]) -> int | None:
    """Elements of a tensor; None if the shape is not valid, or too large."""
    total = 1
    for number in shape:
        if type(number) is not int or number < 0:
            return None
        total *= number
        if total >= _BOUND:
            return None
    return total


class Numbers:
    """Counts the calls of a rank as a capture does (TrafficCall.sequence)."""

    def __init__(self) -> None:
        self._next: Counter[tuple[object, ...]] = Counter()

    def next(self, collective: str, group: str, peer: int | None) -> int:
        key = (group, collective, peer) if collective in ("send", "recv") else (group,)
        self._next[key] += 1
        return self._next[key] - 1

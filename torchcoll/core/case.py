"""One point of a sweep: a Case, the counts that follow from it on a number of ranks, and the
sub-groups that run it at the same time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from torchcoll.core.backends import communicates
from torchcoll.core.collectives import COLLECTIVES, DTYPES, Layout, busbw_gbps
from torchcoll.core.errors import UsageError
from torchcoll.core.units import format_size

if TYPE_CHECKING:
    from torchcoll.core.splits import Division, Weights

OWN = "own"  # of implementation: the backend itself makes the collective


# All that verification holds beside the buffers, temporaries too: it works in chunks of so many
# bytes, counting for each element two float64 and a comparison (avg, the hungriest).
CHECK_CHUNK_BYTES = 64 << 20
CHECK_ELEMENT_BYTES = 24
# Where a place in a rotated buffer may begin: a cache line of a GPU, or two of a CPU. nccl-tests
# rounds its counts to 16 bytes; ours are not rounded, and calls would be timed on addresses that
# alignment alone makes slow.
PLACE_BYTES = 128


class NotRun(NamedTuple):
    """Why a case has no figures: the ``status`` of its result, and the reason that is shown."""

    status: str
    reason: str


def fields_of(record: Any) -> dict[str, Any]:
    """``dataclasses.asdict`` of what holds no dataclass and no list, ten times as fast: a file of
    another tool may have a million cases.
    """
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


# Slots: a large file of another tool has a million of them.
@dataclass(frozen=True, slots=True)
class Case:
    """One point of the sweep: hashable, equal on all ranks, the grouping key of every analysis.

    ``size_bytes`` is the requested size S; what became of it is in the CaseResult. dtype, op and
    root are None where the collective has none, or an imported file does not tell them (nor
    in_place). ``splits`` names the split rule of a collective that has_splits.

    mode: how the steady calls follow each other: ``synchronized`` (a barrier before each),
    ``back-to-back``, ``graph`` (captured and replayed) or ``unknown``. backend: torch's
    name of it, in imported files what stands for it (``mpi``). device: ``cpu``, ``cuda``, ``xpu``
    or ``unknown``. buffers: ``default``, ``registered`` with the communicator, or ``symmetric``.
    buffer_reuse: ``same`` buffers in every call, ``rotate`` (each call takes the next place in
    buffers as large as the largest of the sweep, nccl-tests' way, but each begins at a multiple of
    128 bytes; the calls of one group share a place) or ``unknown``. rehearsal: several ranks shared
    one GPU: no bandwidth.

    group: the sub-group rule (``mod:2``), in results with the number of the sub-group
    (``mod:2/0``). implementation: ``own``, the backend's, or one of core/implementations.py that
    makes the calls in its place. asynchronous: called with async_op and waited for, DDP's way.
    coalesce: so many calls in one group, timed together (nccl-tests' -m); size_bytes is the size of
    one of them.
    """

    collective: str
    size_bytes: int
    dtype: str | None
    op: str | None
    root: int | None
    in_place: bool | None
    mode: str
    backend: str
    device: str
    splits: str | None = None
    group: str | None = None
    buffers: str = "default"
    asynchronous: bool = False
    coalesce: int = 1
    rehearsal: bool = False
    buffer_reuse: str = "same"
    implementation: str = OWN

    def to_json(self) -> dict[str, Any]:
        return fields_of(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        """Unknown fields are ignored: files of later versions stay readable.

        Raises ValueError or TypeError for what no Case can hold, so that nothing fails later on.
        """
        case = cls(**{k: v for k, v in data.items() if k in cls.__dataclass_fields__})
        texts = (case.collective, case.mode, case.backend, case.device)
        buffers = (case.buffers, case.buffer_reuse, case.implementation)
        optional = (case.dtype, case.op, case.splits, case.group)
        numbers = (case.size_bytes, 0 if case.root is None else case.root, case.coalesce)
        if not (
            all(isinstance(text, str) for text in (*texts, *buffers))
            and all(text is None or isinstance(text, str) for text in optional)
            and all(type(number) is int for number in numbers)
            and (case.in_place is None or isinstance(case.in_place, bool))
            and isinstance(case.asynchronous, bool)
            and isinstance(case.rehearsal, bool)
        ):
            raise TypeError("a case has a field of another type")
        if case.collective not in COLLECTIVES:
            raise ValueError(f"unknown collective {case.collective}")
        return case

    @property
    def back_to_back(self) -> bool:
        """True where no barrier stands between the steady calls: what is read of them is their
        period.
        """
        return self.mode in ("back-to-back", "graph")

    @property
    def communicates(self) -> bool:
        """False on a backend that sends nothing."""
        return communicates(self.backend)

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize if self.dtype else 1

    @property
    def uneven_side(self) -> str:
        """The side of the call that has a tensor for each uneven block; '' of even blocks."""
        return COLLECTIVES[self.collective].blocks

    @property
    def verifiable(self) -> bool:
        """False where several calls of a group reduce the same buffer in place: what they leave
        depends on their order.
        """
        return not (self.coalesce > 1 and self.in_place and self.op)

    def describe(self) -> str:
        """``all_reduce 1K float32 sum on gloo``: how messages name the case."""
        size = format_size(self.size_bytes) if COLLECTIVES[self.collective].has_data else None
        root = None if self.root is None else f"root {self.root}"
        where = f"on {self.backend}"
        where += f" by {self.implementation}" if self.implementation != OWN else ""
        parts = (self.collective, size, self.dtype, self.op, root, where)
        return " ".join(w for w in parts if w)


@dataclass(frozen=True)
class Sizing:
    """A case on a number of ranks: the element counts that follow from it.

    count: argument of the call, in elements (uneven blocks: the most that one rank sends to one).
    size_bytes: actual size S. bytes_in / bytes_out: the most that one rank sends from / receives
    in. span_bytes: what a buffer holds at least, for its calls to walk through; 0 is its own size.
    """

    case: Case
    ranks: int
    count: int
    size_bytes: int
    division: Division | None = None  # where blocks are uneven
    span_bytes: int = 0

    def layout(self, rank: int) -> Layout:
        return Layout(rank, self.ranks, self.count, self.case.root or 0, self.division)

    def elements(self, rank: int) -> tuple[int, int]:
        """Elements that this rank sends from and receives in."""
        return COLLECTIVES[self.case.collective].elements(self.layout(rank))

    def _widest(self, side: int) -> int:
        # Only uneven blocks differ from rank to rank otherwise than at the root.
        ranks = range(self.ranks) if self.division else (0, self.case.root or 0)
        return max(self.elements(rank)[side] for rank in ranks) * self.case.itemsize

    @property
    def bytes_in(self) -> int:
        return self._widest(0)

    @property
    def bytes_out(self) -> int:
        return self._widest(1)

    @property
    def busiest_bytes(self) -> int | None:
        """Of uneven blocks: see CaseResult; elsewhere None."""
        if self.division is None:
            return None
        kept = COLLECTIVES[self.case.collective].kept
        moved = (max(self.elements(rank)) - kept(self.layout(rank)) for rank in range(self.ranks))
        return max(moved) * self.case.itemsize

    @property
    def bus_bytes(self) -> int:
        """Bytes that one call counts for busbw: all of its coalesced calls; 0 on one rank."""
        numbers = (self.size_bytes, self.ranks, 1, self.busiest_bytes)  # bytes in 1 ns are GB/s
        return round(self.case.coalesce * (busbw_gbps(self.case.collective, *numbers) or 0))

    @cached_property
    def stride(self) -> int:
        """Elements from one place of a buffer to the next, alike on all ranks and in both buffers,
        as in nccl-tests (common.cu, startColl: the larger of what is sent and what is received),
        rounded up to ``PLACE_BYTES``.
        """
        largest = max(self.bytes_in, self.bytes_out)
        return -(-largest // PLACE_BYTES) * PLACE_BYTES // self.case.itemsize

    @property
    def places(self) -> int:
        """How many calls have a place of their own before the first one is taken again."""
        stride_bytes = self.stride * self.case.itemsize
        return max(1, self.span_bytes // stride_bytes) if stride_bytes else 1

    def room(self, rank: int) -> tuple[int, int]:
        """Elements of the buffers that this rank sends from and receives in, all places."""
        sent, received = self.elements(rank)
        if not self.span_bytes or self.places == 1:
            return sent, received
        whole = self.places * self.stride
        return (whole if sent else 0), (whole if received else 0)

    def buffer_bytes(self, rank: int) -> int:
        """Bytes of the buffers that this rank allocates."""
        sent, received = self.room(rank)
        together = max(sent, received) if self.case.in_place else sent + received
        return together * self.case.itemsize


def size_case(
    case: Case, ranks: int, weights: Weights | None = None, span_bytes: int = 0
) -> Sizing:
    """The counts of ``case`` on ``ranks`` ranks, in buffers of ``span_bytes`` or its own size.

    count = max(1, S // (itemsize x parts)), without nccl-tests' multiples of 16 bytes.
    Uneven blocks: the most that a rank sends or receives is S (nccl-tests' size of alltoallv),
    divided by ``weights``.
    """
    entry = COLLECTIVES[case.collective]
    if not entry.has_data:
        return Sizing(case, ranks, 0, 0)
    if entry.divide:
        from torchcoll.core.splits import split_weights

        elements = max(1, case.size_bytes // case.itemsize)
        division = entry.divide(weights or split_weights(case.splits or "", ranks), elements)
        places = (Layout(rank, ranks, 0, case.root or 0, division) for rank in range(ranks))
        size_bytes = max(max(entry.elements(place)) for place in places) * case.itemsize
        return Sizing(case, ranks, division.largest_pair, size_bytes, division, span_bytes)
    parts = entry.parts(ranks)
    count = max(1, case.size_bytes // (case.itemsize * parts))
    size_bytes = count * case.itemsize * parts
    return Sizing(case, ranks, count, size_bytes, span_bytes=span_bytes)


def need_bytes(sizing: Sizing, rank: int, check: bool) -> int:
    """Bytes that this rank needs for a case: its buffers, and a chunk to verify the output in, and
    out of place the input.

    Coalesced calls share the buffers, and neither torch's nccl nor its xccl copies what is
    coalesced: each gives its library the buffer of each call (ProcessGroupNCCL.cpp and
    ProcessGroupXCCL.cpp, collectiveCoalesced).
    """
    buffers = sizing.buffer_bytes(rank)
    case = sizing.case
    if not (check and case.verifiable):
        return buffers
    sent, received = sizing.elements(rank)
    if COLLECTIVES[case.collective].rooted_output and rank != case.root:
        received = 0  # nobody looks at it
    looked_at = received if case.in_place else max(sent, received)
    return buffers + min(CHECK_CHUNK_BYTES, looked_at * CHECK_ELEMENT_BYTES)


def calls_of_batch(calls: int, each: int) -> list[int]:
    """How many calls each sample of a batch is the mean of: ``each``, the last one of the rest."""
    return [each] * (calls // each) + ([calls % each] if calls % each else [])


def fingerprint(data: Any) -> str:
    """A short hash of JSON-able data, equal on every rank that was asked the same."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# Sub-groups that run the collective at the same time, as in data- and tensor-parallel meshes.
#
# ``mod:2``: ranks with the same r mod 2 (NCCL_TESTS_SPLIT's "mod"). ``div:4``: ranks with the same
# r div 4. ``0,1;2,3``: a list, which holds every rank once. In a sub-group ranks stand in ascending
# order, as in torch's groups.

_EXPECTED = "mod:N, div:N, or a list of ranks such as 0,1;2,3"
_LONGEST_LIST = 40  # characters: a longer list fills every table, so a rule that says it goes first

Ranks = tuple[int, ...]


def partition(groups: str, ranks: int) -> tuple[tuple[int, ...], ...]:
    """The sub-groups of so many ranks. Raises UsageError."""
    rule, colon, text = groups.partition(":")
    if colon:
        if rule not in ("mod", "div") or not text.isdecimal() or int(text) < 1:
            raise UsageError("groups", groups, _EXPECTED)
        number = int(text)
        colours = [rank % number if rule == "mod" else rank // number for rank in range(ranks)]
        return tuple(
            tuple(rank for rank in range(ranks) if colours[rank] == colour)
            for colour in sorted(set(colours))
        )
    try:
        parts = tuple(tuple(sorted(map(int, part.split(",")))) for part in groups.split(";"))
    except ValueError:
        raise UsageError("groups", groups, _EXPECTED) from None
    if sorted(rank for part in parts for rank in part) != list(range(ranks)):
        raise UsageError("groups", groups, f"each of the ranks 0 to {ranks - 1} once")
    return parts


def partition_text(parts: Collection[Ranks]) -> str:
    """What ``partition`` reads as these parts: ``0,1;2,3``, or a rule where the list is long."""
    text = ";".join(",".join(map(str, part)) for part in parts)
    if len(text) > _LONGEST_LIST:
        ranks = sum(map(len, parts))
        longest = max(map(len, parts))
        for rule in (f"div:{longest}", f"mod:{len(parts)}"):
            if set(partition(rule, ranks)) == set(parts):
                return rule
    return text


def partitions(
    groups: Iterable[Ranks], ranks: int, seen: Collection[int]
) -> list[tuple[Ranks, ...]]:
    """Ways to divide all ranks that together hold the groups, each of which was used at once.

    Groups of a mesh (every s-th rank, k of them) belong to the dimension with the same s and k;
    others are put together where they share no rank. A rank in none of the groups of a way was
    ``seen`` to use none, and is alone; one that was not seen is taken to be as its mesh has it.
    """
    meshes: dict[tuple[Ranks, ...], list[Ranks]] = {}
    loose: list[list[Ranks]] = []
    for group in sorted(groups):
        mesh = mesh_of(group, ranks)
        if mesh:
            meshes.setdefault(mesh, []).append(group)
            continue
        fitting = (
            division for division in loose if not any(set(group) & set(part) for part in division)
        )
        division = next(fitting, None)
        if division is None:
            loose.append([group])
        else:
            division.append(group)
    for mesh, subgroups in meshes.items():
        subgroups += [part for part in mesh if part not in subgroups and not set(part) & set(seen)]
    return [_filled(division, ranks) for division in (*meshes.values(), *loose)]


def _filled(division: list[Ranks], ranks: int) -> tuple[Ranks, ...]:
    there = {rank for part in division for rank in part}
    return tuple(sorted([*division, *((rank,) for rank in range(ranks) if rank not in there)]))


def mesh_of(group: Ranks, ranks: int) -> tuple[Ranks, ...]:
    """The dimension of a mesh over all ranks of which this is one group; () where there is none."""
    step, size = group[1] - group[0] if len(group) > 1 else 1, len(group)
    block = step * size
    if group != tuple(range(group[0], group[0] + block, step)) or ranks % block:
        return ()
    parts = tuple(
        tuple(range(start + place, start + place + block, step))
        for start in range(0, ranks, block)
        for place in range(step)
    )
    return parts if group in parts else ()

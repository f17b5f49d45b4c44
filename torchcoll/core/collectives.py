"""The table of collectives, with their reductions and element types.

To add a collective, add an entry and a stub ``torchcoll/<module>.py``. ``prepare`` takes
``torch.distributed``, so that this module works without torch. If the call is a single torch
function, it returns a ``functools.partial`` of it, to which async_op can be added.

Sizes, bus factors, algbw and busbw are those of nccl-tests, but counts are not rounded down to 16
bytes. Bytes per nanosecond are GB/s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from torchcoll.core.backends import backend_of
from torchcoll.core.errors import unknown

if TYPE_CHECKING:
    from torchcoll.core.splits import Division, Weights

# Lower case; torch.distributed.ReduceOp calls prod PRODUCT.
OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")


@dataclass(frozen=True)
class Layout:
    """What determines the buffers of one rank in one case. rank, ranks, root: within the group.

    count: the count argument of the call, in elements. division: for uneven blocks.
    """

    rank: int
    ranks: int
    count: int
    root: int = 0
    division: Division | None = None

    @property
    def blocks(self) -> Division:
        assert self.division is not None
        return self.division


@dataclass(frozen=True)
class Segment:
    """``length`` elements of the output, from ``offset`` on, and where their values come from.

    source: the rank whose input is copied; None means the reduction of all inputs.
    """

    offset: int
    length: int
    source: int | None
    source_offset: int


Call = Callable[[], object]

SENT, RECEIVED, BOTH = "sent", "received", "both"
# Each bus factor as a formula, and its reason.
_TWICE = (
    "2 (n - 1) / n",
    "each rank sends n - 1 of the n blocks of S once to be reduced, and n - 1 once as results; "
    "only a switch that reduces needs less",
)
_OTHERS = (
    "(n - 1) / n",
    "of the n blocks of S a rank, or the root, has one already: n - 1 pass its links",
)


@dataclass(frozen=True)
class Collective:
    """One entry of the table. n is the number of ranks, S the size of a call in bytes.

    ``segments(layout)``: what the output of a rank must be.
    ``prepare(dist, layout, send, recv, op, group)``: returns the call.
    ``elements(layout)``: elements of the send and of the receive buffer of a rank.
    ``parts(n)``: S is divided into so many parts of ``count`` elements.
    ``bus_factor(n)``: busbw / algbw; for uneven blocks as if they were even.
    ``placements``: False is out of place, True is in place; the first is the default.
    ``overlap(layout)``: in place, the element of the larger buffer where the smaller one begins.
    ``moved(n)``: the share of S that algbw counts; 1 except for hypercube.
    ``divide(weights, elements)``: divides at most so many elements into uneven blocks.
    ``even``, ``blocks``, ``kept(layout)``: for uneven blocks, the same collective with even blocks,
    the side of torch's call that takes a tensor per block, and the elements that stay on a rank.
    ``crossing(hosts, per_host, root)``: the least that the busiest host must send or receive,
    divided by S, given the host of each rank and the number of ranks of each host.
    by_switch: with a switch that reduces and copies, each rank sends and receives S only once.
    collected: torch's coalescing manager merges several calls into one by itself.
    """

    name: str
    segments: Callable[[Layout], Sequence[Segment]]
    prepare: Callable[..., Call]
    elements: Callable[[Layout], tuple[int, int]] = lambda x: (x.count, x.count)
    parts: Callable[[int], int] = lambda n: 1
    bus_factor: Callable[[int], float] = lambda n: 1.0
    factor: tuple[str, str] = ("1", "all of S passes a link of one rank once")
    placements: tuple[bool, ...] = (False,)
    overlap: Callable[[Layout], int] = lambda layout: 0
    moved: Callable[[int], float] = lambda n: 1.0
    divide: Callable[[Weights, int], Division] | None = None
    even: str = ""
    blocks: str = ""
    kept: Callable[[Layout], int] = lambda layout: 0
    crossing: Callable[[Sequence[str], Counter[str], int], float] | None = None
    has_data: bool = True
    has_root: bool = False
    has_op: bool = False
    rooted_output: bool = False
    by_switch: bool = False
    collected: bool = False
    power_of_two: bool = False
    min_ranks: int = 1
    aliases: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """The name of its stub (``allreduce``), which differs from all public names."""
        return self.name.replace("_", "")

    @property
    def has_splits(self) -> bool:
        return self.divide is not None


def _global_rank(dist: Any, group: Any, rank: int) -> int:
    return rank if group is None else int(dist.get_global_rank(group, rank))


def _renamed(dist: Any, new: str, old: str) -> Any:
    # torch 2.13 renamed some functions and warns about the old names, the only ones in torch 2.6.
    return getattr(dist, new, None) or getattr(dist, old)


def _share_of_others(n: int) -> float:
    return (n - 1) / n


def _blocks_of_all(x: Layout) -> list[Segment]:
    return [Segment(s * x.count, x.count, s, 0) for s in range(x.ranks)]


def _own_block(x: Layout) -> int:
    return x.rank * x.count


def _root_block(x: Layout) -> int:
    return _own_block(x) if x.rank == x.root else 0  # others have only one buffer


def _all_reduce(dist: Any, x: Layout, send: Any, recv: Any, op: Any, group: Any) -> Call:
    return partial(dist.all_reduce, recv, op, group)


def _all_gather(dist: Any, x: Layout, send: Any, recv: Any, op: Any, group: Any) -> Call:
    call = _renamed(dist, "all_gather_single", "all_gather_into_tensor")
    return partial(call, recv, send, group=group)


def _reduce_scatter(dist: Any, x: Layout, send: Any, recv: Any, op: Any, group: Any) -> Call:
    call = _renamed(dist, "reduce_scatter_single", "reduce_scatter_tensor")
    return partial(call, recv, send, op=op, group=group)


def _all_to_all(dist: Any, x: Layout, send: Any, recv: Any, op: Any, group: Any) -> Call:
    return partial(dist.all_to_all_single, recv, send, group=group)


def _all_to_all_v(dist: Any, x: Layout, send: Any, recv: Any, op: Any, group: Any) -> Call:
    sent = [x.blocks.pair(x.rank, peer) for peer in range(x.ranks)]
    received = [x.blocks.pair(peer, x.rank) for peer in range(x.ranks)]
    return partial(dist.all_to_all_single, recv, send, received, sent, group=group)


def _segments_v(x: Layout) -> list[Segment]:
    segments, offset = [], 0
    for source in range(x.ranks):
        row = [x.blocks.pair(source, peer) for peer in range(x.rank + 1)]
        segments.append(Segment(offset, row[-1], source, sum(row[:-1])))
        offset += row[-1]
    return segments


def _pairs(weights: Weights, elements: int) -> Division:
    from torchcoll.core.splits import Division  # only here, to keep the start of ranks fast

    return Division(weights, elements)


def _block_of_each(weights: Weights, elements: int) -> Division:
    """Divide into one block per rank, in proportion to its column of weights."""
    from torchcoll.core.splits import Division, Weights

    columns = weights.received
    row = tuple(sum(w * times for w, times in column.items()) for column in columns)
    return Division(Weights([row]), elements)


def _lengths(x: Layout) -> list[int]:
    return [x.blocks.pair(0, rank) for rank in range(x.ranks)]


def _reduce_scatter_v(dist: Any, x: Layout, send: Any, recv: Any, op: Any, group: Any) -> Call:
    return partial(dist.reduce_scatter, recv, list(send.split(_lengths(x))), op, group)


def _all_gather_v(dist: Any, x: Layout, send: Any, recv: Any, op: Any, group: Any) -> Call:
    return partial(dist.all_gather, list(recv.split(_lengths(x))), send, group)


def _gathered_v(x: Layout) -> list[Segment]:
    lengths = _lengths(x)
    starts = [*accumulate(lengths, initial=0)]
    return [Segment(starts[rank], length, rank, 0) for rank, length in enumerate(lengths)]


def _broadcast(dist: Any, x: Layout, send: Any, recv: Any, op: Any, group: Any) -> Call:
    root = _global_rank(dist, group, x.root)
    return partial(dist.broadcast, recv, root, group)


def _reduce(dist: Any, x: Layout, send: Any, recv: Any, op: Any, group: Any) -> Call:
    root = _global_rank(dist, group, x.root)
    buffer = recv if x.rank == x.root else send
    return partial(dist.reduce, buffer, root, op, group)


def _gather(dist: Any, x: Layout, send: Any, recv: Any, op: Any, group: Any) -> Call:
    root = _global_rank(dist, group, x.root)
    blocks = list(recv.view(x.ranks, x.count).unbind(0)) if x.rank == x.root else None
    return partial(dist.gather, send, blocks, root, group)


def _scatter(dist: Any, x: Layout, send: Any, recv: Any, op: Any, group: Any) -> Call:
    root = _global_rank(dist, group, x.root)
    blocks = list(send.view(x.ranks, x.count).unbind(0)) if x.rank == x.root else None
    return partial(dist.scatter, recv, blocks, root, group)


def _sendrecv(dist: Any, x: Layout, send: Any, recv: Any, op: Any, group: Any) -> Call:
    after = _global_rank(dist, group, (x.rank + 1) % x.ranks)
    before = _global_rank(dist, group, (x.rank - 1) % x.ranks)
    sent = dist.P2POp(dist.isend, send, after, group)
    pair = [sent, dist.P2POp(dist.irecv, recv, before, group)]
    return lambda: _exchange(dist, pair)


def _exchange(dist: Any, pair: list[Any]) -> None:
    for work in dist.batch_isend_irecv(pair):
        work.wait()


def _hypercube(dist: Any, x: Layout, send: Any, recv: Any, op: Any, group: Any) -> Call:
    # Recursive doubling as in nccl-tests' hypercube.cu: step k exchanges the 2**k blocks gathered
    # so far. Out of place, the rank's own block is copied first.
    block = recv.narrow(0, x.rank * x.count, x.count)
    steps, width = [], 1
    while width < x.ranks:
        peer = x.rank ^ width
        peer_rank, size = _global_rank(dist, group, peer), width * x.count
        sent = recv.narrow(0, (x.rank & -width) * x.count, size)
        received = recv.narrow(0, (peer & -width) * x.count, size)
        send_op = dist.P2POp(dist.isend, sent, peer_rank, group)
        steps.append([send_op, dist.P2POp(dist.irecv, received, peer_rank, group)])
        width *= 2
    copy = send.data_ptr() != block.data_ptr()

    def call() -> None:
        if copy:
            block.copy_(send)
        for pair in steps:
            _exchange(dist, pair)

    return call


def _barrier(dist: Any, x: Layout, send: Any, recv: Any, op: Any, group: Any) -> Call:
    guesses_device = backend_of(dist.get_backend(group)).guesses_device
    ids = {"device_ids": [recv.device.index]} if guesses_device else {}
    return partial(dist.barrier, group, **ids)


# Lower bounds of what must cross between hosts, over S, if transfers within a host are free and
# switches may reduce and copy.


def _once(hosts: Sequence[str], per_host: Counter[str], root: int) -> float:
    """A partial sum leaves each host, or the result reaches it."""
    return 1.0


def _of_others(hosts: Sequence[str], per_host: Counter[str], root: int) -> float:
    """Blocks of other hosts come in, and those of this host go out (Thakur et al. 2005)."""
    return max(max(len(hosts) - n, n) for n in per_host.values()) / len(hosts)


def _beyond_root(hosts: Sequence[str], per_host: Counter[str], root: int) -> float:
    """The blocks of ranks on other hosts pass the interfaces of the root's host."""
    return (len(hosts) - per_host[hosts[root]]) / len(hosts)


def _to_all_others(hosts: Sequence[str], per_host: Counter[str], root: int) -> float:
    """Each rank sends a block to each rank on the other hosts."""
    return max(n * (len(hosts) - n) for n in per_host.values()) / len(hosts)


def _to_neighbours(hosts: Sequence[str], per_host: Counter[str], root: int) -> float:
    """S crosses for each rank whose neighbour in the ring is on another host."""
    after = [*hosts[1:], hosts[0]]
    away = [pair for pair in zip(hosts, after, strict=True) if pair[0] != pair[1]]
    out, into = (Counter(side) for side in zip(*away, strict=True))
    return float(max(*out.values(), *into.values()))


# S has a block for each rank, of which a rank, or the root, has one already.
_of_blocks = partial(Collective, parts=int, bus_factor=_share_of_others, factor=_OTHERS)
_in_place_too = partial(_of_blocks, placements=(False, True), overlap=_own_block)
_rooted = partial(_in_place_too, overlap=_root_block, has_root=True, crossing=_beyond_root)
_of_uneven_blocks = partial(Collective, bus_factor=_share_of_others, factor=_OTHERS)

COLLECTIVES: dict[str, Collective] = {
    c.name: c
    for c in (
        Collective(
            "all_reduce",
            bus_factor=lambda n: 2 * (n - 1) / n,
            factor=_TWICE,
            segments=lambda x: [Segment(0, x.count, None, 0)],
            prepare=_all_reduce,
            placements=(True,),
            has_op=True,
            crossing=_once,
            by_switch=True,
            collected=True,
        ),
        _in_place_too(
            "all_gather",
            elements=lambda x: (x.count, x.count * x.ranks),
            segments=_blocks_of_all,
            prepare=_all_gather,
            aliases=("all_gather_into_tensor", "all_gather_single"),
            crossing=_of_others,
            collected=True,
        ),
        _in_place_too(
            "reduce_scatter",
            elements=lambda x: (x.count * x.ranks, x.count),
            segments=lambda x: [Segment(0, x.count, None, _own_block(x))],
            prepare=_reduce_scatter,
            has_op=True,
            aliases=("reduce_scatter_tensor", "reduce_scatter_single", "reduce_scatter_block"),
            crossing=_of_others,
            collected=True,
        ),
        _of_blocks(
            "all_to_all",
            elements=lambda x: (x.count * x.ranks, x.count * x.ranks),
            segments=lambda x: [
                Segment(s * x.count, x.count, s, _own_block(x)) for s in range(x.ranks)
            ],
            prepare=_all_to_all,
            aliases=("all_to_all_single",),
            crossing=_to_all_others,
        ),
        _of_uneven_blocks(
            "all_to_all_v",
            divide=_pairs,
            even="all_to_all",
            blocks=BOTH,
            kept=lambda x: x.blocks.pair(x.rank, x.rank),
            elements=lambda x: (x.blocks.sent[x.rank], x.blocks.received[x.rank]),
            segments=_segments_v,
            prepare=_all_to_all_v,
        ),
        _of_uneven_blocks(
            "reduce_scatter_v",
            divide=_block_of_each,
            even="reduce_scatter",
            blocks=SENT,
            kept=lambda x: x.blocks.pair(0, x.rank),
            elements=lambda x: (x.blocks.sent[0], x.blocks.received[x.rank]),
            segments=lambda x: [
                Segment(0, x.blocks.received[x.rank], None, sum(_lengths(x)[: x.rank]))
            ],
            prepare=_reduce_scatter_v,
            has_op=True,
        ),
        _of_uneven_blocks(
            "all_gather_v",
            divide=_block_of_each,
            even="all_gather",
            blocks=RECEIVED,
            kept=lambda x: x.blocks.pair(0, x.rank),
            elements=lambda x: (x.blocks.received[x.rank], x.blocks.sent[0]),
            segments=_gathered_v,
            prepare=_all_gather_v,
        ),
        Collective(
            "broadcast",
            segments=lambda x: [Segment(0, x.count, x.root, 0)],
            prepare=_broadcast,
            placements=(True,),
            has_root=True,
            aliases=("bcast",),
            crossing=_once,
        ),
        Collective(
            "reduce",
            segments=lambda x: [Segment(0, x.count, None, 0)] if x.rank == x.root else [],
            prepare=_reduce,
            placements=(True,),
            has_root=True,
            has_op=True,
            crossing=_once,
            rooted_output=True,
        ),
        _rooted(
            "gather",
            elements=lambda x: (x.count, x.count * x.ranks if x.rank == x.root else 0),
            segments=lambda x: _blocks_of_all(x) if x.rank == x.root else [],
            prepare=_gather,
            rooted_output=True,
        ),
        _rooted(
            "scatter",
            elements=lambda x: (x.count * x.ranks if x.rank == x.root else 0, x.count),
            segments=lambda x: [Segment(0, x.count, x.root, _own_block(x))],
            prepare=_scatter,
        ),
        Collective(
            "sendrecv",
            segments=lambda x: [Segment(0, x.count, (x.rank - 1) % x.ranks, 0)],
            prepare=_sendrecv,
            min_ranks=2,
            aliases=("send_recv",),
            crossing=_to_neighbours,
        ),
        Collective(
            "hypercube",
            parts=int,
            moved=_share_of_others,
            elements=lambda x: (x.count, x.count * x.ranks),
            segments=_blocks_of_all,
            prepare=_hypercube,
            placements=(False, True),
            overlap=_own_block,
            power_of_two=True,
            crossing=_of_others,
        ),
        Collective(
            "barrier",
            has_data=False,
            elements=lambda x: (0, 0),
            segments=lambda x: [],
            prepare=_barrier,
        ),
    )
}


def _plain(name: str) -> str:
    """The same key for all spellings: all_reduce, AllReduce, MPI_Allreduce, all-reduce."""
    plain = str(name).strip().lower().removeprefix("mpi_").removesuffix("_perf")
    return plain.replace("_", "").replace("-", "")


DEFAULT_COLLECTIVE = "all_reduce"  # what is measured if no collective is named
PAIR = "sendrecv"  # the exchange between two ranks
_UNEVEN = {entry.even: entry.name for entry in COLLECTIVES.values() if entry.even}


def has_splits(name: str) -> bool:
    """Whether a collective has uneven blocks; False for names that are not in the table."""
    return name in COLLECTIVES and COLLECTIVES[name].has_splits


def exchange_with_splits(name: str) -> str:
    """The uneven variant of an exchange that torch makes by the same function; '' if none."""
    twin = _UNEVEN.get(name)
    return twin if twin and COLLECTIVES[twin].blocks == BOTH else ""


def uneven(name: str, sent: Sequence[int], received: Sequence[int]) -> str:
    """The uneven variant of the collective if the sizes of a side differ, else ``name``."""
    twin = _UNEVEN.get(name)
    if twin is None:
        return name
    blocks = {SENT: sent, RECEIVED: received, BOTH: [*sent, *received]}[COLLECTIVES[twin].blocks]
    return twin if len(set(blocks)) > 1 else name


_BY_ALIAS = {_plain(alias): c for c in COLLECTIVES.values() for alias in (c.name, *c.aliases)}


def find_collective(name: str) -> Collective:
    """Find a collective by its name in torch, nccl-tests or MPI. Raises UsageError."""
    collective = _BY_ALIAS.get(_plain(name))
    if collective is None:
        raise unknown("collective", name, COLLECTIVES)
    return collective


def find_op(name: str) -> str:
    """The name of a reduction in torch's spelling. Raises UsageError."""
    plain = str(name).strip().lower()
    if plain not in OPS:
        file = "." in plain or "/" in plain
        raise unknown("op", name, OPS, action="-J names the result file here." if file else "")
    return plain


@dataclass(frozen=True)
class Dtype:
    """One element type.

    exact: the largest n for which the type represents all of 0, 1, ..., n exactly.
    common: every backend has it. ``--dtype all`` means these types.
    """

    name: str
    itemsize: int  # bytes
    kind: str  # 'float', 'int' or 'uint'
    exact: int
    aliases: tuple[str, ...] = ()
    common: bool = True


DTYPES: dict[str, Dtype] = {
    d.name: d
    for d in (
        Dtype("float32", 4, "float", 1 << 24, ("float", "fp32")),
        Dtype("float64", 8, "float", 1 << 53, ("double", "fp64")),
        Dtype("float16", 2, "float", 1 << 11, ("half", "fp16")),
        Dtype("bfloat16", 2, "float", 1 << 8, ("bf16",)),
        Dtype("int8", 1, "int", 127, ("char",)),
        Dtype("uint8", 1, "uint", 255, ()),
        Dtype("int16", 2, "int", (1 << 15) - 1, ("short",), common=False),
        Dtype("int32", 4, "int", (1 << 31) - 1, ("int",)),
        Dtype("int64", 8, "int", (1 << 63) - 1, ("long",)),
        Dtype("float8_e4m3fn", 1, "float", 16, ("f8e4m3", "fp8_e4m3"), common=False),
        Dtype("float8_e5m2", 1, "float", 8, ("f8e5m2", "fp8_e5m2"), common=False),
    )
}

COMMON_DTYPES = tuple(name for name, dtype in DTYPES.items() if dtype.common)

_DTYPE_BY_ALIAS = {alias: d for d in DTYPES.values() for alias in (d.name, *d.aliases)}


def find_dtype(name: str) -> Dtype:
    """Find a type by its name in torch or nccl-tests. Raises UsageError."""
    dtype = _DTYPE_BY_ALIAS.get(str(name).removeprefix("torch.").lower())
    if dtype is None:
        raise unknown("dtype", name, DTYPES)
    return dtype


def algbw_gbps(collective: str, size_bytes: int, ranks: int, time_ns: float) -> float | None:
    """Algorithm bandwidth S / t in GB/s; None for one rank, without data or without a time."""
    entry = COLLECTIVES[collective]
    if ranks < 2 or size_bytes == 0 or time_ns <= 0 or not entry.has_data:
        return None
    return size_bytes * entry.moved(ranks) / time_ns


def busbw_gbps(
    collective: str, size_bytes: int, ranks: int, time_ns: float, busiest_bytes: int | None = None
) -> float | None:
    """Bus bandwidth in GB/s: algbw times the bus factor; None as for ``algbw_gbps``.

    busiest_bytes: for uneven blocks, the most that one rank sends to the others or receives from
    them: busbw is this / t, as nccl-tests' (n - 1) / n of S is true only of even blocks.
    """
    algbw = algbw_gbps(collective, size_bytes, ranks, time_ns)
    if algbw is None:
        return None
    entry = COLLECTIVES[collective]
    if entry.has_splits:
        return None if busiest_bytes is None else busiest_bytes / time_ns
    return algbw * entry.bus_factor(ranks)

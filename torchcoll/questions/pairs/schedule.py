"""The schedule of ``torchcoll.pairs``: pair every unit (a rank or a node) with every other once.

Pure. The rounds are those of a round-robin tournament by the circle method: one unit stays, and the
others rotate around it by one position each round (R. Lucas, Recreations mathematiques II, 1883).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torchcoll.core.case import Case, need_bytes, size_case
from torchcoll.core.collectives import PAIR
from torchcoll.core.errors import UsageError, choice
from torchcoll.core.spec import Spec
from torchcoll.core.units import format_bytes, format_ns, format_size

Pair = tuple[int, int]
Units = tuple[tuple[int, ...], ...]  # the ranks of each unit, units in ascending order

BY = ("rank", "node")
LATENCY_BYTES = 8
ITERS = 10
LATENCY_ITERS = 20  # at least: these calls are cheap, and the fastest of them is what counts
SIZES = (8 << 20,)
PASSES = 4  # repetitions of suspect pairs alone, see pairs/suspects.py
# A rank, link or node counts as slow below 1 - 0.2 of the others. This is torchcoll's choice:
# healthy pairs of one kind scatter by a few percent, and real faults cost more: one of four lanes
# 25 %, one of two rails 50 %, a link at the speed of the previous generation 50 %.
THRESHOLD = 0.2
_FILE_BYTES = 950  # measured size of a record without its samples
_SAMPLE_BYTES = 9
_HELD_BYTES, _HELD_SAMPLE_BYTES = 1800, 40  # the same in rank 0's memory (CPython 3.11)
# The assumptions of --dry-run, because the network is not known in advance.
_ASSUMED_GBPS, _AGREEMENT_US = 10.0, 40.0


@dataclass(frozen=True)
class PairOptions:
    """The options of ``torchcoll.pairs`` that are not part of the Spec.

    by: ``rank`` or ``node``.
    threshold: the share of the others' speed, 0 to 1, by which a suspect is slower.
    ranks_per_node: what --dry-run assumes.
    """

    by: str = "rank"
    threshold: float = THRESHOLD
    ranks_per_node: int | None = None

    def __post_init__(self) -> None:
        choice(self.by, "by", BY)


def round_count(units: int) -> int:
    """The number of rounds until each of ``units`` has met every other.

    It is units - 1; with an odd number it is units, and one unit is idle in each round.
    """
    return units - 1 + units % 2 if units > 1 else 0


def rounds(units: int) -> Iterator[list[Pair]]:
    """Yields every pair of ``units`` once, as rounds of disjoint pairs (low, high).

    The pairs of a round are sorted. A generator, because all pairs of 16384 ranks take 15 GB.
    """
    even = units + units % 2
    circle = even - 1
    for turn in range(round_count(units)):
        met = [(turn, circle)]
        met += [((turn + k) % circle, (turn - k) % circle) for k in range(1, even // 2)]
        # With an odd number the last position is empty: the unit that meets it is idle.
        yield sorted((min(p), max(p)) for p in met if max(p) < units)


def group_ranks(by: str, hosts: Sequence[str]) -> Units:
    """The ranks of each unit. hosts: the host of each rank. Nodes are ordered by rank."""
    if by == "rank":
        return tuple((rank,) for rank in range(len(hosts)))
    nodes: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        nodes.setdefault(host, []).append(rank)
    return tuple(map(tuple, nodes.values()))


def rank_pairs(units: Units, pair: Pair) -> tuple[tuple[int, int], ...]:
    """The pairs of ranks that communicate at the same time when two units meet.

    The first rank of one node meets the first rank of the other, and so on; if one node has more
    ranks, its remaining ranks are idle.
    """
    return tuple(zip(units[pair[0]], units[pair[1]], strict=False))


def check_units(units: Units, by: str) -> None:
    """Raises UsageError if there are too few units for a pair."""
    if len(units) > 1:
        return
    if by == "node" and len(units[0]) > 1:
        action = "--by rank (the default) pairs the ranks of one node."
        raise UsageError("pairs", "1 node", "2 nodes or more", action)
    raise UsageError("pairs", "1 rank", "2 ranks or more", "torchrun --nproc-per-node N.")


def pair_cases(spec: Spec, group: str, first: Case) -> tuple[Case, ...]:
    """The cases that each pair measures, in order.

    first: a case with the backend, device and rehearsal of the run.
    Without a root both units send and receive at once. With root 0 only the lower unit sends, with
    root 1 only the higher one.
    """
    (dtype,) = spec.dtypes

    plain = replace(first, collective=PAIR, op=None, in_place=False, mode="synchronized")
    points: list[tuple[int, int | None]] = [(LATENCY_BYTES, None)]
    points += [(size_bytes, root) for size_bytes in spec.sizes for root in (None, 0, 1)]
    return tuple(
        replace(plain, size_bytes=size_bytes, dtype=dtype, root=root, group=group)
        for size_bytes, root in points
    )


def plan_lines(spec: Spec, options: PairOptions, ranks: int) -> list[str]:
    """The lines of --dry-run: rounds, pairs, time and memory."""
    each = 1
    hosts = ["node"] * ranks
    if options.by == "node":
        each = options.ranks_per_node or 1
        hosts = [f"node{rank // each}" for rank in range(ranks)]
    units = group_ranks(options.by, hosts)
    check_units(units, options.by)
    count = len(units)
    pairs, schedule = count * (count - 1) // 2, round_count(count)
    calls = (spec.iters or 0) + 1
    (dtype,) = spec.dtypes
    largest = Case(PAIR, max(spec.sizes), dtype, None, None, False, "synchronized", "", "")
    need = need_bytes(size_case(largest, 2), 0, spec.check)
    kinds = 1 + 3 * len(spec.sizes)  # of calls: the latency, and three of each size
    moved = sum(3 * calls * size_bytes for size_bytes in spec.sizes)
    each_s = moved / (_ASSUMED_GBPS * 1e9) + kinds * ranks * _AGREEMENT_US * 1e-6
    time = format_ns(each_s * schedule * 1e9, 3)
    file, held = _kept(spec, pairs, len(units[0]))
    idle = ", one idle in each" if count % 2 else ""
    sizes = ", ".join(map(format_size, spec.sizes))
    what = f"{ranks} ranks" if options.by == "rank" else f"{count} nodes ({ranks} ranks)"
    lines = [
        "Dry run: nothing was started, and no device was looked for.",
        f"{what}: {pairs} pairs in {schedule} rounds of {count // 2} at once{idle}.",
    ]
    if options.by == "node":
        lines.append(f"Assumed: {each} ranks a node; all of them meet those of the other at once.")
    lines += [
        f"Each pair: {max(calls - 1, LATENCY_ITERS) + 1} calls of 8 B for the latency, then "
        f"{calls} of {sizes} both ways at once, one way, and the other; the first of each is kept "
        "apart.",
        f"Then alone, up to {PASSES} times: the slow pairs, at most {max(8, count)}, and up to 6 "
        "usual ones. Then all_reduce on all ranks.",
        f"Time: about {time} of rounds at {_ASSUMED_GBPS:g} GB/s a pair "
        f"({moved * schedule / 1e9:.3g} GB a rank and direction); a round waits for its "
        "slowest pair. Start-up comes on top.",
        f"Memory: {format_bytes(need)} a rank, and on rank 0 about {format_bytes(held)} of host "
        f"memory for all results. Result file: about {format_bytes(file)}.",
    ]
    return lines


def _kept(spec: Spec, pairs: int, at_once: int) -> tuple[int, int]:
    """The size of all results in bytes: in the file, and in rank 0's memory.

    at_once: how many pairs of ranks communicate in a pair of units.
    """
    kinds = 1 + 3 * len(spec.sizes)
    cases = pairs * kinds
    each = kinds * ((spec.iters or 0) + 1) + LATENCY_ITERS
    samples = pairs * each * 2 * at_once
    return (
        cases * _FILE_BYTES + samples * _SAMPLE_BYTES,
        cases * _HELD_BYTES + samples * _HELD_SAMPLE_BYTES,
    )

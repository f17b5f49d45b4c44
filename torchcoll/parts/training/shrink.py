"""A captured step on fewer ranks than it was captured on: the first ranks and what is left of their
groups.

Ranks are numbered as in a mesh of torch, whose last dimension has neighbouring ranks. So the first
ranks keep the inner dimensions (tensor parallel) whole, and the outermost dimension (data parallel,
or pipeline stages) gets smaller.

The size S of a collective stays as it was, as if the same model was trained on fewer ranks: the
parameters that an all_gather collects are as many as before, and each rank holds a larger part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from torchcoll.core.collectives import COLLECTIVES, DTYPES, Layout
from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.traffic_spec import point_of
from torchcoll.core.units import format_bytes


def shrink(traffic: Traffic, ranks: int) -> tuple[Traffic, list[str]]:
    """Returns the traffic of the ranks 0 to ``ranks`` - 1 alone, and sentences on what is left out.

    A call whose group has only one rank left, and a message from or to a rank that is left out, is
    left out. An uneven all_to_all keeps the blocks between the ranks that stay. A root that is left
    out is replaced by the first rank of the group.

    Raises UsageError if groups of one kind would get different sizes, or if no call is left.
    """
    members = {
        name: group.ranks or tuple(range(traffic.ranks)) for name, group in traffic.groups.items()
    }
    allowed = [n for n in range(2, traffic.ranks) if _fits(members.values(), n)]
    if ranks not in allowed:
        numbers = " or ".join(map(str, allowed)) or f"{traffic.ranks}, for no smaller number does"
        raise UsageError(
            "ranks", ranks, f"a number that shortens all groups of a kind alike: {numbers}"
        )
    left_out: Counter[str] = Counter()
    left_out_bytes = 0
    calls: dict[int, list[TrafficCall]] = {}
    for rank, captured in traffic.calls.items():
        if rank >= ranks:
            continue
        calls[rank] = []
        for call in captured:
            smaller = _call(call, rank, ranks, traffic.members(call))
            if smaller is None:
                left_out[call.collective] += 1
                left_out_bytes += max(call.bytes_in, call.bytes_out)
            else:
                calls[rank].append(smaller)
    if not any(calls.values()):
        raise UsageError("ranks", ranks, "more: all calls are with ranks that are left out")
    kept = {
        name: replace(traffic.groups[name], ranks=tuple(r for r in old if r < ranks))
        for name, old in members.items()
    }
    sizes = sorted(
        {
            (len(members[name]), len(group.ranks), group.description or name)
            for name, group in kept.items()
            if group.ranks
        },
        reverse=True,
    )
    changes = ", ".join(f"{label} {old} to {new}" for old, new, label in sizes if old != new)
    notes = [
        f"captured on {traffic.ranks} ranks; ranks 0 to {ranks - 1} are played, with smaller "
        f"groups ({changes}) and unchanged sizes of collectives"
    ]
    if left_out:
        kinds = ", ".join(f"{count} {name}" for name, count in left_out.most_common())
        notes.append(
            f"left out, because their other ranks are: {kinds} of all steps of these ranks, with "
            f"{format_bytes(left_out_bytes)} of data"
        )
    smaller_traffic = replace(
        traffic,
        ranks=ranks,
        calls=calls,
        groups={name: group for name, group in kept.items() if group.ranks},
        steps={rank: spans for rank, spans in traffic.steps.items() if rank < ranks},
        computing={rank: spans for rank, spans in traffic.computing.items() if rank < ranks},
        apart={rank: spans for rank, spans in traffic.apart.items() if rank < ranks},
        copies={rank: spans for rank, spans in traffic.copies.items() if rank < ranks},
        clocks={rank: clock for rank, clock in traffic.clocks.items() if rank < ranks},
    )
    return smaller_traffic, notes


def _fits(groups: Iterable[tuple[int, ...]], ranks: int) -> bool:
    """Returns whether all groups of one size and stride keep equally many of the first ranks."""
    kept: dict[tuple[int, int], set[int]] = {}
    for group in groups:
        count = sum(rank < ranks for rank in group)
        if count:
            stride = group[1] - group[0] if len(group) > 1 else 0
            kept.setdefault((len(group), stride), set()).add(count)
    return all(len(counts) == 1 for counts in kept.values())


def _call(call: TrafficCall, rank: int, ranks: int, members: tuple[int, ...]) -> TrafficCall | None:
    """Returns the call among the first ``ranks`` ranks; None if it is left out."""
    if call.point_to_point:
        return None if call.peer is not None and call.peer >= ranks else call
    kept = [member for member in members if member < ranks]
    if len(kept) == len(members):
        return call
    if len(kept) == 1:
        return None
    if call.splits:
        splits = tuple(call.splits[members.index(member)] for member in kept)
        return replace(call, splits=splits, bytes_in=sum(splits))
    point, _ = point_of(call, len(members))
    if point is None:  # neither measured nor replayed
        return call
    entry = COLLECTIVES[point.collective]
    root = call.root if call.root is None or call.root in kept else kept[0]
    if not entry.has_data:
        return replace(call, root=root)
    assert point.dtype is not None  # of a collective with data
    itemsize = DTYPES[point.dtype].itemsize
    count = max(1, point.size_bytes // (itemsize * entry.parts(len(kept))))
    root_index = 0 if root is None else kept.index(root)
    sent, received = entry.elements(Layout(kept.index(rank), len(kept), count, root_index))
    return replace(
        call,
        collective=point.collective,
        root=root,
        bytes_in=sent * itemsize,
        bytes_out=received * itemsize,
    )

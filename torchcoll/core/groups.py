"""Sub-groups that run the collective at the same time, as in data- and tensor-parallel meshes.

``mod:2``: ranks with the same r mod 2 (NCCL_TESTS_SPLIT's "mod"). ``div:4``: ranks with the same
r div 4. ``0,1;2,3``: a list, which holds every rank once. In a sub-group ranks stand in ascending
order, as in torch's groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torchcoll.core.errors import UsageError

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
        fitting = (way for way in loose if not any(set(group) & set(part) for part in way))
        way = next(fitting, None)
        if way is None:
            loose.append([group])
        else:
            way.append(group)
    for mesh, known in meshes.items():
        known += [part for part in mesh if part not in known and not set(part) & set(seen)]
    return [_filled(way, ranks) for way in (*meshes.values(), *loose)]


def _filled(way: list[Ranks], ranks: int) -> tuple[Ranks, ...]:
    there = {rank for part in way for rank in part}
    return tuple(sorted([*way, *((rank,) for rank in range(ranks) if rank not in there)]))


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

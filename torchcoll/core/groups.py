"""Sub-groups that run the collective at the same time, as in data- and tensor-parallel meshes.

``mod:2``: ranks with the same r mod 2 (NCCL_TESTS_SPLIT's "mod"). ``div:4``: ranks with the same
r div 4. ``0,1;2,3``: a list, which holds every rank once. In a sub-group ranks stand in ascending
order, as in torch's groups.
"""

from __future__ import annotations

from torchcoll.core.errors import UsageError

_EXPECTED = "mod:N, div:N, or a list of ranks such as 0,1;2,3"


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

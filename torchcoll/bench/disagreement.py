"""Ranks that are about to do something else than the others: who they are, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchcoll.bench.control import Control
from torchcoll.core.errors import UsageError

# Each rank may have made its Spec of what it sent itself.
_SAME_TRAFFIC = (
    "The ranks sent different calls: save the traffic of each, and measure all of it with "
    "torchcoll.suite --traffic FOLDER."
)


def odd_ranks(words: Sequence[str]) -> list[int]:
    """The ranks whose word is not that of the most."""
    usual = Counter(words).most_common(1)[0][0]
    return [rank for rank, word in enumerate(words) if word != usual]


def of_arguments(control: Control, points: bool) -> UsageError:
    """By the ``asked`` and ``argv`` of the hello. points: the Spec has exact calls."""
    members = control.members
    odd = odd_ranks([member["asked"] for member in members])
    like = next(rank for rank in range(len(members)) if rank not in odd)
    return UsageError(
        f"arguments of {control.names(odd)}",
        members[odd[0]]["argv"] or "another Spec",
        f"as on {control.name(like)}: {members[like]['argv'] or 'no arguments'}",
        _SAME_TRAFFIC if points else "Start all ranks with the same arguments.",
    )


def of_case(control: Control, hashes: Sequence[str], described: str) -> list[str]:
    """The arguments of a UsageError; ``described``: the case of rank 0."""
    return [
        f"case on {control.names(odd_ranks(hashes))}",
        "another case than the other ranks",
        f"the same on all ranks (rank 0: {described})",
        "Start all ranks with the same arguments, files and torchcoll version.",
    ]

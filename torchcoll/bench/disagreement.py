"""Ranks that are about to do something else than the others: who they are, and what to do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from torchcoll.bench.control import Control
from torchcoll.core.case import fingerprint
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import Spec

_LONG = 60  # characters of a value
# Each rank may have made its Spec of what it sent itself.
_SAME_TRAFFIC = (
    "The ranks sent different calls: save the traffic of each, and measure all of it with "
    "torchcoll.suite --traffic FOLDER."
)


def odd_ranks(words: Sequence[str]) -> list[int]:
    """The ranks whose word is not that of the most."""
    usual = Counter(words).most_common(1)[0][0]
    return [rank for rank, word in enumerate(words) if word != usual]


def of_arguments(control: Control, spec: Spec) -> UsageError:
    """By the ``asked`` and ``argv`` of the hello. Every rank calls it, for Specs that programs made
    are told here alone.
    """
    members = control.members
    odd = odd_ranks([member["asked"] for member in members])
    like = next(rank for rank in range(len(members)) if rank not in odd)
    got, expected = members[odd[0]]["argv"], members[like]["argv"]
    if not got and not expected:
        got, expected = _fields(control.all_gather(_told(spec)), odd[0], like)
    return UsageError(
        f"arguments of {control.names(odd)}",
        got or "no arguments",
        f"as on {control.name(like)}: {expected or 'no arguments'}",
        _SAME_TRAFFIC if spec.points else "Start all ranks with the same arguments.",
    )


def _told(spec: Spec) -> dict[str, list[str]]:
    """Each field: what tells whether it is the same, and its text."""
    fields = spec.to_json()
    texts = {name: json.dumps(value) for name, value in fields.items()}
    texts["points"] = f"{len(spec.points)} calls"
    return {
        name: [fingerprint(value), f"{texts[name][:_LONG]}{'...' * (len(texts[name]) > _LONG)}"]
        for name, value in fields.items()
    }


def _fields(told: Sequence[dict[str, list[str]]], odd: int, like: int) -> tuple[str, str]:
    """``sizes [1024]`` of both ranks, for the fields that differ."""
    names = [name for name in told[like] if told[odd].get(name) != told[like][name]]
    got, expected = (
        ", ".join(f"{name} {told[rank].get(name, ['', 'unknown'])[1]}" for name in names)
        for rank in (odd, like)
    )
    return got or "another Spec", expected or "another Spec"


def of_case(control: Control, hashes: Sequence[str], described: str) -> list[str]:
    """The arguments of a UsageError; ``described``: the case of rank 0."""
    return [
        f"case on {control.names(odd_ranks(hashes))}",
        "another case than the other ranks",
        f"the same on all ranks (rank 0: {described})",
        "Start all ranks with the same arguments, files and torchcoll version.",
    ]

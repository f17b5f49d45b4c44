"""Names for DDP's buckets, made of those of their parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


def block_name(parameter: str) -> str:
    """Returns the module of a parameter, or the numbered block that contains it.

    ``model.layers.0.mlp.up.weight`` is in ``model.layers.0``.
    """
    parts = parameter.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdecimal()), len(parts) - 2)
    return ".".join(parts[: number + 1]) or parameter


def bucket_names(buckets: Sequence[Sequence[str]]) -> list[str]:
    """Returns a name for each bucket.

    - buckets: the names of the parameters of each bucket, in the order of registration.

    The name is that of the only parameter, or of the blocks of the first and the last one. If
    buckets would share a name, theirs are made of the names of the parameters.
    """
    names = [bucket[0] if len(bucket) == 1 else block_span(bucket) for bucket in buckets]
    counts = Counter(names)
    return [
        name if counts[name] == 1 else _span(bucket)
        for name, bucket in zip(names, buckets, strict=True)
    ]


def block_span(parameters: Sequence[str]) -> str:
    """Returns the blocks of the first and the last parameter: ``model.norm to lm_head``."""
    return _span([block_name(name) for name in (*parameters[:1], *parameters[-1:])])


def _span(names: Sequence[str]) -> str:
    """Returns the first and the last name; '' if there is none."""
    return " to ".join(dict.fromkeys((*names[:1], *names[-1:])))


def numbered(name: str, taken: Iterable[str]) -> str:
    """Returns the name, with a number if another model of the process has it: ``0 (model 2)``."""
    free, number, names = name, 1, set(taken)
    while free in names:
        number += 1
        free = f"{name} (model {number})"
    return free

"""oneCCL's selection by size: ``recursive_doubling:0-8192;ring:8193-max`` (env-variables.rst).

Sizes are bytes, both ends inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def selection(parts: Iterable[tuple[str, int, int | None]]) -> str:
    """The value of ``CCL_<COLLECTIVE>`` from (algorithm, low, high), ascending; high None is max.

    One algorithm for all sizes is its name alone.
    """
    several = list(parts)
    if len(several) == 1:
        return several[0][0]
    return ";".join(
        f"{name}:{low}-{'max' if high is None else high}" for name, low, high in several
    )


def algorithm_at(value: str, nbytes: int) -> str | None:
    """What a value of ``CCL_<COLLECTIVE>`` says for a size; None where it says nothing."""
    for part in value.split(";"):
        if found := re.fullmatch(r"(\w+)(?::(\d+)-(?:(\d+)|max))?", part):
            name, low, high = found.groups()
            if int(low or 0) <= nbytes and (high is None or nbytes <= int(high)):
                return name
    return None

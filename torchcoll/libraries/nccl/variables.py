"""The environment variables that NCCL and torch's NCCL backend read.

The names are the strings in ``libnccl.so.2`` of the wheels in VERSIONS, without constants of the
source. So for each of these versions it is known whether it reads a name. For versions in between
it is not.
"""

from __future__ import annotations

import re
from pathlib import Path

from torchcoll.core.toml_text import toml_table

# The table of names: which versions read a variable, and what of other software begins alike.
_TABLE = toml_table(Path(__file__).with_name("variables.toml").read_text(encoding="utf-8"))

VERSIONS: tuple[str, ...] = tuple(_TABLE["versions"])
# Name -> (first, last) of VERSIONS that read it. A line of the file has these without NCCL_.
_LINES = Path(__file__).with_name("variables.txt").read_text().splitlines()
_PERIODS = {f"NCCL_{name}": (first, last) for first, last, name in map(str.split, _LINES)}
# Variables that were removed before VERSIONS -> their replacement.
REMOVED: dict[str, str] = _TABLE["removed"]
# Prefixes of variables of other software.
OPEN = tuple(f"NCCL_{name}_" for name in _TABLE["prefixes_of_others"].split())
NAMES = frozenset({*_PERIODS, *REMOVED, *(f"NCCL_{name}" for name in _TABLE["others"].split())})
TORCH_NAMES = frozenset(f"TORCH_NCCL_{name}" for name in _TABLE["torch"].split())


def reads(name: str, version: str) -> bool | None:
    """Whether NCCL ``version`` (``2.27.5``) reads ``name``; None where that is not known."""
    if name in REMOVED:
        return False
    span = _PERIODS.get(name)
    if span is None:
        return None
    first, last = (VERSIONS.index(v) for v in span)
    if _key(span[0]) <= _key(version) <= _key(span[1]):
        return True
    if first and _key(version) <= _key(VERSIONS[first - 1]):
        return False
    if last + 1 < len(VERSIONS) and _key(version) >= _key(VERSIONS[last + 1]):
        return False
    return None


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])

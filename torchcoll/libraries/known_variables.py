"""Variables that no library reads: a misspelt name is ignored in silence."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import NamedTuple

from torchcoll.libraries.nccl import variables as nccl
from torchcoll.libraries.oneccl import variables as oneccl
from torchcoll.libraries.oneccl.variables import ALGORITHMS

OF_NCCL = ("NCCL_ALGO", "NCCL_PROTO")
FORCING = (*OF_NCCL, *ALGORITHMS)


class Forcing(NamedTuple):
    """A cell of a preset of ``torchcoll matrix``. collectives: those of torch that it is for."""

    name: str
    collectives: tuple[str, ...]
    variables: Mapping[str, str]


# Ratios of difflib. Below the last, 'the nearest' is another variable rather than a misspelt one:
# 0.96 REDUCE_SCATER and REDUCE_SCATTER, 0.84 BUFFER_SIZE and BUFFSIZE, 0.78 NVLS_DISABLE and
# NVLS_ENABLE. Between the two, a name with something behind it wins: 0.81 ALLREDUCE_ALGO and
# ALLREDUCE_SCALEOUT.
_SURE, _NEAR = 0.9, 0.8
_KNOWN = {"TORCH_NCCL_": nccl.TORCH_NAMES, "NCCL_": nccl.NAMES, "CCL_": oneccl.NAMES}
_ALL = frozenset().union(*_KNOWN.values())


def unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """(name, the nearest known one or None) of NCCL_*, TORCH_NCCL_* and CCL_* that no library
    of the versions in ``libraries`` reads.

    A newer library may read it: this is a reason to check the spelling, no more. Families in
    ``nccl.OPEN`` belong to plug-ins and are not judged. Of TORCH_NCCL_* the list is less complete,
    so only what is near a known name is reported.
    """
    found = []
    for name in sorted(environ):
        prefix = next((p for p in _KNOWN if name.upper().startswith(p)), None)
        if prefix is None or name in _ALL or name.startswith(nccl.OPEN):
            continue
        near = _nearest(name, prefix)
        if near or (prefix != "TORCH_NCCL_" and name.startswith(prefix)):
            found.append((name, near))
    return found


def _nearest(name: str, prefix: str) -> str | None:
    """Without the prefix, which all share: it would make every name near every other."""
    if name.upper() in _ALL:
        return name.upper()
    rest = name.upper()[len(prefix) :]
    for other in _KNOWN:  # NCCL_ENABLE_MONITORING is torch's
        if other + rest in _ALL:
            return other + rest
    known = [n[len(prefix) :] for n in sorted(_KNOWN[prefix])]
    longer = [n for n in known if rest.startswith(n) and len(n) >= max(4, 0.4 * len(rest))]
    near = get_close_matches(rest, known, 1, _SURE) or sorted(longer, key=len)[-1:]
    near = near or get_close_matches(rest, known, 1, _NEAR)
    return prefix + near[0] if near else None

"""Finds misspelt environment variables: a library silently ignores a name that it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import NamedTuple

from torchcoll.libraries.nccl import variables as nccl
from torchcoll.libraries.oneccl import variables as oneccl
from torchcoll.libraries.oneccl.variables import ALGORITHMS

NCCL_CHOICES = ("NCCL_ALGO", "NCCL_PROTO")
FORCING = (*NCCL_CHOICES, *ALGORITHMS)


class Forcing(NamedTuple):
    """A forced combination of a preset of ``torchcoll matrix``, and torch's collectives for it."""

    name: str
    collectives: tuple[str, ...]
    variables: Mapping[str, str]


# Similarity ratios of difflib. At _SURE and above, the nearest known name is the one that was meant
# (0.96: REDUCE_SCATER and REDUCE_SCATTER). Below _NEAR it is a different variable (0.78:
# NVLS_DISABLE and NVLS_ENABLE). In between, a known name that the given one extends is preferred
# (0.81: ALLREDUCE_ALGO resembles ALLREDUCE_SCALEOUT, but extends ALLREDUCE).
_SURE, _NEAR = 0.9, 0.8
_NAMES_BY_PREFIX = {"TORCH_NCCL_": nccl.TORCH_NAMES, "NCCL_": nccl.NAMES, "CCL_": oneccl.NAMES}
_ALL = frozenset().union(*_NAMES_BY_PREFIX.values())


def unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """(name, nearest known name or None) of the NCCL_*, TORCH_NCCL_* and CCL_* variables that no
    known library version reads.

    A newer library may read them, so this is only a reason to check the spelling. Names that begin
    as in ``nccl.OPEN`` belong to plug-ins and are skipped. The list of TORCH_NCCL_* is less
    complete, so one of these is only reported if it resembles a known name.
    """
    unknown = []
    for name in sorted(environ):
        prefix = next((p for p in _NAMES_BY_PREFIX if name.upper().startswith(p)), None)
        if prefix is None or name in _ALL or name.startswith(nccl.OPEN):
            continue
        near = _nearest(name, prefix)
        if near or (prefix != "TORCH_NCCL_" and name.startswith(prefix)):
            unknown.append((name, near))
    return unknown


# Parts of the names of variables that name a library, a program, a file or a folder, such as
# NCCL_NET_PLUGIN, FI_PROVIDER_PATH, UCX_MODULE_DIR, UCX_GDB_COMMAND, ZE_ENABLE_ALT_DRIVERS.
_TEXT = """
    COMMAND DIR DRIVERS EXEC FILE LIB LIBRARIES LIBRARY LIBS PATH PATHS PLUGIN PLUGINS PRELOAD
    PROGRAM ROOT TOOL TOOLS
"""
_OF_FILES = frozenset(_TEXT.split())


def names_file(name: str, value: str) -> bool:
    """Whether a variable may name a file that a library loads code from, reads or writes."""
    tokens = name.upper().split("_")
    of_files = not _OF_FILES.isdisjoint(tokens) or tokens[0] == "LD"
    return of_files or any(part in value for part in ("/", "\\", ".so"))


def _nearest(name: str, prefix: str) -> str | None:
    """The nearest known name, without the prefix, which would make all names similar; or None."""
    if name.upper() in _ALL:
        return name.upper()
    stem = name.upper()[len(prefix) :]
    # NCCL_ENABLE_MONITORING is one of torch's: TORCH_NCCL_ENABLE_MONITORING.
    for family in _NAMES_BY_PREFIX:
        if family + stem in _ALL:
            return family + stem
    candidates = [n[len(prefix) :] for n in sorted(_NAMES_BY_PREFIX[prefix])]
    longer = [n for n in candidates if stem.startswith(n) and len(n) >= max(4, 0.4 * len(stem))]
    near = get_close_matches(stem, candidates, 1, _SURE) or sorted(longer, key=len)[-1:]
    near = near or get_close_matches(stem, candidates, 1, _NEAR)
    return prefix + near[0] if near else None

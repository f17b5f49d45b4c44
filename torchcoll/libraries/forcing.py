"""Variables that take the choice of an algorithm from a library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torchcoll.libraries.oneccl.variables import ALGORITHMS

OF_NCCL = ("NCCL_ALGO", "NCCL_PROTO")
FORCING = (*OF_NCCL, *ALGORITHMS)


class Forcing(NamedTuple):
    """A cell of a preset of ``torchcoll matrix``. collectives: those of torch that it is for."""

    name: str
    collectives: tuple[str, ...]
    variables: Mapping[str, str]

"""What a preset of ``torchcoll matrix`` takes from what is known of each library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Forcing(NamedTuple):
    """Variables that force one behaviour; ``collectives``: those of torch that it is for."""

    name: str
    collectives: tuple[str, ...]
    variables: Mapping[str, str]

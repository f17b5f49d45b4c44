"""How sizes and figures of a comparison read in the cells of its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.units import format_bandwidth, format_size, format_time

if TYPE_CHECKING:
    from torchcoll.questions.comparison.results import Compared


def size_cell(row: Compared) -> str:
    return format_size(row.pair.size_bytes) if COLLECTIVES[row.row.collective].has_data else "-"


def figure_cell(value: float | None, metric: str) -> str:
    return format_time(value) if metric == "time" else format_bandwidth(value)

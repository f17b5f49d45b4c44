"""A heat map, as an interactive chart, and how one of many rows is made smaller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.report.chart import Chart, rounded

if TYPE_CHECKING:
    import numpy as np


def merged(values: np.ndarray[Any, Any], step: int) -> np.ndarray[Any, Any]:
    """The largest of every ``step`` values along the first axis; NaN where all are."""
    import numpy as np

    if step == 1:
        return values
    padding = [(0, -len(values) % step)] + [(0, 0)] * (values.ndim - 1)
    padded = np.pad(values, padding, constant_values=np.nan)
    stacked = padded.reshape(-1, step, *values.shape[1:])
    filled = np.where(np.isnan(stacked), -np.inf, stacked).max(axis=1)
    return np.where(np.isneginf(filled), np.nan, filled)


def heat_map(
    title: str,
    values: np.ndarray[Any, Any],
    columns: Sequence[Any],
    rows: Sequence[Any],
    unit: str,
    hover: str,
    digits: int = 4,
) -> Chart:
    """values [rows, columns]; NaN is left blank."""
    trace = {
        "type": "heatmap", "colorscale": "Cividis", "x": list(columns), "y": list(rows),
        "z": [[rounded(float(value), digits) for value in row] for row in values],
        "hovertemplate": hover, "hoverongaps": False,
        "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 14},
    }  # fmt: skip
    layout = {
        "xaxis": {"automargin": True, "showgrid": False, "zeroline": False},
        "yaxis": {
            "automargin": True,
            "autorange": "reversed",
            "showgrid": False,
            "zeroline": False,
        },
    }
    return Chart(title, [trace], layout)

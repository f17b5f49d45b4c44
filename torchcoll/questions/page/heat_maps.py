"""Heat maps of ranks by case, pairs of units, and nodes by night, as Chart objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from torchcoll.core.result import Run
from torchcoll.questions.show.figures import rank_shares
from torchcoll.report.chart import Chart, keys_of, plain
from torchcoll.report.header import case_text
from torchcoll.report.heat_map import heat_map

if TYPE_CHECKING:
    pass

_CELLS = 256  # rows or columns: of more, neighbours are merged
_TICKS = 16  # ranks that have a tick each


def ranks_chart(run: Run, keys: Mapping[int, str] = {}) -> Chart | None:
    """A row for each rank and a column for each case: the rank's own median over that of the median
    rank. None if there are fewer than two ranks, or no samples.
    """
    every, step, columns = rank_shares(run, _CELLS)
    if not every:
        return None
    results = every[:_CELLS]
    names = [case_text(result.case) for result in results]
    if len(set(names)) < len(names):
        names = [
            f"{name} {result.case.backend}" for name, result in zip(names, results, strict=True)
        ]
    caption = ["a rank that arrives last waits least, so its time is the shortest"]
    if step > 1:
        caption.append(f"reduced: each row is the slowest of {step} neighbouring ranks")
    if len(results) < len(every):
        caption.append(f"reduced: the first {len(results)} of {len(every)} cases")
    chart = heat_map(
        "rank by case",
        np.array(columns).T,
        [f"{n}: {plain(name)}" if len(set(names)) < len(names) else plain(name)
         for n, name in enumerate(names)],
        [n * step for n in range(-(-run.ranks // step))],
        "median time / that of the median rank",
        "rank %{y}" + (f" to %{{y}} + {step - 1}" if step > 1 else "")
        + "<br>%{x}<br>%{z:.3f} of the median rank<extra></extra>",
    )  # fmt: skip
    chart.layout["yaxis"] |= {"title": {"text": "rank"}, "tickformat": "d"}
    if run.ranks <= _TICKS:
        chart.layout["yaxis"]["dtick"] = 1
    chart.traces[0]["meta"] = {"keys": [keys_of([result], keys) for result in results]}
    chart.caption = caption
    return chart

"""Heat maps of ranks by case, pairs of units, and nodes by night, as Chart objects."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from torchcoll.core.result import Run
from torchcoll.core.summary import median
from torchcoll.questions.page.charts import sampled, steady_samples
from torchcoll.report.chart import Chart, keys_of, plain
from torchcoll.report.header import case_text
from torchcoll.report.heat_map import heat_map, merged

_CELLS = 256  # rows or columns: of more, neighbours are merged
_TICKS = 16  # ranks that have a tick each


def ranks_chart(run: Run, keys: Mapping[int, str] = {}) -> Chart | None:
    """A row for each rank and a column for each case: the rank's own median over that of the median
    rank, of several ranks the largest. None if there are fewer than two ranks, or no samples.
    """
    every = [r for r in sampled(run) if len(steady_samples(r)) == run.ranks > 1]
    if not every:
        return None
    results = every[:_CELLS]
    step = -(-run.ranks // _CELLS)
    columns = []
    for result in results:
        middles = [median(times) if times else math.nan for times in steady_samples(result)]
        present = [ns for ns in middles if not math.isnan(ns)]
        middle = (median(present) if present else 0.0) or 1.0
        columns.append([ns / middle for ns in middles])
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
        merged(np.array(columns).T, step),
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

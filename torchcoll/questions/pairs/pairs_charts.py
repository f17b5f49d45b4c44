"""Interactive charts of pairs."""

from __future__ import annotations

import numpy as np

from torchcoll.core.units import format_size
from torchcoll.questions.pairs.matches import EXCHANGE, Pairs
from torchcoll.report.chart import Chart, heat_map, merged, plain

_CELLS = 256  # rows and columns: of more, neighbours are merged


def pairs_charts(pairs: Pairs) -> list[Chart]:
    """A heat map for each measurement: row and column are the two ends of a pair. The first is the
    one whose worst pair is farthest from the median pair.
    """
    charts: list[tuple[float, Chart]] = []
    count = len(pairs.units)
    step = -(-count // _CELLS)
    names = [f"{unit} ({plain(pairs.hosts[unit])})" for unit in range(0, count, step)]
    for key, times in pairs.times.items():
        kind, size_bytes = key
        # Merged cells show the worst: the lowest bandwidth, the longest latency.
        sign = -1.0 if kind == EXCHANGE else 1.0
        values = np.full((count, count), np.nan)
        for (a, b), timing in times.items():
            ns = timing.median_ns
            value = pairs.gbps(key, (a, b), ns) if kind == EXCHANGE else ns / 1e3
            values[a, b] = sign * value
            if (b, a) not in times:
                values[b, a] = sign * value
        values = sign * merged(merged(values, step).T, step).T
        worst, middle = np.nanmax(sign * values), np.nanmedian(sign * values)
        unit = "GB/s" if kind == EXCHANGE else "us"
        figure = "bandwidth (GB/s sent by each)" if kind == EXCHANGE else "median time (us)"
        title = f"{format_size(size_bytes)} both ways" if kind == EXCHANGE else kind
        hover = f"%{{y}} and %{{x}}: %{{z:.4~g}} {unit}<extra></extra>"
        chart = heat_map(plain(title), values, names, names, figure, hover)
        chart.layout["yaxis"] |= {"title": {"text": pairs.by, "standoff": 12}}
        chart.layout["xaxis"] |= {"title": {"text": pairs.by}}
        chart.caption = [
            f"a slow {pairs.by} is a row and a column of another colour, a slow link two cells"
        ]
        if step > 1:
            chart.caption.append(
                f"reduced: each cell is the slowest pair of {step} by {step} {pairs.by}s"
            )
        charts.append((-abs(float(np.log(worst / middle))), chart))
    return [chart for _, chart in sorted(charts, key=lambda each: each[0])]

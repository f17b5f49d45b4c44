"""Charts of a comparison."""

from __future__ import annotations

from collections.abc import Mapping

from torchcoll.core.units import format_size
from torchcoll.questions.comparison.compare import Comparison
from torchcoll.questions.comparison.results import tables_of, titles_of
from torchcoll.questions.comparison.show import interval_text
from torchcoll.questions.comparison.wording import speed_cell
from torchcoll.report import chart

_RESULT_STYLES = {
    "slower": ("triangle-down", chart.PALETTE[1]),
    "faster": ("triangle-up", chart.PALETTE[2]),
    "same": ("circle", chart.PALETTE[0]),
    "inconclusive": ("x", chart.NEUTRAL),
}


def speed_up_charts(comparison: Comparison, keys: Mapping[int, str] = {}) -> list[chart.Chart]:
    """How many times as fast the new side is over sizes, with the 95 % interval, a chart for each
    table of the comparison. The shaded band is what counts as the same.
    """
    tables = [
        table
        for table in tables_of([row for row in comparison.rows if row.matched and row.ratio])
        if table
    ]
    titles = titles_of([table[0].pair for table in tables])
    base, new = map(chart.plain, comparison.side_names)
    charts = []
    for table, title in zip(tables, titles, strict=True):
        traces = []
        for result in dict.fromkeys(row.result for row in table):
            symbol, colour = _RESULT_STYLES.get(result, ("x", chart.NEUTRAL))
            rows = [row for row in table if row.result == result]
            x, y, above, below, texts, points = [], [], [], [], [], []
            for row in rows:
                speed, interval = row.speed, row.interval
                # A wider interval would hide all others.
                if interval and not interval[1] < 100 * speed < 1e4 * interval[0]:
                    interval = None
                low, high = interval or (speed, speed)
                x.append(max(1, row.pair.size_bytes))
                y.append(chart.rounded(speed))
                above.append(chart.rounded(high - speed))
                below.append(chart.rounded(speed - low))
                size = format_size(row.pair.size_bytes)
                ends = f" ({interval_text(row)})" if interval else ""
                texts.append(f"{size}: speed-up {speed_cell(speed)}{ends}<br>{chart.plain(result)}")
                members = [item.result for item in (*row.pair.base, *row.pair.new)]
                points.append(chart.keys_of(members, keys))
            traces.append(
                {
                    "mode": "markers", "name": chart.plain(result),
                    "x": x, "y": y, "text": texts, "customdata": points,
                    "hovertemplate": chart.HOVER,
                    "marker": {"symbol": symbol, "color": colour, "size": 9},
                    "error_y": {"array": above, "arrayminus": below, "symmetric": False,
                                "color": colour, "thickness": 1.5, "width": 3},
                }
            )  # fmt: skip
        same = 1 + comparison.threshold
        sizes = [max(1, row.pair.size_bytes) for row in table]
        across = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "layer": "below"}
        layout = {
            "xaxis": chart.size_axis(sizes),
            "yaxis": {"type": "log", "title": {"text": f"speed-up of {new} over {base}"},
                      "tickformat": ".3~r",
                      "nticks": 4},
            "showlegend": True,
            "shapes": [
                {**across, "type": "rect", "y0": 1 / same, "y1": same, "line": {"width": 0},
                 "fillcolor": "rgba(122,127,133,0.25)"},
                {**across, "type": "line", "y0": 1, "y1": 1,
                 "line": {"color": chart.NEUTRAL, "width": 1}},
            ],
        }  # fmt: skip
        name = chart.plain(title or table[0].row.collective)
        charts.append(chart.Chart(name, traces, layout, [chart.SCALES]))
    return charts

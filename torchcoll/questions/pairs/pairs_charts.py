"""Interactive charts of pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchcoll.core.summary import median
from torchcoll.core.units import format_digits, format_size, shorten
from torchcoll.questions.pairs.matches import EXCHANGE, LATENCY, Pairs
from torchcoll.questions.pairs.suspects import Suspect, find_suspects, suspect_name
from torchcoll.report.chart import PALETTE, TIMES, Chart, heat_map, merged, plain, texts_fit

_CELLS = 256  # rows and columns: of more, neighbours are merged
_TICKS = 16  # of an axis; and one for each slow unit
_NAMED = 3  # suspects in the caption


def pairs_charts(pairs: Pairs) -> list[Chart]:
    """A heat map for each measurement: row and column are the two ends of a pair. The first is the
    one whose worst pair is farthest from the median pair; without a suspect, latencies are last.
    Confirmed suspects have a frame.
    """
    charts: list[tuple[bool, float, Chart]] = []
    count = len(pairs.units)
    step = -(-count // _CELLS)
    suspected = find_suspects(pairs)
    suspects = [each for each in suspected if each.confirmed]
    slow = {each.units[0] // step for each in suspects if not each.is_link}
    names = [
        f"{unit} ({plain(pairs.hosts[unit])}){', slow' if unit // step in slow else ''}"
        for unit in range(0, count, step)
    ]
    frames = [frame for each in suspects for frame in _frames(each, len(names), step)]
    caption = (
        f"a slow {pairs.by} would be a row and a column of another colour, a slow link two cells"
    )
    if suspects:
        named = shorten([suspect_name(pairs, each) for each in suspects], _NAMED)
        caption = f"framed: slow, {plain(named)}; slow cells without a frame are not proven slow"
    captions = [caption]
    if pairs.alone:
        captions.append("cells: slow pairs as measured again, alone; other pairs in the first pass")
    if cleared := [suspect_name(pairs, each) for each in suspected if not each.confirmed]:
        captions.append(f"fine when measured again alone: {plain(shorten(cleared, _NAMED))}")
    for key, times in pairs.times.items():
        kind, size_bytes = key
        bandwidth = kind != LATENCY
        factor = 1.0 if pairs.unit == "GB/s" else 1e3
        # Merged cells show the worst: the lowest bandwidth, the longest latency.
        sign = -1.0 if bandwidth else 1.0
        values = np.full((count, count), np.nan)
        for (a, b), timing in times.items():
            alone = [of[key][a, b].median_ns for of in pairs.alone if (a, b) in of.get(key, {})]
            ns = median(alone) if alone else timing.median_ns
            value = factor * pairs.gbps(key, (a, b), ns) if bandwidth else ns / 1e3
            values[a, b] = sign * value
            if (b, a) not in times:
                values[b, a] = sign * value
        values = sign * merged(merged(values, step).T, step).T
        worst, middle = np.nanmax(sign * values), np.nanmedian(sign * values)
        unit = pairs.unit if bandwidth else "us"
        figure = f"bandwidth ({unit} sent by each)" if bandwidth else "median time (us)"
        title = f"{format_size(size_bytes)} both ways" if kind == EXCHANGE else kind
        hover = f"%{{y}} and %{{x}}: %{{z:.4~g}} {unit}<extra></extra>"
        colours = {} if bandwidth else {"colours": TIMES}
        chart = heat_map(plain(title), values, names, names, figure, hover, **colours)
        texts = [["" if np.isnan(x) else format_digits(x) for x in row] for row in values]
        if texts_fit(texts):
            chart.traces[0] |= {"text": texts, "texttemplate": "%{text}"}
        chart.layout["yaxis"] |= {"title": {"text": pairs.by, "standoff": 12}}
        chart.layout["xaxis"] |= {"title": {"text": pairs.by}}
        chart.layout["shapes"] = frames
        chart.caption = [*captions]
        if step > 1:
            chart.caption.append(
                f"reduced: each cell is the slowest pair of {step} by {step} {pairs.by}s"
            )
        if len(names) > _TICKS:
            step_of_ticks = -(-len(names) // _TICKS)
            ticks = [name for n, name in enumerate(names) if n % step_of_ticks == 0 or n in slow]
            chart.layout["xaxis"]["tickvals"] = chart.layout["yaxis"]["tickvals"] = ticks
        healthy = not suspects and not bandwidth
        charts.append((healthy, -abs(float(np.log(worst / middle))), chart))
    return [chart for *_, chart in sorted(charts, key=lambda each: each[:2])]


def _frames(suspect: Suspect, count: int, step: int) -> list[dict[str, Any]]:
    """The row and the column of a unit, or the two cells of a link. count: rows of the map."""
    spans = [(unit // step - 0.5, unit // step + 0.5) for unit in suspect.units]
    first, second = [*spans, (-0.5, count - 0.5)][:2]
    line = {"color": PALETTE[1], "width": 3}
    frame = {"type": "rect", "xref": "x", "yref": "y", "line": line}
    return [
        frame | {"x0": x[0], "x1": x[1], "y0": y[0], "y1": y[1]}
        for x, y in ((first, second), (second, first))
    ]

"""Interactive charts of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchcoll.core.summary import median
from torchcoll.core.units import format_digits, format_size, shorten
from torchcoll.questions.pairs.matches import EXCHANGE, LATENCY, Pairs
from torchcoll.questions.pairs.schedule import Pair
from torchcoll.questions.pairs.suspects import Suspect, find_suspects, suspect_name
from torchcoll.report.chart import PALETTE, TIMES, Chart, heat_map, merged, plain, texts_fit

_CELLS = 256  # rows and columns: of more, neighbours are merged
_TICKS = 16  # of an axis; and one for each slow unit
_NAMED = 3  # suspects in the caption


def pairs_charts(pairs: Pairs) -> list[Chart]:
    """A heat map for each measurement: row and column are the two ends of a pair. With a suspect
    those that were repeated alone are first, whose figures the answer has. Then the first is the
    one whose worst pair is farthest from the median pair; without a suspect, latencies are last.
    Confirmed suspects have a frame.
    """
    charts: list[tuple[int, float, Chart]] = []
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
    if cleared := [suspect_name(pairs, each) for each in suspected if not each.confirmed]:
        captions.append(f"fine when measured again alone: {plain(shorten(cleared, _NAMED))}")
    tables = [
        (key, {pair: timing.median_ns for pair, timing in times.items()}, "")
        for key, times in pairs.times.items()
    ]
    tables += [
        (key, times, ", slow pairs alone") for key, times in _alone(pairs, suspected).items()
    ]
    for key, times, which in tables:
        kind, size_bytes = key
        bandwidth = kind != LATENCY or bool(which)
        factor = 1.0 if pairs.unit == "GB/s" else 1e3
        # Merged cells show the worst: the lowest bandwidth, the longest latency.
        sign = -1.0 if bandwidth else 1.0
        values = np.full((count, count), np.nan)
        for (a, b), ns in times.items():
            value = factor * pairs.gbps(key, (a, b), ns) if bandwidth else ns / 1e3
            value = 100 * ns if which else value
            values[a, b] = sign * value
            if (b, a) not in times:
                values[b, a] = sign * value
        values = sign * merged(merged(values, step).T, step).T
        worst, middle = np.nanmax(sign * values), np.nanmedian(sign * values)
        unit = pairs.unit if bandwidth else "us"
        figure = f"bandwidth ({unit} sent by each)" if bandwidth else "median time (us)"
        if which:
            unit, figure = "%", "speed, % of the other pairs"
        title = f"{format_size(size_bytes)} both ways" if kind == EXCHANGE else kind
        hover = f"%{{y}} and %{{x}}: %{{z:.4~g}} {unit}<extra></extra>"
        colours = {} if bandwidth else {"colours": TIMES}
        chart = heat_map(plain(title + which), values, names, names, figure, hover, **colours)
        form = "{:.0f} %".format if which else format_digits
        texts = [["" if np.isnan(x) else form(x) for x in row] for row in values]
        if texts_fit(texts):
            chart.traces[0] |= {"text": texts, "texttemplate": "%{text}"}
        chart.layout["yaxis"] |= {"title": {"text": pairs.by, "standoff": 12}}
        chart.layout["xaxis"] |= {"title": {"text": pairs.by}}
        chart.layout["shapes"] = frames
        chart.caption = [*captions]
        if which:
            chart.caption.append("% of the median of the other pairs; blank: not measured again")
        elif pairs.alone:
            chart.caption.append("measured while other pairs ran; the answer: slow pairs alone")
        if step > 1:
            chart.caption.append(
                f"reduced: each cell is the slowest pair of {step} by {step} {pairs.by}s"
            )
        if len(names) > _TICKS:
            step_of_ticks = -(-len(names) // _TICKS)
            ticks = [name for n, name in enumerate(names) if n % step_of_ticks == 0 or n in slow]
            chart.layout["xaxis"]["tickvals"] = chart.layout["yaxis"]["tickvals"] = ticks
        if suspects:
            first = next(each for each in suspects[0].evidence if each.confirmed is not False)
            order = 1 + (not which) - (which != "" and first.what == kind)
        else:
            order = (not bandwidth) + 2 * bool(which)
        charts.append((order, -abs(float(np.log(worst / middle))), chart))
    return [chart for *_, chart in sorted(charts, key=lambda each: each[:2])]


def _alone(pairs: Pairs, suspects: Sequence[Suspect]) -> dict[tuple[str, int], dict[Pair, float]]:
    """The speed of each pair that was repeated alone, as a share of the median of the pairs without
    a suspect; the median over the passes.
    """
    slow = [{*each.units} for each in suspects]
    passes: dict[tuple[str, int], dict[Pair, list[float]]] = {}
    for tables in pairs.alone:
        for key, times in tables.items():
            usual = [t.good_ns for pair, t in times.items() if not any(s <= {*pair} for s in slow)]
            for pair, timing in times.items() if usual else ():
                share = median(usual) / timing.good_ns
                passes.setdefault(key, {}).setdefault(pair, []).append(share)
    return {key: {pair: median(of) for pair, of in table.items()} for key, table in passes.items()}


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

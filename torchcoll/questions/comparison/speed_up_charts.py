"""Charts of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_size
from torchcoll.questions.comparison.compare import Comparison
from torchcoll.questions.comparison.results import Compared, tables_of, titles_of
from torchcoll.questions.comparison.show import interval_text
from torchcoll.questions.comparison.wording import (
    CHANGED,
    MOST_CHANGED,
    MOST_NAMED,
    change_text,
    speed_cell,
    undecided_far,
)
from torchcoll.report import chart
from torchcoll.stats.sides import unnamed_note

MOST_CASES = 64  # of one chart
_FOLDED = 40  # cases: of more, only those outside of the band
_WIDEST = 100.0  # times the speed-up: a wider interval would hide all others
_RESULT_STYLES = {
    "slower": ("triangle-down", chart.PALETTE[1]),
    "faster": ("triangle-up", chart.PALETTE[2]),
    "same": ("circle", chart.PALETTE[0]),
    "inconclusive": ("x", chart.NEUTRAL),
}


_FACTORS = [digit * 10.0**power for power in range(5) for digit in (1, 2, 3, 5)]
_SMALL_FACTORS = [1.5, 1.2, 1.1, 1.05, 1.02, 1.01]


def _ticks(low: float, high: float) -> list[float]:
    """Round speed-ups from low to high, and 1, far enough from each other for two-line labels."""
    least = math.log(high / low) / 5
    ticks = [1.0]
    for factor in (*_FACTORS[:0:-1], *_SMALL_FACTORS):
        for speed in (1 / factor, factor):
            apart = all(abs(math.log(speed / tick)) >= least for tick in ticks)
            if low <= speed <= high and apart:
                ticks.append(speed)
    return sorted(ticks)


def _tick_text(speed: float) -> str:
    text = f"{max(speed, 1 / speed):.4g}x"
    return text if speed == 1 else f"{text}<br>{'faster' if speed > 1 else 'slower'}"


def _named(comparison: Comparison, rows: Sequence[Compared]) -> list[Compared]:
    """The cases that the answer names, of rows by the size of their difference: none of the changed
    ones if one factor is the answer for most cases.
    """
    changed = [row for row in rows if row.result in CHANGED]
    undecided = undecided_far(comparison, rows)
    groups = [undecided] if len(changed) >= MOST_CHANGED * len(rows) else [changed, undecided]
    return [
        row
        for group in groups
        for is_slower in (True, False)
        for row in [each for each in group if (each.speed < 1) == is_slower][:MOST_NAMED]
    ]


def speed_up_charts(comparison: Comparison, keys: Mapping[int, str] = {}) -> list[chart.Chart]:
    """A line for each case: how many times as fast the new side is, with the 95 % interval. The
    shaded band is what counts as the same. Of many cases, those that differ most. The cases that
    the answer names come first, then those that differ most.
    """
    compared = [row for row in comparison.rows if row.matched and row.ratio]
    tables = tables_of(compared)
    titles = titles_of([table[0].pair for table in tables])
    every = [
        (f"{title or row.row.collective} {format_size(row.pair.size_bytes)}", row)
        for table, title in zip(tables, titles, strict=True)
        for row in table
    ]
    if not every:
        return []
    same = 1 + comparison.threshold
    apart = [pair for pair in every if abs(math.log(pair[1].speed)) > math.log(same)]
    folded = len(every) - len(apart) if apart and len(every) > _FOLDED else 0
    if folded:
        every = apart
    by_factor = sorted(every, key=lambda pair: -pair[1].factor)[:MOST_CASES]
    worst = _named(comparison, [row for _, row in by_factor])
    named = sorted(by_factor, key=lambda pair: pair[1] not in worst)
    traces: list[dict[str, Any]] = []
    for result in dict.fromkeys(row.result for _, row in named):
        symbol, colour = _RESULT_STYLES.get(result, ("x", chart.NEUTRAL))
        places, speeds, above, below, texts, points = [], [], [], [], [], []
        for place, (name, row) in enumerate(named):
            if row.result != result:
                continue
            speed, interval = row.speed, row.interval
            if interval and not interval[1] < _WIDEST * speed < _WIDEST**2 * interval[0]:
                interval = None
            low, high = interval or (speed, speed)
            places.append(place)
            speeds.append(chart.rounded(speed))
            above.append(chart.rounded(high - speed))
            below.append(chart.rounded(speed - low))
            ends = f" ({interval_text(row)})" if interval else ""
            text = f"{chart.plain(name)}: {change_text(speed)}, speed-up {speed_cell(speed)}{ends}"
            texts.append(f"{text}<br>{chart.plain(result)}")
            members = [item.result for item in (*row.pair.base, *row.pair.new)]
            points.append(chart.keys_of(members, keys))
        traces.append(
            {
                "mode": "markers", "name": chart.plain(result),
                "x": speeds, "y": places, "text": texts, "customdata": points,
                "hovertemplate": chart.HOVER,
                "marker": {"symbol": symbol, "color": colour, "size": 9},
                "error_x": {"array": above, "arrayminus": below, "symmetric": False,
                            "color": colour, "thickness": 1.5, "width": 3},
            }
        )  # fmt: skip
    base, new = map(chart.plain, comparison.side_names)
    extent = [
        speed + off
        for trace in traces
        for speed, above, below in zip(
            trace["x"], trace["error_x"]["array"], trace["error_x"]["arrayminus"], strict=True
        )
        for off in (above, -below)
    ]
    ticks = _ticks(min(1.0, *extent), max(1.0, *extent))
    down = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    layout = {
        "xaxis": {"type": "log", "title": {"text": f"{new} against {base}"},
                  "tickvals": ticks,
                  "ticktext": [_tick_text(speed) for speed in ticks]},
        "yaxis": {"automargin": True,
                  "tickvals": list(range(len(named))),
                  "ticktext": [chart.plain(name) for name, _ in named],
                  "range": [len(named) - 0.5, -1.5]},
        "showlegend": True,
        "height": 150 + 19 * len(named),
        "shapes": [
            {**down, "type": "rect", "x0": 1 / same, "x1": same, "line": {"width": 0},
             "fillcolor": "rgba(122,127,133,0.25)"},
            {**down, "type": "line", "x0": 1, "x1": 1,
             "line": {"color": chart.NEUTRAL, "width": 1}},
        ],
        "annotations": [
            {"x": 0, "y": -1, "text": "same", "showarrow": False},  # x: the logarithm
        ],
    }  # fmt: skip
    chart.axis_on_top(layout)
    caption = [f"right of the band {new} is faster, left of it slower"]
    if any(row.interval for _, row in named):
        caption[0] += "; whiskers: 95 % intervals"
    reasons = {row.reason for _, row in named if row.result == "inconclusive"}
    if reasons:
        why = chart.plain(one_line(reasons.pop())) if len(reasons) == 1 else ""
        caption.append(f"grey: inconclusive, {why or 'cannot tell whether they differ'}")
    if 0 < len(worst) < len(named):
        caption.append("the cases that the answer names are on top, then those that differ most")
    caption += filter(None, map(unnamed_note, (comparison.base, comparison.new)))
    if folded:
        caption.append(f"{counted(folded, 'case')} inside of the band not drawn")
    if len(named) < len(every):
        caption.append(f"the {len(named)} cases that differ most, of {len(every)}")
    return [chart.Chart(counted(len(every) + folded, "case"), traces, layout, caption=caption)]

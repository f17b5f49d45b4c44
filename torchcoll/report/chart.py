"""Charts as data: plotly's traces and layout, without plotly itself.

A page draws a chart with plotly.js, ``figure`` makes a plotly Figure of it for a notebook, and
``chart_matplotlib`` draws pictures of charts.
Times are in seconds, because plotly names powers of a thousand (12 us is 0.000012 with the unit s).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import UnavailableError, install_text, one_line
from torchcoll.core.result import CaseResult
from torchcoll.core.units import format_size

# M. Okabe and K. Ito's colours, which colour-blind people can tell apart, darkened where they would
# have less than 3:1 contrast on white paper; all have 3:1 on the page's dark background too. Lines
# differ in symbol and dashes as well: 6 colours and 5 dashes are 30 styles.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#c0689a", "#3d8fc4", "#a87600")
NEUTRAL = "#7a7f85"
WAITING = PALETTE[5]  # for another rank, in bars
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_MOST_TICKS = 9
MOST_POINTS = 400  # of one chart: with 600, a choice takes plotly up to 0.1 s
MOST_LINES = 8  # that can be chosen, or are shown at first
FIGURE = "figure"  # label of the selector whose options a picture shows side by side
_TALL = 500  # pixels
HOVER = "%{text}<extra></extra>"
_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


# On a logarithmic axis plotly leaves the unit out of all labels but those of powers of ten.
TIME_LABELS = {
    f"{mantissa}{zeros}{prefix}": f"{mantissa}{zeros}{prefix}s"
    for mantissa in range(2, 10)
    for zeros in ("", "0", "00")
    for prefix in ("n", "µ", "m", "")
}


@dataclass(frozen=True)
class Option:
    """One value of a selector: what plotly updates of the traces at ``indices`` (None: all)."""

    text: str
    traces: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)
    indices: Sequence[int] | None = None

    @property
    def arguments(self) -> list[Any]:
        """The arguments of plotly's ``update``."""
        values = [dict(self.traces), dict(self.layout)]
        return values if self.indices is None else [*values, list(self.indices)]


@dataclass(frozen=True)
class Selector:
    """A choice above a chart, whose first option is how the chart is drawn at first."""

    label: str
    options: Sequence[Option]


@dataclass
class Chart:
    """A chart with its title, and the caption that says how to read it.

    key: of the case whose calls it shows, '' for others. A trace's ``customdata`` are keys of
    cases, one for each point; the ``meta`` of a heat map has one for each column. Only pictures
    have notes below the caption, more_traces in the last panel, and one scale if ``shared``.
    """

    title: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    selectors: list[Selector] = field(default_factory=list)
    caption: list[str] = field(default_factory=list)
    key: str = ""
    notes: Sequence[str] = ()
    more_traces: Sequence[dict[str, Any]] = ()
    shared: bool = False

    def figure(self) -> Any:
        """A plotly Figure with the selectors as menus. Raises UnavailableError without plotly."""
        check_installed("plotly", "chart", "plot")
        from plotly.graph_objects import Figure

        def arguments(option: Option) -> list[Any]:
            traces, layout, *indices = option.arguments
            if "yaxis.ticksuffix" in layout:
                layout["yaxis.labelalias"] = TIME_LABELS if layout["yaxis.ticksuffix"] else {}
            return [traces, layout, *indices]

        menus = [
            {
                "buttons": [
                    {"label": option.text, "method": "update", "args": arguments(option)}
                    for option in selector.options
                ],
                "x": 0.18 * number,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
            }
            for number, selector in enumerate(self.selectors)
        ]
        layout = {**self.layout, "title": {"text": self.title}, "updatemenus": menus}
        if layout.get("yaxis", {}).get("ticksuffix"):
            layout["yaxis"] = {**layout["yaxis"], "labelalias": TIME_LABELS}
        return Figure({"data": self.traces, "layout": layout})


def check_installed(library: str, what: str, extra: str) -> None:
    """Raises UnavailableError if ``what`` needs a library that is not installed."""
    try:
        importlib.import_module(library)
    except ImportError:
        name = library.partition(".")[0]
        raise UnavailableError(what, "no library for it", name, install_text(extra)) from None


def plain(value: object) -> str:
    """A text in which plotly finds no markup, such as <b>."""
    return one_line(value).translate(_MARKUP)


def seconds(ns: float | None) -> float | None:
    """Four significant digits, which is more than a screen can show."""
    return None if ns is None else float(f"{ns * 1e-9:.4g}")


def rounded(value: float | None, digits: int = 4) -> float | None:
    """None also for what is not finite: JSON has no NaN."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def line_style(number: int) -> dict[str, Any]:
    """Colour, dashes and symbol of the line with this number."""
    colour = PALETTE[number % len(PALETTE)]
    return {
        "line": {"color": colour, "width": 2, "dash": _DASHES[number % len(_DASHES)]},
        "marker": {"color": colour, "size": 7, "symbol": _SYMBOLS[number % len(_SYMBOLS)]},
    }


def line(
    name: str,
    number: int,
    x: Sequence[Any],
    y: Sequence[float | None],
    text: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """The line with this number. text: what hovering shows at each point. more: attributes."""
    group = {"legendgroup": more.pop("legendgroup")} if "legendgroup" in more else {}
    return {
        "mode": more.pop("mode", "lines+markers"),
        "name": name,
        **group,
        "x": x,
        "y": y,
        "text": text,
        **more,
        "hovertemplate": HOVER,
        **line_style(number),
    }


def reference(y: float, x: Iterable[float], name: str = "") -> dict[str, Any]:
    """A dashed line across the range of ``x``: of a limit, which has a name, or of no change."""
    ends = [*x]
    return {
        "mode": "lines", "name": name, "x": [min(ends), max(ends)], "y": [y, y],
        "line": {"color": NEUTRAL, "dash": "dash", "width": 1},
    }  # fmt: skip


def time_bands(
    points: Iterable[tuple[float, float | None, float | None]], number: int, group: str = ""
) -> list[dict[str, Any]]:
    """The band of those (x, low, high), in ns, that have both ends; [] if none has."""
    ends = [(x, seconds(low) or 0, seconds(high) or 0) for x, low, high in points if low and high]
    return [band(ends, number, group)] if ends else []


def band(
    points: Sequence[tuple[float, float, float]], number: int, group: str = ""
) -> dict[str, Any]:
    """The area between low and high of (x, low, high), in the colour of the line ``number``."""
    colour = PALETTE[number % len(PALETTE)]
    red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return {
        "x": [x for x, _, _ in points] + [x for x, _, _ in reversed(points)],
        "y": [low for _, low, _ in points] + [high for _, _, high in reversed(points)],
        "mode": "lines",
        "fill": "toself",
        "fillcolor": f"rgba({red},{green},{blue},0.18)",
        "line": {"width": 1 if len(points) == 1 else 0, "color": colour},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": group,
    }


def size_axis(sizes: Sequence[int]) -> dict[str, Any]:
    """Logarithmic, with ticks at powers of two. sizes: in bytes, above 0."""
    first, last = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    step = next(step for step in (1, 2, 4, 5, 10, 20) if (last - first) / step <= _MOST_TICKS)
    ticks = [2**power for power in range(max(0, first), last + 1, step)]
    return {
        "type": "log",
        "title": {"text": "size (bytes)"},
        "tickvals": ticks,
        "ticktext": [format_size(tick) for tick in ticks],
    }


def ranks_axis(ranks: Sequence[int]) -> dict[str, Any]:
    """Logarithmic, with a tick at each measured number of ranks, if they are few."""
    ticks = sorted(set(ranks))
    step = -(-len(ticks) // 12)
    return {
        "type": "log",
        "title": {"text": "ranks"},
        "tickvals": ticks[::step],
        "ticktext": [str(tick) for tick in ticks[::step]],
    }


def time_axis(title: str = "time of a call") -> dict[str, Any]:
    return {
        "type": "log",
        "title": {"text": title},
        "tickformat": "~s",
        "ticksuffix": "s",
        "nticks": 4,  # with more, plotly labels all of 1 to 9 where they overlap
    }


def time_or(name: str, title: str, times: Sequence[Any], values: Sequence[Any]) -> Selector:
    """The choice between times and another figure. times, values: the ``y`` of each trace."""
    layouts = [
        {"yaxis.title.text": text, "yaxis.tickformat": form, "yaxis.ticksuffix": suffix}
        for text, form, suffix in (("time of a call", "~s", "s"), (title, "", ""))
    ]
    options = Option("time", {"y": times}, layouts[0]), Option(name, {"y": values}, layouts[1])
    return Selector(FIGURE, options)


_CHARACTERS = 80  # across all cells of a row of a heat map

SCALES = Selector(
    "scale",
    (
        Option("log", layout={"yaxis.type": "log"}, indices=()),
        Option("linear", layout={"yaxis.type": "linear", "yaxis.rangemode": "tozero"}, indices=()),
    ),
)


def reduced(values: Sequence[float], most: int) -> list[int]:
    """Indices of at most ``most`` values to draw: the extremes of each stretch of neighbours."""
    if len(values) <= most:
        return list(range(len(values)))
    each = -(-2 * len(values) // most)
    kept: list[int] = []
    for first in range(0, len(values), each):
        stretch = range(first, min(first + each, len(values)))
        low, high = (pick(stretch, key=values.__getitem__) for pick in (min, max))
        kept += sorted({low, high})
    return kept


def keys_of(results: Sequence[CaseResult], keys: Mapping[int, str]) -> str:
    return " ".join(dict.fromkeys(key for r in results if (key := keys.get(id(r)))))


def bars(
    name: str,
    values: Sequence[float | None],
    texts: Sequence[str],
    colour: str,
    hatched: Sequence[bool] = (),
) -> dict[str, Any]:
    """One part of each bar of ``bar_chart``. texts: what hovering shows. hatched: for each bar.
    Waiting is dotted: its colour is as light as those beside it.
    """
    fill = "." if colour == WAITING else ""
    shapes = ["/" if each else fill for each in hatched or [False] * len(values)]
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": list(values),
        "marker": {"color": colour, **({"pattern": {"shape": shapes}} if any(shapes) else {})},
        "hovertemplate": "%{y}<br>%{text}<extra></extra>",
        "textposition": "none",
        "text": list(texts),
    }


def axis_on_top(layout: dict[str, Any]) -> None:
    """Puts the numbers of a tall chart above its rows, where a screen begins, below the legend."""
    if layout["height"] > _TALL:
        layout["xaxis"] = {**layout["xaxis"], "side": "top"}
        above = 1 + 60 / (layout["height"] - 85)
        layout["legend"] = {"orientation": "h", "x": 0, "y": above, "yanchor": "bottom"}


def bar_chart(
    title: str,
    names: Sequence[str],
    traces: list[dict[str, Any]],
    axis: Mapping[str, Any],
    caption: list[str],
) -> Chart:
    """Stacked bars below each other, one a name. axis: of their lengths."""
    for trace in traces:
        trace.setdefault("y", names)
    lines = 1 + max(name.count("<br>") for name in names)
    layout: dict[str, Any] = {
        "xaxis": axis,
        "yaxis": {"autorange": "reversed", "automargin": True, "dtick": 1},
        "showlegend": len(traces) > 1,
        "barmode": "stack",
        "height": 100 + (8 + 16 * lines) * len(names),
    }
    axis_on_top(layout)
    return Chart(title, traces, layout, caption=caption)


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


def texts_fit(texts: Sequence[Sequence[str]]) -> bool:
    """Whether the cells of a heat map are wide enough for their texts."""
    return max(len(text) for row in texts for text in row) * len(texts[0]) <= _CHARACTERS


# Of heat maps, from slow to fast. All carry black figures, and stand out on dark paper.
_SPEEDS = ("#7a82d6", "#4fa3c7", "#45b89c", "#7cc96a", "#c3da45", "#fde725")
TIMES = _SPEEDS[::-1]  # of times, where more is slower


def heat_map(
    title: str,
    values: np.ndarray[Any, Any],
    columns: Sequence[Any],
    rows: Sequence[Any],
    unit: str,
    hover: str,
    colours: Sequence[str] = _SPEEDS,
) -> Chart:
    """values [rows, columns]; NaN is left blank. colours: from the lowest to the highest value."""
    trace = {
        "type": "heatmap",
        "colorscale": [[n / (len(colours) - 1), colour] for n, colour in enumerate(colours)],
        "x": list(columns),
        "y": list(rows),
        "z": [[rounded(float(value)) for value in row] for row in values],
        "hovertemplate": hover,
        "hoverongaps": False,
        "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 14},
        "textfont": {"color": "#000000"},
    }
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

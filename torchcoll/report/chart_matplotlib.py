"""Draws charts with matplotlib: the pictures of files, and of a page in markdown."""

from __future__ import annotations

import html
import math
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchcoll.core.units import format_bytes, format_ns
from torchcoll.report import pictures
from torchcoll.report.chart import FIGURE, NEUTRAL, Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

MOST_CHARTS = 32  # of one picture
_CONCURRENT = 8  # more lines have their names beside the panels, not in one of them
_NAMED = 24  # names below each other
_MARKED = 40  # a line with more points has no symbols
_NAMES = 16  # of an axis of names: of more, each n-th is written
_TITLE = 60  # characters in a line above a panel, of two in a row
_HEADLINE = 110  # characters in a line above a picture
_UNIT = 30  # characters beside the scale of a heat map
_SYMBOLS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "x": "x",
    "star": "*",
    "x-thin": "x",
}
_DASHES: Mapping[str, Any] = {
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": (0, (6, 2, 1, 2)),
    "longdash": (0, (9, 3)),
}


def _format_seconds(seconds: float) -> str:
    number, unit = format_ns(seconds * 1e9, 3).split()
    return f"{float(number):g} {unit}"  # 10 us, where a table has 10.0 us


_FORMATS: Mapping[str, Callable[[float], str]] = {
    "s": _format_seconds,
    "B": format_bytes,
    "x": lambda value: f"{value:.6g}x",
    "": lambda value: f"{value:.6g}",
}


def write_charts(
    charts: Sequence[Chart], path: str | os.PathLike[str], title: str = ""
) -> pictures.WrittenPicture:
    """Raises UnavailableError without matplotlib, UsageError for a path that cannot be written.

    title: the answer that the picture shows, above it.
    """
    figure = draw_charts(charts)
    if title:
        text = textwrap.fill(pictures.literal(title), _HEADLINE)
        figure.suptitle(text, x=0.01, ha="left", fontsize="large", fontweight="bold")
    pictures.write_caption(figure, caption_of(charts))
    return pictures.write_figure(figure, path)


def caption_of(charts: Sequence[Chart]) -> list[str]:
    """What stands below a picture of these charts: each line of theirs once."""
    drawn = charts[:MOST_CHARTS]
    lines = [line for chart in drawn for line in (*chart.caption, *chart.notes)]
    if len(drawn) < len(charts):
        lines.append(f"the first {len(drawn)} of {len(charts)} charts")
    return [*dict.fromkeys(lines)]


def draw_charts(charts: Sequence[Chart]) -> Figure:
    """A row for each chart that shows two figures, or two charts in a row."""
    rows = list(map(_panels, charts[:MOST_CHARTS]))
    pairs = any(len(row) > 1 for row in rows)
    if not pairs:
        panels = [panel for row in rows for panel in row]
        columns = 1 if "barmode" in panels[0].layout else 2
        rows = [panels[n : n + columns] for n in range(0, len(panels), columns)]
    columns = max(map(len, rows))
    figure, grid = pictures.new_figure(len(rows), columns, charts[0].shared)
    heights = []
    for row, axes in zip(rows, grid, strict=True):
        names = [len(_draw_panel(figure, *drawn)) for drawn in zip(axes, row, strict=False)]
        for number, (axis, panel) in enumerate(zip(axes, row, strict=False)):
            many = max(names) > _CONCURRENT if pairs else names[number] > _CONCURRENT // 2
            many = many or "ticktext" in panel.layout["yaxis"] or "barmode" in panel.layout
            # The lines of a row are those of one chart: their names stand where they hide least.
            if not pairs or number == (len(row) - 1 if many else 0):
                _legend(axis, panel, many)
        for axis in axes[len(row) :]:
            axis.set_visible(False)
        heights.append(max(panel.layout.get("height", 360) / 100 for panel in row))
        heights[-1] = max(heights[-1], 0.8 + 0.18 * min(_NAMED, max(names)))
    figure.set_figheight(sum(heights))
    grid[0][0].get_gridspec().set_height_ratios(heights)
    return figure


def _panels(chart: Chart) -> list[Chart]:
    """The chart with each of the figures that it can show."""
    panels = []
    for selector in chart.selectors:
        for option in selector.options if selector.label == FIGURE else ():
            layout = deepcopy(chart.layout)
            for path, value in option.layout.items():
                *names, last = path.split(".")
                inner = layout
                for name in names:
                    inner = inner.setdefault(name, {})
                inner[last] = value
            # Bandwidths are read off as lengths.
            scale = ("log", "normal") if layout["yaxis"].get("ticksuffix") else ("linear", "tozero")
            layout["yaxis"] |= dict(zip(("type", "rangemode"), scale, strict=True))
            traces = [
                {**trace, "y": y} for trace, y in zip(chart.traces, option.traces["y"], strict=True)
            ]
            title = f"{chart.title}: {option.text}"
            panels.append(replace(chart, title=title, traces=traces, layout=layout))
    panels = panels or [chart]
    panels[-1] = replace(panels[-1], traces=[*panels[-1].traces, *chart.more_traces])
    return panels


def _text(plain: str) -> str:
    """Of a text with plotly's markup, see ``chart.plain``."""
    return "\n".join(pictures.literal(html.unescape(line)) for line in plain.split("<br>"))


def _draw_panel(figure: Figure, axes: Axes, panel: Chart) -> list[str]:
    """Returns the names of its legend."""
    side = None
    if "xaxis2" in panel.layout:
        side = axes.inset_axes((1.02, 0.0, 0.18, 1.0), sharey=axes)
        side.tick_params(labelleft=False)
    for trace in panel.traces:
        if trace.get("visible") == "legendonly":
            continue
        if trace.get("type") == "heatmap":
            _draw_heat_map(figure, axes, trace)
        elif trace.get("type") == "bar":
            _draw_bars(axes, trace)
        elif trace.get("fill") == "toself":
            line = trace["line"]
            colours = {"facecolor": _colour(trace["fillcolor"]), "edgecolor": line["color"]}
            axes.fill(trace["x"], trace["y"], linewidth=line["width"], zorder=1, **colours)
        elif trace.get("xaxis") == "x2":
            assert side is not None
            colour = _colour(trace["line"]["color"])
            side.fill_betweenx(trace["y"], trace["x"], step="mid", color=colour, alpha=0.5)
        else:
            _draw_line(axes, trace)
    for shape in panel.layout.get("shapes", ()):
        _draw_shape(axes, shape)
    for note in panel.layout.get("annotations", ()):
        x = 10 ** note["x"] if panel.layout["xaxis"].get("type") == "log" else note["x"]
        axes.annotate(
            _text(note["text"]), (x, note["y"]), ha="center", va="center", fontsize="small"
        )
    if panel.layout["yaxis"].get("zeroline"):
        axes.axhline(0, color=NEUTRAL, linestyle=_DASHES["dash"], linewidth=1)
    heat_map = any(trace.get("type") == "heatmap" for trace in panel.traces)
    for name in "xy":
        _draw_axis(axes, name, panel.layout.get(f"{name}axis", {}), named=heat_map)
    if side:
        _draw_axis(side, "x", panel.layout["xaxis2"] | {"tickformat": "d"})
    if not heat_map:
        axes.grid(True, color="0.9")
        axes.set_axisbelow(True)
    at_bottom = panel.layout.get("xaxis", {}).get("side") != "top"
    axes.tick_params(labelleft=True, labelbottom=at_bottom)  # of panels that share their axes too
    title = textwrap.fill(_text(panel.title), _TITLE)
    axes.set_title(title, loc="left", fontsize="medium")
    return axes.get_legend_handles_labels()[1]


def _colour(text: str) -> Any:
    """A colour of plotly for matplotlib: ``rgba(0,114,178,0.12)`` and ``#0072b2``."""
    if not text.startswith("rgba("):
        return text
    *colours, alpha = map(float, text[5:-1].split(","))
    return (*(value / 255 for value in colours), alpha)


def _draw_line(axes: Axes, trace: Mapping[str, Any]) -> None:
    heights = [_text(y) if isinstance(y, str) else y for y in trace["y"]]
    points = [(x, y) for x, y in zip(trace["x"], heights, strict=True) if y is not None]
    if not points:
        return
    x, y = zip(*points, strict=True)
    line, marker, mode = trace.get("line", {}), trace.get("marker", {}), trace["mode"]
    colour = line.get("color") or marker.get("color")
    name = _text(trace.get("name", ""))
    if colour == NEUTRAL and "lines" in mode:  # of a limit, whose name stands at its line
        axes.annotate(
            name, (0.01, y[0]), xytext=(0, 2), textcoords="offset points",
            xycoords=axes.get_yaxis_transform(), fontsize="small", color="0.3", zorder=5,
            bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1},
        )  # fmt: skip
        name = ""
    shape, _, is_open = marker.get("symbol", "circle").partition("-open")
    marked = "markers" in mode and (mode == "markers" or len(points) < _MARKED)
    axes.plot(
        x,
        y,
        color=colour,
        label=name or "_",
        linestyle=_DASHES.get(line.get("dash", ""), "-") if "lines" in mode else "",
        linewidth=line.get("width", 2) * 0.75,
        drawstyle="steps-post" if line.get("shape") == "hv" else "default",
        marker=_SYMBOLS[shape] if marked else "",
        markersize=0.6 * marker.get("size", 6),
        markerfacecolor="none" if is_open or "open" in shape else colour,
    )
    for name in "xy":
        if error := trace.get(f"error_{name}"):
            ends: dict[str, Any] = {f"{name}err": [error["arrayminus"], error["array"]]}
            width = error.get("thickness", 1)
            axes.errorbar(x, y, **ends, fmt="none", ecolor=colour, elinewidth=width, alpha=0.7)


def _draw_bars(axes: Axes, trace: Mapping[str, Any]) -> None:
    names = [*dict.fromkeys(map(_text, trace["y"]))]
    error = trace.get("error_x")
    # Bars of several traces are stacked.
    before: list[Any] = [*axes.patches[-len(names) :]]
    drawn = axes.barh(
        names,
        [value or 0 for value in trace["x"]],
        left=[bar.get_x() + bar.get_width() for bar in before] or None,
        color=_colour(trace["marker"]["color"]),
        label=_text(trace["name"]),
        xerr=[error["arrayminus"], error["array"]] if error else None,
        ecolor=NEUTRAL,
    )
    for bar, shape in zip(drawn, trace["marker"].get("pattern", {}).get("shape", ()), strict=False):
        if shape:
            bar.set(facecolor="none", edgecolor=bar.get_facecolor(), hatch=3 * shape)
            bar.set_linewidth(bar.get_linewidth() if bar.get_width() else 0)


def _draw_heat_map(figure: Figure, axes: Axes, trace: Mapping[str, Any]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    rows = [[math.nan if value is None else value for value in row] for row in trace["z"]]
    colours = LinearSegmentedColormap.from_list("", [colour for _, colour in trace["colorscale"]])
    mesh = axes.pcolormesh(rows, cmap=colours, vmin=trace.get("zmin"), vmax=trace.get("zmax"))
    unit = textwrap.fill(trace["colorbar"]["title"]["text"], _UNIT)
    figure.colorbar(mesh, ax=axes, label=unit)
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        texts = [_text(str(text)) for text in trace[name]]
        indices = range(0, len(texts), -(-len(texts) // _NAMES))
        axis.set_ticks([n + 0.5 for n in indices], labels=[texts[n] for n in indices])
    if max(map(len, map(str, trace["x"]))) > 3:
        axes.tick_params(axis="x", rotation=40)
        for label in axes.get_xticklabels():
            label.set(horizontalalignment="right", rotation_mode="anchor")
    axes.tick_params(length=0)
    most = _NAMES if len(figure.axes) == 2 else _NAMES // 2  # this one and its scale
    fits = "text" not in trace or "texttemplate" in trace
    if fits and len(rows) <= most and len(rows[0]) <= most:
        for y, row in enumerate(rows):
            for x, value in enumerate(row):
                text = "" if math.isnan(value) else f"{value:.{3 if value < 1000 else 6}g}"
                text = trace["text"][y][x] if "text" in trace else text
                axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize="x-small")


def _draw_shape(axes: Axes, shape: Mapping[str, Any]) -> None:
    """A band or a line across the whole panel, or a frame around cells of a heat map."""
    from matplotlib.patches import Rectangle

    if shape["xref"] == "x" and shape.get("yref") == "y":
        x, y = shape["x0"] + 0.5, shape["y0"] + 0.5
        size = shape["x1"] - shape["x0"], shape["y1"] - shape["y0"]
        line = shape["line"]
        frame = {"edgecolor": line["color"], "linewidth": line["width"], "fill": False}
        axes.add_patch(Rectangle((x, y), *size, **frame, clip_on=False))
        return
    name, spans, line = (
        ("y", axes.axhspan, axes.axhline)
        if shape["xref"] == "paper"
        else ("x", axes.axvspan, axes.axvline)
    )
    low, high = shape[f"{name}0"], shape[f"{name}1"]
    if shape["type"] == "rect":
        spans(low, high, color=_colour(shape["fillcolor"]), linewidth=0, zorder=0.5)
    else:
        style = shape["line"]
        dashes = _DASHES.get(style.get("dash", ""), "-")
        line(low, color=style["color"], linestyle=dashes, linewidth=style["width"])


def _draw_axis(axes: Axes, name: str, layout: Mapping[str, Any], named: bool = False) -> None:
    """named: it has names instead of numbers."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    axis: Axis = getattr(axes, f"{name}axis")
    axis.set_label_text(_text(layout.get("title", {}).get("text", "")))
    if layout.get("autorange") == "reversed":
        axis.set_inverted(True)
    elif "range" in layout:
        getattr(axes, f"set_{name}lim")(*layout["range"])
    if layout.get("side") == "top":
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
    if named or ("automargin" in layout and "tickvals" not in layout):
        return
    if layout.get("type") == "log":
        getattr(axes, f"set_{name}scale")("log", base=2 if "tickvals" in layout else 10)
    set_limits = getattr(axes, f"set_{name}lim")
    low, high = getattr(axes, f"get_{name}lim")()
    if layout.get("rangemode") == "tozero":
        set_limits(0, 1.06 * high)  # the name of a limit is above its line
    if "tickvals" in layout:
        axis.set_ticks(layout["tickvals"], labels=list(map(_text, layout["ticktext"])))
        set_limits(low, high)
    elif layout.get("type") == "log" or layout.get("tickformat") == "d":
        axis.set_major_locator(_locator(layout, high / low if low else math.inf))
    if "tickvals" not in layout:
        form = _FORMATS[layout.get("ticksuffix", "")]
        axis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))
    axis.set_minor_locator(NullLocator())


def _locator(layout: Mapping[str, Any], ratio: float) -> Any:
    """ratio: of the largest value to the smallest."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    if layout.get("type") != "log":
        # A panel at the side has no 0: the panel beside it ends there with a number of its own.
        prune = "lower" if layout.get("rangemode") == "tozero" else None
        return MaxNLocator(layout["nticks"], integer=True, min_n_ticks=1, prune=prune)
    if ratio < 10:  # equal steps, where powers of ten would leave one tick or none
        return MaxNLocator(5, steps=(1, 2, 5, 10), min_n_ticks=3)
    return LogLocator(subs=(1.0, 2.0, 5.0) if ratio < 200 else (1.0,))


def _legend(axes: Axes, panel: Chart, many: bool) -> None:
    labels = axes.get_legend_handles_labels()[1]
    if len(labels) < (1 if panel.layout.get("showlegend") else 2):
        return
    if many:
        columns = -(-len(labels) // _NAMED)
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5), ncols=columns)
    else:
        axes.legend(fontsize="small", framealpha=0.8)

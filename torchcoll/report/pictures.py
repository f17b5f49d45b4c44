"""Pictures: time and bus bandwidth over sizes, and what starting costs over ranks.

Without pyplot: it looks for a display, and keeps every figure alive.
"""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import UnavailableError, UsageError
from torchcoll.core.units import format_size, format_time
from torchcoll.report.cold_tables import READING, calls_line
from torchcoll.report.columns import values_of
from torchcoll.report.header import reading, what_text
from torchcoll.report.kinds import kind_texts
from torchcoll.report.output import one_line
from torchcoll.report.view import choice

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchcoll.analysis.cold import Cold, Scale
    from torchcoll.analysis.lines import Line, Picture
    from torchcoll.verdict.rules import Limit

SUFFIXES = (".png", ".svg", ".pdf")
_COLOURS = 10  # of matplotlib's default cycle; beyond, the style of the line changes
_STYLES = ("-", "--", ":", "-.")
_BESIDE = 8  # more lines have their names beside the picture, not in it
_WIDTH, _HEIGHT = 11.0, 3.6  # inches, of a row of two
_NOTHING_MOVED = "one rank, or nothing was communicated"
_DECADES = 200  # a shorter axis has ticks at 2 and 5 too
_CAPTION = 150  # characters in a line of that width


def check_path(path: str | os.PathLike[str]) -> Path:
    """Raises UsageError for a picture that could not be written, before anything is read."""
    file = Path(path)
    choice(file.suffix.lower(), "picture", SUFFIXES)
    if not file.parent.is_dir():
        raise UsageError("picture", path, "a folder that exists")
    return file


def lines_figure(
    picture: Picture, over_ranks: str = "max", limits: Sequence[tuple[str, Limit]] = ()
) -> Figure:
    """A row for each collective: time on the left, bus bandwidth on the right.

    limits: (fabric, limit) whose busbw is drawn in the panels of the collectives that it holds for.
    Raises UnavailableError without matplotlib.
    """
    figure, axes = _figure(len(picture.panels), 2)
    for (collective, lines), (left, right) in zip(picture.panels.items(), axes, strict=True):
        for number, (line, name) in enumerate(zip(lines, _names(lines), strict=True)):
            _draw(left, right, line, name, _style(number))
        here = [(name, one) for name, one in limits if collective in one.collectives]
        for name, limit in here:
            _draw_limit(right, name, limit)
        sizes = [p.nbytes for line in lines for p in (*line.points, *line.doubted)]
        for axis in (left, right):
            _size_axis(axis, sizes)
        _time_axis(left)
        left.set_title(f"{collective}: time of a call", loc="left")
        right.set_title(f"{collective}: bus bandwidth", loc="left")
        _bandwidth_axis(right, lines)
        _legend(left if len(lines) <= _BESIDE else right, len(lines))
    _write_caption(figure, _caption(picture, over_ranks))
    return figure


def cold_figure(found: Cold) -> Figure:
    """What starting cost over the number of ranks: first, second, third call and the steady median.

    A panel for each kind of launch. Raises UnavailableError without matplotlib.
    """
    kinds: dict[str, list[Scale]] = {}
    for scale in found.scales:
        kinds.setdefault(repr(scale.kind), []).append(scale)
    figure, axes = _figure(-(-len(kinds) // 2), min(2, len(kinds)))
    places = [axis for row in axes for axis in row]
    titles = kind_texts([scales[0].kind for scales in kinds.values()])
    for axis, title, scales in zip(places, titles, kinds.values(), strict=False):
        axis.set_title(title, loc="left", fontsize="small")
        _draw_scales(axis, scales)
    for axis in places[len(kinds) :]:
        axis.set_visible(False)
    most = max(scale.launches for scale in found.scales)
    caption = [
        calls_line(found.rows),
        f"{READING}; geometric means over launches, {most} at most; band: the least and the "
        "largest first call",
        *found.notes,
    ]
    _write_caption(figure, caption)
    return figure


def _figure(rows: int, columns: int) -> tuple[Figure, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError(
            "picture", "no library for it", "matplotlib", "Install torchcoll[plot]."
        ) from None
    figure = Figure(figsize=(_WIDTH, _HEIGHT * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _style(number: int) -> dict[str, Any]:
    style = _STYLES[number // _COLOURS % len(_STYLES)]
    return {"color": f"C{number % _COLOURS}", "linestyle": style}


def _names(lines: Sequence[Line]) -> list[str]:
    """Each line by its side, where there are several, and by what the lines differ in."""
    sides = len({line.side for line in lines}) > 1
    texts = kind_texts([line.values for line in lines], always=())
    words = [[line.side if sides else "", text] for line, text in zip(lines, texts, strict=True)]
    return [", ".join(filter(None, own)) for own in words]


def _draw(left: Axes, right: Axes, line: Line, name: str, style: dict[str, Any]) -> None:
    points = line.points
    if points:
        sizes = [p.nbytes for p in points]
        many: dict[str, Any] = {"marker": "o", "markersize": 3.5 if len(points) < 40 else 0}
        left.plot(sizes, [p.time_ns for p in points], label=name, **many, **style)
        told = [(p.nbytes, p.low_ns, p.high_ns) for p in points if p.low_ns and p.high_ns]
        _band(left, told, style["color"])
        wide = [(p.nbytes, p.busbw_gbps) for p in points if p.busbw_gbps]
        if wide:
            right.plot(*zip(*wide, strict=True), label=name, **many, **style)
    for axis, field in ((left, "time_ns"), (right, "busbw_gbps")):
        doubted = [(p.nbytes, value) for p in line.doubted if (value := getattr(p, field))]
        if doubted:
            words = " and ".join(dict.fromkeys(_doubt(row) for row in line.rows if _doubt(row)))
            axis.plot(
                *zip(*doubted, strict=True),
                linestyle="",
                marker="x",
                color="red" if not points else style["color"],
                label=f"{name}: {words}".removeprefix(": "),
            )


def _band(axis: Axes, told: Sequence[tuple[int, float, float]], colour: str) -> None:
    if told:
        places, low, high = zip(*told, strict=True)
        axis.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)


def _doubt(row: Any) -> str:
    if row.verified == "wrong":
        return "wrong"
    return "" if row.status == "ok" else str(row.status)


def _draw_limit(axis: Axes, fabric: str, limit: Limit) -> None:
    axis.axhline(limit.busbw_gbps, color="0.4", linestyle=(0, (6, 3)), linewidth=1)
    axis.annotate(
        f"{limit.algorithm} limit of {fabric}, {limit.busbw_gbps:.4g}",
        (0.01, limit.busbw_gbps),
        xycoords=("axes fraction", "data"),
        xytext=(0, 2),
        textcoords="offset points",
        fontsize="small",
        color="0.3",
    )


def _size_axis(axis: Axes, sizes: Sequence[int]) -> None:
    low, high = math.log2(min(sizes)), math.log2(max(sizes))
    first, last = math.floor(low), math.ceil(high)
    step = next(step for step in (1, 2, 4, 5, 10, 20) if (last - first) / step <= 9)
    ticks = [2.0**power for power in range(first, last + 1, step)]
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [format_size(int(tick)) if tick >= 1 else "" for tick in ticks])
    axis.set_xlim(min(sizes) / 1.3, max(sizes) * 1.3)
    axis.minorticks_off()
    axis.grid(True, color="0.9")
    axis.set_xlabel("size")


def _time_axis(axis: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_yscale("log")
    low, high = axis.get_ylim()
    steps = (1.0, 2.0, 5.0) if high / low < _DECADES else (1.0,)
    axis.yaxis.set_major_locator(LogLocator(subs=steps))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda ns, _: format_time(ns, 1)))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _bandwidth_axis(axis: Axes, lines: Sequence[Line]) -> None:
    axis.set_ylabel("GB/s busbw")
    axis.set_ylim(bottom=0)
    axis.set_ylim(top=1.06 * axis.get_ylim()[1])  # the name of a limit stands above its line
    if not any(p.busbw_gbps for line in lines for p in (*line.points, *line.doubted)):
        unknown = not all(row.ranks for line in lines for row in line.rows)
        text = "ranks unknown: torchcoll import --ranks N" if unknown else _NOTHING_MOVED
        axis.text(0.5, 0.5, f"no bandwidth: {text}", transform=axis.transAxes,
                  ha="center", color="0.4")  # fmt: skip


def _legend(axis: Axes, lines: int) -> None:
    if not axis.get_legend_handles_labels()[1]:
        return
    if lines <= _BESIDE:
        axis.legend(fontsize="small", framealpha=0.8)
    else:
        axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))


def _draw_scales(axis: Axes, scales: Sequence[Scale]) -> None:
    scales = sorted(scales, key=lambda scale: scale.ranks)
    for number, word in enumerate(("first", "second", "third", "steady")):
        known = [(s.ranks, ns) for s in scales if (ns := getattr(s, f"{word}_ns"))]
        if known:
            axis.plot(
                *zip(*known, strict=True), marker="o", markersize=4, label=word, **_style(number)
            )
    told = [(s.ranks, s.low_ns, s.high_ns) for s in scales if s.low_ns and s.high_ns]
    _band(axis, told, "C0")
    axis.set_xscale("log", base=2)
    ranks = sorted({scale.ranks for scale in scales})
    axis.set_xticks(ranks, [str(one) for one in ranks])
    axis.minorticks_off()
    axis.set_xlabel("ranks")
    axis.grid(True, color="0.9")
    _time_axis(axis)
    _legend(axis, 0)


def _caption(picture: Picture, over_ranks: str) -> list[str]:
    rows = [row for lines in picture.panels.values() for line in lines for row in line.rows]
    sampled = any(row.low_ns for row in rows)
    several = any(
        p.launches > 1 for lines in picture.panels.values() for x in lines for p in x.points
    )
    where = " on ".join(", ".join(values_of(rows, name)) for name in ("backend", "device"))
    ranks = [str(n) for n in values_of(rows, "ranks") if n] or ["an unknown number of"]
    words = [what_text(rows), f"{where}, {', '.join(ranks)} ranks"]
    words += [f"{name} {', '.join(values_of(rows, name))}" for name in ("clock", "cadence")]
    words.append(reading(rows, over_ranks) if sampled else "")
    told = [f"{one} over calls" for one in values_of(rows, "statistic")]
    bands = ["p5 to p95 of the calls of a launch"] if sampled else []
    bands += (
        ["least to largest of the launches' medians where there are several"] if several else []
    )
    words.append(f"line: {' or '.join(told)}, geometric mean over launches" if several else
                 f"line: {' or '.join(told)}")  # fmt: skip
    words.append(f"band: {'; '.join(bands)}" if bands else "no band: the source has no samples")
    return ["; ".join(filter(None, words)), *picture.notes]


def _write_caption(figure: Figure, caption: Sequence[str]) -> None:
    lines = [part for text in caption for part in textwrap.wrap(one_line(text), _CAPTION)]
    figure.supxlabel("\n".join(lines), fontsize="small", x=0.01, ha="left", color="0.3")


def write_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Raises UsageError for a path that cannot be written."""
    try:
        figure.savefig(check_path(path), dpi=120)
    except OSError as error:
        expected = f"a file that can be written ({error.strerror})"
        raise UsageError("picture", path, expected) from None

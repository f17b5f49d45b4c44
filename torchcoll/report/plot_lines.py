"""A picture of time and bus bandwidth over sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.report.columns import values_of
from torchcoll.report.header import reading, what_text
from torchcoll.report.kinds import kind_texts
from torchcoll.report.pictures import (
    BESIDE,
    draw_band,
    legend,
    literal,
    new_figure,
    size_axis,
    style_of,
    time_axis,
    write_caption,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchcoll.analysis.lines import Line, Picture
    from torchcoll.verdict.rules import Limit

_NOTHING_MOVED = "one rank, or nothing was communicated"


def lines_figure(
    picture: Picture, over_ranks: str = "max", limits: Sequence[tuple[str, Limit]] = ()
) -> Figure:
    """A row for each collective: time on the left, bus bandwidth on the right.

    limits: (fabric, limit) whose busbw is drawn in the panels of the collectives that it holds for.
    Raises UnavailableError without matplotlib.
    """
    figure, axes = new_figure(len(picture.panels), 2)
    for (collective, lines), (left, right) in zip(picture.panels.items(), axes, strict=True):
        for number, (line, name) in enumerate(zip(lines, _names(lines), strict=True)):
            _draw(left, right, line, name, style_of(number))
        here = [(name, one) for name, one in limits if collective in one.collectives]
        for name, limit in here:
            _draw_limit(right, name, limit)
        sizes = [p.nbytes for line in lines for p in (*line.points, *line.doubted)]
        for axis in (left, right):
            size_axis(axis, sizes)
        time_axis(left)
        left.set_title(f"{collective}: time", loc="left")
        right.set_title(f"{collective}: bus bandwidth", loc="left")
        _bandwidth_axis(right, lines)
        legend(left if len(lines) <= BESIDE else right, len(lines))
    write_caption(figure, _caption(picture, over_ranks))
    return figure


def _names(lines: Sequence[Line]) -> list[str]:
    """Each line by its side, where there are several, and by what the lines differ in."""
    sides = len({line.side for line in lines}) > 1
    texts = kind_texts([line.values for line in lines], always=())
    words = [[line.side if sides else "", text] for line, text in zip(lines, texts, strict=True)]
    return [literal(", ".join(filter(None, own))) for own in words]


def _draw(left: Axes, right: Axes, line: Line, name: str, style: dict[str, Any]) -> None:
    points = line.points
    if points:
        sizes = [p.nbytes for p in points]
        many: dict[str, Any] = {"marker": "o", "markersize": 3.5 if len(points) < 40 else 0}
        left.plot(sizes, [p.time_ns for p in points], label=name, **many, **style)
        told = [(p.nbytes, p.low_ns, p.high_ns) for p in points if p.low_ns and p.high_ns]
        draw_band(left, told, style["color"])
        wide = [(p.nbytes, p.busbw_gbps) for p in points if p.busbw_gbps]
        if wide:
            right.plot(*zip(*wide, strict=True), label=name, **many, **style)
        # busbw is size / time x a factor: the longest time is the lowest.
        spread = [
            (p.nbytes, p.busbw_gbps * p.time_ns / p.high_ns, p.busbw_gbps * p.time_ns / p.low_ns)
            for p in points
            if p.busbw_gbps and p.low_ns and p.high_ns
        ]
        draw_band(right, spread, style["color"])
    for axis, key in ((left, "time_ns"), (right, "busbw_gbps")):
        doubted = [(p.nbytes, value) for p in line.doubted if (value := getattr(p, key))]
        if doubted:
            words = " and ".join(dict.fromkeys(_doubt(row) for row in line.rows if _doubt(row)))
            axis.plot(
                *zip(*doubted, strict=True),
                linestyle="",
                marker="x",
                color="red" if not points else style["color"],
                label=f"{name}: {words}".removeprefix(": "),
            )


def _doubt(row: Any) -> str:
    if row.verified == "wrong":
        return "wrong"
    return "" if row.status == "ok" else str(row.status)


def _draw_limit(axis: Axes, fabric: str, limit: Limit) -> None:
    axis.axhline(limit.busbw_gbps, color="0.4", linestyle=(0, (6, 3)), linewidth=1)
    axis.annotate(
        literal(f"{limit.algorithm} limit of {fabric}, {limit.busbw_gbps:.4g}"),
        (0.01, limit.busbw_gbps),
        xycoords=("axes fraction", "data"),
        xytext=(0, 2),
        textcoords="offset points",
        fontsize="small",
        color="0.3",
    )


def _bandwidth_axis(axis: Axes, lines: Sequence[Line]) -> None:
    axis.set_ylabel("GB/s busbw")
    axis.set_ylim(bottom=0)
    axis.set_ylim(top=1.06 * axis.get_ylim()[1])  # the name of a limit stands above its line
    if not any(p.busbw_gbps for line in lines for p in (*line.points, *line.doubted)):
        unknown = not all(row.ranks for line in lines for row in line.rows)
        text = "ranks unknown: torchcoll import --ranks N" if unknown else _NOTHING_MOVED
        axis.text(0.5, 0.5, f"no bandwidth: {text}", transform=axis.transAxes,
                  ha="center", color="0.4")  # fmt: skip


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

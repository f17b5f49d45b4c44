"""A picture of what starting costs over the number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcoll.report.cold_tables import READING, calls_line
from torchcoll.report.kinds import kind_texts
from torchcoll.report.pictures import (
    draw_band,
    legend,
    literal,
    new_figure,
    style_of,
    time_axis,
    write_caption,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchcoll.analysis.cold import Cold, Scale


def cold_figure(found: Cold) -> Figure:
    """What starting cost over the number of ranks: first, second, third call and the steady figure.

    A panel for each kind of launch, and for each place in its job where these are not shown to be
    the same. Raises UnavailableError without matplotlib.
    """
    kinds: dict[str, list[Scale]] = {}
    for scale in found.scales:
        kinds.setdefault(repr((scale.kind, scale.in_job)), []).append(scale)
    figure, axes = new_figure(-(-len(kinds) // 2), min(2, len(kinds)))
    places = [axis for row in axes for axis in row]
    several = any(scale.in_job for scale in found.scales)
    titles = kind_texts(
        [{**own.kind, "in job": own.in_job or None} for own, *_ in kinds.values()],
        always=("collective", "nbytes", "dtype", "op", "backend", *(["in job"] * several)),
    )
    for axis, title, scales in zip(places, titles, kinds.values(), strict=False):
        axis.set_title(literal(title), loc="left", fontsize="small")
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
    write_caption(figure, caption)
    return figure


def _draw_scales(axis: Axes, scales: Sequence[Scale]) -> None:
    scales = sorted(scales, key=lambda scale: scale.ranks)
    words = {"first": "1st", "second": "2nd", "third": "3rd", "steady": "steady"}
    for number, (name, word) in enumerate(words.items()):
        known = [(s.ranks, ns) for s in scales if (ns := getattr(s, f"{name}_ns"))]
        if known:
            axis.plot(
                *zip(*known, strict=True), marker="o", markersize=4, label=word, **style_of(number)
            )
    told = [(s.ranks, s.low_ns, s.high_ns) for s in scales if s.low_ns and s.high_ns]
    draw_band(axis, told, "C0")
    axis.set_xscale("log", base=2)
    ranks = sorted({scale.ranks for scale in scales})
    axis.set_xticks(ranks, [str(one) for one in ranks])
    axis.minorticks_off()
    axis.set_xlabel("ranks")
    axis.grid(True, color="0.9")
    time_axis(axis)
    legend(axis, 0)

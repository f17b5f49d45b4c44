"""A picture of regimes: the times, the law of each regime, and the zones where one ends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torchcoll.report.kinds import kind_texts
from torchcoll.report.pictures import (
    legend,
    literal,
    new_figure,
    size_axis,
    style_of,
    time_axis,
    write_caption,
)
from torchcoll.report.transitions import LEGEND, lines_below, notes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchcoll.analysis.transitions import Regimes, Transitions

_STEPS = 32  # of a law between its ends: a straight line is a curve on logarithmic axes


def regimes_figure(found: Transitions) -> Figure:
    """A row for each curve: time on the left, algorithm bandwidth on the right.

    Raises UnavailableError without matplotlib.
    """
    titles = kind_texts([curve.common for curve in found.curves])
    figure, axes = new_figure(len(found.curves), 2)
    caption = [LEGEND]
    for curve, title, (left, right) in zip(found.curves, titles, axes, strict=True):
        _draw(left, right, curve)
        left.set_title(literal(title), loc="left", fontsize="small")
        which = f"{title}: " if len(found.curves) > 1 else ""
        caption += [f"{which}{line}" for line in lines_below(curve)]
    write_caption(figure, [*caption, *notes_of([found])])
    return figure


def _draw(left: Axes, right: Axes, curve: Regimes) -> None:
    sizes = [point.nbytes for point in curve.points]
    times = [point.time_ns for point in curve.points]
    dots: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 3.0, "color": "0.3"}
    left.plot(sizes, times, label="measured", **dots)
    share = curve.share or 1.0  # what algbw counts of a size
    right.plot(sizes, [share * n / t for n, t in zip(sizes, times, strict=True)], **dots)
    for number, regime in enumerate(curve.curve.regimes):
        low, high = math.log(sizes[regime.first]), math.log(sizes[regime.last])
        steps = [math.exp(low + (high - low) * k / _STEPS) for k in range(_STEPS + 1)]
        law = [regime.time_ns(n) for n in steps]
        name = f"regime {number + 1}"
        left.plot(steps, law, label=name, **style_of(number))
        algbw = [share * n / t for n, t in zip(steps, law, strict=True)]
        right.plot(steps, algbw, **style_of(number))
    for axis in (left, right):
        for one in curve.transitions:
            axis.axvspan(one.low_nbytes, one.high_nbytes, color="0.85", linewidth=0)
        for number, told in enumerate((*curve.handovers, *curve.forced)):
            middle = math.sqrt(told.low_nbytes * told.high_nbytes)
            label = "hand-over (log, forced cells)" if number == 0 else None
            axis.axvline(middle, color="red", linestyle=":", linewidth=1, label=label)
        size_axis(axis, sizes)
    time_axis(left)
    right.set_ylabel("GB/s algbw" if curve.share else "GB/s, size / time")
    right.set_ylim(bottom=0)
    legend(left, len(curve.curve.regimes))

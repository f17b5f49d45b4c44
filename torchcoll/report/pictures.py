"""What all pictures share: the figure, its axes over sizes and times, its caption and its file.

Without pyplot: it looks for a display, and keeps every figure alive.
"""

from __future__ import annotations

import base64
import io
import math
import os
import re
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import UnavailableError, UsageError, one_line, path_text
from torchcoll.core.units import format_size, format_time
from torchcoll.report.destination import check_new, write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SUFFIXES = (".png", ".svg", ".pdf")
CONCURRENT = 8  # more lines have their names beside the picture, not in it
# M. Okabe and K. Ito's colours, which the colour-blind tell apart, without their yellow, which
# white paper swallows. In grey the dashes tell lines apart: 6 colours and 5 dashes make 30 of them.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (6, 2, 1, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
_WIDTH, _HEIGHT = 11.0, 3.6  # inches, of a row of two
_DECADES = 200  # a shorter axis has ticks at 2 and 5 too
_CAPTION = 150  # characters in a line of that width


def check_path(path: str | os.PathLike[str], force: bool = True) -> Path:
    """Raises UsageError for a picture that could not be written, before anything is read.

    force: one that is there may be replaced.
    """
    file = Path(path_text(path, "picture", "a path"))
    if file.suffix.lower() not in SUFFIXES:
        raise UsageError("picture", path, f"a name that ends in one of {', '.join(SUFFIXES)}")
    if not file.parent.is_dir():
        raise UsageError("picture", path, "a folder that exists")
    check_new(path, "picture", force)
    return file


def literal(text: object) -> str:
    """The text as it is: matplotlib reads what stands between two $ as a formula, and leaves labels
    that begin with _ out of the legend.
    """
    plain = one_line(text).replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def new_figure(rows: int, columns: int, shared: bool = False) -> tuple[Figure, Any]:
    """shared: all panels have one scale, so that they can be compared by eye."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError(
            "picture", "no library for it", "matplotlib", "Install torchcoll[plot]."
        ) from None
    figure = Figure(figsize=(_WIDTH, _HEIGHT * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared)


def line_style(number: int) -> dict[str, Any]:
    return {
        "color": PALETTE[number % len(PALETTE)],
        "linestyle": _DASHES[number % len(_DASHES)],
    }


def draw_band(axis: Axes, intervals: Sequence[tuple[int, float, float]], colour: str) -> None:
    """(x, low, high) of each point; between fewer than two a band has no area, so it is bars."""
    if not intervals:
        return
    positions, low, high = zip(*intervals, strict=True)
    axis.fill_between(positions, low, high, color=colour, alpha=0.15, linewidth=0)
    if len(intervals) == 1:
        axis.vlines(positions, low, high, color=colour, linewidth=1)


def size_axis(axis: Axes, sizes: Sequence[int]) -> None:
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


def ranks_axis(axis: Axes, ranks: Sequence[int]) -> None:
    """ranks: those that were measured, which have the ticks."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(ranks, [str(rank) for rank in ranks])
    axis.minorticks_off()
    axis.set_xlabel("ranks")
    axis.grid(True, color="0.9")


def time_axis(axis: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_yscale("log")
    low, high = axis.get_ylim()
    steps = (1.0, 2.0, 5.0) if high / low < _DECADES else (1.0,)
    axis.yaxis.set_major_locator(LogLocator(subs=steps))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda ns, _: format_time(ns, 1)))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_ylabel("time of a call")


def legend(axis: Axes, lines: int) -> None:
    if not axis.get_legend_handles_labels()[1]:
        return
    if lines <= CONCURRENT:
        axis.legend(fontsize="small", framealpha=0.8)
    else:
        axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))


def write_caption(figure: Figure, caption: Sequence[str]) -> None:
    """Below the picture; as its label, in one line, for who writes it elsewhere."""
    figure.set_label("; ".join(one_line(text) for text in caption if text))
    lines = [line for text in caption for line in textwrap.wrap(literal(text), _CAPTION)]
    figure.supxlabel("\n".join(lines), fontsize="small", x=0.01, ha="left", color="0.3")


_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".pdf": "application/pdf"}


@dataclass(frozen=True)
class WrittenPicture:
    """A picture that was written; a notebook shows it."""

    path: Path

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        content, kind = self.path.read_bytes(), _TYPES[self.path.suffix.lower()]
        text = content.decode() if kind == _TYPES[".svg"] else base64.b64encode(content).decode()
        return {kind: text, "text/plain": repr(self)}


def write_figure(figure: Figure, path: str | os.PathLike[str]) -> WrittenPicture:
    """In place of one that is there, never through a link. Raises UsageError for a path that
    cannot be written.
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format=check_path(path).suffix[1:].lower())
    write_file(path, drawn.getvalue(), "picture", force=True)
    return WrittenPicture(Path(path))


_FONTS = re.compile(r"font-family: [^;\"]*sans-serif")


def svg_text(figure: Figure) -> str:
    """The picture as SVG without a date, so that the same data give the same text. Its texts are
    texts, which a reader can search and copy.
    """
    import matplotlib

    drawn = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "torchcoll"}),
        warnings.catch_warnings(),
    ):
        # Of letters that its font lacks, which the reader's has.
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(drawn, format="svg", metadata=nothing)
    return _FONTS.sub("font-family: 'DejaVu Sans', Verdana, sans-serif", drawn.getvalue())


def check_pictures_available() -> None:
    """Raises UnavailableError where a page could not have its pictures, before anything is read."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UnavailableError(
            "report", "no library for it", "matplotlib", "Install torchcoll[report]."
        ) from None

"""What all pictures share: the figure, its caption and its file.

Without pyplot: it looks for a display, and keeps every figure alive.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import re
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import UsageError, one_line, path_text
from torchcoll.report.chart import check_installed
from torchcoll.report.destination import check_new, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SUFFIXES = (".png", ".svg", ".pdf")
_WIDTH, _HEIGHT = 11.0, 3.6  # inches, of a row of two
_CAPTION = 150  # characters in a line of that width


def check_path(path: str | os.PathLike[str], force: bool = True) -> Path:
    """The path of a picture. Raises UsageError if it cannot be written; force: replaces a file."""
    file = Path(path_text(path, "picture", "a path"))
    if file.suffix.lower() not in SUFFIXES:
        raise UsageError("picture", path, f"a name that ends in one of {', '.join(SUFFIXES)}")
    if not file.parent.is_dir():
        raise UsageError("picture", path, "a folder that exists")
    check_new(path, "picture", force)
    return file


def add_plot(parser: argparse.ArgumentParser, what: str) -> None:
    """The options of a command that can draw what it finds (``check_plot``, ``draw_finding``)."""
    help_text = f"write a picture of {what} (.png, .svg, .pdf)"
    parser.add_argument("--plot", metavar="FILE", help=help_text)
    parser.add_argument("--force", action="store_true", help="replace the picture")


def check_plot(options: argparse.Namespace) -> None:
    """Raises UsageError if the picture cannot be written."""
    if options.plot:
        check_path(options.plot, options.force)


def literal(text: object) -> str:
    """A text in which matplotlib finds no formula ($), and no label that it hides (_)."""
    plain = one_line(text).replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def new_figure(rows: int, columns: int, shared: bool = False) -> tuple[Figure, Any]:
    """A figure and its panels; shared: all have one scale. Raises UnavailableError."""
    check_installed("matplotlib.figure", "picture", "plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEIGHT * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared)


def write_caption(figure: Figure, caption: Sequence[str]) -> None:
    lines = [line for text in caption for line in textwrap.wrap(literal(text), _CAPTION)]
    figure.supxlabel("\n".join(lines), fontsize="small", x=0.01, ha="left", color="0.3")


_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".pdf": "application/pdf"}


@dataclass(frozen=True)
class WrittenPicture:
    """A picture that was written; a notebook shows it. text: what was measured, in a sentence."""

    path: Path
    text: str = field(default="", repr=False)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        content, kind = self.path.read_bytes(), _TYPES[self.path.suffix.lower()]
        text = content.decode() if kind == _TYPES[".svg"] else base64.b64encode(content).decode()
        return {kind: text, "text/plain": repr(self)}


def write_figure(figure: Figure, path: str | os.PathLike[str]) -> WrittenPicture:
    """Writes or replaces a file. Raises UsageError for a path that cannot be written."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format=check_path(path).suffix[1:].lower())
    write_file(path, drawn.getvalue(), "picture", force=True)
    return WrittenPicture(Path(path))


_FONTS = re.compile(r"font-family: [^;\"]*sans-serif")


def svg_text(figure: Figure) -> str:
    """The picture as SVG whose texts can be copied; the same data give the same SVG."""
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

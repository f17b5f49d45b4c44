"""A report as one document: sections of tables and pictures, as HTML that needs no network or as
markdown.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchcoll.core.errors import UnavailableError, one_line, printable
from torchcoll.report.answer import Answer, Caveat
from torchcoll.report.grid import Grid, escape_markdown, legends, markdown_text

_STYLES = {"green": "good", "red": "bad", "yellow": "doubt", "dim": "dim"}


@dataclass(frozen=True)
class Illustration:
    """A picture as SVG (``svg_text``), what it is of in a few words, and the lines below it."""

    svg: str
    title: str
    caption: Sequence[str] = ()


@dataclass
class TitledGrids:
    """Tables below a title; '' is none."""

    title: str
    grids: list[Grid]


@dataclass
class Section:
    """commands: what prints the same in a terminal. folded: tables are closed at first."""

    title: str
    texts: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    pictures: list[Illustration] = field(default_factory=list)
    tables: list[TitledGrids] = field(default_factory=list)
    folded: bool = False


@dataclass
class Page:
    title: str
    answers: list[Answer]
    sections: list[Section]


def shorten_repeated_caveats(
    sections: Sequence[Section], printed: Iterable[str] = ()
) -> list[Section]:
    """The sections, where a caveat is printed in full at its first table alone.

    Tables that stand alone in a terminal each print their caveats; a page would repeat some of them
    ten times. printed: texts of the caveats that stand above the sections.
    """
    texts = set(printed)

    def line_once(line: str) -> str:
        return line.once(texts) if isinstance(line, Caveat) else line

    def grid_once(grid: Grid) -> Grid:
        below = list(map(line_once, grid.below))  # first: the answer is printed below these lines
        answer = grid.answer and replace(grid.answer, headline=line_once(grid.answer.headline))
        return replace(grid, below=below, answer=answer)

    return [
        replace(
            section,
            tables=[
                replace(titled, grids=list(map(grid_once, titled.grids)))
                for titled in section.tables
            ],
        )
        for section in sections
    ]


def html_text(page: Page) -> str:
    """The whole page, with its pictures, style and script in it.

    Every text is escaped; of scripts the page's own alone is allowed to run, and nothing may be
    fetched (a content security policy says so). Raises UnavailableError without jinja2.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise UnavailableError(
            "report", "no library for it", "jinja2", "Install torchcoll[report]."
        ) from None
    folder = Path(__file__).parent
    script = (folder / "page.js").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=False, finalize=_shown
    )
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    return template.render(
        page=page,
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        above=_above,
        style=_style,
        svg=lambda picture: Markup(picture.svg),
    )


def _shown(value: Any) -> Any:
    """Control characters of a text that comes from elsewhere, as a terminal would be told them."""
    if type(value) is not str:
        return value
    return value if value.isprintable() else "\n".join(map(printable, value.split("\n")))


def _above(grid: Grid) -> list[str]:
    return [*grid.above, *(legends(grid.heads) if grid.rows else [])]


def _style(grid: Grid, number: int) -> str:
    names = grid.styles[number].split() if number < len(grid.styles) else []
    return " ".join(filter(None, (_STYLES.get(name, "") for name in names)))


def page_markdown(page: Page, files: Sequence[str] = ()) -> str:
    """The page for a code forge. files: of each picture, in their order, where it is."""
    lines = [f"# {escape_markdown(one_line(page.title))}\n"]
    lines += [f"**{escape_markdown(one_line(answer.text))}**\n" for answer in page.answers]
    names = iter(files)
    for section in page.sections:
        lines.append(f"## {escape_markdown(one_line(section.title))}\n")
        lines += [f"{escape_markdown(one_line(text))}\n" for text in section.texts]
        for command in section.commands:  # a block: four blanks, in which nothing is markup
            code = [f"    {printable(line)}" for line in command.splitlines()]
            lines.append("\n".join(code) + "\n")
        for picture in section.pictures:
            if name := next(names, ""):
                title = (
                    escape_markdown(one_line(picture.title)).replace("[", "\\[").replace("]", "\\]")
                )
                lines.append(f"![{title}]({name})\n")
            lines += [f"{escape_markdown(one_line(text))}\n" for text in picture.caption]
        for titled in section.tables:
            lines += [f"### {escape_markdown(one_line(titled.title))}\n"] if titled.title else []
            texts = [markdown_text(_plain(grid)) for grid in titled.grids]
            lines += [text for text in texts if text]
    return "\n".join(lines)


def _plain(grid: Grid) -> Grid:
    return Grid(
        grid.heads,
        [[one_line(cell) if cell.strip() else cell for cell in row] for row in grid.rows],
        [one_line(line) for line in grid.above],
        [one_line(line) for line in grid.below],
        answer=grid.answer,
    )

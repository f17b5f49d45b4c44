"""A report as one document: HTML with charts that needs no network, or markdown with pictures."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchcoll.core.answer import Answer, Caveat
from torchcoll.core.errors import one_line, printable
from torchcoll.report.chart import TIME_LABELS, Chart, check_installed
from torchcoll.report.grid import Grid, escape_markdown, legends, markdown_text

_STYLES = {"green": "good", "red": "bad", "yellow": "doubt", "dim": "dim"}


@dataclass(frozen=True)
class Illustration:
    """A picture as SVG (``svg_text``), what it is of in a few words, and the lines below it."""

    svg: str
    title: str
    caption: Sequence[str] = ()


@dataclass(eq=False)
class ChartGroup:
    """Charts of which a page shows one at a time. label: what distinguishes them, such as case."""

    title: str
    label: str
    charts: Sequence[Chart]


@dataclass(frozen=True)
class PageCase:
    """A case that points of charts lead to.

    title: what it is. run: the number of its run in ``Page.run_commands``. command: explains its
    row, '' without a file, or if a row before it has the same collective and size.
    """

    title: str
    run: int
    command: str


@dataclass
class TitledGrids:
    """Tables below a title; '' is none."""

    title: str
    grids: list[Grid]


@dataclass
class Section:
    """commands print the same; pictures are for markdown, charts for HTML; folded: closed."""

    title: str
    texts: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    pictures: list[Illustration] = field(default_factory=list)
    charts: list[ChartGroup] = field(default_factory=list)
    tables: list[TitledGrids] = field(default_factory=list)
    folded: bool = False


@dataclass
class Page:
    """cases: by the keys of points of charts. run_commands: print the calls of each run, '' without
    a file. A first section without a title is the picture of the first answer.
    """

    title: str
    answers: list[Answer]
    sections: list[Section]
    cases: dict[str, PageCase] = field(default_factory=dict)
    run_commands: list[str] = field(default_factory=list)


def shorten_repeated_caveats(
    sections: Sequence[Section], printed: Iterable[str] = ()
) -> list[Section]:
    """The sections, in which a text not yet ``printed`` stands in full only at its first table."""
    texts = set(printed)

    def line_once(line: str) -> str:
        return line.once(texts) if isinstance(line, Caveat) else line

    def grid_once(title: str, grid: Grid) -> Grid:
        answer = grid.answer
        if answer and not texts.isdisjoint((answer.text, f"{title}: {answer.text}")):
            answer = None
        elif answer:
            texts.add(answer.text)
        # First: the answer is printed below these lines.
        below = [line for text in grid.below if (line := line_once(text)) or not text]
        if answer:
            answer = answer.with_sentence(line_once(answer.headline) or answer.headline)
        return replace(grid, below=below, answer=answer)

    return [
        replace(
            section,
            tables=[
                replace(titled, grids=[grid_once(section.title, grid) for grid in titled.grids])
                for titled in section.tables
            ],
        )
        for section in sections
    ]


def html_text(page: Page) -> str:
    """The page, which may fetch nothing and run only its own scripts. Raises UnavailableError."""
    check_installed("jinja2", "report", "report")
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    folder = Path(__file__).parent
    scripts = [(folder / "page.js").read_text(encoding="utf-8")]
    groups = [group for section in page.sections for group in section.charts]
    packed = {}
    if groups:
        from plotly.offline import get_plotlyjs

        scripts.append(get_plotlyjs())
        packed = {"data": _packed(_json_text(page, groups)), "plotly": _packed(scripts[1])}
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=False, finalize=_shown
    )
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    return template.render(
        page=page,
        numbers={group: number for number, group in enumerate(groups)},
        packed=packed,
        script=Markup(scripts[0]),
        script_hashes=[
            base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts
        ],
        above=_above,
        style=_style,
    )


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _json_text(page: Page, groups: Sequence[ChartGroup]) -> str:
    """What page.js reads."""
    data = {
        "groups": [{"label": g.label, "charts": list(map(_chart_json, g.charts))} for g in groups],
        "cases": {key: [case.title, case.run, case.command] for key, case in page.cases.items()},
        "runs": page.run_commands,
        "time_labels": TIME_LABELS,
    }
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def _chart_json(chart: Chart) -> dict[str, Any]:
    values = {name: getattr(chart, name) for name in ("title", "traces", "layout", "key")}
    values["selectors"] = [
        {
            "label": s.label,
            "options": [{"text": o.text, "arguments": o.arguments} for o in s.options],
        }
        for s in chart.selectors
    ]
    return values | {"caption": list(map(_shown, chart.caption))}


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
    lines += [f"{_answer_markdown(answer)}\n" for answer in page.answers]
    names = iter(files)
    for section in page.sections:
        lines += [f"## {escape_markdown(one_line(section.title))}\n"] if section.title else []
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


def _answer_markdown(answer: Answer) -> str:
    """The sentence in bold, and what follows it."""
    text = one_line(answer.text)
    length = len(one_line(answer.headline))
    return f"**{escape_markdown(text[:length])}**{escape_markdown(text[length:])}"


def _plain(grid: Grid) -> Grid:
    return Grid(
        grid.heads,
        [[one_line(cell) if cell.strip() else cell for cell in row] for row in grid.rows],
        [one_line(line) for line in grid.above],
        [one_line(line) for line in grid.below],
        answer=grid.answer,
    )

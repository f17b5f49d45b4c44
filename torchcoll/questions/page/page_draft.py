"""The page of ``torchcoll report`` while it is written: sections, answers, and what is left out."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchcoll.core.answer import Answer, Caveat
from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.opening import common_folder
from torchcoll.core.parts import first_answer
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import Run
from torchcoll.questions.show.show import has_pairs, title_of
from torchcoll.reading.inputs import Material
from torchcoll.report.chart_matplotlib import caption_of, draw_charts
from torchcoll.report.grid import Grid
from torchcoll.report.page import ChartGroup, Illustration, Section, TitledGrids
from torchcoll.report.pictures import svg_text
from torchcoll.stats.sides import Side

if TYPE_CHECKING:
    from torchcoll.report.chart import Chart


@dataclass(frozen=True)
class Drawing:
    """One thing to see: in markdown a picture of its charts, in HTML one chart at a time. charts:
    may return none. label: what distinguishes the charts.
    """

    text: str
    charts: Callable[[], Sequence[Chart]]
    label: str = "cases"


# Where parts add sections, in the order of the page: of the nights of a store; of folders or sides
# that the part compares (these two return the comparisons, None where it compared nothing); below
# comparisons; below times over sizes; over ranks; and of what a training sends.
PLACES = ("nights", "folders", "sides", "compared", "sizes", "ranks", "traffic")


class PageDraft:
    """Sections and sentences as they are found."""

    def __init__(
        self, material: Material, fabric: str | None, inline: bool, stores: Sequence[str] = ()
    ) -> None:
        self.stores = stores
        self.title = ""  # of a page of a store
        self.material = material
        self.fabric = fabric
        self.inline = inline
        self.sections: list[Section] = []
        self.answers: list[Answer] = []
        self.compared: list[Answer] = []  # of these, those that compare sides
        self.sides: list[Side] = []  # that are compared
        self.printed: set[str] = set()  # texts of the caveats that the answers contain
        self.notes = list(material.notes)
        self.rows = [summarise_run(run) for run in material.runs]
        # Pairs have a section of their own: as cases they would be hundreds of lines.
        self.plain = [run for run in material.runs if not has_pairs(run)]
        # By which charts lead to cases: id of the result -> numbers of its run and of the case.
        self.keys = {
            id(result): f"{number}.{index}"
            for number, run in enumerate(self.plain if inline else ())
            for index, result in enumerate(run.results)
        }

    def command(self, name: str, kind: str = "runs") -> str:
        return f"torchcoll {name} {shlex.join(self.material.arguments.get(kind, []))}"

    def add(
        self,
        title: str,
        grids: Iterable[Grid],
        command: str,
        drawings: Sequence[Drawing] = (),
        sides: Sequence[str] = (),
    ) -> Section:
        """A section with an answer on the top of the page, behind the title unless it names the
        sides of a comparison itself.
        """
        section = Section(title, commands=[command] if command else [])
        section.tables.append(TitledGrids("", list(grids)))
        for drawing in drawings:
            self.draw(section, drawing)
        self.sections.append(section)
        for answer in answers_of(section):
            if isinstance(answer.subject, Caveat):
                self.printed.add(answer.subject.text)
        for answer in answers_of(section):
            names_sides = sides and all(name in answer.headline for name in sides)
            before = answer.before if names_sides else f"{title}: {answer.before}"
            self.answers.append(replace(answer, before=before))
        return section

    def add_of_parts(self, place: str) -> Any:
        """What parts add at this place (PLACES); the first answer that is not None."""
        assert place in PLACES
        return first_answer("sections", place, self)

    def draw(self, section: Section, drawing: Drawing) -> None:
        charts = drawing.charts()
        if charts and self.inline:
            section.charts.append(ChartGroup(drawing.text, drawing.label, charts))
        elif charts:
            caption = "; ".join(map(one_line, caption_of(charts)))
            lines = [f"{drawing.text}. {caption}".rstrip()]
            picture = svg_text(draw_charts(charts))
            section.pictures.append(Illustration(picture, drawing.text, lines))

    def tried(self, what: str, make: Callable[[], None]) -> None:
        """A section that the files may not have the data for: why not is said at the end."""
        try:
            make()
        except UsageError as error:
            reason = str(error) if error.what == what else f"{what}: {error}"
            self.notes.append(f"no section on {reason}")


def answers_of(section: Section) -> list[Answer]:
    """The answers that its tables end with."""
    grids = [grid for titled in section.tables for grid in titled.grids]
    return [grid.answer for grid in grids if grid.answer]


def short_names(runs: Sequence[Run]) -> list[str]:
    """Of each run its path without the folder that all are in, or its title."""
    paths = [os.path.abspath(run.path) for run in runs if run.path]
    folder = common_folder(map(os.path.dirname, paths))
    return [
        one_line(os.path.relpath(os.path.abspath(run.path), folder)) if run.path else title_of(run)
        for run in runs
    ]


def named(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    return list(zip(short_names(runs), runs, strict=True))

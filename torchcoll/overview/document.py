"""``torchcoll report``: everything that files and stores tell, as one page. Sections stand where
there is data.

The tables are those of the commands, and the page begins with the answers that the commands give.
"""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.core.case import NATIVE
from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import Run, facts_of
from torchcoll.core.summary import Row
from torchcoll.core.units import counted, format_bandwidth, format_ns, format_size
from torchcoll.inputs import Material, read_material, split_label
from torchcoll.overview.figures import case_text
from torchcoll.overview.show import further_grids, has_pairs, table_grid, title_of
from torchcoll.pairs.matches import read_pairs
from torchcoll.report.answer import Answer, Caveat
from torchcoll.report.chart import plain
from torchcoll.report.columns import distinct_values
from torchcoll.report.grid import Grid, Head, make_grid
from torchcoll.report.many import MOST_RUNS, runs_grids
from torchcoll.report.notes import runs_lines
from torchcoll.report.page import (
    ChartGroup,
    Illustration,
    Page,
    PageCase,
    Section,
    TitledGrids,
    check_charts_available,
    shorten_repeated_caveats,
)
from torchcoll.report.pictures import check_pictures_available, svg_text
from torchcoll.stats.filters import conditions
from torchcoll.stats.sides import Reading, Side
from torchcoll.verdict.judging import Verdict, judge
from torchcoll.verdict.show import answer_of, over_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchcoll.comparison.compare import Comparison
    from torchcoll.report.chart import Chart

_OPEN = 3  # runs up to which their tables are open
_TOLD = ("label=cell", "label=run")  # the name of the side, and the number of its run
_FEW = 6  # files of a side that a command names
_LINES = 16  # of one panel; more tell nothing apart
_SIDES = 12  # cells of a matrix that are compared with its first


@dataclass(frozen=True)
class _Drawing:
    """One thing to see: as a picture for markdown, or as charts for HTML, of which the page shows
    one at a time. figure: None where markdown has no picture of it. label: what distinguishes the
    charts.
    """

    text: str
    figure: Callable[[], Figure | None] | None
    charts: Callable[[], Sequence[Chart]]
    label: str = "cases"


class _Document:
    """Sections and sentences as they are found."""

    def __init__(self, material: Material, fabric: str | None, inline: bool) -> None:
        self.material = material
        self.fabric = fabric
        self.inline = inline
        self.sections: list[Section] = []
        self.answers: list[Answer] = []
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
        drawings: Sequence[_Drawing] = (),
    ) -> Section:
        section = Section(title, commands=[command] if command else [])
        section.tables.append(TitledGrids("", list(grids)))
        for drawing in drawings:
            self.draw(section, drawing)
        self.sections.append(section)
        for answer in answers_of(section):
            if isinstance(answer.headline, Caveat):
                self.printed.add(answer.headline.text)
        self.answers += [
            replace(answer, headline=f"{title}: {answer.headline}")
            for answer in answers_of(section)
        ]
        return section

    def draw(self, section: Section, drawing: _Drawing) -> None:
        if self.inline:
            if charts := drawing.charts():
                section.charts.append(ChartGroup(drawing.text, drawing.label, charts))
            return
        figure = drawing.figure() if drawing.figure else None
        if figure is None:
            return
        caption = figure.get_label()
        figure.supxlabel("")
        texts = [caption] if isinstance(caption, str) else []
        lines = [" ".join(filter(None, [f"{drawing.text}.", *texts]))]
        section.pictures.append(Illustration(svg_text(figure), drawing.text, lines))

    def tried(self, what: str, make: Callable[[], None]) -> None:
        """A section that the files may not have the data for: why not is said at the end."""
        try:
            make()
        except UsageError as error:
            self.notes.append(f"no section on {what}: {error}")


def answers_of(section: Section) -> list[Answer]:
    """The answers that its tables end with."""
    grids = [grid for titled in section.tables for grid in titled.grids]
    return [grid.answer for grid in grids if grid.answer]


def page_of(
    arguments: Sequence[str],
    filter: str = "",
    fabric: str | None = None,
    command: str = "",
    inline: bool = True,
) -> Page:
    """The page on everything that these files, folders and ``label=PATH`` hold.

    arguments may be stores of ``torchcoll collect`` too. filter: as of ``compare``; the cases of
    results that it holds for. fabric: what the verdict is measured by. command: what makes the page
    again. inline: HTML, with charts in the page; otherwise its pictures are files. Raises
    UnreadableError where there is nothing to report, UsageError for choices that do not exist,
    UnavailableError without plotly, or without matplotlib if not inline.
    """
    from torchcoll.store.address import is_store

    if inline:
        check_charts_available()
    else:
        check_pictures_available()
    stores = [argument for argument in arguments if is_store(argument)]
    files = [argument for argument in arguments if argument not in stores]
    material = read_material(files) if files else Material()
    if wanted := conditions(filter):
        for run in material.runs:
            items = Side("", [run]).measured("time", Reading())
            run.results = [
                m.result for m in items if all(filter_term.holds(m) for filter_term in wanted)
            ]
        material.runs = [run for run in material.runs if run.results]
        if not material.runs:
            raise UsageError("filter", filter, "conditions that some case fulfils")
    document = _Document(material, fabric, inline)
    nights = [*stores, *([*files] if _has_nights(material.runs) else [])]
    if nights:
        document.tried("nights", lambda: _nights(document, nights))
    if material.runs:
        _about_runs(document)
    if material.traffic:
        from torchcoll.training.traffic_show import traffic_grids
        from torchcoll.training.traffic_table import summarise_traffic

        for traffic in document.material.traffic:
            grids = traffic_grids(traffic, summarise_traffic(traffic))
            several = len(document.material.traffic) > 1
            name = f": {one_line(traffic.path or 'traffic')}" if several else ""
            document.add(f"What a training sends{name}", grids, document.command("show", "traffic"))
    if material.dumps or material.logs:
        _about_logs(document)
    if filter:
        document.notes.append(
            f"--filter {filter} left out cases that the commands of the sections show"
        )
    _ending(document, command)
    sections = shorten_repeated_caveats(document.sections, document.printed)
    title = _title(material) if files else "Nodes over nights"
    return Page(title, document.answers, sections, *_page_cases(document))


def _page_cases(document: _Document) -> tuple[dict[str, PageCase], list[str]]:
    """The cases that points of charts lead to, and of each run what prints its calls."""
    if not document.inline:
        return {}, []
    runs, names = document.plain, _short_names(document.plain)
    cases = {}
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        of_run = f" of {name}" if len(runs) > 1 else ""
        for result in run.results:
            text = case_text(result.case)
            explain = f"torchcoll explain {text} {shlex.quote(str(run.path))}" if run.path else ""
            title = f"{text} on {one_line(result.case.backend)}{of_run}"
            cases[document.keys[id(result)]] = PageCase(title, number, explain)
    calls = [
        f"torchcoll show --view calls {shlex.quote(str(run.path))}" if run.path else ""
        for run in runs
    ]
    return cases, calls


def _has_nights(runs: Sequence[Run]) -> bool:
    """Whether the runs are of several nodes over enough days for ``torchcoll history``."""
    nodes = {(run.members[0].get("host"), run.ranks) for run in runs if run.members}
    days = {str(run.header.get("start_utc") or "")[:10] for run in runs}
    return len(nodes) > 1 and len(days - {""}) >= _FEWEST_NIGHTS


_FEWEST_NIGHTS = 6


def _nights(document: _Document, arguments: Sequence[str]) -> None:
    """Which node differs, and since when, of each device model and number of ranks."""
    from torchcoll.fleet.changes_over_time import history_of
    from torchcoll.fleet.history_show import history_grid
    from torchcoll.fleet.nights import parse_night_start
    from torchcoll.fleet.panel import panels_of
    from torchcoll.overview.heat_maps import nights_charts
    from torchcoll.store.sources import summaries_of

    # As torchcoll history without options.
    panels = panels_of(summaries_of(arguments), parse_night_start("12:00"))
    if not panels:
        raise UsageError("nights", " ".join(arguments), "runs with dates and times")
    quoted = shlex.join(arguments)
    for panel in panels:
        if len(panel.nodes) < 2:
            continue
        history = history_of(panel, 0.03)
        kind = f"{panel.device_name or 'device not recorded'}, {counted(panel.ranks, 'rank')}"
        title = f"Nodes over nights{f': {one_line(kind)}' if len(panels) > 1 else ''}"
        document.add(
            title,
            [history_grid(history, False)],
            f"torchcoll history {quoted}",
            [
                _Drawing(
                    "How much slower each node was in each night",
                    None,
                    partial(nights_charts, history, f"torchcoll fleet {quoted} --night {{x}}"),
                    "nodes",
                )
            ],
        )


def _title(material: Material) -> str:
    rows = [result.case for run in material.runs for result in run.results]
    parts = []
    if rows:
        names = distinct_values(rows, "collective")
        several = f"{len(names)} collectives"
        parts.append(", ".join(names) if len(names) < 4 else several)
        ranks = sorted({run.ranks for run in material.runs if run.ranks})
        backends = [name for name in distinct_values(rows, "backend") if name != "unknown"]
        on = " and ".join(map(one_line, backends))
        parts.append(f"on {on}" if on else "")
        if ranks:
            span = f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else str(ranks[0])
            parts.append(f"with {span} rank{'s' * (ranks[-1] > 1)}")
        return " ".join(filter(None, parts))
    return "what a training sends" if material.traffic else "what the logs say"


def _about_runs(document: _Document) -> None:
    runs = document.material.runs
    verdicts = [
        judge(run, document.fabric, rows=rows)
        for run, rows in zip(runs, document.rows, strict=True)
    ]
    answers = list(map(answer_of, verdicts))
    if len(answers) > 1:
        sides = [run.labels.get("cell", "") for run in runs]
        distinct = all(sides) and len(set(sides)) == len(sides)
        names = map(one_line, sides) if distinct else map(title_of, runs)
        answers = [over_all(list(zip(names, answers, strict=True)))]
    _runs(document, verdicts)
    compared = _comparisons(document)
    # What failed comes first, then what the page compares, what was reached, and the verdicts.
    compared_answers, document.answers = document.answers, []
    _peak_answer(document)
    failed = [answer for answer in answers if answer.level == "bad"]
    others = [answer for answer in answers if answer.level != "bad"]
    document.answers = [*failed, *compared_answers, *document.answers, *others]
    if document.plain:
        _curves(document, compared)
        _calls(document)
    for run in runs:
        if has_pairs(run):
            _pairs(document, run)
    if document.plain:
        _cold(document)
    if len({run.ranks for run in document.plain}) > 1:
        document.tried("the number of ranks", lambda: _scaling(document))
    for run in runs:
        _further(document, run)
    _published(document)
    _tables(document, verdicts)


def _good(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.status == "ok" and row.verified != "wrong"]


def _peak_answer(document: _Document) -> None:
    """The largest bus bandwidths, of three collectives, and the shortest time."""
    # How long a call takes to issue is no bandwidth, and a barrier's time none of data.
    # What a model predicts was reached by nobody.
    measured = [
        (run.labels.get("cell", ""), rows)
        for run, rows in zip(document.material.runs, document.rows, strict=True)
        if run.labels.get("cell") != "model"
    ]
    sides = {side for side, _ in measured}
    named = "" not in sides and 1 < len(sides) <= _MOST_PEAKS
    places: dict[tuple[str, str, str, int, str], list[Row]] = {}
    for side, rows in measured:
        for row in _good(rows):
            place = row.backend, row.implementation, row.device, row.ranks, side if named else ""
            if row.size_bytes and row.clock != "issue":
                places.setdefault(place, []).append(row)
    order = sorted(
        places, key=lambda place: max(r.busbw_gbps or 0.0 for r in places[place]), reverse=True
    )
    for place in order[:_MOST_PEAKS]:
        place_parts = [
            place_part for place_part in place[:3] if place_part not in (NATIVE, "unknown")
        ]
        where = (
            f" on {' '.join(place_parts)}, {place[3] or 'unknown'} ranks" if len(order) > 1 else ""
        )
        where = f" in {one_line(place[4])}{where}" if place[4] else where
        _peak_of(document, places[place], where)
    if len(order) > _MOST_PEAKS:
        document.answers.append(Answer(f"... and of {len(order) - _MOST_PEAKS} more, below."))


_MOST_PEAKS = 4  # of backends, devices and numbers of ranks
_MOST_PEAKS_OF_A_PLACE = 3  # collectives


def _peak_of(document: _Document, rows: Sequence[Row], place: str) -> None:
    """place: where, if there are several; what is measured in one is none of another's."""
    wide = [row for row in rows if row.busbw_gbps]
    best: dict[str, Row] = {}
    for row in sorted(wide, key=lambda row: row.busbw_gbps or 0.0, reverse=True):
        best.setdefault(row.collective, row)  # the largest first
    texts = [
        f"{name} {row.busbw_gbps:.4g} GB/s of busbw at {format_size(row.size_bytes)}"
        + ("" if place else f" on {row.ranks} ranks")
        for name, row in [*best.items()][:_MOST_PEAKS_OF_A_PLACE]
    ]
    texts += [f"... ({len(best)} collectives)"] if len(best) > len(texts) else []
    timed = [row for row in rows if row.median_ns]
    if texts:
        clocks = " and ".join(dict.fromkeys(row.clock or "unknown" for row in wide))
        document.answers.append(Answer(f"Peak{place}: {', '.join(texts)}; {clocks} clock."))
    if timed:
        least = min(timed, key=lambda row: row.median_ns or 0.0)
        text = f"Shortest{place}: {format_ns(least.median_ns)}, {least.collective} of "
        where = f" on {least.ranks} ranks" * bool(least.ranks and not place)
        size = least.size_bytes
        size_text = format_size(size) if size >= 1024 else f"{size} bytes"
        document.answers.append(Answer(f"{text}{size_text}{where}."))


def _sides(runs: Sequence[Run]) -> list[Side]:
    """A side for each label ``cell``, where all runs have one and there are several; else for each
    backend, where runs have several.
    """
    names = [run.labels.get("cell", "") for run in runs]
    if not any(names):
        backends = dict.fromkeys(r.case.backend for run in runs for r in run.results)
        return [Side(f"backend:{name}", list(runs)) for name in backends] * (len(backends) > 1)
    if not all(names) or not 2 <= len(set(names)) <= _SIDES:
        return []
    return [
        Side(name, [run for run, side_name in zip(runs, names, strict=True) if side_name == name])
        for name in dict.fromkeys(names)
    ]


def _comparisons(document: _Document) -> list[Comparison]:
    """The sides against the first, whatever made them: a versus, forced algorithms, labels."""
    for folder in document.material.folders:
        if compared := _versus(document, folder):
            return compared
    if _algorithms(document):
        return []
    sides = _sides(document.plain)
    if not sides:
        return []
    from torchcoll.comparison.compare import compare
    from torchcoll.comparison.show import comparison_grids

    compared = []
    for other in sides[1:]:
        try:
            comparison = compare(sides[0], other)
        except UsageError as error:  # no case in common: the rest of the page stands
            names = one_line(f"{other.name} against {sides[0].name}")
            document.notes.append(f"no section on {names}: {error}")
            continue
        comparison.differences = [d for d in comparison.differences if d.name not in _TOLD]
        named = " ".join(
            shlex.quote(f"{side.name}={run.path or run.source.get('file')}")
            for side in (sides[0], other)
            for run in side.runs[:_FEW]
        )
        named += " ..." * (max(len(sides[0].runs), len(other.runs)) > _FEW)
        given = [
            argument
            for argument in document.material.arguments.get("runs", [])
            if split_label(argument)[0] in (sides[0].name, other.name)
        ]
        if {split_label(argument)[0] for argument in given} == {sides[0].name, other.name}:
            named = shlex.join(given)
        title = " against ".join(
            one_line(side.only[1] if side.only else side.name)
            for side in (comparison.new, comparison.base)
        )
        document.add(
            title,
            comparison_grids(comparison, every=True),
            f"torchcoll compare {named}",
            [_ratios(document, comparison)],
        )
        compared.append(comparison)
    _errors(document, sides)
    return compared


def _errors(document: _Document, sides: Sequence[Side]) -> None:
    """How wrong a model is, where one side is what it predicts, about each other side."""
    from torchcoll.comparison.prediction import MODEL
    from torchcoll.curves.validation import validate_predicted
    from torchcoll.curves.validation_show import errors_figure
    from torchcoll.overview.finding_charts import errors_charts

    predicted = [run for side in sides if side.name == MODEL for run in side.runs]
    measured = [side for side in sides if side.name != MODEL]

    def about(side: Side) -> None:
        validation = validate_predicted(predicted, side.runs)
        title, whose = "How wrong the model is", "measured times"
        if len(measured) > 1:  # an error is of one of them: of several the mean would be of none
            title += f" about {one_line(side.name)}"
            whose = f"the times of {one_line(side.name)}"
        text = f"Predicted against {whose}, and the error of each size"
        drawing = _Drawing(
            text, lambda: errors_figure(validation), lambda: errors_charts(validation)
        )
        document.add(title, [], "", [drawing])

    for measured_side in measured if predicted else ():
        document.tried(
            f"how wrong the model is about {measured_side.name}", partial(about, measured_side)
        )


def _ratios(document: _Document, comparison: Comparison) -> _Drawing:
    from torchcoll.overview.charts import ratio_charts
    from torchcoll.overview.figures import ratio_figure

    above = "is faster" if comparison.more_is_faster else "takes longer"
    text = (
        "Ratio of each case with its 95 % interval; the band is what counts as the same; above 1 "
        f"{one_line(comparison.new.name)} {above}"
    )
    return _Drawing(
        text, lambda: ratio_figure(comparison), lambda: ratio_charts(comparison, document.keys)
    )


def _versus(document: _Document, folder: str) -> list[Comparison]:
    """What torchcoll versus has left in the folder, judged as it judges; [] where it was none."""
    from torchcoll.comparison.versus import read
    from torchcoll.comparison.versus_show import answer, versus_grids

    state = read(Path(folder))
    if state is None:
        return []
    comparisons = state.comparisons()
    if not comparisons:
        document.notes.append(f"{folder}: no round of torchcoll versus is complete")
        return []
    grids = versus_grids(state, comparisons, folder, state.stopped)
    drawings = [_ratios(document, comparison) for comparison in comparisons]
    document.add("A against B", grids, f"torchcoll versus --resume {shlex.quote(folder)}", drawings)
    document.answers.append(answer(state, comparisons, folder))
    return comparisons


def _algorithms(document: _Document) -> bool:
    from torchcoll.forcing.algorithms import algorithms
    from torchcoll.forcing.show import algorithms_grids

    if not any(run.labels.get("cell") for run in document.material.runs):
        return False
    try:
        finding = algorithms(document.material.folders or document.material.runs)
    except UsageError:  # nothing was forced
        return False
    document.add("Which algorithm wins", algorithms_grids(finding), document.command("algorithms"))
    return True


def _runs(document: _Document, verdicts: Sequence[Verdict]) -> None:
    """A line a run."""
    runs = document.material.runs
    items = list(zip(runs, document.rows, verdicts, _short_names(runs), strict=True))
    Item = tuple[Run, Sequence[Row], Any, str]

    def hosts(item: Item) -> str:
        names = dict.fromkeys(one_line(m.get("host") or "?") for m in item[0].members)
        several = list(names)
        return ", ".join(several if len(several) < 4 else [*several[:2], f"... ({len(several)})"])

    def ended(item: Item) -> str:
        if item[0].source:
            return "imported"
        return one_line((item[0].end or {}).get("status") or "truncated")

    def peak(item: Item) -> str:
        bandwidths = [row.busbw_gbps for row in _good(item[1]) if row.busbw_gbps]
        return format_bandwidth(max(bandwidths)) if bandwidths else "-"

    def text(name: str) -> Callable[[Item], str]:
        return lambda item: ", ".join(map(one_line, distinct_values(item[1], name))) or "-"

    grid = make_grid(
        [
            (Head("run", left=True), lambda i: i[3]),
            (Head("side", left=True), lambda i: one_line(i[0].labels.get("cell") or "-")),
            (Head("start", left=True), lambda i: one_line(i[0].header.get("start_utc") or "-")),
            (Head("collectives", left=True), text("collective")),
            (Head("backend", left=True), text("backend")),
            (Head("device", left=True), text("device")),
            (Head("library", left=True), text("library")),
            (Head("ranks"), lambda i: str(i[0].ranks or "-")),
            (Head("hosts", left=True), lambda i: hosts(i) or "-"),
            (Head("cases"), lambda i: str(len(i[1]))),
            (Head("peak busbw", "GB/s"), peak),
            (Head("ended", left=True), ended),
            (Head("verdict", left=True), lambda i: i[2].word),
        ],
        items,
        below=runs_lines(runs),
    )
    grid.styles = [
        {"PASS": "green", "WARN": "yellow", "FAIL": "red"}.get(v.word, "") for v in verdicts
    ]
    document.add("What was run", [grid], document.command("show"))


def _short_names(runs: Sequence[Run]) -> list[str]:
    """Of each run its path without the folder that all are in, or its title."""
    paths = [os.path.abspath(run.path) for run in runs if run.path]
    try:
        folder = os.path.commonpath(map(os.path.dirname, paths)) if paths else ""
    except ValueError:  # on several drives
        folder = ""
    return [
        one_line(os.path.relpath(os.path.abspath(run.path), folder)) if run.path else title_of(run)
        for run in runs
    ]


def _curves(document: _Document, compared: Sequence[Comparison]) -> None:
    from torchcoll.overview.charts import curves_charts
    from torchcoll.overview.plot import lines_figure, picture_of

    sides = [Side("", document.plain)]
    if compared and not compared[0].base.only:
        sides = [compared[0].base, *(comparison.new for comparison in compared)]

    def make() -> None:
        picture = picture_of(sides)
        number = max(map(len, picture.panels.values()))
        if number > _LINES:
            raise UsageError(
                "lines",
                f"{number} in one panel",
                f"at most {_LINES}",
                "--filter collective=NAME,dtype=NAME,... leaves fewer.",
            )
        document.add(
            "Time and bandwidth over sizes", [], document.command("plot"),
            [
                _Drawing(
                    "Time and bus bandwidth over sizes",
                    lambda: lines_figure(picture),
                    lambda: curves_charts(picture, keys=document.keys),
                    "collective",
                )
            ],
        )  # fmt: skip

    document.tried("time over sizes", make)
    if not compared or compared[0].base.only:
        document.tried("transitions", lambda: _transitions(document))


def _transitions(document: _Document) -> None:
    from torchcoll.curves.transitions import transitions
    from torchcoll.curves.transitions_show import ranges_figure, transitions_grids
    from torchcoll.overview.finding_charts import transitions_charts

    finding = transitions(document.plain)
    if len(finding.curves) > _SIDES:
        raise UsageError(
            "curves",
            len(finding.curves),
            f"at most {_SIDES}",
            "--filter collective=NAME,dtype=NAME,... leaves fewer.",
        )
    changing = replace(finding, curves=[curve for curve in finding.curves if curve.transitions])
    text = "Times, the law of each range, and where one ends"
    drawing = _Drawing(
        text, lambda: ranges_figure(changing), lambda: transitions_charts(changing), "curve"
    )
    document.add(
        "Where it switches",
        transitions_grids([finding]),
        document.command("transitions"),
        [drawing] * bool(changing.curves),
    )


def _calls(document: _Document) -> None:
    from torchcoll.overview.figures import calls_figure, chosen, ranks_figure
    from torchcoll.overview.heat_maps import ranks_chart

    runs = document.plain
    run = next((result for result in runs if chosen(result)), None)
    if run is None:
        return
    which = f", of {title_of(run)}" if len(runs) > 1 else ""
    results = chosen(run)

    def rank_maps() -> list[Chart]:
        maps = [(name, ranks_chart(run, document.keys)) for name, run in _named(runs[:_MAPS])]
        charts = [replace(chart, title=name) for name, chart in maps if chart]
        if charts and len(runs) > _MAPS:
            charts[0].caption.append(f"of the first {_MAPS} of {len(runs)} runs")
        return charts

    document.add(
        "Calls and ranks",
        [],
        f"torchcoll show --view calls {shlex.quote(str(run.path))}" if run.path else "",
        [
            _Drawing(
                "Each call, by rank and in order" + which * (not document.inline),
                lambda: calls_figure(run, results),
                lambda: _calls_charts(document),
                "case",
            ),
            _Drawing(
                "Own time of each rank over that of the median rank: a rank that comes last waits "
                "least" + which * (not document.inline),
                lambda: ranks_figure(run),
                rank_maps,
                "run",
            ),
        ],
    )


_MAPS = 40  # runs whose ranks have a map
_CALL_CASES = 500  # cases whose calls are in the page
_CALL_POINTS = 120_000  # calls in the page, about 2 MB


def _calls_charts(document: _Document) -> list[Chart]:
    """The calls of as many cases as a page can hold; of many runs the smallest, a middle and the
    largest size.
    """
    from torchcoll.overview.charts import MOST_CALLS, calls_chart
    from torchcoll.overview.figures import chosen, sampled

    every = [(run, result) for run in document.plain for result in sampled(run)]
    shown = every
    if len(every) > _CALL_CASES:
        shown = [(run, result) for run in document.plain for result in chosen(run)][:_CALL_CASES]
    ranks = 8 if len(shown) <= 40 else 4 if len(shown) <= 100 else 0
    points = max(100, min(MOST_CALLS, _CALL_POINTS // (len(shown) * (1 + ranks))))
    names = {id(run): name for name, run in _named(document.plain)}
    charts = []
    for run, result in shown:
        chart = calls_chart(run, result, document.keys[id(result)], points, ranks)
        backends = {r.case.backend for r in run.results}
        backend = f", {one_line(result.case.backend)}" * (len(backends) > 1)
        of_run = f", {names[id(run)]}" * (len(document.plain) > 1)
        charts.append(replace(chart, title=plain(f"{case_text(result.case)}{backend}{of_run}")))
        if len(shown) < len(every):
            chart.caption.append(f"{len(shown)} of the {len(every)} cases are in this page")
    return charts


def _named(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    return list(zip(_short_names(runs), runs, strict=True))


def _pairs(document: _Document, run: Run) -> None:
    from torchcoll.overview.figures import pairs_figure
    from torchcoll.overview.heat_maps import pairs_charts
    from torchcoll.pairs.show import pairs_grids
    from torchcoll.pairs.suspects import find_suspects
    from torchcoll.report.destination import Destination

    pairs = read_pairs(run)
    assert pairs is not None
    slow = find_suspects(pairs, pairs.threshold)
    out = Destination(io.StringIO())
    grids = pairs_grids(run, pairs, out, slow, pairs.threshold, "markdown")
    drawing = _Drawing(
        "Each pair: row and column are its two ends",
        lambda: pairs_figure(pairs),
        lambda: pairs_charts(pairs),
        "call",
    )
    document.add("Who is slow", grids, document.command("show"), [drawing])


def _cold(document: _Document) -> None:
    from torchcoll.overview.charts import first_calls_charts
    from torchcoll.overview.finding_charts import cold_charts
    from torchcoll.startup.cold import cold
    from torchcoll.startup.show import cold_figure, cold_grids

    def first_calls() -> list[Chart]:
        rows = {id(run): r for run, r in zip(document.material.runs, document.rows, strict=True)}
        charts = []
        for name, run in _named(document.plain[:_MAPS]):
            for chart in first_calls_charts(run, rows[id(run)], document.keys):
                of_run = f", {plain(name)}" * (len(document.plain) > 1)
                charts.append(replace(chart, title=f"{chart.title}{of_run}"))
        return charts

    def make() -> None:
        finding = cold(document.plain)
        several = len({scale.ranks for scale in finding.scales}) > 1
        drawings = [
            _Drawing("First and second call of each case", None, first_calls, "cases"),
            _Drawing(
                f"What starting cost, {'over the ranks' if several else 'run by run'}",
                (lambda: cold_figure(finding)) if several else None,
                lambda: cold_charts(finding) if several or len(finding.rows) > 1 else [],
                "kind of run",
            ),
        ]
        command = document.command("cold")
        document.add("What the first call costs", cold_grids(finding), command, drawings)

    document.tried("first calls", make)


def _scaling(document: _Document) -> None:
    from torchcoll.curves.scaling import scaling
    from torchcoll.curves.scaling_show import scaling_figure, scaling_grids
    from torchcoll.overview.finding_charts import scaling_charts

    finding = scaling(document.plain)
    several = any(len([p for p in curve.points if p.time_ns]) > 1 for curve in finding.curves)
    drawing = _Drawing(
        "Time and speed-up over the ranks",
        lambda: scaling_figure(finding),
        lambda: scaling_charts(finding),
    )
    document.add(
        "Over the number of ranks",
        scaling_grids(finding),
        document.command("scaling"),
        [drawing] * several,
    )


def _further(document: _Document, run: Run) -> None:
    """What ran beside it, and hours of it."""
    grids = further_grids(run)
    if not grids:
        return
    drawings = []
    if run.windows:
        from torchcoll.contention.soak_show import soak_answer
        from torchcoll.contention.soaked import soaked
        from torchcoll.overview.figures import soak_figure
        from torchcoll.overview.finding_charts import soak_chart

        if soak := soaked(run):
            document.answers.append(Answer(soak_answer(soak), "bad" if soak.faults else ""))
            drawings.append(
                _Drawing(
                    "Hours of the same cases",
                    lambda: soak_figure(soak, run),
                    lambda: [soak_chart(soak, run)],
                )
            )
    title = "Hours of it" if run.windows else "Beside other work"
    several = f": {title_of(run)}" if len(document.material.runs) > 1 else ""
    document.add(f"{title}{several}", grids, document.command("show"), drawings)


def _published(document: _Document) -> None:
    """What others publish of the kinds of machine of these runs, a table a kind."""
    from torchcoll.verdict.published import standings
    from torchcoll.verdict.published_show import published_grid

    first: dict[str, Run] = {}
    for run in document.plain:
        if standing := standings(run, summarise_run(run)):
            first.setdefault(standing[0].published[0][0].kind, run)
    grids = [grid for run in first.values() if (grid := published_grid(run))]
    document.answers += [Answer(grid.above[0]) for grid in grids]
    document.printed |= {grid.above[0] for grid in grids}
    if grids:
        document.add("What others publish", grids, document.command("show --published"))


def _tables(document: _Document, verdicts: Sequence[Verdict]) -> None:
    """Every case of every run; of many runs each case over all of them."""
    judged = zip(document.material.runs, document.rows, verdicts, strict=True)
    plain = [(run, rows, verdict) for run, rows, verdict in judged if not has_pairs(run)]
    section = Section("Every case", commands=[document.command("show")], folded=len(plain) > _OPEN)
    if len(plain) > MOST_RUNS:
        named = [(title_of(run), answer_of(verdict)) for run, _, verdict in plain]
        runs, rows_of = [run for run, _, _ in plain], [rows for _, rows, _ in plain]
        section.tables.append(TitledGrids("", runs_grids(runs, rows_of, named)))
    else:
        for run, _, verdict in plain:
            grid = table_grid(run, verdict=verdict, row_keys=document.keys)
            section.tables.append(TitledGrids(title_of(run) if len(plain) > 1 else "", [grid]))
    if plain:
        document.sections.append(section)


def _about_logs(document: _Document) -> None:
    from torchcoll.libraries.job_logs import file_rows, job_log
    from torchcoll.libraries.log_files import group_jobs
    from torchcoll.libraries.show import titled_logs

    material = document.material
    jobs = [job_log(job) for job in group_jobs(material.logs)]
    section = Section("What the libraries say", commands=[document.command("log", "logs")])
    for title, grids in titled_logs(jobs, file_rows(material.logs), material.dumps):
        section.tables.append(TitledGrids(title, grids))
    document.answers += answers_of(section)
    document.sections.append(section)


def _ending(document: _Document, command: str) -> None:
    """The environment, what the page leaves out, and the commands that made it."""
    environment = _environment(document.material.runs)
    if environment.rows:
        document.sections.append(Section("Environment", tables=[TitledGrids("", [environment])]))
    notes = [one_line(note) for note in dict.fromkeys(document.notes)]
    if notes:
        grid = Grid([], [], below=notes)
        document.sections.append(Section("Not included", tables=[TitledGrids("", [grid])]))
    commands_of_runs = [" ".join(map(shlex.quote, map(str, argv))) for run in document.material.runs
            if isinstance(argv := run.header.get("argv"), list) and argv]  # fmt: skip
    commands = [*([command] if command else []), *dict.fromkeys(map(one_line, commands_of_runs))]
    if commands:
        texts = ["This page, and what it shows:"] if commands_of_runs else ["This page:"]
        document.sections.append(Section("Commands", texts, ["\n".join(commands)]))


_VALUES = 3  # of a fact that differs between runs


def _environment(runs: Sequence[Run]) -> Grid:
    facts = [facts_of(run) for run in runs]
    rows = []
    for name in dict.fromkeys(name for fact in facts for name in fact):
        values = [one_line(fact.get(name, "unset")) for fact in facts]
        several = list(dict.fromkeys(values))
        if len(several) == 1:
            text = several[0]
        else:
            shown = [
                f"{value} ({counted(values.count(value), 'run')})" for value in several[:_VALUES]
            ]
            more = [f"... ({len(several)} values)"] * (len(several) > _VALUES)
            text = "; ".join([*shown, *more])
        rows.append([one_line(name), text, "" if len(several) == 1 else "differs"])
    return Grid([Head("fact", left=True), Head("value", left=True), Head("", left=True)], rows)

"""``torchcoll report``: everything that files tell, as one page. Sections stand where there is
data.

The tables are those of the commands, and the page begins with the answers that the commands give.
"""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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
from torchcoll.overview.show import further_grids, has_pairs, table_grid, title_of
from torchcoll.pairs.matches import read_pairs
from torchcoll.report.answer import Answer, Caveat
from torchcoll.report.columns import distinct_values
from torchcoll.report.grid import Grid, Head, make_grid
from torchcoll.report.many import MOST_RUNS, runs_grids
from torchcoll.report.notes import runs_lines
from torchcoll.report.page import Illustration, Page, Section, TitledGrids, shorten_repeated_caveats
from torchcoll.report.pictures import check_pictures_available, svg_text
from torchcoll.stats.filters import conditions
from torchcoll.stats.sides import Reading, Side
from torchcoll.verdict.judging import Verdict, judge
from torchcoll.verdict.show import answer_of, over_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchcoll.comparison.compare import Comparison

_OPEN = 3  # runs up to which their tables are open
_TOLD = ("label=cell", "label=run")  # the name of the side, and the number of its run
_FEW = 6  # files of a side that a command names
_LINES = 16  # of one panel; more tell nothing apart
_SIDES = 12  # cells of a matrix that are compared with its first


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

    def command(self, name: str, kind: str = "runs") -> str:
        return f"torchcoll {name} {shlex.join(self.material.arguments.get(kind, []))}"

    def add(
        self,
        title: str,
        grids: Iterable[Grid],
        command: str,
        figures: Sequence[tuple[str, Callable[[], Figure | None]]] = (),
    ) -> Section:
        section = Section(title, commands=[command] if command else [])
        section.tables.append(TitledGrids("", list(grids)))
        for name, draw in figures:
            self.draw(section, name, draw)
        self.sections.append(section)
        for answer in answers_of(section):
            if isinstance(answer.headline, Caveat):
                self.printed.add(answer.headline.text)
        self.answers += [
            replace(answer, headline=f"{title}: {answer.headline}")
            for answer in answers_of(section)
        ]
        return section

    def draw(self, section: Section, name: str, draw: Callable[[], Figure | None]) -> None:
        figure = draw()
        if figure is None:
            return
        caption = figure.get_label()
        figure.supxlabel("")
        texts = [caption] if isinstance(caption, str) else []
        section.pictures.append(
            Illustration(
                svg_text(figure, self.inline), name, [" ".join(filter(None, [f"{name}.", *texts]))]
            )
        )

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

    filter: as of ``compare``; the cases of results that it holds for. fabric: what the verdict is
    measured by. command: what makes the page again. inline: its pictures are parts of it. Raises
    UnreadableError where there is nothing to report, UsageError for choices that do not exist,
    UnavailableError without matplotlib.
    """
    check_pictures_available()
    material = read_material(arguments)
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
    return Page(_title(material), document.answers, sections)


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
            [_ratios(comparison)],
        )
        compared.append(comparison)
    _errors(document, sides)
    return compared


def _errors(document: _Document, sides: Sequence[Side]) -> None:
    """How wrong a model is, where one side is what it predicts, about each other side."""
    from torchcoll.comparison.prediction import MODEL
    from torchcoll.curves.validation import validate_predicted
    from torchcoll.curves.validation_show import errors_figure

    predicted = [run for side in sides if side.name == MODEL for run in side.runs]
    measured = [side for side in sides if side.name != MODEL]

    def about(side: Side) -> None:
        validation = validate_predicted(predicted, side.runs)
        title, whose = "How wrong the model is", "measured times"
        if len(measured) > 1:  # an error is of one of them: of several the mean would be of none
            title += f" about {one_line(side.name)}"
            whose = f"the times of {one_line(side.name)}"
        text = f"Predicted against {whose}, and the error of each size"
        document.add(title, [], "", [(text, lambda: errors_figure(validation))])

    for measured_side in measured if predicted else ():
        document.tried(
            f"how wrong the model is about {measured_side.name}", partial(about, measured_side)
        )


def _ratios(comparison: Comparison) -> tuple[str, Callable[[], Figure | None]]:
    from torchcoll.overview.figures import ratio_figure

    above = "is faster" if comparison.more_is_faster else "takes longer"
    text = (
        "Ratio of each case with its 95 % interval; the band is what counts as the same; above 1 "
        f"{one_line(comparison.new.name)} {above}"
    )
    return text, lambda: ratio_figure(comparison)


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
    figures = [_ratios(comparison) for comparison in comparisons]
    document.add("A against B", grids, f"torchcoll versus --resume {shlex.quote(folder)}", figures)
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
            [("Time and bus bandwidth over sizes", lambda: lines_figure(picture))],
        )  # fmt: skip

    document.tried("time over sizes", make)
    if not compared or compared[0].base.only:
        document.tried("transitions", lambda: _transitions(document))


def _transitions(document: _Document) -> None:
    from torchcoll.curves.transitions import transitions
    from torchcoll.curves.transitions_show import ranges_figure, transitions_grids

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
    figures = [(text, lambda: ranges_figure(changing))] * bool(changing.curves)
    document.add(
        "Where it switches", transitions_grids([finding]), document.command("transitions"), figures
    )


def _calls(document: _Document) -> None:
    from torchcoll.overview.figures import calls_figure, chosen, ranks_figure

    runs = document.plain
    run = next((result for result in runs if chosen(result)), None)
    if run is None:
        return
    which = f", of {title_of(run)}" if len(runs) > 1 else ""
    results = chosen(run)
    document.add(
        "Calls and ranks",
        [],
        f"torchcoll show --view calls {shlex.quote(str(run.path))}" if run.path else "",
        [
            (f"Each call, by rank and in order{which}", lambda: calls_figure(run, results)),
            (
                "Own time of each rank over that of the median rank: a rank that comes last waits "
                f"least{which}",
                lambda: ranks_figure(run),
            ),
        ],
    )


def _pairs(document: _Document, run: Run) -> None:
    from torchcoll.overview.figures import pairs_figure
    from torchcoll.pairs.show import pairs_grids
    from torchcoll.pairs.suspects import find_suspects
    from torchcoll.report.destination import Destination

    pairs = read_pairs(run)
    assert pairs is not None
    slow = find_suspects(pairs, pairs.threshold)
    out = Destination(io.StringIO())
    grids = pairs_grids(run, pairs, out, slow, pairs.threshold, "markdown")
    figure = [("Each pair: row and column are its two ends", lambda: pairs_figure(pairs))]
    document.add("Who is slow", grids, document.command("show"), figure)


def _cold(document: _Document) -> None:
    from torchcoll.startup.cold import cold
    from torchcoll.startup.show import cold_figure, cold_grids

    def make() -> None:
        finding = cold(document.plain)
        several = len({scale.ranks for scale in finding.scales}) > 1
        figures = [("What starting cost, over the ranks", lambda: cold_figure(finding))]
        command = document.command("cold")
        document.add("What the first call costs", cold_grids(finding), command, figures * several)

    document.tried("first calls", make)


def _scaling(document: _Document) -> None:
    from torchcoll.curves.scaling import scaling
    from torchcoll.curves.scaling_show import scaling_figure, scaling_grids

    finding = scaling(document.plain)
    several = any(len([p for p in curve.points if p.time_ns]) > 1 for curve in finding.curves)
    figures = [("Time and speed-up over the ranks", lambda: scaling_figure(finding))] * several
    document.add(
        "Over the number of ranks", scaling_grids(finding), document.command("scaling"), figures
    )


def _further(document: _Document, run: Run) -> None:
    """What ran beside it, and hours of it."""
    grids = further_grids(run)
    if not grids:
        return
    figures: list[tuple[str, Callable[[], Figure | None]]] = []
    if run.windows:
        from torchcoll.contention.soak_show import soak_answer
        from torchcoll.contention.soaked import soaked
        from torchcoll.overview.figures import soak_figure

        if soak := soaked(run):
            document.answers.append(Answer(soak_answer(soak), "bad" if soak.faults else ""))
            figures.append(("Hours of the same cases", lambda: soak_figure(soak, run)))
    title = "Hours of it" if run.windows else "Beside other work"
    several = f": {title_of(run)}" if len(document.material.runs) > 1 else ""
    document.add(f"{title}{several}", grids, document.command("show"), figures)


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
            grid = table_grid(run, verdict=verdict)
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

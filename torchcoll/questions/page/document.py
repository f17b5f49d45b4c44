"""``torchcoll report``: everything that files tell, as one page. Sections stand where there is
data.

The tables are those of the commands, and the page begins with the answers that the commands give.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torchcoll.core.answer import CERTAIN, Answer
from torchcoll.core.errors import TorchcollError, UnreadableError, one_line
from torchcoll.core.parts import functions_of
from torchcoll.core.result import Run
from torchcoll.core.run_facts import facts_of
from torchcoll.core.summary import Row
from torchcoll.core.units import (
    counted,
    format_bandwidth,
    plural,
    shorten,
)
from torchcoll.core.variables import Name
from torchcoll.questions.check.judging import Verdict, judge
from torchcoll.questions.check.limits import FAIL, NO_REFERENCE, PASS, WARN
from torchcoll.questions.check.measured_show import runs_answer
from torchcoll.questions.page import question_sections
from torchcoll.questions.page.charts import sampled
from torchcoll.questions.page.comparing_sections import add_comparisons
from torchcoll.questions.page.page_draft import Drawing, PageDraft, answers_of, short_names
from torchcoll.questions.show.recipe import recipe_of
from torchcoll.questions.show.show import answer_of, has_pairs, table_grid, title_of
from torchcoll.reading.inputs import Material, read_material
from torchcoll.report.chart import Chart, check_installed
from torchcoll.report.columns import distinct_values
from torchcoll.report.grid import Grid, Head, make_grid
from torchcoll.report.header import case_text
from torchcoll.report.many import MOST_RUNS, runs_grids, same_cases
from torchcoll.report.notes import runs_lines
from torchcoll.report.page import (
    Page,
    PageCase,
    Section,
    TitledGrids,
    shorten_repeated_caveats,
)
from torchcoll.stats.filters import keep_cases

_OPEN = 3  # runs up to which their tables are open


def page_of(
    arguments: Sequence[str],
    filter: str = "",
    fabric: str | None = None,
    command: str = "",
    inline: bool = True,
    collective: str | None = None,
    ranks: int | None = None,
) -> Page:
    """The page on everything that these files, folders and ``label=PATH`` hold.

    arguments may be stores of ``torchcoll collect`` too. filter: as of ``compare``. fabric: what
    the verdict is measured by. command: what makes the page again. inline: HTML, with charts in the
    page; otherwise its pictures are files. collective, ranks: what the output of other tools does
    not state. Raises UnreadableError where there is nothing to report, UsageError for choices that
    do not exist, UnavailableError without plotly, or without matplotlib if not inline.
    """
    check_installed("plotly" if inline else "matplotlib.figure", "report", "report")
    is_store = [*functions_of("answers", "recognises")]
    stores = [argument for argument in arguments if any(of(argument) for of in is_store)]
    files = [argument for argument in arguments if argument not in stores]
    answered: dict[str, tuple[Section, list[Chart]]] = {}
    for sections_of in functions_of("answers", "files"):
        answered |= sections_of(files)
    # A folder of a dead job may have captures too.
    files = [path for path in files if path not in answered or os.path.isdir(path)]
    material = Material()
    try:
        material = read_material(files, collective, ranks) if files else material
    except UnreadableError:
        if not answered:
            raise
    material.runs = keep_cases(material.runs, filter)
    document = PageDraft(material, fabric, inline, stores)
    for argument, (section, charts) in answered.items():
        for chart in charts:
            document.draw(section, Drawing(chart.title, partial(list, [chart])))
        document.sections.append(section)
        name = f"{one_line(argument)}: " if len(arguments) > 1 else ""
        section.title = name + section.title
        document.answers += [replace(answer, before=name) for answer in answers_of(section)[:1]]
    document.add_of_parts("nights")
    if material.runs:
        _about_runs(document)
    if material.traffic:
        document.add_of_parts("traffic")
    if material.dumps or material.logs:
        answers = _about_logs(document)
        document.answers += [] if answered else answers
    if filter:
        document.notes.append(
            f"--filter {filter} left out cases that the commands of the sections show"
        )
    _ending(document, command)
    document.answers.sort(key=lambda answer: _urgency(answer, document.compared))
    _lead(document.sections, document.answers)
    if document.answers:  # the answer on top needs no title
        answer = document.answers[0]
        prefixes = [f"{section.title}: " for section in document.sections if section.title]
        title = next((each for each in prefixes if answer.before.startswith(each)), "")
        document.answers[0] = replace(answer, before=answer.before.removeprefix(title))
    printed = {*document.printed, *(answer.text for answer in document.answers)}
    sections = shorten_repeated_caveats(document.sections, printed)
    title = document.title if stores else _title(material)
    if answered and not (stores or material.runs):
        titles = dict.fromkeys(
            section.title.rpartition(": ")[2] for section, _ in answered.values()
        )
        title = ", ".join(titles)
    return Page(title, document.answers, sections, *_page_cases(document))


def _urgency(answer: Answer, compared: Sequence[Answer]) -> int:
    """A fault is first; then which side is faster, if the page compares sides; then what is certain
    to be slow or late, before a caution about the machine.
    """
    if answer.level == "bad":
        return 0
    if answer in compared:
        return 1
    return 4 if answer.level != "doubt" else 2 if answer.certainty == CERTAIN else 3


_SCREEN = 600  # pixels of two pictures that are seen together, below the answer


def _lead(sections: list[Section], answers: Sequence[Answer]) -> None:
    """Moves the picture of the first answer to the top, or the first picture if it has none; two if
    both are seen without scrolling.
    """
    drawn = [each for each in sections if each.charts or each.pictures]
    plain = [replace(answer, before="") for answer in answers[:1]]
    about = (
        each for each in drawn if any(replace(a, before="") in plain for a in answers_of(each))
    )
    first = next(about, drawn[0] if drawn else None)
    if first:
        shown = first.charts[:2]
        if len(shown) == 2:
            heights = [group.charts[0].layout.get("height", _SCREEN) for group in shown]
            shown = shown[: 2 if sum(heights) <= _SCREEN else 1]
        top = Section("", charts=shown, pictures=first.pictures[:1])
        del first.charts[: len(shown)], first.pictures[:1]
        sections.insert(0, top)


def _page_cases(document: PageDraft) -> tuple[dict[str, PageCase], list[str]]:
    """The cases that points of charts lead to, and of each run what prints its calls."""
    if not document.inline:
        return {}, []
    runs, names = document.plain, short_names(document.plain)
    cases = {}
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        of_run = f" of {name}" if len(runs) > 1 else ""
        texts: set[str] = set()
        for result in run.results:
            text = case_text(result.case)
            file = shlex.quote(str(run.path))
            explain = f"torchcoll show {file} --explain {text}" if run.path else ""
            if text in texts:  # explain would print the row of the first
                explain = ""
            texts.add(text)
            title = f"{text} on {one_line(result.case.backend)}{of_run}"
            cases[document.keys[id(result)]] = PageCase(title, number, explain)
    calls = [
        f"torchcoll show --view calls {shlex.quote(str(run.path))}" if run.path else ""
        for run in runs
    ]
    return cases, calls


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
            parts.append(f"with {span} {plural(ranks[-1], 'rank')}")
        parts.append("and what a training sends" if material.traffic else "")
        return " ".join(filter(None, parts))
    return "What a training sends" if material.traffic else "What the logs say"


def _about_runs(document: PageDraft) -> None:
    runs = document.material.runs
    verdicts = [
        judge(run, document.fabric, rows=rows)
        for run, rows in zip(runs, document.rows, strict=True)
    ]
    tables = _tables(document, verdicts)
    answers = answers_of(tables) if len(runs) == 1 else []
    if len(runs) == 1 and has_pairs(runs[0]):  # the section of its pairs accuses in better words
        suspects = {str(e.get("message")) for e in runs[0].events if e.get("kind") == "suspect"}
        document.printed |= {one_line(f"suspect: {text}") for text in suspects}
        failures = {phrase.text for phrase in verdicts[0].phrases if phrase.word == FAIL}
        accusing = answer_of(runs[0])
        is_told = failures == {accusing.headline if accusing else ""}
        answers = [] if is_told else [verdicts[0].answer]
    if len(runs) > 1:
        sides = [run.labels.get("cell", "") for run in runs]
        distinct = all(sides) and len(set(sides)) == len(sides)
        names = map(one_line, sides) if distinct else map(title_of, runs)
        groups = same_cases(runs, document.rows)
        answers = [runs_answer(list(names), verdicts, document.rows, groups)]
    place = len(document.sections)
    compared = add_comparisons(document)
    _runs(document, verdicts, bool(compared))
    document.sections.insert(place, document.sections.pop())  # above the comparisons
    document.compared = [*document.answers]
    # After what the pairs say, and what happens over ranks.
    later = has_pairs(runs[0]) or len({run.ranks for run in document.plain}) > 1
    document.answers += [] if later else answers
    if document.plain:
        question_sections.add_curves(document, compared)
        question_sections.add_calls(document)
    for run in runs:
        if has_pairs(run):
            question_sections.add_pairs(document, run)
    # Steady calls over ranks come before first calls.
    places = [partial(question_sections.add_first_calls, document)] if document.plain else []
    if len({run.ranks for run in document.plain}) > 1:
        steady = any(map(sampled, document.plain))
        places.insert(0 if steady else 1, partial(document.add_of_parts, "ranks"))
    for add in places:
        add()
    for run in runs:
        question_sections.add_further(document, run)
    question_sections.add_published(document)
    document.answers += answers if later else []
    document.sections += [tables] if tables.tables else []


def _runs(document: PageDraft, verdicts: Sequence[Verdict], compared: bool) -> None:
    """A line a run. compared: a comparison judges the runs, so that no run says PASS beside it."""
    runs = document.material.runs
    items = list(zip(runs, document.rows, verdicts, short_names(runs), strict=True))
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
        bandwidths = [row.busbw_gbps for row in item[1] if row.is_right and row.busbw_gbps]
        return format_bandwidth(max(bandwidths)) if bandwidths else "-"

    def text(name: str) -> Callable[[Item], str]:
        return lambda item: ", ".join(map(one_line, distinct_values(item[1], name))) or "-"

    unsaid = [NO_REFERENCE, PASS] if compared else [NO_REFERENCE]
    grid = make_grid(
        [
            (Head("run", left=True), lambda i: i[3]),
            (Head("side", left=True), lambda i: one_line(i[0].labels.get("cell") or "-")),
            (Head("verdict", left=True), lambda i: "-" if i[2].word in unsaid else i[2].word),
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
        ],
        items,
        below=runs_lines(runs),
    )
    styles = {PASS: "green", WARN: "yellow", FAIL: "red"}
    grid.styles = ["" if v.word in unsaid else styles.get(v.word, "") for v in verdicts]
    document.add("What was run", [grid], "")


def _tables(document: PageDraft, verdicts: Sequence[Verdict]) -> Section:
    """Every case of every run; of many runs each case over all of them."""
    judged = zip(document.material.runs, document.rows, verdicts, strict=True)
    plain = [(run, rows, verdict) for run, rows, verdict in judged if not has_pairs(run)]
    section = Section("Every case", commands=[document.command("show")], folded=len(plain) > _OPEN)
    if len(plain) > MOST_RUNS:
        runs, rows_of = [run for run, _, _ in plain], [rows for _, rows, _ in plain]
        grids = runs_grids(runs, rows_of, list(map(title_of, runs)))
        section.tables.append(TitledGrids("", grids))
    else:
        for run, _, verdict in plain:
            # The page has a section of the ranks.
            grid = table_grid(run, verdict=verdict, row_keys=document.keys, ranks=False)
            section.tables.append(TitledGrids(title_of(run) if len(plain) > 1 else "", [grid]))
    return section


def _about_logs(document: PageDraft) -> list[Answer]:
    from torchcoll.libraries.job_logs import file_rows, group_jobs, job_log
    from torchcoll.libraries.show import titled_logs

    material = document.material
    jobs = [job_log(job) for job in group_jobs(material.logs)]
    section = Section("What the libraries say", commands=[document.command("log", "logs")])
    for title, grids in titled_logs(jobs, file_rows(material.logs), material.dumps):
        section.tables.append(TitledGrids(title, grids))
    document.sections.append(section)
    return answers_of(section)


def _ending(document: PageDraft, command: str) -> None:
    """The environment, what the page leaves out, and the commands that made it."""
    environment = _environment(document.material.runs)
    if environment.rows:
        document.sections.append(Section("Environment", tables=[TitledGrids("", [environment])]))
    notes = [one_line(note) for note in dict.fromkeys(document.notes)]
    if notes:
        grid = Grid([], [], below=notes)
        document.sections.append(Section("Not included", tables=[TitledGrids("", [grid])]))
    recipes = [_run_command(run) for run in document.material.runs]
    commands_of_runs = [command for command, _ in recipes if command]
    commands = [*([command] if command else []), *dict.fromkeys(map(one_line, commands_of_runs))]
    if commands:
        texts = ["This page, and the runs it shows:"] if commands_of_runs else ["This page:"]
        if left_out := dict.fromkeys(name for _, names in recipes for name in names):
            names = ", ".join(left_out)
            texts.append(f"Not set, for they name files or code: {names}.")
        document.sections.append(Section("Commands", texts, ["\n".join(commands)]))


def _run_command(run: Run) -> tuple[str, tuple[Name, ...]]:
    """What makes a run of the same cases with its settings, '' if torchcoll did not make it; and
    the settings that it leaves out.
    """
    argv = run.header.get("argv")
    if run.source or not isinstance(argv, list):
        return "", ()
    try:
        recipe = recipe_of(run)
    except TorchcollError:  # of pairs, or without a case
        return shlex.join(map(str, argv)), ()
    return recipe.text(), recipe.left_out


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
            texts = [f"{value} ({counted(values.count(value), 'run')})" for value in several]
            text = shorten(texts, _VALUES, f"; ... ({len(several)} values)", "; ")
        rows.append([one_line(name), text, "" if len(several) == 1 else "differs"])
    return Grid([Head("fact", left=True), Head("value", left=True), Head("", left=True)], rows)

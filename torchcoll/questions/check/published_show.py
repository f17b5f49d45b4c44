"""What others have published of a run's kind of machine, figure by figure, with the sources."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TextIO

from torchcoll.core.answer import Answer, Caveat
from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import Run
from torchcoll.core.summary import Row
from torchcoll.core.units import counted, format_bandwidth, format_size, plural
from torchcoll.questions.check import published
from torchcoll.report.formats import print_forms
from torchcoll.report.grid import Grid, Head, make_grid

SCHEMA = "torchcoll-published/1"
Selects = Callable[[str, int, int], bool]
_SOURCES = "source and note of an entry: torchcoll again ENTRY --dry-run"
_CAVEAT = (
    "no verdict: networks, versions and settings of one kind of machine differ; most are means of "
    "calls back to back"
)


def show_published(
    runs: Sequence[Run],
    format: str = "table",
    file: TextIO | None = None,
    selects: Selects | None = None,
) -> None:
    """Of the kinds of machine of ``runs``, or of all kinds without a run.

    selects: whether a figure of a collective, a size in bytes and a number of ranks is shown,
    without a run. Raises UsageError for an unknown format, and if it selects nothing.
    """
    titled, records = [], []
    for run in runs:
        grids, records_of_run = _of_run(run)
        title = one_line(run.path or run.source.get("file") or "") if len(runs) > 1 else ""
        titled.append((title, grids))
        records += records_of_run
    if not runs:
        publications = _selected(selects)
        titled = [("", [_known_grid(publications)])]
        records = [
            {**_record(publication), "collective": key[0], "size_bytes": key[1], "busbw_gbps": gbps}
            for publication in publications
            for key, records_of_run in publication.figures.items()
            for gbps in list(records_of_run.values())[:1]
        ]
    print_forms(titled, records, {"schema": SCHEMA, "rows": records}, format, file)


def published_lines(run: Run, rows: Sequence[Row]) -> list[Caveat]:
    """Where the run stands, in one sentence; none where nothing is published of such a machine."""
    best = published.standings(run, rows)[:1]
    text = " (torchcoll show --published)"
    return [Caveat(standing.text(), after=text, of_runs=True) for standing in best]


def published_grid(run: Run, name: str = "this run") -> Grid | None:
    """Each figure of a size that the run has too; of all sizes where it has none of them. None
    where nothing is published of such a machine. name: of the run in the sentence.
    """
    alike_runs = published.alike(run)
    if not alike_runs:
        return None
    cases = published.standings(run, summarise_run(run))
    items = [
        (case.row.collective, case.row.size_bytes, publication, gbps, case.row.busbw_gbps)
        for case in cases
        for publication, gbps in case.published
    ] or [
        (collective, size, publication, next(iter(gbps.values())), None)
        for publication in alike_runs
        for (collective, size), gbps in publication.figures.items()
    ]
    kind = f"{counted(len(alike_runs), 'published run')} on {alike_runs[0].kind}"
    text = cases[0].text(name) if cases else f"{kind}, of none of {name}'s cases and sizes"
    grid = make_grid(
        [
            (Head("collective", left=True), lambda i: i[0]),
            (Head("size"), lambda i: format_size(i[1])),
            (Head("busbw", "GB/s"), lambda i: format_bandwidth(i[3])),
            (Head("yours", "GB/s"), lambda i: format_bandwidth(i[4]) if i[4] else "-"),
            (Head("entry", left=True), lambda i: i[2].id),
            (Head("machine", left=True, drop=1), lambda i: i[2].machine),
            (Head("date", left=True, drop=2), lambda i: i[2].date),
        ],
        items,
        below=[_SOURCES, _CAVEAT],
    )
    itself = published.published_as(run)
    grid.answer = Answer(f"{itself.itself_text}; {text}" if itself else text)
    return grid


def _of_run(run: Run) -> tuple[list[Grid], list[dict[str, Any]]]:
    rows = summarise_run(run)
    cases, grid = published.standings(run, rows), published_grid(run)
    itself = published.published_as(run)
    if grid is None and not itself and published.missing_labels(run)[0]:
        cases = published.standings(run, rows, published.of_as_many(run))
        grid = _choice_grid(run, cases)
    elif grid is None:
        text = f"nothing is published of {one_line(published.kind_of_run(run))}"
        text = f"{itself.itself_text}, the only one of {itself.kind}" if itself else text
        step = "torchcoll show --published has all"
        grid = Grid([], [], answer=Answer(text, next_step=step))
    return [grid], [
        {
            **_record(publication),
            "collective": standing.row.collective,
            "size_bytes": standing.row.size_bytes,
            "busbw_gbps": gbps,
            "own_busbw_gbps": standing.row.busbw_gbps,
        }
        for standing in cases
        for publication, gbps in standing.published
    ]


def _choice_grid(run: Run, cases: Sequence[published.PublishedCase]) -> Grid:
    """For a run that does not name its GPUs or hosts: every kind of as many GPUs, in the case that
    most entries have in common with the run.
    """
    missing, step = published.missing_labels(run)
    file = one_line(run.path or run.source.get("file") or "FILE")
    step = step.replace("FILE", shlex.quote(file)).replace("RUN", "RUN.jsonl")
    if not cases:
        return Grid([], [], answer=Answer(missing, next_step=step))
    row = cases[0].row
    where = f"{row.collective} {format_size(row.size_bytes)}"
    items = sorted(cases[0].published, key=lambda item: -item[1])
    ends = [f"{gbps:.3g} ({entry.kind})" for entry, gbps in (items[-1], items[0])]
    reach = f"{counted(len(items), 'published run')} of {run.ranks} GPUs"
    reach = f"{reach} {plural(len(items), 'reaches', 'reach')} {' to '.join(dict.fromkeys(ends))}"
    text = (
        f"which GPUs are these? {missing}; it reaches {row.busbw_gbps:.3g} GB/s busbw in {where}, "
        f"where {reach}"
    )
    grid = make_grid(
        [
            (Head("kind", left=True, repeat=True), lambda i: i[0].kind),
            (Head("busbw", "GB/s"), lambda i: format_bandwidth(i[1])),
            (Head("entry", left=True), lambda i: i[0].id),
            (Head("machine", left=True, drop=1), lambda i: i[0].machine),
            (Head("date", left=True, drop=2), lambda i: i[0].date),
        ],
        items,
        above=[where],
        below=[_SOURCES, _CAVEAT],
    )
    grid.answer = Answer(text, next_step=step.replace("NAME", items[0][0].gpu))
    return grid


def _record(publication: published.Publication) -> dict[str, Any]:
    left_out = ("type", "linked", "figures", "host_gbit")
    return {name: value for name, value in vars(publication).items() if name not in left_out}


def _selected(selects: Selects | None) -> list[published.Publication]:
    """The entries with those of their figures that are selected."""
    if selects is None:
        return [*published.publications()]
    selected = []
    for entry in published.publications():
        figures = {
            (collective, size_bytes): of_placements
            for (collective, size_bytes), of_placements in entry.figures.items()
            if selects(collective, size_bytes, entry.ranks)
        }
        if figures:
            selected.append(replace(entry, figures=figures))
    if not selected:
        raise UsageError("filter", "none of the figures", "conditions that one fulfils")
    return selected


def _known_grid(publications: Sequence[published.Publication]) -> Grid:
    """A line for each entry, with its largest all_reduce or what else it has."""
    entries = sorted(publications, key=lambda entry: (entry.gpu, entry.hosts, entry.ranks))
    origins = list(dict.fromkeys(map(_origin, entries)))

    def largest(entry: published.Publication) -> tuple[str, int]:
        first = next(iter(entry.figures))[0]
        return max(key for key in entry.figures if key[0] == first)

    def largest_text(entry: published.Publication) -> str:
        collective, size_bytes = largest(entry)
        return f"{collective} {format_size(size_bytes)}"

    def busbw(entry: published.Publication) -> str:
        return format_bandwidth(next(iter(entry.figures[largest(entry)].values())))

    kinds = len({entry.kind for entry in entries})
    grid = make_grid(
        [
            (Head("kind", left=True, repeat=True), lambda entry: entry.kind),
            (
                Head("entry", left=True, repeat=True),
                lambda entry: f"{entry.id} [{origins.index(_origin(entry)) + 1}]",
            ),
            (Head("largest case", left=True), largest_text),
            (Head("busbw", "GB/s"), busbw),
            (Head("date", left=True, drop=1), lambda entry: entry.date),
            (Head("machine", left=True, drop=2), lambda entry: entry.machine),
            (Head("network", left=True, drop=3), lambda entry: entry.network),
            (Head("versions", left=True, drop=4), lambda entry: entry.versions),
        ],
        entries,
        below=[
            *(f"[{number}] {origin}" for number, origin in enumerate(origins, 1)),
            "full address, note, plausibility and command of an entry: torchcoll again ENTRY "
            "--dry-run; all addresses: --format json",
            _CAVEAT,
        ],
    )
    grid.answer = Answer(f"{counted(len(entries), 'published run')} of {kinds} kinds of machine")
    return grid


def _origin(publication: published.Publication) -> str:
    """Who published it, and in which repository: whole addresses are too long for a table."""
    address = publication.source.removeprefix("https://")
    return f"{publication.who}, {'/'.join(address.split('/')[:3])}"

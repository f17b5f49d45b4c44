"""The sections of a page with the charts of one question each."""

from __future__ import annotations

import io
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torchcoll.core.errors import one_line
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import Run
from torchcoll.questions.page.page_draft import Drawing, PageDraft, named
from torchcoll.questions.pairs.matches import read_pairs
from torchcoll.questions.show.show import further_grids, title_of
from torchcoll.report.chart import plain
from torchcoll.report.grid import Grid
from torchcoll.report.header import case_text
from torchcoll.report.ranks_view import slow_rank
from torchcoll.stats.sides import Side

if TYPE_CHECKING:
    from torchcoll.questions.comparison.compare import Comparison
    from torchcoll.report.chart import Chart

_LINES = 16  # of one panel; more tell nothing apart


def add_curves(document: PageDraft, compared: Sequence[Comparison]) -> None:
    from torchcoll.questions.show.plot import limits_of
    from torchcoll.questions.show.size_charts import (
        bandwidth_map,
        check_lines,
        curves_charts,
        picture_charts,
        picture_of,
    )

    sides = [Side("", document.plain)]
    if compared and not compared[0].base.only:
        sides = [compared[0].base, *(comparison.new for comparison in compared)]

    def make() -> None:
        picture = picture_of(sides)
        check_lines(picture, _LINES)
        limits = limits_of(document.plain, document.fabric)
        title = "Time and bandwidth over sizes"
        # Runs of several machines have no limit in common.
        alike = all(limits_of([run], document.fabric) == limits for run in document.plain)
        shared = limits if alike else []
        overview = None if compared else bandwidth_map(picture, document.keys, shared)
        maps = [overview] if overview else []
        if document.inline:
            curves = curves_charts(picture, limits=limits, keys=document.keys)
        else:
            curves = picture_charts(picture, limits=limits)
        drawings = [
            Drawing("Bus bandwidth of each collective and size", lambda: maps),
            Drawing(title, lambda: curves, "collective"),
        ]
        document.add(title, [], document.command("plot"), drawings)

    document.tried("time over sizes", make)
    if not compared or compared[0].base.only:
        document.add_of_parts("sizes")


def add_calls(document: PageDraft) -> None:
    from torchcoll.questions.page.charts import calls_chart, chosen, ranks_chart

    runs = document.plain
    run = next((result for result in runs if chosen(result)), None)
    if run is None:
        return
    which = f", of {title_of(run)}" if len(runs) > 1 and not document.inline else ""

    def rank_maps() -> list[Chart]:
        mapped = runs[:_MAPS] if document.inline else [run]
        maps = [(name, ranks_chart(run, document.keys)) for name, run in named(mapped)]
        charts = [replace(chart, title=name) for name, chart in maps if chart]
        if charts and document.inline and len(runs) > _MAPS:
            charts[0].caption.append(f"of the first {_MAPS} of {len(runs)} runs")
        return charts

    drawings = [
        Drawing(
            f"Time of each call, in order{which}",
            lambda: (
                _calls_charts(document)
                if document.inline
                else [calls_chart(run, result, most_ranks=None) for result in chosen(run)]
            ),
            "case",
        ),
        Drawing(
            "Median time of each rank in each case, over the median of all other ranks" + which,
            rank_maps,
            "run",
        ),
    ]
    slow = [answer for each in runs[:_MAPS] if (answer := slow_rank(each))]
    counts = Counter(answer.worst for answer in slow)
    grids = []
    for rank, count in counts.most_common(1):
        if 2 * count > len(runs):
            answer = next(each for each in slow if each.worst == rank)
            before = f"in {count} of {len(runs)} runs " if len(runs) > 1 else ""
            grids.append(Grid([], [], answer=replace(answer, before=before)))
            drawings.reverse()
    command = f"torchcoll show --view calls {shlex.quote(str(run.path))}" if run.path else ""
    document.add("Calls and ranks", grids, command, drawings)


_MAPS = 40  # runs whose ranks have a map
_CALL_CASES = 500  # cases whose calls are in the page
_CALL_POINTS = 120_000  # calls in the page, about 2 MB


def _calls_charts(document: PageDraft) -> list[Chart]:
    """The calls of as many cases as a page can hold; of many runs the smallest, a middle and the
    largest size.
    """
    from torchcoll.questions.page.charts import calls_chart, chosen, sampled
    from torchcoll.report.chart import MOST_POINTS

    every = [(run, result) for run in document.plain for result in sampled(run)]
    shown = every
    if len(every) > _CALL_CASES:
        shown = [(run, result) for run in document.plain for result in chosen(run)][:_CALL_CASES]
    most = len(shown)
    ranks = 8 if most <= 40 else 4 if most <= 100 else 2 if most <= 200 else 0
    points = max(100, min(MOST_POINTS, _CALL_POINTS // (len(shown) * (1 + ranks))))
    names = {id(run): name for name, run in named(document.plain)}
    charts = []
    for run, result in shown:
        chart = calls_chart(run, result, document.keys[id(result)], points, ranks)
        backends = {r.case.backend for r in run.results}
        backend = f", {one_line(result.case.backend)}" if len(backends) > 1 else ""
        of_run = f", {names[id(run)]}" if len(document.plain) > 1 else ""
        charts.append(replace(chart, title=plain(f"{case_text(result.case)}{backend}{of_run}")))
        if len(shown) < len(every):
            chart.caption.append(f"{len(shown)} of the {len(every)} cases are in this page")
    return charts


def add_pairs(document: PageDraft, run: Run) -> None:
    from torchcoll.questions.pairs.pairs_charts import pairs_charts
    from torchcoll.questions.pairs.show import pairs_grids
    from torchcoll.questions.pairs.suspects import find_suspects
    from torchcoll.report.destination import Destination

    pairs = read_pairs(run)
    assert pairs is not None
    slow = find_suspects(pairs, pairs.threshold)
    out = Destination(io.StringIO())
    grids = pairs_grids(run, pairs, out, slow, pairs.threshold, "page")
    drawing = Drawing(
        "Each pair: row and column are its two ends",
        lambda: pairs_charts(pairs),
        "call",
    )
    document.add("Who is slow", grids, document.command("show"), [drawing])


def add_first_calls(document: PageDraft) -> None:
    from torchcoll.questions.startup.cold import cold
    from torchcoll.questions.startup.cold_charts import cold_charts, start_charts
    from torchcoll.questions.startup.show import cold_grids

    def make() -> None:
        finding = cold(document.plain)
        several = len({scale.ranks for scale in finding.scales}) > 1
        runs = document.inline and len(finding.rows) > 1
        drawings = [
            Drawing("Where the start goes", lambda: start_charts(finding)),
            Drawing(
                f"First calls {'over the number of ranks' if several else 'of each run'}",
                lambda: cold_charts(finding) if several or runs else [],
                "kind of run",
            ),
        ]
        command = document.command("cold")
        document.add("What the first call costs", cold_grids(finding), command, drawings)

    document.tried("first calls", make)


def add_further(document: PageDraft, run: Run) -> None:
    """What ran beside it, and hours of it."""
    grids = further_grids(run)
    if not grids:
        return
    drawings = []
    if run.windows:
        from torchcoll.questions.contention.show import soak_chart
        from torchcoll.questions.contention.soaked import soaked

        if soak := soaked(run):
            document.answers.append(soak.answer)
            drawings.append(Drawing("Hours of the same cases", lambda: [soak_chart(soak, run)]))
    title = "Hours of it" if run.windows else "Beside other work"
    several = f": {title_of(run)}" if len(document.material.runs) > 1 else ""
    document.add(f"{title}{several}", grids, document.command("show"), drawings)


def add_published(document: PageDraft) -> None:
    """What others publish of the kinds of machine of these runs, a table for the best of each."""
    from torchcoll.questions.check.published import standings
    from torchcoll.questions.check.published_show import published_grid

    kinds: dict[str, list[tuple[float, str, Run]]] = {}
    for name, run in named(document.plain):
        if standing := standings(run, summarise_run(run)):
            item = standing[0].row.busbw_gbps or 0.0, one_line(name), run
            kinds.setdefault(standing[0].published[0][0].kind, []).append(item)
    grids = []
    for runs in kinds.values():
        _, name, run = max(runs, key=lambda item: item[0])
        grid = published_grid(run, name if len(runs) > 1 else "this run")
        grids += [grid] if grid else []
    document.answers += [grid.answer for grid in grids if grid.answer]
    if grids:
        grids = [replace(grid, answer=None) for grid in grids]
        document.add("What others publish", grids, document.command("show --published"))

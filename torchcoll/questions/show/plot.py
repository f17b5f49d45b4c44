"""``torchcoll.plot``: a picture of runs, files or a finding."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchcoll.core.display import Displayed
from torchcoll.core.errors import UsageError, choice, tell
from torchcoll.core.plausibility import device_of, summarise_run
from torchcoll.core.result import Run
from torchcoll.core.summary import OVER_RANKS, Row
from torchcoll.questions.check.measured_show import measured_answer
from torchcoll.questions.show.size_charts import check_lines, picture_charts, picture_of
from torchcoll.report.chart_matplotlib import write_charts
from torchcoll.report.destination import free_name
from torchcoll.report.pictures import WrittenPicture, check_path
from torchcoll.report.shown import shown

if TYPE_CHECKING:
    from torchcoll.questions.check.rules import Limit
    from torchcoll.reading.inputs import Source
    from torchcoll.stats.sides import Side

_MOST_LINES = 48  # of one panel: more names than fit beside it


def plot(
    what: Source | Displayed | Mapping[str, Source | Sequence[Source]],
    path: str | os.PathLike[str] | None = None,
    *,
    over_ranks: str = "max",
    filter: str = "",
    fabric: str | None = None,
) -> WrittenPicture:
    """Draw to ``path`` (.png, .svg, .pdf; a file that is there is replaced); what is given back
    shows itself in a notebook. None: ``torchcoll.png``, or ``torchcoll-2.png``, ... where that is
    there.

    what: a Run, a file, a folder or a glob; several by name, each a side with lines of its own; or
    what ``cold`` (first calls over ranks), ``transitions`` (laws and transitions) or ``scaling``
    (time and speed-up over ranks) found. Runs and files: time and busbw over sizes, a row for each
    collective, a line for what differs in nothing but the size; runs of one side are pooled
    (geometric mean of their medians). over_ranks: max, mean, min, rank0. filter: as of ``compare``.
    fabric: whose limits are drawn; by default those of the fabric that the run is known to be of.

    Raises UnavailableError without matplotlib, UsageError for choices that do not exist and where
    there is nothing to draw, UnreadableError for a file.
    """
    from torchcoll.stats.sides import named_side

    path = free_name("torchcoll.png") if path is None else path
    check_path(path)
    choice(over_ranks, "over-ranks", OVER_RANKS)
    if not isinstance(what, Run) and (how := shown(what)) and how.charts and how.plotted:
        over = "" if over_ranks == "max" else over_ranks
        reported = {"over-ranks": over, "filter": filter, "fabric": fabric}
        for name, value in reported.items():
            if value:
                raise UsageError(name, value, "runs or files with it, not what was found in them")
        charts = how.charts(what)
        if not charts:  # what was found over ranks
            starts = getattr(what, "starts", None)  # of scaling, which draws no first calls
            action = "First calls: torchcoll cold FILE ... --plot FILE." if starts else ""
            expected = "at least one, of 2 ranks or more"
            raise UsageError("picture", "no case with several numbers of ranks", expected, action)
        answer = how.answer(what) if how.answer else getattr(what, "answer", None)
        return write_charts(charts, path, answer.lines[0] if answer else "")
    named: Mapping[str, Any] = what if isinstance(what, Mapping) else {"": what}
    sides = [named_side(name, sources) for name, sources in named.items()]
    picture = picture_of(sides, over_ranks, filter)
    check_lines(picture, _MOST_LINES)
    limits = limits_of([part for side in sides for part in side.parts], fabric)
    rows = [row for lines in picture.panels.values() for line in lines for row in line.rows]
    measured = measured_answer(rows)
    title = measured.headline + _limit_text(rows, limits) if measured else ""
    if len(sides) == 2:
        title = _compared(sides, over_ranks, filter) or title
    written = write_charts(picture_charts(picture, over_ranks, limits), path, title)
    return replace(written, text=title)


def _limit_text(rows: Sequence[Row], limits: Sequence[tuple[str, Limit]]) -> str:
    """How much the best busbw of the only collective is of each limit that holds for it."""
    right = [row for row in rows if row.is_right and row.busbw_gbps]
    if len({row.collective for row in right}) != 1:
        return ""
    best = max(right, key=lambda row: row.busbw_gbps or 0.0)
    shares = [
        f"{100 * (best.busbw_gbps or 0.0) / limit.busbw_gbps:.3g} % of the {limit.algorithm} limit"
        for _, limit in sorted(limits, key=lambda named: named[1].busbw_gbps)
        if limit.holds(best)
    ]
    return f": {' and '.join(shares)}" if shares else ""


def _compared(sides: Sequence[Side], over_ranks: str, filter: str) -> str:
    """What ``compare`` answers of the second side against the first; '' if they share no case."""
    from torchcoll.questions.comparison.compare import compare

    try:
        return compare(*sides, over_ranks=over_ranks, filter=filter).answer.headline
    except UsageError:
        return ""


def draw_finding(finding: Displayed, options: argparse.Namespace) -> None:
    """Writes the picture that ``--plot`` asks for."""
    if options.plot:
        plot(finding, options.plot)
        tell(f"torchcoll: picture: {options.plot}")


def limits_of(runs: Sequence[Run], fabric_name: str | None) -> list[tuple[str, Limit]]:
    """(name of the fabric, limit) of the runs whose fabric is stated or recognised, once each."""
    from torchcoll.questions.check.limits import by_names, fabric_of
    from torchcoll.questions.check.rules import capped

    limits: dict[str, tuple[str, Limit]] = {}
    for run in runs:
        fabric = fabric_of(run, fabric_name) or by_names(run)
        if fabric is None:
            continue
        rows = [row for row in summarise_run(run) if fabric.connects(row)]
        for limit in fabric.limits:
            # At whatever size: the line says how far there is to go.
            reached = (replace(row, size_bytes=limit.least(row.ranks)) for row in rows)
            if any(map(limit.holds, reached)):
                busbw, source = capped(limit, device_of(run) if fabric.several_hosts else None)
                named_limit = fabric.name, replace(limit, busbw_gbps=busbw, source=source)
                limits[repr(named_limit)] = named_limit
    return list(limits.values())

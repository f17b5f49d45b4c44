"""The public name ``plot``: runs, result files, what ``cold`` or ``transitions`` found."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import UsageError
from torchcoll.core.hardware import device_of
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import Run
from torchcoll.core.summary import OVER_RANKS
from torchcoll.report.pictures import check_path, write_figure
from torchcoll.report.view import choice

if TYPE_CHECKING:
    from torchcoll.analysis.cold import Cold
    from torchcoll.analysis.sides import Source
    from torchcoll.analysis.transitions import Transitions
    from torchcoll.verdict.rules import Limit


def plot(
    what: Source | Cold | Transitions | Mapping[str, Source | Sequence[Source]],
    path: str | os.PathLike[str],
    *,
    over_ranks: str = "max",
    filter: str = "",
    fabric: str | None = None,
    rules: Sequence[str | os.PathLike[str]] = (),
) -> None:
    """Draw to ``path`` (.png, .svg, .pdf; a file that is there is replaced).

    what: a Run, a file, a folder or a glob; several by name, each a side with lines of its own; or
    what ``cold`` (first calls over ranks) or ``transitions`` (laws and zones) found. Runs and
    files: time and busbw over sizes, a row for each collective, a line for what differs in nothing
    but the size; launches of one side are pooled (geometric mean of their medians). over_ranks:
    max, mean, min, rank0. filter: as of ``compare``. fabric, rules: whose limits are drawn; without
    them those of the fabric that the run is known to be of.

    Raises UnavailableError without matplotlib, UsageError for choices that do not exist and where
    there is nothing to draw, UnreadableError for a file.
    """
    from torchcoll.analysis.cold import Cold
    from torchcoll.analysis.lines import picture_of
    from torchcoll.analysis.sides import side
    from torchcoll.analysis.transitions import Transitions
    from torchcoll.report.plot_cold import cold_figure
    from torchcoll.report.plot_lines import lines_figure
    from torchcoll.report.plot_regimes import regimes_figure

    check_path(path)
    choice(over_ranks, "over-ranks", OVER_RANKS)
    if isinstance(what, Cold | Transitions):
        how = "" if over_ranks == "max" else over_ranks
        given = {"over-ranks": how, "filter": filter, "fabric": fabric, "rules": rules}
        for name, value in given.items():
            if value:
                raise UsageError(name, value, "runs or files beside it, not what was found in them")
        figure = cold_figure(what) if isinstance(what, Cold) else regimes_figure(what)
        write_figure(figure, path)
        return
    named: Mapping[str, Any] = what if isinstance(what, Mapping) else {"": what}
    sides = [side(name, sources) for name, sources in named.items()]
    picture = picture_of(sides, over_ranks, filter)
    limits = _limits([part for one in sides for part in one.parts], fabric, rules)
    write_figure(lines_figure(picture, over_ranks, limits), path)


def _limits(
    runs: Sequence[Run], stated: str | None, rules: Sequence[str | os.PathLike[str]]
) -> list[tuple[str, Limit]]:
    """(name of the fabric, limit) of the runs whose fabric is stated or recognised, once each."""
    from torchcoll.verdict.fabric import fabric_of
    from torchcoll.verdict.rules import capped, read_rules

    own = read_rules(rules)
    found: dict[str, tuple[str, Limit]] = {}
    for run in runs:
        fabric = fabric_of(run, stated, own)
        if fabric is None:
            continue
        rows = [row for row in summarise_run(run) if fabric.connects(row)]
        for limit in fabric.limits:
            # At whatever size: the line says how far there is to go.
            reached = (replace(row, nbytes=limit.least(row.ranks)) for row in rows)
            if any(map(limit.holds, reached)):
                busbw, source = capped(limit, device_of(run) if fabric.several_hosts else None)
                known = fabric.name, replace(limit, busbw_gbps=busbw, source=source)
                found[repr(known)] = known
    return list(found.values())

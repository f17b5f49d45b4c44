"""The nights of a fleet on a page, and as a picture: what is slow, and since when."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

import numpy as np

from torchcoll.core.units import counted
from torchcoll.parts.fleet.address import parse_address
from torchcoll.parts.fleet.change_text import slower
from torchcoll.parts.fleet.incident import WRONG, Incident
from torchcoll.parts.fleet.nightly import NightFinding, NightRequest, judge_night
from torchcoll.parts.fleet.nightly_show import answer_of, night_grid, power_text
from torchcoll.parts.fleet.series import format_night
from torchcoll.report.chart import PALETTE, Chart, heat_map, plain

if TYPE_CHECKING:
    from torchcoll.questions.page.page_draft import PageDraft

_MOST_NIGHTS, _BEFORE = 60, 7
_SLOWER = ("#f6c6a3", PALETTE[1])  # orange, as what is slower in a comparison


def night_charts(finding: NightFinding) -> list[Chart]:
    """A row for each open incident and a column for each night, coloured while it is slow. What is
    below the detectable size has no colour. [] without an incident.
    """
    incidents = finding.open
    if not incidents:
        return []
    first = min(each.levels[0].night for each in incidents) - _BEFORE
    nights = range(max(first, finding.night - _MOST_NIGHTS + 1), finding.night + 1)
    values = [[_slower_percent(each, night) for night in nights] for each in incidents]
    drawn = heat_map(
        plain(answer_of(finding).headline),
        np.array(values),
        [format_night(night)[5:] for night in nights],
        list(map(_name, incidents)),
        "slower, %",
        "%{y}, night of %{x}: %{z:.1f} % slower<extra></extra>",
        _SLOWER,
    )
    largest = max(_slower_percent(each, finding.night) for each in incidents)
    drawn.traces[0] |= {"zmin": 0, "zmax": max(largest, 1.0), "xgap": 1, "ygap": 3}
    drawn.layout["xaxis"] |= {"type": "category", "nticks": 10}
    drawn.layout["height"] = 190 + 36 * len(incidents)
    drawn.caption = [f"orange: slow in that night; {power_text(finding)}"]
    return [drawn]


def _slower_percent(incident: Incident, night: int) -> float:
    """NaN before the incident, and while it was closed."""
    levels = [level.effect for level in incident.levels if level.night <= night]
    if incident.kind == WRONG:
        return 0.0 if levels else math.nan
    return 100 * math.expm1(levels[-1]) if levels and levels[-1] else math.nan


def _name(incident: Incident) -> str:
    several = f" ({counted(len(incident.nodes), 'node')})" if len(incident.nodes) > 1 else ""
    what = "wrong results" if incident.kind == WRONG else slower(incident.effect)
    since = format_night(incident.levels[0].night)
    return f"{plain(incident.subject or 'fleet')}{several}<br>{what} since {since}"


def add_nights(draft: PageDraft) -> None:
    """Adds the section of a store: the last night."""
    from torchcoll.questions.page.page_draft import Drawing

    if not draft.stores:
        return
    finding = judge_night(draft.stores, NightRequest(last=True))
    draft.title = f"{counted(len(finding.nodes), 'node')}, {counted(finding.nights, 'night')}"
    command = f"torchcoll nightly {shlex.quote(parse_address(draft.stores[0]).name)} --night last"
    drawings = [Drawing("What is slow, and since when", lambda: night_charts(finding))]
    draft.add("The last night", [night_grid(finding)], command, drawings)
    draft.answers[-1] = answer_of(finding)

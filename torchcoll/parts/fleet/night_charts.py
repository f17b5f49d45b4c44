"""The nights of a fleet on a page, and as a picture: what is slow, and since when."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

import numpy as np

from torchcoll.core.units import counted
from torchcoll.parts.fleet.address import parse_address
from torchcoll.parts.fleet.change_text import slower
from torchcoll.parts.fleet.incident import CLOSED, WRONG, Incident
from torchcoll.parts.fleet.nightly import NightFinding, NightRequest, judge_night
from torchcoll.parts.fleet.nightly_show import answer_of, night_grid, power_text
from torchcoll.parts.fleet.series import format_night
from torchcoll.report.chart import PALETTE, Chart, heat_map, plain

if TYPE_CHECKING:
    from torchcoll.questions.page.page_draft import PageDraft

_MOST_NIGHTS, _BEFORE, _MOST_RECOVERED = 60, 7, 8
_SLOWER = ("#f6c6a3", PALETTE[1])  # orange, as what is slower in a comparison


def night_charts(finding: NightFinding) -> list[Chart]:
    """A row for each open incident, and for those that ended in the nights shown, and a column for
    each night, coloured while it is slow. What is below the detectable size has no colour. []
    without an incident.
    """
    incidents = finding.open + _recovered(finding)
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
    largest = np.nanmax([[1.0] * len(nights), *values])
    drawn.traces[0] |= {"zmin": 0, "zmax": float(largest), "xgap": 1, "ygap": 3}
    drawn.layout["xaxis"] |= {"type": "category", "nticks": 10}
    drawn.layout["height"] = 190 + 36 * len(incidents)
    drawn.caption = [
        f"orange: slow in that night; {power_text(finding)}",
        f"nights {format_night(nights[0])} to {format_night(nights[-1])} of {finding.nights}; "
        "blank: as usual, or no run",
    ]
    return [drawn]


def _recovered(finding: NightFinding) -> list[Incident]:
    """Incidents that ended within the nights of a picture, the last first."""
    ended = {
        each: each.ended
        for model in finding.models
        for each in model.incidents
        if each.state == CLOSED and each.ended and each.ended > finding.night - _MOST_NIGHTS
    }
    return sorted(ended, key=ended.__getitem__, reverse=True)[:_MOST_RECOVERED]


def _slower_percent(incident: Incident, night: int) -> float:
    """NaN before the incident, and while it was closed."""
    levels = [level.effect for level in incident.levels if level.night <= night]
    if incident.ended is not None and night >= incident.ended:
        return math.nan
    if incident.kind == WRONG:
        return 0.0 if levels else math.nan
    return 100 * math.expm1(levels[-1]) if levels and levels[-1] else math.nan


def _name(incident: Incident) -> str:
    several = f" ({counted(len(incident.nodes), 'node')})" if len(incident.nodes) > 1 else ""
    what = "wrong results" if incident.kind == WRONG else slower(incident.effect)
    first = format_night(incident.levels[0].night)
    when = f"since {first}"
    if incident.ended is not None:
        effect = max(level.effect for level in incident.levels)
        what = what if incident.kind == WRONG else slower(effect)
        when = f"from {first[5:]} to {format_night(incident.ended - 1)[5:]}"
    return f"{plain(incident.subject or 'fleet')}{several}<br>{what} {when}"


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

"""How the finding of ``torchcoll history`` is displayed: one sentence, then the incidents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TextIO

from torchcoll.core.answer import Answer
from torchcoll.core.errors import one_line
from torchcoll.core.units import (
    counted,
    plural,
    shorten,
)
from torchcoll.parts.fleet.changes_over_time import Incident, PanelHistory, format_count
from torchcoll.parts.fleet.fleet_show import TIME_LEGEND, percent, slower
from torchcoll.report.formats import Forms, print_results
from torchcoll.report.grid import Grid, Head

_NAMED = 3
_ROWS = 15  # incidents in the table without --all


def _change_text(incident: Incident) -> str:
    """What coincides with an incident. A coincidence in time is no proof of a cause."""
    if not incident.changed:
        return "nothing recorded changed that night"
    changed = shorten(list(map(one_line, incident.changed)), 4)
    if len(incident.changed) == 1:
        return f"coincides with {changed}; nothing else recorded changed"
    return f"coincides with {changed}, which changed together and cannot be told apart"


def _who(incident: Incident, history: PanelHistory) -> str:
    count = len(history.panel.nodes)
    if incident.scope == "fleet":
        return format_count(count, count)
    if incident.scope == "group":
        return f"{one_line(incident.group)} ({counted(len(incident.nodes), 'node')})"
    if incident.scope == "staged":
        return format_count(len(incident.nodes), count)
    return one_line(incident.nodes[0])


def _what(incident: Incident) -> str:
    """Which cases, where not all of them."""
    if not incident.of_cases or len(incident.cases) in (0, incident.of_cases):
        return ""
    return f" in {shorten(incident.cases, _NAMED, ' and {} more cases')}"


def incident_text(incident: Incident, history: PanelHistory) -> str:
    """The incident as one sentence."""
    who = _who(incident, history)
    interval = f"{percent(incident.low)} to {percent(incident.high)}"
    if incident.low < 0:
        interval = f"up to {percent(incident.high)}"
    if incident.scope == "staged":
        when = f"from {incident.began}"
        if incident.detected != incident.began:
            when += f" to {incident.detected}"
        changed = ", ".join(map(one_line, incident.changed[:3]))
        together = ", which changed together" * (len(incident.changed) > 1)
        return (
            f"{who} changed {changed}{together}, {when}, and are {slower(incident.effect)} "
            f"({interval}) than the nodes that had not changed yet"
        )
    verb = "are" if who.endswith("nodes") and incident.scope == "fleet" else "is"
    if incident.kind == "spread":
        times = math.exp(incident.effect)
        return f"{who} scatters {times:.1f} times as much as before since {incident.began}"
    if incident.kind == "flapping":
        return (
            f"{who} was slow {incident.openings} times since {incident.began}, by up to "
            f"{percent(incident.effect)}, and recovered in between"
        )
    text = f"{who} {verb} {slower(incident.effect)} ({interval}){_what(incident)}"
    if incident.kind == "drift":
        text = f"{who} {verb} getting slower: by {percent(incident.effect)} on average"
        text += f"{_what(incident)} since about {incident.began}"
    elif incident.kind in ("one night", "two nights"):
        text = text.replace(f"{who} {verb} ", f"{who} {'were' if verb == 'are' else 'was'} ", 1)
        text += f" in {'the night' if incident.kind == 'one night' else 'two nights'} of "
        text += incident.began
    elif incident.ended:
        text = text.replace(f"{who} {verb} ", f"{who} {'were' if verb == 'are' else 'was'} ", 1)
        text += f" from {incident.began} to {incident.ended}"
    else:
        text += f" since {incident.began}"
    return f"{text}; {_change_text(incident)}"


def answer_of(history: PanelHistory) -> Answer:
    """The incidents, those that last first; of a steady fleet what would have been found."""
    panel = history.panel
    what = f"{counted(len(panel.nodes), 'node')}, {counted(len(panel.log_times), 'night')}"
    lasting = [item for item in history.incidents if not item.ended]
    over = [item for item in history.incidents if item.ended]
    counts = {
        "nodes": len(panel.nodes),
        "nights": len(panel.log_times),
        "open": len(lasting),
        "over": len(over),
    }
    worst = tuple(dict.fromkeys(_who(item, history) for item in lasting or over))
    shown = (lasting or over)[:_NAMED]
    if shown:
        texts = [incident_text(item, history) for item in shown]
        left = len(history.incidents) - len(shown)
        if left:
            texts.append(f"{counted(left, 'more incident')}")
        return Answer(". ".join(texts), "bad" if lasting else "doubt", counts=counts, worst=worst)
    if not history.judged:
        most = int(panel.present.sum(axis=0).max(initial=0))
        missing = max(1, 6 - most)
        return Answer(
            f"{what}: too few to judge, at least {counted(missing, 'more night')} "
            f"{plural(missing, 'is', 'are')} needed",
            "",
            counts=counts,
        )
    return Answer(
        f"No change found: {what}, {history.judged} of them judged (a node that became "
        f"{percent(history.detectable)} slower for a week would have been found)",
        "good",
        counts=counts,
    )


def incident_rows(history: PanelHistory) -> list[dict[str, Any]]:
    return [
        {
            "scope": item.scope,
            "kind": item.kind,
            "nodes": list(item.nodes) or list(history.panel.nodes),
            "group": item.group,
            "began": item.began,
            "detected": item.detected,
            "ended": item.ended or None,
            "slower_percent": None
            if item.kind == "spread"
            else round(100 * math.expm1(item.effect), 3),
            "low_percent": round(100 * math.expm1(item.low), 3),
            "high_percent": round(100 * math.expm1(item.high), 3),
            "cases": list(item.cases),
            "of_cases": item.of_cases,
            "changed": list(item.changed),
            "openings": item.openings,
            "device_name": history.panel.device_name,
            "ranks": history.panel.ranks,
        }
        for item in history.incidents
    ]


def history_grid(history: PanelHistory, whole: bool) -> Grid:
    shown = history.incidents if whole else history.incidents[:_ROWS]
    rows = []
    for item in shown:
        size = (
            f"x{math.exp(item.effect):.1f}"
            if item.kind == "spread"
            else (f"{100 * math.expm1(item.effect):+.1f} %")
        )
        cases = "-" if item.scope == "staged" else f"{len(item.cases)} of {item.of_cases}"
        rows.append(
            [
                item.began,
                item.ended or "open",
                _who(item, history),
                item.kind,
                size,
                cases,
                ", ".join(map(one_line, item.changed[:_NAMED])) or "-",
            ]
        )
    panel = history.panel
    above = [
        f"{one_line(panel.device_name) or 'device not recorded'}, {counted(panel.ranks, 'rank')}: "
        f"{counted(len(panel.nodes), 'node')}, {counted(len(panel.keys), 'case')}, "
        f"{counted(len(panel.log_times), 'night')} (UTC)"
    ]
    below = []
    if any(item.kind != "spread" for item in shown):
        below.append(TIME_LEGEND)
    if len(shown) < len(history.incidents):
        left = len(history.incidents) - len(shown)
        below.append(f"{left} more {plural(left, 'incident')}: --all")
    if history.missing_nights:
        names = shorten(history.missing_nights, 5)
        below.append(f"{counted(len(history.missing_nights), 'night')} without any run: {names}")
    if history.gone:
        names = shorten([f"{one_line(node)} (last on {date})" for node, date in history.gone], 5)
        below.append(f"no run in the last night: {names}")
    if history.too_short and history.judged:
        names = shorten([one_line(node) for node in history.too_short], 5)
        below.append(f"not judged, fewer than 5 earlier nights: {names}")
    heads = [
        Head("since", left=True, repeat=True),
        Head("until", left=True, drop=2),
        Head("where", left=True, repeat=True),
        Head("kind", left=True, drop=1),
        Head("time", "change"),
        Head("cases", drop=3),
        Head("changed that night", left=True, drop=1),
    ]
    return Grid(heads, rows, above=above, below=below, answer=answer_of(history))


def show_history(
    histories: Sequence[PanelHistory], format: str, whole: bool = False, file: TextIO | None = None
) -> None:
    """Prints them as table, markdown, csv or json. Raises UsageError for another format."""
    forms = [
        Forms([history_grid(history, whole)], {"rows": incident_rows(history)})
        for history in histories
    ]
    print_results(forms, format, file)

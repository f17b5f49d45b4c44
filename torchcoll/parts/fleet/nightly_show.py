"""How ``torchcoll nightly`` displays a night: one sentence for the ticket, what is wrong, the
commands that drain a node, JUnit.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from datetime import date, timedelta
from typing import Any, TextIO

import numpy as np

from torchcoll.core.answer import CANNOT_TELL, CERTAIN, Answer
from torchcoll.core.errors import one_line, printable
from torchcoll.core.units import counted, shorten, shorten_list
from torchcoll.parts.fleet.change_text import TIME_LEGEND, machine_text, percent, slower
from torchcoll.parts.fleet.fleet_model import FleetModel
from torchcoll.parts.fleet.fleet_state import FEWEST_NIGHTS, NIGHTS
from torchcoll.parts.fleet.incident import WRONG, Incident
from torchcoll.parts.fleet.nightly import Drain, NightFinding
from torchcoll.parts.fleet.noise import quiet_median
from torchcoll.parts.fleet.series import format_night
from torchcoll.report.formats import Forms, print_results
from torchcoll.report.grid import Grid, Head
from torchcoll.report.junit import JunitTest, junit_document

_NAMED = 3
_LINES = 8  # incidents, each on a line
_ROWS = 20  # of the table
_WHY_NIGHTS = 14


def night_text(night: int) -> str:
    """``the night of 22/23 Nov 2026``: it begins on the first of the two days."""
    first = date.fromisoformat(format_night(night))
    last = first + timedelta(days=1)
    begin = f"{first.day}" if first.month == last.month else f"{first:%-d %b}"
    return f"the night of {begin}/{last.day} {last:%b %Y}"


def _changed(incident: Incident) -> str:
    """What coincides with an incident. A coincidence in time is no proof of a cause."""
    if not incident.changed:
        return "nothing recorded changed"
    changed = shorten(list(map(one_line, incident.changed)), _NAMED)
    if len(incident.changed) == 1:
        return f"coincides with {changed}, nothing else recorded changed"
    return f"coincides with {changed}, which changed together"


def _since(incident: Incident) -> str:
    """``since the night of 22/23 Nov 2026``, and before that another level."""
    text = f"since {night_text(incident.since)}"
    if unseen := incident.levels[-1].unseen:
        text += f" or up to {counted(unseen, 'night')} before, without a run"
    opening = [level for level in incident.levels if level.night >= incident.began]
    if len(opening) > 1:
        text += f" ({percent(opening[0].effect)} from {night_text(opening[0].night)} on)"
    return text


def incident_text(incident: Incident, finding: NightFinding) -> str:
    """The incident as one line of a ticket, with what to do."""
    if incident.kind == WRONG:
        where = one_line(incident.where)
        nights = night_text(incident.seen)
        if incident.openings > 1:
            nights = f"{incident.openings} nights since {night_text(incident.began)}"
        return f"{one_line(incident.subject)}: wrong results in {where} ({nights}). Drain it"
    what = f"{slower(incident.effect)} in {incident.where} {_since(incident)}"
    if incident.scope == "fleet":
        nodes, all_nodes = len(incident.nodes), len(finding.nodes)
        for snapshot in finding.snapshots:
            all_nodes = snapshot.nodes if incident in snapshot.incidents else all_nodes
        of = counted(max(nodes, all_nodes), "node")
        who = f"All {of}" if nodes >= all_nodes else f"{nodes} of {of}"
        again = f"--accept {incident.id}"
        return f"{who}: {what}; {_changed(incident)}. Go back, or accept it ({again})"
    if incident.scope == "group":
        count = counted(len(incident.nodes), "node")
        who = f"{one_line(incident.subject)} ({count})"
        if incident.staged:
            what += ", each node from its change on"
        advice = "Look at what these nodes share; do not drain them"
        return f"{who}: {what}; {_changed(incident)}. {advice}"
    facts = []
    if incident.always:
        what = f"{slower(incident.effect)} than its peers in {incident.where} {_since(incident)}"
        facts.append("since its first night")
    elif incident.good_nights:
        facts.append(f"was as usual for {counted(incident.good_nights, 'night')}")
    if incident.openings > 1:
        number = incident.openings
        ordinal = {2: "second", 3: "third"}.get(number, f"{number}th")
        facts.append(f"the {ordinal} time since {night_text(incident.levels[0].night)}")
    facts.append(_changed(incident))
    groups = [each for each in finding.open if each.scope == "group"]
    inside = [each.subject for each in groups if incident.subject in each.nodes]
    if inside:
        facts.append(f"besides {one_line(inside[0])}")
    elif any("label=rack" in facts for model in finding.models for facts in model.facts):
        facts.append("its rack is fine")
    advice = "Drain it"
    if incident.first_calls:
        advice = "Look at how its ranks connect: network cards, name resolution, shared files"
    return f"{one_line(incident.subject)}: {what}; {'; '.join(facts)}. {advice}"


def answer_of(finding: NightFinding) -> Answer:
    """Wrong results and faults first; of a healthy fleet what would have been found."""
    texts = [incident_text(each, finding) for each in finding.open]
    texts += [
        f"{one_line(each.node)}: {one_line(each.text)}. Run it again" for each in finding.failures
    ]
    for each in finding.tonight:
        than = "than its peers " if each.by_peers else ""
        texts.append(
            f"{one_line(each.node)}: {slower(each.effect)} {than}in {each.where} tonight, for the "
            "first time. Run it again"
        )
    if finding.missing:
        shown = shorten(list(map(one_line, finding.missing)), _NAMED)
        absent = f"{counted(len(finding.missing), 'node')} without a run: {shown}"
        advice = "See whether a node is down, a job did not start, or a file was not collected"
        texts.append(f"{absent}. {advice}")
    counts = {
        "nodes": len(finding.nodes),
        "wrong": sum(each.kind == WRONG for each in finding.open),
        "slow": sum(each.kind != WRONG for each in finding.open),
        "slow tonight": len(finding.tonight),
        "failed": len(finding.failures),
        "missing": len(finding.missing),
    }
    if texts:
        worst = [each.subject or "fleet" for each in finding.open]
        worst += [each.node for each in finding.failures]
        worst += [each.node for each in finding.tonight]
        nodes = tuple(dict.fromkeys([*worst, *finding.missing]))
        if len(texts) == 1:
            return Answer(texts[0], "bad", counts, nodes)
        details = tuple(shorten_list(texts, _LINES, "{} more: see the table"))
        return Answer(_steps_text(finding), "bad", counts, nodes, details)
    if not finding.nodes:
        return Answer(
            "no node can be judged: no run is of one host alone",
            "doubt",
            counts,
            next_step="collect runs of single hosts, or find slow hosts with torchcoll pairs",
        )
    size = finding.detectable
    answer = Answer(
        "no node",
        "good",
        counts,
        details=(power_text(finding),),
        verb="is slow",
        scope=f"({counted(len(finding.nodes), 'node')}, {counted(finding.nights, 'night')})",
        certainty=CERTAIN,
        detectable=None if size is None else float(f"{math.expm1(size):.4g}"),
    )
    if finding.certain:
        return answer
    step = "measure on quieter nodes, or give more time to each case (--max-time)"
    fewest = min((each.nights for each in finding.steady), default=0)
    if fewest < FEWEST_NIGHTS:
        step = f"collect {counted(FEWEST_NIGHTS - fewest, 'more night')}"
    return replace(answer, subject="a node", level="doubt", certainty=CANNOT_TELL, next_step=step)


def _steps_text(finding: NightFinding) -> str:
    """How many nodes there are to act on: ``16 nodes: drain 1 (node007), run again 2 (...)``."""
    alone = [each for each in finding.open if each.scope == "node"]
    drained = [each.subject for each in alone if not each.first_calls]
    again = [each.node for each in finding.failures] + [each.node for each in finding.tonight]
    steps = [
        f"{step} {len({*names})} ({shorten(list(map(one_line, dict.fromkeys(names))), _NAMED)})"
        for step, names in (
            ("drain", drained),
            ("look at the first calls of", [each.subject for each in alone if each.first_calls]),
            ("run again", again),
            ("find", finding.missing),
        )
        if names
    ]
    groups = [one_line(each.subject) for each in finding.open if each.scope == "group"]
    steps += [f"look at {shorten(groups, _NAMED)}"] if groups else []
    changes = sum(each.scope == "fleet" for each in finding.open)
    steps += [f"decide on {counted(changes, 'change')} of the whole fleet"] if changes else []
    return f"{counted(len(finding.nodes), 'node')}: {', '.join(steps)}"


def power_text(finding: NightFinding) -> str:
    """What would have been found."""
    size = finding.detectable
    if size is None:
        has_usual = sum(each.has_usual for each in finding.steady)
        if not has_usual:
            return f"no node has the {FEWEST_NIGHTS} nights yet that show what is usual"
        return (
            f"{has_usual} of {counted(len(finding.nodes), 'node')} have the {FEWEST_NIGHTS} nights "
            "that show what is usual; the others are compared with their peers of tonight"
        )
    return (
        f"a node that became {percent(size)} slower in all cases would have been found within 7 "
        "nights (9 times in 10)"
    )


def _row(result: str, who: str, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"result": result, "who": who, "incident": None, "since": None}
    row |= dict.fromkeys(("slower_percent", "low_percent", "high_percent", "where", "changed"))
    return row | {"nodes": None, "reason": None} | values


def night_rows(finding: NightFinding) -> list[dict[str, Any]]:
    """One object for each incident, failure, slow and missing node."""
    rows: list[dict[str, Any]] = []
    for each in finding.open:
        about = {"incident": each.id, "where": each.where}
        who = each.subject or "fleet"
        if each.kind == WRONG:
            rows.append(_row("wrong", who, since=format_night(each.began), **about))
            continue
        rows.append(
            _row(
                "slow" if each.scope == "node" else f"slow {each.scope}",
                who,
                since=format_night(each.since),
                slower_percent=_percent(each.effect),
                low_percent=_percent(each.low),
                high_percent=_percent(each.high),
                changed=list(each.changed),
                nodes=list(each.nodes),
                **about,
            )
        )
    rows += [_row("failed", each.node, reason=each.text) for each in finding.failures]
    rows += [
        _row(
            "slow tonight",
            each.node,
            since=finding.date,
            slower_percent=_percent(each.effect),
            where=each.where,
        )
        for each in finding.tonight
    ]
    return rows + [_row("missing", node) for node in finding.missing]


def _percent(effect: float) -> float:
    return round(100 * math.expm1(effect), 3)


def night_grid(finding: NightFinding) -> Grid:
    """What is wrong."""
    rows = night_rows(finding)
    cells = []
    for row in rows[:_ROWS]:
        size = "-" if row["slower_percent"] is None else f"{row['slower_percent']:+.1f} %"
        interval = "-"
        if row["low_percent"] is not None:
            interval = f"{row['low_percent']:.1f} to {row['high_percent']:.1f} %"
        cells.append(
            [
                one_line(row["who"]),
                row["result"] + (f": {one_line(row['reason'])}" if row["reason"] else ""),
                row["since"] or "-",
                size,
                interval,
                row["where"] or "-",
                ", ".join(map(one_line, (row["changed"] or [])[:_NAMED])) or "-",
                row["incident"] or "-",
            ]
        )
    kinds = [
        f"{machine_text(each.device_name, each.ranks)}: {counted(each.nodes, 'node')}, "
        f"{counted(each.cases, 'case')}"
        for each in finding.steady
    ]
    above = ["; ".join([f"night of {finding.date} (UTC), one of {finding.nights}", *kinds])]
    below = list(finding.notes)
    if finding.accepted:
        below.insert(0, f"accepted: {', '.join(map(one_line, finding.accepted))}")
    if len(rows) > _ROWS:
        below.append(f"{counted(len(rows) - _ROWS, 'more row')}: --format json")
    if finding.bad:
        below.append(power_text(finding))
    if any(row["slower_percent"] is not None for row in rows):
        below.append(TIME_LEGEND)
    heads = [
        Head("who", left=True, repeat=True),
        Head("result", left=True, repeat=True),
        Head("since", left=True),
        Head("time", "change"),
        Head("90 %", "interval", drop=2),
        Head("in", left=True, drop=1),
        Head("changed with it", left=True, drop=3),
        Head("incident", left=True, drop=1),
    ]
    return Grid(heads, cells, above=above, below=below, answer=answer_of(finding))


def why_grids(finding: NightFinding) -> list[Grid]:
    """The last nights of each incident of a node, and of its peers."""
    return [
        _why_grid(model, incident)
        for model in finding.models
        for incident in model.incidents
        if incident.is_open and incident.kind != WRONG and incident.scope != "fleet"
    ]


def _why_grid(model: FleetModel, incident: Incident) -> Grid:
    cases = np.isin(np.arange(len(model.keys)), incident.cases)
    with np.errstate(invalid="ignore"):
        left = model.times.astype(np.float64) - model.fleet[:, None, :] - model.usual
    over = np.stack([model.over(left[:, n], cases) for n in range(len(model.names))], axis=1)
    members = np.isin(np.array(model.names), incident.nodes)
    median = quiet_median(over[:, members], axis=1)
    cells = []
    for index in range(NIGHTS - _WHY_NIGHTS, NIGHTS):
        peers = over[index, ~members]
        peers = peers[np.isfinite(peers)]
        change = "no run"
        if np.isfinite(median[index]):
            change = f"{_percent(median[index]):+.1f} %"
        of_peers = "-"
        if len(peers):
            low, high = (_percent(np.quantile(peers, share)) for share in (0.05, 0.95))
            of_peers = f"{low:+.1f} to {high:+.1f} %"
        cells.append([format_night(model.night - (NIGHTS - 1 - index)), change, of_peers])
    who = one_line(incident.subject)
    above = [
        f"{who} in {incident.where}: change of the time from the usual of each node, without "
        "what all nodes share in the night"
    ]
    heads = [Head("night", left=True, repeat=True), Head(who), Head("9 of 10", "peers")]
    return Grid(heads, cells, above=above)


def show_night(
    finding: NightFinding,
    format: str,
    why: bool = False,
    drain: Drain | None = None,
    file: TextIO | None = None,
) -> None:
    """Prints the finding as table, markdown, csv, json or as one line, and below it the commands
    of ``drain``; with csv these go to stderr. Raises UsageError for another format.
    """
    if format == "line":
        print(line_of(finding), file=file)
        return
    document: dict[str, Any] = {
        "night": finding.date or None,
        "nights": finding.nights,
        "nodes": list(finding.nodes),
        "notes": list(finding.notes),
        "rows": night_rows(finding),
    }
    if drain is not None:
        document["drain"] = {"headline": drain.headline, "commands": list(drain.commands)}
    grids = [*(why_grids(finding) if why else ()), night_grid(finding)]
    print_results([Forms(grids, document)], format, file)
    if drain is not None and format != "json":
        out = sys.stderr if format == "csv" else file
        print(*(drain.headline, *drain.commands), sep="\n", file=out)


def line_of(finding: NightFinding) -> str:
    """One line for a pager."""
    answer = answer_of(finding)
    verdict = {"good": "OK", "doubt": "CANNOT TELL", "bad": "BAD"}[answer.level]
    return printable(f"torchcoll nightly {finding.date}: {verdict}: {one_line(answer.headline)}")


def night_junit(finding: NightFinding) -> str:
    """JUnit XML with a test for each node and each incident of a group or the fleet. A test fails
    where the command exits with 1; without enough nights the nodes are skipped.
    """
    messages: dict[str, list[str]] = {}
    for row in night_rows(finding):
        change = row["slower_percent"]
        text = row["reason"] or (f"{change:+.1f} % in {row['where']}" if change is not None else "")
        text = text or row["where"] or "no run"
        messages.setdefault(row["who"], []).append(f"{row['result']}: {text}")
    healthy = ("", "") if finding.certain else ("skipped", power_text(finding))
    tests = []
    for name in dict.fromkeys([*finding.nodes, *finding.missing, *messages]):
        failure = ("failure", "; ".join(messages.get(name, ())))
        tests.append(JunitTest(name, *(failure if name in messages else healthy)))
    return junit_document([(f"torchcoll nightly {finding.date}", tests)], "torchcoll.nightly")

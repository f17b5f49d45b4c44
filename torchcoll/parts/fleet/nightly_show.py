"""How ``torchcoll nightly`` displays a night: one sentence for the ticket, what is wrong, the
commands that drain a node, JUnit.
"""

from __future__ import annotations

import math
import sys
from datetime import date, timedelta
from typing import Any, TextIO

import numpy as np

from torchcoll.core.answer import CANNOT_TELL, CERTAIN, Answer
from torchcoll.core.errors import one_line, printable
from torchcoll.core.units import counted, shorten, shorten_list
from torchcoll.parts.fleet.change_text import TIME_LEGEND, percent, slower
from torchcoll.parts.fleet.fleet_model import FleetModel
from torchcoll.parts.fleet.fleet_state import FEWEST_NIGHTS, NIGHTS
from torchcoll.parts.fleet.incident import WRONG, Incident
from torchcoll.parts.fleet.nightly import Drain, NightFinding
from torchcoll.parts.fleet.noise import quiet_median
from torchcoll.parts.fleet.series import format_night
from torchcoll.parts.fleet.snapshot import Snapshot
from torchcoll.report.formats import Forms, print_results
from torchcoll.report.grid import Grid, Head
from torchcoll.report.junit import JunitTest, junit_document

_NAMED = 3
_ROWS = 20  # of the table
_WHY_NIGHTS = 14
_EPOCH = date(1970, 1, 1)


def day(night: int) -> str:
    """``31 Oct 2026``."""
    when = _EPOCH + timedelta(days=int(night))
    return f"{when.day} {when.strftime('%b %Y')}"


def _changed(incident: Incident) -> str:
    """What coincides with an incident. A coincidence in time is no proof of a cause."""
    if not incident.changed:
        return "nothing recorded changed"
    changed = shorten(list(map(one_line, incident.changed)), _NAMED)
    if len(incident.changed) == 1:
        return f"coincides with {changed}, nothing else recorded changed"
    return f"coincides with {changed}, which changed together"


def _since(incident: Incident) -> str:
    """``since 31 Oct 2026``, and before that another level."""
    text = f"since {day(incident.since)}"
    opening = [level for level in incident.levels if level.night >= incident.began]
    if len(opening) > 1:
        text += f" ({percent(opening[0].effect)} from {day(opening[0].night)} on)"
    return text


def incident_text(incident: Incident, finding: NightFinding) -> str:
    """The incident as one line of a ticket, with what to do."""
    if incident.kind == WRONG:
        where = one_line(incident.where)
        nights = f"night of {day(incident.seen)}"
        if incident.openings > 1:
            nights = f"{incident.openings} nights since {day(incident.began)}"
        return f"{one_line(incident.subject)}: wrong results in {where} ({nights}). Drain it"
    what = f"{slower(incident.effect)} in {incident.where} {_since(incident)}"
    if incident.scope == "fleet":
        nodes = _of_nodes(len(incident.nodes), _nodes_of(incident, finding))
        again = f"--accept {incident.id}"
        return f"{nodes}: {what}; {_changed(incident)}. Go back, or accept it ({again})"
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
        facts.append(
            f"the {_ordinal(incident.openings)} time since {day(incident.levels[0].night)}"
        )
    facts.append(_changed(incident))
    groups = [each for each in finding.open if each.scope == "group"]
    inside = [each.subject for each in groups if incident.subject in each.nodes]
    if inside:
        facts.append(f"besides {one_line(inside[0])}")
    elif _has_racks(finding):
        facts.append("its rack is fine")
    return f"{one_line(incident.subject)}: {what}; {'; '.join(facts)}. Drain it"


def _has_racks(finding: NightFinding) -> bool:
    return any("label=rack" in facts for model in finding.models for facts in model.facts)


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def _nodes_of(incident: Incident, finding: NightFinding) -> int:
    for snapshot in finding.snapshots:
        if incident in snapshot.incidents:
            return snapshot.nodes
    return len(finding.nodes)


def _of_nodes(nodes: int, of: int) -> str:
    return f"All {counted(nodes, 'node')}" if nodes >= of else f"{nodes} of {counted(of, 'node')}"


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
        texts.append(f"{counted(len(finding.missing), 'node')} without a run: {shown}")
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
        return Answer(
            ". ".join(shorten_list(texts, _NAMED, "{} more: see the table")),
            "bad",
            counts,
            tuple(dict.fromkeys([*worst, *finding.missing])),
        )
    if not finding.certain:
        fewest = min((each.nights for each in finding.snapshots), default=0)
        more = max(FEWEST_NIGHTS - fewest, 0)
        step = "measure on quieter nodes, or give more time to each case (--max-time)"
        if more:
            step = f"collect {counted(more, 'more night')}"
        return Answer(
            "a node",
            "doubt",
            counts,
            details=(power_text(finding),),
            verb="is slow",
            scope=f"({counted(len(finding.nodes), 'node')}, {counted(finding.nights, 'night')})",
            certainty=CANNOT_TELL,
            next_step=step,
            detectable=_detectable_share(finding),
        )
    return Answer(
        "no node",
        "good",
        counts,
        details=(power_text(finding),),
        verb="is slow",
        scope=f"({counted(len(finding.nodes), 'node')}, {counted(finding.nights, 'night')})",
        certainty=CERTAIN,
        detectable=_detectable_share(finding),
    )


def _detectable_share(finding: NightFinding) -> float | None:
    return None if finding.detectable is None else float(f"{math.expm1(finding.detectable):.4g}")


def power_text(finding: NightFinding) -> str:
    """What would have been found."""
    size = finding.detectable
    if size is None:
        has_usual = sum(each.has_usual for each in finding.snapshots)
        return (
            f"{has_usual} of {counted(len(finding.nodes), 'node')} have the {FEWEST_NIGHTS} nights "
            "that show what is usual; the others are compared with their peers of tonight"
        )
    return (
        f"a node that became {percent(size)} slower in all cases would have been found within 7 "
        "nights (9 times in 10)"
    )


_COLUMNS = (
    "result",
    "who",
    "incident",
    "since",
    "slower_percent",
    "low_percent",
    "high_percent",
    "where",
    "changed",
    "nodes",
    "reason",
)


def night_rows(finding: NightFinding) -> list[dict[str, Any]]:
    """One object for each incident, failure, slow and missing node."""
    empty = dict.fromkeys(_COLUMNS)
    rows: list[dict[str, Any]] = []
    for each in finding.open:
        row = {**empty, "incident": each.id, "who": each.subject or "fleet", "where": each.where}
        if each.kind == WRONG:
            rows.append(row | {"result": "wrong", "since": format_night(each.began)})
            continue
        rows.append(
            row
            | {
                "result": {"node": "slow", "group": "slow group"}.get(each.scope, "slow fleet"),
                "since": format_night(each.since),
                "slower_percent": round(100 * math.expm1(each.effect), 3),
                "low_percent": round(100 * math.expm1(each.low), 3),
                "high_percent": round(100 * math.expm1(each.high), 3),
                "changed": list(each.changed),
                "nodes": list(each.nodes),
            }
        )
    rows += [
        {**empty, "result": "failed", "who": each.node, "reason": each.text}
        for each in finding.failures
    ]
    rows += [
        {
            **empty,
            "result": "slow tonight",
            "who": each.node,
            "since": finding.date,
            "slower_percent": round(100 * math.expm1(each.effect), 3),
            "where": each.where,
        }
        for each in finding.tonight
    ]
    rows += [{**empty, "result": "missing", "who": node} for node in finding.missing]
    return rows


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
    kinds = [_kind_text(each) for each in finding.snapshots]
    above = [f"night of {finding.date} (UTC), one of {finding.nights}; {'; '.join(kinds)}"]
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


def _kind_text(snapshot: Snapshot) -> str:
    device = one_line(snapshot.device_name) or "device not recorded"
    return (
        f"{device}, {counted(snapshot.ranks, 'rank')}: {counted(snapshot.nodes, 'node')}, "
        f"{counted(snapshot.cases, 'case')}"
    )


def why_grids(finding: NightFinding) -> list[Grid]:
    """The last nights of each incident of a node, and of its peers."""
    grids = []
    for model in finding.models:
        for incident in model.incidents:
            if incident.is_open and incident.kind != WRONG and incident.scope != "fleet":
                grids.append(_why_grid(model, incident))
    return grids


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
        cells.append(
            [
                format_night(model.night - (NIGHTS - 1 - index)),
                "no run"
                if np.isnan(median[index])
                else f"{100 * math.expm1(median[index]):+.1f} %",
                "-"
                if not len(peers)
                else f"{100 * math.expm1(np.quantile(peers, 0.05)):+.1f} to "
                f"{100 * math.expm1(np.quantile(peers, 0.95)):+.1f} %",
            ]
        )
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
    skipped = ("", "") if finding.certain else ("skipped", power_text(finding))
    names = dict.fromkeys([*finding.nodes, *finding.missing, *messages])
    tests = []
    for name in names:
        results = messages.get(name)
        tests.append(
            JunitTest(name, "failure", "; ".join(results)) if results else JunitTest(name, *skipped)
        )
    return junit_document([(f"torchcoll nightly {finding.date}", tests)], "torchcoll.nightly")

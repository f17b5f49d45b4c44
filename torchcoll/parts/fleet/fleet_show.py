"""How the finding of ``torchcoll fleet`` is displayed: one sentence, the nodes, the groups, a
picture.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from torchcoll.core.answer import Answer
from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.units import (
    counted,
    format_change,
    format_difference,
    plural,
    shorten,
    shorten_list,
)
from torchcoll.parts.fleet.node_report import DrainList, FleetFinding, case_names
from torchcoll.parts.fleet.slow_nodes import FEWEST_PEERS, PeersJudged, SlowNode
from torchcoll.report.formats import Forms, print_results
from torchcoll.report.grid import Grid, Head
from torchcoll.report.junit import JunitTest, junit_document

_ROWS = 10  # nodes in the table without --all, besides those that are named
_NAMED = 3
# Sentences have the speed of what is faster. Signed columns and JSON have the change of the time.
TIME_LEGEND = "time: change of the time of a call; -20 % is 0.8 times the time, 25 % faster"
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FIELDS = re.compile(r"\{(node|reason)\}")


def percent(effect: float) -> str:
    """A difference of log times as a change of the time: ``8.0 %``, without its sign."""
    return format_difference(math.exp(effect))


def slower(effect: float) -> str:
    """A difference of log times as a change of the time: ``8.0 % slower``."""
    return format_change(math.exp(effect))


def _within(judged: PeersJudged) -> str:
    """How far the nodes that are not named differ from their median."""
    named = {item.node for item in judged.slow}
    effects = judged.effects.copy()
    for group in judged.groups:
        effects[group.members] -= group.effect
    rest = [
        effect
        for node, effect in zip(judged.peers.nodes, effects.tolist(), strict=True)
        if node not in named
    ]
    return percent(max(map(abs, rest), default=0.0))


def _node_text(item: SlowNode, peers: int) -> str:
    cases = len(item.cases)
    if item.scope:
        where = f"in {item.scope}" if cases > 1 else f"in {case_names(item.cases)[0]}"
        where += f" ({item.displaced} of {counted(cases, 'case')})" if cases > 1 else ""
    elif item.displaced == cases:
        where = f"in all {cases} cases" if cases > 1 else f"in {case_names(item.cases)[0]}"
    else:
        where = f"over {cases} cases ({item.displaced} of them displaced)"
    group = f" besides {item.group}" if item.group else ""
    return f"{one_line(item.node)} is {slower(item.effect)} than its {peers} peers{group} {where}"


def answer_of(finding: FleetFinding) -> Answer:
    """Failures first, then slow groups and nodes; of a healthy fleet how well its nodes agree."""
    texts = shorten_list(
        [f"{one_line(failure.node)}: {one_line(failure.text)}" for failure in finding.failures],
        _NAMED,
        "{} more nodes failed",
    )
    details: list[str] = []
    for judged in finding.judged:
        count = len(judged.peers.nodes)
        for group in judged.groups:
            same = f" (the same nodes: {', '.join(group.names[1:4])})" if group.names[1:] else ""
            texts.append(
                f"{one_line(group.names[0])} is {slower(group.effect)} than the other "
                f"{count - len(group.members)} nodes ({counted(len(group.members), 'node')}{same}, "
                f"p = {group.p_value:.2g})"
            )
        slow = [item for item in judged.slow if item.effect > 0]
        if len(slow) <= _NAMED:
            texts += [_node_text(item, count - 1) for item in slow]
        else:
            named = ", ".join(
                f"{one_line(item.node)} {percent(item.effect)}" for item in slow[:_NAMED]
            )
            texts.append(
                f"{len(slow)} of {count} nodes are slower than their peers: {named} and "
                f"{len(slow) - _NAMED} more"
            )
        if judged.populations:
            two = judged.populations
            texts.append(
                f"two populations: {len(two.slow)} of {count} nodes are {slower(two.effect)} than "
                f"the other {len(two.fast)}, so no single node is to blame"
                + ("" if judged.groups else "; no recorded fact separates them")
            )
        fast = [item for item in judged.slow if item.effect < 0]
        details += [_node_text(item, count - 1) for item in fast[:_NAMED]]
        if (slow or judged.groups) and not judged.populations and len(judged.slow) < count:
            rest = count - len(judged.slow)
            details.append(f"the other {counted(rest, 'node')} agree within {_within(judged)}")
    if finding.missing:
        shown = shorten(list(map(one_line, finding.missing)), _NAMED)
        texts.append(f"{counted(len(finding.missing), 'node')} without a run: {shown}")
    counts = {
        "nodes": finding.nodes,
        "failed": len({failure.node for failure in finding.failures}),
        "slow": sum(item.effect > 0 for judged in finding.judged for item in judged.slow),
        "groups": sum(len(judged.groups) for judged in finding.judged),
        "missing": len(finding.missing),
    }
    if texts:
        return Answer(
            "; ".join(texts), "bad", counts=counts, worst=finding.accused, details=tuple(details)
        )
    enough = [judged for judged in finding.judged if judged.judged]
    if not enough:
        return Answer(_ranking(finding), "", counts=counts)
    agree = [
        f"{len(judged.peers.nodes)} nodes agree within {_within(judged)} over "
        f"{counted(len(judged.peers.keys), 'case')} (a node {percent(judged.detectable)} slower "
        "would have been found)"
        for judged in enough
    ]
    return Answer(
        f"No node differs from its peers: {'; '.join(agree)}",
        "good",
        counts=counts,
        details=tuple(details),
    )


def _ranking(finding: FleetFinding) -> str:
    if not finding.judged:
        return "no node has a case that can be compared"
    judged = finding.judged[0]
    nodes = len(judged.peers.nodes)
    if nodes == 1:
        return f"{one_line(judged.peers.nodes[0])} has no peer to be compared with"
    order = np.argsort(-judged.effects)[:_NAMED].tolist()
    fastest = judged.effects.min()
    ranked = ", ".join(
        f"{one_line(judged.peers.nodes[n])} {percent(judged.effects[n] - fastest)}" for n in order
    )
    return (
        f"{nodes} nodes are too few to accuse one ({FEWEST_PEERS + 1} are needed); slowest first, "
        f"compared with the fastest: {ranked}"
    )


_NODE_COLUMNS = (
    "node",
    "result",
    "slower_percent",
    "deviation",
    "slow_cases",
    "cases",
    "worst_case",
    "worst_case_slower_percent",
    "scope",
    "group",
    "device_name",
    "ranks",
    "peers",
    "reason",
)


def node_rows(finding: FleetFinding) -> list[dict[str, Any]]:
    """One object per node: failures first, then the slowest, as JSON and the table have them."""
    failed = {failure.node: failure for failure in reversed(finding.failures)}
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    for judged in finding.judged:
        peers = judged.peers
        named = {item.node: item for item in judged.slow}
        names = case_names(peers.keys)
        least = math.log1p(finding.threshold)
        groups: dict[int, str] = {}
        for group in judged.groups:
            groups |= dict.fromkeys(group.members.tolist(), group.names[0])
        for index, node in enumerate(peers.nodes):
            seen.add(node)
            effects = judged.case_effects[index]
            present = np.flatnonzero(np.isfinite(effects))
            worst = int(present[np.argmax(effects[present])])
            item = named.get(node)
            if node in failed:
                result = failed[node].kind
            elif item:
                result = "slow" if item.effect > 0 else "fast"
            elif index in groups:
                result = "slow group"
            else:
                result = "as its peers" if judged.judged else "not judged"
            rows.append(
                {
                    "node": node,
                    "result": result,
                    "slower_percent": round(100 * math.expm1(float(judged.effects[index])), 3),
                    "deviation": round(float(judged.effects[index] / judged.spread), 2)
                    if judged.spread > 0  # not NaN, which a few nodes have
                    else None,
                    "slow_cases": int((effects[present] > least).sum()),
                    "cases": len(present),
                    "worst_case": names[worst],
                    "worst_case_slower_percent": round(100 * math.expm1(effects[worst]), 3),
                    "scope": item.scope if item else "",
                    "group": groups.get(index, ""),
                    "device_name": peers.device_name,
                    "ranks": peers.ranks,
                    "peers": len(peers.nodes) - 1,
                    "reason": failed[node].text if node in failed else "",
                }
            )
    empty = dict.fromkeys(_NODE_COLUMNS)
    rows += [
        {**empty, "node": node, "result": failure.kind, "reason": failure.text}
        for node, failure in failed.items()
        if node not in seen
    ]
    rows += [{**empty, "node": node, "result": "missing"} for node in finding.missing]
    order = {"wrong": 0, "failed": 1, "missing": 2, "slow": 3, "slow group": 4}
    return sorted(rows, key=lambda r: (order.get(r["result"], 5), -(r["slower_percent"] or 0.0)))


def fleet_grid(finding: FleetFinding, whole: bool) -> Grid:
    """The nodes: those that are named, and the slowest others; with ``whole`` all."""
    rows = node_rows(finding)
    named = [row for row in rows if row["result"] not in ("as its peers", "not judged")]
    shown = rows if whole else rows[: max(_ROWS, len(named))]

    def signed(value: float | None) -> str:
        return "-" if value is None else f"{value:+.1f} %"

    cells = [
        [
            one_line(row["node"]),
            signed(row["slower_percent"]),
            "-" if row["deviation"] is None else f"{row['deviation']:+.1f}",
            "-" if row["cases"] is None else f"{row['slow_cases']} of {row['cases']}",
            signed(row["worst_case_slower_percent"]),
            row["worst_case"] or "-",
            row["result"] + (f": {one_line(row['reason'])}" if row["reason"] else ""),
        ]
        for row in shown
    ]
    several = len(finding.judged) > 1
    sets = [
        f"{one_line(judged.peers.device_name) or 'device not recorded'}, "
        f"{counted(judged.peers.ranks, 'rank')}: {counted(len(judged.peers.nodes), 'node')}, "
        f"{counted(len(judged.peers.keys), 'case')}"
        for judged in finding.judged
    ]
    when = f"night of {finding.night} (UTC)" if finding.night else "runs without a date"
    if finding.nights > 1:
        when += f", one of {finding.nights} in the input"
    above = [f"{when}; {'peers: ' if several else ''}{'; '.join(sets)}"]
    below = [*finding.notes]
    if len(shown) < len(rows):
        below.append(
            f"{len(rows) - len(shown)} more {plural(len(rows) - len(shown), 'node')}: --all"
        )
    if any(row["slower_percent"] is not None for row in shown):
        below.append(TIME_LEGEND)
    heads = [
        Head("node", left=True),
        Head("time", "vs peers"),
        Head("std. dev.", "from peers", drop=2),
        Head("cases", "slower", drop=1),
        Head("time in", "worst case", drop=3),
        Head("worst case", left=True, drop=3),
        Head("result", left=True),
    ]
    return Grid(heads, cells, above=above, below=below, answer=answer_of(finding))


@dataclass(frozen=True)
class DrainCommands:
    """headline: one sentence. commands: a line of shell per node to drain; they are never run."""

    headline: str
    commands: tuple[str, ...]

    @classmethod
    def fill(cls, template: str, drains: DrainList) -> DrainCommands:
        """The command for each node, with ``{node}`` and ``{reason}`` quoted for a shell.

        A node whose name is no host name gets none: Slurm would take ``n[1-99]`` and ``ALL`` as
        many nodes, and names come from labels of result files.
        """
        commands = []
        refused = []
        for node, reason in drains.nodes:
            if not _HOST_NAME.fullmatch(node) or node.upper() == "ALL":
                refused.append(node)
                continue
            # One pass: what is filled in is not searched for fields again.
            parts = _FIELDS.split(template)
            values = {"node": shlex.quote(node), "reason": shlex.quote(reason)}
            parts[1::2] = [values[field] for field in parts[1::2]]
            commands.append("".join(parts))
        headline = drains.headline
        if refused:
            names = ", ".join(map(one_line, refused))
            headline += f"; no command for what is no host name: {names}"
        return cls(headline, tuple(commands))


def show_fleet(
    finding: FleetFinding,
    format: str,
    whole: bool = False,
    file: TextIO | None = None,
    drain: DrainCommands | None = None,
) -> None:
    """Prints the finding as table, markdown, csv or json. Raises UsageError for another format.

    drain: JSON has it as ``drain``; ``print_drain`` prints it in the other formats.
    """
    document: dict[str, Any] = {
        "night": finding.night or None,
        "threshold": finding.threshold,
        "groups": [
            {
                "names": list(group.names),
                "nodes": [judged.peers.nodes[n] for n in group.members.tolist()],
                "slower_percent": round(100 * math.expm1(group.effect), 3),
                "p_value": group.p_value,
            }
            for judged in finding.judged
            for group in judged.groups
        ],
        "notes": list(finding.notes),
        "rows": node_rows(finding),
    }
    if drain is not None:
        document["drain"] = {"headline": drain.headline, "commands": list(drain.commands)}
    print_results([Forms([fleet_grid(finding, whole)], document)], format, file)


def print_drain(drain: DrainCommands, format: str) -> None:
    """Prints the commands below the finding; with csv on stderr, so that stdout stays csv.

    JSON has them already.
    """
    if format == "json":
        return
    lines = [*drain.commands]
    if format == "markdown" and lines:
        lines = ["", "```bash", *lines, "```"]
    out = sys.stderr if format == "csv" else sys.stdout
    if format == "markdown":
        print(file=out)
    print(drain.headline, file=out)
    for line in lines:
        print(line, file=out)


def fleet_junit(finding: FleetFinding) -> str:
    """JUnit XML with one test per node; slow, failed and missing nodes fail."""
    tests = []
    for row in node_rows(finding):
        kind, message = "", ""
        if row["result"] in ("slow", "wrong", "failed", "missing"):
            change = row["slower_percent"]
            text = row["reason"] or (f"{change:+.1f} % slower" if change is not None else "no run")
            kind, message = "failure", f"{row['result']}: {text}"
        elif row["result"] == "not judged":
            kind, message = "skipped", "too few peers"
        tests.append(JunitTest(row["node"], kind, message))
    return junit_document([(f"torchcoll fleet {finding.night}", tests)], "torchcoll.fleet")


__all__ = [
    "DrainCommands",
    "answer_of",
    "fleet_junit",
    "node_rows",
    "print_drain",
    "show_fleet",
]


_MOST_NAMES = 60  # of nodes beside the picture: more cannot be read


def write_heatmap(finding: FleetFinding, path: str, force: bool = False) -> None:
    """Draws the largest set of peers, slowest node first, and writes it to a PNG, SVG or PDF file.

    Raises UsageError if no node has a case, and UnavailableError without matplotlib.
    """
    from torchcoll.report.pictures import check_path, new_figure, write_figure

    check_path(path, force)

    if not finding.judged:
        raise UsageError("plot", path, "nodes with cases that can be compared")
    judged = finding.judged[0]
    order = np.argsort(-judged.effects)
    change = 100 * np.expm1(judged.case_effects[order])
    names = case_names(judged.peers.keys)
    figure, ((axes,),) = new_figure(1, 1)
    figure.set_size_inches(max(7.0, 3 + 0.25 * len(names)), min(30.0, 3 + 0.16 * len(order)))
    limit = max(5.0, 100 * finding.threshold)
    image = axes.imshow(change, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    if len(order) <= _MOST_NAMES:
        nodes = [one_line(judged.peers.nodes[n]) for n in order.tolist()]
        axes.set_yticks(range(len(order)), nodes, fontsize=7)
    axes.set_ylabel(f"{len(order)} nodes, slowest first")
    axes.set_title(f"time compared with the median node, night of {finding.night or 'unknown'}")
    figure.colorbar(image, ax=axes, label="slower (%)")
    write_figure(figure, path)

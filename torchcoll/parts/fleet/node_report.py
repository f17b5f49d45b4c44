"""One night of a fleet: which nodes failed, which are slow, which are missing; and which to take
out of service, because they were slow again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchcoll.core.units import counted, format_size, shorten
from torchcoll.parts.fleet import series
from torchcoll.parts.fleet.effects import common_cases, grouped_medians
from torchcoll.parts.fleet.records import FAILED, WRONG, CaseKey
from torchcoll.parts.fleet.slow_nodes import FEWEST_PEERS, Peers, PeersJudged, judge_peers

ERROR = 0.01  # probability that a report names anything where nothing differs
_NAMED = 3
_NIGHTS_UNTIL_GONE = 30  # a node without a run for longer is taken for retired


@dataclass(frozen=True)
class NodeFailure:
    """A node whose results cannot be trusted or are missing. kind: wrong or failed."""

    node: str
    kind: str
    text: str


@dataclass(frozen=True)
class FleetFinding:
    """What one night says of a fleet.

    night: date on which it began, '' if no run says when it was made. nights: how many nights the
    input has. judged: one entry per set of peers, largest first. missing: nodes without a run that
    were expected or, without a list, had one in the 30 nights before. notes: what was left out,
    and why.
    """

    night: str
    nights: int
    nodes: int
    judged: tuple[PeersJudged, ...]
    failures: tuple[NodeFailure, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    threshold: float

    @property
    def accused(self) -> tuple[str, ...]:
        """Nodes that failed or are slow, failures first, without doubles."""
        slow = [item.node for judged in self.judged for item in judged.slow if item.effect > 0]
        return tuple(dict.fromkeys([*(failure.node for failure in self.failures), *slow]))

    @property
    def good(self) -> bool:
        """Whether nothing is to be reported."""
        displaced = any(judged.groups or judged.populations for judged in self.judged)
        return not (self.accused or self.missing or displaced)


def case_names(keys: Sequence[CaseKey]) -> list[str]:
    """A short name of each case: collective and size, and whatever else tells the cases apart."""

    def words(key: CaseKey) -> dict[str, str]:
        case = key.case.to_json()
        placed = {True: "in place", False: "out of place", None: ""}[key.case.in_place]
        named = {"in_place": placed, "ranks": f"{key.ranks} ranks", "statistic": key.statistic}
        fields = {name: str(value) for name, value in case.items() if value is not None}
        return {**fields, **named, "clock": key.clock}

    described = [words(key) for key in keys]
    hidden = ("collective", "size_bytes")
    values: dict[str, dict[str, set[str | None]]] = {}  # field -> collective -> its values
    for name in dict.fromkeys(name for item in described for name in item):
        for key, item in zip(keys, described, strict=True):
            of_collective = values.setdefault(name, {})
            of_collective.setdefault(key.case.collective, set()).add(item.get(name))
    varying = [
        name
        for name, of_collective in values.items()
        if name not in hidden and any(len(several) > 1 for several in of_collective.values())
    ]
    return [
        " ".join(
            [
                key.case.collective,
                format_size(key.case.size_bytes),
                *(item[name] for name in varying if item.get(name)),
            ]
        )
        for key, item in zip(keys, described, strict=True)
    ]


def fleet_finding(
    summaries: series.Summaries,
    threshold: float,
    night: int | None = None,
    night_start_us: int = 0,
    expected: Sequence[str] = (),
    error: float = ERROR,
    overview: series.RunOverview | None = None,
) -> FleetFinding:
    """Judges the runs of one night, by default the last one.

    night: days since 1970-01-01. expected: names of nodes that should have a run. overview: of all
    runs, where ``summaries`` has those of some nights only.
    """
    nights = series.nights_of(summaries, night_start_us)
    overview = overview or series.overview_of(summaries, night_start_us)
    latest = overview.nights[-1] if overview.nights else series.NO_NIGHT
    chosen = latest if night is None else night
    tonight = summaries.select(nights == chosen)
    notes = []
    if overview.undated and overview.nights:
        notes.append(f"{counted(overview.undated, 'run')} left out: no date is recorded")
    if overview.ahead:
        notes.append(
            f"clock of {shorten(overview.ahead, 5)}: the runs were received over 5 minutes before "
            "they began; the time of receipt is used"
        )
    names = tonight.nodes
    several_hosts = np.array([not names[n] for n in tonight.node.tolist()], dtype=bool)
    if several_hosts.any():
        notes.append(
            f"{counted(int(several_hosts.sum()), 'run')} over several hosts left out: they say "
            "nothing about a single node (torchcoll pairs does)"
        )
    tonight = tonight.select(~several_hosts)
    present = {names[n] for n in np.unique(tonight.node).tolist()}
    lately = {
        node
        for node, (first, last) in overview.nodes.items()
        if first <= chosen <= last + _NIGHTS_UNTIL_GONE
    }
    missing = sorted(({*expected} or lately) - present)
    if expected and (unexpected := sorted(present - {*expected})):
        notes.append(f"not in the list of expected nodes: {shorten(unexpected, 5)}")
    peers = []
    strata = np.unique(tonight.stratum).tolist()
    for stratum in sorted(strata, key=lambda index: tonight.strata[index]):
        more, left = _peers_of(tonight, stratum)
        peers += more
        notes += left
    peers.sort(key=lambda item: -len(item.nodes))
    judged_sets = sum(len(item.nodes) > FEWEST_PEERS for item in peers)
    judged = [judge_peers(item, threshold, error / max(1, judged_sets)) for item in peers]
    return FleetFinding(
        "" if chosen == series.NO_NIGHT else series.format_night(chosen),
        len(overview.nights),
        len(present),
        tuple(judged),
        tuple(_failures(tonight)),
        tuple(missing),
        tuple(notes),
        threshold,
    )


def _failures(tonight: series.Summaries) -> list[NodeFailure]:
    """Wrong results first, then failed cases and runs that did not complete."""
    failures: dict[tuple[str, str], list[str]] = {}
    names = case_names(tonight.keys)
    for kind in (WRONG, FAILED):
        for index in np.flatnonzero(tonight.status == series.STATUSES.index(kind)).tolist():
            node = tonight.nodes[tonight.node[tonight.run[index]]]
            failures.setdefault((kind, node), []).append(names[tonight.key[index]])
    for index in np.flatnonzero(tonight.run_status == series.RUN_STATUSES.index("failed")).tolist():
        failures.setdefault((FAILED, tonight.nodes[tonight.node[index]]), [])
    for index in np.flatnonzero(tonight.run_status > series.RUN_STATUSES.index("failed")).tolist():
        failures.setdefault((FAILED, tonight.nodes[tonight.node[index]]), []).append(
            "the run did not end"
        )
    node_failures = []
    for (kind, node), texts in failures.items():
        what = "wrong results" if kind == WRONG else "failed"
        details = list(dict.fromkeys(texts))
        text = what + (f" in {shorten(details, _NAMED)}" if details else "")
        node_failures.append(NodeFailure(node, kind, text.replace("failed in the run", "the run")))
    return node_failures


def _peers_of(tonight: series.Summaries, stratum: int) -> tuple[list[Peers], list[str]]:
    """The sets of peers of one device model and number of ranks, and what is left out of them."""
    device_name, ranks = tonight.strata[stratum]
    kept = (tonight.stratum[tonight.run] == stratum) & np.isfinite(tonight.time_ns)
    if not kept.any():
        return [], []
    node_indexes, rows = np.unique(tonight.node[tonight.run[kept]], return_inverse=True)
    key_indexes, columns = np.unique(tonight.key[kept], return_inverse=True)
    log_times = np.full((len(node_indexes), len(key_indexes)), np.nan)
    cells = rows * len(key_indexes) + columns
    measured, medians = grouped_medians(cells, np.log(tonight.time_ns[kept]))
    log_times.flat[measured] = medians
    last_run = {int(n): r for r, n in enumerate(tonight.node.tolist())}
    names = case_names([tonight.keys[k] for k in key_indexes.tolist()])
    peers, notes = [], []
    sets = common_cases(np.isfinite(log_times))
    for members in sets:
        present = np.isfinite(log_times[members])
        enough = present.sum(axis=0) * 2 >= len(members)
        rare = present.any(axis=0) & ~enough
        if rare.any():
            left = [names[c] for c in np.flatnonzero(rare).tolist()]
            notes.append(
                f"{counted(len(left), 'case')} left out, which fewer than half of "
                f"{counted(len(members), 'node')} have: {shorten(left, _NAMED)}"
            )
        chosen = present[:, enough].any(axis=1)
        if not chosen.all():
            lonely = [tonight.nodes[node_indexes[m]] for m in members[~chosen].tolist()]
            notes.append(f"not judged, no common case: {shorten(lonely, 5)}")
        nodes = node_indexes[members[chosen]].tolist()
        facts: list[Mapping[str, str]] = [
            tonight.environments[tonight.environment[last_run[n]]] for n in nodes
        ]
        peers.append(
            Peers(
                device_name,
                ranks,
                tuple(tonight.nodes[n] for n in nodes),
                tuple(tonight.keys[k] for k in key_indexes[enough].tolist()),
                log_times[np.ix_(members[chosen], enough)],
                tuple(facts),
            )
        )
    if len(sets) > 1:
        text = " and ".join(str(len(members)) for members in sets)
        notes.append(f"{text} nodes have no case in common: they are not compared with each other")
    return peers, notes


DRAIN_NIGHTS, SLOW_NIGHTS = 5, 3  # a node is drained after 3 slow nights of the last 5
MOST_SHARE = 0.02  # of the fleet: if more are slow, the cause is not a node


@dataclass(frozen=True)
class DrainList:
    """headline: one sentence. nodes: (node, reason) of each node to drain."""

    headline: str
    nodes: tuple[tuple[str, str], ...]


def drain_list(
    summaries: series.Summaries,
    threshold: float,
    night: int | None = None,
    night_start_us: int = 0,
    drained: Collection[str] = (),
) -> DrainList:
    """The nodes that were slow or gave wrong results in 3 of the last 5 nights.

    drained: nodes that are out of service already. If more than 2 % of the nodes qualify (but at
    least one may), the list is empty.
    """
    nights = series.nights_of(summaries, night_start_us)
    dated = np.unique(nights[nights != series.NO_NIGHT])
    upto = dated[dated <= night] if night is not None else dated
    recent = upto[-DRAIN_NIGHTS:].tolist()
    if len(recent) < SLOW_NIGHTS:
        text = f"drain nothing: {counted(len(recent), 'night')}, at least {SLOW_NIGHTS} are needed"
        return DrainList(text, ())
    bad: Counter[str] = Counter()
    present: set[str] = set()
    for recent_night in recent:
        finding = fleet_finding(summaries, threshold, recent_night, night_start_us)
        slow = {item.node for sets in finding.judged for item in sets.slow if item.effect > 0}
        wrong = {failure.node for failure in finding.failures if failure.kind == "wrong"}
        bad.update(slow | wrong)
        present.update(node for sets in finding.judged for node in sets.peers.nodes)
    chosen = sorted(node for node, count in bad.items() if count >= SLOW_NIGHTS)
    most = max(1, int(MOST_SHARE * len(present)))
    if len(chosen) > most:
        text = f"fleet-wide: drain nothing. {len(chosen)} of {len(present)} nodes were slow in "
        return DrainList(f"{text}{SLOW_NIGHTS} of {len(recent)} nights; at most {most} may be", ())
    rest = [node for node in chosen if node not in drained]
    left = f"; {len(chosen) - len(rest)} drained already" if len(rest) < len(chosen) else ""
    text = f"{counted(len(rest), 'node')} to drain{left}: bad in {SLOW_NIGHTS} of the last "
    reasons = {
        node: f"torchcoll: slow or wrong in {bad[node]} of {len(recent)} nights" for node in rest
    }
    return DrainList(f"{text}{len(recent)} nights", tuple(reasons.items()))

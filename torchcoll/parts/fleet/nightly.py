"""One night of a fleet: which nodes gave wrong results or failed, which are slow and since when,
which are missing, and which to drain.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchcoll.core.errors import UnreadableError, UnusableError, UsageError, one_line
from torchcoll.core.units import counted, plural, shorten
from torchcoll.parts.fleet import series
from torchcoll.parts.fleet.address import parse_address
from torchcoll.parts.fleet.change_text import case_names, slower
from torchcoll.parts.fleet.fleet_model import FleetModel
from torchcoll.parts.fleet.incident import WRONG, Incident
from torchcoll.parts.fleet.night_judgements import (
    Acceptance,
    JudgedNights,
    judge_store,
    judge_summaries,
    single_hosts,
    stored_snapshots,
)
from torchcoll.parts.fleet.records import DAY_US, FAILED, NIGHT_START_US
from torchcoll.parts.fleet.snapshot import SlowTonight, Snapshot
from torchcoll.parts.fleet.sources import store_of, summaries_of, summaries_of_night
from torchcoll.stats.power import ACT_ON_ALL

_NAMED = 3
_NIGHTS_UNTIL_GONE = 30  # a node without a run for longer is taken for retired
_MOST_NODES = 100_000  # that are expected
_STALE_S = 2 * 86_400.0  # after the night began: a dead collector is not a healthy fleet
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FIELDS = re.compile(r"\{(node|reason)\}")
_DRAIN_SHARE, _DRAIN_LEAST = 0.1, 2  # more slow nodes than this have a common cause


@dataclass(frozen=True)
class NodeFailure:
    """A node whose run or cases failed."""

    node: str
    text: str


@dataclass(frozen=True)
class Drain:
    """headline: one sentence. commands: a line of shell per node to drain; they are never run."""

    headline: str
    commands: tuple[str, ...]


@dataclass(frozen=True)
class NightFinding:
    """What is known of a fleet after one night.

    night: its date as a number of days. nights: how many nights the input has. nodes: those with a
    run. snapshots: one for the steady times and one for the first calls of each device model and
    number of ranks, most nodes first. missing: expected nodes without a run. notes: what was left
    out, and why. accepted: incidents that were accepted by this call. models: if they were computed
    by this call.
    """

    night: int
    nights: int
    nodes: tuple[str, ...]
    snapshots: tuple[Snapshot, ...]
    failures: tuple[NodeFailure, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    accepted: tuple[str, ...] = ()
    models: tuple[FleetModel, ...] = ()

    @property
    def date(self) -> str:
        return series.format_night(self.night)

    @property
    def open(self) -> list[Incident]:
        """Open incidents, the most important first."""
        ranks = {"node": 0, "group": 1, "fleet": 2}
        return sorted(
            (each for snapshot in self.snapshots for each in snapshot.incidents),
            key=lambda each: (
                each.kind != WRONG,
                each.first_calls,
                ranks[each.scope],
                -each.effect,
            ),
        )

    @property
    def steady(self) -> list[Snapshot]:
        """Without those of the first calls."""
        return [each for each in self.snapshots if not each.first_calls]

    @property
    def tonight(self) -> list[SlowTonight]:
        return [each for snapshot in self.snapshots for each in snapshot.tonight]

    @property
    def bad(self) -> bool:
        return bool(self.open or self.tonight or self.failures or self.missing)

    @property
    def detectable(self) -> float | None:
        """The slowdown of a node that would be found within 7 nights; None if it is not known of
        all nodes.
        """
        sizes = [snapshot.detectable for snapshot in self.steady]
        has_usual = [size for size in sizes if size is not None]
        enough = all(2 * snapshot.has_usual >= snapshot.nodes for snapshot in self.steady)
        return max(has_usual) if has_usual and enough and len(has_usual) == len(sizes) else None

    @property
    def certain(self) -> bool:
        """Whether a slowdown that a user would act on would have been found."""
        return self.detectable is not None and np.expm1(self.detectable) <= ACT_ON_ALL + 0.02


@dataclass(frozen=True)
class NightRequest:
    """What is asked of a night.

    - night: days since 1970-01-01; None is the last one, which must not be old.
    - last: take the last night, however old it is.
    - accept, why: an incident, or a change, that is accepted; and the reason.
    - expected: nodes that must have a run; None is those of the 30 nights before.
    """

    night: int | None = None
    last: bool = False
    accept: str = ""
    why: str = ""
    expected: frozenset[str] | None = None


def judge_night(paths: Sequence[str], request: NightRequest) -> NightFinding:
    """Judges a night of files or of a store.

    Raises UnreadableError for input that cannot be read or is older than two days, UsageError for
    a night without runs and for an incident that is not open.
    """
    store = store_of(paths)
    tonight, overview = summaries_of_night(paths, request.night)
    if not overview.nights:
        raise UnusableError("paths", " ".join(paths), "runs with dates and times")
    latest = overview.nights[-1]
    chosen = latest if request.night is None else request.night
    if chosen not in overview.nights:
        value = series.format_night(chosen)
        action = (
            f"The last is {series.format_night(latest)}: a night lasts from noon to noon (UTC) and "
            "has the date on which it begins."
        )
        raise UsageError("night", value, "a night with runs", action)
    if request.night is None and not request.last:
        _check_age(paths, latest)
    acceptances = []
    if request.accept:
        acceptances = [Acceptance(request.accept, os.environ.get("USER", "unknown"), request.why)]
    notes: list[str] = []
    judged: list[JudgedNights] = []
    snapshots: list[Snapshot] = []
    if store is not None:
        address = parse_address(store)
        if chosen == latest:
            judged = judge_store(address, chosen, acceptances)
        elif acceptances:
            raise UsageError("accept", "with an earlier night", "the last night of the store")
        else:
            snapshots = stored_snapshots(address, chosen)
    elif acceptances:
        notes.append("accepted for this call only: a store keeps what was accepted")
    if not snapshots and not judged:
        every_night = tonight if store is None else summaries_of(paths)
        judged = judge_summaries(every_night, chosen, {chosen: acceptances})
    if judged:
        snapshots = [each.snapshots[-1] for each in judged if each.snapshots]
    records = [each for kind in judged for each in kind.records]
    accepted = [each.incident for each in records if each.event == "accepted"]
    if request.accept and not accepted:
        names = [each.id for snapshot in snapshots for each in snapshot.incidents]
        choices = shorten(names, 5) if names else "no incident is open"
        raise UsageError("accept", request.accept, "an open incident, or a change of one", choices)
    alone = tonight.select(series.nights_of(tonight) == chosen)
    runs = len(alone)
    alone = single_hosts(alone)
    if overview.undated:
        notes.append(f"{counted(overview.undated, 'run')} left out: no date is recorded")
    if undated := int((alone.start_us == series.UNKNOWN_START).sum()):
        notes.append(
            f"{counted(undated, 'run')} without a time of {plural(undated, 'its', 'their')} own: "
            f"the night is when the {plural(undated, 'file was', 'files were')} last written"
        )
    if several := runs - len(alone):
        notes.append(
            f"{counted(several, 'run')} over several hosts left out: they say nothing about a "
            "single node (torchcoll pairs does)"
        )
    present = {alone.nodes[n] for n in np.unique(alone.node).tolist()}
    lately = {
        node
        for node, (first, last) in overview.nodes.items()
        if first <= chosen <= last + _NIGHTS_UNTIL_GONE
    }
    return NightFinding(
        night=chosen,
        nights=len([night for night in overview.nights if night <= chosen]),
        nodes=tuple(sorted(present)),
        snapshots=tuple(
            sorted(
                (each for each in snapshots if each.night == chosen), key=lambda each: -each.nodes
            )
        ),
        failures=tuple(_failures(alone)),
        missing=tuple(sorted((lately if request.expected is None else request.expected) - present)),
        notes=tuple(notes),
        accepted=tuple(accepted),
        models=tuple(each.model for each in judged),
    )


def expand_nodes(text: str) -> frozenset[str]:
    """The nodes of a list as Slurm writes it: ``gpu[001-003,007],login1``.

    Raises UsageError for another form, and for more than 100,000 nodes.
    """
    names: list[str] = []
    parts = re.split(r",(?![^\[\]]*\])", text)
    while parts:
        before, bracket, rest = parts.pop().strip().partition("[")
        ranges, closed, after = rest.partition("]")
        if not bracket:
            names.append(before)
        for each in ranges.split(",") if bracket else ():
            first, _, last = each.partition("-")
            last = last or first
            number = first.isdecimal() and last.isdecimal() and int(last) >= int(first)
            if not closed or not number or int(last) - int(first) + len(names) > _MOST_NODES:
                raise UsageError("expected-nodes", text, "nodes such as gpu[001-048],login1")
            numbers = range(int(first), int(last) + 1)
            parts += [f"{before}{n:0{len(first)}}{after}" for n in numbers]
    if not all(map(_HOST_NAME.fullmatch, names)):
        raise UsageError("expected-nodes", text, "nodes such as gpu[001-048],login1")
    return frozenset(names)


def _check_age(paths: Sequence[str], latest: int) -> None:
    began_s = (latest * DAY_US + NIGHT_START_US) / 1e6
    age_s = time.time() - began_s
    if age_s > _STALE_S:
        date = series.format_night(latest)
        raise UnreadableError(
            "last night",
            f"{date}, {counted(int(age_s // 86_400), 'day')} ago, in {' '.join(paths)}",
            "a night of the last two days",
            f"Did the runs and the collector start? --night {date} judges that night.",
        )


def _failures(tonight: series.Summaries) -> list[NodeFailure]:
    """Failed cases and runs that did not complete."""
    cases: dict[str, dict[str, None]] = {}
    names = case_names(tonight.keys)
    for index in np.flatnonzero(tonight.status == series.STATUSES.index(FAILED)).tolist():
        node = tonight.nodes[tonight.node[tonight.run[index]]]
        cases.setdefault(node, {})[names[tonight.key[index]]] = None
    failed = series.RUN_STATUSES.index("failed")
    bad_runs: dict[str, bool] = {}  # whether one did not end
    for index in np.flatnonzero(tonight.run_status >= failed).tolist():
        node = tonight.nodes[tonight.node[index]]
        bad_runs[node] = bad_runs.get(node, False) or bool(tonight.run_status[index] > failed)
    failures = []
    for node in sorted({*cases, *bad_runs}):
        texts = [f"failed in {shorten(list(cases[node]), _NAMED)}"] if node in cases else []
        texts += ["the run did not end"] if bad_runs.get(node) else []
        failures.append(NodeFailure(node, "; ".join(texts) or "the run failed"))
    return failures


def drain_of(finding: NightFinding, template: str, drained: Collection[str] = ()) -> Drain:
    """The commands that drain the nodes with an open incident of their own.

    A node with one verified wrong result is always drained. If over 10 % of the nodes are slow, and
    more than two, the slow ones are not: the cause is then not a node. template: the command, with
    ``{node}`` and ``{reason}``. drained: nodes that are out of service already.
    """
    wrong: dict[str, str] = {}
    slow: dict[str, str] = {}
    for each in finding.open:
        if each.kind == WRONG:
            wrong[each.subject] = f"torchcoll: wrong results ({each.id})"
        elif each.scope == "node" and not each.first_calls:
            change = f"{slower(each.effect)} since {series.format_night(each.began)}"
            slow.setdefault(each.subject, f"torchcoll: {change} ({each.id})")
    count = max(len({*finding.nodes, *drained}), 1)
    most = max(_DRAIN_LEAST, int(_DRAIN_SHARE * count))
    texts = []
    only_slow = {node: reason for node, reason in slow.items() if node not in wrong}
    chosen = dict(wrong)
    if len(only_slow) > most:
        texts.append(
            f"{len(only_slow)} of {count} nodes are slow: find their common cause before "
            f"you drain them (at most {most} are listed)"
        )
    else:
        chosen |= only_slow
    left = sorted(chosen.keys() - {*drained})
    texts.insert(0, f"{counted(len(left), 'node')} to drain")
    if already := len(chosen) - len(left):
        texts.append(f"{already} drained already")
    groups = [each.subject for each in finding.open if each.scope == "group"]
    if groups:
        verb = plural(len(groups), "is", "are")
        texts.append(f"{shorten(groups, _NAMED)} {verb} slow as a whole: no node of it is to blame")
    # Slurm would take n[1-99] and ALL as many nodes, and names come from labels of result files.
    refused = [n for n in left if not _HOST_NAME.fullmatch(n) or n.upper() == "ALL"]
    if refused:
        names = ", ".join(map(one_line, refused))
        texts[-1] += f"; no command for what is no host name: {names}"
    commands = tuple(
        _filled(template, {"node": node, "reason": chosen[node]})
        for node in left
        if node not in refused
    )
    return Drain("; ".join(texts), commands)


def _filled(template: str, values: Mapping[str, str]) -> str:
    """In one pass: what is filled in is not searched for fields again. Quoted for a shell."""
    return _FIELDS.sub(lambda field: shlex.quote(values[field[1]]), template)

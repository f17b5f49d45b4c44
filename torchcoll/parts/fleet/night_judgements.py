"""The nights of files or of a store through the model, one after the other, each once.

A store keeps what was said after each night and the memory of the model, so that only new nights
are read. The last night is judged again when more of its runs have come; earlier nights never are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from sqlalchemy import Connection, delete, insert, select

from torchcoll.parts.fleet import incident as incidents
from torchcoll.parts.fleet import series
from torchcoll.parts.fleet.address import StoreAddress
from torchcoll.parts.fleet.change_text import case_names, slower
from torchcoll.parts.fleet.connecting import Database
from torchcoll.parts.fleet.fleet_model import FleetModel
from torchcoll.parts.fleet.fleet_state import THRESHOLD
from torchcoll.parts.fleet.incident import IncidentRecord
from torchcoll.parts.fleet.panel import Panel, first_calls_of, panels_of
from torchcoll.parts.fleet.read import summaries_of_store
from torchcoll.parts.fleet.records import DAY_US, NIGHT_START_US, WRONG
from torchcoll.parts.fleet.schema import INCIDENT_RECORDS, MEMORY, SNAPSHOTS, reading
from torchcoll.parts.fleet.snapshot import Snapshot, pack, snapshot_of, unpack

FIRST_CALL_THRESHOLD = 1.0  # at 0.5, outliers of first calls that vary by 20 % raise false alarms
_FIRST_US = -(1 << 60)  # before any run
_WrongByNight = Mapping[int, Mapping[str, str]]


@dataclass(frozen=True)
class Acceptance:
    """which: an incident's id, or a change such as ``nccl=2.27.7``. by: a user's name."""

    which: str
    by: str
    why: str


@dataclass
class JudgedNights:
    """The judgement of one kind: the steady times or the first calls of one device model and
    number of ranks.

    snapshots: of each night that was judged, oldest first. records: what is new in these nights.
    model: after the last night. memory: of the model before it; None if only one night is known.
    """

    kind: str
    model: FleetModel
    snapshots: list[Snapshot] = field(default_factory=list)
    records: list[IncidentRecord] = field(default_factory=list)
    memory: bytes | None = None


def single_hosts(summaries: series.Summaries) -> series.Summaries:
    """Without the runs over several hosts: they say nothing about a single node."""
    several = np.array([not summaries.nodes[n] for n in summaries.node.tolist()], dtype=bool)
    return summaries.select(~several)


def wrong_results(summaries: series.Summaries) -> Mapping[str, _WrongByNight]:
    """Kind -> night -> node -> the cases with wrong results."""
    nights = series.nights_of(summaries)
    names = case_names(summaries.keys)
    cases: dict[tuple[str, int, str], dict[str, None]] = {}
    for index in np.flatnonzero(summaries.status == series.STATUSES.index(WRONG)).tolist():
        run = int(summaries.run[index])
        device_name, ranks = summaries.strata[summaries.stratum[run]]
        of_run = (f"{device_name}|{ranks}", int(nights[run]), summaries.nodes[summaries.node[run]])
        cases.setdefault(of_run, {})[names[summaries.key[index]]] = None
    results: dict[str, dict[int, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for (kind, night, node), wrong in cases.items():
        results[kind][night][node] = ", ".join(wrong)
    return results


def nights_of_panel(
    model: FleetModel, panel: Panel, wrong: _WrongByNight
) -> Iterator[tuple[int, list[IncidentRecord]]]:
    """Judges the nights of a panel that come after those that the model knows."""
    model.grow(panel.nodes, panel.keys)
    number = {name: index for index, name in enumerate(model.names)}
    column = {key: index for index, key in enumerate(model.keys)}
    rows = np.array([number[name] for name in panel.nodes], dtype=np.intp)
    columns = np.array([column[key] for key in panel.keys], dtype=np.intp)
    shape = (len(model.names), len(model.keys))
    for index in range(len(panel.log_times)):
        night = panel.first_night + index
        ran = panel.environment[index] >= 0
        if night <= model.night or not ran.any():
            continue
        times = np.full(shape, np.nan, dtype=np.float32)
        times[np.ix_(rows, columns)] = panel.log_times[index]
        facts: list[Mapping[str, str] | None] = [None] * shape[0]
        for row, environment in zip(rows.tolist(), panel.environment[index].tolist(), strict=True):
            facts[row] = panel.environments[environment] if environment >= 0 else None
        yield night, model.step(night, times, facts, wrong.get(night))


def judge_panel(
    panel: Panel,
    model: FleetModel,
    wrong: _WrongByNight,
    last: int,
    acceptances: Mapping[int, Sequence[Acceptance]],
) -> JudgedNights:
    """Judges the nights up to ``last``. acceptances: what is accepted after each night."""
    judged = JudgedNights(panel.kind, model)
    before = _before(panel, last)
    if model.night >= 0 and before <= model.night:
        judged.memory = pack(model)
    for night, records in nights_of_panel(model, panel, wrong):
        if night > last:
            break
        judged.records += records
        count_before = len(model.records)
        for each in acceptances.get(night, ()):
            model.accept(each.which, each.by, each.why)
        judged.records += model.records[count_before:]
        judged.snapshots.append(snapshot_of(model, panel.device_name, panel.ranks, model.nights))
        if night == before:
            judged.memory = pack(model)
    return judged


def _before(panel: Panel, last: int) -> int:
    """The last night with a run before ``last``; -1 if there is none."""
    ran = panel.first_night + np.flatnonzero((panel.environment >= 0).any(axis=1))
    return int(ran[ran < last].max(initial=-1))


def judge_summaries(
    summaries: series.Summaries,
    last: int,
    after: Mapping[int, Sequence[Acceptance]] = MappingProxyType({}),
    models: Mapping[str, FleetModel] = MappingProxyType({}),
) -> list[JudgedNights]:
    """Judges the nights up to ``last``; keeps nothing.

    after: what is accepted after each night. models: of the kinds that were judged before.
    """
    summaries = single_hosts(summaries)
    wrong = wrong_results(summaries)
    steady = [(panel, THRESHOLD) for panel in panels_of(summaries)]
    first_calls = [(panel, FIRST_CALL_THRESHOLD) for panel in panels_of(first_calls_of(summaries))]
    return [
        judge_panel(
            panel,
            models.get(panel.kind) or FleetModel(threshold),
            wrong.get(panel.kind, {}),
            last,
            after,
        )
        for panel, threshold in (*steady, *first_calls)
        if panel.first_night <= last
    ]


def stored_snapshots(address: StoreAddress, night: int) -> list[Snapshot]:
    """What was said after a night; [] if it was not judged."""
    with reading(address) as connection:
        query = select(SNAPSHOTS.c.snapshot).where(SNAPSHOTS.c.night == night)
        return [Snapshot.from_json(data) for data in connection.execute(query).scalars()]


def stored_acceptances(address: StoreAddress) -> dict[int, list[Acceptance]]:
    """What was accepted after each night."""
    after: dict[int, list[Acceptance]] = {}
    with reading(address) as connection:
        records = select(INCIDENT_RECORDS).where(INCIDENT_RECORDS.c.event == "accepted")
        for row in connection.execute(records):
            each = Acceptance(row.incident, row.accepted_by, row.reason)
            after.setdefault(row.night, []).append(each)
    return after


def judge_store(
    address: StoreAddress, last: int, acceptances: Sequence[Acceptance] = ()
) -> list[JudgedNights]:
    """Judges the nights up to ``last``, the last of the store, which keeps what is said.

    Raises as ``Database.write`` does.
    """
    with reading(address) as connection:
        models = {row.kind: unpack(row.memory) for row in connection.execute(select(MEMORY))}
    after = stored_acceptances(address)
    after.setdefault(last, []).extend(acceptances)
    since_us = _FIRST_US
    if models:
        night = min(model.night for model in models.values()) + 1
        since_us = night * DAY_US + NIGHT_START_US
    until_us = (last + 1) * DAY_US + NIGHT_START_US
    summaries = summaries_of_store(address, since_us, until_us)
    judged = judge_summaries(summaries, last, after, models)
    judged = [each for each in judged if each.snapshots]
    Database(address).write(lambda connection: _keep(connection, judged))
    return judged


def _keep(connection: Connection, all_judged: Sequence[JudgedNights]) -> None:
    for judged in all_judged:
        first, latest = judged.snapshots[0], judged.snapshots[-1]
        kind = judged.kind
        for table in (SNAPSHOTS, INCIDENT_RECORDS):
            doomed = (table.c.kind == kind, table.c.night >= first.night)
            connection.execute(delete(table).where(*doomed))
        rows = [
            {"kind": kind, "night": each.night, "snapshot": each.to_json()}
            for each in judged.snapshots
        ]
        connection.execute(insert(SNAPSHOTS), rows)
        records = {
            (each.incident, each.night, each.event): {"kind": kind, **vars(each)}
            for each in judged.records
        }
        if records:
            connection.execute(insert(INCIDENT_RECORDS), list(records.values()))
        if judged.memory is not None:
            connection.execute(delete(MEMORY).where(MEMORY.c.kind == kind))
            values = {"kind": kind, "night": latest.night, "memory": judged.memory}
            connection.execute(insert(MEMORY), [values])


@dataclass
class NightlyOfRuns:
    """What `nightly` says of the runs of an input.

    not_usual: index of a run -> why it does not show what is usual. accepted: indexes of runs that
    show it because they are as an incident that was accepted. answers: index of a run -> what is
    open about it; '' for nothing about a run of the last night. A run that cannot be judged yet is
    in neither.
    """

    not_usual: dict[int, str] = field(default_factory=dict)
    accepted: set[int] = field(default_factory=set)
    answers: dict[int, str] = field(default_factory=dict)


def nightly_of_runs(
    summaries: series.Summaries, after: Mapping[int, Sequence[Acceptance]] = MappingProxyType({})
) -> NightlyOfRuns:
    """after: what was accepted after each night."""
    nights = series.nights_of(summaries)
    results = NightlyOfRuns()
    last = int(nights.max(initial=series.NO_NIGHT))
    if last == series.NO_NIGHT:
        return results
    number = {name: index for index, name in enumerate(summaries.nodes)}
    for judged in judge_summaries(summaries, last, after):
        model = judged.model
        if model.first_calls:
            continue
        of_kind = np.array([f"{device}|{n}" == judged.kind for device, n in summaries.strata])
        node = np.where(of_kind[summaries.stratum], summaries.node, -1)
        if model.night == last:
            has_usual = [number[model.names[n]] for n in np.flatnonzero(model.baseline.nights)]
            quiet = np.isin(node, has_usual) & (nights == last)
            results.answers |= dict.fromkeys(np.flatnonzero(quiet).tolist(), "")
            for slow in judged.snapshots[-1].tonight:
                whole = slow.node not in number
                named = quiet & (whole or node == number.get(slow.node))
                text = f"{slower(slow.effect)} in {slow.where} tonight"
                results.answers |= dict.fromkeys(np.flatnonzero(named).tolist(), text)
        for each in model.incidents:
            text = f"{slower(each.effect)} in {each.where}"
            if each.kind == incidents.WRONG:
                text = f"wrong results in {each.where}"
            text = f"{text} since {series.format_night(each.since)} ({each.id})"
            for member, since in model.members_of(each):
                mine = node == number.get(model.names[member], -2)
                inside = np.zeros(len(nights), dtype=bool)
                for level in each.levels:
                    bad = level.effect > 0 or each.kind == incidents.WRONG
                    inside[nights >= max(level.night, since)] = bad
                if each.ended is not None:
                    inside &= nights < each.ended
                rows = np.flatnonzero(mine & inside).tolist()
                if each.state == incidents.ACCEPTED:
                    results.accepted |= {*rows}
                    rows = np.flatnonzero(mine & (nights < max(each.since, since))).tolist()
                    why = f"before the accepted incident {each.id} of torchcoll nightly"
                    results.not_usual |= dict.fromkeys(rows, why)
                elif each.kind == incidents.SLOW:
                    why = f"in the incident {each.id} of torchcoll nightly"
                    results.not_usual |= dict.fromkeys(rows, why)
                if each.is_open:
                    results.answers |= dict.fromkeys(rows, text)
    return results

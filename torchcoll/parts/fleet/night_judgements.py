"""The nights of files or of a store through the model, one after the other, each once.

A store keeps what was said after each night and the memory of the model, so that only new nights
are read. The last night is judged again when more of its runs have come; earlier nights never are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import Connection, delete, insert, select

from torchcoll.core.errors import UsageError
from torchcoll.parts.fleet import series
from torchcoll.parts.fleet.address import StoreAddress
from torchcoll.parts.fleet.change_text import case_names
from torchcoll.parts.fleet.connecting import Database
from torchcoll.parts.fleet.fleet_model import FleetModel
from torchcoll.parts.fleet.incident import IncidentRecord
from torchcoll.parts.fleet.panel import Panel, panels_of
from torchcoll.parts.fleet.read import summaries_of_store
from torchcoll.parts.fleet.records import WRONG
from torchcoll.parts.fleet.schema import (
    DAY_US,
    INCIDENT_RECORDS,
    MEMORY,
    SNAPSHOTS,
    add_judgements,
    check_current,
    has_judgements,
)
from torchcoll.parts.fleet.snapshot import Snapshot, pack, snapshot_of, unpack
from torchcoll.parts.fleet.sources import in_order

_FIRST_US = -(1 << 60)  # before any run
_THRESHOLD = 0.03  # of an incident that keeps runs out of a baseline
_WrongByNight = Mapping[int, Mapping[str, str]]


@dataclass(frozen=True)
class Acceptance:
    """which: an incident's id, or a change such as ``nccl=2.27.7``. by: a user's name."""

    which: str
    by: str
    why: str


@dataclass
class JudgedNights:
    """The judgement of one device model and number of ranks.

    - snapshots: of each night that was judged, oldest first.
    - records: what is new in these nights.
    - model: after the last night.
    - memory: of the model before the last night; None if only one night is known.
    """

    model: FleetModel
    snapshots: list[Snapshot] = field(default_factory=list)
    records: list[IncidentRecord] = field(default_factory=list)
    memory: bytes | None = None


def kind_of(panel: Panel) -> str:
    return f"{panel.device_name}|{panel.ranks}"


def single_hosts(summaries: series.Summaries) -> series.Summaries:
    """Without the runs over several hosts: they say nothing about a single node."""
    several = np.array([not summaries.nodes[n] for n in summaries.node.tolist()], dtype=bool)
    return summaries.select(~several)


def wrong_results(summaries: series.Summaries, night_start_us: int) -> dict[str, _WrongByNight]:
    """Kind -> night -> node -> the cases with wrong results."""
    nights = series.nights_of(summaries, night_start_us)
    names = case_names(summaries.keys)
    results: dict[str, dict[int, dict[str, list[str]]]] = {}
    for index in np.flatnonzero(summaries.status == series.STATUSES.index(WRONG)).tolist():
        run = int(summaries.run[index])
        device_name, ranks = summaries.strata[summaries.stratum[run]]
        of_night = results.setdefault(f"{device_name}|{ranks}", {}).setdefault(int(nights[run]), {})
        node = summaries.nodes[summaries.node[run]]
        of_night.setdefault(node, []).append(names[summaries.key[index]])
    return {
        kind: {
            night: {node: ", ".join(dict.fromkeys(cases)) for node, cases in of_night.items()}
            for night, of_night in by_night.items()
        }
        for kind, by_night in results.items()
    }


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
    judged = JudgedNights(model)
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
    """The last night with a run before ``last``, or ``last`` if it has no run itself."""
    ran = panel.first_night + np.flatnonzero((panel.environment >= 0).any(axis=1))
    ran = ran[ran <= last]
    if not len(ran):
        return last
    earlier = ran[ran < last]
    if ran[-1] < last:
        return int(ran[-1])
    return int(earlier[-1]) if len(earlier) else -1


def judge_summaries(
    summaries: series.Summaries,
    night_start_us: int,
    threshold: float,
    last: int,
    acceptances: Sequence[Acceptance] = (),
) -> list[JudgedNights]:
    """Judges all nights up to ``last``, after which incidents are accepted; keeps nothing."""
    summaries = single_hosts(summaries)
    wrong = wrong_results(summaries, night_start_us)
    after = {last: acceptances}
    return [
        judge_panel(panel, FleetModel(threshold), wrong.get(kind_of(panel), {}), last, after)
        for panel in panels_of(summaries, night_start_us)
        if panel.first_night <= last
    ]


class StoredJudgement:
    """The judgement that a store keeps."""

    def __init__(self, address: StoreAddress, night_start_us: int, threshold: float) -> None:
        self.address = address
        self.night_start_us = night_start_us
        self.threshold = threshold

    def _memories(self, connection: Connection) -> dict[str, FleetModel]:
        """The models of the kinds; {} if nothing was judged, or with other nights or threshold."""
        if not has_judgements(connection):
            return {}
        models = {}
        for row in connection.execute(select(MEMORY)):
            model = unpack(row.memory)
            if row.night_start_us != self.night_start_us:
                return {}
            if abs(model.least - FleetModel(self.threshold).least) > 1e-12:
                return {}
            models[row.kind] = model
        return models

    def _kept_elsewise(self, connection: Connection) -> bool:
        """Whether the store has judgements, with other nights or another threshold."""
        if not has_judgements(connection):
            return False
        rows = connection.execute(select(MEMORY.c.kind)).first()
        return rows is not None and not self._memories(connection)

    def snapshots(self, night: int) -> list[Snapshot]:
        """What was said after a night; [] if it was not judged."""
        with Database(self.address).reading() as connection:
            check_current(connection, self.address.name)
            if not self._memories(connection):
                return []
            rows = connection.execute(
                select(SNAPSHOTS.c.snapshot).where(SNAPSHOTS.c.night == night)
            )
            return [Snapshot.from_json(row.snapshot) for row in rows]

    def _earlier_acceptances(self, connection: Connection) -> dict[int, list[Acceptance]]:
        """Night -> what was accepted after it."""
        results: dict[int, list[Acceptance]] = {}
        if has_judgements(connection):
            table = INCIDENT_RECORDS.c
            query = select(table.night, table.incident, table.accepted_by, table.reason)
            for row in connection.execute(query.where(table.event == "accepted")):
                each = Acceptance(row.incident, row.accepted_by, row.reason)
                results.setdefault(row.night, []).append(each)
        return results

    def judge(self, last: int, acceptances: Sequence[Acceptance] = ()) -> list[JudgedNights]:
        """Judges the nights up to ``last``, the last of the store, and keeps what is said.

        Raises as ``Database.write`` does.
        """
        with Database(self.address).reading() as connection:
            check_current(connection, self.address.name)
            models = self._memories(connection)
            elsewise = self._kept_elsewise(connection)
            earlier = self._earlier_acceptances(connection)
        since_us = _FIRST_US
        if models:
            night = min(model.night for model in models.values()) + 1
            since_us = night * DAY_US + self.night_start_us
        until_us = (last + 1) * DAY_US + self.night_start_us
        summaries = summaries_of_store(self.address, since_us, until_us, nights=True)
        if elsewise and acceptances:
            raise UsageError(
                "accept",
                "with another --threshold or --night-start than the store was judged with",
                "the same as before",
            )
        summaries = single_hosts(in_order(summaries))
        wrong = wrong_results(summaries, self.night_start_us)
        all_judged = []
        for panel in panels_of(summaries, self.night_start_us):
            kind = kind_of(panel)
            model = models.get(kind) or FleetModel(self.threshold)
            every = {**earlier, last: [*earlier.get(last, ()), *acceptances]}
            judged = judge_panel(panel, model, wrong.get(kind, {}), last, every)
            if judged.snapshots:
                all_judged.append(judged)
        if not elsewise:
            writer = Database(self.address)
            writer.write(lambda connection: self._keep(connection, all_judged))
        return all_judged

    def _keep(self, connection: Connection, all_judged: Sequence[JudgedNights]) -> None:
        add_judgements(connection)
        for judged in all_judged:
            first, latest = judged.snapshots[0], judged.snapshots[-1]
            kind = f"{latest.device_name}|{latest.ranks}"
            for table in (SNAPSHOTS, INCIDENT_RECORDS):
                doomed = (table.c.kind == kind, table.c.night >= first.night)
                connection.execute(delete(table).where(*doomed))
            rows = [
                {"kind": kind, "night": each.night, "snapshot": each.to_json()}
                for each in judged.snapshots
            ]
            connection.execute(insert(SNAPSHOTS), rows)
            records = {
                (each.incident, each.night, each.event): {
                    "kind": kind,
                    "incident": each.incident,
                    "night": each.night,
                    "event": each.event,
                    "since": each.since,
                    "effect": each.effect,
                    "low": each.low,
                    "high": each.high,
                    "accepted_by": each.by,
                    "reason": each.why,
                }
                for each in judged.records
            }
            if records:
                connection.execute(insert(INCIDENT_RECORDS), list(records.values()))
            if judged.memory is None:
                continue
            connection.execute(delete(MEMORY).where(MEMORY.c.kind == kind))
            values = {
                "kind": kind,
                "night": latest.night,
                "night_start_us": self.night_start_us,
                "memory": judged.memory,
            }
            connection.execute(insert(MEMORY), [values])


def runs_of_incidents(summaries: series.Summaries, night_start_us: int) -> dict[int, str]:
    """Index of a run -> the incident of its node in which it was made."""
    nights = series.nights_of(summaries, night_start_us)
    dated = nights[nights != series.NO_NIGHT]
    if not len(dated):
        return {}
    results: dict[int, str] = {}
    for judged in judge_summaries(summaries, night_start_us, _THRESHOLD, int(dated.max())):
        for each in judged.model.incidents:
            if each.scope != "node" or each.subject not in summaries.nodes:
                continue
            until = judged.model.night + 1 if each.ended is None else each.ended
            mine = summaries.node == list(summaries.nodes).index(each.subject)
            mine &= (nights >= each.levels[0].night) & (nights < until)
            results |= dict.fromkeys(np.flatnonzero(mine).tolist(), each.id)
    return results

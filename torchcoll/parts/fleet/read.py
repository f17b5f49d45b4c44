"""A store read into columns."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, literal_column, or_, select, text

from torchcoll.parts.fleet.address import StoreAddress
from torchcoll.parts.fleet.connecting import Database
from torchcoll.parts.fleet.records import DAY_US, CaseKey
from torchcoll.parts.fleet.schema import CASE_KEYS, CASES, ENVIRONMENTS, RUNS, WHEN, check_current
from torchcoll.parts.fleet.series import (
    RunOverview,
    Summaries,
    SummariesBuilder,
)

_ROWS = 1 << 14  # in memory at once
_MOST_DAYS = 1_000_000  # more than there are between year 1 and 1970


def summaries_of_store(
    address: StoreAddress, since_us: int | None = None, until_us: int | None = None
) -> Summaries:
    """Reads the runs of a store that began in [since_us, until_us), or all.

    A run whose start is not recorded, or whose clock was ahead, counts by when it was received.
    Raises UnreadableError for a store of another version, UnavailableError for one that cannot be
    used now.
    """
    chosen: list[ColumnElement[bool]] = []
    if since_us is not None and until_us is not None:
        # The times as they are come first: they have an index.
        times = (RUNS.c.start_us, RUNS.c.received_us)
        chosen = [
            or_(*(column.between(since_us, until_us) for column in times)),
            literal_column(f"({WHEN} >= {since_us} AND {WHEN} < {until_us})"),
        ]
    database = Database(address)
    with database.reading() as connection:
        check_current(connection, database.name)
        return _read(connection, chosen)


def _read(connection: Connection, chosen: Sequence[ColumnElement[bool]]) -> Summaries:
    builder = SummariesBuilder()
    environments = {row.id: row.facts for row in connection.execute(select(ENVIRONMENTS))}
    runs = select(*(column for column in RUNS.c if column.name not in ("hosts", "labels")))
    index_of_run: dict[int, int] = {}
    for row in connection.execute(runs.where(*chosen).order_by(RUNS.c.id)):
        environment = builder.environments.number(
            row.environment_id, environments[row.environment_id]
        )
        index_of_run[row.id] = builder.add_run(row, environment)
    key_of_id = {
        row.id: row.key for row in connection.execute(select(CASE_KEYS.c.id, CASE_KEYS.c.key))
    }
    cases = select(CASES.c.run, CASES.c.case_key, CASES.c.status, CASES.c.time_ns)
    if chosen:
        cases = cases.join(RUNS, CASES.c.run == RUNS.c.id).where(*chosen)
    cases = cases.order_by(CASES.c.run, CASES.c.case_key, CASES.c.repeat)
    number_of_id: dict[int, int] = {}
    streamed = connection.execution_options(yield_per=_ROWS)
    for run, key_id, status, time_ns in streamed.execute(cases):
        number = number_of_id.get(key_id)
        if number is None:
            number = builder.keys.number(CaseKey.from_json(key_of_id[key_id]))
            number_of_id[key_id] = number
        builder.add_case(index_of_run[run], number, status, time_ns)
    return builder.build()


def run_overview(address: StoreAddress, night_start_us: int) -> RunOverview:
    """Nights, nodes and clocks of all runs of a store, without reading the runs.

    night_start_us: microseconds after midnight UTC at which a night begins. Raises as
    ``summaries_of_store`` does.
    """
    # The / of both databases rounds towards 0, so that what it divides must not be below 0.
    shift_us = _MOST_DAYS * DAY_US - night_start_us
    night = f"({WHEN} + {shift_us}) / {DAY_US}"
    nights = f"SELECT {night} AS night, count(*) FROM runs GROUP BY 1"
    of_nodes = f"SELECT node, min({night}), max({night}) FROM runs WHERE node <> '' GROUP BY node"
    database = Database(address)
    with database.reading() as connection:
        check_current(connection, database.name)
        counts = {row[0]: row[1] for row in connection.execute(text(nights))}
        return RunOverview(
            tuple(sorted(int(night) - _MOST_DAYS for night in counts if night is not None)),
            {
                name: (int(first) - _MOST_DAYS, int(last) - _MOST_DAYS)
                for name, first, last in connection.execute(text(of_nodes))
                if first is not None
            },
            counts.get(None, 0),
        )

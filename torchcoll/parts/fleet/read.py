"""A store read into columns."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, literal_column, or_, select

from torchcoll.parts.fleet.address import StoreAddress
from torchcoll.parts.fleet.records import CaseKey
from torchcoll.parts.fleet.schema import CASE_KEYS, CASES, ENVIRONMENTS, RUNS, WHEN, reading
from torchcoll.parts.fleet.series import RunOverview, Summaries, SummariesBuilder, overview_of

_ROWS = 1 << 14  # in memory at once
_RUNS = select(*(column for column in RUNS.c if column.name not in ("hosts", "labels")))


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
    with reading(address) as connection:
        return _read(connection, chosen)


def _read(connection: Connection, chosen: Sequence[ColumnElement[bool]]) -> Summaries:
    builder = SummariesBuilder()
    environments = {row.id: row.facts for row in connection.execute(select(ENVIRONMENTS))}
    index_of_run: dict[int, int] = {}
    for row in connection.execute(_RUNS.where(*chosen).order_by(RUNS.c.id)):
        environment = builder.environments.number(
            row.environment_id, environments[row.environment_id]
        )
        index_of_run[row.id] = builder.add_run(row, environment)
    key_of_id = {
        row.id: row.key for row in connection.execute(select(CASE_KEYS.c.id, CASE_KEYS.c.key))
    }
    names = ("run", "case_key", "status", "time_ns", "first_call_ns")
    cases = select(*(CASES.c[name] for name in names))
    if chosen:
        cases = cases.join(RUNS, CASES.c.run == RUNS.c.id).where(*chosen)
    cases = cases.order_by(CASES.c.run, CASES.c.case_key, CASES.c.repeat)
    number_of_id: dict[int, int] = {}
    streamed = connection.execution_options(yield_per=_ROWS)
    for run, key_id, status, time_ns, first_ns in streamed.execute(cases):
        number = number_of_id.get(key_id)
        if number is None:
            number = builder.keys.number(CaseKey.from_json(key_of_id[key_id]))
            number_of_id[key_id] = number
        builder.add_case(index_of_run[run], number, status, time_ns, first_ns)
    return builder.build()


def run_overview(address: StoreAddress) -> RunOverview:
    """Nights and nodes of all runs of a store, without reading their cases."""
    builder = SummariesBuilder()
    with reading(address) as connection:
        for row in connection.execution_options(yield_per=_ROWS).execute(_RUNS):
            builder.add_run(row, 0)
    return overview_of(builder.build())

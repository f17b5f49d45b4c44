"""The tables of a store and its views for dashboards.

The names of views end in the version of their columns: a view keeps its columns, and a change that
a dashboard would notice is a new view (``runs_v2``) beside the old one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from torchcoll import __version__
from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.parts.fleet.address import StoreAddress
from torchcoll.parts.fleet.connecting import Database
from torchcoll.parts.fleet.incident import IncidentRecord
from torchcoll.parts.fleet.records import (
    CLOCK_OFF_US,
    DAY_US,
    NIGHT_START_US,
    CaseSummary,
    RunSummary,
)

# Of dates that both databases can show, from year 1 to 9999: a file may hold any number.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_000_000

_START = f"CASE WHEN start_us BETWEEN {_FIRST_US} AND {_LAST_US} THEN start_us END"
_RECEIVED = f"CASE WHEN received_us BETWEEN {_FIRST_US} AND {_LAST_US} THEN received_us END"
# SQL: when a run began, or, where that is not recorded or the clock of the host was ahead, when its
# file was written.
WHEN = (
    f"CASE WHEN {_START} IS NULL OR ({_START}) > ({_RECEIVED}) + {CLOCK_OFF_US} "
    f"THEN {_RECEIVED} ELSE {_START} END"
)
_CASE_COLUMNS = """k.name AS case_name, k.collective, k.size_bytes_requested AS size_bytes,
    k.dtype, k.op, k.in_place, k.backend, k.mode, k.ranks, k.statistic, k.clock,
    k.sha256 AS case_sha256"""


def _views(time_of: str, night: str) -> tuple[str, str]:
    """The statements that make the views.

    time_of: SQL of the time of so many us, with ``{us}`` in their place. night: SQL of the date of
    a night from the us since the beginning of the first.
    """
    when, start, received, collected = (
        time_of.format(us=us) for us in (WHEN, _START, _RECEIVED, "r.collected_us")
    )
    night = night.format(us=f"(({WHEN}) - {NIGHT_START_US})")
    return (
        f"""CREATE VIEW runs_v1 AS
SELECT r.run_id, {night} AS night, {when} AS time_utc, {start} AS start_utc,
    {received} AS received_utc, {collected} AS collected_utc, r.node, r.hosts, r.ranks,
    r.device_name, r.status, r.exit_code, r.wall_s, r.case_count, e.facts, r.labels,
    r.path AS file, r.file_sha256
FROM runs r JOIN environments e ON e.id = r.environment_id""",
        f"""CREATE VIEW cases_v1 AS
SELECT r.run_id, {night} AS night, {when} AS time_utc, r.node, r.device_name,
    r.status AS run_status, {_CASE_COLUMNS}, c.repeat, c.status, c.reason, c.verified, c.calls,
    c.time_ns, c.low_ns, c.high_ns, c.p99_ns, c.first_call_ns, c.second_call_ns,
    c.algbw_gbps, c.busbw_gbps, e.facts, r.labels, r.path AS file
FROM cases c JOIN runs r ON r.id = c.run JOIN case_keys k ON k.id = c.case_key
    JOIN environments e ON e.id = r.environment_id""",
    )


_POSTGRESQL_TIME = "to_timestamp(({us}) / 1000000.0::float8)"
_VIEWS = {
    "postgresql": (
        f"CREATE INDEX runs_time ON runs (({_POSTGRESQL_TIME.format(us=WHEN)}))",
        *_views(_POSTGRESQL_TIME, f"({_POSTGRESQL_TIME} AT TIME ZONE 'UTC')::date"),
    ),
    # Integers: date() of SQLite rounds to milliseconds, and its % takes the sign of the dividend.
    "sqlite": _views(
        "strftime('%Y-%m-%dT%H:%M:%fZ', ({us}) / 1000000.0, 'unixepoch')",
        f"date(({{us}} - ({{us}} % {DAY_US} + {DAY_US}) % {DAY_US}) / 1000000, 'unixepoch')",
    ),
}

VERSION = 4

_JSON = JSON().with_variant(JSONB(), "postgresql")
_ID: Any = BigInteger().with_variant(Integer(), "sqlite")  # SQLite's own row id is an INTEGER
_METADATA = MetaData()

_TYPES = {"str": Text, "int": BigInteger, "float": Double}  # of fields; what else they are is JSON


def _columns_of(row: type, without: str = "") -> list[Column[Any]]:
    """A column for each field of a dataclass but one; NULL where the field is None."""
    columns = []
    for each in fields(row):
        kind, _, optional = str(each.type).partition(" | ")
        if each.name != without:
            columns.append(Column(each.name, _TYPES.get(kind, _JSON), nullable=bool(optional)))
    return columns


# One row. Its columns are the same in every version, so that each can say which one it meets.
META = Table(
    "meta",
    _METADATA,
    Column("version", Integer, nullable=False),
    Column("torchcoll", Text, nullable=False),  # the release that made the tables of this version
    Column("created_us", BigInteger, nullable=False),
)
# Recorded facts and labels by name, shared by the runs that have the same.
ENVIRONMENTS = Table(
    "environments",
    _METADATA,
    Column("id", _ID, primary_key=True, autoincrement=False),
    Column("sha256", Text, nullable=False, unique=True),
    Column("facts", _JSON, nullable=False),
)
# collected_us: when this row was written, by the clock of the host that collected it, in
# microseconds of UTC since 1970.
RUNS = Table(
    "runs",
    _METADATA,
    Column("id", _ID, primary_key=True, autoincrement=False),
    *_columns_of(RunSummary, without="facts"),
    Column("environment_id", ForeignKey("environments.id"), nullable=False),
    Column("case_count", Integer, nullable=False),
    Column("collected_us", BigInteger, nullable=False),
    UniqueConstraint("run_id"),
    Index("runs_when", "start_us", "received_us", "node"),  # all that run_overview reads
    Index("runs_received", "received_us"),
    Index("runs_node", "node", "start_us"),
    Index("runs_environment", "environment_id"),
    Index("runs_path", "path"),
)
# ``key`` is the whole key as JSON; the columns repeat what queries filter by. name: as people name
# a case, such as ``all_reduce 1M float32 sum in place, 8 ranks, nccl synchronized``.
CASE_KEYS = Table(
    "case_keys",
    _METADATA,
    Column("id", _ID, primary_key=True, autoincrement=False),
    Column("sha256", Text, nullable=False, unique=True),
    Column("key", _JSON, nullable=False),
    Column("name", Text, nullable=False),
    Column("collective", Text, nullable=False),
    Column("size_bytes_requested", BigInteger, nullable=False),
    Column("dtype", Text),
    Column("op", Text),
    Column("in_place", Boolean),
    Column("backend", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("ranks", Integer, nullable=False),
    Column("statistic", Text, nullable=False),
    Column("clock", Text, nullable=False),
)
# repeat: 0, 1, ... where a run has measured the same case several times.
CASES = Table(
    "cases",
    _METADATA,
    Column("run", ForeignKey("runs.id"), nullable=False),
    Column("case_key", ForeignKey("case_keys.id"), nullable=False),
    Column("repeat", SmallInteger().with_variant(Integer(), "sqlite"), nullable=False),
    *_columns_of(CaseSummary, without="key"),
    PrimaryKeyConstraint("run", "case_key", "repeat"),
    # The rows of a run are then one behind the other on disk.
    sqlite_with_rowid=False,
)
# Files that were collected, so that the next collect need not read them. signature: size and time
# of the last change of the file and of those of --resume.
FILES = Table(
    "files",
    _METADATA,
    Column("host", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("signature", Text, nullable=False),
    Column("runs", Integer, nullable=False),
    PrimaryKeyConstraint("host", "path", "label"),
)
# What `torchcoll nightly` said after each night, of each device model and number of ranks (kind).
SNAPSHOTS = Table(
    "judged_nights",
    _METADATA,
    Column("kind", Text, nullable=False),
    Column("night", Integer, nullable=False),
    Column("snapshot", _JSON, nullable=False),
    PrimaryKeyConstraint("kind", "night"),
)
# What happened to incidents; rows are only ever added.
INCIDENT_RECORDS = Table(
    "incident_records",
    _METADATA,
    Column("kind", Text, nullable=False),
    *_columns_of(IncidentRecord),
    PrimaryKeyConstraint("kind", "incident", "night", "event"),
)
# The memory of the model before the last night, so that this night can be judged again when more
# of its runs have come.
MEMORY = Table(
    "model_memory",
    _METADATA,
    Column("kind", Text, primary_key=True),
    Column("night", Integer, nullable=False),
    Column("memory", LargeBinary, nullable=False),
)


def has_store(connection: Connection, name: str) -> bool:
    """Whether the database has a store of this version; False if it has no store at all. Raises
    UnreadableError for another version, UsageError for an SQLite file of another program.
    """
    tables = inspect(connection).get_table_names()
    if META.name not in tables:
        # A PostgreSQL database may well be shared, an SQLite file is not.
        if tables and connection.dialect.name == "sqlite":
            value = f"a table {min(tables)} of another program in {name}"
            raise UsageError("store", value, "an empty file, or a store")
        return False
    row = connection.execute(select(META.c.version, META.c.torchcoll)).one()
    if row.version == VERSION:
        return True
    action = "Collect the result files into a new store."
    if row.version > VERSION:
        newer = f"newer than {row.torchcoll}"
        if row.torchcoll != __version__:
            newer = f"{row.torchcoll} or newer"
        action = f"Use torchcoll {newer}."
    value = f"version {row.version} in {name}"
    raise UnreadableError("store", value, f"version {VERSION}", action)


@contextlib.contextmanager
def reading(address: StoreAddress) -> Iterator[Connection]:
    """Reads one state of a store. Raises UnreadableError unless it is one of this version."""
    with Database(address).reading() as connection:
        if not has_store(connection, address.name):
            value = f"a database without a store in {address.name}"
            action = f"torchcoll collect PATH... --into {address.name} makes one."
            raise UnreadableError("store", value, "one that torchcoll collect has written", action)
        yield connection


def prepare(connection: Connection, name: str) -> None:
    """Makes the tables where there are none.

    Call it inside a transaction that excludes other writers. Raises as ``has_store`` does.
    """
    if not has_store(connection, name):
        _METADATA.create_all(connection)
        for statement in _VIEWS[connection.dialect.name]:
            connection.execute(text(statement))
        now = int(time.time() * 1e6)
        values = {"version": VERSION, "torchcoll": __version__, "created_us": now}
        connection.execute(insert(META).values(values))


def next_id(connection: Connection, table: Table) -> int:
    """The first free id, which stays free: writers exclude each other."""
    highest = connection.execute(select(func.max(table.c.id))).scalar()
    return int(highest or 0) + 1

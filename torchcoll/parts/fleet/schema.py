"""The tables of a store and its views for dashboards.

The names of views end in the version of their columns: a view keeps its columns, and a change that
a dashboard would notice is a new view (``runs_v2``) beside the old one. SQLite has ``runs_v1`` and
``cases_v1``. PostgreSQL also has the views of a night, which read tables of medians: the median of
3.65 million rows takes longer than a dashboard may. ``mark_nights`` records which nights have
changed, ``refresh_nights`` computes these again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
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
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from torchcoll import __version__
from torchcoll.core.errors import UnreadableError, UsageError

# Of dates that both databases can show, from year 1 to 9999: a file may hold any number.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_000_000
_CLOCK_OFF_US = 300_000_000  # as in fleet/series.py
_NIGHT_START_US = 43_200_000_000  # 12:00 UTC, the default of --night-start
DAY_US = 86_400_000_000
_BATCH = 16  # nights in one transaction: other writers wait no longer than for that
_IDS = 500

_START = f"CASE WHEN start_us BETWEEN {_FIRST_US} AND {_LAST_US} THEN start_us END"
_RECEIVED = f"CASE WHEN received_us BETWEEN {_FIRST_US} AND {_LAST_US} THEN received_us END"
# SQL: the clock of the host was ahead; when a run began, or, where that is not recorded or cannot
# be right, when its file was written.
AHEAD = f"({_START}) > ({_RECEIVED}) + {_CLOCK_OFF_US}"
WHEN = f"CASE WHEN {_START} IS NULL OR {AHEAD} THEN {_RECEIVED} ELSE {_START} END"
_SIZE = """CASE
    WHEN k.size_bytes_requested >= 1073741824 AND k.size_bytes_requested % 1073741824 = 0
        THEN CAST(k.size_bytes_requested / 1073741824 AS TEXT) || 'G'
    WHEN k.size_bytes_requested >= 1048576 AND k.size_bytes_requested % 1048576 = 0
        THEN CAST(k.size_bytes_requested / 1048576 AS TEXT) || 'M'
    WHEN k.size_bytes_requested >= 1024 AND k.size_bytes_requested % 1024 = 0
        THEN CAST(k.size_bytes_requested / 1024 AS TEXT) || 'K'
    ELSE CAST(k.size_bytes_requested AS TEXT) END"""
# As people name a case: all_reduce 1M float32 sum in place, 8 ranks, nccl
_CASE_NAME = f"""k.collective || ' ' || {_SIZE} || COALESCE(' ' || k.dtype, '')
    || COALESCE(' ' || k.op, '')
    || CASE WHEN k.in_place THEN ' in place' WHEN NOT k.in_place THEN ' out of place' ELSE '' END
    || ', ' || CAST(k.ranks AS TEXT) || ' ranks, ' || k.backend || ' ' || k.mode"""
_CASE_COLUMNS = f"""{_CASE_NAME} AS case_name, k.collective,
    k.size_bytes_requested AS size_bytes, k.dtype, k.op, k.in_place, k.backend, k.mode, k.ranks,
    k.statistic, k.clock, k.sha256 AS case_sha256"""


def _runs_view(start: str, received: str, collected: str, when: str, night: str) -> str:
    return f"""CREATE VIEW runs_v1 AS
SELECT r.run_id, {night} AS night, {when} AS time_utc, {start} AS start_utc,
    {received} AS received_utc, {collected} AS collected_utc, r.node, r.hosts, r.ranks,
    r.device_name, r.status, r.exit_code, r.wall_s, r.case_count, e.facts, r.labels,
    r.path AS file, r.file_sha256
FROM runs r JOIN environments e ON e.id = r.environment_id"""


def _cases_view(when: str, night: str) -> str:
    return f"""CREATE VIEW cases_v1 AS
SELECT r.run_id, {night} AS night, {when} AS time_utc, r.node, r.device_name,
    r.status AS run_status, {_CASE_COLUMNS}, c.repeat, c.status, c.reason, c.verified, c.calls,
    c.time_ns, c.low_ns, c.high_ns, c.p99_ns, c.first_call_ns, c.second_call_ns,
    c.algbw_gbps, c.busbw_gbps, e.facts, r.labels, r.path AS file
FROM cases c JOIN runs r ON r.id = c.run JOIN case_keys k ON k.id = c.case_key
    JOIN environments e ON e.id = r.environment_id"""


def _postgresql_time(us: str) -> str:
    return f"to_timestamp(({us}) / 1000000.0::float8)"


def _sqlite_time(us: str) -> str:
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', ({us}) / 1000000.0, 'unixepoch')"


_POSTGRESQL_WHEN = _postgresql_time(WHEN)
# Immutable, so that it can be an index: subtracting an interval from a timestamptz is not.
_POSTGRESQL_NIGHT = (
    f"((to_timestamp((({WHEN}) - {_NIGHT_START_US}) / 1000000.0::float8)) AT TIME ZONE 'UTC')::date"
)
# Integers: date() of SQLite rounds to milliseconds, and its % takes the sign of the dividend.
_SINCE = f"(({WHEN}) - {_NIGHT_START_US})"
_SQLITE_NIGHT = (
    f"date(({_SINCE} - ({_SINCE} % {DAY_US} + {DAY_US}) % {DAY_US}) / 1000000, 'unixepoch')"
)
_NIGHT_UTC = "(night + time '12:00') AT TIME ZONE 'UTC' AS night_utc"

_NIGHT_FIGURES = ", ".join(
    f"{figure}_{which} float8"
    for figure in ("time_ns", "busbw_gbps", "first_call_ns")
    for which in ("median", "min", "max")
)
_POSTGRESQL = (
    # Of the runs of some nights, and of the few runs and cases that failed or are wrong.
    f"CREATE INDEX runs_night ON runs (({_POSTGRESQL_NIGHT}))",
    f"CREATE INDEX runs_time ON runs (({_POSTGRESQL_WHEN}))",
    "CREATE INDEX runs_bad ON runs (id) WHERE status <> 'complete'",
    "CREATE INDEX cases_bad ON cases (run) WHERE status IN ('wrong', 'failed')",
    "CREATE TABLE stale_nights (night date PRIMARY KEY)",
    "CREATE TABLE case_nights (night date NOT NULL, device_name text NOT NULL, "
    "case_key bigint NOT NULL REFERENCES case_keys, nodes integer NOT NULL, "
    f"wrong integer NOT NULL, failed integer NOT NULL, {_NIGHT_FIGURES}, "
    "PRIMARY KEY (night, device_name, case_key))",
    "CREATE TABLE node_nights (night date NOT NULL, node text NOT NULL, "
    "device_name text NOT NULL, ranks integer NOT NULL, runs integer NOT NULL, "
    "incomplete_runs integer NOT NULL, cases integer NOT NULL, wrong integer NOT NULL, "
    "failed integer NOT NULL, compared_cases integer NOT NULL, peers integer, "
    "time_ratio float8, worst_time_ratio float8, worst_case bigint REFERENCES case_keys, "
    "PRIMARY KEY (night, node, device_name, ranks))",
    "CREATE INDEX node_nights_node ON node_nights (node, night)",
    "CREATE TABLE environment_nights (night date NOT NULL, device_name text NOT NULL, "
    "environment_id bigint NOT NULL, nodes integer NOT NULL, runs integer NOT NULL, "
    "facts jsonb NOT NULL, PRIMARY KEY (night, device_name, environment_id))",
    _runs_view(
        _postgresql_time(_START),
        _postgresql_time(_RECEIVED),
        _postgresql_time("r.collected_us"),
        _POSTGRESQL_WHEN,
        _POSTGRESQL_NIGHT,
    ),
    _cases_view(_POSTGRESQL_WHEN, _POSTGRESQL_NIGHT),
    f"""CREATE VIEW case_nights_v1 AS
SELECT n.night, {_NIGHT_UTC.replace("night +", "n.night +")}, n.device_name, {_CASE_COLUMNS},
    n.nodes, n.wrong, n.failed, n.time_ns_median, n.time_ns_min, n.time_ns_max,
    n.busbw_gbps_median, n.busbw_gbps_min, n.busbw_gbps_max,
    n.first_call_ns_median, n.first_call_ns_min, n.first_call_ns_max
FROM case_nights n JOIN case_keys k ON k.id = n.case_key""",
    f"""CREATE VIEW node_nights_v1 AS
SELECT n.night, {_NIGHT_UTC.replace("night +", "n.night +")}, n.node, n.device_name, n.ranks,
    n.runs, n.incomplete_runs, n.cases, n.wrong, n.failed, n.compared_cases, n.peers,
    n.time_ratio, n.worst_time_ratio, {_CASE_NAME} AS worst_case_name
FROM node_nights n LEFT JOIN case_keys k ON k.id = n.worst_case""",
    f"""CREATE VIEW environment_nights_v1 AS
SELECT night, {_NIGHT_UTC}, device_name, nodes, runs, facts FROM environment_nights""",
)
_SQLITE = (
    _runs_view(
        _sqlite_time(_START),
        _sqlite_time(_RECEIVED),
        _sqlite_time("r.collected_us"),
        _sqlite_time(WHEN),
        _SQLITE_NIGHT,
    ),
    _cases_view(_sqlite_time(WHEN), _SQLITE_NIGHT),
)


# Nights that are to be computed again.
_MARK = (
    f"INSERT INTO stale_nights SELECT night FROM (SELECT DISTINCT {_POSTGRESQL_NIGHT} AS night "
    "FROM runs WHERE {chosen}) AS changed WHERE night IS NOT NULL ON CONFLICT DO NOTHING"
)


def create_views(connection: Connection) -> None:
    """Makes the views and the tables of nights; all nights are then to be computed."""
    postgresql = connection.dialect.name == "postgresql"
    for statement in _POSTGRESQL if postgresql else _SQLITE:
        connection.execute(text(statement))
    if postgresql:
        connection.execute(text(_MARK.replace("{chosen}", "true")))


def mark_nights(connection: Connection, runs: Sequence[int]) -> None:
    """Records that the nights of these runs change; call it before runs are removed."""
    if connection.dialect.name != "postgresql":
        return
    mark = text(_MARK.replace("{chosen}", "id = ANY(:ids)"))
    for start in range(0, len(runs), _IDS):
        connection.execute(mark, {"ids": list(runs[start : start + _IDS])})


def refresh_nights(connection: Connection) -> bool:
    """Computes up to 16 changed nights again, the latest first; False if none is left.

    Call it inside a transaction that excludes other writers.
    """
    if connection.dialect.name != "postgresql":
        return False
    query = text("SELECT night FROM stale_nights ORDER BY night DESC LIMIT :count")
    nights = [row.night for row in connection.execute(query, {"count": _BATCH})]
    if not nights:
        return False
    for statement in _REFRESH:
        connection.execute(text(statement), {"nights": nights} if ":nights" in statement else {})
    return True


_FIGURES = ("time_ns", "busbw_gbps", "first_call_ns")
_OK = "c.status = 'ok' AND c.time_ns > 0"
_MEDIANS = ", ".join(
    f"percentile_cont(0.5) WITHIN GROUP (ORDER BY c.{figure}) FILTER (WHERE {_OK}) AS {figure}"
    for figure in _FIGURES
)
_OVER_NODES = ", ".join(
    f"percentile_cont(0.5) WITHIN GROUP (ORDER BY {figure}), min({figure}), max({figure})"
    for figure in _FIGURES
)
# A node that has measured a case several times in a night counts once, with its median. A run over
# several hosts has no node; it is in the figures of its case alone.
_REFRESH = (
    f"""CREATE TEMPORARY TABLE night_figures ON COMMIT DROP AS
SELECT {_POSTGRESQL_NIGHT} AS night, r.device_name, r.ranks, r.node, c.case_key, {_MEDIANS},
    count(*) AS cases, count(*) FILTER (WHERE c.status = 'wrong') AS wrong,
    count(*) FILTER (WHERE c.status = 'failed') AS failed
FROM runs r JOIN cases c ON c.run = r.id
WHERE {_POSTGRESQL_NIGHT} = ANY(:nights) GROUP BY 1, 2, 3, 4, 5""",
    "ANALYZE night_figures",
    "DELETE FROM case_nights WHERE night = ANY(:nights)",
    f"""INSERT INTO case_nights
SELECT night, device_name, case_key, count(time_ns), sum(wrong), sum(failed), {_OVER_NODES}
FROM night_figures GROUP BY night, device_name, case_key""",
    "DELETE FROM node_nights WHERE night = ANY(:nights)",
    # time_ratio: of a node's time to the median of all nodes of its kind, the median over its
    # cases. peers: the other nodes that have the case that fewest of them have.
    f"""INSERT INTO node_nights
SELECT n.night, n.node, n.device_name, n.ranks, n.runs, n.incomplete_runs, COALESCE(f.cases, 0),
    COALESCE(f.wrong, 0), COALESCE(f.failed, 0), COALESCE(f.compared_cases, 0), f.peers,
    f.time_ratio, f.worst_time_ratio, f.worst_case
FROM (
    SELECT {_POSTGRESQL_NIGHT} AS night, node, device_name, ranks, count(*) AS runs,
        count(*) FILTER (WHERE status <> 'complete') AS incomplete_runs
    FROM runs WHERE {_POSTGRESQL_NIGHT} = ANY(:nights) AND node <> '' GROUP BY 1, 2, 3, 4
) AS n LEFT JOIN (
    SELECT night, node, device_name, ranks, sum(cases) AS cases, sum(wrong) AS wrong,
        sum(failed) AS failed, count(ratio) AS compared_cases,
        min(peers) FILTER (WHERE ratio IS NOT NULL) AS peers,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY ratio) AS time_ratio,
        max(ratio) AS worst_time_ratio,
        (array_agg(case_key ORDER BY ratio DESC, case_key)
            FILTER (WHERE ratio IS NOT NULL))[1] AS worst_case
    FROM (
        SELECT g.*, c.nodes - 1 AS peers,
            CASE WHEN c.nodes > 1 THEN g.time_ns / c.time_ns_median END AS ratio
        FROM night_figures g JOIN case_nights c USING (night, device_name, case_key)
    ) AS compared GROUP BY night, node, device_name, ranks
) AS f USING (night, node, device_name, ranks)""",
    "DELETE FROM environment_nights WHERE night = ANY(:nights)",
    f"""INSERT INTO environment_nights
SELECT n.night, n.device_name, n.environment_id, n.nodes, n.runs, e.facts FROM (
    SELECT {_POSTGRESQL_NIGHT} AS night, device_name, environment_id,
        count(DISTINCT node) AS nodes, count(*) AS runs
    FROM runs WHERE {_POSTGRESQL_NIGHT} = ANY(:nights) GROUP BY 1, 2, 3
) AS n JOIN environments e ON e.id = n.environment_id""",
    "DELETE FROM stale_nights WHERE night = ANY(:nights)",
    "DROP TABLE night_figures",
)


VERSION = 2

_JSON = JSON().with_variant(JSONB(), "postgresql")
_ID: Any = BigInteger().with_variant(Integer(), "sqlite")  # SQLite's own row id is an INTEGER
_METADATA = MetaData()

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
# Times are microseconds of UTC since 1970. received_us: when the file was last written.
# collected_us: when this row was written, by the clock of the host that collected it.
RUNS = Table(
    "runs",
    _METADATA,
    Column("id", _ID, primary_key=True, autoincrement=False),
    Column("run_id", Text, nullable=False, unique=True),
    Column("path", Text, nullable=False),
    Column("file_sha256", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("hosts", _JSON, nullable=False),
    Column("ranks", Integer, nullable=False),
    Column("device_name", Text, nullable=False),
    Column("start_us", BigInteger),
    Column("received_us", BigInteger),
    Column("collected_us", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("exit_code", BigInteger),
    Column("wall_s", Double),
    Column("environment_id", ForeignKey("environments.id"), nullable=False),
    Column("labels", _JSON, nullable=False),
    Column("case_count", Integer, nullable=False),
    Index("runs_when", "start_us", "received_us", "node"),  # all that run_overview reads
    Index("runs_received", "received_us"),
    Index("runs_node", "node", "start_us"),
    Index("runs_environment", "environment_id"),
    Index("runs_path", "path"),
)
# ``key`` is the whole key as JSON; the columns repeat what queries filter by.
CASE_KEYS = Table(
    "case_keys",
    _METADATA,
    Column("id", _ID, primary_key=True, autoincrement=False),
    Column("sha256", Text, nullable=False, unique=True),
    Column("key", _JSON, nullable=False),
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
    Column("status", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("time_ns", Double),
    Column("low_ns", Double),
    Column("high_ns", Double),
    Column("p99_ns", Double),
    Column("first_call_ns", Double),
    Column("second_call_ns", Double),
    Column("calls", BigInteger, nullable=False),
    Column("algbw_gbps", Double),
    Column("busbw_gbps", Double),
    Column("verified", Text, nullable=False),
    PrimaryKeyConstraint("run", "case_key", "repeat"),
    # The rows of a run are then one behind the other on disk.
    sqlite_with_rowid=False,
)
# Files that were collected, so that the next collect need not read them. signature: size and time
# of the last change of the file and of those of --resume. fingerprint: a hash of their content.
FILES = Table(
    "files",
    _METADATA,
    Column("host", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("signature", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("runs", Integer, nullable=False),
    PrimaryKeyConstraint("host", "path", "label"),
    Index("files_fingerprint", "fingerprint"),
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
    Column("incident", Text, nullable=False),
    Column("night", Integer, nullable=False),
    Column("event", Text, nullable=False),
    Column("since", Integer, nullable=False),
    Column("effect", Double, nullable=False),
    Column("low", Double, nullable=False),
    Column("high", Double, nullable=False),
    Column("accepted_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    PrimaryKeyConstraint("kind", "incident", "night", "event"),
)
# The memory of the model before the last night, so that this night can be judged again when more
# of its runs have come.
MEMORY = Table(
    "model_memory",
    _METADATA,
    Column("kind", Text, primary_key=True),
    Column("night", Integer, nullable=False),
    Column("night_start_us", BigInteger, nullable=False),
    Column("memory", LargeBinary, nullable=False),
)


def has_judgements(connection: Connection) -> bool:
    """Whether `torchcoll nightly` has written into this store."""
    return bool(inspect(connection).has_table(MEMORY.name))


def add_judgements(connection: Connection) -> None:
    """Makes the tables of `torchcoll nightly` where they are missing."""
    tables = [SNAPSHOTS, INCIDENT_RECORDS, MEMORY]
    _METADATA.create_all(connection, tables=tables, checkfirst=True)


def has_store(connection: Connection, name: str) -> bool:
    """Whether the database has a store of this version; False if it has no store at all.

    name: of the store, in messages. Raises UnreadableError for another version, UsageError for a
    database with tables of another program.
    """
    if connection.dialect.name == "sqlite":
        _check_tables(connection, name)
    inspector = inspect(connection)
    if inspector.has_table("meta"):
        if {each["name"] for each in inspector.get_columns("meta")} != set(META.columns.keys()):
            raise _foreign(name, "meta")
        row = connection.execute(select(META.c.version, META.c.torchcoll)).first()
        if row is None:
            raise _foreign(name, "meta")
        if row.version > VERSION:
            version = row.torchcoll
            newer = f"{version} or newer" if version != __version__ else f"newer than {version}"
            raise UnreadableError(
                "store",
                f"version {row.version} in {name}",
                f"version {VERSION}, the newest that torchcoll {__version__} reads",
                f"Use torchcoll {newer}.",
            )
        if row.version < VERSION:
            raise UnreadableError(
                "store",
                f"version {row.version} in {name}",
                f"version {VERSION}",
                "Collect the result files into a new store.",
            )
        return True
    tables = inspector.get_table_names()
    # A PostgreSQL database may well be shared, an SQLite file is not.
    strange = tables if connection.dialect.name == "sqlite" else set(tables) & {*_METADATA.tables}
    if strange:
        raise _foreign(name, min(strange))
    return False


def _check_tables(connection: Connection, name: str) -> None:
    """Raises UnreadableError for an SQLite file in which a table of a store computes what it
    returns: a view may run without an end, and a trigger writes what nobody asked for.
    """
    objects = connection.execute(text("SELECT type, name, sql FROM sqlite_master")).all()
    for kind, table, sql in objects:
        computed = kind == "trigger"
        if table in _METADATA.tables and kind in ("table", "view"):
            virtual = str(sql).lstrip().upper().startswith("CREATE VIRTUAL")
            columns = connection.execute(text(f"PRAGMA table_xinfo({table})"))
            computed = kind == "view" or virtual or any(column.hidden for column in columns)
        if computed:
            raise UnreadableError(
                "store",
                f"{name}, in which {table} is a {kind} that computes",
                "tables as torchcoll collect makes them",
                "Restore a copy of it, or collect the result files into a new store.",
            )


def check_current(connection: Connection, name: str) -> None:
    """Raises UnreadableError unless the database is a store of this version; for reading."""
    if not has_store(connection, name):
        raise UnreadableError(
            "store",
            f"a database without a store in {name}",
            "one that torchcoll collect has written",
            f"torchcoll collect PATH... --into {name} makes one.",
        )


def prepare(connection: Connection, name: str) -> None:
    """Makes the tables where there are none.

    Call it inside a transaction that excludes other writers. Raises as ``has_store`` does.
    """
    if not has_store(connection, name):
        _METADATA.create_all(connection)
        create_views(connection)
        now = int(time.time() * 1e6)
        values = {"version": VERSION, "torchcoll": __version__, "created_us": now}
        connection.execute(insert(META).values(values))


def next_id(connection: Connection, table: Table) -> int:
    """The first free id, which stays free: writers exclude each other."""
    highest = connection.execute(select(func.max(table.c.id))).scalar()
    return int(highest or 0) + 1


def _foreign(name: str, table: str) -> UsageError:
    return UsageError(
        "store",
        f"a table {table} of another program in {name}",
        "an empty database, or a store",
        "Name another file or database.",
    )

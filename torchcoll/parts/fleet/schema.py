"""The tables of a store, and how a store of an earlier version becomes one of this version."""

from __future__ import annotations

import time
from collections.abc import Callable
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
    update,
)
from sqlalchemy.dialects.postgresql import JSONB

from torchcoll import __version__
from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.parts.fleet.sql_views import create_views

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


def _add_views(connection: Connection) -> None:
    next(index for index in RUNS.indexes if index.name == "runs_when").create(connection)
    connection.execute(text("DROP INDEX runs_start"))  # the new one begins with its column
    create_views(connection)


Migration = Callable[[Connection], None]
# MIGRATIONS[n] makes a store of version n one of version n + 1, inside a transaction.
MIGRATIONS: dict[int, Migration] = {1: _add_views}


def stored_version(connection: Connection, name: str) -> int | None:
    """The version of a store, None of a database that is empty as far as a store is concerned.

    name: of the store, in messages. Raises UnreadableError for a newer version, UsageError for a
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
        return int(row.version)
    tables = inspector.get_table_names()
    # A PostgreSQL database may well be shared, an SQLite file is not.
    strange = tables if connection.dialect.name == "sqlite" else set(tables) & {*_METADATA.tables}
    if strange:
        raise _foreign(name, min(strange))
    return None


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
    version = stored_version(connection, name)
    if version is None:
        raise UnreadableError(
            "store",
            f"a database without a store in {name}",
            "one that torchcoll collect has written",
            f"torchcoll collect PATH... --into {name} makes one.",
        )
    if version < VERSION:
        raise UnreadableError(
            "store",
            f"version {version} in {name}",
            f"version {VERSION}",
            f"torchcoll collect PATH... --into {name} brings it up to date.",
        )


def prepare(connection: Connection, name: str) -> None:
    """Makes the tables where there are none, or migrates those of an earlier version.

    Call it inside a transaction that excludes other writers. Raises as ``stored_version`` does.
    """
    version = stored_version(connection, name)
    if version is None:
        _METADATA.create_all(connection)
        create_views(connection)
        now = int(time.time() * 1e6)
        values = {"version": VERSION, "torchcoll": __version__, "created_us": now}
        connection.execute(insert(META).values(values))
        return
    for step in range(version, VERSION):
        MIGRATIONS[step](connection)
        values = {"version": step + 1, "torchcoll": __version__}
        connection.execute(update(META).values(values))


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

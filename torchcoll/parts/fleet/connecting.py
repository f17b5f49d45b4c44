"""Connections to a store: transactions that exclude other writers, waiting, and clear errors."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from torchcoll.core.errors import (
    DiskFullError,
    TorchcollError,
    UnavailableError,
    UnreadableError,
    UsageError,
    brief,
    one_line,
)
from torchcoll.parts.fleet.address import StoreAddress

WAIT_S = 30.0  # for a store that is locked, or a server that has gone
_PAUSE_S = 0.5
_ADVISORY_LOCK = 0x746F7263_68636F6C  # 'torchcol'
# SQLSTATE of what another try may not meet: lost connections, a server that starts or stops,
# deadlocks, serialization; a foreign key whose row another writer removed.
_TRANSIENT = ("08", "40", "57P", "23503")
_LOCK_NOT_AVAILABLE = "55P03"
# What SQLite says of its surroundings; whatever else it says is of the file.
_SURROUNDINGS = ("disk i/o error", "unable to open", "readonly")
# What reading rows raises where they are not as torchcoll writes them.
_DAMAGED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_NO_STATE = object()

Result = TypeVar("Result")


class Database:
    """A store, to which each transaction connects anew.

    SQLite keeps its rollback journal: WAL would need shared memory, which network file systems
    lack, and files beside the store; and with it a store that is deleted while a collector writes
    would go unnoticed.
    """

    def __init__(self, address: StoreAddress, *, create: bool = False) -> None:
        self.address = address
        self.name = address.name
        self._create = create
        if address.path is not None:
            mode = "rwc" if create else "rw"  # rw reads a file that is write-protected, too
            uri = f"file:{quote(str(address.path))}?mode={mode}"
            self.engine = create_engine(
                "sqlite://",
                creator=lambda: sqlite3.connect(
                    uri, uri=True, timeout=WAIT_S, isolation_level=None, check_same_thread=False
                ),
                poolclass=NullPool,
                hide_parameters=True,
            )
            event.listen(self.engine, "connect", _set_up_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        else:
            self.engine = _postgresql_engine(address)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the store, whatever is written meanwhile."""
        options = {}
        if self.address.path is None:
            options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with (
            self.explained(),
            self.engine.connect() as connection,
            connection.execution_options(**options).begin(),
        ):
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that excludes other writers of the store; commits unless it raises."""
        with (
            self.engine.connect() as connection,
            connection.execution_options(torchcoll_writes=True).begin(),
        ):
            if self.address.path is None:
                milliseconds = int(WAIT_S * 1000)
                connection.execute(text(f"SET LOCAL lock_timeout = {milliseconds}"))
                lock = text("SELECT pg_advisory_xact_lock(:key)")
                connection.execute(lock, {"key": _ADVISORY_LOCK})
            yield connection

    def write(self, work: Callable[[Connection], Result]) -> Result:
        """Calls ``work`` in a transaction, again where another try may succeed, for 30 s.

        work: must be idempotent, and may find that what it read earlier has been pruned. Raises
        UnavailableError for a store that stays locked or has gone.
        """
        deadline = time.monotonic() + WAIT_S
        pause = _PAUSE_S
        while True:
            try:
                with self.explained(), self.writing() as connection:
                    return work(connection)
            except TorchcollError as error:
                again = _is_transient(error.__cause__)
                if not again or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Raises errors of the database, and of rows that no store has, as one-line errors of
        torchcoll.
        """
        try:
            yield
        except TorchcollError:
            raise
        except DBAPIError as error:
            raise self._explain(error.orig) from error.orig
        except _DAMAGED as error:
            if self.address.path is None:
                raise
            raise self._damaged(f"{type(error).__name__}: {brief(error)}") from error

    def _explain(self, error: BaseException | None) -> TorchcollError:
        message = one_line(str(error).partition("\n")[0])
        value, expected = f"{self.name}: {message}", "a usable store"
        action = "What was collected before is kept: run the command again."
        path = self.address.path
        # Python 3.10 has no names of SQLite's errors.
        if _sqlstate(error) == _LOCK_NOT_AVAILABLE or (path and "locked" in message):
            value = f"{self.name} locked by another program for {WAIT_S:g} s"
            expected = "a store that is free"
        elif path is None:
            action = action if _sqlstate(error) else f"Is the server running? {action}"
        elif not path.exists() and self._create:
            value, expected = self.name, "a file that can be created"
            action = f"Is {path.parent} writable?"
        elif not path.exists():
            value = f"{self.name}: deleted while it was written"
            action = "Run the command again."
        elif "is full" in message:
            action = "What was collected before is kept: make room, then run the command again."
            return DiskFullError("store", value, "room for it on the disk", action)
        elif not any(text in message.lower() for text in _SURROUNDINGS):
            return self._damaged(message)
        return UnavailableError("store", value, expected, action)

    def _damaged(self, why: str) -> UnreadableError:
        action = "Restore a copy of it, or collect the result files into a new store."
        expected = "an SQLite file as torchcoll collect writes it"
        return UnreadableError("store", f"{self.name}, damaged: {why}", expected, action)


def _postgresql_engine(address: StoreAddress) -> Engine:
    try:
        url = make_url(f"postgresql+psycopg://{address.url}")
    except (ArgumentError, ValueError):
        raise UsageError("store", address.name, "postgresql://USER@HOST:PORT/DATABASE") from None
    defaults = {"connect_timeout": 10, "application_name": "torchcoll"}
    arguments = {name: value for name, value in defaults.items() if name not in url.query}
    return create_engine(url, connect_args=arguments, poolclass=NullPool, hide_parameters=True)


def _set_up_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")  # no functions of a schema with side effects
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA cache_size = -32768")  # KiB: the index of run_ids of a year


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that begins as a reader and then writes fails at once where another writes.
    writes = connection.get_execution_options().get("torchcoll_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _is_transient(error: BaseException | None) -> bool:
    """Whether another try may succeed. SQLite has waited itself where the store is locked; where
    another writer removed what this one referred to, it may succeed.
    """
    if isinstance(error, sqlite3.Error):
        return isinstance(error, sqlite3.IntegrityError)
    state = _sqlstate(error)
    return state is not None and (not state or state.startswith(_TRANSIENT))


def _sqlstate(error: BaseException | None) -> str | None:
    """'' where the connection itself failed, None of what is no error of PostgreSQL."""
    state = getattr(error, "sqlstate", _NO_STATE)
    return None if state is _NO_STATE else str(state or "")


_BATCH = 500  # values of an IN: SQLite before 3.32 takes 999


def batches(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), _BATCH):
        yield values[start : start + _BATCH]

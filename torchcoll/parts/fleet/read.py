"""A store read into columns, without a Python object for each case, or into one Parquet file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, BinaryIO

import numpy as np
from sqlalchemy import ColumnElement, Connection, and_, literal_column, or_, select, text

from torchcoll.core.errors import UnavailableError, install_text
from torchcoll.core.result import check_ranks
from torchcoll.parts.fleet import series
from torchcoll.parts.fleet.address import StoreAddress
from torchcoll.parts.fleet.connecting import Database, batches
from torchcoll.parts.fleet.records import OK, CaseKey
from torchcoll.parts.fleet.schema import (
    AHEAD,
    CASE_KEYS,
    CASES,
    DAY_US,
    ENVIRONMENTS,
    RUNS,
    WHEN,
    check_current,
)

Array = np.ndarray[Any, Any]

_ROWS = 1 << 16
_MOST_DAYS = 1_000_000  # more than there are between year 1 and 1970
_MOST_NAMED = 20_000  # runs: of more, all cases between the first and the last are read

# The time that may be compared, as SummariesBuilder decides it, and the index into STATUSES.
_TIME = f"CASE WHEN status = '{OK}' AND time_ns > 0 THEN time_ns ELSE {{missing}} END"
_STATUS_CASES = (f"WHEN '{status}' THEN {index}" for index, status in enumerate(series.STATUSES))
_STATUS = f"CASE status {' '.join(_STATUS_CASES)} END"

# COPY in binary begins with a header of 19 bytes. A row is its number of fields, and the length
# and the value of each.
_COPY_HEADER = 19
_COPY_ROW = np.dtype(
    [
        *(("fields", ">i2"), ("run_bytes", ">i4"), ("run", ">i8"), ("key_bytes", ">i4")),
        *(("key", ">i8"), ("time_bytes", ">i4"), ("time_ns", ">f8")),
        *(("status_bytes", ">i4"), ("status", ">i2")),
    ]
)


def summaries_of_store(
    address: StoreAddress,
    since_us: int | None = None,
    until_us: int | None = None,
    nodes: Collection[str] | None = None,
    *,
    nights: bool = False,
) -> series.Summaries:
    """Reads the runs of a store that began in [since_us, until_us), of these nodes, or all.

    A run whose start is not recorded counts by when it was received; nights: so does one whose
    clock was ahead, as where runs are divided into nights. Raises UnreadableError for a store of
    another version, UnavailableError for one that cannot be used now.
    """
    database = Database(address)
    chosen = _condition(since_us, until_us, nodes)
    if nights and since_us is not None and until_us is not None:
        # The times as they are come first: they have an index.
        times = (RUNS.c.start_us, RUNS.c.received_us)
        either = [column.between(since_us, until_us) for column in times]
        condition = f"({WHEN} >= {since_us} AND {WHEN} < {until_us})"
        when: ColumnElement[bool] = literal_column(condition)
        chosen = [or_(*either), when, *_condition(None, None, nodes)]
    with database.reading() as connection:
        check_current(connection, database.name)
        return _read(connection, chosen)


def run_overview(address: StoreAddress, night_start_us: int) -> series.RunOverview:
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
        nodes = connection.execute(text(of_nodes)).all()
        ahead = connection.execute(text(f"SELECT DISTINCT node FROM runs WHERE {AHEAD}")).scalars()
        clocks = tuple(sorted(ahead))
        _check_texts(*clocks, *(name for name, *_ in nodes))
        return series.RunOverview(
            tuple(sorted(int(night) - _MOST_DAYS for night in counts if night is not None)),
            {
                name: (int(first) - _MOST_DAYS, int(last) - _MOST_DAYS)
                for name, first, last in nodes
                if first is not None
            },
            counts.get(None, 0),
            clocks,
        )


def in_period(since_us: int | None, until_us: int | None) -> list[ColumnElement[bool]]:
    """The condition on RUNS that ``summaries_of_store`` describes; none without limits."""
    if since_us is None and until_us is None:
        return []

    def within(column: ColumnElement[int]) -> ColumnElement[bool]:
        low = [] if since_us is None else [column >= since_us]
        high = [] if until_us is None else [column < until_us]
        return and_(*low, *high)

    received = and_(RUNS.c.start_us.is_(None), within(RUNS.c.received_us))
    return [or_(within(RUNS.c.start_us), received)]


def _condition(
    since_us: int | None, until_us: int | None, nodes: Collection[str] | None
) -> list[ColumnElement[bool]]:
    chosen = in_period(since_us, until_us)
    if nodes is not None:
        chosen.append(RUNS.c.node.in_(sorted(nodes)))
    return chosen


def _read(connection: Connection, chosen: Sequence[ColumnElement[bool]]) -> series.Summaries:
    node_names, strata, environment_ids = series.Interned(), series.Interned(), series.Interned()
    run_ids: list[str] = []
    paths: list[str] = []
    columns: list[list[Array]] = [[] for _ in range(7)]
    query = select(
        RUNS.c.id,
        RUNS.c.run_id,
        RUNS.c.path,
        RUNS.c.node,
        RUNS.c.environment_id,
        RUNS.c.device_name,
        RUNS.c.ranks,
        RUNS.c.start_us,
        RUNS.c.received_us,
        RUNS.c.status,
    )
    result = connection.execution_options(yield_per=_ROWS // 8).execute(
        query.where(*chosen).order_by(RUNS.c.id)
    )
    for rows in result.partitions():
        values: list[list[int]] = [[] for _ in columns]
        for number, run_id, path, name, environment_id, device, ranks, began, came, ended in rows:
            _check_texts(run_id, path, name, device)
            check_ranks(ranks)
            run_ids.append(run_id)
            paths.append(path)
            row = (
                number,
                node_names.number(name),
                environment_ids.number(environment_id),
                strata.number((device, ranks)),
                series.UNKNOWN_START if began is None else began,
                series.UNKNOWN_START if came is None else came,
                series.RUN_STATUSES.index(ended if ended in series.RUN_STATUSES else "failed"),
            )
            for column, value in zip(values, row, strict=True):
                column.append(value)
        for chunks, column in zip(columns, values, strict=True):
            chunks.append(np.array(column, dtype=np.int64))
    row_ids, node, environment, stratum, start, received, status = map(_joined, columns)

    run, key_id, time_ns, case_status = _read_cases(connection, row_ids, bool(chosen))
    key_ids, index_of_key = _used(connection.execute(select(CASE_KEYS.c.id)).scalars(), key_id)
    keys = _by_id(connection, CASE_KEYS.c.id, CASE_KEYS.c.key, key_ids.tolist())
    facts = _by_id(connection, ENVIRONMENTS.c.id, ENVIRONMENTS.c.facts, environment_ids.values)
    for each in facts.values():
        _check_texts(*each.keys(), *each.values())
    return series.Summaries(
        run_ids,
        paths,
        node_names.values,
        [dict(facts[number]) for number in environment_ids.values],
        strata.values,
        [CaseKey.from_json(keys[number]) for number in key_ids.tolist()],
        node.astype(np.int32),
        environment.astype(np.int32),
        stratum.astype(np.int32),
        start,
        received,
        status.astype(np.int8),
        run,
        index_of_key,
        time_ns,
        case_status,
    )


def _check_texts(*values: object) -> None:
    """Raises TypeError unless all are texts: a column of SQLite may hold anything."""
    if not all(isinstance(value, str) for value in values):
        raise TypeError("a column of texts has something else")


def _used(ids: Iterable[int], chosen: Array) -> tuple[Array, Array]:
    """(the ids among ``chosen``, ascending; the index into them of each of ``chosen``).

    ids: of all rows of a table. Raises ValueError for an id that no row has.
    """
    row_ids = np.sort(np.fromiter(ids, np.int64))
    index = np.searchsorted(row_ids, chosen)
    if len(chosen) and (index.max() == len(row_ids) or (row_ids[index] != chosen).any()):
        raise ValueError("a case whose key is not in the store")
    used = np.flatnonzero(np.bincount(index, minlength=len(row_ids)))
    position = np.zeros(len(row_ids), dtype=np.int32)
    position[used] = np.arange(len(used), dtype=np.int32)
    return row_ids[used], position[index]


def _read_cases(connection: Connection, row_ids: Array, some: bool) -> list[Array]:
    """[run index, key id, time_ns, status index] of the cases of these runs, run by run.

    row_ids: of the runs, ascending. some: they are not all runs of the store.
    """
    conditions = [""]
    if some and len(row_ids) <= _MOST_NAMED:
        conditions = [f"WHERE run IN ({str(batch)[1:-1]})" for batch in batches(row_ids.tolist())]
    elif some:
        conditions = [f"WHERE run BETWEEN {row_ids[0]} AND {row_ids[-1]}"]
    types = (np.int32, np.int32, np.float64, np.int8)
    chunks: list[list[Array]] = [[np.array([], dtype=each)] for each in types]
    blocks = _sqlite_blocks if connection.dialect.name == "sqlite" else _postgresql_blocks
    for condition in conditions if len(row_ids) else ():
        for run_id, *others in blocks(connection, condition):
            index = np.searchsorted(row_ids, run_id)
            index[index == len(row_ids)] = 0
            kept = row_ids[index] == run_id
            for column, values, kind in zip(chunks, (index, *others), types, strict=True):
                column.append((values if kept.all() else values[kept]).astype(kind))
    columns = [_joined(column) for column in chunks]
    if (np.diff(columns[0]) < 0).any():  # PostgreSQL returns rows as they lie
        order = np.argsort(columns[0], kind="stable")
        columns = [column[order] for column in columns]
    return columns


def _sqlite_blocks(connection: Connection, condition: str) -> Iterator[tuple[Array, ...]]:
    """(run id, key id, time_ns, status index), many rows at once."""
    cursor = connection.connection.driver_connection.cursor()  # type: ignore[union-attr]
    cursor.execute(
        f"SELECT run, case_key, {_TIME.format(missing='-1.0')}, {_STATUS} "
        f"FROM cases {condition} ORDER BY run, case_key, repeat"
    )
    while rows := cursor.fetchmany(_ROWS):
        flat = itertools.chain.from_iterable(rows)
        # A double holds the integers: an id beyond 2^53 would take longer than anybody has.
        table = np.fromiter(flat, np.float64, 4 * len(rows)).reshape(-1, 4)
        if not (np.abs(table[:, [0, 1, 3]]) < [1 << 53, 1 << 31, 128]).all():
            raise ValueError("a number that no case has")
        time_ns = table[:, 2].copy()
        time_ns[time_ns < 0] = np.nan
        yield table[:, 0].astype(np.int64), table[:, 1], time_ns, table[:, 3]


def _postgresql_blocks(connection: Connection, condition: str) -> Iterator[tuple[Array, ...]]:
    """As ``_sqlite_blocks``, by COPY in binary: its rows are an array as they come."""
    cursor = connection.connection.driver_connection.cursor()  # type: ignore[union-attr]
    time_ns = _TIME.format(missing="'NaN'")
    query = (
        f"SELECT run::int8, case_key::int8, ({time_ns})::float8, "
        f"({_STATUS})::int2 FROM cases {condition}"
    )
    buffer = bytearray()
    header = _COPY_HEADER
    with cursor, cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT BINARY)") as copy:
        for data in copy:
            buffer += data
            if len(buffer) >= _ROWS * _COPY_ROW.itemsize:
                yield _parse_copy(buffer, header)
                header = 0
    yield _parse_copy(buffer, header)


def _parse_copy(buffer: bytearray, header: int) -> tuple[Array, ...]:
    """Takes the whole rows out of the buffer; the two bytes of the trailer are less than a row."""
    count = max(0, len(buffer) - header) // _COPY_ROW.itemsize
    end = header + count * _COPY_ROW.itemsize
    rows = np.frombuffer(bytes(buffer[header:end]), dtype=_COPY_ROW)
    del buffer[:end]
    return rows["run"].astype(np.int64), rows["key"], rows["time_ns"], rows["status"]


def _by_id(
    connection: Connection, number: Any, value: Any, chosen: Sequence[int]
) -> dict[int, Any]:
    """Values of a table by id, of these ids."""
    values: dict[int, Any] = {}
    for batch in batches(chosen):
        rows = connection.execute(select(number, value).where(number.in_(batch)))
        values |= {row[0]: row[1] for row in rows}
    return values


def _joined(chunks: list[Array]) -> Array:
    """One column of its chunks, which are let go: twice the memory for one column at a time."""
    column = np.concatenate(chunks) if chunks else np.array([], dtype=np.int64)
    chunks.clear()
    return column


_ROW_GROUP = 1 << 16  # of a row group: what is in memory at once
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

# Column of the file -> column of the store; names as in the rows of torchcoll show --format json
# where they mean the same.
_TIMES = {
    "start_utc": RUNS.c.start_us,
    "received_utc": RUNS.c.received_us,
    "collected_utc": RUNS.c.collected_us,
}
_TEXTS_OF_JSON = {
    "hosts": RUNS.c.hosts,
    "labels": RUNS.c.labels,
    "facts": ENVIRONMENTS.c.facts,
}
_OTHERS = {
    "run_id": RUNS.c.run_id,
    "file": RUNS.c.path,
    "file_sha256": RUNS.c.file_sha256,
    "node": RUNS.c.node,
    "device_name": RUNS.c.device_name,
    "run_status": RUNS.c.status,
    "exit_code": RUNS.c.exit_code,
    "wall_s": RUNS.c.wall_s,
    **{name: CASE_KEYS.c[name] for name in ("collective", "size_bytes_requested", "dtype", "op")},
    **{name: CASE_KEYS.c[name] for name in ("in_place", "backend", "mode", "ranks")},
    **{name: CASE_KEYS.c[name] for name in ("statistic", "clock")},
    "case_sha256": CASE_KEYS.c.sha256,
    "repeat": CASES.c.repeat,
    **{name: CASES.c[name] for name in CASES.columns.keys()[3:]},  # the figures
}


def write_store_parquet(address: StoreAddress, file: BinaryIO) -> int:
    """Writes all cases of a store and returns how many there are.

    Raises UnavailableError where pyarrow is not installed, otherwise as ``Database.reading``.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UnavailableError(
            "parquet",
            "no library for it",
            "pyarrow",
            install_text("parquet"),
        ) from None
    columns: dict[str, ColumnElement[Any]] = {**_OTHERS, **_TIMES, **_TEXTS_OF_JSON}
    kinds = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    types = {
        name: kinds.get(column.type.python_type, pyarrow.string())
        for name, column in _OTHERS.items()
    }
    types |= dict.fromkeys(_TIMES, pyarrow.timestamp("us", tz="UTC"))
    types |= dict.fromkeys(_TEXTS_OF_JSON, pyarrow.string())
    schema = pyarrow.schema(types.items())
    query = (
        select(*(column.label(name) for name, column in columns.items()))
        .select_from(_cases_of_runs())
        .order_by(CASES.c.run, CASES.c.case_key, CASES.c.repeat)
    )
    database = Database(address)
    count = 0
    with database.reading() as connection, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        check_current(connection, address.name)
        result = connection.execution_options(yield_per=_ROW_GROUP).execute(query)
        for rows in result.partitions():
            values = dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
            for name in _TIMES:
                values[name] = [_datetime(each) for each in values[name]]
            for name in _TEXTS_OF_JSON:
                values[name] = [json.dumps(each, sort_keys=True) for each in values[name]]
            writer.write_table(pyarrow.table(values, schema=schema))
            count += len(rows)
    return count


def _cases_of_runs() -> Any:
    return (
        CASES.join(RUNS, CASES.c.run == RUNS.c.id)
        .join(CASE_KEYS, CASES.c.case_key == CASE_KEYS.c.id)
        .join(ENVIRONMENTS, RUNS.c.environment_id == ENVIRONMENTS.c.id)
    )


def _datetime(us: int | None) -> datetime | None:
    """None where no calendar has the time."""
    try:
        return None if us is None else _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return None

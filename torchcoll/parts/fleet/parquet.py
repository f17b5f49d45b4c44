"""A store as one Parquet file, for Spark, Trino and BigQuery: a row per case of each run."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any, BinaryIO

from sqlalchemy import ColumnElement, select

from torchcoll.core.errors import UnavailableError
from torchcoll.parts.fleet.address import StoreAddress
from torchcoll.parts.fleet.connecting import Database
from torchcoll.parts.fleet.schema import CASE_KEYS, CASES, ENVIRONMENTS, RUNS, check_current

_ROWS = 1 << 16  # of a row group: what is in memory at once
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
            "parquet", "no library for it", "pyarrow", "Install torchcoll[parquet]."
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
        .select_from(_joined())
        .order_by(CASES.c.run, CASES.c.case_key, CASES.c.repeat)
    )
    database = Database(address)
    count = 0
    with database.reading() as connection, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        check_current(connection, address.name)
        result = connection.execution_options(yield_per=_ROWS).execute(query)
        for rows in result.partitions():
            values = dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
            for name in _TIMES:
                values[name] = [_datetime(each) for each in values[name]]
            for name in _TEXTS_OF_JSON:
                values[name] = [json.dumps(each, sort_keys=True) for each in values[name]]
            writer.write_table(pyarrow.table(values, schema=schema))
            count += len(rows)
    return count


def _joined() -> Any:
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

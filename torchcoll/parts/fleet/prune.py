"""``torchcoll collect --prune``: removes old runs from a store."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, delete, func, or_, select

from torchcoll.core.errors import UsageError
from torchcoll.core.units import counted
from torchcoll.parts.fleet.address import StoreAddress
from torchcoll.parts.fleet.connecting import Database
from torchcoll.parts.fleet.schema import ENVIRONMENTS, FILES, RUNS, check_current, prepare
from torchcoll.parts.fleet.sql_views import refresh_nights
from torchcoll.parts.fleet.writer import remove_runs

_BATCH = 2000  # runs in one transaction: collectors wait no longer than for that


@dataclass
class Pruned:
    """What was removed (or would be), and what is left. spared: old runs that were asked to stay.
    unknown: run ids to spare that the store does not have.
    """

    runs: int = 0
    cases: int = 0
    spared: int = 0
    left: int = 0
    unknown: tuple[str, ...] = ()


def prune(
    address: StoreAddress, before_us: int, spare: Collection[str] = (), *, dry_run: bool = False
) -> Pruned:
    """Removes the runs that began and were received before a time, but for those to spare.

    Where one of the two times is not recorded the other counts; a run with neither stays. The
    files of removed runs stay known, so that the next collect does not bring the runs back, until
    they are deleted from this host. Raises as ``Database.write`` and ``schema.prepare`` do,
    and UsageError where none of the runs to spare is in the store.
    """
    database = Database(address)
    if not dry_run:
        database.write(functools.partial(prepare, name=address.name))
    with database.reading() as connection:
        check_current(connection, address.name)
        rows = connection.execute(
            select(RUNS.c.id, RUNS.c.run_id, RUNS.c.case_count).where(_older(before_us))
        ).all()
        total = connection.execute(select(func.count()).select_from(RUNS)).scalar() or 0
        stored = {
            run_id
            for run_id in spare
            if connection.execute(select(RUNS.c.id).where(RUNS.c.run_id == run_id)).first()
        }
        doomed = {row.id: int(row.case_count) for row in rows if row.run_id not in stored}
    if spare and not stored:  # the wrong file: it would protect nothing
        value = f"{counted(len(set(spare)), 'line')}, none a run of {address.name}"
        raise UsageError("spare", value, "ids of runs in the store")
    pruned = Pruned(
        spared=len(rows) - len(doomed),
        unknown=tuple(sorted(set(spare) - stored)),
    )
    if dry_run:
        pruned.runs, pruned.cases = len(doomed), sum(doomed.values())
    else:
        ids = list(doomed)
        for start in range(0, len(ids), _BATCH):
            batch = ids[start : start + _BATCH]
            pruned.cases += database.write(functools.partial(remove_runs, ids=batch))
            pruned.runs += len(batch)
        database.write(_remove_unused)
        while database.write(refresh_nights):
            pass
    pruned.left = total - pruned.runs
    return pruned


def _older(before_us: int) -> ColumnElement[bool]:
    start, received = RUNS.c.start_us, RUNS.c.received_us
    return and_(
        or_(start < before_us, and_(start.is_(None), received.is_not(None))),
        or_(received < before_us, received.is_(None)),
    )


def _remove_unused(connection: Connection) -> None:
    """Removes environments of no run, and files that have gone from this host."""
    used = select(RUNS.c.environment_id)
    connection.execute(delete(ENVIRONMENTS).where(ENVIRONMENTS.c.id.not_in(used)))
    host = socket.gethostname()
    paths = connection.execute(select(FILES.c.path).where(FILES.c.host == host).distinct())
    for path in [row.path for row in paths if not os.path.lexists(row.path)]:
        connection.execute(delete(FILES).where(FILES.c.host == host, FILES.c.path == path))

"""Runs and their cases written into a store, many in one transaction and each once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, Table, and_, bindparam, delete, insert, select

from torchcoll.core.units import format_size
from torchcoll.parts.fleet.address import StoreAddress
from torchcoll.parts.fleet.connecting import Database, batches
from torchcoll.parts.fleet.records import CaseKey, CaseSummary, RunSummary, sha256_of
from torchcoll.parts.fleet.schema import (
    CASE_KEYS,
    CASES,
    ENVIRONMENTS,
    FILES,
    RUNS,
    next_id,
    prepare,
)

_RANK = {"truncated": 0, "interrupted": 1, "failed": 1, "complete": 2}
_OF_RUN = [
    each.name for each in fields(RunSummary) if each.name not in ("facts", "hosts", "labels")
]
_FIGURES = [each.name for each in fields(CaseSummary) if each.name != "key"]

RunWithCases = tuple[RunSummary, Sequence[CaseSummary]]


class StoreWriter:
    """Writes to a store, which it makes first.

    Raises as ``Database.write`` does, and as ``schema.prepare``.
    """

    def __init__(self, address: StoreAddress) -> None:
        Database(address, create=True).write(partial(prepare, name=address.name))
        # This one makes no file in the place of a store that is deleted meanwhile.
        self.database = Database(address)

    def write(
        self, runs: Sequence[RunWithCases], files: Sequence[Mapping[str, Any]] = ()
    ) -> Counter[str]:
        """Writes the runs, and that the files were collected, in one transaction; returns how many
        ``runs`` and ``cases`` are new, and how many runs are ``unchanged`` and ``replaced``.

        files: rows of the table. A run that is there is replaced if it has ended since, or has more
        cases, or its file at the same path has changed.
        """
        # Of two files of one run in a batch the one that has more of it counts.
        best: dict[str, RunWithCases] = {}
        for run, cases in runs:
            stored = best.get(run.run_id)
            if stored is None or _completeness(run, cases) > _completeness(*stored):
                best[run.run_id] = (run, cases)
        doubled = len(runs) - len(best)
        return self.database.write(partial(_write, runs=best, files=files, unchanged=doubled))

    def known_files(self, host: str, paths: Sequence[str]) -> dict[tuple[str, str], Any]:
        """The rows of the files of this host that were collected, by path and label."""
        query = select(FILES).where(FILES.c.host == host)
        with self.database.reading() as connection:
            return {
                (row.path, row.label): row
                for batch in batches(paths)
                for row in connection.execute(query.where(FILES.c.path.in_(batch)))
            }


def _write(
    connection: Connection,
    runs: Mapping[str, RunWithCases],
    files: Sequence[Mapping[str, Any]],
    unchanged: int,
) -> Counter[str]:
    counts = Counter(unchanged=unchanged)
    stored = {
        row.run_id: row
        for batch in batches(list(runs))
        for row in connection.execute(select(RUNS).where(RUNS.c.run_id.in_(batch)))
    }
    chosen: list[tuple[int, RunSummary, Sequence[CaseSummary]]] = []
    replaced: list[int] = []
    free = next_id(connection, RUNS)
    for run_id, (run, cases) in runs.items():
        row = stored.get(run_id)
        if row is None:
            chosen.append((free, run, cases))
            free += 1
            counts["runs"] += 1
            counts["cases"] += len(cases)
        elif _is_newer(run, cases, row):
            chosen.append((row.id, run, cases))
            replaced.append(row.id)
            counts["replaced"] += 1
        else:
            counts["unchanged"] += 1
    remove_runs(connection, replaced)
    _insert_runs(connection, chosen)
    if files:
        identity = {name: FILES.c[name] for name in ("host", "path", "label")}
        same = and_(*(column == bindparam(f"_{name}") for name, column in identity.items()))
        named = [{f"_{name}": each[name] for name in identity} for each in files]
        connection.execute(delete(FILES).where(same), named)
        connection.execute(insert(FILES), files)
    return counts


def _insert_runs(
    connection: Connection, chosen: Sequence[tuple[int, RunSummary, Sequence[CaseSummary]]]
) -> None:
    """chosen: the id, the run and its cases."""
    if not chosen:
        return
    facts = {sha256_of(run.facts): {"facts": dict(run.facts)} for _, run, _ in chosen}
    environments = _interned(connection, ENVIRONMENTS, facts)
    keys = {case.key.sha256: key_columns(case.key) for _, _, cases in chosen for case in cases}
    key_ids = _interned(connection, CASE_KEYS, keys)
    now = int(time.time() * 1e6)
    rows = [
        {
            **{name: getattr(run, name) for name in _OF_RUN},
            "id": number,
            "hosts": list(run.hosts),
            "labels": dict(run.labels),
            "collected_us": now,
            "environment_id": environments[sha256_of(run.facts)],
            "case_count": len(cases),
        }
        for number, run, cases in chosen
    ]
    connection.execute(insert(RUNS), rows)
    case_rows = []
    for number, _, cases in chosen:
        repeats: Counter[int] = Counter()
        for case in cases:
            key = key_ids[case.key.sha256]
            figures = {name: getattr(case, name) for name in _FIGURES}
            case_rows.append({"run": number, "case_key": key, "repeat": repeats[key], **figures})
            repeats[key] += 1
    insert_cases(connection, case_rows)


def insert_cases(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(insert(CASES), rows)


def key_columns(key: CaseKey) -> dict[str, Any]:
    """The row of a case in CASE_KEYS, but for its id and hash."""
    case = key.case
    placed = {True: "in place", False: "out of place", None: ""}[case.in_place]
    fields = (case.collective, format_size(case.size_bytes), case.dtype, case.op, placed)
    name = " ".join(field for field in fields if field)
    return {
        "key": key.to_json(),
        "name": f"{name}, {key.ranks} ranks, {case.backend} {case.mode}",
        "size_bytes_requested": case.size_bytes,
        **{
            column: getattr(case, column)
            for column in ("collective", "dtype", "op", "in_place", "backend", "mode")
        },
        **{column: getattr(key, column) for column in ("ranks", "statistic", "clock")},
    }


def remove_runs(connection: Connection, ids: Sequence[int]) -> int:
    """Removes these runs and returns how many cases they had."""
    cases = 0
    for batch in batches(ids):
        cases += connection.execute(delete(CASES).where(CASES.c.run.in_(batch))).rowcount
        connection.execute(delete(RUNS).where(RUNS.c.id.in_(batch)))
    return cases


def storable(run: RunSummary, cases: Sequence[CaseSummary]) -> RunWithCases:
    """The run as both databases can hold it: without NUL and lone surrogates in its texts."""
    return _clean(run), [_clean(case) for case in cases]


def _clean(value: Any) -> Any:
    """A summary, or a value of one, without the texts that no database holds."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {_clean(name): _clean(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_clean, value))
    if isinstance(value, (RunSummary, CaseSummary)):
        return replace(value, **{name: _clean(each) for name, each in vars(value).items()})
    return value


def clean_text(text: str) -> str:
    """The text without what no database holds: NUL and lone surrogates, those of file names too."""
    if text.isascii():
        return text.replace("\0", "\\0")
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _completeness(run: RunSummary, cases: Sequence[CaseSummary]) -> tuple[int, int]:
    return _RANK.get(run.status, 0), len(cases)


def _is_newer(run: RunSummary, cases: Sequence[CaseSummary], row: Any) -> bool:
    new = _completeness(run, cases)
    stored = (_RANK.get(row.status, 0), row.case_count)
    changed = run.path == row.path and run.file_sha256 != row.file_sha256
    return new > stored or (new == stored and changed)


def _interned(
    connection: Connection, table: Table, values: Mapping[str, Mapping[str, Any]]
) -> dict[str, int]:
    """The ids of rows with these SHA-256, which are inserted where they are missing."""
    ids: dict[str, int] = {}
    for batch in batches(sorted(values)):
        query = select(table.c.sha256, table.c.id).where(table.c.sha256.in_(batch))
        ids |= {row.sha256: row.id for row in connection.execute(query)}
    missing = [sha256 for sha256 in values if sha256 not in ids]
    if missing:
        new = dict(zip(missing, range(next_id(connection, table), 1 << 62), strict=False))
        rows = [{"id": number, "sha256": each, **values[each]} for each, number in new.items()]
        connection.execute(insert(table), rows)
        ids |= new
    return ids

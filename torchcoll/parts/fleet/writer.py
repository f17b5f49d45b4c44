"""Runs and their cases written into a store, many in one transaction and each once."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, Table, and_, bindparam, delete, insert, select

from torchcoll.core.errors import UnreadableError
from torchcoll.parts.fleet.address import StoreAddress
from torchcoll.parts.fleet.connecting import Database, batches
from torchcoll.parts.fleet.records import CaseKey, CaseSummary, RunSummary
from torchcoll.parts.fleet.schema import (
    CASE_KEYS,
    CASES,
    ENVIRONMENTS,
    FILES,
    RUNS,
    mark_nights,
    next_id,
    prepare,
    refresh_nights,
)

_LARGEST = 1 << 63
_RANK = {"truncated": 0, "interrupted": 1, "failed": 1, "complete": 2}
_FIGURES = [each.name for each in fields(CaseSummary) if each.name != "key"]

RunWithCases = tuple[RunSummary, Sequence[CaseSummary]]


@dataclass(frozen=True)
class FileRecord:
    """A file that was collected; the fields are those of the table ``files``.

    grown_from: the SHA-256 that the file had when it was collected before, if what it held then is
    how it still begins; '' otherwise.
    """

    host: str
    path: str
    label: str
    signature: str
    fingerprint: str
    size_bytes: int
    sha256: str
    runs: int
    grown_from: str = ""


@dataclass
class WriteCounts:
    """What a write did: runs and cases that are new, runs that were there already, runs that were
    replaced because more of them is known now.
    """

    runs: int = 0
    cases: int = 0
    unchanged: int = 0
    replaced: int = 0

    def __iadd__(self, more: WriteCounts) -> WriteCounts:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(more, each.name))
        return self


@dataclass
class _Ids:
    """Ids of rows that are in the store, by what identifies them."""

    keys: dict[CaseKey, int] = field(default_factory=dict)
    environments: dict[str, int] = field(default_factory=dict)


class StoreWriter:
    """Writes to a store, which it makes first; a context that closes it.

    Raises as ``Database.write`` does, and as ``schema.prepare``.
    """

    def __init__(self, address: StoreAddress) -> None:
        Database(address, create=True).write(partial(prepare, name=address.name))
        # This one makes no file in the place of a store that is deleted meanwhile.
        self.database = Database(address, keep_open=True)
        self._ids = _Ids()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()

    def write(
        self,
        runs: Sequence[RunWithCases],
        files: Sequence[FileRecord] = (),
        *,
        reread: bool = False,
    ) -> WriteCounts:
        """Writes the runs, and that the files were collected, in one transaction.

        reread: replace runs that are there. Otherwise a run that is there is replaced if it has
        ended since, or has more cases, or its file at the same path has changed.
        """
        batch = _Transaction(runs, files, reread)
        ids, self._ids = self._ids, _Ids()  # no id is known to be there until the commit

        def work(connection: Connection) -> tuple[WriteCounts, _Ids]:
            nonlocal ids
            trusted, ids = ids, _Ids()  # another try trusts nothing that was read before
            return batch.write(connection, trusted), trusted

        counts, self._ids = self.database.write(work)
        return counts

    def refresh_views(self) -> None:
        """Brings the views of nights up to date; without it they stay as they were."""
        while self.database.write(refresh_nights):
            pass

    def known_files(self, host: str, paths: Sequence[str]) -> dict[tuple[str, str], FileRecord]:
        """The files of this host that were collected, by path and label."""
        columns = [FILES.c[each.name] for each in fields(FileRecord) if each.name != "grown_from"]
        with self.database.reading() as connection:
            return {
                (row.path, row.label): FileRecord(*row)
                for batch in batches(paths)
                for row in connection.execute(
                    select(*columns).where(FILES.c.host == host, FILES.c.path.in_(batch))
                )
            }

    def runs_of_content(self, fingerprint: str) -> int | None:
        """How many runs a file of this content had; None if none was collected."""
        query = select(FILES.c.runs).where(FILES.c.fingerprint == fingerprint).limit(1)
        with self.database.reading() as connection:
            return connection.execute(query).scalar()


class _Transaction:
    """What ``StoreWriter.write`` writes in one transaction."""

    def __init__(
        self, runs: Sequence[RunWithCases], files: Sequence[FileRecord], reread: bool
    ) -> None:
        self.files = files
        self.reread = reread
        self.ids = _Ids()
        self.given = len(runs)
        # Of two files of one run in a batch the one that has more of it counts.
        best: dict[str, RunWithCases] = {}
        for run, cases in runs:
            held = best.get(run.run_id)
            if held is None or _completeness(run.status, len(cases)) > _completeness(
                held[0].status, len(held[1])
            ):
                best[run.run_id] = (run, cases)
        self.runs = best

    def write(self, connection: Connection, ids: _Ids) -> WriteCounts:
        """ids: of rows that are trusted to be there; those that are made are added."""
        self.ids = ids
        counts = WriteCounts(unchanged=self.given - len(self.runs))
        self._remove_outgrown(connection)
        stored = {
            row.run_id: row
            for batch in batches(list(self.runs))
            for row in connection.execute(
                select(RUNS.c.id, RUNS.c.run_id, RUNS.c.status, RUNS.c.case_count, RUNS.c.path)
                .add_columns(RUNS.c.file_sha256)
                .where(RUNS.c.run_id.in_(batch))
            )
        }
        chosen: list[tuple[int, RunSummary, Sequence[CaseSummary]]] = []
        replaced: list[int] = []
        free = next_id(connection, RUNS)
        for run_id, (run, cases) in self.runs.items():
            row = stored.get(run_id)
            if row is None:
                chosen.append((free, run, cases))
                free += 1
                counts.runs += 1
                counts.cases += len(cases)
            elif self.reread or _is_newer(run, cases, row):
                chosen.append((row.id, run, cases))
                replaced.append(row.id)
                counts.replaced += 1
            else:
                counts.unchanged += 1
        remove_runs(connection, replaced)
        self._insert(connection, chosen)
        if self.files:
            identity = {name: getattr(FILES.c, name) for name in ("host", "path", "label")}
            same = and_(*(column == bindparam(f"_{name}") for name, column in identity.items()))
            named = [{f"_{name}": getattr(each, name) for name in identity} for each in self.files]
            connection.execute(delete(FILES).where(same), named)
            connection.execute(insert(FILES), [_plain(each) for each in self.files])
        return counts

    def _remove_outgrown(self, connection: Connection) -> None:
        """Of another tool's log that has grown: its runs were identified by the figures that it
        had, so those of the shorter log would stay beside the new ones.
        """
        for file in self.files:
            if file.grown_from:
                old = and_(RUNS.c.path == file.path, RUNS.c.file_sha256 == file.grown_from)
                rows = connection.execute(select(RUNS.c.id, RUNS.c.run_id).where(old))
                remove_runs(connection, [row.id for row in rows if row.run_id not in self.runs])

    def _insert(
        self,
        connection: Connection,
        chosen: Sequence[tuple[int, RunSummary, Sequence[CaseSummary]]],
    ) -> None:
        facts = {sha256_of(run.facts): run.facts for _, run, _ in chosen}
        self._add_environments(connection, facts)
        self._add_keys(connection, {case.key for _, _, cases in chosen for case in cases})
        now = int(time.time() * 1e6)
        rows = []
        for number, run, cases in chosen:
            rows.append(
                {
                    "id": number,
                    "run_id": run.run_id,
                    "path": run.path,
                    "file_sha256": run.file_sha256,
                    "node": run.node,
                    "hosts": list(run.hosts),
                    "ranks": run.ranks,
                    "device_name": run.device_name,
                    "start_us": run.start_us,
                    "received_us": run.received_us,
                    "collected_us": now,
                    "status": run.status,
                    "exit_code": run.exit_code,
                    "wall_s": run.wall_s,
                    "environment_id": self.ids.environments[sha256_of(run.facts)],
                    "labels": dict(run.labels),
                    "case_count": len(cases),
                }
            )
        if rows:
            connection.execute(insert(RUNS), rows)
            mark_nights(connection, [number for number, _, _ in chosen])
        _insert_cases(connection, self._case_rows(chosen))

    def _case_rows(
        self, chosen: Iterable[tuple[int, RunSummary, Sequence[CaseSummary]]]
    ) -> Iterator[tuple[Any, ...]]:
        """Rows of CASES in the order of its columns."""
        for number, _, cases in chosen:
            repeats: Counter[int] = Counter()
            for case in cases:
                key = self.ids.keys[case.key]
                figures = (getattr(case, name) for name in _FIGURES)
                yield number, key, repeats[key], *figures
                repeats[key] += 1

    def _add_environments(
        self, connection: Connection, facts: Mapping[str, Mapping[str, str]]
    ) -> None:
        ids = self.ids.environments
        new = {each: {"facts": dict(facts[each])} for each in facts if each not in ids}
        ids |= _interned(connection, ENVIRONMENTS, new)

    def _add_keys(self, connection: Connection, keys: Iterable[CaseKey]) -> None:
        new = {key.sha256: key for key in keys if key not in self.ids.keys}
        columns = {
            sha256: {
                "key": key.to_json(),
                "collective": key.case.collective,
                "size_bytes_requested": key.case.size_bytes,
                "dtype": key.case.dtype,
                "op": key.case.op,
                "in_place": key.case.in_place,
                "backend": key.case.backend,
                "mode": key.case.mode,
                "ranks": key.ranks,
                "statistic": key.statistic,
                "clock": key.clock,
            }
            for sha256, key in new.items()
        }
        for sha256, number in _interned(connection, CASE_KEYS, columns).items():
            self.ids.keys[new[sha256]] = number


def remove_runs(connection: Connection, ids: Sequence[int]) -> int:
    """Removes these runs and returns how many cases they had."""
    cases = 0
    mark_nights(connection, ids)
    for batch in batches(ids):
        cases += connection.execute(delete(CASES).where(CASES.c.run.in_(batch))).rowcount
        connection.execute(delete(RUNS).where(RUNS.c.id.in_(batch)))
    return cases


def sha256_of(data: Any) -> str:
    """A hash of what JSON can hold, whatever the order of its names."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def storable(run: RunSummary, cases: Sequence[CaseSummary]) -> RunWithCases:
    """The run as both databases can hold it: without NUL and lone surrogates in its texts.

    Raises UnreadableError for a number that no column holds.
    """
    numbers = [run.ranks, run.start_us, run.received_us, run.exit_code]
    numbers += [number for case in cases for number in (case.size_bytes, case.calls)]
    numbers += [number for case in cases for number in (case.key.ranks, case.key.case.size_bytes)]
    for number in numbers:
        if number is not None and (type(number) is not int or not -_LARGEST <= number < _LARGEST):
            expected = "an integer of 64 bits, as all numbers of a result are"
            raise UnreadableError(run.path or run.run_id, number, expected)
    return _clean(run), [_clean(case) for case in cases]


def _clean(record: Any) -> Any:
    changed = {
        each.name: value
        for each in fields(record)
        if each.name != "key"
        and (value := _clean_value(getattr(record, each.name))) != getattr(record, each.name)
    }
    return replace(record, **changed) if changed else record


def _clean_value(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {_clean_value(name): _clean_value(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_clean_value, value))
    return value


def clean_text(text: str) -> str:
    """The text without what no database holds: NUL and lone surrogates, those of file names too."""
    if text.isascii():
        return text.replace("\0", "\\0")
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _plain(file: FileRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(file).items() if name != "grown_from"}


def _completeness(status: str, cases: int) -> tuple[int, int]:
    return _RANK.get(status, 0), cases


def _is_newer(run: RunSummary, cases: Sequence[CaseSummary], row: Any) -> bool:
    new = _completeness(run.status, len(cases))
    stored = _completeness(row.status, row.case_count)
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


def _insert_cases(connection: Connection, rows: Iterator[tuple[Any, ...]]) -> None:
    """By the driver itself: a year has millions of them."""
    names = ", ".join(CASES.columns.keys())
    cursor: Any = connection.connection.cursor()
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" * len(CASES.columns))
        cursor.executemany(f"INSERT INTO cases ({names}) VALUES ({marks})", rows)
    else:
        with cursor.copy(f"COPY cases ({names}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
    cursor.close()

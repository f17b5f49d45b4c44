"""What `nightly` reads: files, folders, globs and stores, as one Summaries."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchcoll.core.errors import UnreadableError
from torchcoll.parts.fleet.address import is_store, parse_address
from torchcoll.parts.fleet.records import runs_with_paths, summarise_run
from torchcoll.parts.fleet.series import (
    UNKNOWN_START,
    Interned,
    RunOverview,
    Summaries,
    SummariesBuilder,
)


def summaries_of(
    arguments: Sequence[str], since_us: int | None = None, until_us: int | None = None
) -> Summaries:
    """Reads the runs that began in [since_us, until_us), each once, in the order of the arguments.

    arguments: files, folders, globs and ``label=PATH``; paths of SQLite stores and URLs of
    PostgreSQL stores; mixed as they come. A run whose start is not recorded counts by when it was
    received. Raises UnreadableError if a file or store cannot be read, or if there is no run.
    """
    parts: list[Summaries] = []
    files: list[str] = []
    for argument in arguments:
        stores = _stores_in(argument)
        if stores and files:
            parts.append(_summaries_of_files(files, since_us, until_us))
            files = []
        for store in stores:
            from torchcoll.parts.fleet.read import summaries_of_store  # needs SQLAlchemy

            parts.append(summaries_of_store(parse_address(store), since_us, until_us))
        if not stores:
            files.append(argument)
    if files or not parts:
        parts.append(_summaries_of_files(files, since_us, until_us))
    summaries = parts[0] if len(parts) == 1 else merge_summaries(parts)
    if not len(summaries):
        when = "" if since_us is None and until_us is None else " in this period"
        raise UnreadableError("runs", f"none{when}", "result files, folders of them, or a store")
    return in_order(summaries)


def summaries_of_nights(
    arguments: Sequence[str], night_start_us: int, night: int | None, count: int
) -> tuple[Summaries, RunOverview | None]:
    """Reads the runs of a night and of those before it, and what all runs say together.

    night: days since 1970-01-01, None for the last one. count: of nights that have runs. From one
    store only these nights are read; otherwise all runs are, and there is no overview. Raises as
    ``summaries_of`` does.
    """
    store = store_of(arguments)
    if store is None:
        return summaries_of(arguments), None
    from torchcoll.parts.fleet.read import run_overview, summaries_of_store  # needs SQLAlchemy
    from torchcoll.parts.fleet.schema import DAY_US

    address = parse_address(store)
    overview = run_overview(address, night_start_us)
    chosen = [each for each in overview.nights if night is None or each <= night][-count:]
    if not chosen or (night is not None and chosen[-1] != night):
        return summaries_of(arguments), None
    since_us = chosen[0] * DAY_US + night_start_us
    until_us = (chosen[-1] + 1) * DAY_US + night_start_us
    return in_order(summaries_of_store(address, since_us, until_us, nights=True)), overview


def store_of(arguments: Sequence[str]) -> str | None:
    """The store that the arguments name, if it is one and alone."""
    stores = _stores_in(arguments[0]) if len(arguments) == 1 else []
    return stores[0] if len(stores) == 1 else None


def in_order(summaries: Summaries) -> Summaries:
    """With nodes by name and cases by collective and size, so that answers do not depend on the
    order of files in a folder, or of rows in a store.
    """
    names, keys = summaries.nodes, summaries.keys
    by_name = sorted(range(len(names)), key=lambda index: names[index])
    by_size = sorted(
        range(len(keys)),
        key=lambda index: (
            keys[index].case.collective,
            keys[index].case.size_bytes,
            keys[index].sha256,
        ),
    )
    return replace(
        summaries,
        nodes=[names[index] for index in by_name],
        node=np.argsort(by_name).astype(np.int32)[summaries.node],
        keys=[keys[index] for index in by_size],
        key=np.argsort(by_size).astype(np.int32)[summaries.key],
    )


def merge_summaries(parts: Sequence[Summaries]) -> Summaries:
    """One Summaries of several; of a run that is in more than one part the first counts."""
    nodes, environments, strata, keys = Interned(), Interned(), Interned(), Interned()
    run_ids: dict[str, str] = {}
    columns: list[list[np.ndarray[Any, Any]]] = [[] for _ in range(10)]
    for part in parts:
        merged = np.array([run_id in run_ids for run_id in part.run_ids], dtype=bool)
        chosen = part.select(~merged) if merged.any() else part
        offset = len(run_ids)
        run_ids.update(zip(chosen.run_ids, chosen.paths, strict=True))
        figures = (
            _renumber(chosen.node, chosen.nodes, nodes),
            _renumber(chosen.environment, chosen.environments, environments, _identity),
            _renumber(chosen.stratum, chosen.strata, strata),
            chosen.start_us,
            chosen.received_us,
            chosen.run_status,
            (chosen.run + offset).astype(np.int32),
            _renumber(chosen.key, chosen.keys, keys),
            chosen.time_ns,
            chosen.status,
        )
        for column, values in zip(columns, figures, strict=True):
            column.append(values)
    return Summaries(
        list(run_ids),
        list(run_ids.values()),
        nodes.values,
        environments.values,
        strata.values,
        keys.values,
        *(np.concatenate(column) for column in columns),
    )


def _identity(facts: Any) -> Any:
    return tuple(sorted(facts.items()))


def _renumber(
    column: np.ndarray[Any, Any],
    values: Sequence[Any],
    numbers: Interned,
    identity: Callable[[Any], Any] = lambda value: value,
) -> np.ndarray[Any, Any]:
    """The column with the numbers of its values in ``numbers``, which gets those it lacks."""
    used = np.unique(column)
    new = np.zeros(len(values), dtype=np.int32)
    for index in used.tolist():
        new[index] = numbers.number(identity(values[index]), values[index])
    renumbered: np.ndarray[Any, Any] = new[column]
    return renumbered


def _stores_in(argument: str) -> list[str]:
    """The stores that an argument names, a glob of stores too; [] for what is read as files."""
    if is_store(argument):
        return [argument]
    if os.path.exists(argument) or not glob.has_magic(argument):
        return []
    matches = sorted(glob.glob(argument, recursive=True))
    return matches if matches and all(is_store(path) for path in matches) else []


def _summaries_of_files(
    arguments: Sequence[str], since_us: int | None, until_us: int | None
) -> Summaries:
    builder = SummariesBuilder()
    for run, path in runs_with_paths(arguments):
        builder.add(*summarise_run(run, path))
    summaries = builder.build()
    if since_us is None and until_us is None:
        return summaries
    start = summaries.start_us
    when = np.where(start == UNKNOWN_START, summaries.received_us, start)
    chosen = when != UNKNOWN_START
    if since_us is not None:
        chosen &= when >= since_us
    if until_us is not None:
        chosen &= when < until_us
    return summaries.select(chosen)

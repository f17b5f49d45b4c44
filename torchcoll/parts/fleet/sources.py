"""What `nightly` and `check --learn` read: files, folders and globs, or one store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.parts.fleet.address import is_store, parse_address
from torchcoll.parts.fleet.records import DAY_US, runs_with_paths, summarise_run
from torchcoll.parts.fleet.series import RunOverview, Summaries, SummariesBuilder


def store_of(arguments: Sequence[str]) -> str | None:
    """The store that the arguments name; None for files. Raises UsageError for more beside it."""
    stores = [argument for argument in arguments if is_store(argument)]
    if stores and len(arguments) > 1:
        raise UsageError("paths", f"{len(arguments)} with a store", "the store alone")
    return stores[0] if stores else None


def summaries_of(arguments: Sequence[str]) -> Summaries:
    """Reads the runs, each once, in the order of the arguments.

    arguments: files, folders, globs and ``label=PATH``; or the path of an SQLite store or the URL
    of a PostgreSQL store. Raises UnreadableError if a file or store cannot be read, or if there is
    no run.
    """
    store = store_of(arguments)
    if store is not None:
        from torchcoll.parts.fleet.read import summaries_of_store  # needs SQLAlchemy

        summaries = summaries_of_store(parse_address(store))
    else:
        builder = SummariesBuilder()
        for run, path in runs_with_paths(arguments):
            builder.add(*summarise_run(run, path))
        summaries = builder.build()
    if not len(summaries):
        raise UnreadableError("runs", "none", "result files, folders of them, or a store")
    return in_order(summaries)


def summaries_of_night(
    arguments: Sequence[str], night_start_us: int, night: int | None
) -> tuple[Summaries, RunOverview | None]:
    """Reads the runs of a night, and what all runs say together.

    night: days since 1970-01-01, None for the last one. From a store only this night is read;
    otherwise all runs are, and there is no overview. Raises as ``summaries_of`` does.
    """
    store = store_of(arguments)
    if store is None:
        return summaries_of(arguments), None
    from torchcoll.parts.fleet.read import run_overview, summaries_of_store  # needs SQLAlchemy

    address = parse_address(store)
    overview = run_overview(address, night_start_us)
    chosen = night if night is not None or not overview.nights else overview.nights[-1]
    if chosen not in overview.nights:
        return summaries_of(arguments), None
    since_us = chosen * DAY_US + night_start_us
    return in_order(summaries_of_store(address, since_us, since_us + DAY_US)), overview


def in_order(summaries: Summaries) -> Summaries:
    """With nodes by name and cases by collective and size, so that answers do not depend on the
    order of files in a folder, or of rows in a store.
    """

    def size_order(index: int) -> tuple[str, int, str]:
        key = summaries.keys[index]
        return key.case.collective, key.case.size_bytes, key.sha256

    by_name = sorted(range(len(summaries.nodes)), key=summaries.nodes.__getitem__)
    by_size = sorted(range(len(summaries.keys)), key=size_order)
    return replace(
        summaries,
        nodes=[summaries.nodes[index] for index in by_name],
        node=np.argsort(by_name).astype(np.int32)[summaries.node],
        keys=[summaries.keys[index] for index in by_size],
        key=np.argsort(by_size).astype(np.int32)[summaries.key],
    )

"""What `nightly` and `check --learn` read: files, folders and globs, or one store."""

from __future__ import annotations

from collections.abc import Sequence

from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.parts.fleet.address import is_store, parse_address
from torchcoll.parts.fleet.records import DAY_US, NIGHT_START_US, runs_with_paths, summarise_run
from torchcoll.parts.fleet.series import RunOverview, Summaries, SummariesBuilder, overview_of


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
    return summaries


def summaries_of_night(
    arguments: Sequence[str], night: int | None
) -> tuple[Summaries, RunOverview]:
    """Reads the runs of a night, and what all runs say together.

    night: days since 1970-01-01, None for the last one. From files, and from a store without this
    night, all runs are read. Raises as ``summaries_of`` does.
    """
    store = store_of(arguments)
    if store is None:
        summaries = summaries_of(arguments)
        return summaries, overview_of(summaries)
    from torchcoll.parts.fleet.read import run_overview, summaries_of_store  # needs SQLAlchemy

    address = parse_address(store)
    overview = run_overview(address)
    chosen = night if night is not None or not overview.nights else overview.nights[-1]
    if chosen not in overview.nights:
        return summaries_of(arguments), overview
    since_us = chosen * DAY_US + NIGHT_START_US
    return summaries_of_store(address, since_us, since_us + DAY_US), overview

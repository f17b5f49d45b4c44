"""Summaries of result files and of other tools' output, one file at a time in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchcoll.core.errors import UnreadableError
from torchcoll.core.result import Run
from torchcoll.inputs import expand, load_all, resolve_sources
from torchcoll.store.records import CaseSummary, RunSummary, summarise_run
from torchcoll.store.series import Summaries, SummariesBuilder


def runs_of_files(arguments: Iterable[str]) -> Iterator[Run]:
    """Yields the runs of files, folders and globs, each file read when it is its turn.

    A ``label=PATH`` names its runs. Raises UnreadableError for a file that cannot be read.
    """
    seen: set[str] = set()
    for argument in arguments:
        for source in resolve_sources([argument]):
            for file in expand(source):
                if isinstance(file, Run):
                    yield file
                elif str(file) not in seen:
                    seen.add(str(file))
                    yield from load_all([file])


def summaries_of_files(arguments: Iterable[str]) -> Summaries:
    """Raises UnreadableError if a file cannot be read, or if there is no run at all."""
    builder = SummariesBuilder()
    for run in runs_of_files(arguments):
        builder.add(*summarise_run(run))
    summaries = builder.build()
    if not len(summaries):
        raise UnreadableError("runs", "none", "result files, folders of them, or a store")
    return summaries


__all__ = ["CaseSummary", "RunSummary", "runs_of_files", "summaries_of_files"]

"""Summaries of result files and of other tools' output, one file at a time in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchcoll.core.errors import UnreadableError, tell
from torchcoll.core.file import files_of_run
from torchcoll.core.result import Run
from torchcoll.core.stdin import is_stdin
from torchcoll.inputs import Inside, expanded, load_all, named_path, sources_of
from torchcoll.store.records import CaseSummary, RunSummary, summarise_run
from torchcoll.store.series import Summaries, SummariesBuilder

_NAMED = 5


def runs_with_paths(arguments: Iterable[str]) -> Iterator[tuple[Run, str]]:
    """Yields the runs of files, folders and globs with their files, each read when it is its turn.

    A ``label=PATH`` names its runs. Files of folders and globs that are no results, or that cannot
    be read, are named on stderr. Raises UnreadableError for a file that was named and cannot be
    read, and for a folder or glob without any run.
    """
    seen: set[str] = set()
    for argument in arguments:
        label, path = named_path(argument)
        errors: dict[str, UnreadableError] = {}
        files = [file for file in expanded(path) if not isinstance(file, Run)]
        for file in files:
            if str(file) in seen:
                continue
            seen.update(map(str, files_of_run(file)))
            try:
                if label:
                    runs = [r for r in sources_of([f"{label}={file}"]) if isinstance(r, Run)]
                else:
                    runs = load_all([file])
            except UnreadableError as error:
                if not isinstance(file, Inside):
                    raise
                errors[str(file)] = error
                continue
            yield from ((run, "" if is_stdin(file) else str(file)) for run in runs)
        if errors and len(errors) == len(files):
            raise next(iter(errors.values()))
        if errors:
            names = ", ".join(list(errors)[:_NAMED])
            rest = f" and {len(errors) - _NAMED} more" if len(errors) > _NAMED else ""
            tell(f"torchcoll: note: skipped files that could not be read as results: {names}{rest}")


def runs_of_files(arguments: Iterable[str]) -> Iterator[Run]:
    """As ``runs_with_paths``, without the files."""
    return (run for run, _ in runs_with_paths(arguments))


def summaries_of_files(arguments: Iterable[str]) -> Summaries:
    """Raises UnreadableError if a file cannot be read, or if there is no run at all."""
    builder = SummariesBuilder()
    for run, path in runs_with_paths(arguments):
        builder.add(*summarise_run(run, path))
    summaries = builder.build()
    if not len(summaries):
        raise UnreadableError("runs", "none", "result files, folders of them, or a store")
    return summaries


__all__ = ["CaseSummary", "RunSummary", "runs_of_files", "runs_with_paths", "summaries_of_files"]

"""The runs of result files and of other tools' output, one file at a time in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchcoll.core.errors import UnreadableError, tell
from torchcoll.core.file import files_of_run
from torchcoll.core.result import Run
from torchcoll.core.stdin import is_stdin
from torchcoll.core.units import shorten
from torchcoll.reading.inputs import Inside, expand, load_all, resolve_sources, split_label

_NAMED = 5


def runs_with_paths(arguments: Iterable[str]) -> Iterator[tuple[Run, str]]:
    """Yields the runs of files, folders and globs with their files, each read when it is its turn.

    A ``label=PATH`` names its runs. Files of folders and globs that are no results, or that cannot
    be read, are named on stderr. Raises UnreadableError for a file that was named and cannot be
    read, and for a folder or glob without any run.
    """
    seen: set[str] = set()
    for argument in arguments:
        label, path = split_label(argument)
        errors: dict[str, UnreadableError] = {}
        files = [file for file in expand(path) if not isinstance(file, Run)]
        for file in files:
            if str(file) in seen:
                continue
            seen.update(map(str, files_of_run(file)))
            try:
                if label:
                    runs = [r for r in resolve_sources([f"{label}={file}"]) if isinstance(r, Run)]
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
            names = shorten(list(errors), _NAMED)
            tell(f"torchcoll: note: skipped files that could not be read as results: {names}")

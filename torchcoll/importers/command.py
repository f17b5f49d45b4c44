"""``torchcoll import``: writes other tools' output as result files."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchcoll.core.errors import ExitCode, UnreadableError, UsageError, tell
from torchcoll.core.file import is_ours, save
from torchcoll.core.result import Run
from torchcoll.core.units import counted
from torchcoll.core.variables import masked_labels
from torchcoll.importers.base import Imported


def parse_columns(text: str | None) -> dict[str, str]:
    """Parse ``size=Size,algbw=Algbw (GB/s)`` as a dictionary. A comma in a name is ``\\,``.

    Raises UsageError for a pair without ``=`` or without a name.
    """
    columns: dict[str, str] = {}
    for pair in (text or "").replace("\\,", "\0").split(","):
        key, equals, name = pair.replace("\0", ",").partition("=")
        if pair.strip():
            if not equals or not name.strip():
                raise UsageError("map", pair, "KEY=COLUMN pairs with commas, such as size=Size")
            columns[key.strip()] = name.strip()
    return columns


def parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """Parse the ``KEY=VALUE`` of each --label. Raises UsageError for a text without both."""
    for text in texts:
        if not text.partition("=")[0].strip() or "=" not in text:
            raise UsageError("label", text, "KEY=VALUE, such as kernel=6.8.0-generic")
    pairs = (text.partition("=") for text in texts)
    return masked_labels({key.strip(): value for key, _, value in pairs})


def report_lines(path: str, imported: Imported) -> Iterator[str]:
    """A line about the whole file, one for each reason of a refusal, and one for each warning."""
    present = imported.rows + len(imported.refused)
    cases = sum(len(run.results) for run in imported.runs)
    runs = f" in {len(imported.runs)} runs" if len(imported.runs) > 1 else ""
    read = f"{imported.rows} of {counted(present, 'row')} read, {counted(cases, 'case')}"
    yield f"{path}: {imported.importer}: {read}{runs}"
    for lines, why in imported.refusals():
        yield f"{path}{f':{lines}' if lines else ''}: refused: {why}"
    for text in imported.warnings:
        yield f"{path}: {text}"
    for ending in dict.fromkeys(run.ending for run in imported.runs if run.ending):
        yield f"{path}: {ending}"


def output_paths(path: str, count: int) -> list[Path]:
    """The files for ``count`` runs: ``run.jsonl``, ``run-2.jsonl``, ..."""
    first = Path(path)
    more = [first.with_name(f"{first.stem}-{n}{first.suffix}") for n in range(2, count + 1)]
    return [first, *more]


def write(runs: Sequence[Run], path: str) -> list[Path]:
    """Write the runs and return the files; no files for stdout (``-``).

    Raises UsageError before writing anything if one of the files exists, or if several runs should
    go to stdout.
    """
    if path == "-":
        if len(runs) > 1:
            action = "A result file has one: name it, the others become RUN-2, ..."
            raise UsageError("output", f"- for {len(runs)} runs", "a file", action)
        with tempfile.TemporaryDirectory(prefix="torchcoll-") as folder:
            file = Path(folder, "run.jsonl")
            save(runs[0], file)
            sys.stdout.write(file.read_text(encoding="utf-8"))
        return []
    paths = output_paths(path, len(runs))
    for each in paths:
        if os.path.lexists(each):
            raise UsageError(
                "output", each, "a file that does not exist", "Name another file or remove it."
            )
    for run, each in zip(runs, paths, strict=True):
        save(run, each)
    return paths


def import_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="output of another tool, also .gz; - is stdin")
    add(
        "-o",
        "--output",
        metavar="RUN",
        help="result file to write (- is stdout); several runs become RUN-2, ...",
    )
    add("--from", dest="importer", metavar="NAME", help="the format, if it is not recognised")
    add("--map", metavar="PAIRS", help="columns of a plain table: size=Size,algbw='Algbw (GB/s)'")
    add("--ranks", type=int, metavar="N", help="number of ranks, if the file does not say it")
    add("--collective", metavar="NAME", help="the collective, if the file does not name it")
    add("--dtype", metavar="NAME", help="the element type, if the file does not name it")
    add("--backend", metavar="NAME", help="the backend, if the file does not name it")
    add(
        "--statistic",
        metavar="NAME",
        help=("the statistic of a plain table's times: mean, median, min or max"),
    )
    add(
        "--label",
        action="append",
        default=[],
        metavar="K=V",
        help="a label to record in the result file",
    )


def run_import(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.errors import one_line
    from torchcoll.core.units import counted
    from torchcoll.importers.base import ImportOptions
    from torchcoll.importers.registry import (
        files_of_jobs,
        import_file,
        import_together,
        nothing_read,
    )

    import_options = ImportOptions(
        ranks=options.ranks,
        collective=options.collective,
        dtype=options.dtype,
        backend=options.backend,
        statistic=options.statistic,
        columns=parse_columns(options.map),
    )
    labels = parse_labels(options.label)
    runs: list[Run] = []
    code = ExitCode.OK
    for paths in [[p] for p in options.files] if options.importer else files_of_jobs(options.files):
        path = paths[0] if len(paths) == 1 else f"{counted(len(paths), 'file')} from {paths[0]} on"
        try:
            if os.path.isfile(path) and is_ours(path):
                raise UnreadableError("file", path, "output of another tool; this one is ours")
            if len(paths) > 1:
                imported = import_together(paths, import_options)
            else:
                imported = import_file(path, import_options, options.importer)
        except UnreadableError as error:
            tell(error.line())
            code = ExitCode.UNREADABLE
            continue
        # Of a file without rows stdout has nothing, and one refusal is in the error.
        if imported.runs or len(imported.refusals()) > 1:
            aside = not imported.runs or options.output == "-"
            for line in report_lines(path, imported):
                print(one_line(line), file=sys.stderr if aside else None)
        if not imported.runs:
            code = ExitCode.UNREADABLE
            tell(nothing_read(path, imported).line())
        runs += imported.runs
    for run in runs:
        if labels:
            run.header["spec"] = {"labels": labels}
    if options.output and runs:
        for written in write(runs, options.output):
            print(f"written: {one_line(written)}")
    return code


COMMANDS = {
    "import": (
        "convert other tools' output to a result file",
        import_arguments,
        run_import,
    ),
}

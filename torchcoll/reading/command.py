"""``torchcoll convert``: writes results, of torchcoll or of other tools, in another format."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchcoll.core import errors
from torchcoll.core.answer import Answer
from torchcoll.core.commands import SubCommand
from torchcoll.core.file import is_ours, save
from torchcoll.core.opening import from_stdin, is_stdin
from torchcoll.core.result import Run
from torchcoll.core.skipping import skip
from torchcoll.core.units import counted, shorten
from torchcoll.core.variables import masked_labels
from torchcoll.reading.base import Imported
from torchcoll.reading.inputs import add_reading_options

_MOST_FILES = 4  # with more files, what was read of all is said in one line
TABLES = ("csv", "json", "parquet")  # formats with a row for each case


def parse_columns(text: str | None) -> dict[str, str]:
    """``size=Size,algbw=Algbw (GB/s)`` as a dict; ``\\,`` is a comma. Raises UsageError."""
    columns: dict[str, str] = {}
    for pair in filter(str.strip, (text or "").replace("\\,", "\0").split(",")):
        key, equals, name = pair.replace("\0", ",").partition("=")
        if not equals or not name.strip():
            expected = "KEY=COLUMN pairs with commas, such as size=Size"
            raise errors.UsageError("map", pair, expected)
        columns[key.strip()] = name.strip()
    return columns


def parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """Parse the ``KEY=VALUE`` of each --label. Raises UsageError for a text without both."""
    for text in texts:
        if not text.partition("=")[0].strip() or "=" not in text:
            raise errors.UsageError("label", text, "KEY=VALUE, such as kernel=6.8.0-generic")
    pairs = (text.partition("=") for text in texts)
    return masked_labels({key.strip(): value for key, _, value in pairs})


def report_lines(path: str, imported: Imported) -> Iterator[str]:
    """A line about the whole file, and for each reason of a refusal and each warning."""
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


def many_lines(read: Sequence[tuple[str, Imported]]) -> Iterator[str]:
    """What ``report_lines`` says of each file, in at most three lines for all files."""
    rows = sum(imported.rows for _, imported in read)
    present = rows + sum(len(imported.refused) for _, imported in read)
    cases = sum(len(run.results) for _, imported in read for run in imported.runs)
    yield f"{len(read)} files: {rows} of {counted(present, 'row')} read, {counted(cases, 'case')}"
    for text, paths in (
        ("rows refused in", [path for path, imported in read if imported.refused]),
        ("notes on", [path for path, imported in read if imported.warnings]),
    ):
        if paths:
            names = shorten([os.path.basename(path) for path in paths], 3)
            yield f"{text} {names}: torchcoll convert FILE prints them"


def write(runs: Sequence[Run], path: str) -> list[Path]:
    """Write runs to ``run.jsonl``, ``run-2.jsonl``, ... Raises UsageError if one exists."""
    first = Path(path)
    further = range(2, len(runs) + 1)
    paths = [first, *(first.with_name(f"{first.stem}-{n}{first.suffix}") for n in further)]
    for each in paths:
        if os.path.lexists(each):
            action = "Name another file or remove it."
            raise errors.UsageError("output", each, "a file that does not exist", action)
    for run, each in zip(runs, paths, strict=True):
        save(run, each)
    return paths


def convert_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help="output of other tools, also .gz (- is stdin), or result files",
    )
    add(
        "-o",
        "--output",
        metavar="OUT",
        help="what it ends in is the format: .jsonl, a result file (several runs become OUT-2, "
        "...); .csv, .json or .parquet, a row for each case",
    )
    add("--format", metavar="NAME", help="print a row for each case as csv or json")
    add_reading_options(parser)
    add(
        "--columns",
        metavar="NAMES",
        help="columns of csv, json and parquet: names of fields, separated by commas",
    )
    add("--from", dest="importer", metavar="NAME", help="the format, if it is not recognised")
    add("--map", metavar="PAIRS", help="columns of a plain table: size=Size,algbw='Algbw (GB/s)'")
    add("--dtype", metavar="NAME", help="the element type, if the file does not name it")
    add("--backend", metavar="NAME", help="the backend, if the file does not name it")
    add(
        "--statistic",
        metavar="NAME",
        help="the statistic of a plain table's times: mean, median, min or max",
    )
    add(
        "--label",
        action="append",
        default=[],
        metavar="K=V",
        help="a label to record in the result file",
    )
    add("--force", action="store_true", help="replace a .csv, .json or .parquet file")


def check_output(options: argparse.Namespace) -> str:
    """What the name of the output ends in. Raises UsageError for one that cannot be written."""
    from torchcoll.report.destination import check_new

    ending = os.path.splitext(options.output or "")[1].removeprefix(".")
    if options.format:
        errors.choice(options.format, "format", ("csv", "json"))
        if options.output not in (None, "-"):
            raise errors.UsageError("format", options.format, "no -o FILE with it")
        ending = options.format
    elif options.output:
        errors.choice(ending or "none", "output ends in", ("jsonl", *TABLES))
        if ending in TABLES:
            check_new(options.output, "output", options.force)
    if options.columns and ending not in TABLES:
        raise errors.UsageError("columns", options.columns, "--format, or -o ROWS.csv, with it")
    return ending


def run_convert(options: argparse.Namespace) -> errors.ExitCode:
    from torchcoll.report.destination import Destination
    from torchcoll.report.grid import print_answer
    from torchcoll.stats.filters import keep_cases

    ending = check_output(options)
    options.output = "-" if options.format else options.output
    lines: list[str] = []
    runs, refused = _runs_of(options, lines)
    if not options.output and runs:
        cases = counted(sum(len(run.results) for run in runs), "case")
        text = f"{cases} in {counted(len(runs), 'run')}"
        print_answer(Answer(text, next_step="-o RUN.jsonl or ROWS.csv writes them"), Destination())
        print()
    aside = not runs or options.output == "-"
    for line in lines:
        print(errors.one_line(line), file=sys.stderr if aside else None)
    skip(refused, bool(runs))
    runs = keep_cases(runs, options.filter)
    if not options.output:
        return errors.ExitCode.OK
    if ending in TABLES:
        _write_rows(runs, ending, options)
        if not options.format:
            print(f"written: {errors.one_line(options.output)}")
        return errors.ExitCode.OK
    for written in write(runs, options.output):
        print(f"written: {errors.one_line(written)}")
    return errors.ExitCode.OK


def _is_result_file(path: str) -> bool:
    return os.path.isfile(read := from_stdin(path)) and is_ours(read)


def _check_own(paths: Sequence[str], options: argparse.Namespace) -> None:
    """Raises UsageError for options of other tools' output with result files alone."""
    of_others = ("importer", "map", "ranks", "collective", "dtype", "backend", "statistic", "label")
    for name in of_others:
        if value := getattr(options, name):
            what = "from" if name == "importer" else name
            raise errors.UsageError(what, value, f"none with {paths[0]}: a result file has its own")


def _runs_of(
    options: argparse.Namespace, lines: list[str]
) -> tuple[list[Run], list[errors.UnreadableError]]:
    """(runs of all files, errors). lines: gets what was read of each file."""
    from torchcoll.reading.base import ImportOptions
    from torchcoll.reading.inputs import expand, load_all
    from torchcoll.reading.registry import import_file, nothing_read

    named = [
        str(each) for path in options.files for each in ([path] if is_stdin(path) else expand(path))
    ]
    ours = [path for path in named if _is_result_file(path)]
    files = [path for path in named if path not in ours]
    if ours and not files:
        _check_own(ours, options)
    runs: list[Run] = []
    refused: list[errors.UnreadableError] = []
    try:
        runs += load_all(ours) if ours else []
    except errors.UnreadableError as error:
        refused.append(error)
    for run in [] if options.output else runs:
        lines.append(f"{run.path}: result file: {counted(len(run.results), 'case')}")
    names = ("ranks", "collective", "dtype", "backend", "statistic")
    values = {name: getattr(options, name) for name in names}
    import_options = ImportOptions(columns=parse_columns(options.map), **values)
    labels = parse_labels(options.label)
    read: list[tuple[str, Imported]] = []
    for path in files:
        try:
            imported = import_file(path, import_options, options.importer)
        except errors.UnreadableError as error:
            refused.append(error)
            continue
        # Of a file without rows stdout has nothing, and one refusal is in the error.
        if imported.runs or len(imported.refusals()) > 1:
            read.append((path, imported))
        if not imported.runs:
            output = options.output if len(named) == 1 and options.output != "-" else None
            refused.append(nothing_read(path, imported, output or "RUN.jsonl"))
        for run in imported.runs:
            if labels:
                run.header["spec"] = {"labels": labels}
        runs += imported.runs
    if len(read) > _MOST_FILES:
        lines += many_lines(read)
    else:
        lines += (line for path, imported in read for line in report_lines(path, imported))
    return runs, refused


def _write_rows(runs: Sequence[Run], ending: str, options: argparse.Namespace) -> None:
    from torchcoll.questions.show.frames import write_parquet
    from torchcoll.questions.show.show import show
    from torchcoll.report.destination import write_file

    table = io.BytesIO() if ending == "parquet" else io.StringIO()
    if isinstance(table, io.BytesIO):
        write_parquet(runs, table, options.columns)
    else:
        show(*runs, format=ending, columns=options.columns, file=table)
    write_file(options.output, table.getvalue(), "output", options.force)


COMMANDS = {
    "convert": SubCommand(
        convert_arguments,
        run_convert,
        examples=(
            "torchcoll convert nccl-tests.log -o run.jsonl",
            (
                "torchcoll convert table.md --from plain --map size=Size,algbw=Algbw --ranks 8 -o"
                " run.jsonl"
            ),
            "torchcoll convert run.jsonl -o rows.csv",
        ),
        option_groups={
            "what is read": "--collective --ranks --filter --from --map",
            "what the files do not state": "--dtype --backend --statistic --label",
            "output": "--output --format --columns --force",
        },
    )
}

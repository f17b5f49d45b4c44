"""``torchcoll import``: other tools' output as result files."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from torchcoll.core.errors import ExitCode, UnreadableError, tell

if TYPE_CHECKING:
    from torchcoll.core.result import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="output of another tool; - is stdin, .gz is read")
    add("-o", "--output", metavar="RUN", help="write it as a result file; several runs: RUN-2, ...")
    add("--from", dest="importer", metavar="NAME", help="the format, where sniffing does not do")
    add("--map", metavar="PAIRS", help="columns of a plain table: size=Size,algbw='Algbw (GB/s)'")
    add("--ranks", type=int, metavar="N", help="where the file does not tell them")
    add("--collective", metavar="NAME", help="where the file does not tell it")
    add("--dtype", metavar="NAME", help="where the file does not tell it")
    add("--backend", metavar="NAME", help="where the file does not tell it")
    add(
        "--statistic",
        metavar="NAME",
        help="what a plain table's figures are: mean, median, min, max",
    )
    add("--label", action="append", default=[], metavar="K=V", help="kept in the result file")


def run(options: argparse.Namespace) -> ExitCode:
    from torchcoll.importers import command
    from torchcoll.importers.base import Options
    from torchcoll.importers.registry import import_file, is_ours, nothing_read
    from torchcoll.report.output import one_line

    known = Options(
        ranks=options.ranks,
        collective=options.collective,
        dtype=options.dtype,
        backend=options.backend,
        statistic=options.statistic,
        columns=command.columns_of(options.map),
    )
    labels = command.labels_of(options.label)
    runs: list[Run] = []
    code = ExitCode.OK
    for path in options.files:
        try:
            if path != "-" and os.path.isfile(path) and is_ours(path):
                raise UnreadableError("file", path, "output of another tool; this one is ours")
            found = import_file(path, known, options.importer)
        except UnreadableError as error:
            tell(error.line())
            code = ExitCode.UNREADABLE
            continue
        lines = command.report_lines(path, found) if found.runs or found.refused else ()
        for line in lines:
            # Who reads stdout alone gets nothing of a file of which nothing was read.
            print(one_line(line), file=None if found.runs else sys.stderr)
        if not found.runs:
            code = ExitCode.UNREADABLE
            if not found.refused:
                tell(nothing_read(path, found).line())
        runs += found.runs
    for run in runs:
        if labels:
            run.header["spec"] = {"labels": labels}
    if options.output and runs:
        for written in command.write(runs, options.output):
            print(f"written: {one_line(written)}")
    return code

"""``torchcoll export``: result files as other tools read them."""

from __future__ import annotations

import argparse
import os
from typing import TextIO

from torchcoll.core.errors import ExitCode, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="result files, or output of other tools")
    add(
        "--format",
        required=True,
        help="csv, json and parquet are for other programs: torchcoll reads none of them back, the "
        "result file (.jsonl) is the record; nccl-tests is text that torchcoll import reads",
    )
    add("-o", "--output", metavar="FILE", help="default: stdout (parquet needs a file)")


def run(options: argparse.Namespace) -> ExitCode:
    from torchcoll.importers.registry import read_all
    from torchcoll.report.text import show

    formats = ("nccl-tests", "csv", "json", "parquet")
    if options.format not in formats:
        raise UsageError("format", options.format, f"one of {', '.join(formats)}")
    if options.output and os.path.lexists(options.output):
        action = "Name another file or remove it."
        raise UsageError("output", options.output, "a file that does not exist", action)
    runs = read_all(options.files)
    if options.format == "parquet":
        from torchcoll.analysis.parquet import write_parquet

        if not options.output:
            raise UsageError("output", "none", "a file", "Parquet is binary: name one with -o.")
        write_parquet(runs, options.output)
    elif options.output:
        with _created(options.output) as file:
            show(*runs, format=options.format, file=file)
    else:
        show(*runs, format=options.format)
    return ExitCode.OK


def _created(path: str) -> TextIO:
    try:
        return open(path, "x", encoding="utf-8")
    except OSError as error:
        expected = f"a file that can be written ({error.strerror})"
        raise UsageError("output", path, expected) from None

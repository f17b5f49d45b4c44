"""``torchcoll export``: result files as other tools read them."""

from __future__ import annotations

import argparse
import io

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
    add("--force", action="store_true", help="replace the file of -o")


def run(options: argparse.Namespace) -> ExitCode:
    from torchcoll.importers.registry import read_all
    from torchcoll.report.files import check_new, write_file
    from torchcoll.report.text import show

    formats = ("nccl-tests", "csv", "json", "parquet")
    if options.format not in formats:
        raise UsageError("format", options.format, f"one of {', '.join(formats)}")
    if options.output:
        check_new(options.output, "output", options.force)
    runs = read_all(options.files)
    if options.format == "parquet":
        from torchcoll.analysis.parquet import write_parquet

        if not options.output:
            raise UsageError("output", "none", "a file", "Parquet is binary: name one with -o.")
        file = io.BytesIO()
        write_parquet(runs, file)
        write_file(options.output, file.getvalue(), "output", options.force)
    elif options.output:
        text = io.StringIO()
        show(*runs, format=options.format, file=text)
        write_file(options.output, text.getvalue(), "output", options.force)
    else:
        show(*runs, format=options.format)
    return ExitCode.OK

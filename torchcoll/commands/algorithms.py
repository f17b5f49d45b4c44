"""``torchcoll algorithms``: which forced algorithm wins, what AUTO loses, and settings of it."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from torchcoll.core.errors import ExitCode, UsageError, printable, tell
from torchcoll.core.units import parse_share

if TYPE_CHECKING:
    from torchcoll.analysis.algorithms import Algorithms
    from torchcoll.analysis.exports import Exported


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="the folder of torchcoll matrix, or result files")
    add("--threshold", default="2%", metavar="SHARE", help="less is no loss (default 2%%)")
    add("--over-ranks", default="max", metavar="HOW", help="max (the default), mean, min or rank0")
    add("--filter", default="", metavar="TEXT", help="such as collective=all_reduce,size>=1M")
    add("--format", default="table", help="table, markdown, csv or json")
    add("--export-env", action="store_true", help="print variables: one winner at all sizes")
    add("--export-oneccl", action="store_true", help="print oneCCL's selection by size")
    add("--export-tuner", metavar="FILE", help="write NCCL's tuner CSV, by size")
    add("--force", action="store_true", help="replace the file of --export-tuner")
    add("--channels", metavar="N", help="of --export-tuner, where no log tells them")
    add(
        "--check",
        action="store_true",
        help="launch AUTO and the exported setting as DIR was launched, into DIR/check-...; exit 1 "
        "where the setting is slower, or another algorithm ran",
    )


def run(options: argparse.Namespace) -> ExitCode | int:
    from torchcoll.analysis.algorithms import algorithms
    from torchcoll.core.summary import OVER_RANKS
    from torchcoll.importers.registry import read_all
    from torchcoll.report.algorithms import show_algorithms
    from torchcoll.report.found import FORMATS, tell_beside
    from torchcoll.report.view import choice

    names = ("export_env", "export_oneccl", "export_tuner")
    chosen = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    if len(chosen) > 1:
        raise UsageError("export", " and ".join(chosen), "one of them at a time")
    if options.check and not chosen:
        raise UsageError("check", "no export", "--export-env, --export-oneccl or --export-tuner")
    if options.channels is not None and not options.export_tuner:
        raise UsageError("channels", options.channels, "--export-tuner beside it")
    choice(options.format, "format", ("table", "markdown") if options.check else FORMATS)
    choice(options.over_ranks, "over-ranks", OVER_RANKS)
    found = algorithms(
        options.files,
        threshold=parse_share(options.threshold, "threshold"),
        filter=options.filter,
        over_ranks=options.over_ranks,
        reader=read_all,
    )
    if not chosen:
        show_algorithms([found], options.format)
        tell_beside(found, options.format)
        return ExitCode.OK
    exported = (_export_tuner if options.export_tuner else _export_variables)(found, options)
    if not options.check:
        return ExitCode.OK
    from torchcoll.commands.checking import check

    return check(found, exported, options)


def _export_variables(found: Algorithms, options: argparse.Namespace) -> Exported:
    """The snippet on stdout."""
    from torchcoll.analysis.exports import Exported, export_lines, selections, variables

    values = (variables if options.export_env else selections)(found)
    lines = export_lines(found, values, by_size=options.export_oneccl)
    print("\n".join(map(printable, lines)), flush=True)
    return Exported(values)


def _export_tuner(found: Algorithms, options: argparse.Namespace) -> Exported:
    from torchcoll.analysis.exports import Exported, tuner_rules, tuner_text, tuner_variables
    from torchcoll.report.files import write_file

    path, channels = options.export_tuner, options.channels
    if channels is not None and not (channels.isdecimal() and len(channels) < 9):
        raise UsageError("channels", channels, "a whole number")
    rules = tuner_rules(found, None if channels is None else int(channels))
    text = tuner_text(found, rules)
    if not _holds(path, text):
        write_file(path, text, "export-tuner", options.force)
        tell(f"torchcoll: wrote {os.path.abspath(path)}")
    return Exported(tuner_variables(path, os.environ), rules, text)


def _holds(path: str, text: str) -> bool:
    """Whether this very file was written before: then a check of it can be started again."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read() == text
    except (OSError, UnicodeDecodeError):
        return False

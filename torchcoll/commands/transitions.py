"""``torchcoll transitions``: where the behaviour changes with size."""

from __future__ import annotations

import argparse

from torchcoll.core.errors import ExitCode, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="result files or folders; launches are pooled")
    add("--over-ranks", default="max", metavar="HOW", help="max (the default), mean, min or rank0")
    add("--refine", action="store_true", help="print the sizes that would narrow each zone")
    add("--format", default="table", help="table, markdown, csv or json")
    add("--plot", metavar="FILE", help="a picture too: laws and zones (.png, .svg, .pdf)")
    add("--force", action="store_true", help="replace the picture")


def run(options: argparse.Namespace) -> ExitCode:
    from torchcoll.analysis.transitions import transitions
    from torchcoll.core.summary import OVER_RANKS
    from torchcoll.importers.registry import read_all
    from torchcoll.report.found import FORMATS, tell_beside
    from torchcoll.report.pictures import check_path
    from torchcoll.report.plot import plot
    from torchcoll.report.transitions import show_transitions
    from torchcoll.report.view import choice

    choice(options.format, "format", FORMATS)
    choice(options.over_ranks, "over-ranks", OVER_RANKS)
    if options.plot:
        check_path(options.plot, options.force)
    found = transitions(
        options.files,
        over_ranks=options.over_ranks,
        reader=read_all,
    )
    show_transitions([found], options.format, refine=options.refine)
    tell_beside(found, options.format)
    if options.plot:
        plot(found, options.plot)
        tell(f"torchcoll: picture: {options.plot}")
    return ExitCode.OK

"""``torchcoll cold``: what starting costs, launch by launch."""

from __future__ import annotations

import argparse
import sys

from torchcoll.core.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="result files or folders; each is a launch")
    add("--format", default="table", help="table, markdown, csv or json")
    add("--plot", metavar="FILE", help="a picture too: the calls over ranks (.png, .svg, .pdf)")


def run(options: argparse.Namespace) -> ExitCode:
    from torchcoll.analysis.cold import cold
    from torchcoll.importers.registry import read_all
    from torchcoll.report.cold import show_cold
    from torchcoll.report.found import FORMATS, tell_beside
    from torchcoll.report.pictures import check_path
    from torchcoll.report.plot import plot
    from torchcoll.report.view import choice

    choice(options.format, "format", FORMATS)
    if options.plot:
        check_path(options.plot)
    found = cold(options.files, reader=read_all)
    show_cold([found], options.format)
    tell_beside(found, options.format)
    if options.plot:
        plot(found, options.plot)
        print(f"torchcoll: picture: {options.plot}", file=sys.stderr)
    return ExitCode.OK

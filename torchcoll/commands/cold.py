"""``torchcoll cold``: what starting costs, launch by launch."""

from __future__ import annotations

import argparse

from torchcoll.core.errors import ExitCode, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="result files or folders; each is a launch")
    add("--format", default="table", help="table, markdown, csv or json")
    add("--plot", metavar="FILE", help="a picture too: the calls over ranks (.png, .svg, .pdf)")
    add("--force", action="store_true", help="replace the picture")


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
        check_path(options.plot, options.force)
    found = cold(options.files, reader=read_all)
    show_cold([found], options.format)
    tell_beside(found, options.format)
    if options.plot:
        plot(found, options.plot)
        tell(f"torchcoll: picture: {options.plot}")
    return ExitCode.OK

"""``torchcoll trace``: traffic from per-rank files, profiler traces and Flight Recorder dumps."""

from __future__ import annotations

import argparse
import dataclasses

from torchcoll.core.errors import ExitCode, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="PATH",
        help="a folder, or one file a rank: what torchcoll.capture wrote, traces of torch.profiler "
        "(.json, .json.gz), Flight Recorder dumps as JSON",
    )
    add("-o", "--output", metavar="FILE", help="write all of it as one traffic file")
    add("--format", default="table", help="table, markdown, csv or json")


def run(options: argparse.Namespace) -> ExitCode:
    from torchcoll.importers.traces import read_traffic
    from torchcoll.report.found import FORMATS
    from torchcoll.report.text import show
    from torchcoll.report.view import choice

    choice(options.format, "format", FORMATS)
    traffic = read_traffic(options.files)
    if options.output:
        # The new file is whole: what was wrong in those that were read has to be said in it.
        kept = [*traffic.notes, *traffic.problems]
        dataclasses.replace(traffic, notes=kept).save(options.output)
        tell(f"written: {options.output}")
    show(traffic, format=options.format)
    for problem in traffic.problems if options.format in ("csv", "json") else ():
        tell(f"torchcoll: warning: {problem}")
    return ExitCode.OK

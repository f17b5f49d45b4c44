"""``torchcoll cold``: what starting costs, run by run."""

from __future__ import annotations

import argparse

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, choice
from torchcoll.reading.inputs import add_reading_options
from torchcoll.report.pictures import add_plot, check_plot


def cold_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="result files or folders; each is a run")
    add_reading_options(parser)
    add("--format", default="table", help="table (default), markdown, csv or json")
    add_plot(parser, "the first calls over ranks")


def run_cold(options: argparse.Namespace) -> ExitCode:
    from torchcoll.questions.show.plot import draw_finding
    from torchcoll.questions.startup.cold import cold
    from torchcoll.questions.startup.show import show_cold
    from torchcoll.report.formats import FORMATS, print_notes
    from torchcoll.stats.filters import read_runs

    choice(options.format, "format", FORMATS)
    check_plot(options)
    finding = cold(read_runs(options))
    show_cold([finding], options.format)
    print_notes(finding, options.format)
    draw_finding(finding, options)
    return ExitCode.OK


COMMANDS = {
    "cold": SubCommand(
        cold_arguments,
        run_cold,
        examples=("torchcoll cold runs/",),
    ),
}

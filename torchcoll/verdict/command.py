"""``torchcoll limits``: what the links of a machine allow, from NCCL's topology and graph files."""

from __future__ import annotations

import argparse

from torchcoll.core.errors import ExitCode, choice


def limits_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help="what NCCL writes to NCCL_TOPO_DUMP_FILE, for several hosts one of each; and to "
        "NCCL_GRAPH_DUMP_FILE, for what its search expects",
    )
    add("--format", default="table", help="table, markdown, csv or json")


def run_limits(options: argparse.Namespace) -> ExitCode:
    from torchcoll.report.formats import FORMATS
    from torchcoll.verdict.shares import read_machine
    from torchcoll.verdict.show import show_limits

    choice(options.format, "format", FORMATS)
    show_limits(read_machine(options.files), options.format)
    return ExitCode.OK


COMMANDS = {
    "limits": (
        "what the links of a machine allow each algorithm, from NCCL's topology files",
        limits_arguments,
        run_limits,
    ),
}

"""``torchcoll limits``: what the links of a machine allow, from NCCL's topology and graph files."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from torchcoll.core.errors import ExitCode, choice

if TYPE_CHECKING:
    from torchcoll.verdict.shares import Machine


def limits_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        metavar="FILE",
        help="what NCCL writes to NCCL_TOPO_DUMP_FILE, for several hosts one of each; and to "
        "NCCL_GRAPH_DUMP_FILE, for what its search expects; without: of this machine, whose NCCL "
        "is made to write both for all GPUs that it sees",
    )
    add("--format", default="table", help="table, markdown, csv or json")


def run_limits(options: argparse.Namespace) -> ExitCode:
    from torchcoll.report.formats import FORMATS
    from torchcoll.verdict.shares import read_machine
    from torchcoll.verdict.show import show_limits

    choice(options.format, "format", FORMATS)
    show_limits(read_machine(options.files) if options.files else _of_this(), options.format)
    return ExitCode.OK


def _of_this() -> Machine:
    import os
    import tempfile
    from pathlib import Path

    from torchcoll.machine.topology_dump import dump_topology
    from torchcoll.verdict.shares import read_machine

    with tempfile.TemporaryDirectory() as folder:
        found = read_machine(dump_topology(Path(folder)))
    found.hosts = [dataclasses.replace(one, file=os.uname().nodename) for one in found.hosts]
    return found


COMMANDS = {
    "limits": (
        "what the links of a machine allow each algorithm, from NCCL's topology files",
        limits_arguments,
        run_limits,
    ),
}

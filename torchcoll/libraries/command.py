"""``torchcoll log`` reads the logs of NCCL, RCCL and oneCCL and NCCL's XML files; ``torchcoll
limits`` prints what the links of a machine allow, from NCCL's topology and graph files.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from torchcoll.core.errors import ExitCode, UnreadableError, choice, tell

if TYPE_CHECKING:
    from torchcoll.libraries.dumps import Dump
    from torchcoll.libraries.shares import Machine


def log_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help=(
            "logs of NCCL, RCCL or oneCCL (also .gz), folders of them, and NCCL's XML "
            "files (NCCL_TOPO_DUMP_FILE, NCCL_GRAPH_DUMP_FILE). A file may hold several "
            "processes and jobs, and a job may have several files"
        ),
    )
    add("--format", default="table", help="table (default), markdown, csv or json")


def run_log(options: argparse.Namespace) -> ExitCode:
    from torchcoll.libraries.dumps import read_dump
    from torchcoll.libraries.job_logs import file_rows, job_log
    from torchcoll.libraries.log_files import group_jobs, list_log_files, read_log
    from torchcoll.libraries.nccl.xml_tree import is_dump
    from torchcoll.libraries.show import show_logs
    from torchcoll.report.formats import FORMATS

    choice(options.format, "format", FORMATS)
    readers, dumps, code = [], [], ExitCode.OK
    for path in list_log_files(options.files):
        try:
            if is_dump(path):
                dump, problems = read_dump(path)
                dump.facts["fabrics"] = _fabrics(dump)
                dumps.append(dump)
            else:
                reader, problems = read_log(path)
                readers.append(reader)
        except UnreadableError as error:  # the other files are still worth reading
            tell(error.line())
            code = ExitCode.UNREADABLE
            continue
        for problem in problems:
            tell(f"torchcoll: warning: {problem}")
    if readers or dumps:
        jobs = [job_log(job) for job in group_jobs(readers)]
        show_logs(jobs, file_rows(readers), options.format, dumps=dumps)
    return code


def _fabrics(dump: Dump) -> list[str]:
    """Names of the fabrics in verdict/rules whose links are those of ``dump``.

    Several fabrics may match, because the file does not contain the name of the GPU.
    """
    from torchcoll.verdict.rules import guessable

    return [f.name for f in guessable({}) if dump.matches(f.nvlinks, f.to_switch, f.devices)]


def limits_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        metavar="FILE",
        help=(
            "NCCL's topology files (NCCL_TOPO_DUMP_FILE), one per host, and its graph "
            "files (NCCL_GRAPH_DUMP_FILE). Without a file: this machine, whose NCCL "
            "writes both for all GPUs that it sees"
        ),
    )
    add("--format", default="table", help="table (default), markdown, csv or json")


def run_limits(options: argparse.Namespace) -> ExitCode:
    from torchcoll.libraries.limits_show import show_limits
    from torchcoll.libraries.shares import read_machine
    from torchcoll.report.formats import FORMATS

    choice(options.format, "format", FORMATS)
    machine = read_machine(options.files) if options.files else _read_local_machine()
    show_limits(machine, options.format)
    return ExitCode.OK


def _read_local_machine() -> Machine:
    """The topology of this host, which NCCL is made to write for all GPUs that it sees."""
    import os
    import tempfile
    from pathlib import Path

    from torchcoll.libraries.shares import read_machine
    from torchcoll.machine.topology_dump import dump_topology

    with tempfile.TemporaryDirectory() as folder:
        machine = read_machine(dump_topology(Path(folder)))
    machine.hosts = [dataclasses.replace(host, file=os.uname().nodename) for host in machine.hosts]
    return machine


COMMANDS = {
    "log": (
        "read logs, topology and graph files of NCCL, RCCL, oneCCL",
        log_arguments,
        run_log,
    ),
    "limits": (
        "compute what a machine's links allow each algorithm",
        limits_arguments,
        run_limits,
    ),
}

"""``torchcoll log`` reads logs of NCCL, RCCL and oneCCL, and NCCL's topology files."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcoll.core import errors
from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, UnreadableError

if TYPE_CHECKING:
    from torchcoll.libraries.dumps import Dump
    from torchcoll.libraries.limits_show import LimitsView


def log_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        metavar="FILE",
        help=(
            "logs of NCCL, RCCL or oneCCL (also .gz), folders of them, and NCCL's "
            "topology files (NCCL_TOPO_DUMP_FILE, one per host), which show what the links allow. "
            "A file may hold several processes and jobs, and a job may have several files. "
            "Without a file: the topology of this machine, which NCCL writes"
        ),
    )
    add("--format", default="table", help="table (default), markdown, csv or json")


def run_log(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.skipping import skip
    from torchcoll.core.units import counted
    from torchcoll.libraries import job_logs
    from torchcoll.libraries.nccl.topology import is_dump
    from torchcoll.libraries.show import show_logs
    from torchcoll.report.formats import FORMATS

    errors.choice(options.format, "format", FORMATS)
    if not options.files:
        return _show_local_topology(options.format)
    readers, dump_paths, dumps, refused = [], [], [], []
    for path in job_logs.list_log_files(options.files):
        try:
            if is_dump(path):
                dump, problems = _read_dump(path)
                dumps.append(dump)
                dump_paths.append(path)
            else:
                reader, problems = job_logs.read_log(path)
                readers.append(reader)
        except UnreadableError as error:  # the other files are still worth reading
            refused.append(error)
            continue
        for problem in problems:
            errors.tell(f"torchcoll: warning: {problem}")
    folder = options.files[0] if len(options.files) == 1 and not (readers or dumps) else ""
    if os.path.isdir(folder):
        expected = f"a log of NCCL, RCCL or oneCCL: none in {counted(len(refused), 'file')}"
        action = f"torchcoll {shlex.quote(folder)} says what is in it."
        raise UnreadableError("log", folder, expected, action)
    skip(refused, bool(readers or dumps))
    jobs = [job_logs.job_log(job) for job in job_logs.group_jobs(readers)]
    limits = None if readers else _limits(dumps, dump_paths)  # one answer
    show_logs(jobs, job_logs.file_rows(readers), options.format, dumps=dumps, limits=limits)
    return ExitCode.OK


def _read_dump(path: str) -> tuple[Dump, list[str]]:
    from torchcoll.libraries.dumps import read_dump
    from torchcoll.questions.check.rules import guessable

    dump, problems = read_dump(path)
    # All fabrics with such links: the file does not contain the name of the GPU.
    dump.facts["fabrics"] = [
        f.name for f in guessable() if dump.matches(f.nvlinks, f.to_switch, f.devices)
    ]
    return dump, problems


def _limits(dumps: Sequence[Dump], paths: Sequence[str]) -> LimitsView | None:
    """What the machine of the topology files allows. None for topologies without limits."""
    from torchcoll.libraries.limits_show import limits_view, read_machine

    try:
        return limits_view(read_machine(paths)) if dumps else None
    except errors.UsageError as error:
        errors.tell(f"torchcoll: warning: no limits: {error}")
        return None


def _show_local_topology(format: str) -> ExitCode:
    """Show the topology of this host, which NCCL is made to write for all GPUs that it sees."""
    from torchcoll.libraries.show import show_logs

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "topology.xml")
        _dump_topology(path)
        dump, _ = _read_dump(path)
        limits = _limits([dump], [path])
    dump.file = os.uname().nodename
    show_logs([], [], format, dumps=[dump], limits=limits)
    return ExitCode.OK


# A program with which NCCL writes its topology of this machine. It creates one
# communicator of all visible GPUs (ncclCommInitAll, as torch.cuda.nccl does), because the topology
# of a communicator has only its own GPUs. On AMD, RCCL reads the same variables.
_TIMEOUT_S = 180.0
_PROGRAM = """
import os, sys
os.environ["NCCL_TOPO_DUMP_FILE"] = sys.argv[1]
try:
    import torch
except ImportError:
    sys.exit("no torch")
if not torch.cuda.device_count():
    sys.exit("no GPU that torch can use")
from torch.cuda import nccl
nccl.all_reduce([torch.zeros(1, device=f"cuda:{n}") for n in range(torch.cuda.device_count())])
"""


def _dump_topology(path: str) -> None:
    """Have NCCL write its topology to ``path``. Raises errors.UnavailableError if it did not."""
    from torchcoll.machine.doctor_facts import run, text_lines

    code, _, stderr = run([sys.executable, "-c", _PROGRAM, path], _TIMEOUT_S)
    if not code and os.path.isfile(path):
        return
    lines = text_lines(stderr)
    given = lines[-1] if code and lines else "no NCCL_TOPO_DUMP_FILE from NCCL"
    action = "Where they are, set NCCL_TOPO_DUMP_FILE=topo.xml for a run; "
    action += "then torchcoll log topo.xml."
    raise errors.UnavailableError("limits of this machine", given, "GPUs and NCCL", action)


COMMANDS = {
    "log": SubCommand(
        log_arguments,
        run_log,
        examples=("torchcoll log nccl.log", "torchcoll log topo.xml"),
    ),
}

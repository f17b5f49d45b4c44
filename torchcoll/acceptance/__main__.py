"""``python -m torchcoll.acceptance``: runs the kit. launch/acceptance.sh starts it."""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from torchcoll.acceptance.archive import write_archive
from torchcoll.acceptance.kit import Kit, MachineUnderTest, last_line
from torchcoll.acceptance.part_result import FAILED
from torchcoll.acceptance.parts import PARTS
from torchcoll.acceptance.running import MOST_S, Report, run_parts
from torchcoll.acceptance.show import show_report
from torchcoll.acceptance.starting import (
    ByLauncher,
    LeadingNode,
    Nodes,
    OnThisHost,
    Starter,
    follow,
    run_command,
)
from torchcoll.core.errors import (
    ExitCode,
    TorchcollError,
    UnavailableError,
    UsageError,
    nearest_option,
    tell,
    unknown,
)
from torchcoll.core.opening import check_folder

_PROGRAM = "torchcoll.acceptance"
_INTERRUPTED = 128 + signal.SIGINT
_LOOK_S = 120.0  # for the first look at the devices, with the import of torch


class _KitParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        action = nearest_option(message, self._option_string_actions, f"{self.prog} --help")
        raise UsageError(message, action=action)


def command_line() -> argparse.ArgumentParser:
    """The options of the kit."""
    parser = _KitParser(
        prog=f"python -m {_PROGRAM}",
        description="Prove torchcoll and this machine, in at most 20 minutes; writes one archive.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--parts", default=",".join(PARTS), help="which, with commas (default: all)")
    add("--backend", default="", help="default: what the machine has")
    add("--device", default="", help="cpu, cuda or xpu; default: that of the backend")
    add("--ranks", type=int, help="of this node; default: a rank for each device, 2 on a CPU")
    add("--launcher", help="what starts all ranks: 'srun --ntasks 16 python -m'")
    add("--nodes", type=int, default=1, help="where the kit runs on each of several nodes")
    add("--node-rank", type=int, default=0, help="which of them this is, from 0")
    add("--master-addr", default="", help="address of node 0")
    add("--master-port", type=int, default=29500, help="of node 0; 100 ports from here on are used")
    add("-o", "--output", type=Path, default=Path(), metavar="FOLDER", help="for the archive")
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Raises UsageError."""
    options = command_line().parse_args(list(argv))
    names = [name.strip() for name in options.parts.split(",")]
    for name in names:
        if name not in PARTS:
            raise unknown("parts", name, PARTS)
    options.parts = list(dict.fromkeys(names))
    if options.ranks is not None and options.ranks < 1:
        raise UsageError("ranks", options.ranks, "at least 1")
    if not 0 <= options.node_rank < options.nodes:
        raise UsageError("node-rank", options.node_rank, f"0 to {options.nodes - 1}")
    if options.nodes > 1 and (options.launcher or not options.master_addr):
        value = "with --launcher" if options.launcher else "without --master-addr"
        raise UsageError("nodes", f"{options.nodes} {value}", "the address of node 0, no launcher")
    return options


def look(options: argparse.Namespace, folder: Path) -> MachineUnderTest:
    """Ask a process of its own, which opens the devices and ends, what this node has.

    Raises UnavailableError with what torch says where nothing can be used, and UsageError for more
    ranks than devices.
    """
    log, output = folder / "look.txt", folder / "machine.json"
    command = [sys.executable, "-W", "ignore", "-m", "torchcoll.acceptance.probe", "machine"]
    for name in ("backend", "device"):
        command += [f"--{name}", getattr(options, name)] if getattr(options, name) else []
    # One process, whatever a launcher has set for this one.
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    run_command([*command, "-o", output.name], variables, _LOOK_S, log)
    if not output.exists():
        raise UnavailableError(f"this machine cannot be used: {last_line(log)}")
    return describe(json.loads(output.read_text()), options)


def describe(facts: dict[str, Any], options: argparse.Namespace) -> MachineUnderTest:
    """The MachineUnderTest, from the evidence of the probe. Raises UsageError."""
    count, device = facts["devices"], facts["device"]
    why_one = ""
    if facts["slices"]:
        why_one = f"NCCL connects no MIG slices ({facts['names'][0]}): one rank"
    elif facts["exclusive"]:
        why_one = "the GPU is in exclusive mode, which takes one process: one rank"
    elif not facts["shares_device"]:
        why_one = f"{facts['backend']} cannot share a device: one rank"
    local = options.ranks or (2 if device == "cpu" or (count == 1 and not why_one) else count)
    if facts["slices"] and options.ranks is None:
        local = 1
    if device != "cpu" and local > count and (why_one or count > 1):
        expected = f"at most {count}, the number of devices"
        action = f"{why_one}." if count == 1 else "Leave --ranks out."
        raise UsageError("ranks", local, expected, action)
    shared = device != "cpu" and local > count and options.nodes == 1 and not options.launcher
    if options.launcher is None and options.nodes > 1 and device != "cpu":
        local = options.ranks or count  # a GPU of each node is not shared
    return MachineUnderTest(
        facts["backend"],
        device,
        None if options.launcher else local * options.nodes,
        shared,
        facts["family"],
        facts["library"],
        why_one if local == 1 and device != "cpu" else "",
        facts["least_free_bytes"],
        facts,
    )


def run_kit(options: argparse.Namespace) -> int:
    """Run the parts and write the archive; the exit code. Raises TorchcollError before them."""
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    check_folder(output)
    deadline = time.monotonic() + MOST_S
    # Not in /tmp: the ranks of other nodes work in this folder too.
    folder = Path(tempfile.mkdtemp(prefix=".torchcoll-acceptance-", dir=output.resolve()))
    leader: LeadingNode | None = None
    try:
        machine = look(options, folder)
        start: Starter
        if options.launcher:
            start = ByLauncher(shlex.split(options.launcher))
        elif options.nodes > 1:
            per_node = (machine.ranks or options.nodes) // options.nodes
            address, port = options.master_addr, options.master_port
            nodes = Nodes(options.nodes, options.node_rank, per_node, address, port)
            if options.node_rank:
                follow(nodes, folder, MOST_S)
                return ExitCode.OK
            start = leader = LeadingNode(nodes)
        else:
            start = OnThisHost(machine.ranks or 1)
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
        archive = output / f"torchcoll-acceptance-{stamp}.tar.gz"
        printed = 0

        def keep(report: Report) -> None:
            nonlocal printed
            for part in report.parts[printed:]:
                tell(f"torchcoll: {part.name}: {part.status} ({part.seconds:.0f} s)")
            printed = len(report.parts)
            table = io.StringIO()
            show_report(report, file=table)
            write_archive(archive, report, folder, table.getvalue())

        tell(f"torchcoll: acceptance of {machine.described}; at most {MOST_S / 60:g} minutes")
        kit = Kit(folder, machine, start, deadline)
        report = run_parts(kit, options.parts, keep)
    finally:
        if leader:
            leader.finish()
        shutil.rmtree(folder, ignore_errors=True)
    show_report(report)
    print(f"archive: {archive}", flush=True)
    if report.status == "interrupted":
        return _INTERRUPTED
    failed = any(part.status == FAILED for part in report.parts)
    return ExitCode.FAILED if failed else ExitCode.OK


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the kit."""
    # A scheduler's time limit, and a terminal that closes, leave an archive as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        return run_kit(parse(sys.argv[1:] if argv is None else argv))
    except TorchcollError as error:
        tell(error.line())
        return int(error.exit_code)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except SystemExit as stop:  # --help
        return int(stop.code or 0)
    except OSError as error:
        name = error.filename or "output"
        refused = UsageError(str(name), os.strerror(error.errno or 0), "a folder for the archive")
        tell(refused.line())
        return int(refused.exit_code)


if __name__ == "__main__":
    sys.exit(main())

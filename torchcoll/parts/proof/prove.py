"""``torchcoll doctor --prove``: does what torchcoll claims hold on this machine?"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from torchcoll.core.errors import UnavailableError, UsageError, tell, unknown
from torchcoll.core.opening import check_folder
from torchcoll.parts.proof.claims import CLAIMS
from torchcoll.parts.proof.kit import Kit, MachineUnderTest, last_line
from torchcoll.parts.proof.running import MOST_S, Report, run_parts
from torchcoll.parts.proof.starting import Launcher, on_this_host, run_command

_LOOK_S = 120.0  # for the first look at the devices, with the import of torch
ALL = "all"  # parts


def prove(options: argparse.Namespace) -> Report:
    """Run the parts; what they came to. Raises TorchcollError before them.

    options: of ``torchcoll doctor``: prove (names of parts with commas, or ALL), backend, device,
    ranks, launcher, output (a folder that keeps the files of the parts, or None).
    """
    names = _parse_parts(options.prove)
    if options.ranks is not None and options.ranks < 1:
        raise UsageError("ranks", options.ranks, "at least 1")
    # A scheduler's time limit, and a terminal that closes, end the parts as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    deadline = time.monotonic() + MOST_S
    output = None if options.output is None else Path(options.output)
    if output:
        output.mkdir(parents=True, exist_ok=True)
        check_folder(output)
        if any(output.iterdir()):  # what an earlier proof left would count as this one's
            raise UsageError("output", output, "a folder that is new or empty")
    folder = output or Path(tempfile.mkdtemp(prefix="torchcoll-proof-"))
    try:
        machine = look(options, folder.resolve())
        prefix = shlex.split(options.launcher or "") or on_this_host(machine.ranks or 1)
        tell(f"torchcoll: proof on {machine.described}; at most {MOST_S / 60:g} minutes")
        kit = Kit(folder.resolve(), machine, Launcher(prefix), deadline)
        report = run_parts(kit, names, _tell_last)
    finally:
        if not output:
            shutil.rmtree(folder, ignore_errors=True)
    return report


def _parse_parts(text: str) -> Sequence[str]:
    if text == ALL:
        return list(CLAIMS)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in CLAIMS:
            raise unknown("prove", name, (ALL, *CLAIMS))
    return list(dict.fromkeys(names))


def _tell_last(report: Report) -> None:
    part = report.parts[-1]
    tell(f"torchcoll: {part.name}: {part.status} ({part.seconds:.0f} s)")


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def look(options: argparse.Namespace, folder: Path) -> MachineUnderTest:
    """Ask a process of its own, which opens the devices and ends, what this node has.

    Raises UnavailableError with what torch says where nothing can be used, and UsageError for more
    ranks than devices.
    """
    log, output = folder / "look.txt", folder / "machine.json"
    command = [sys.executable, "-W", "ignore", "-m", "torchcoll.parts.proof.probe", "machine"]
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
    ranks = options.ranks or (2 if device == "cpu" or (count == 1 and not why_one) else count)
    if facts["slices"] and options.ranks is None:
        ranks = 1
    if device != "cpu" and ranks > count and (why_one or count > 1):
        expected = f"at most {count}, the number of devices"
        action = f"{why_one}." if count == 1 else "Leave --ranks out."
        raise UsageError("ranks", ranks, expected, action)
    return MachineUnderTest(
        facts["backend"],
        device,
        None if options.launcher else ranks,
        device != "cpu" and ranks > count and not options.launcher,
        facts["family"],
        facts["library"],
        why_one if ranks == 1 and device != "cpu" else "",
        facts,
    )

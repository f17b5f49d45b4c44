"""``torchcoll doctor --prove``: does what torchcoll claims hold on this machine?

Each part starts ranks as a user would, and has the files that they leave judged (proof/judge.py).
The parts run one after the other, each within its limit, whatever happens to one of them.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from torchcoll.core.backends import NCCL, ONECCL
from torchcoll.core.collectives import DEFAULT_COLLECTIVE, find_collective
from torchcoll.core.errors import (
    TorchcollError,
    UnavailableError,
    UsageError,
    one_line,
    tell,
    unknown,
)
from torchcoll.core.opening import check_folder
from torchcoll.core.parts import missing_part
from torchcoll.parts.proof import judge
from torchcoll.parts.proof.judge import FAILED, NOT_RUN, NOT_SHOWN, PartResult
from torchcoll.parts.proof.kit import (
    ONE_RANK,
    Kit,
    Launcher,
    MachineUnderTest,
    PartEnded,
    last_line,
    on_this_host,
    run_command,
)
from torchcoll.reading.traces import read_traffic


def _clock(kit: Kit) -> PartResult:
    return judge.judge_clock(kit.probe("clock", "clock", kit.pairs), kit.note)


def _first_call(kit: Kit) -> PartResult:
    evidence = kit.probe("first-call", "first-call", kit.rounds)
    return judge.judge_first_call(evidence, kit.note)


def _verification(kit: Kit) -> PartResult:
    return judge.judge_verification(kit.probe("verification", "verification"))


def _forced(kit: Kit) -> PartResult:
    name, machine = "forced-algorithms", kit.machine
    from torchcoll.libraries.nccl import forced as nccl_forced
    from torchcoll.libraries.oneccl import algorithms as oneccl
    from torchcoll.parts.curves.forced_cells import disobeyed

    collectives = (DEFAULT_COLLECTIVE,)
    if machine.family == NCCL:
        version = machine.library.rpartition(" ")[2]
        forcings = nccl_forced.forcings(collectives, version)
        chosen = [f for f in forcings if f.name in ("ring-simple", "tree-simple")]
    elif machine.family == ONECCL:
        chosen = oneccl.forcings(collectives, machine.device, mpi=False)[:2]
    else:
        text = f"no variable chooses an algorithm of {machine.backend}, and it writes no log"
        return PartResult(name, NOT_SHOWN, text)
    forced = []
    module = f"torchcoll.{find_collective(DEFAULT_COLLECTIVE).module}"
    for forcing in chosen:
        file = f"{forcing.name}.jsonl"
        arguments = ["--library-log", "--sizes", "64K,4M", "-n", "20", "-J", file, *kit.flags]
        kit.on_ranks(name, module, arguments, forcing.variables)
        logged = [
            case
            for case in kit.results(name, file).results
            if any(choice.source == "log" for choice in case.choices)
        ]
        others = [
            (case.case.collective, case.size_bytes, wrong[0].label)
            for case in logged
            if (wrong := disobeyed(forcing.variables, case.case.collective, case.choices))
        ]
        forced.append((forcing.name, len(logged), others))
    return judge.judge_forced(forced, kit.note)


def _capture(kit: Kit) -> PartResult:
    evidence = kit.probe("capture", "capture")
    folder = kit.part_folder("capture")
    captured = read_traffic([folder / evidence["capture"] / "traffic-rank0.jsonl"])
    profiled = read_traffic([folder / evidence["trace"]])
    return judge.judge_capture(captured, profiled, kit.note)


_AT_CALL = 20  # past the cold calls


def _hit(kit: Kit, part: str, fault: str) -> PartResult:
    timeout_s, file = kit.timeout_s, f"{fault}.jsonl"
    arguments = [
        fault,
        str(_AT_CALL),
        str(timeout_s + _STOPPED_S),
        "--sizes",
        "64K",
        "-n",
        "100000",
    ]
    arguments += ["-c", "0", "-T", f"{timeout_s:g}", "-J", file, *kit.flags]
    ended = kit.on_ranks(part, "torchcoll.parts.proof.fault_probe", arguments)
    run = kit.results(part, file)
    wall_s = float((run.end or {}).get("wall_s") or 0.0)
    most_s = timeout_s + _GRACE_S
    return judge.judge_fault(part, run, wall_s, most_s, ended.exit_code)


_GRACE_S = 30.0  # for the other ranks to report (bench/control.py), and for the start
_STOPPED_S = 15.0  # after its --timeout the others have reported, and a stopped rank may be killed


def _killed(kit: Kit) -> PartResult:
    return _hit(kit, "killed-rank", "kill")


def _stopped(kit: Kit) -> PartResult:
    return _hit(kit, "stopped-rank", "stop")


@dataclass(frozen=True)
class Claim:
    """question: what it answers. limit_s: of each start of ranks. several: needs two ranks."""

    run: Callable[[Kit], PartResult]
    question: str
    limit_s: float
    several: bool = False


# In the order in which they run; all limits together are below MOST_S.
CLAIMS: dict[str, Claim] = {
    "verification": Claim(_verification, "does verification see planted errors?", 120),
    "clock": Claim(_clock, "is a time of torchcoll that of a bare loop?", 150),
    "first-call": Claim(_first_call, "is its first call that of a bare script?", 150, True),
    "forced-algorithms": Claim(_forced, "does the library run what is forced?", 75, True),
    "capture": Claim(_capture, "does a capture see what the profiler sees?", 90, True),
    "killed-rank": Claim(_killed, "is a rank named that was killed?", 100, True),
    "stopped-rank": Claim(_stopped, "is a rank named that has stopped?", 100, True),
}


MOST_S = 20 * 60.0


def run_part(kit: Kit, name: str) -> PartResult:
    """Run one part; whatever goes wrong in it becomes its result. KeyboardInterrupt passes."""
    began, part = time.monotonic(), CLAIMS[name]
    if time.monotonic() >= kit.deadline:
        return PartResult(name, NOT_RUN, f"the {MOST_S / 60:g} minutes of the proof are over")
    if part.several and kit.machine.ranks == 1:
        why = kit.machine.why_one or ONE_RANK
        return PartResult(name, NOT_SHOWN, why)
    kit.limit_s = part.limit_s
    try:
        result = part.run(kit)
    except PartEnded as error:
        result = PartResult(name, FAILED, str(error))
    except TorchcollError as error:
        status = NOT_SHOWN if isinstance(error, UnavailableError) else FAILED
        result = PartResult(name, status, str(error))
    except Exception as error:  # a defect of one is not to stop the others
        if isinstance(error, ModuleNotFoundError) and (missing := missing_part(error)):
            text = f"it needs torchcoll's part {missing}, which is not installed"
            return PartResult(name, NOT_SHOWN, text)
        text = f"the part itself failed: {type(error).__name__}: {error}"
        result = PartResult(name, FAILED, one_line(text)[:400])
    return replace(result, name=name, seconds=round(time.monotonic() - began, 1))


@dataclass
class Report:
    """What the parts have come to so far. status: running, complete or interrupted."""

    machine: MachineUnderTest
    parts: list[PartResult]
    status: str = "running"
    start_utc: str = ""
    wall_s: float = 0.0


def run_parts(kit: Kit, names: Sequence[str], tell: Callable[[Report], None]) -> Report:
    """Run the parts; ``tell`` is called after each.

    Ctrl-C, and SIGTERM where the caller turns it into KeyboardInterrupt, end the part that runs;
    the others are then ``not run``.
    """
    began = time.monotonic()
    start_utc = datetime.now(timezone.utc).isoformat(timespec="seconds")
    report = Report(kit.machine, [], start_utc=start_utc)

    try:
        for name in names:
            report.parts.append(run_part(kit, name))
            tell(report)
        report.status = "complete"
    except KeyboardInterrupt:
        report.status = "interrupted"
        for name in names[len(report.parts) :]:
            report.parts.append(PartResult(name, NOT_RUN, "the proof was interrupted"))
    report.wall_s = round(time.monotonic() - began, 1)
    return report


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

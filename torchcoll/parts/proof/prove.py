"""``torchcoll doctor --prove``: does what torchcoll claims hold on this machine?

Each part starts ranks as a user would, and has the files that they leave judged (proof/judge.py).
The parts run one after the other, each within its limit, whatever happens to one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from torchcoll.core.file import load_own
from torchcoll.core.opening import check_folder
from torchcoll.core.parts import missing_part
from torchcoll.core.result import Run
from torchcoll.core.units import counted, format_size
from torchcoll.machine.processes import Ended, launch
from torchcoll.parts.proof import judge
from torchcoll.parts.proof.judge import FAILED, NOT_RUN, NOT_SHOWN, PartResult

# (module, arguments, variables, limit in s, log file) -> how it ended, once all processes have.
Starter = Callable[[str, Sequence[str], Mapping[str, str], float, Path], Ended]

LOG = "log.txt"
_PROBE = "torchcoll.parts.proof.probe"
_TORCHRUN = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]


def run_command(
    command: Sequence[str], variables: Mapping[str, str], limit_s: float, log: Path
) -> Ended:
    """Run a command to its end, at the latest after ``limit_s``; ``log`` gets its output."""
    environ = {"OMP_NUM_THREADS": "1", **os.environ, **variables}
    with open(log, "ab") as file:
        return launch(command, environ, f"proof-{os.getpid()}", file, limit_s)


def starter(prefix: Sequence[str]) -> Starter:
    """prefix: the command line that starts all ranks, up to and including ``-m``."""
    return lambda module, arguments, *rest: run_command([*prefix, module, *arguments], *rest)


@dataclass(frozen=True)
class MachineUnderTest:
    """What the parts run on, as the probe ``machine`` found it.

    devices, names: how many devices there are, and which. shares_device: whether two ranks can
    share one. ranks: None where a launcher of the user decides.
    """

    backend: str
    device: str
    family: str
    library: str
    devices: int = 0
    names: Sequence[str] = ()
    shares_device: bool = False
    ranks: int | None = None

    @property
    def shared(self) -> bool:
        """Whether all ranks use one GPU."""
        return self.device != "cpu" and self.ranks is not None and self.ranks > self.devices

    @property
    def described(self) -> str:
        """``2 ranks on cpu, gloo of torch 2.13.0``."""
        device = ", ".join(dict.fromkeys(self.names)) or self.device
        ranks = "ranks of a launcher" if self.ranks is None else counted(self.ranks, "rank")
        return f"{ranks} on {device}, {self.library}" + (" (one GPU, shared)" * self.shared)


@dataclass
class Kit:
    """folder: where parts work, a folder each. start: starts ranks. timeout_s: of the runs in which
    a rank is hit. limit_s: of each start of ranks in the part that runs.
    """

    folder: Path
    machine: MachineUnderTest
    start: Starter
    timeout_s: float = 20.0
    limit_s: float = 60.0

    @property
    def flags(self) -> list[str]:
        machine = self.machine
        flags = ["--backend", machine.backend, "--device", machine.device]
        return flags + ["--rehearse"] * machine.shared

    def file(self, part: str, name: str) -> Path:
        folder = self.folder / part
        folder.mkdir(exist_ok=True)
        return folder / name

    def on_ranks(
        self,
        part: str,
        module: str,
        arguments: Sequence[str],
        variables: Mapping[str, str] | None = None,
    ) -> Ended:
        """Start ranks; how they ended. Raises TorchcollError."""
        log = self.file(part, LOG)
        ended = self.start(module, arguments, variables or {}, self.limit_s, log)
        why = ended.why
        if ended.timed_out:
            why = f"it did not end within its {self.limit_s:.0f} s: {last_line(log)}"
        if why:
            raise TorchcollError(why)
        return ended

    def probe(self, name: str) -> dict[str, Any]:
        """The evidence of a probe. Raises TorchcollError where there is none."""
        output, machine = self.file(name, f"{name}.json"), self.machine
        options = (machine.backend, machine.device, machine.shared)
        self.on_ranks(name, _PROBE, [name, json.dumps(options), str(output)])
        if not output.exists():
            raise TorchcollError(last_line(self.file(name, LOG)))
        evidence: dict[str, Any] = json.loads(output.read_text())
        return evidence

    def result(self, part: str, file: Path) -> Run:
        """The result file of a part. Raises TorchcollError where there is none to be read."""
        try:
            return load_own(file)
        except TorchcollError:
            raise TorchcollError(last_line(self.file(part, LOG))) from None


def last_line(log: Path) -> str:
    """The line of a log that says what went wrong: torchcoll's own error, else the last one."""
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = [one_line(line) for line in text.splitlines() if set(line) - set("=-* ")]
    errors = [line.partition("error: ")[2] for line in lines if "torchcoll: error: " in line]
    return next(iter(errors or lines[-1:]), "it printed nothing")[:400]


def _clock(kit: Kit) -> PartResult:
    return judge.judge_clock(kit.probe("clock"))


def _verification(kit: Kit) -> PartResult:
    return judge.judge_verification(kit.probe("verification"))


def _forced(kit: Kit) -> PartResult:
    from torchcoll.libraries.nccl import forced as nccl_forced
    from torchcoll.libraries.oneccl import algorithms as oneccl
    from torchcoll.parts.curves.forced_cells import disobeyed

    part, machine, collectives = "forced-algorithms", kit.machine, (DEFAULT_COLLECTIVE,)
    if machine.family == NCCL:
        version = machine.library.rpartition(" ")[2]
        forcings = nccl_forced.forcings(collectives, version)
        chosen = [f for f in forcings if f.name in ("ring-simple", "tree-simple")]
    elif machine.family == ONECCL:
        chosen = oneccl.forcings(collectives, machine.device, mpi=False)[:2]
    else:
        text = f"no variable chooses an algorithm of {machine.backend}, and it writes no log"
        return PartResult(part, NOT_SHOWN, text)
    forced = []
    module = f"torchcoll.{find_collective(DEFAULT_COLLECTIVE).module}"
    for forcing in chosen:
        file = kit.file(part, f"{forcing.name}.jsonl")
        arguments = ["--library-log", "--sizes", "64K,4M", "-n", "20", "-J", str(file), *kit.flags]
        kit.on_ranks(part, module, arguments, forcing.variables)
        logged = [
            case
            for case in kit.result(part, file).results
            if any(choice.source == "log" for choice in case.choices)
        ]
        others = [
            f"{case.case.collective} of {format_size(case.size_bytes)} ran {wrong[0].label}"
            for case in logged
            if (wrong := disobeyed(forcing.variables, case.case.collective, case.choices))
        ]
        forced.append((forcing.name, len(logged), others))
    return judge.judge_forced(forced)


def _capture(kit: Kit) -> PartResult:
    from torchcoll.parts.proof.probes import CAPTURED, TRACE
    from torchcoll.parts.training.traces import read_traffic

    kit.probe("capture")
    captured = read_traffic([kit.file("capture", CAPTURED) / "traffic-rank0.jsonl"])
    return judge.judge_capture(captured, read_traffic([kit.file("capture", TRACE)]))


_AT_CALL = 20  # past the cold calls
_GRACE_S = 30.0  # for the other ranks to report (bench/control.py), and for the start
_STOPPED_S = 15.0  # after its --timeout the others have reported, and a stopped rank may be killed


def _hit(kit: Kit, part: str, fault: str) -> PartResult:
    file, stopped_s = kit.file(part, f"{fault}.jsonl"), kit.timeout_s + _STOPPED_S
    arguments = [fault, str(_AT_CALL), str(stopped_s), "--sizes", "64K", "-n", "100000", "-c", "0"]
    arguments += ["-T", f"{kit.timeout_s:g}", "-J", str(file), *kit.flags]
    ended = kit.on_ranks(part, "torchcoll.parts.proof.fault_probe", arguments)
    run = kit.result(part, file)
    return judge.judge_fault(part, run, kit.timeout_s + _GRACE_S, ended.exit_code)


@dataclass(frozen=True)
class Claim:
    """limit_s: of each start of ranks. several: needs two ranks."""

    run: Callable[[Kit], PartResult]
    limit_s: float
    several: bool = False


# In the order in which they run; all limits together are below 20 minutes.
CLAIMS = {
    "verification": Claim(_verification, 120),
    "clock": Claim(_clock, 150),
    "forced-algorithms": Claim(_forced, 75, several=True),
    "capture": Claim(_capture, 90, several=True),
    "killed-rank": Claim(lambda kit: _hit(kit, "killed-rank", "kill"), 100, several=True),
    "stopped-rank": Claim(lambda kit: _hit(kit, "stopped-rank", "stop"), 100, several=True),
}


def run_part(kit: Kit, name: str) -> PartResult:
    """Run one part; whatever goes wrong in it becomes its result. KeyboardInterrupt passes."""
    began, part = time.monotonic(), CLAIMS[name]
    if part.several and kit.machine.ranks == 1:
        return PartResult(name, NOT_SHOWN, "one rank communicates with no other")
    kit.limit_s = part.limit_s
    try:
        result = part.run(kit)
    except UnavailableError as error:
        result = PartResult(name, NOT_SHOWN, str(error))
    except TorchcollError as error:
        result = PartResult(name, FAILED, str(error))
    except Exception as error:  # a defect of one is not to stop the others
        if isinstance(error, ModuleNotFoundError) and (missing := missing_part(error)):
            text = f"it needs torchcoll's part {missing}, which is not installed"
            return PartResult(name, NOT_SHOWN, text)
        text = f"the part itself failed: {type(error).__name__}: {error}"
        result = PartResult(name, FAILED, one_line(text)[:400])
    return replace(result, seconds=round(time.monotonic() - began, 1))


@dataclass(frozen=True)
class Report:
    """What the parts came to."""

    machine: MachineUnderTest
    parts: Sequence[PartResult]


def run_parts(kit: Kit, names: Sequence[str]) -> Report:
    """Run the parts, with a line on stderr after each.

    Ctrl-C, and SIGTERM where the caller turns it into KeyboardInterrupt, end the part that runs;
    the others are then ``not run``.
    """
    parts: list[PartResult] = []
    try:
        for name in names:
            parts.append(part := run_part(kit, name))
            tell(f"torchcoll: {part.name}: {part.status} ({part.seconds:.0f} s)")
    except KeyboardInterrupt:
        for name in names[len(parts) :]:
            parts.append(PartResult(name, NOT_RUN, "the proof was interrupted"))
    return Report(kit.machine, parts)


_LOOK_S = 120.0  # for the first look at the devices, with the import of torch
ALL = "all"  # parts


def prove(options: argparse.Namespace) -> Report:
    """Run the parts; what they came to. options: as in doctor_command.py. Raises TorchcollError
    before the first part.
    """
    names = list(CLAIMS) if options.prove == ALL else options.prove.split(",")
    for name in names:
        if name not in CLAIMS:
            raise unknown("prove", name, (ALL, *CLAIMS))
    if options.ranks is not None and options.ranks < 1:
        raise UsageError("ranks", options.ranks, "at least 1")
    # A scheduler's time limit, and a terminal that closes, end the parts as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    output = None if options.output is None else Path(options.output)
    if output:
        output.mkdir(parents=True, exist_ok=True)
        check_folder(output)
        if any(output.iterdir()):  # what an earlier proof left would count as this one's
            raise UsageError("output", output, "a folder that is new or empty")
    folder = (output or Path(tempfile.mkdtemp(prefix="torchcoll-proof-"))).resolve()
    try:
        machine = look(options, folder)
        torchrun = [*_TORCHRUN, "--nproc-per-node", str(machine.ranks), "-m"]
        tell(f"torchcoll: proof on {machine.described}; at most 20 minutes")
        kit = Kit(folder, machine, starter(shlex.split(options.launcher or "") or torchrun))
        return run_parts(kit, list(dict.fromkeys(names)))
    finally:
        if not output:
            shutil.rmtree(folder, ignore_errors=True)


def look(options: argparse.Namespace, folder: Path) -> MachineUnderTest:
    """Ask a process of its own, which opens the devices and ends, what this node has. Raises
    UnavailableError with what torch says where nothing can be used, UsageError as ``describe``.
    """
    log, output = folder / "look.txt", folder / "machine.json"
    chosen = json.dumps((options.backend, options.device))
    # One process, whatever a launcher has set for this one.
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    command = [sys.executable, "-W", "ignore", "-m", _PROBE, "machine", chosen, str(output)]
    run_command(command, variables, _LOOK_S, log)
    if not output.exists():
        raise UnavailableError(f"this machine cannot be used: {last_line(log)}")
    return describe(json.loads(output.read_text()), options)


def describe(facts: Mapping[str, Any], options: argparse.Namespace) -> MachineUnderTest:
    """The machine that the probe found. Raises UsageError for more ranks than devices."""
    machine = MachineUnderTest(**{name: facts[name] for name in facts if name != "busy"})
    count, on_cpu = machine.devices, machine.device == "cpu"
    ranks = options.ranks or (count if count > 1 else 1 + (on_cpu or machine.shares_device))
    if not on_cpu and ranks > count and not (count == 1 and machine.shares_device):
        raise UsageError("ranks", ranks, f"at most {count}, the number of devices")
    return replace(machine, ranks=None if options.launcher else ranks)

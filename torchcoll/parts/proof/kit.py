"""What the parts of a proof have: the machine, folders, and how ranks are started."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchcoll.core.errors import TorchcollError, one_line
from torchcoll.core.file import load_own
from torchcoll.core.result import Run
from torchcoll.machine.processes import Ended, launch

# (module, arguments, variables, limit in s, log file) -> how it ended, once all processes have.
# These work in the folder of the log file.
Starter = Callable[[str, Sequence[str], Mapping[str, str], float, Path], Ended]

_TORCHRUN = (sys.executable, "-W", "ignore", "-m", "torch.distributed.run")


def run_command(
    command: Sequence[str], variables: Mapping[str, str], limit_s: float, log: Path
) -> Ended:
    """Run a command to its end in the folder of ``log``, which gets its output.

    After ``limit_s``, and where an exception comes (Ctrl-C), it and all that it started on this
    host are ended.
    """
    environ = {"OMP_NUM_THREADS": "1", **os.environ, **variables}
    with open(log, "ab") as file, _inside(log.parent):
        return launch(command, environ, f"proof-{os.getpid()}", file, limit_s)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def on_this_host(ranks: int) -> list[str]:
    """The command line of torchrun, up to ``-m``."""
    return [*_TORCHRUN, "--standalone", "--nproc-per-node", str(ranks), "-m"]


@dataclass(frozen=True)
class Launcher:
    """A starter. prefix: the command line that starts all ranks, up to and including ``-m``."""

    prefix: Sequence[str]

    def __call__(
        self,
        module: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        limit_s: float,
        log: Path,
    ) -> Ended:
        return run_command([*self.prefix, module, *arguments], variables, limit_s, log)


LOG = "log.txt"
_PROBE = "torchcoll.parts.proof.probe"
ONE_RANK = "one rank communicates with no other"
SHARED = "one GPU, shared: its bandwidth says nothing"


@dataclass(frozen=True)
class MachineUnderTest:
    """What the parts run on, as the probe ``machine`` found it.

    ranks: None where a launcher of the user decides. shared: all of them use one GPU. why_one: why
    several ranks cannot share the only device; '' otherwise.
    """

    backend: str
    device: str
    ranks: int | None
    shared: bool
    family: str
    library: str
    why_one: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def described(self) -> str:
        """``2 ranks on gloo, cpu``."""
        names = list(dict.fromkeys(self.facts.get("names") or ()))
        device = ", ".join(names) or self.device
        ranks = "ranks of a launcher" if self.ranks is None else f"{self.ranks} ranks"
        ranks = "1 rank" if self.ranks == 1 else ranks
        return f"{ranks} on {device}, {self.library}" + (" (one GPU, shared)" * self.shared)


@dataclass
class Kit:
    """folder: where parts work, a folder each. start: starts ranks. pairs: of blocks or rounds that
    a part measures. timeout_s: of the runs in which a rank is hit. deadline:
    of all parts, on time.monotonic. limit_s: of each start of ranks in the part that runs.
    """

    folder: Path
    machine: MachineUnderTest
    start: Starter
    deadline: float
    pairs: int = 100
    rounds: int = 20
    timeout_s: float = 20.0
    limit_s: float = 60.0

    @property
    def flags(self) -> list[str]:
        machine = self.machine
        flags = ["--backend", machine.backend, "--device", machine.device]
        return flags + ["--rehearse"] * machine.shared

    @property
    def note(self) -> str:
        return SHARED if self.machine.shared else ""

    def part_folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def on_ranks(
        self,
        part: str,
        module: str,
        arguments: Sequence[str],
        variables: Mapping[str, str] | None = None,
    ) -> Ended:
        """Start ranks in the folder of the part; how they ended. Raises PartEnded."""
        log = self.part_folder(part) / LOG
        limit_s = max(1.0, min(self.limit_s, self.deadline - time.monotonic()))
        ended = self.start(module, arguments, variables or {}, limit_s, log)
        if ended.timed_out:
            raise PartEnded(f"it did not end within its {limit_s:.0f} s: {last_line(log)}")
        if ended.why:
            raise PartEnded(ended.why)
        return ended

    def probe(self, part: str, name: str, pairs: int = 1) -> dict[str, Any]:
        """The evidence of a probe. Raises PartEnded where there is none."""
        output = self.part_folder(part) / f"{name}.json"
        arguments = [name, *self.flags, "--pairs", str(pairs), "-o", output.name]
        self.on_ranks(part, _PROBE, arguments)
        if not output.exists():
            raise PartEnded(last_line(output.parent / LOG))
        evidence: dict[str, Any] = json.loads(output.read_text())
        return evidence

    def results(self, part: str, name: str) -> Run:
        """A result file of the part. Raises PartEnded where there is none to be read."""
        folder = self.part_folder(part)
        try:
            return load_own(folder / name)
        except TorchcollError:
            raise PartEnded(last_line(folder / LOG)) from None


class PartEnded(Exception):
    """A part cannot go on; why."""


def last_line(log: Path) -> str:
    """The line of a log that says what went wrong: torchcoll's own error, else the last one."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "it printed nothing"
    lines = [one_line(line) for line in lines if line.strip()]
    errors = [line.partition("error: ")[2] for line in lines if "torchcoll: error: " in line]
    lines = [line for line in lines if set(line) - set("=-* ")]
    return (errors[0] if errors else lines[-1] if lines else "it printed nothing")[:400]

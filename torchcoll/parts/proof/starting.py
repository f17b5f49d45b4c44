"""Starts the ranks of a part: with torchrun on this host, or with a launcher.

A starter is called with the module and its arguments and returns once all processes have ended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torchcoll.machine.processes import Ended, launch

# (module, arguments, variables, limit in s, log file) -> how it ended. The processes work in the
# folder of the log file.
Starter = Callable[[str, Sequence[str], Mapping[str, str], float, Path], Ended]

_TORCHRUN = (sys.executable, "-W", "ignore", "-m", "torch.distributed.run")


def run_command(
    command: Sequence[str],
    variables: Mapping[str, str],
    limit_s: float,
    log: Path,
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

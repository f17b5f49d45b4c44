"""Starts the ranks of a part: with torchrun on this host, with a launcher, or on several nodes.

A starter is called with the module and its arguments and returns once all processes have ended. On
several nodes without a launcher (Kubernetes), the kit runs on each of them: the kit on node 0
decides, and publishes what it starts in a store, from which the other nodes read it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torchcoll.core.errors import UsageError
from torchcoll.matrix.processes import Ended, launch

# (module, arguments, variables, limit in s, log file) -> how it ended. The processes work in the
# folder of the log file.
Starter = Callable[[str, Sequence[str], Mapping[str, str], float, Path], Ended]

_LAG_S = 10.0  # that other nodes may take longer than node 0 to end their ranks
_TORCHRUN = (sys.executable, "-W", "ignore", "-m", "torch.distributed.run")
# What an order of node 0 may ask of another node.
_MODULE = re.compile(r"torchcoll(\.\w+)+")
_VARIABLE = re.compile(r"(NCCL|RCCL|CCL)_\w+")


def run_command(
    command: Sequence[str],
    variables: Mapping[str, str],
    limit_s: float,
    log: Path,
    tick: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command to its end in the folder of ``log``, which gets its output.

    After ``limit_s``, and where an exception comes (Ctrl-C), it and all that it started on this
    host are ended. tick: called each second.
    """
    environ = {"OMP_NUM_THREADS": "1", **os.environ, **variables}
    with open(log, "ab") as file, _inside(log.parent):
        return launch(command, environ, f"acceptance-{os.getpid()}", file, limit_s, tick)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@dataclass(frozen=True)
class OnThisHost:
    """torchrun with ``ranks`` ranks."""

    ranks: int

    def __call__(
        self,
        module: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        limit_s: float,
        log: Path,
    ) -> Ended:
        command = [*_TORCHRUN, "--standalone", "--nproc-per-node", str(self.ranks)]
        return run_command([*command, "-m", module, *arguments], variables, limit_s, log)


@dataclass(frozen=True)
class ByLauncher:
    """A launcher that starts all ranks. prefix: its command line up to and including ``-m``."""

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


@dataclass(frozen=True)
class Nodes:
    """The kit on each of several nodes. port: of the store; torchrun takes those above it."""

    nodes: int
    node_rank: int
    ranks_per_node: int
    address: str
    port: int

    def command(self, number: int, module: str, arguments: Sequence[str]) -> list[str]:
        """The torchrun of this node for the start with this number, from 0."""
        return [
            *_TORCHRUN,
            *("--nnodes", str(self.nodes), "--node-rank", str(self.node_rank)),
            *("--nproc-per-node", str(self.ranks_per_node), "--master-addr", self.address),
            *("--master-port", str(self.port + 1 + number), "-m", module, *arguments),
        ]

    def store(self) -> Any:
        """The store, which node 0 serves. Raises UsageError where it cannot be reached."""
        import torch.distributed as dist

        try:
            return dist.TCPStore(
                self.address,
                self.port,
                is_master=self.node_rank == 0,
                timeout=timedelta(minutes=5),
                wait_for_workers=False,
            )
        except (RuntimeError, ValueError) as error:
            where = f"{self.address}:{self.port}"
            expected = "the store of the kit on node 0"
            action = f"Start the kit on all nodes ({str(error).splitlines()[0][:80]})."
            raise UsageError("master-addr and master-port", where, expected, action) from None


class LeadingNode:
    """The starter on node 0."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes, self._store, self._number = nodes, nodes.store(), 0

    def __call__(
        self,
        module: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        limit_s: float,
        log: Path,
    ) -> Ended:
        number, self._number = self._number, self._number + 1
        order = [module, [*arguments], dict(variables), limit_s]
        self._store.set(f"order{number}", json.dumps(order))
        try:
            command = self._nodes.command(number, module, arguments)
            return run_command(command, variables, limit_s, log)
        finally:
            self._store.set(f"ended{number}", "1")

    def finish(self) -> None:
        """Let the other nodes go, and serve the store until they have heard it."""
        self._store.set(f"order{self._number}", "null")
        gone = [f"gone{node}" for node in range(1, self._nodes.nodes)]
        with contextlib.suppress(RuntimeError):
            self._store.wait(gone, timedelta(seconds=_LAG_S))


class _Ended(Exception):
    """The ranks of node 0 have ended."""


def follow(nodes: Nodes, folder: Path, most_s: float) -> None:
    """On another node than 0: start this node's ranks of whatever node 0 starts, until it ends.

    most_s: how long node 0 may be silent. Raises UsageError where node 0 is gone, or orders what is
    no module of torchcoll.
    """
    store, number = nodes.store(), 0
    while True:
        try:
            store.wait([f"order{number}"], timedelta(seconds=most_s))
            order = json.loads(store.get(f"order{number}"))
        except RuntimeError:
            expected = "the kit on node 0 until it ends"
            raise UsageError("node 0", "no more orders", expected) from None
        if order is None:
            store.set(f"gone{nodes.node_rank}", "1")
            return
        module, arguments, variables, limit_s = order
        if not (_MODULE.fullmatch(module) and all(map(_VARIABLE.fullmatch, variables))):
            raise UsageError("order of node 0", module, "a module of torchcoll")
        ended = f"ended{number}"
        since: list[float] = []

        def tick(ended: str = ended, since: list[float] = since) -> None:
            if not since and store.check([ended]):
                since.append(time.monotonic())
            if since and time.monotonic() - since[0] > _LAG_S:
                raise _Ended

        log = folder / f"node{nodes.node_rank}-{number}.txt"
        command = nodes.command(number, module, arguments)
        with contextlib.suppress(_Ended):
            run_command(command, variables, limit_s, log, tick)
        number += 1

"""Real ranks for tests: processes forked after ``import torch``, 0.1 to 0.2 s a job.

``Job`` starts them, each with the variables of a launcher and its output in files. ``setup(rank)``
runs in a child before its target: what it patches dies with the child.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import pkgutil
import random
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed
from fake_clock import FakeClock

import torchcoll
from torchcoll import load
from torchcoll.bench import concurrent, measure
from torchcoll.bench.main import main
from torchcoll.core import variables
from torchcoll.core.result import CaseResult, Run
from torchcoll.machine import devices, state
from torchcoll.machine.devices import Cpu
from torchcoll.questions.pairs.pairs_run import run_pairs

Target = Callable[[], object]

# What ranks and commands import is imported here, once, and not in every process that is forked: it
# was half of the CPU time of a short job. The modules beside the packages are programs.
for _package in pkgutil.iter_modules(torchcoll.__path__):
    if _package.ispkg:
        _folder = f"{torchcoll.__path__[0]}/{_package.name}"
        for _module in pkgutil.walk_packages([_folder], f"torchcoll.{_package.name}."):
            importlib.import_module(_module.name)
variables._prefixed()  # a pattern that takes 15 ms to compile
"localhost".encode("idna")  # as for every address: its tables are a module of their own
# The threads of OpenMP wait for each other in a loop, and others want the core.
torch.set_num_threads(1)


@dataclass(frozen=True)
class Ended:
    """How one rank ended. ``code`` is -n after signal n, as in subprocess."""

    code: int
    stdout: str
    stderr: str
    seconds: float  # after the start of the job


# torch's store looks up the names of its clients: a lost answer costs 5 s.
NO_NAMES = {"RES_OPTIONS": "timeout:1 attempts:1"}


def without_names(text: str) -> str:
    """The text but for what torch's store says of the name server."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if "hostname of the client socket" not in line)


def busy() -> float:
    """How many times as long as on an idle machine things may take here: the load of the last
    minute by the cores, at least 1. Waiting times of tests are multiplied by it.
    """
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def past(began: float, limit_s: float) -> bool:
    """Is more over since ``began`` (time.monotonic) than ``limit_s`` seconds of an idle machine?"""
    over = time.monotonic() - began
    return over > limit_s and over > limit_s * busy()


_BLOCK = 50
_blocks: list[int] = []
_ports: Iterator[int] = iter(())


def free_port() -> int:
    """A port that stays free until a store asks for it. Of those that the system gives out (Linux:
    from 32768) one is soon given to one of the many sockets of other jobs. Parts of the suite that
    run side by side take theirs from other blocks: who listens on the first port of a block has it.
    """
    global _ports
    while True:
        for port in _ports:
            with socket.socket() as candidate, contextlib.suppress(OSError):
                candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                candidate.bind(("", port))
                return port
        first = 10000 + random.SystemRandom().randrange(200) * _BLOCK
        with contextlib.suppress(OSError):
            _blocks.append(socket.create_server(("127.0.0.1", first)).detach())
            _ports = iter(range(first + 1, first + _BLOCK))
            if len(_blocks) > 4:  # what was started there has long ended
                os.close(_blocks.pop(0))


class Job:
    """``ranks`` processes that run ``target``; ``world`` is what they are told, where it differs.

    environment: for all ranks, or a function of the rank; None takes a variable away.
    absent: ranks that are not started.
    """

    def __init__(
        self,
        folder: Path,
        target: Target,
        ranks: int,
        *,
        absent: Sequence[int] = (),
        environment: Mapping[str, str | None]
        | Callable[[int], Mapping[str, str | None]]
        | None = None,
        setup: Callable[[int], object] = lambda rank: None,
        port: int | None = None,
    ) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.pids: dict[int, int] = {}
        self._ended: dict[int, tuple[int, float]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._began = time.monotonic()
        for rank in range(ranks):
            if rank in absent:
                continue
            variables: dict[str, str | None] = {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self.port),
                **NO_NAMES,
                "CUDA_VISIBLE_DEVICES": "",  # these are tests of the CPU, on GPU machines too
            }
            variables |= environment(rank) if callable(environment) else environment or {}
            # A test may read them before the rank has opened them.
            for stream in ("stdout", "stderr"):
                (folder / f"{rank}.{stream}").touch()
            pid = os.fork()
            if not pid:
                _become(folder, rank, variables, lambda rank=rank: (setup(rank), target()))
            self.pids[rank] = pid

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pids[rank], number)

    def text(self, rank: int, stream: str = "stderr") -> str:
        """What the rank has written so far, but for what torch's store says of the name server."""
        return without_names((self.folder / f"{rank}.{stream}").read_text())

    def running(self) -> list[int]:
        for rank, pid in self.pids.items():
            if rank not in self._ended:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    code = os.waitstatus_to_exitcode(status)
                    self._ended[rank] = (code, time.monotonic() - self._began)
        return [rank for rank in self.pids if rank not in self._ended]

    def until(self, what: Callable[[], Any], timeout_s: float = 60) -> Any:
        """The first true value of ``what()``."""
        began = time.monotonic()
        while not (value := what()):
            if past(began, timeout_s):
                raise AssertionError(f"not within {timeout_s} s; {self._story()}")
            time.sleep(0.005)
        return value

    def wait(self, timeout_s: float = 100) -> dict[int, Ended]:
        """All ranks after they have ended; past the limit they are killed and the test fails."""
        began = time.monotonic()
        while self.running():
            if past(began, timeout_s):
                late, story = self.running(), self._story()
                self.kill()
                raise AssertionError(f"ranks {late} still run after {timeout_s} s; {story}")
            time.sleep(0.005)
        return {
            rank: Ended(code, self.text(rank, "stdout"), self.text(rank, "stderr"), seconds)
            for rank, (code, seconds) in sorted(self._ended.items())
        }

    def codes(self, timeout_s: float = 100) -> list[int]:
        return [ended.code for ended in self.wait(timeout_s).values()]

    def kill(self) -> None:
        """End what is left; also stopped ranks."""
        for rank in self.running():
            os.kill(self.pids[rank], signal.SIGKILL)
            os.waitpid(self.pids[rank], 0)
            self._ended[rank] = (-signal.SIGKILL, time.monotonic() - self._began)

    def _story(self) -> str:
        return "; ".join(f"rank {rank}: {self.text(rank)[-1500:]!r}" for rank in self.pids)


def _become(
    folder: Path, rank: int, variables: Mapping[str, str | None], target: Target
) -> NoReturn:
    """The life of a child, which never returns into the test runner."""
    code = 1
    gc.freeze()  # no collection looks at what the tests have: it would copy their memory as well
    try:
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, descriptor)
            os.close(file)
        sys.stdout, sys.stderr = (os.fdopen(fd, "w", closefd=False) for fd in (1, 2))
        sys.argv = ["torchcoll"]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # A shell that starts the tests in the background has some of them ignored.
        for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        warnings.resetwarnings()  # as in a process of its own
        os.chdir(folder)
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        torch.set_num_threads(1)
        fewer_calls()
        target()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def announce(event: str) -> None:
    """In a rank of a process group: ``await_event`` of other ranks returns."""
    torch.distributed.distributed_c10d._get_default_store().set(event, "")


def await_event(event: str) -> None:
    """Wait until another rank has announced it; no collective, so no capture sees it."""
    limit = timedelta(seconds=100 * busy())
    torch.distributed.distributed_c10d._get_default_store().wait([event], limit)


def command(collective: str | None, arguments: str | Sequence[str]) -> Target:
    """``torchrun -m torchcoll.<collective> ARGUMENTS``; None is the suite."""
    argv = arguments.split() if isinstance(arguments, str) else list(arguments)
    if collective == "pairs":
        return lambda: main(argv=argv, action=run_pairs)
    return lambda: main(collective, argv)


def fewer_calls() -> None:
    """Half of the CPU time of a short job were calls that only make the times steadier, which no
    machine does that runs other tests meanwhile.
    """
    state.LEAST_S = math.inf  # the machine of a test is busy with others
    devices.COST_CALLS = 16
    measure.LEAD_CALLS, measure.WAKE_BARRIERS = 2, 1
    concurrent.BLOCK_NS = 4_000_000


class Ticking(FakeClock):
    """A microsecond from one look to the next, whatever else the machine does."""

    def now(self) -> int:
        self.time_ns += 1000
        return self.time_ns


def ticking() -> Ticking:
    """In a child: the clock of all calls that are timed there."""
    clock = Ticking()
    Cpu.__init__.__defaults__ = (clock.now,)
    return clock


def of_enough_cores(rank: int) -> None:
    """A setup: to this rank the machine has a core for each rank, whatever it has."""
    os.sched_getaffinity = lambda pid: set(range(64))


class Measured:
    """A job of the command and the result file that it writes.

    ``output``: name the file FOLDER.jsonl; else the arguments do, or nothing does.
    """

    def __init__(
        self,
        folder: Path,
        collective: str | None,
        arguments: str,
        ranks: int = 2,
        output: bool = True,
        **options: Any,
    ) -> None:
        self.path = folder.with_name(f"{folder.name}.jsonl")
        words = f"{arguments} --output {self.path}" if output else arguments
        self.job = Job(folder, command(collective, words), ranks, **options)

    @property
    def run(self) -> Run:
        return load(self.path)

    def ended(self, codes: int | list[int], timeout_s: float = 100) -> Measured:
        """After the job, whose ranks all left with this exit code (or these)."""
        ended = self.job.wait(timeout_s)
        expected = [codes] * len(ended) if isinstance(codes, int) else codes
        stated = "\n".join(e.stderr for e in ended.values())
        assert [e.code for e in ended.values()] == expected, stated
        return self

    def stderr(self, rank: int = 0) -> str:
        return self.job.text(rank)

    def stdout(self, rank: int = 0) -> str:
        return self.job.text(rank, "stdout")

    def errors(self) -> list[str]:
        """The error lines of all ranks."""
        texts = [self.job.text(rank) for rank in self.job.pids]
        return [line for text in texts for line in text.splitlines() if "torchcoll: error" in line]

    def error_file(self, rank: int) -> dict[str, Any]:
        """What torchrun is told, where TORCHELASTIC_ERROR_FILE is error<RANK>.json."""
        data: dict[str, Any] = json.loads((self.job.folder / f"error{rank}.json").read_text())
        return data

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def only(self) -> CaseResult:
        (result,) = self.run.results
        return result

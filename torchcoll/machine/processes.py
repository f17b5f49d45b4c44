"""Starts runs, and ends each with all processes that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from torchcoll.machine.placement import process_ids

# In the environment of all processes of a run. Only this finds them all: launchers put ranks into
# sessions of their own (torchrun does), and what is left of a killed matrix has another parent.
MARK = "TORCHCOLL_MATRIX"
GRACE_S = 10.0  # from TERM to KILL: ranks write the end of their files, launchers end their ranks
_LEFTOVER_S = 2.0  # after the launcher has ended: its daemons may take a moment longer
_TICK_S = 1.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    exit_code: -n after signal n; None if the program could not be started.
    why: why it could not be started.
    """

    exit_code: int | None
    seconds: float
    timed_out: bool = False
    why: str = ""


def launch(
    argv: Sequence[str],
    environ: Mapping[str, str],
    mark: str,
    log: IO[bytes],
    timeout_s: float | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command to its end; ``tick`` is called each second. It is ended after ``timeout_s`` and
    on an exception, which is raised again; a second one kills it.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            argv,
            env={**environ, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return Ended(None, 0.0, why=f"{argv[0]}: {error.strerror}")
    except BaseException:  # Ctrl-C, while nobody knows the process yet
        end_leftovers(mark, 0.0)
        raise
    timed_out = False
    try:
        while not timed_out:
            elapsed = time.monotonic() - began
            left = _TICK_S if timeout_s is None else min(_TICK_S, timeout_s - elapsed)
            try:
                process.wait(max(0.0, left))
                break
            except subprocess.TimeoutExpired:
                timed_out = timeout_s is not None and time.monotonic() - began >= timeout_s
                if not timed_out:
                    tick()
    except BaseException:
        _end(process, mark)
        raise
    seconds = time.monotonic() - began
    if timed_out:
        _end(process, mark)
    else:
        end_leftovers(mark, _LEFTOVER_S)
    return Ended(process.returncode, seconds, timed_out)


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    try:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    finally:
        _signal_group(process.pid, signal.SIGKILL)
        end_leftovers(mark, 0.0)
        process.wait()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end_orphans(mark: str) -> int:
    """End the processes that a killed matrix has left running, and return their number."""
    pids = marked(mark)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
    end_leftovers(mark, GRACE_S)
    return len(pids)


def end_leftovers(mark: str, grace_s: float) -> None:
    """Kill this host's processes with this mark after ``grace_s``."""
    deadline = time.monotonic() + grace_s
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    # The processes are searched again each time, because one may have forked before it was killed.
    # This waits for their end, because the next run needs the machine for itself.
    while left and time.monotonic() < deadline + _LEFTOVER_S:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
        left = marked(mark)


def marked(mark: str) -> list[int]:
    """The processes with this mark. A mark that ends with // stands for all that begin with it."""
    entry = f"{MARK}={mark}".encode()
    several = mark.endswith("//")
    pids = []
    for pid in process_ids():
        with contextlib.suppress(OSError):  # of another user, or ended
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            if any(v == entry or (several and v.startswith(entry)) for v in variables):
                pids.append(pid)
    return pids

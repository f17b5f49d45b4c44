"""A rank that dies or stops in a run: ``python -m torchcoll.parts.proof.fault_probe``.

    fault_probe kill|stop CALL SECONDS [options of torchcoll.allreduce]

The last rank sends itself SIGKILL or SIGSTOP before call CALL of a case; everything else is
``torchcoll.allreduce``. A stopped rank is killed SECONDS later, so that no launcher waits for it.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
from typing import Any

from torchcoll.bench.main import main
from torchcoll.core.collectives import COLLECTIVES, DEFAULT_COLLECTIVE
from torchcoll.machine.launcher import detect


def plant(fault: str, at_call: int, stopped_s: str) -> None:
    """In this process: the fault before call ``at_call`` of each case."""
    entry = COLLECTIVES[DEFAULT_COLLECTIVE]

    def prepare(*arguments: Any) -> Any:
        call, numbers = entry.prepare(*arguments), itertools.count()

        def faulty_call() -> object:
            if next(numbers) == at_call:
                if fault == "stop":  # a stopped process cannot end itself
                    kill = f"sleep {float(stopped_s)}; kill -KILL {os.getpid()}"
                    nowhere = subprocess.DEVNULL
                    subprocess.Popen(["sh", "-c", kill], stdout=nowhere, stderr=nowhere)
                os.kill(os.getpid(), signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
            return call()

        return faulty_call

    COLLECTIVES[DEFAULT_COLLECTIVE] = dataclasses.replace(entry, prepare=prepare)


if __name__ == "__main__":
    fault, at_call, stopped_s, *arguments = sys.argv[1:]
    launch = detect()
    if launch.rank == launch.ranks - 1:
        plant(fault, int(at_call), stopped_s)
    main(DEFAULT_COLLECTIVE, arguments)

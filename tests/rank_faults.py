"""Faults that tests put into ranks."""

from __future__ import annotations

import dataclasses
import itertools
import time

from torchcoll.core.collectives import COLLECTIVES

HANG = 5


def around_calls(name: str, action) -> None:
    """In a child: ``action(number of the call, call)`` instead of each call of a collective."""
    entry = COLLECTIVES[name]

    def prepare(*args):
        call, numbers = entry.prepare(*args), itertools.count()
        return lambda: action(next(numbers), call)

    COLLECTIVES[name] = dataclasses.replace(entry, prepare=prepare)


def endless(rank: int) -> None:
    """A setup: all_reduce of 1 MiB and more never ends, for rank 1 does not make the call. Each
    rank that comes there makes the file in_the_last_case.RANK.
    """
    entry = COLLECTIVES["all_reduce"]

    def prepare(dist, layout, send, recv, *rest):
        call = entry.prepare(dist, layout, send, recv, *rest)

        def never() -> None:
            open(f"in_the_last_case.{rank}", "w").close()
            while rank == 1:
                time.sleep(1)
            call()

        return call if recv.nbytes < 1 << 20 else never

    COLLECTIVES["all_reduce"] = dataclasses.replace(entry, prepare=prepare)


def in_the_last_case(measured) -> None:
    """Wait until all ranks are in the call that never ends."""
    job = measured.job
    job.until(lambda: all((job.folder / f"in_the_last_case.{rank}").exists() for rank in job.pids))


def running(measured, cases: int):
    """Wait until so many cases are in the file, and the next is under way.

    The last case of those who ask is to last for seconds: nobody knows how long this process waits
    for a core before it acts.
    """

    def ready() -> bool:
        if not measured.path.exists():
            return False
        lines = measured.path.read_text().splitlines()
        done = sum(1 for line in lines if line.startswith('{"record":"case"'))
        return bool(lines) and done >= cases and lines[-1].startswith('{"record":"started"')

    measured.job.until(ready)

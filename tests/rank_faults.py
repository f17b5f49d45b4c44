"""Faults that tests put into ranks."""

from __future__ import annotations

import dataclasses
import itertools

from torchcoll.core.collectives import COLLECTIVES

HANG = 5


def around_calls(name: str, action) -> None:
    """In a child: ``action(number of the call, call)`` instead of each call of a collective."""
    entry = COLLECTIVES[name]

    def prepare(*args):
        call, numbers = entry.prepare(*args), itertools.count()
        return lambda: action(next(numbers), call)

    COLLECTIVES[name] = dataclasses.replace(entry, prepare=prepare)


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

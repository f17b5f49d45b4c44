"""Curves made by hand: latency 1 ms and 1 ms a MiB, so that all sums can be done on paper."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from made_runs import measured, run

from torchcoll.core.result import Run
from torchcoll.core.traffic import Group, Traffic, TrafficCall

MIB = 1 << 20
MS = 1_000_000
SIZES = tuple(1 << k for k in range(18, 27, 2))  # 256K to 64M


def line(latency: float = 1, slope: float = 1) -> Callable[[float], float]:
    """ms of a size in bytes."""
    return lambda size_bytes: latency + slope * size_bytes / MIB


def curve(
    time: Callable[[float], float] | None = None,
    sizes: Sequence[int] = SIZES,
    ranks: int = 2,
    **changed: Any,
) -> Run:
    """A run of all_reduce, every call of a size alike."""
    time = time or line()
    changed.setdefault("device", "cuda")  # where communication hides behind the computation
    more = {
        name: changed.pop(name) for name in ("asynchronous", "coalesce", "group") if name in changed
    }
    results = [measured(round(MS * time(n)), ranks, size_bytes=n, **dict(changed)) for n in sizes]
    for result in results:
        result.case = dataclasses.replace(result.case, **more)
    return run(*results, ranks=ranks)


def timed(traffic: Traffic, *times_ms: float | None, **changed: Any) -> Traffic:
    """The calls of each rank take so many ms in turn; None: nobody knows."""
    for rank, calls in traffic.calls.items():
        traffic.calls[rank] = [
            dataclasses.replace(call, time_ns=None if ms is None else round(ms * MS), **changed)
            for call, ms in zip(calls, itertools.cycle(times_ms))
        ]
    return traffic


def traffic(
    steps: Sequence[Sequence[tuple[float, float]]],
    backend: str = "gloo",
    spans: Sequence[tuple[float, float]] = (),
    ranks: int = 2,
    **changed: Any,
) -> Traffic:
    """Each step a list of (MiB, ms of issue); the same on every rank. spans in ms."""
    calls = [
        TrafficCall(
            "all_reduce",
            round(size * MIB),
            round(size * MIB),
            "float32",
            group="0",
            step=number,
            asynchronous=True,
            start_ns=round(at * MS),
        )
        for number, step in enumerate(steps)
        for size, at in step
    ]
    fields: dict[str, Any] = {
        "ranks": ranks,
        "calls": {rank: list(calls) for rank in range(ranks)},
        "groups": {"0": Group("0", tuple(range(ranks)), backend)},
        "steps": {r: [(round(a * MS), round(b * MS)) for a, b in spans] for r in range(ranks)},
    }
    return Traffic(**(fields | changed))

"""Fleets made by hand: one run per node and night, whose times are exactly what is planted."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone

from made_runs import measured, run

from torchcoll.core.result import Run

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
COLLECTIVES = ("all_reduce", "all_gather")
FIRST = datetime(2026, 10, 1, 22, tzinfo=timezone.utc)


def steady(node: int, night: int, case: int) -> float:
    """Every node the same: what is planted multiplies it."""
    return 1.0


def made_fleet(
    nodes: int,
    nights: int = 1,
    times: Callable[[int, int, int], float] = steady,
    labels: Callable[[int, int], Mapping[str, str]] = lambda node, night: {},
    environment: Callable[[int, int], Mapping[str, str]] = lambda node, night: {},
    noise: float = 0.002,
    seed: int = 7,
) -> list[Run]:
    """One run per node and night with 10 cases of about 1 ms.

    times: factor by node, night and case. noise: standard deviation of the node's and of each
    case's log time in a night.
    """
    generator = random.Random(seed)
    runs = []
    for night in range(nights):
        for node in range(nodes):
            own = generator.gauss(1, noise)
            results = []
            for case in range(len(SIZES) * len(COLLECTIVES)):
                collective = COLLECTIVES[case // len(SIZES)]
                size = SIZES[case % len(SIZES)]
                factor = own * generator.gauss(1, noise) * times(node, night, case)
                op = "sum" if collective == "all_reduce" else None
                results.append(
                    measured(int(1_000_000 * factor), collective=collective, size_bytes=size, op=op)
                )
            when = FIRST + timedelta(days=night, seconds=node)
            runs.append(
                run(
                    *results,
                    hosts=[f"node{node:03}"],
                    labels=dict(labels(node, night)),
                    environment=dict(environment(node, night)),
                    header={
                        "run_id": f"{night:04}-{node:04}",
                        "start_utc": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
                    },
                )
            )
    return runs

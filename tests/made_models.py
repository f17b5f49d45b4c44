"""A machine of exact figures, and its model as fitted to runs of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import handmade

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.result import Run
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.parts.training.captured_plan import plan_traffic
from torchcoll.parts.training.projection import Computation

STEP_NS, LAUNCH_NS, GBPS = 2000.0, 5000.0, 10.0
_PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
SIZES = tuple(1 << power for power in range(10, 29, 2))


def ring_ns(collective: str, size_bytes: float, ranks: int) -> float:
    """5 us to launch, 2 us a step, 10 GB/s: of all_reduce 2 (n - 1) steps, of others n - 1."""
    share = _PASSES[collective] * (ranks - 1) / ranks
    return LAUNCH_NS + STEP_NS * share * ranks + share * size_bytes / GBPS


def runs(
    collectives: Sequence[str] = ("all_reduce",), ranks: Sequence[int] = (2, 4, 8)
) -> list[Run]:
    """One run for each number of ranks, on one host, without noise."""
    made_runs = []
    for count in ranks:
        results: list[Any] = []
        for name in collectives:
            entry = COLLECTIVES[name]
            for size_bytes in SIZES:
                case = handmade.case(
                    collective=name,
                    size_bytes=size_bytes,
                    op="sum" if entry.has_op else None,
                    in_place=entry.placements[0],
                )
                time_ns = round(ring_ns(name, size_bytes, count))
                samples = {"host": [[time_ns] * 21] * count}
                results.append(handmade.result(count, case=case, time_ns=samples))
        made_runs.append(handmade.run(*results, ranks=count))
    return made_runs


def even_buckets(size_bytes, ranks):
    """One step of DDP: a bucket of 1 MiB, then even ones of at most 25 MiB."""
    first, most = min(size_bytes, 1 << 20), 25 << 20
    rest = size_bytes - first
    count = -(-rest // most)
    sizes = [first, *([rest // count] * count if count else [])]
    calls = [
        TrafficCall("all_reduce", n, n, "bfloat16", "sum", group="dp", asynchronous=True)
        for n in sizes
    ]
    return Traffic("plan", ranks, {0: calls}, {"dp": Group("dp", tuple(range(ranks)))})


def planned_buckets(machine, size_bytes, ranks, compute_ns=None):
    """The plan of such a step, on these numbers of ranks."""
    compute = None if compute_ns is None else Computation((compute_ns,) * 3)
    return plan_traffic(machine, even_buckets(size_bytes, ranks[0]), ranks, compute)

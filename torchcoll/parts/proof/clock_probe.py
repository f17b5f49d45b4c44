"""Does torchcoll's timing loop measure what a bare loop measures?

Blocks of calls, in pairs in random order: one through torchcoll's loop, the other through a bare
loop with the same pacing, which is written out here and shares no code with the first. On an
accelerator both the device clock (events) and the host clock are compared. The A/A pairs compare
the bare loop with itself: what noise alone does.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from torchcoll.bench.session import Rank, SessionOptions, opened
from torchcoll.core.case import size_case
from torchcoll.core.collectives import COLLECTIVES, DEFAULT_COLLECTIVE
from torchcoll.machine.devices import Call, nothing
from torchcoll.machine.launcher import Launch
from torchcoll.parts.proof.probe import Evidence, ProbeOptions

CALLS = 20  # of a block
LEADS = 5  # ramp-up calls of a block on the device clock
SIZES = (4 << 10, 1 << 20)
MOST_S = 20.0  # of one clock and size: ranks that share a GPU take 10 ms a call
Block = Callable[[], float]


def measure(torch: Any, launch: Launch, options: ProbeOptions) -> Evidence:
    """Rank 0's pairs of blocks: the median (host clock) or mean (device clock) of each, in ns."""
    # One rank sums nothing: NCCL then copies nothing in place, and averages.
    op = "avg" if launch.ranks == 1 and options.device != "cpu" else "sum"
    spec = options.spec(sizes=SIZES, in_place=True, ops=op)
    compared = []
    with opened(torch, SessionOptions(spec, launch)) as session:
        local = session.local
        align = session.communicators.align(options.backend)
        barrier = session.communicators.barrier(None, options.backend)
        for sizing in session.sizings:
            case = sizing.case
            layout = size_case(case, local.ranks).layout(local.rank)
            tensor = torch.zeros(sizing.size_bytes // 4, device=local.device.name)
            reduce_op = getattr(local.dist.ReduceOp, op.upper())
            entry = COLLECTIVES[DEFAULT_COLLECTIVE]
            call = entry.prepare(local.dist, layout, tensor, tensor, reduce_op, None)
            clocks = ("host",) if local.device.kind == "cpu" else ("host", "device")
            for clock in clocks:
                ours, bare = _blocks(local, clock, call, align, barrier, tensor, reduce_op)
                pairs = _pairs(ours, bare, options.pairs, local)
                compared.append({"clock": clock, "size_bytes": case.size_bytes, **pairs})
        rank = local.rank
    return {"ranks": launch.ranks, "compared": compared} if rank == 0 else None


def _pairs(ours: Block, bare: Block, count: int, local: Rank) -> dict[str, list[list[float]]]:
    """``count`` pairs of both and as many of the bare block with itself (A/A), in turn; fewer where
    they take longer than MOST_S.
    """
    order = random.Random(1)
    kinds = {"pairs": (ours, bare), "aa": (bare, bare)}
    times: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    began = time.monotonic()
    for _ in range(count):
        for kind, blocks in kinds.items():
            pair = [0.0, 0.0]
            for index in order.sample((0, 1), 2):
                pair[index] = blocks[index]()
                local.progress.beat()
            times[kind].append(pair)
        if local.control.decide(time.monotonic() - began > MOST_S):
            break
    return times


def _blocks(
    local: Rank, clock: str, call: Any, align: Any, barrier: Any, tensor: Any, op: Any
) -> tuple[Block, Block]:
    """(torchcoll's block, the bare block)."""
    torch, dist, device = local.torch, local.dist, local.device
    synchronize: Call = nothing if device.kind == "cpu" else device.synchronize

    def ours_on_host() -> float:
        samples: dict[str, list[int]] = {"host": [], "issue": []}
        device.synchronized(call, align, CALLS, samples)
        return statistics.median(samples["host"])

    def bare_on_host() -> float:
        samples = []
        for _ in range(CALLS):
            barrier()
            synchronize()
            start = time.perf_counter_ns()
            dist.all_reduce(tensor, op)
            synchronize()
            samples.append(time.perf_counter_ns() - start)
        return statistics.median(samples)

    def ours_on_device() -> float:
        samples: dict[str, list[int]] = {"device": [], "issue": []}
        align()
        device.stream(call, CALLS, samples, LEADS, [])
        return statistics.mean(samples["device"])

    def bare_on_device() -> float:
        """One pair of events around all calls, and one between each sample, as torchcoll has."""
        align()
        every = device.calls_per_sample
        for _ in range(LEADS):
            dist.all_reduce(tensor, op)
        events = [torch.Event(device.name, enable_timing=True) for _ in range(CALLS // every + 1)]
        events[0].record()
        for event in events[1:]:
            for _ in range(every):
                dist.all_reduce(tensor, op)
            event.record()
        synchronize()
        return float(events[0].elapsed_time(events[-1])) * 1e6 / CALLS

    if clock == "host":
        return ours_on_host, bare_on_host
    return ours_on_device, bare_on_device

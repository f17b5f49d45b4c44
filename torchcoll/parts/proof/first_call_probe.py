"""Does the first call on a new communicator take as long in torchcoll as in a bare script?

In random order, several times: torchcoll.run, the bare script, and the bare script once more (A/A).
Each makes a process group of its own, in processes that stay: what a process pays once (loading the
library, the device's context) is paid by the run that is not counted before them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from torchcoll.bench.control import Control, run_stores, store_of
from torchcoll.bench.rehearsal import rehearse
from torchcoll.machine.devices import open_device
from torchcoll.machine.launcher import Launch
from torchcoll.parts.proof.probe import TIMEOUT_S, Evidence, ProbeOptions, run_cases

SIZE_BYTES = 4096
MOST_S = 90.0  # of all rounds: NCCL takes seconds to connect many ranks


def measure(torch: Any, launch: Launch, options: ProbeOptions) -> Evidence:
    """On rank 0: (torchcoll, bare, bare again) in ns for each round, the slowest rank of each."""
    spec = options.spec(sizes=(SIZE_BYTES,), iters=1, cold=1, check=False, in_place=True)

    def through_torchcoll() -> float:
        result = run_cases(torch, spec)
        if result is None:
            return 0.0
        return float(max(calls[0] for calls in result.results[0].cold_ns))

    began, is_over = time.monotonic(), False

    def bare() -> float:
        nonlocal is_over
        first_ns, is_over = _bare(torch, launch, options, time.monotonic() - began > MOST_S)
        return first_ns

    arms: tuple[Callable[[], float], ...] = (through_torchcoll, bare, bare)
    order, rounds = random.Random(1), []
    bare()  # not counted
    through_torchcoll()
    for _ in range(options.pairs):
        times = [0.0, 0.0, 0.0]
        for index in order.sample(range(3), 3):
            times[index] = arms[index]()
        rounds.append(times)
        if is_over:
            break
    return {"ranks": launch.ranks, "rounds": rounds} if launch.rank == 0 else None


def _bare(torch: Any, launch: Launch, options: ProbeOptions, is_over: bool) -> tuple[float, bool]:
    """ns of the first call of a new process group, as a script would measure it; and rank 0's
    ``is_over``.
    """
    dist = torch.distributed
    store = store_of(torch, launch, TIMEOUT_S, found_group=False, fake=False)
    subgroup_store, client = run_stores(dist, store, launch.ranks > 1)
    control = Control(subgroup_store, launch.rank, launch.ranks, TIMEOUT_S)
    device = open_device(torch, options.device, launch, options.rehearse)
    undo = rehearse(options.backend, device.kind, launch.rank) if options.rehearse else None
    dist.init_process_group(
        options.backend,
        store=dist.PrefixStore("bare", client),
        rank=launch.rank,
        world_size=launch.ranks,
    )
    try:
        tensor = torch.zeros(SIZE_BYTES // 4, device=device.name)
        device.synchronize()
        control.start_together()
        start = time.perf_counter_ns()
        dist.all_reduce(tensor)
        device.synchronize()
        first_ns = time.perf_counter_ns() - start
        everyone = control.gather(first_ns)
        is_over = control.decide(is_over)
        control.leave()
    finally:
        dist.destroy_process_group()
        if undo:
            undo()
    return float(max(everyone)) if everyone else 0.0, is_over

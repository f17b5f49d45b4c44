"""Does torchcoll.capture see the calls that torch's profiler sees?

A few steps of DDP and of single collectives run under both at once, with a clock around each single
call. Rank 0's capture and trace stay in the folder of the probe; the kit compares their calls.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from torchcoll.bench.session import SessionOptions, opened
from torchcoll.machine.launcher import Launch
from torchcoll.parts.proof.probe import Evidence, ProbeOptions

CAPTURED, TRACE = "captured", "trace-rank{}.json"
STEPS = 4
_WIDTH = 128


def measure(torch: Any, launch: Launch, options: ProbeOptions) -> Evidence:
    """On rank 0 the names of the folder of the capture and of the trace."""
    from torchcoll.parts.training.capture import capture

    folder = options.folder / CAPTURED
    trace = options.folder / TRACE.format(launch.rank)
    with opened(torch, SessionOptions(options.spec(sizes=(1024,)), launch)) as session:
        local = session.local
        dist, device = local.dist, local.device
        # DDP asks of the host's process group for its settings; a model on the device.
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(_WIDTH, _WIDTH).to(device.name),
            device_ids=None if device.kind == "cpu" else [device.index],
        )
        data = torch.ones(_WIDTH, device=device.name)
        gathered = torch.empty(_WIDTH * local.ranks, device=device.name)
        inputs = torch.ones(8, _WIDTH, device=device.name)

        def step() -> None:
            model(inputs).sum().backward()
            dist.all_gather_into_tensor(gathered, data)
            dist.broadcast(data, 0)
            device.synchronize()

        step()  # connects
        activities = [torch.profiler.ProfilerActivity.CPU]
        if device.kind != "cpu":
            activities.append(getattr(torch.profiler.ProfilerActivity, device.kind.upper()))
        began = time.perf_counter_ns()
        # On rank 0 alone: the kit reads no other trace.
        profiler = None
        if not launch.rank:
            profiler = torch.profiler.profile(activities=activities, record_shapes=True)
        with profiler or contextlib.nullcontext(), capture(folder) as traffic:
            for _ in range(STEPS):
                step()
                traffic.step()
                local.progress.beat()
        spent_ns = time.perf_counter_ns() - began
        if profiler:
            profiler.export_chrome_trace(str(trace))
        local.control.align()  # rank 0's kit may read once rank 0 has written its evidence
    if launch.rank:
        return None
    return {"ranks": launch.ranks, "capture": CAPTURED, "trace": trace.name, "spent_ns": spent_ns}

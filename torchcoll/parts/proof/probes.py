"""What a proof measures on the ranks. Each probe returns its evidence on rank 0."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcoll.bench.session import Rank, SessionOptions, opened
from torchcoll.bench.sweep import Sweep
from torchcoll.core.backends import choose_backends
from torchcoll.core.case import size_case
from torchcoll.core.collectives import COLLECTIVES, DEFAULT_COLLECTIVE
from torchcoll.core.spec import Spec
from torchcoll.machine.devices import Call, nothing, open_device
from torchcoll.machine.environment import library_version
from torchcoll.machine.launcher import Launch
from torchcoll.machine.state import BUSY_SHARE, Sample, allowed_cpus, sample, shares

TIMEOUT_S = 60.0  # no progress for so long is a hang

# What rank 0 measured; None on the other ranks.
Evidence = dict[str, Any] | None


@dataclass(frozen=True)
class ProbeOptions:
    """What a probe runs on."""

    backend: str = ""
    device: str = ""
    rehearse: bool = False

    def spec(self, **fields: Any) -> Spec:
        """A Spec on this backend and device."""
        return Spec(
            backend=self.backend,
            device=self.device,
            rehearse=self.rehearse,
            timeout_s=TIMEOUT_S,
            **fields,
        )


def describe_other_work(first: Sample) -> str:
    """``other programs used 1.6 of 2 cores``; '' below a tenth of them, and where that cannot be
    seen.
    """
    # The ranks of this host have one parent: torchrun, or the launcher's daemon.
    siblings, cpus = {os.getppid()}, allowed_cpus([os.getpid()])
    used = shares(first, sample(), siblings, cpus, os.sysconf("SC_CLK_TCK"))
    others, cores = used["others_cores"] or 0.0, used["cores"]
    if others <= BUSY_SHARE["cpu"] * cores:
        return ""
    return f"other programs used {others:.1f} of {cores} cores"


def describe_machine(torch: Any, launch: Launch, options: ProbeOptions, folder: Path) -> Evidence:
    """Which backend and devices a proof can use here. Opens each device once, and raises
    UnavailableError as a run does.
    """
    entries, kind = choose_backends(torch, options.backend or None, options.device or None)
    entry, names = entries[0], list[str]()
    count = 0
    if kind != "cpu":
        module = torch.get_device_module(kind)
        count = module.device_count() if module.is_available() else 0
        for index in range(max(1, count)):  # with none, the first says why
            device = open_device(torch, kind, Launch("none", local_rank=index), False)
            names.append(device.described)
    # RCCL on a shared GPU was never tried; NCCL connects no MIG slices.
    slices = any(" MIG " in f"{name} " for name in names)
    shareable = entry.shares_device and kind == "cuda" and not torch.version.hip and not slices
    return {
        "backend": entry.name,
        "device": kind,
        "devices": 1 if slices else count,
        "names": names,
        "shares_device": shareable,
        "family": entry.family,
        "library": library_version(torch, entry),
    }


PAIRS = 100  # of blocks
CALLS = 20  # of a block
LEADS = 5  # ramp-up calls of a block on the device clock
CLOCK_SIZES = (4 << 10, 1 << 20)
CLOCK_MOST_S = 20.0  # of one clock and size: ranks that share a GPU take 10 ms a call
Block = Callable[[], float]


def measure_clock(torch: Any, launch: Launch, options: ProbeOptions, folder: Path) -> Evidence:
    """Does torchcoll's timing loop measure what a bare loop measures? Returns the median (host
    clock) or mean (device clock) of each block of calls, in ns, in pairs in random order.

    The bare loop has the same pacing, is written out here and shares no code with the first. The
    A/A pairs compare the bare loop with itself: what noise alone does.
    """
    # One rank sums nothing: NCCL then copies nothing in place, and averages.
    op = "avg" if launch.ranks == 1 and options.device != "cpu" else "sum"
    spec = options.spec(sizes=CLOCK_SIZES, in_place=True, ops=op)
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
                pairs = _pairs(ours, bare, local)
                compared.append({"clock": clock, "size_bytes": case.size_bytes, **pairs})
        rank = local.rank
    return {"compared": compared} if rank == 0 else None


def _pairs(ours: Block, bare: Block, local: Rank) -> dict[str, list[list[float]]]:
    """PAIRS pairs of both and as many of the bare block with itself (A/A), in turn; fewer where
    they take longer than CLOCK_MOST_S.
    """
    order = random.Random(1)
    kinds = {"pairs": (ours, bare), "aa": (bare, bare)}
    times: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    began = time.monotonic()
    for _ in range(PAIRS):
        for kind, blocks in kinds.items():
            pair = [0.0, 0.0]
            for index in order.sample((0, 1), 2):
                pair[index] = blocks[index]()
                local.progress.beat()
            times[kind].append(pair)
        if local.control.decide(time.monotonic() - began > CLOCK_MOST_S):
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


# Whole blocks of every type for any number of ranks that divides it, else less.
VERIFIED_BYTES = 12_288
VERIFIED_TYPES = ("float32", "bfloat16", "int32")
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
# (output, output before the call): what a fault does to the output, in place.
Fault = Callable[[Any, Any], object]


def measure_verification(
    torch: Any, launch: Launch, options: ProbeOptions, folder: Path
) -> Evidence:
    """Does verification see what a faulty library would leave? Returns what it said, for each fault
    and case.

    On the last rank the output of each call is changed afterwards; once nothing is changed.
    """

    def one_bit(output: Any, before: Any) -> None:
        bits = output.view(getattr(torch, _BITS[output.element_size()]))
        bits[len(bits) // 3] ^= 1

    faults: dict[str, Fault | None] = {
        "none": None,
        "one bit": one_bit,
        "not written": lambda output, before: output[-1:].copy_(before[-1:]),
        "shifted": lambda output, before: output.copy_(output.roll(1)),
    }
    # The output of these has data of other ranks on every rank, the last one too.
    names = [
        name
        for name, entry in COLLECTIVES.items()
        if entry.has_data and not entry.has_root and not entry.has_splits
        if not (entry.power_of_two and launch.ranks & (launch.ranks - 1))
    ]
    spec = options.spec(
        collectives=names,
        dtypes=VERIFIED_TYPES,
        sizes=(VERIFIED_BYTES,),
        mode="synchronized",
        iters=1,
        cold=1,
    )
    seen = []
    for fault, change in faults.items():
        entries = dict(COLLECTIVES)
        if change and launch.rank == launch.ranks - 1:
            for name in names:
                COLLECTIVES[name] = _faulty(entries[name], change)
        try:
            with opened(torch, SessionOptions(spec)) as session:
                Sweep(session).run()
                session.finish(*session.outcome())
        finally:
            COLLECTIVES.update(entries)
        for case in session.run.results if session.run else ():
            seen.append(
                {
                    "fault": fault,
                    "case": f"{case.case.collective} {case.case.dtype}",
                    "status": case.status,
                    "wrong": case.verification.wrong if case.verification else None,
                    "reason": case.reason,
                }
            )
    return {"seen": seen} if launch.rank == 0 else None


def _faulty(entry: Any, change: Fault) -> Any:
    """The collective, the output of which is changed after each call."""

    def prepare(dist: Any, layout: Any, send: Any, recv: Any, op: Any, group: Any) -> Any:
        call = entry.prepare(dist, layout, send, recv, op, group)

        def faulty_call() -> object:
            before = recv.clone()
            work = call()
            change(recv, before)
            return work

        return faulty_call

    return dataclasses.replace(entry, prepare=prepare)


CAPTURED, TRACE = "captured", "trace-rank0.json"
STEPS = 4
_WIDTH = 128


def measure_capture(torch: Any, launch: Launch, options: ProbeOptions, folder: Path) -> Evidence:
    """Does torchcoll.capture see the calls that torch's profiler sees?

    A few steps of DDP and of single collectives run under both at once. Rank 0's capture and trace
    stay in the folder, CAPTURED and TRACE; prove.py compares their calls.
    """
    from torchcoll.parts.training.capture import capture

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
        profiler = None  # on rank 0 alone: no other trace is read
        if not launch.rank:
            profiler = torch.profiler.profile(activities=activities, record_shapes=True)
        with profiler or contextlib.nullcontext(), capture(folder / CAPTURED) as traffic:
            for _ in range(STEPS):
                step()
                traffic.step()
                local.progress.beat()
        if profiler:
            profiler.export_chrome_trace(str(folder / TRACE))
        local.control.align()  # the capture of every rank is complete
    return None if launch.rank else {}


PROBES: dict[str, Callable[[Any, Launch, ProbeOptions, Path], Evidence]] = {
    "machine": describe_machine,
    "clock": measure_clock,
    "verification": measure_verification,
    "capture": measure_capture,
}

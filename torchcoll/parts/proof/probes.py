"""What a proof measures on the ranks. Each probe returns its evidence on rank 0."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.bench.control import Control, run_stores, store_of
from torchcoll.bench.rehearsal import rehearse
from torchcoll.bench.session import Rank, SessionOptions, opened
from torchcoll.bench.sweep import Sweep
from torchcoll.core.backends import choose_backends
from torchcoll.core.case import size_case
from torchcoll.core.collectives import COLLECTIVES, DEFAULT_COLLECTIVE
from torchcoll.core.spec import Spec
from torchcoll.machine.devices import Call, nothing, open_device
from torchcoll.machine.environment import environment, library_version
from torchcoll.machine.launcher import Launch
from torchcoll.machine.state import BUSY_SHARE, Sample, allowed_cpus, sample, shares

if TYPE_CHECKING:
    from torchcoll.core.result import Run

TIMEOUT_S = 60.0  # no progress for so long is a hang

# What rank 0 measured; None on the other ranks.
Evidence = dict[str, Any] | None


@dataclass(frozen=True)
class ProbeOptions:
    """What a probe runs on. pairs: how often it measures. folder: for files of its own."""

    backend: str
    device: str
    rehearse: bool
    pairs: int
    folder: Path

    def spec(self, **fields: Any) -> Spec:
        """A Spec on this backend and device."""
        return Spec(
            backend=self.backend,
            device=self.device,
            rehearse=self.rehearse,
            timeout_s=TIMEOUT_S,
            **fields,
        )


def run_cases(torch: Any, spec: Spec) -> Run | None:
    """As torchcoll.run, of this torch: the Run on rank 0, None elsewhere."""
    with opened(torch, SessionOptions(spec)) as session:
        Sweep(session).run()
        session.finish(*session.outcome())
    return session.run


def describe_other_work(first: Sample) -> str:
    """``other programs used 1.6 of 2 cores``; '' below a tenth of them, and where that cannot be
    seen.
    """
    # The ranks of this host have one parent: torchrun, or the launcher's daemon.
    siblings = {os.getppid()}
    cpus = allowed_cpus([os.getpid()])
    used = shares(first, sample(), siblings, cpus, os.sysconf("SC_CLK_TCK"))
    others, cores = used["others_cores"] or 0.0, used["cores"]
    if others <= BUSY_SHARE["cpu"] * cores:
        return ""
    return f"other programs used {others:.1f} of {cores} cores"


_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader")


def describe_machine(torch: Any, launch: Launch, options: ProbeOptions) -> Evidence:
    """Which backend and devices a proof can use here, and what forbids several ranks on one.

    Opens each device once. Raises UnavailableError as a run does, such as for no GPU, one that
    others have taken, or a driver that is older than torch needs.
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
    return {
        "backend": entry.name,
        "device": kind,
        "devices": count,
        "names": names,
        # RCCL on a shared GPU was never tried.
        "shares_device": entry.shares_device and kind == "cuda" and not torch.version.hip,
        "exclusive": kind == "cuda" and _exclusive(),
        "slices": any(" MIG " in f"{name} " for name in names),
        "family": entry.family,
        "library": library_version(torch, entry),
        "environment": environment(torch, [entry]),
    }


def _exclusive() -> bool:
    """Whether a GPU takes one process only (nvidia-smi -c EXCLUSIVE_PROCESS)."""
    try:
        smi = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):  # ROCm, and containers without the tool
        return False
    return "Exclusive" in smi.stdout


CALLS = 20  # of a block
LEADS = 5  # ramp-up calls of a block on the device clock
CLOCK_SIZES = (4 << 10, 1 << 20)
CLOCK_MOST_S = 20.0  # of one clock and size: ranks that share a GPU take 10 ms a call
Block = Callable[[], float]


def measure_clock(torch: Any, launch: Launch, options: ProbeOptions) -> Evidence:
    """Does torchcoll's timing loop measure what a bare loop measures?

    Blocks of calls, in pairs in random order: one through torchcoll's loop, the other through a
    bare loop with the same pacing, which is written out here and shares no code with the first. On
    an accelerator both the device clock (events) and the host clock are compared. The A/A pairs
    compare the bare loop with itself: what noise alone does.

    Returns the median (host clock) or mean (device clock) of each block, in ns.
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
                pairs = _pairs(ours, bare, options.pairs, local)
                compared.append({"clock": clock, "size_bytes": case.size_bytes, **pairs})
        rank = local.rank
    return {"ranks": launch.ranks, "compared": compared} if rank == 0 else None


def _pairs(ours: Block, bare: Block, count: int, local: Rank) -> dict[str, list[list[float]]]:
    """``count`` pairs of both and as many of the bare block with itself (A/A), in turn; fewer where
    they take longer than CLOCK_MOST_S.
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


FIRST_CALL_BYTES = 4096
FIRST_CALL_MOST_S = 90.0  # of all rounds: NCCL takes seconds to connect many ranks


def measure_first_calls(torch: Any, launch: Launch, options: ProbeOptions) -> Evidence:
    """Does the first call on a new communicator take as long in torchcoll as in a bare script?

    In random order, several times: torchcoll.run, the bare script, and the bare script once more
    (A/A). Each makes a process group of its own, in processes that stay: what a process pays once
    (loading the library, the device's context) is paid by the run that is not counted before them.

    Returns (torchcoll, bare, bare again) in ns for each round, the slowest rank of each.
    """
    spec = options.spec(sizes=(FIRST_CALL_BYTES,), iters=1, cold=1, check=False, in_place=True)

    def through_torchcoll() -> float:
        result = run_cases(torch, spec)
        if result is None:
            return 0.0
        return float(max(calls[0] for calls in result.results[0].cold_ns))

    began, is_over = time.monotonic(), False

    def bare() -> float:
        nonlocal is_over
        first_ns, is_over = _bare(
            torch, launch, options, time.monotonic() - began > FIRST_CALL_MOST_S
        )
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
        tensor = torch.zeros(FIRST_CALL_BYTES // 4, device=device.name)
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


VERIFIED_BYTES = (
    12_288  # whole blocks of every type for any number of ranks that divides it, else less
)
VERIFIED_TYPES = ("float32", "bfloat16", "int32")
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
# (output, output before the call): what a fault does to the output, in place.
Fault = Callable[[Any, Any], object]


def measure_verification(torch: Any, launch: Launch, options: ProbeOptions) -> Evidence:
    """Does verification see what a faulty library would leave?

    Real collectives on the real device; on the last rank the output of each call is changed
    afterwards. Once nothing is changed: then nothing may be reported.

    Returns what verification said, for each fault and case.
    """

    def one_bit(output: Any, before: Any) -> None:
        bits = output.view(getattr(torch, _BITS[output.element_size()]))
        bits[len(bits) // 3] ^= 1

    def stale(output: Any, before: Any) -> None:
        """As if a part of the output had not been written."""
        output[-1:] = before[-1:]

    def shifted(output: Any, before: Any) -> None:
        output.copy_(output.roll(1))

    faults: dict[str, Fault | None] = {
        "none": None,
        "one bit": one_bit,
        "not written": stale,
        "shifted": shifted,
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
            result = run_cases(torch, spec)
        finally:
            COLLECTIVES.update(entries)
        for case in result.results if result else ():
            seen.append(
                {
                    "fault": fault,
                    "case": f"{case.case.collective} {case.case.dtype}",
                    "status": case.status,
                    "wrong": case.verification.wrong if case.verification else None,
                    "reason": case.reason,
                }
            )
    return {"ranks": launch.ranks, "seen": seen} if launch.rank == 0 else None


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


CAPTURED, TRACE = "captured", "trace-rank{}.json"
STEPS = 4
_WIDTH = 128


def measure_capture(torch: Any, launch: Launch, options: ProbeOptions) -> Evidence:
    """Does torchcoll.capture see the calls that torch's profiler sees?

    A few steps of DDP and of single collectives run under both at once, with a clock around each
    single call. Rank 0's capture and trace stay in the folder of the probe; the kit compares their
    calls.

    Returns the names of the folder of the capture and of the trace.
    """
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


PROBES: dict[str, Callable[[Any, Launch, ProbeOptions], Evidence]] = {
    "machine": describe_machine,
    "clock": measure_clock,
    "first-call": measure_first_calls,
    "verification": measure_verification,
    "capture": measure_capture,
}

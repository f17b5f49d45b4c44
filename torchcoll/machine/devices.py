"""One path for all vendors: the device that this rank measures on, and the clocks it offers.

``torch.accelerator``, ``torch.Event`` and ``torch.get_device_module`` serve CUDA, ROCm and XPU
alike; a vendor's name appears only in the table of backends.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torchcoll.core.case import calls_of_batch
from torchcoll.core.errors import UnavailableError
from torchcoll.machine.launcher import Launch

# The seam between what is timed and how time passes.
#
# Timing loops take a ``now`` that returns nanoseconds; on machines it is ``time.perf_counter_ns``
# (monotonic, not steered by NTP in steps). FakeClock replaces it in tests, ours and users'.

Now = Callable[[], int]


class FakeClock:
    """Time that passes only when told to.

    ``now`` is the clock; ``call(durations)`` gives a function that lasts so many ns, one duration
    a call; ``noisy(median_ns, spread)`` gives one whose durations are log-normal, by seed.
    """

    def __init__(self, seed: int = 0) -> None:
        self.time_ns = 0
        self._random = random.Random(seed)

    def now(self) -> int:
        return self.time_ns

    def call(self, durations: Iterable[int]) -> Callable[[], None]:
        remaining = iter(durations)

        def pass_time() -> None:
            self.time_ns += next(remaining)

        return pass_time

    def noisy(self, median_ns: int, spread: float = 0.1) -> Callable[[], None]:
        def pass_time() -> None:
            self.time_ns += round(median_ns * self._random.lognormvariate(0, spread))

        return pass_time


Call = Callable[[], object]
Clocks = dict[str, list[int]]

# One event costs about 0.1 ms on XPU (0.006 on CUDA), so there an event stands only at both ends of
# so many calls, and a sample is their mean. Source: torch-xpu-ops#3227.
XPU_CALLS_PER_SAMPLE = 10

COST_CALLS = 200  # of the no-op and the barrier whose median is the cost of measuring


class Cpu:
    """Calls are complete when they return: one clock, the host's."""

    kind = name = "cpu"
    captures = False
    index = None
    described = ""
    calls_per_sample = 1

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now

    def synchronize(self) -> None:
        """Nothing runs behind the host's back."""

    def free_bytes(self) -> None:
        """Host memory: see environment.free_bytes."""

    def release(self) -> None:
        """The host's allocator gives large blocks back by itself."""

    def event_costs(self, calls: int) -> list[int]:
        """No events here."""
        return []

    def graph(self, call: Call) -> Call:
        raise AssertionError("captures is False")

    def synchronized(self, call: Call, align: Call, calls: int, clocks: Clocks) -> None:
        """Append the durations of ``calls`` calls to ``clocks["host"]``, ``align`` before each;
        and when each began to ``clocks["start"]``, where there is one.
        """
        now, append, began = self._now, clocks["host"].append, _starts(clocks)
        for _ in range(calls):
            align()
            start = now()
            call()
            append(now() - start)
            began(start)

    def stream(self, call: Call, calls: int, clocks: Clocks, leads: int, lead: list[int]) -> None:
        """Back to back: each call ends where the next begins. ``leads`` calls go first, with their
        durations in ``lead``.
        """
        now = self._now
        start = now()
        for count, append in ((leads, lead.append), (calls, clocks["host"].append)):
            for _ in range(count):
                call()
                end = now()
                append(end - start)
                start = end

    def clocks(self, mode: str) -> Clocks:
        """Empty samples of the clocks that this mode reads; the first is the one shown."""
        return {"host": []}

    def together(
        self, call: Call, calls: int, work: Call, repeats: int, after_ns: int = 0
    ) -> tuple[int, int, int, int]:
        """ns from one start until the calls, the work and both had ended (0 of what is not there);
        and until the work began, where it is to begin ``after_ns`` later: its own time is then from
        there.

        The work runs in a thread of its own, also where it is alone: the blocks that are held
        against each other are made alike.
        """
        now, ends, errors = self._now, [0], list[BaseException]()
        start_together, late = threading.Lock(), [0]

        def work_through() -> None:
            try:
                with start_together:
                    pass
                if after_ns:
                    time.sleep(max(0, start + after_ns - now()) / 1e9)
                    late[0] = now() - start
                for _ in range(repeats):
                    work()
            except BaseException as error:
                errors.append(error)
            ends.append(now())

        worker = threading.Thread(target=work_through, daemon=True)
        with start_together:
            if repeats:
                worker.start()
            start = now()
        for _ in range(calls):
            call()
        called = now() if calls else start
        if repeats:
            worker.join()
        if errors:
            raise errors[0]
        worked = ends[-1] if repeats else start
        whole = max(called, worked) - start
        return called - start, worked - start - late[0], whole, late[0]


class Accelerator:
    """Calls are queued: the device's own clock, or the host's with a synchronise at both ends."""

    def __init__(
        self, torch: Any, kind: str, index: int, now: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self.kind = kind
        self.index = index
        self.name = f"{kind}:{index}"
        self._torch = torch
        self._module = torch.get_device_module(kind)
        self._now = now
        self.captures = hasattr(self._module, "CUDAGraph")
        self.calls_per_sample = XPU_CALLS_PER_SAMPLE if kind == "xpu" else 1
        self._side: Any = None  # the stream of work beside the calls

    @property
    def described(self) -> str:
        """As torch names it, '' where it does not: ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``."""
        ask = getattr(self._module, "get_device_name", None)
        return str(ask(self.index)) if ask else ""

    def open(self) -> None:
        """Select the device and make its context: the first allocation does."""
        self._module.set_device(self.index)
        self._torch.zeros(1, device=self.name)
        self.synchronize()

    def synchronize(self) -> None:
        self._module.synchronize()

    def free_bytes(self) -> int | None:
        """Free bytes of the device; None where torch cannot tell."""
        ask = getattr(self._module, "mem_get_info", None)
        try:
            return int(ask(self.index)[0]) if ask else None
        except RuntimeError:  # some Intel GPUs do not tell
            return None

    def release(self) -> None:
        """Give what torch keeps for reuse back, so that free memory is seen as free."""
        self._module.empty_cache()

    def synchronized(self, call: Call, align: Call, calls: int, clocks: Clocks) -> None:
        """Host and issue clock. The device is idle at both host stamps: synchronous calls of nccl,
        xccl and ccl return once they are queued. ``clocks["start"]`` as on the CPU.
        """
        now, synchronize, began = self._now, self.synchronize, _starts(clocks)
        host, issue = clocks["host"].append, clocks["issue"].append
        for _ in range(calls):
            align()
            synchronize()
            start = now()
            call()
            issued = now()
            synchronize()
            end = now()
            host(end - start)
            issue(issued - start)
            began(start)

    def stream(self, call: Call, calls: int, clocks: Clocks, leads: int, lead: list[int]) -> None:
        """Device and issue clock: an event between calls, one synchronise at the end.

        ``leads`` calls, at least one, go first, with their times in ``lead``. On an idle device the
        first event completes at once, and the first time is the host's to issue a call.
        """
        now, issue, each = self._now, clocks["issue"].append, self.calls_per_sample
        counts = calls_of_batch(calls, each)
        several = [1] * leads + counts
        events = [self._torch.Event(self.name, enable_timing=True) for _ in range(len(several) + 1)]
        events[0].record()
        for event in events[1 : leads + 1]:
            call()
            event.record()
        for count, event in zip(counts, events[leads + 1 :], strict=True):
            for _ in range(count):
                start = now()
                call()
                issue(now() - start)
            event.record()
        self.synchronize()
        times = [
            round(begin.elapsed_time(end) * 1e6 / count)  # elapsed_time is in ms
            for count, begin, end in zip(several, events, events[1:], strict=False)
        ]
        lead += times[:leads]
        clocks["device"] += times[leads:]

    def together(
        self, call: Call, calls: int, work: Call, repeats: int, after_ns: int = 0
    ) -> tuple[int, int, int, int]:
        """As on the CPU, on the device's clock; the work has a stream of its own.

        The work is issued first where it begins at once: its calls are long, so the host is soon
        done with them, and the collective's own first event comes right before its first call.
        """
        begun, worked, calling, called = (
            self._torch.Event(self.name, enable_timing=True) for _ in range(4)
        )

        def issue_work() -> None:
            if not repeats:
                return
            if self._side is None:
                self._side = self._module.Stream()
            with self._module.stream(self._side):
                begun.record()
                for _ in range(repeats):
                    work()
                worked.record()

        self.synchronize()
        if not after_ns:
            issue_work()
        calling.record()
        for _ in range(calls):
            call()
        called.record()
        if after_ns:
            time.sleep(after_ns / 1e9)
            issue_work()
        self.synchronize()
        pairs = ((calling, called, calls), (begun, worked, repeats))
        of_calls, of_work = (
            round(start.elapsed_time(end) * 1e6) if there else 0 for start, end, there in pairs
        )
        # Either stream may have begun first: from the first start to the last end.
        there = [(start, end) for start, end, count in pairs if count]
        whole = max(start.elapsed_time(end) for start, _ in there for _, end in there)
        late = round(calling.elapsed_time(begun) * 1e6) if after_ns else 0
        return of_calls, of_work, round(whole * 1e6), late

    def graph(self, call: Call) -> Call:
        """``call`` captured once; the result replays it (where ``captures``).

        Only what this thread does may not be captured: NCCL's proxies and torch's watchdogs ask
        for memory and events in threads of their own.
        """
        self.synchronize()
        graph = self._module.CUDAGraph()
        with self._module.graph(graph, capture_error_mode="thread_local"):
            call()
        replay: Call = graph.replay
        return replay

    def event_costs(self, calls: int) -> list[int]:
        """ns of the host to make and record two events. ``stream`` makes its events beforehand, so
        this is more than a sample costs.
        """
        durations = []
        for _ in range(calls):
            start = self._now()
            for _ in range(2):
                self._torch.Event(self.name, enable_timing=True).record()
            durations.append(self._now() - start)
        self.synchronize()
        return durations

    def clocks(self, mode: str) -> Clocks:
        return {"host": [], "issue": []} if mode == "synchronized" else {"device": [], "issue": []}


Device = Cpu | Accelerator


def _starts(clocks: Clocks) -> Callable[[int], None]:
    """Where the start of each call goes; of most nobody wants it."""
    starts = clocks.get("start")
    return deque[int](maxlen=0).append if starts is None else starts.append


def nothing() -> None:
    """The no-op whose timed loop is the cost of measuring; and no alignment."""


def cost_of_measuring(device: Device, align: Call | None) -> dict[str, int]:
    """Medians in ns, by the name of the phase: the timed loop around nothing, ``align``, and a pair
    of events where the device has them.
    """
    costs: dict[str, list[int]] = {"cost_timed_loop": [], "cost_barrier": []}
    cpu = Cpu()
    cpu.synchronized(nothing, nothing, COST_CALLS, {"host": costs["cost_timed_loop"]})
    if align:
        cpu.synchronized(align, nothing, COST_CALLS // 4, {"host": costs["cost_barrier"]})
    costs["cost_event"] = device.event_costs(COST_CALLS)
    return {name: sorted(ns)[len(ns) // 2] for name, ns in costs.items() if ns}


def open_device(torch: Any, kind: str, launch: Launch, shared: bool) -> Device:
    """This rank's device. ``shared``: several ranks on one device are asked for (--rehearse).

    Rank l of a host takes device l. A launcher that shows each rank one device only (srun
    --gpus-per-task) leaves device 0. Raises UnavailableError with the numbers.
    """
    if kind == "cpu":
        return Cpu()
    module = torch.get_device_module(kind)
    count = module.device_count() if module.is_available() else 0
    if not count:
        why = _why_none(module)
        raise UnavailableError(
            f"device {kind}",
            f"none that torch {torch.__version__} can use{f' ({why})' if why else ''}",
            "at least one",
            _action(why, "torchcoll doctor says why") + "; --device cpu measures on the CPU.",
        )
    local = launch.local_rank
    if local >= count and not shared and not (count == 1 and _masked()):
        raise UnavailableError(
            f"ranks on {os.uname().nodename}",
            f"{max(launch.local_ranks, local + 1)} with {count} {kind} device"
            f"{'s' if count > 1 else ''}",
            f"at most {count}",
            "Start fewer ranks, or rehearse with several on one device: --rehearse.",
        )
    device = Accelerator(torch, kind, local % count)
    try:
        device.open()
    except (RuntimeError, AssertionError) as error:  # taken by others, out of memory, no driver
        text = (str(error).splitlines() or [""])[0]
        raise UnavailableError(
            f"device {device.name}",
            text or type(error).__name__,
            "one that this process can use",
            _action(text, "torchcoll doctor says why") + ".",
        ) from None
    return device


# What CUDA's and torch's refusals ask for, by words of theirs (cudaErrorDevicesUnavailable,
# cudaErrorMemoryAllocation, cudaErrorInsufficientDriver).
_ACTIONS = (
    (
        "busy or unavailable",
        "Another process has it, or it is in exclusive mode: nvidia-smi -q -d COMPUTE,PIDS tells",
    ),
    ("out of memory", "Other processes have its memory: nvidia-smi names them"),
    (
        "driver on your system is too old",
        "Update the driver, or install a torch that was built for an older CUDA",
    ),
    ("driver version is insufficient", "Update the driver, or install a torch for an older CUDA"),
)


def _action(text: str, usual: str) -> str:
    return next((action for words, action in _ACTIONS if words in text.lower()), usual)


def _why_none(module: Any) -> str:
    """The first sentence of what torch says where it finds no device; '' where it says nothing."""
    try:
        module.init()
    except (RuntimeError, AssertionError) as error:
        line = (str(error).splitlines() or [""])[0]
        return line.partition(". ")[0].rstrip(".")
    except AttributeError:
        pass
    return ""


def refuse_shared(places: Sequence[tuple[str, str | None]], name: str = "") -> None:
    """places: host and device of each rank; name: of this rank's device, as torch says it. Raises
    UnavailableError for two ranks on one device.

    Slices of one GPU (MIG) are one device: their ranks can reach each other by no CUDA IPC, and
    NCCL refuses them.
    """
    first: dict[tuple[str, str | None], int] = {}
    for rank, (host, device) in enumerate(places):
        other = first.setdefault((host, device), rank)
        if device and other != rank:
            sliced = " MIG " in f"{name} "
            raise UnavailableError(
                "device",
                f"ranks {other} and {rank} on {'MIG slices of ' * sliced}{device} of {host}",
                "a device for each rank",
                "NCCL connects no slices of one GPU: one rank alone, or GPUs without MIG."
                if sliced
                else "Start fewer ranks, or rehearse with several on one device: --rehearse.",
            )


# How a launcher gives each rank a device of its own: by hiding the others.
_MASKS = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "SLURM_STEP_GPUS"),
)


def _masked() -> bool:
    return any(os.environ.get(name) for name in _MASKS)

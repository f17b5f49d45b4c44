"""The device that this rank measures on, and its clocks; the same code for all vendors."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from torchcoll.core.backends import VISIBLE_GPUS
from torchcoll.core.case import QUEUED, split_batch
from torchcoll.core.errors import UnavailableError
from torchcoll.core.units import counted
from torchcoll.machine.launcher import Launch

Call = Callable[[], object]
Clocks = dict[str, list[int]]

# An event costs about 0.1 ms on XPU (0.006 ms on CUDA). So on XPU events are recorded only before
# and after this many calls, and a sample is their mean. Source: torch-xpu-ops#3227.
XPU_CALLS_PER_SAMPLE = 10

COST_CALLS = 200  # calls of the no-op whose median duration is the cost of the timing loop


class Cpu:
    """The CPU: calls are complete when they return, so the host's clock is the only one."""

    kind = name = "cpu"
    captures = False
    index = None
    described = ""
    calls_per_sample = 1

    # time.perf_counter_ns is monotonic, and NTP never steps it. Tests replace it.
    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now

    def synchronize(self) -> None:
        """Do nothing: no call runs asynchronously."""

    def free_bytes(self) -> None:
        """None: environment.free_bytes has the free memory of the host."""

    def release(self) -> None:
        """Do nothing: the host's allocator returns large blocks itself."""

    def event_costs(self, calls: int) -> list[int]:
        """[]: a CPU has no events."""
        return []

    def graph(self, call: Call) -> Call:
        raise AssertionError("captures is False")

    def synchronized(self, call: Call, align: Call, calls: int, clocks: Clocks) -> None:
        """Time ``calls`` calls one by one, with ``align`` before each. Durations in ns are appended
        to ``clocks["host"]``, starts to ``clocks["start"]`` if that exists.
        """
        now, append, began = self._now, clocks["host"].append, _starts(clocks)
        for _ in range(calls):
            align()
            start = now()
            call()
            append(now() - start)
            began(start)

    def stream(self, call: Call, calls: int, clocks: Clocks, leads: int, lead: list[int]) -> None:
        """Time ``calls`` calls back to back: each call ends when the next one begins. Durations in
        ns are appended to ``clocks["host"]``, those of ``leads`` ramp-up calls before to ``lead``.
        """
        now = self._now
        start = now()
        for count, append in ((leads, lead.append), (calls, clocks["host"].append)):
            for _ in range(count):
                call()
                end = now()
                append(end - start)
                start = end

    blocking = stream  # calls are complete when they return

    def clocks(self, mode: str) -> Clocks:
        """An empty list of samples for each clock of this mode. Tables show the first one."""
        return {"host": []}

    def together(self, call: Call, calls: int, work: Call, repeats: int) -> tuple[int, int, int]:
        """Run ``calls`` calls and ``repeats`` times the work concurrently. Either may be 0.

        Returns three durations in ns: of the calls, of the work, and until both have ended. The
        work always runs in its own thread, so that all blocks that are compared run the same way.
        """
        now, ends, errors = self._now, [0], list[BaseException]()
        start_together = threading.Lock()

        def work_through() -> None:
            try:
                with start_together:
                    pass
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
        return called - start, worked - start, max(called, worked) - start


class Accelerator:
    """A GPU, whose calls are queued: timed by events, or by the host with synchronisation."""

    def __init__(
        self, torch: Any, kind: str, index: int, now: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self.kind = kind
        self.index = index
        self.name = f"{kind}:{index}"
        self._torch = torch
        self._module = torch.get_device_module(kind)
        self._now = now
        graphs = (getattr(self._module, name, None) for name in ("CUDAGraph", "XPUGraph"))
        self._graph_class = next(filter(None, graphs), None)
        self.captures = self._graph_class is not None
        self.calls_per_sample = XPU_CALLS_PER_SAMPLE if kind == "xpu" else 1
        self._side: Any = None  # the stream of concurrent work

    @property
    def described(self) -> str:
        """The name that torch has for it: ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``; '' for none."""
        ask = getattr(self._module, "get_device_name", None)
        return str(ask(self.index)) if ask else ""

    def open(self) -> None:
        """Select the device and create its context, which the first allocation does."""
        self._module.set_device(self.index)
        self._torch.zeros(1, device=self.name)
        self.synchronize()

    def synchronize(self) -> None:
        self._module.synchronize()

    def free_bytes(self) -> int | None:
        """Free bytes of the device's memory; None if torch cannot read it."""
        ask = getattr(self._module, "mem_get_info", None)
        try:
            return int(ask(self.index)[0]) if ask else None
        except RuntimeError:  # some Intel GPUs do not support it
            return None

    def release(self) -> None:
        """Release the memory that torch's allocator caches, so that ``free_bytes`` counts it."""
        self._module.empty_cache()

    def synchronized(self, call: Call, align: Call, calls: int, clocks: Clocks) -> None:
        """Time calls one by one on host and issue clock. The device is idle at both stamps: even
        synchronous calls of nccl and xccl return once they are queued.
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
        """Time calls back to back by events between them, synchronised at the end. The first event
        of an idle device is complete at once: its duration is the issue's.
        """
        now, issue, each = self._now, clocks["issue"].append, self.calls_per_sample
        counts = split_batch(calls, each)
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

    def blocking(self, call: Call, calls: int, clocks: Clocks, leads: int, lead: list[int]) -> None:
        """Time calls on host and issue clock, each begun when the one before is complete here."""
        now, synchronize = self._now, self.synchronize
        host, issue = clocks["host"].append, clocks["issue"].append
        synchronize()
        start = now()
        for count, append, issued_in in ((leads, lead.append, None), (calls, host, issue)):
            for _ in range(count):
                call()
                issued = now()
                synchronize()
                end = now()
                append(end - start)
                if issued_in:
                    issued_in(issued - start)
                start = end

    def together(self, call: Call, calls: int, work: Call, repeats: int) -> tuple[int, int, int]:
        """As on the CPU, but on the device's clock and with the work in its own stream. The work is
        issued first: its calls are long, so the host soon finishes.
        """
        events = (self._torch.Event(self.name, enable_timing=True) for _ in range(4))
        begun, worked, calling, called = events
        self.synchronize()
        if repeats:
            if self._side is None:
                self._side = self._module.Stream()
            with self._module.stream(self._side):
                begun.record()
                for _ in range(repeats):
                    work()
                worked.record()
        calling.record()
        for _ in range(calls):
            call()
        called.record()
        self.synchronize()
        pairs = ((calling, called, calls), (begun, worked, repeats))
        of_calls, of_work = (
            round(start.elapsed_time(end) * 1e6) if measured else 0
            for start, end, measured in pairs
        )
        # Either stream may have started first, so the whole is the longest of all combinations.
        measured = [(start, end) for start, end, count in pairs if count]
        whole = max(start.elapsed_time(end) for start, _ in measured for _, end in measured)
        return of_calls, of_work, round(whole * 1e6)

    def graph(self, call: Call) -> Call:
        """A function that replays the captured ``call``. On CUDA the capture is of this thread:
        NCCL's and torch's own threads allocate memory and query events.
        """
        assert self._graph_class
        self.synchronize()
        graph = self._graph_class()
        restricted = {"capture_error_mode": "thread_local"} if self.kind == "cuda" else {}
        with self._module.graph(graph, **restricted):
            call()
        replay: Call = graph.replay
        return replay

    def event_costs(self, calls: int) -> list[int]:
        """Times in ns that the host needs to create and record two events: more than a sample."""
        durations = []
        for _ in range(calls):
            start = self._now()
            for _ in range(2):
                self._torch.Event(self.name, enable_timing=True).record()
            durations.append(self._now() - start)
        self.synchronize()
        return durations

    def clocks(self, mode: str) -> Clocks:
        return {"device": [], "issue": []} if mode in QUEUED else {"host": [], "issue": []}


Device = Cpu | Accelerator


def _starts(clocks: Clocks) -> Callable[[int], None]:
    """The function that takes the start of each call."""
    starts = clocks.get("start")
    return deque[int](maxlen=0).append if starts is None else starts.append


def nothing() -> None:
    """Do nothing: used to time the loop itself, and where calls need no alignment."""


def cost_of_measuring(device: Device, align: Call | None) -> dict[str, int]:
    """Median costs in ns of a timing loop around nothing, of ``align``, and of two events."""
    costs: dict[str, list[int]] = {"cost_timed_loop": [], "cost_barrier": []}
    cpu = Cpu()
    cpu.synchronized(nothing, nothing, COST_CALLS, {"host": costs["cost_timed_loop"]})
    if align:
        cpu.synchronized(align, nothing, COST_CALLS // 4, {"host": costs["cost_barrier"]})
    costs["cost_event"] = device.event_costs(COST_CALLS)
    return {name: sorted(ns)[len(ns) // 2] for name, ns in costs.items() if ns}


def open_device(torch: Any, kind: str, launch: Launch, shared: bool) -> Device:
    """Open the device of the local rank, or device 0 if a rank sees only one. shared: by several
    ranks (--rehearse). Raises UnavailableError.
    """
    if kind == "cpu":
        return Cpu()
    module = torch.get_device_module(kind)
    count = module.device_count() if module.is_available() else 0
    if not count:
        why = _why_none(module)
        none = f"none that torch {torch.__version__} can use{f' ({why})' if why else ''}"
        action = f"{_action(why)}; --device cpu measures on the CPU."
        raise UnavailableError(f"device {kind}", none, "at least one", action)
    local = launch.local_rank
    is_masked = any(os.environ.get(name) for name in _MASKS)
    if local >= count and not shared and not (count == 1 and is_masked):
        ranks = f"{max(launch.local_ranks, local + 1)} with {counted(count, f'{kind} device')}"
        action = "Start fewer ranks, or rehearse with several on one device: --rehearse."
        where = f"ranks on {os.uname().nodename}"
        raise UnavailableError(where, ranks, f"at most {count}", action)
    device = Accelerator(torch, kind, local % count)
    try:
        device.open()
    except (RuntimeError, AssertionError) as error:  # in use by others, out of memory, no driver
        text = (str(error).splitlines() or [type(error).__name__])[0]
        usable = "one that this process can use"
        raise UnavailableError(f"device {device.name}", text, usable, f"{_action(text)}.") from None
    return device


# Phrase in an error of CUDA or torch -> what to do about it (cudaErrorDevicesUnavailable,
# cudaErrorMemoryAllocation, cudaErrorInsufficientDriver).
_ACTIONS = (
    (
        "busy or unavailable",
        "Another process has it, or it is in exclusive mode: see nvidia-smi -q -d COMPUTE,PIDS",
    ),
    ("out of memory", "Other processes have its memory: nvidia-smi names them"),
    (
        "driver on your system is too old",
        "Update the driver, or install a torch that was built for an older CUDA",
    ),
    ("driver version is insufficient", "Update the driver, or install a torch for an older CUDA"),
)


def _action(text: str) -> str:
    usual = "torchcoll doctor says why"
    return next((action for phrase, action in _ACTIONS if phrase in text.lower()), usual)


def _why_none(module: Any) -> str:
    """The first sentence of torch's error if it has no device; '' if it has no error."""
    try:
        module.init()
    except (RuntimeError, AssertionError) as error:
        return (str(error).splitlines() or [""])[0].partition(". ")[0].rstrip(".")
    except AttributeError:
        pass
    return ""


def refuse_shared(rank_devices: Sequence[tuple[str, str | None]], name: str = "") -> None:
    """Raise UnavailableError if two ranks use one device; MIG slices of a GPU count as one.
    rank_devices: (host, id) of each rank. name: torch's, of this rank's.
    """
    first: dict[tuple[str, str | None], int] = {}
    for rank, (host, device) in enumerate(rank_devices):
        earlier_rank = first.setdefault((host, device), rank)
        if device and earlier_rank != rank:
            action = "Start fewer ranks, or rehearse with several on one device: --rehearse."
            if " MIG " in f"{name} ":
                device = f"MIG slices of {device}"
                action = "NCCL connects no slices of one GPU: one rank alone, or GPUs without MIG."
            ranks = f"ranks {earlier_rank} and {rank} on {device} of {host}"
            raise UnavailableError("device", ranks, "a device for each rank", action)


# Variables with which a launcher hides the devices of other ranks.
_MASKS = (*VISIBLE_GPUS, "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "SLURM_STEP_GPUS")

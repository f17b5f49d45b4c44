"""An accelerator whose time really passes, for tests: streams are threads, events have clocks.

Recorded calls (tests/fake_machine.py) show that torch is asked; here a synchronise that is missing
makes a figure wrong. What is queued on a stream runs in its thread, in order; ``SimulatedTorch`` is
torch where tensors "on cuda" are such: each operation on one waits for the current stream, but
products and copies, which are queued. ``register`` gives torch a backend whose calls go through
gloo on a stream of their own and last at least ``CALL_S``, as NCCL's do: they begin after what the
current stream had, and ``wait`` lets the current stream, not the host, wait for them; a barrier's
too (NCCL's lets the host wait, which would hide a synchronise that others need).
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

BACKEND = "simulated"
CALL_S = 0.02  # long against what a busy machine adds
WORK_S = 0.01  # a product or a copy
BARRIER_S = 0.003


class Stamp:
    """A moment on a stream: unknown until the stream gets there."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self.ns = 0

    @property
    def reached(self) -> bool:
        return self._there.is_set()

    def reach(self) -> None:
        self.ns = time.perf_counter_ns()
        self._there.set()

    def wait(self) -> None:
        self._there.wait()


class Stream:
    """A queue of actions and the thread that does them."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._error: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()
        device.streams.append(self)

    def _run(self) -> None:
        while True:
            try:
                self._queue.get()()
            except BaseException as error:
                self._error = self._error or error

    def put(self, action: Callable[[], object]) -> None:
        if self._device.capturing is None:
            self._queue.put(action)
        else:
            self._device.capturing.append(action)

    def synchronize(self) -> None:
        if self._device.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        reached = Stamp()
        self.put(reached.reach)
        reached.wait()
        if self._error:
            error, self._error = self._error, None
            raise RuntimeError(f"on the device: {error}")


class Graph:
    """What was queued while it was captured, in that order."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self.actions: list[Callable[[], object]] = []

    def replay(self) -> None:
        for action in self.actions:
            self._device.current.put(action)


class SimulatedDevice:
    """What torch.cuda is to an accelerator. One to a process."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.capturing: list[Callable[[], object]] | None = None
        self.current = Stream(self)
        # The names that torch's device modules have.
        self.Stream = lambda: Stream(self)
        self.CUDAGraph = lambda: Graph(self)
        self.nccl = SimpleNamespace(version=lambda: (0, 0, 0))

    def event(self, device: str, enable_timing: bool = False) -> Event:
        assert enable_timing
        return Event(self)

    def synchronize(self) -> None:
        for stream in self.streams:
            stream.synchronize()

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextlib.contextmanager
    def graph(self, graph: Graph, capture_error_mode: str) -> Iterator[None]:
        self.capturing = graph.actions
        try:
            yield
        finally:
            self.capturing = None

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 8

    @staticmethod
    def mem_get_info(index: int) -> tuple[int, int]:
        return 1 << 30, 1 << 31

    def set_device(self, index: int) -> None: ...

    def empty_cache(self) -> None: ...


class Event:
    """As torch.Event with timing: times of moments that no stream has reached are refused."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._stamp = Stamp()

    def record(self) -> None:
        self._stamp = Stamp()
        self._device.current.put(self._stamp.reach)

    def elapsed_time(self, end: Event) -> float:
        if not (self._stamp.reached and end._stamp.reached):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end._stamp.ns - self._stamp.ns) / 1e6


DEVICE: SimulatedDevice | None = None


def device() -> SimulatedDevice:
    """This process' own: threads do not outlive a fork."""
    global DEVICE
    if DEVICE is None:
        DEVICE = SimulatedDevice()
    return DEVICE


# What only looks at a tensor, or at a part of it, waits for nothing.
_LOOKS = {
    "__get__",
    "narrow",
    "view",
    "unbind",
    "numel",
    "element_size",
    "data_ptr",
    "__len__",
    "__getitem__",
    "as_subclass",
    "size",
    "dim",
    "is_complex",
    "stride",
    "storage_offset",
    "is_contiguous",
    "is_floating_point",
    "chunk",
    "split",
    "reshape",
}


class OnDevice(torch.Tensor):
    """A tensor of the simulated device; its memory is the host's."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in ("mm", "copy_") and all(isinstance(one, OnDevice) for one in args):
            bare = plain(args), plain(kwargs)

            def work() -> None:
                func(*bare[0], **bare[1])
                time.sleep(WORK_S)

            device().current.put(work)
            return kwargs.get("out", args[0])
        calls = getattr(func, "__module__", "") == dist.distributed_c10d.__name__
        if name not in _LOOKS and not calls:
            device().current.synchronize()
        return super().__torch_function__(func, types, args, kwargs)


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(torch.Tensor)
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value


class SimulatedTorch:
    """torch with one kind of accelerator more, which takes the name cuda."""

    def __init__(self) -> None:
        self.cuda = device()
        self.Event = self.cuda.event
        self.empty, self.zeros, self.full = map(_maker, (torch.empty, torch.zeros, torch.full))

    def get_device_module(self, kind: str) -> SimulatedDevice:
        assert kind == "cuda"
        return self.cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _maker(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*args: Any, device: Any = "cpu", **options: Any) -> Any:
        tensor = make(*args, **options)
        return tensor.as_subclass(OnDevice) if str(device).startswith("cuda") else tensor

    return made


class Work(torch._C._distributed_c10d.Work):
    """A call that was queued."""

    def __init__(self, end: Stamp) -> None:
        super().__init__()
        self._end = end

    def wait(self, timeout: Any = None) -> bool:
        device().current.put(self._end.wait)
        return True


# Asked of the inner group in its stream's thread: collectives, by the names of all torch versions.
_CALLS = (
    "allreduce",
    "allreduce_coalesced",
    "allgather",
    "_allgather_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "alltoall_base",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "all_to_all_single",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
)


class SimulatedGroup(dist.ProcessGroup):
    """gloo's collectives on a stream."""

    def __init__(self, store: Any, rank: int, ranks: int, timeout: Any) -> None:
        super().__init__(rank, ranks)
        self._inner = dist.ProcessGroup(store, rank, ranks)
        gloo = dist.ProcessGroupGloo(store, rank, ranks, timeout)
        kind = dist.ProcessGroup.BackendType.GLOO
        self._inner._register_backend(torch.device("cpu"), kind, gloo)
        self._inner._set_default_backend(kind)
        self._stream = Stream(device())
        self._sends = Stream(device())  # a send waits for who receives, who may send too
        self._calls = 0
        self._together: list[Callable[[], object]] | None = None  # of a group that is open

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    # Kept by C++ in the backends of a group, of which this one has none.

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def _queue(self, actions: list[Callable[[], object]], name: str = "") -> Work:
        begin, end = Stamp(), Stamp()
        own = self._sends if name == "send" else self._stream
        last_s = BARRIER_S if name == "barrier" else CALL_S
        device().current.put(begin.reach)
        for action in (begin.wait, *actions, lambda: time.sleep(last_s), end.reach):
            own.put(action)
        return Work(end)

    def _call(self, name: str, args: Any, options: Any) -> Work | None:
        args, options = plain(args), plain(options)
        self._calls += 1

        def run() -> None:
            getattr(self._inner, name)(*args, **options).wait()

        if self._together is not None:
            self._together.append(run)
            return None
        return self._queue([run], name)

    def _start_coalescing(self, device: Any) -> None:
        self._together = []

    def _end_coalescing(self, device: Any) -> Work:
        calls, self._together = self._together or [], None
        return self._queue(calls)


for _name in _CALLS:

    def _method(self: Any, *args: Any, _name: str = _name, **options: Any) -> Any:
        return self._call(_name, args, options)

    setattr(SimulatedGroup, _name, _method)


def register() -> None:
    """The backend ``simulated`` for devices called cuda."""
    if not dist.is_backend_available(BACKEND):
        dist.Backend.register_backend(BACKEND, SimulatedGroup, devices=["cuda"])

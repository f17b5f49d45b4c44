"""When calls end: with the program's wait, or on an accelerator with its kernel."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

from torchcoll.parts.training.recorded_calls import RecordedCall

_MOST_WATCHED = 1024  # before those that are in the traffic already are forgotten


class Waits:
    """The calls whose Work has no future, and so end with a wait, watched from ``start`` to
    ``stop``.

    gloo has no future for send, recv and reduce_scatter: they end when the program's wait returns.
    A second wait for a message never returns, so the capture watches the program's waits: the
    method ``wait`` of torch's Work, and for functional collectives the operator ``wait_tensor``,
    whose C++ code waits by itself. torch.profiler ends these calls at the same point.
    """

    def __init__(self) -> None:
        # By address. Each call holds its Work, so that no other can get the same address.
        self._works: dict[int, RecordedCall] = {}
        self._storages: dict[int, RecordedCall] = {}

    def watch(self, call: RecordedCall, work: Any, received: Iterable[torch.Tensor]) -> None:
        """Registers a call to learn of the wait for its Work, which ends it if nothing else has.

        - received: the tensors that the call fills, which functional collectives wait for.
        """
        if len(self._works) > _MOST_WATCHED:  # the program did not wait for them all
            for watched in (self._works, self._storages):
                for key in [key for key, each in watched.items() if each.work is None]:
                    del watched[key]
        call.work = work
        self._works[id(work)] = call
        for tensor in received:
            if tensor.layout is torch.strided:
                self._storages[_address(tensor)] = call

    def start(self) -> None:
        kind, works = torch._C._distributed_c10d.Work, self._works
        torch_wait = self.torch_wait = kind.wait  # torch's own, without the watching

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter_ns()
            result = torch_wait(work, *args, **kwargs)
            if works:
                self._end(works.pop(id(work), None), begun)
            return result

        kind.wait = wait  # type: ignore[assignment,method-assign]
        func = torch.ops._c10d_functional.wait_tensor.default
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

        def kernel(keys: Any, tensor: torch.Tensor) -> Any:
            begun = time.perf_counter_ns()
            result = func.redispatch(keys & below, tensor)
            if self._storages:
                self._end(self._storages.pop(_address(tensor), None), begun)
            return result

        if "torch._dynamo" in sys.modules:  # or Dynamo would compile the kernel
            kernel = torch._disable_dynamo(kernel)
        self._kernels = torch.library.Library("_c10d_functional", "IMPL")
        self._kernels.impl("wait_tensor", kernel, "BackendSelect", with_keyset=True)

    def stop(self) -> None:
        torch._C._distributed_c10d.Work.wait = self.torch_wait  # type: ignore[method-assign]
        self._kernels._destroy()
        self._works.clear()
        self._storages.clear()

    def _end(self, call: RecordedCall | None, begun: int) -> None:
        if call is not None:
            call.waited_from = begun
            call.end()
            call.pending = False


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


_REFUSED = "{} calls have no duration: the backend does not time them"


class StreamTimer:
    """Times what is issued on the caller's stream between its making and ``stop``; read as a Work
    is.
    """

    def __init__(self, device: torch.device) -> None:
        """Raises RuntimeError or NotImplementedError for a device without events."""
        self._stream = torch.accelerator.current_stream(device)
        self._start, self._end = (torch.Event(device, enable_timing=True) for _ in range(2))
        self._start.record(self._stream)

    def stop(self) -> None:
        self._end.record(self._stream)

    def is_completed(self) -> bool:
        return self._end.query()

    def _get_duration(self) -> float:
        """Returns milliseconds."""
        return self._start.elapsed_time(self._end)


class DeviceTimes:
    """Reads the durations of calls from their Work objects, or from events around them.

    It holds each Work, and so the tensors that it received, until the call has ended and no longer.

    torch.profiler would give the same durations, but starting a second profiler ends the user's.
    Instead, the process group is told to time its calls, and each Work is asked for
    ``_get_duration`` once it has ended. A synchronous call on NCCL has no Work since torch 2.8: two
    events of ours on the caller's stream time it. A backend that does neither leaves its calls
    without a duration, and a note says so.

    Seen on one H200 with torch 2.11 and NCCL 2.28 (results/one-gpu-2026-11-28.txt): durations of
    DDP's asynchronous calls, and of FSDP2's synchronous ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[RecordedCall, Any]] = deque()
        self._timed_groups: set[str] = set()

    def enable_timing(self, group: Any) -> None:
        """Enables timing of a group; called before its first call."""
        name = str(group.group_name)
        if name not in self._timed_groups:
            self._timed_groups.add(name)
            with contextlib.suppress(
                RuntimeError, NotImplementedError
            ):  # a note on its calls says so
                group._enable_collectives_timing()

    def start(self, device: torch.device) -> StreamTimer | None:
        """Starts to time a synchronous call; None where the device has no events to do so."""
        if _capturing():
            return None
        try:
            return StreamTimer(device)
        except (RuntimeError, NotImplementedError):
            return None

    def watch(self, call: RecordedCall, work: Any, timer: StreamTimer | None = None) -> None:
        """Queues a call whose duration is to be read from its Work, or else from the timer that was
        started before it; without both it has none.
        """
        if work is None and timer is not None:
            timer.stop()
            work = timer
        if work is None or _capturing():
            call.no_time_reason = _REFUSED
            return
        self.poll()
        self._waiting.append((call, work))

    def poll(self) -> None:
        """Reads the durations of the calls that have ended, in the order of issue."""
        with self._lock:
            while self._waiting and not _capturing():
                call, work = self._waiting[0]
                try:
                    if not work.is_completed():
                        return
                    if call.entry:
                        call.entry.complete()
                    call.time_ns, call.clock = round(1e6 * work._get_duration()), "device"
                except (RuntimeError, NotImplementedError):
                    call.no_time_reason = _REFUSED
                self._waiting.popleft()

    def finish(self) -> None:
        """Waits for the device and reads the durations of the last calls."""
        if self._waiting and torch.accelerator.is_available():
            torch.accelerator.synchronize()
            self.poll()
        self._waiting.clear()


def _capturing() -> bool:
    """Returns whether a CUDA graph is being captured; events must not be queried then."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

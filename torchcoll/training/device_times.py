"""How long captured calls took on an accelerator, by torch's own events around the kernel.

Not proven: written without a GPU at hand. torch.profiler would tell the same and is not used: a
second one ends the user's (torch 2.13), and it costs more than all the rest of a capture. Instead
the group is asked to time its calls (``_enable_collectives_timing``, as TORCH_NCCL_ENABLE_TIMING
does) and each Work for ``_get_duration`` once it has ended. Whatever refuses leaves a call
without a duration, and says so.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any

import torch

from torchcoll.training.recorded_calls import RecordedCall

_REFUSED = "{} calls have no duration: the backend does not time them"


class DeviceTimes:
    """Holds each Work, and so what it received, until it has ended: not longer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[RecordedCall, Any]] = deque()
        self._asked: set[str] = set()

    def ask(self, group: Any) -> None:
        """Before the first call of a group."""
        name = str(group.group_name)
        if name not in self._asked:
            self._asked.add(name)
            with contextlib.suppress(RuntimeError, NotImplementedError):  # its calls say so
                group._enable_collectives_timing()

    def watch(self, call: RecordedCall, work: Any) -> None:
        if work is None or _capturing():
            call.unstated = _REFUSED
            return
        self.poll()
        self._waiting.append((call, work))

    def poll(self) -> None:
        """Reads the calls that have ended, in order."""
        with self._lock:
            while self._waiting and not _capturing():
                call, work = self._waiting[0]
                try:
                    if not work.is_completed():
                        return
                    call.time_ns, call.clock = round(1e6 * work._get_duration()), "device"
                except (RuntimeError, NotImplementedError):
                    call.unstated = _REFUSED
                self._waiting.popleft()

    def finish(self) -> None:
        """Waits for the device, so that the last calls are timed too."""
        if self._waiting and torch.accelerator.is_available():
            torch.accelerator.synchronize()
            self.poll()
        self._waiting.clear()


def _capturing() -> bool:
    """In the capture of a CUDA graph events must not be asked."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

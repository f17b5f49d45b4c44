"""Completion times of asynchronous calls in a replay: from the host's clock or device events."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchcoll.machine.devices import Device

Mark = list[int | None]  # the start, then the end once it is known
_CALLBACK_TIMEOUT_S = 5.0


class HostStamps:
    """Times a call from issue to completion on the host's clock.

    The completion of an asynchronous call is stamped by the backend's own thread. For calls without
    a future (messages on gloo) it is unknown: the step waits for them where it has time, not where
    they end.
    """

    clock = "host"

    def __init__(self) -> None:
        self._callbacks = 0
        self._freed: list[None] = []  # appended to by threads of the backend

    def begin(self) -> Mark:
        return [time.perf_counter_ns()]

    def end(self, mark: Mark) -> None:
        if len(mark) == 1:  # the first stamp counts
            mark.append(time.perf_counter_ns())

    def follow(self, mark: Mark, work: Any, group: Hashable) -> None:
        try:
            future = work.get_future()
        except RuntimeError:
            mark.append(None)
            return
        self._callbacks += 1
        future.add_done_callback(_EndCallback(mark, self._freed))

    def wait_for_callbacks(self) -> None:
        """Waits until the backend's threads have freed every callback, a moment after the call."""
        until = time.monotonic() + _CALLBACK_TIMEOUT_S
        while len(self._freed) < self._callbacks and time.monotonic() < until:
            time.sleep(0.001)

    def ns(self, mark: Mark) -> int | None:
        start, end = mark[:2]
        return None if start is None or end is None else end - start


class _EndCallback:
    """Stamps the end of a call when called, and records when it is freed itself."""

    def __init__(self, mark: Mark, freed: list[None]) -> None:
        self._mark, self._freed = mark, freed

    def __call__(self, _: Any) -> None:
        if len(self._mark) == 1:
            self._mark.append(time.perf_counter_ns())

    def __del__(self) -> None:
        self._freed.append(None)


class DeviceStamps:
    """Times a call from issue to completion on the device, with events.

    The end of an asynchronous call is an event on a stream that waits for it. One stream per group
    is enough, because the calls of a group end in the order of issue.
    """

    clock = "device"

    def __init__(self, torch: Any, device: Device) -> None:
        self._torch = torch
        self._name = device.name
        self._module = torch.get_device_module(device.kind)
        self._streams: dict[Hashable, Any] = {}

    def _event(self) -> Any:
        event = self._torch.Event(self._name, enable_timing=True)
        event.record()
        return event

    def begin(self) -> list[Any]:
        return [self._event()]

    def end(self, mark: list[Any]) -> None:
        if len(mark) == 1:
            mark.append(self._event())

    def follow(self, mark: list[Any], work: Any, group: Hashable) -> None:
        if group not in self._streams:
            self._streams[group] = self._module.Stream()
        with self._module.stream(self._streams[group]):
            work.wait()
            self.end(mark)

    def wait_for_callbacks(self) -> None:
        """Does nothing: there are no callbacks."""

    def ns(self, mark: list[Any]) -> int:
        elapsed_ms: float = mark[0].elapsed_time(mark[1])
        return round(elapsed_ms * 1e6)

"""When a call that is not waited for at once was complete: by the host's clock, or by events."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchcoll.machine.devices import Device

Mark = list[int | None]  # start, and once it is known the end
_SETTLE_S = 5.0


class HostStamps:
    """From issue to completion on the host's clock.

    Of an asynchronous call the backend's own thread tells when it was complete. Where it does not
    (messages on gloo) nobody knows: it is waited for where the step has time, not where it ends.
    """

    clock = "host"

    def __init__(self) -> None:
        self._asked = 0
        self._freed: list[None] = []  # appended to by threads of the backend

    def begin(self) -> Mark:
        return [time.perf_counter_ns()]

    def end(self, mark: Mark) -> None:
        if len(mark) == 1:  # the first word counts
            mark.append(time.perf_counter_ns())

    def follow(self, mark: Mark, work: Any, group: Hashable) -> None:
        try:
            future = work.get_future()
        except RuntimeError:
            mark.append(None)
            return
        self._asked += 1
        future.add_done_callback(_Told(mark, self._freed))

    def settle(self) -> None:
        """Waits until the backend's threads have freed every callback, a moment after the call."""
        until = time.monotonic() + _SETTLE_S
        while len(self._freed) < self._asked and time.monotonic() < until:
            time.sleep(0.001)

    def ns(self, mark: Mark) -> int | None:
        start, end = mark[:2]
        return None if start is None or end is None else end - start


class _Told:
    """The callback of a call's end; tells when it is freed, too."""

    def __init__(self, mark: Mark, freed: list[None]) -> None:
        self._mark, self._freed = mark, freed

    def __call__(self, _: Any) -> None:
        if len(self._mark) == 1:
            self._mark.append(time.perf_counter_ns())

    def __del__(self) -> None:
        self._freed.append(None)


class DeviceStamps:
    """From issue to completion on the device, by events.

    The end of an asynchronous call is an event on a stream that waits for it: one stream a group,
    for the calls of a group end in the order of issue.
    """

    clock = "device"

    def __init__(self, torch: Any, device: Device) -> None:
        self._torch = torch
        self._name = device.name
        self._module = torch.get_device_module(device.kind)
        self._concurrent: dict[Hashable, Any] = {}

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
        if group not in self._concurrent:
            self._concurrent[group] = self._module.Stream()
        with self._module.stream(self._concurrent[group]):
            work.wait()
            self.end(mark)

    def settle(self) -> None:
        """Nobody is asked."""

    def ns(self, mark: list[Any]) -> int:
        elapsed_ms: float = mark[0].elapsed_time(mark[1])
        return round(elapsed_ms * 1e6)

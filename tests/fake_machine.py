"""A machine with an accelerator that is none, for tests of devices."""

import contextlib
from types import SimpleNamespace

from torchcoll.machine import devices as devices
from torchcoll.machine.devices import (
    Accelerator,
)


class Machine:
    """A torch with one kind of accelerator that writes down what it is asked.

    The host's clock passes 10 ns at each reading. ``ms``: the device's time, a call after another.
    """

    def __init__(self, kind="cuda", count=1, ms=(), **module):
        self.log, self.time_ns, self.ms = [], 0, iter(ms)
        self.kind, self.elapsed = kind, 0.0
        note = self.note
        accelerator = SimpleNamespace(
            is_available=lambda: count > 0,
            device_count=lambda: count,
            set_device=lambda index: note(f"set_device {index}"),
            synchronize=lambda: note("synchronize"),
            empty_cache=lambda: note("empty_cache"),
            mem_get_info=lambda index: (70 + index, 80),
        )
        if kind == "cuda":
            accelerator.CUDAGraph = lambda: Graph(self)
            accelerator.graph = self.capture
        vars(accelerator).update(module)
        self.module = accelerator
        self.torch = SimpleNamespace(
            __version__="2.99",
            get_device_module=lambda name: accelerator,
            Event=lambda device, enable_timing: Event(self, device, enable_timing),
            zeros=lambda n, device: note(f"zeros on {device}"),
        )

    def note(self, text):
        self.log.append(text)

    def now(self):
        self.log.append("stamp")
        self.time_ns += 10
        return self.time_ns

    def call(self):
        self.log.append("call")
        self.elapsed += next(self.ms, 0.0)

    def open(self):
        device = Accelerator(self.torch, self.kind, 0, self.now)
        device.open()
        self.log.clear()
        return device

    @contextlib.contextmanager
    def capture(self, graph, capture_error_mode):
        self.note(f"capture {capture_error_mode}")
        yield
        self.note("captured")


class Graph:
    def __init__(self, machine):
        self.replay = lambda: machine.note("replay")


class Event:
    def __init__(self, machine, device, enable_timing):
        assert enable_timing
        self.machine, self.at = machine, None
        machine.note(f"event on {device}")

    def record(self):
        self.machine.note("record")
        self.at = self.machine.elapsed

    def elapsed_time(self, end):
        assert self.machine.log[-1] == "synchronize"  # else torch refuses, or waits
        return end.at - self.at

"""How long a replayed call takes, on a device that is not there (see test_devices.py)."""

import contextlib
import threading
from types import SimpleNamespace

from fake_machine import Machine

from torchcoll.parts.training.player import DeviceStamps, HostStamps


def test_events_of_a_call_that_is_waited_for_at_once():
    machine = Machine(ms=[2.5])
    stamps = DeviceStamps(machine.torch, machine.open())
    mark = stamps.begin()
    machine.call()
    stamps.end(mark)
    stamps.end(mark)  # the first word counts
    machine.module.synchronize()
    assert stamps.ns(mark) == 2_500_000
    one_event = ["event on cuda:0", "record"]
    assert machine.log == [*one_event, "call", *one_event, "synchronize"]


def test_the_end_of_an_asynchronous_call_stands_on_a_stream_beside():
    """One for each group: the call of another group does not wait for it."""
    machine = Machine()
    names = iter("ab")

    @contextlib.contextmanager
    def stream(name):
        machine.note(f"on stream {name}")
        yield
        machine.note("back")

    machine.module.Stream, machine.module.stream = lambda: next(names), stream
    stamps = DeviceStamps(machine.torch, machine.open())
    work = SimpleNamespace(wait=lambda: machine.note("wait"))
    for members in ((0, 1), (0, 1), (0, 2)):
        mark = stamps.begin()
        stamps.follow(mark, work, members)
        stamps.end(mark)
    event = ["event on cuda:0", "record"]
    assert machine.log == [
        text for name in "aab" for text in [*event, f"on stream {name}", "wait", *event, "back"]
    ]


def test_the_host_hears_of_an_end_from_the_backend_or_not_at_all():
    calls = []
    future = SimpleNamespace(add_done_callback=calls.append)
    stamps = HostStamps()
    mark = stamps.begin()
    stamps.follow(mark, SimpleNamespace(get_future=lambda: future), (0, 1))
    assert len(mark) == 1
    threading.Timer(0.01, lambda: calls.pop()(future)).start()  # called, and freed
    stamps.wait_for_callbacks()
    text = stamps.ns(mark)
    stamps.end(mark)  # the wait comes later, and changes nothing
    assert stamps.ns(mark) == text >= 0

    def refuse():
        raise RuntimeError("Work::getFuture not implemented.")

    mark = stamps.begin()
    stamps.follow(mark, SimpleNamespace(get_future=refuse), (0, 1))
    stamps.wait_for_callbacks()  # nobody will tell
    stamps.end(mark)
    assert stamps.ns(mark) is None  # where it was waited for is not where it ended

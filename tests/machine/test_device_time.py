"""Which stream, which event, which synchronise: by time that really passes.

A call that returns at once and lasts 20 ms on the device is timed in each way that there is; then
each line that waits or stamps is taken out, and some figure must be wrong. What a busy machine adds
makes times longer, never shorter, so most bounds are lower ones; the others compare times of one
test that lie far apart.
"""

import inspect
import re
import textwrap
import time

import pytest
import simulated_device
from simulated_device import SimulatedTorch

from torchcoll.machine import devices
from torchcoll.machine.devices import Accelerator

CALL_NS, LONG_NS = 20_000_000, 80_000_000


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(simulated_device, "DEVICE", None)
    opened = Accelerator(SimulatedTorch(), "cuda", 0)
    opened.open()
    return opened


def queued(device, ns=CALL_NS):
    """A call that returns immediately and keeps the current stream busy for this time."""
    return lambda: device._module.current.put(lambda: time.sleep(ns / 1e9))


def apart(small, large):
    """Whether two times, medians of three measurements in one test, clearly differ."""
    return 4 * sorted(small)[len(small) // 2] < sorted(large)[len(large) // 2]


# Each says what is wrong with what was timed; '' is right.


def synchronized(device):
    clocks = device.clocks("synchronized")
    # What the alignment left on the device is no part of the call.
    device.synchronized(queued(device), queued(device, LONG_NS), 3, clocks)
    if min(clocks["host"]) < CALL_NS:
        return "the host clock stops before the call has ended"
    if min(clocks["host"]) > LONG_NS:
        return "the host clock starts while the device is busy with something else"
    return "" if apart(clocks["issue"], clocks["host"]) else "the issue clock waits for the call"


def stream(device):
    clocks, lead = device.clocks("back-to-back"), []
    try:
        device.stream(queued(device), 3, clocks, 2, lead)
    except RuntimeError as error:
        return str(error)
    if (len(lead), len(clocks["device"]), len(clocks["issue"])) != (2, 3, 3):
        return "samples are missing"
    if min(*lead, *clocks["device"]) < CALL_NS:
        return "an event does not stand between two calls"
    return "" if apart(clocks["issue"], clocks["device"]) else "the issue clock waits for the call"


def blocking(device):
    clocks, lead = device.clocks("blocking"), []
    queued(device, LONG_NS)()  # what is still there from before
    device.blocking(queued(device), 3, clocks, 1, lead)
    if (len(lead), len(clocks["host"]), len(clocks["issue"])) != (1, 3, 3):
        return "samples are missing"
    if min(*lead, *clocks["host"]) < CALL_NS:
        return "the host clock stops before the call has ended"
    if lead[0] > LONG_NS:
        return "the host clock starts while the device is busy with something else"
    return "" if apart(clocks["issue"], clocks["host"]) else "the issue clock waits for the call"


def graph(device):
    asked = []

    def call():
        asked.append(1)
        queued(device)()

    replay = device.graph(call)
    clocks = device.clocks("graph")
    device.stream(replay, 3, clocks, 1, [])
    if len(asked) != 1:
        return f"the call was made {len(asked)} times"
    return "" if min(clocks["device"]) >= CALL_NS else "the replay does nothing"


def together(device):
    call, work = queued(device), queued(device, 3 * CALL_NS // 2)
    try:
        calls, none, alone = device.together(call, 2, work, 0)
        nothing, working, alone_too = device.together(call, 0, work, 2)
        queued(device, LONG_NS)()  # what is still there from before
        of_calls, of_work, whole = device.together(call, 2, work, 2)
    except RuntimeError as error:
        return str(error)
    if (none, nothing) != (0, 0) or alone != calls or alone_too != working:
        return "there is time of what was not there"
    if min(calls, of_calls) < 2 * CALL_NS or min(working, of_work) < 3 * CALL_NS:
        return "an end was stamped too early, or a beginning too late"
    if whole < max(of_calls, of_work):
        return "the whole is less than a part"
    if whole >= of_calls + of_work:
        return "the work waited for the calls"
    return ""


MODES = {mode.__name__: mode for mode in (synchronized, stream, blocking, graph, together)}


@pytest.mark.parametrize("mode", MODES)
def test_a_call_of_20_ms_that_returns_at_once(device, mode):
    assert MODES[mode](device) == ""


REFUSED = "Both events must be completed before calculating elapsed time."
CAPTURE = "with self._module.graph(graph, **restricted):"
IN_TURN = "call()\n        event.record()"


@pytest.mark.parametrize(
    ("mode", "line", "number", "instead", "problem"),
    [
        ("synchronized", "synchronize()", 1, "pass", "the host clock starts while the device is"),
        ("synchronized", "synchronize()", 2, "pass", "the host clock stops before the call has"),
        ("blocking", "synchronize()", 1, "pass", "the host clock starts while the device is"),
        ("blocking", "synchronize()", 2, "pass", "the host clock stops before the call has"),
        ("stream", "self.synchronize()", 1, "pass", REFUSED),
        ("stream", "events[0].record()", 1, "pass", REFUSED),
        ("stream", "event.record()", 1, "pass", REFUSED),
        ("stream", "event.record()", 2, "pass", REFUSED),
        ("stream", IN_TURN, 1, "event.record()\n        call()", "an event does not stand"),
        ("graph", CAPTURE, 1, "if True:", "the replay does nothing"),
        ("together", "self.synchronize()", 1, "pass", "the work waited"),
        ("together", "self.synchronize()", 2, "pass", REFUSED),
        ("together", "with self._module.stream(self._side):", 1, "if True:", "the work waited"),
        ("together", "begun.record()", 1, "pass", REFUSED),
        ("together", "worked.record()", 1, "pass", REFUSED),
        ("together", "calling.record()", 1, "pass", REFUSED),
        ("together", "called.record()", 1, "pass", REFUSED),
    ],
)
def test_without_the_line_a_figure_is_wrong(
    device, monkeypatch, mode, line, number, instead, problem
):
    changed = rewritten(getattr(Accelerator, mode), line, number, instead)
    monkeypatch.setattr(Accelerator, mode, changed)
    assert re.match(problem, MODES[mode](device))


def rewritten(method, line, number, instead):
    """The method with its ``number``-th occurrence of ``line`` replaced."""
    pieces = textwrap.dedent(inspect.getsource(method)).split(line)
    assert len(pieces) > number, "the line reads otherwise now: so must this test"
    source = line.join(pieces[:number]) + instead + line.join(pieces[number:])
    namespace = {}
    exec("from __future__ import annotations\n" + source, vars(devices), namespace)
    return namespace[method.__name__]

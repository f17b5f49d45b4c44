"""Durations on an accelerator: what is made of what a Work or events around a call tell. Both are
made up here; tests/test_cuda.py has real ones.
"""

import pytest
import torch
import torch.distributed as dist
from planned_models import on_ranks

from torchcoll.parts.training.call_ends import DeviceTimes
from torchcoll.parts.training.capture import capture
from torchcoll.parts.training.recorded_calls import RecordedCall

REFUSED = "{} calls have no duration: the backend does not time them"
ON_META = "has no kernel for tensors on meta"


class Event:
    """The n-th event of a list; the device reaches it when ``reached`` says so."""

    def __init__(self, log, device, enable_timing):
        assert enable_timing
        self.log, self.number, self.reached = log, len(log.made), False
        log.made.append(self)
        self.device = device

    def record(self, stream):
        self.log.text.append(f"record {self.number} on {stream}")

    def query(self):
        return self.reached

    def elapsed_time(self, end):
        return 2.5 * (end.number - self.number)


class EventLog:
    """Events of a device that is not there, and what was recorded."""

    def __init__(self, monkeypatch):
        self.made, self.text = [], []
        monkeypatch.setattr(torch, "Event", lambda *a, **k: Event(self, *a, **k))
        stream = lambda device: f"the current stream of {device}"  # noqa: E731
        monkeypatch.setattr(torch.accelerator, "current_stream", stream)


class Work:
    def __init__(self, ended, ms=None):
        self.ended, self.ms = ended, ms

    def is_completed(self):
        return self.ended

    def _get_duration(self):
        if self.ms is None:
            raise RuntimeError("getDuration only works if timing was enabled")
        return self.ms


def stated(call):
    return call.time_ns, call.clock, call.no_time_reason


def test_read_in_order_once_they_have_ended():
    times, calls = DeviceTimes(), [RecordedCall(0) for _ in range(4)]
    works = [Work(True, 1.5), Work(False, 0.25), Work(True, 2.0), Work(True)]
    for call, work in zip(calls, works, strict=True):
        times.watch(call, work)
    times.poll()
    assert [call.time_ns for call in calls] == [1_500_000, None, None, None]
    works[1].ended = True
    times.poll()
    assert [stated(call) for call in calls] == [
        (1_500_000, "device", ""),
        (250_000, "device", ""),
        (2_000_000, "device", ""),
        (None, "host", REFUSED),
    ]


def test_what_has_no_work_is_not_waited_for():
    times, call = DeviceTimes(), RecordedCall(0)
    times.watch(call, None)
    assert stated(call) == (None, "host", REFUSED)


def test_events_time_a_synchronous_call_without_a_work(monkeypatch):
    log = EventLog(monkeypatch)
    times, call = DeviceTimes(), RecordedCall(0)
    timer = times.start(torch.device("meta"))
    log.text.append("call")
    times.watch(call, None, timer)
    recorded = ["record 0 on the current stream of meta", "call"]
    assert log.text == [*recorded, "record 1 on the current stream of meta"]
    times.poll()
    assert stated(call) == (None, "host", "")
    log.made[1].reached = True
    times.poll()
    assert stated(call) == (2_500_000, "device", "")


def test_a_work_knows_better_than_events_around_it(monkeypatch):
    EventLog(monkeypatch)
    times, call = DeviceTimes(), RecordedCall(0)
    times.watch(call, Work(True, 1.0), times.start(torch.device("meta")))
    times.poll()
    assert stated(call) == (1_000_000, "device", "")


def test_a_device_without_events_times_no_call():
    assert DeviceTimes().start(torch.device("meta")) is None


def test_a_work_is_held_no_longer_than_it_runs():
    times, call = DeviceTimes(), RecordedCall(0)
    times.watch(call, Work(False))
    times.finish()  # of a device that is not there
    times.poll()
    assert stated(call) == (None, "host", "")


def no_cpu():
    """A device that has no clock: the fake backend on meta."""
    dist.destroy_process_group()
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    with pytest.MonkeyPatch.context() as patch, capture() as traffic:
        log = EventLog(patch)
        for asynchronous in (False, True):
            try:
                dist.all_gather_into_tensor(
                    torch.empty(16, device="meta"),
                    torch.empty(2, device="meta"),
                    async_op=asynchronous,
                )
            except NotImplementedError:
                return ON_META
    calls = [(call.bytes_in, call.bytes_out, call.time_ns) for call in traffic.calls[0]]
    return [calls, traffic.notes, log.text]


def test_calls_on_a_device_are_kept_without_a_duration(tmp_path):
    """Events are recorded only around the synchronous call: this backend has a Work for it."""
    result = on_ranks(tmp_path, 1, {"it": no_cpu})["it"]
    if result == ON_META:
        pytest.skip("c10d of this torch " + ON_META)
    unended = "2 calls had not ended when the capture did: how long they took is not known"
    recorded = ["record 0 on the current stream of meta"]
    assert result == [[[8, 64, None]] * 2, [unended], recorded]

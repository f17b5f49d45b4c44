"""Every mode on two ranks whose accelerator is simulated (tests/simulated_device.py): time passes,
data moves, and what waits for nothing reads nothing.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from statistics import median

import pytest
import simulated_device
import torch.distributed as dist
from ranks import Job
from simulated_device import BACKEND, BARRIER_S, CALL_S, WORK_S, SimulatedTorch

from torchcoll.bench import buffers, calls, concurrent
from torchcoll.bench.communicators import Communicators
from torchcoll.bench.session import SessionOptions, opened
from torchcoll.bench.sweep import Sweep
from torchcoll.core.spec import Spec
from torchcoll.machine.devices import Accelerator

CALL_NS, WORK_NS, BARRIER_NS = (round(s * 1e9) for s in (CALL_S, WORK_S, BARRIER_S))
WAYS = {
    "synchronized": {"mode": "synchronized"},
    "back-to-back": {"mode": "back-to-back"},
    "blocking": {"mode": "blocking"},
    "flushed": {"buffer_reuse": "flush"},
    "misaligned": {"mode": "back-to-back", "misalign_bytes": 4},
    "graph": {"mode": "graph"},
    "synchronized, async": {"mode": "synchronized", "asynchronous": True},
    "back-to-back, async": {"mode": "back-to-back", "asynchronous": True},
    "coalesced": {"mode": "back-to-back", "coalesce": 4},
    # torch collects no all_to_all itself: the backend groups them, told the device.
    "grouped": {"mode": "back-to-back", "coalesce": 4, "collectives": "all_to_all"},
    "sendrecv": {"mode": "back-to-back", "collectives": "sendrecv"},
    "concurrent": {"mode": "back-to-back", "concurrent": "matmul:4K"},
}
# What torchcoll does, taken away in the ranks.
LESS = {
    "async, not waited for": {"mode": "back-to-back", "asynchronous": True},
    "aligned, not synchronised": {"mode": "synchronized"},
    "timed, not synchronised": {"mode": "synchronized"},
}


def take_away(way: str, patch: pytest.MonkeyPatch) -> None:
    if way == "async, not waited for":

        def unwaited(case, once):
            return partial(once, async_op=True)

        patch.setattr(calls, "asynchronous_call", unwaited)
    elif way == "aligned, not synchronised":
        patch.setattr(Communicators, "align", lambda self, name, _=None: self.barrier(None, name))
    elif way == "timed, not synchronised":
        patch.setattr(Accelerator, "synchronize", lambda self: None)


def rank() -> None:
    """Each way in one process group, which all share; rank 0 keeps what was measured."""
    concurrent.BLOCKS = 3
    buffers._UNKNOWN_BYTES = 1 << 20  # of a device that does not tell its cache
    simulated_device.register()
    torch_, kept = SimulatedTorch(), {}
    dist.init_process_group(BACKEND)
    for way, fields in (WAYS | LESS).items():
        asked = {"collectives": "all_reduce", "sizes": "4K", "iters": 3, **fields}
        spec = Spec(backend=BACKEND, device="cuda", **asked)
        with pytest.MonkeyPatch.context() as patch:
            take_away(way, patch)
            with opened(torch_, SessionOptions(spec)) as session:
                Sweep(session).run()
                session.finish(*session.outcome())
        if session.run:
            (result,) = session.run.results
            kept[way] = {**result.to_json(), "barrier": session.run.phases["cost_barrier"]}
    dist.destroy_process_group()
    if kept:
        Path("kept.json").write_text(json.dumps(kept))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """{way: what rank 0 kept of it}: one job for all tests."""
    folder = tmp_path_factory.mktemp("simulated")
    ended = Job(folder, rank, 2).wait().values()
    assert [one.code for one in ended] == [0, 0], "\n".join(one.stderr for one in ended)
    return json.loads((folder / "kept.json").read_text())


def every(times):
    """Of all ranks."""
    return [ns for own in times for ns in own]


@pytest.mark.parametrize("way", WAYS)
def test_a_call_of_20_ms_reads_20_ms_and_is_issued_at_once(measured, way):
    found = measured[way]
    assert (found["status"], found["reason"]) == ("ok", "")
    on_host = ("synchronized", "synchronized, async", "blocking", "flushed")
    clock = "host" if way in on_host else "device"
    assert set(found["time_ns"]) == {clock, "issue"}
    times, issued = every(found["time_ns"][clock]), every(found["time_ns"]["issue"])
    assert len(times) == len(issued) == 2 * 3
    assert min(times) >= CALL_NS
    assert min(every(found["cold_ns"])) >= CALL_NS
    assert min(every(found["ramp_up_ns"])) >= CALL_NS
    assert 4 * median(issued) < median(times)
    assert min(found["barrier"]) >= BARRIER_NS


@pytest.mark.parametrize("way", [way for way in WAYS if way != "coalesced"])
def test_what_the_calls_leave_is_right(measured, way):
    """Sums in place in a group are not checked: their order decides."""
    verification = measured[way]["verification"]
    assert verification["checked"] == 2 * 1024 and verification["wrong"] == 0


def test_beside(measured):
    """Alone each takes what its calls take, together no less than either alone would, and less
    than one after the other: the work has a stream of its own.
    """
    found = measured["concurrent"]["concurrent"]
    calls_ns = found["calls"] * CALL_NS
    work_ns = found["repeats"] * WORK_NS
    names = ("alone", "work", "both_calls", "both_work", "both")
    alone, work, both_calls, both_work, both = (every(found[f"{name}_ns"]) for name in names)
    assert len(both) == 2 * 3
    assert min(*alone, *both_calls) >= calls_ns and min(*work, *both_work) >= work_ns
    for whole, *parts in zip(both, both_calls, both_work, strict=True):
        assert max(parts) <= whole < sum(parts)


def test_an_asynchronous_call_that_nothing_waits_for_reads_nothing(measured):
    found = measured["async, not waited for"]["time_ns"]["device"]
    assert 4 * median(every(found)) < CALL_NS


def test_a_barrier_that_is_not_synchronised_reads_nothing(measured):
    assert 4 * max(measured["aligned, not synchronised"]["barrier"]) < BARRIER_NS


def test_a_call_that_is_not_synchronised_reads_nothing(measured):
    found = measured["timed, not synchronised"]
    assert 4 * median(every(found["time_ns"]["host"])) < CALL_NS
    assert 4 * median(every(found["cold_ns"])) < CALL_NS

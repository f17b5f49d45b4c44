"""Rings and stacks of a capture as evidence, made by hand."""

from dataclasses import replace
from datetime import datetime, timezone

import made_rings
import pytest
from made_rings import call, ring

from torchcoll.core.errors import UnreadableError
from torchcoll.core.traffic import Group
from torchcoll.parts.postmortem import call_evidence
from torchcoll.parts.postmortem.evidence import CallSeen, FileRead, JobEvent, Place


@pytest.fixture
def read(tmp_path):
    def read(data, name="file"):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        assert call_evidence.recognizes(path, path.read_bytes()[: 1 << 16])
        return call_evidence.read_evidence(path, name)

    return read


ENDED = 1_000_500_000
COMPLETED = CallSeen(
    rank=1,
    group="0",
    number=7,
    collective="all_reduce",
    place=Place("file"),
    sizes_in=((100,),),
    sizes_out=((100,),),
    dtype="float32",
    state="completed",
    created_ns=1_000_001_000,
    origin="train.py:88 step",
)
PENDING = replace(COMPLETED, number=8, state="scheduled", created_ns=1_000_002_000)


def test_a_ring(read):
    (job,) = read(ring(call(1, 7, ENDED), call(2, 8, 0)))
    assert job.calls == [COMPLETED, PENDING]
    assert job.groups == {"0": Group("0", (0, 1, 2, 3), "gloo", "default_pg")}
    assert job.identities == {"capture 2026-11-24T03:00:00+00:00 1f2e", "slurm 99"}
    assert (job.ranks, job.nodes, job.pids) == (4, {1: "node07"}, {1: 4711})
    assert (job.alive_ns, job.first_ns, job.last_ns) == ({1: 2 * 10**9}, 10**9, 2 * 10**9)
    assert job.files == [FileRead("file", "call ring", (1,))]
    assert job.events == []


def test_calls_whose_end_is_not_sure_or_that_failed(read):
    """State 1: the end would be noticed later; a negative time: an exception."""
    error = {"record": "error", "serial": 2, "text": "RuntimeError: [10.0.0.7]:41: reset by peer"}
    lost = "RuntimeError: Connection closed by peer [10.0.0.7]:4150"
    end = {"record": "end", "status": "failed", "reason": "RuntimeError", "text": lost}
    error["text"] = lost
    (job,) = read(ring(call(1, 7, 1), call(2, 8, -ENDED), records=[error, end]))
    assert [(c.state, c.reliable_state) for c in job.calls] == [
        ("scheduled", False),
        ("scheduled", True),
    ]
    assert job.events == [
        JobEvent(
            "peer_lost",
            Place("file"),
            lost,
            1,
            "node07",
            group="0",
            number=8,
            collective="all_reduce",
            when_ns=ENDED,
            pid=4711,
            addresses=("10.0.0.7",),
        )
    ]


@pytest.mark.parametrize(
    ("status", "text", "kind", "exit_code"),
    [
        ("complete", None, "ending", None),
        ("interrupted", "SystemExit: 0", "ending", 0),
        ("interrupted", "SystemExit: None", "ending", 0),
        ("interrupted", "SystemExit: 3", "exit", 3),
        ("interrupted", "KeyboardInterrupt: ", "canceled", None),
        ("failed", "ValueError: bad sample", "exception", None),
        ("failed", "OSError: [Errno 28] No space left on device", "disk_full", None),
        ("failed", "OutOfMemoryError: CUDA out of memory.", "out_of_memory", None),
    ],
)
def test_how_a_capture_ended(read, status, text, kind, exit_code):
    reason = text and text.split(":")[0]
    end = {"record": "end", "status": status, "reason": reason, "text": text}
    (job,) = read(ring(call(1, 7, ENDED), records=[end]))
    ((event),) = job.events
    assert (event.kind, event.exit_code, event.rank, event.pid) == (kind, exit_code, 1, 4711)
    assert event.when_ns == 2 * 10**9


def test_the_order_of_a_ring_that_went_round(read):
    calls = [call(serial, serial, ENDED + serial) for serial in range(4095, 4099)]
    (job,) = read(ring(*calls))
    assert [c.number for c in job.calls] == [4095, 4096, 4097, 4098]


def test_a_message_has_its_peer(read):
    (job,) = read(ring(call(1, 1, ENDED, collective=4, peer=2)))
    assert (job.calls[0].collective, job.calls[0].peer) == ("send", 2)


def test_damaged_calls_are_one_line(read):
    data = bytearray(ring(call(1, 7, ENDED), call(2, 8, 0), call(3, 9, 0, group=5)))
    data[(1 << 16) + 2 * 64 + 20] ^= 1  # in call 2; call 3 is of a group that is not there
    (job,) = read(bytes(data))
    assert job.calls == [COMPLETED]


def test_truncated_rings(read):
    whole = ring(call(1, 7, ENDED), call(2, 8, 0))
    (job,) = read(whole[: (1 << 16) + 2 * 64 + 10])
    assert job.calls == [COMPLETED]
    (job,) = read(whole[:4000])
    assert job.calls == [] and job.nodes == {1: "node07"}
    for size_bytes in (30, 64, 200):
        with pytest.raises(UnreadableError):
            read(whole[:size_bytes])


@pytest.mark.parametrize(
    "changed",
    [{"rank": 4}, {"rank": -1}, {"ranks": 10**9}, {"rank": "1"}, {"schema": "torchcoll-ring/2"}],
)
def test_headers_that_are_refused(read, changed):
    with pytest.raises(UnreadableError):
        read(ring(call(1, 7, ENDED), header={**made_rings.HEADER, **changed}))


def test_hostile_groups_are_bounded(read):
    """A range of 10^18 ranks, and ranks that are not of the world."""
    for ranks, spaced in (([0, 10**18, 1], True), ([0, 9], False), ([0, 4, 0], True)):
        group = {**made_rings.GROUP, "id": 2, "name": "x", "spaced": spaced, "ranks": ranks}
        (job,) = read(ring(call(1, 7, ENDED), records=[group]))
        assert list(job.groups) == ["0"]


def test_stacks(read):
    """The last dump counts; the line that matters is that of the main thread."""
    early = made_rings.STACKS.replace("03:10", "03:05").replace("load_batch", "before")
    (job,) = read(early + made_rings.STACKS)
    (event,) = job.events
    assert (event.kind, event.rank, event.node, event.pid) == ("stack", 1, "node07", 4711)
    assert event.place == Place("file", 10)
    assert "load_batch" in event.text and "30.1 s" in event.text and event.collective is None
    when = datetime(2026, 11, 24, 3, 10, tzinfo=timezone.utc)
    assert event.when_ns == when.timestamp() * 1e9 == job.alive_ns[1]
    assert job.identities == {"capture 2026-11-24T03:00:00+00:00 1f2e"}
    assert job.files == [FileRead("file", "stacks", (1,))]


def test_stacks_of_a_rank_that_waits(read):
    frames = (
        '  File "/x/torchcoll/parts/training/waits.py", line 45 in wait\n'
        '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3 in all_reduce\n'
    )
    text = made_rings.STACKS.replace('  File "/home/me/data.py", line 31 in load_batch\n', frames)
    (event,) = read(text)[0].events
    assert event.collective == "all_reduce" and "train.py:88" in event.text


def test_stacks_without_a_whole_first_line(read):
    with pytest.raises(UnreadableError):
        read(made_rings.STACKS[:40])

"""The time to read NCCL's log grows linearly with its length."""

import sys

import pytest

from torchcoll.core import bounds
from torchcoll.core.errors import UnreadableError
from torchcoll.libraries.nccl.jobs import jobs
from torchcoll.libraries.nccl.log import NcclLogReader

SAYS = b"n0:1:1 [0] NCCL INFO "
LOADED = SAYS + b"Successfully loaded external tuner plugin p\n"

# Name -> the lines of the n-th thing that the log tells.
LOGS = {
    "handles": lambda n: [SAYS + b"comm 0x%x rank 0 nranks 1\n" % n],
    "starts": lambda n: [SAYS + b"comm 0x1 rank 0 nranks 1 Init START\n"],
    "versions": lambda n: [
        SAYS + b"comm 0x%x rank 0 nranks 1\n" % n,
        SAYS + b"NCCL version 2.20.3\n",
    ],
    "timings": lambda n: [
        SAYS + b"comm 0x%x rank 0 nranks 1\n" % n,
        SAYS + b"Init timings - ncclCommInitRank: rank %d nranks 999 total 1.5 (rest 1.0)\n" % n,
    ],
    "hosts inside lines": lambda n: [
        b"n%d:1:1 [0] NCCL INFO xm%d:1:1 [0] NCCL INFO x\n" % (n, n),
    ],
    "processes of no communicator": lambda n: [
        b"a%d:1:1 [0] NCCL INFO x\n" % n,
        b"b%d:1:1 [0] NCCL INFO comm 0x1 rank %d nranks 999 Init START\n" % (n, n),
    ],
    "kinds of connections": lambda n: [
        b"n%d:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/k%d\n" % (n, n),
    ],
}


def steps(lines):
    """How many lines of Python are executed to read the log, including rounds of comprehensions."""
    count = 0

    def counting(frame, event, argument):
        nonlocal count
        count += event == "line"
        return counting

    before = sys.gettrace()
    sys.settrace(counting)
    try:
        reader = NcclLogReader("a.log")
        reader.read(lines)
        for job in jobs([reader]):
            for kind in job.transports:
                job.pairs(kind)
            job.calls, job.warnings  # noqa: B018
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", LOGS)
def test_what_a_log_of_four_times_the_length_takes(name):
    """The logs have more than the 64 entries that are compared in any case. Comparing all pairs
    would take 9 to 12 times as long.
    """
    short, long = ([line for n in range(count) for line in LOGS[name](n)] for count in (150, 600))
    assert steps(long) < 6 * steps(short)


def test_a_plugin_that_is_loaded_again_and_again():
    reader = NcclLogReader("a.log")
    reader.read([LOADED] * 2)
    assert reader.processes[0].tuner == "p p"
    reader.read([LOADED] * 5000)
    assert len(reader.processes[0].tuner) < 5000


def test_the_last_communicator_of_a_handle_is_meant():
    """The address of a destroyed communicator can be used again."""
    reader = NcclLogReader("a.log")
    reader.read(
        [
            SAYS + b"comm 0x1 rank 0 nranks 2 - Destroy COMPLETE\n",
            SAYS + b"comm 0x2 rank 0 nranks 2 nNodes 3\n",
            SAYS + b"comm 0x1 rank 0 nranks 4 nNodes 1\n",
            SAYS + b"comm 0x1 rank 0 nranks 4 nNodes 2\n",
            b"n0:2:2 [0] NCCL INFO comm 0x1 rank 1 nranks 4 nNodes 5\n",
        ]
    )
    assert [[(m.handle, m.nranks, m.nodes) for m in p.members] for p in reader.processes] == [
        [("0x1", 2, None), ("0x2", 2, 3), ("0x1", 4, 2)],
        [("0x1", 4, 5)],
    ]


def test_how_many_communicators_a_log_may_have(tmp_path):
    """One communicator in each line of 57 bytes can be real; 70 000 in a file of 300 bytes are a
    bomb.
    """
    start = SAYS + b"comm 0x1 rank 0 nranks 1 Init START\n"
    path = tmp_path / "a.log"
    path.write_bytes(start * 70_000)
    bound = bounds.CommunicatorBudget(path)
    for _ in range(70_000):
        bound.add()
    path.write_bytes(start * 5)
    reader = NcclLogReader(str(path))
    with pytest.raises(UnreadableError, match="at most 65543 communicators for its size"):
        reader.read([start] * 70_000)
    assert len(reader.processes[0].members) == 65_543


@pytest.mark.parametrize(
    "message",
    [
        b"Channel 00/01 :" + b" 7" * 500,
        b"Init timings - ncclCommInitRank: rank 0 nranks 1 total 1.5 (rest 1.0, a 1.0, b 1.0)",
        b"Bootstrap timings total 1.5 (a 1.0, b 1.0, delay 1.0)",
        b"Algorithm | Tree | Ring |",
    ],
)
def test_what_is_kept_is_counted(monkeypatch, message):
    """The limit allows for one communicator and 300 lines of each kind."""
    monkeypatch.setattr(bounds, "_HELD_BYTES", 150_000)
    reader = NcclLogReader()
    reader.read([SAYS + message + b"\n"] * 2)
    with pytest.raises(UnreadableError, match="records that fit into"):
        reader.read([SAYS + message + b"\n"] * 1000)


def test_a_long_ring_is_counted_by_its_ranks(monkeypatch):
    """Ten of 1000 ranks, of which each takes 36 bytes or so."""
    monkeypatch.setattr(bounds, "_HELD_BYTES", 150_000)
    rings = [SAYS + b"Channel %d/10 :" % n + b" 7" * 1000 + b"\n" for n in range(10)]
    NcclLogReader().read(rings[:3])
    with pytest.raises(UnreadableError, match="records that fit into"):
        NcclLogReader().read(rings)


@pytest.mark.parametrize(
    "line", [SAYS + b"V%d set by environment to x\n", b"n0:1:1 [0] NCCL WARN %d\n"]
)
def test_a_repeated_message_is_counted_once(monkeypatch, line):
    monkeypatch.setattr(bounds, "_HELD_BYTES", 50_000)
    reader = NcclLogReader()
    reader.read([line % 0] * 5000)
    with pytest.raises(UnreadableError, match="records that fit into"):
        reader.read(line % n for n in range(5000))

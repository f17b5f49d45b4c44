"""What reading NCCL's log takes grows with its length, not with the square of it."""

from __future__ import annotations

import sys

import pytest

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
    """How many lines of Python are run to read them; rounds of a comprehension count."""
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
    """Beyond the 64 that are looked at in any case. A look of each at all others: 9 to 12 times."""
    short, long = ([line for n in range(many) for line in LOGS[name](n)] for many in (150, 600))
    assert steps(long) < 6 * steps(short)


def test_a_plugin_that_is_loaded_again_and_again():
    reader = NcclLogReader("a.log")
    reader.read([LOADED] * 2)
    assert reader.processes[0].tuner == "p p"
    reader.read([LOADED] * 5000)
    assert len(reader.processes[0].tuner) < 5000


def test_the_last_communicator_of_a_handle_is_meant():
    """An address is used again where a communicator was destroyed."""
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

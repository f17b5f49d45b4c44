"""Lines of NCCL and oneCCL, quoted from real logs and from NCCL's source."""

# ruff: noqa: E501
# Lines of logs are as long as they are.
from __future__ import annotations

from pathlib import Path

import pytest

from tests.postmortem.logs import events, read_log

_INIT = (
    "node0{n}:{pid}:{pid} [0] NCCL INFO ncclCommInitRank comm 0x55d0 rank {rank} nranks 2 cudaDev 0 "
    "nvmlDev 0 busId 1b000 commId 0xfa93daea854b060b - Init COMPLETE\n"
)


@pytest.mark.parametrize(
    ("text", "kind", "addresses"),
    [
        # NVIDIA/nccl 1405
        (
            "transport/net_ib.cc:1615 NCCL WARN NET/IB : Got completion from peer 10.216.210.236<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fd00:1148:9000:5000:4:200:3:ff22 remoteGidsfd00:1148:9000:5000:4:200:3:ff1f",
            "peer_lost",
            ("10.216.210.236",),
        ),
        # src/misc/socket.cc
        (
            "misc/socket.cc:550 NCCL WARN socketProgress: Connection closed by remote peer node08<40213>",
            "peer_lost",
            (),
        ),
        (
            "misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.9<35411> failed : Connection refused",
            "peer_lost",
            ("10.0.0.9",),
        ),
        # src/transport/net_ib.cc
        (
            "transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
            "link",
            (),
        ),
        # NVIDIA/nccl 969
        (
            "transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 peer 10.10.23.6<58683> collective mismatch error, local size 496640 remote size 65536",
            "mismatch",
            ("10.10.23.6",),
        ),
        ("enqueue.cc:1123 NCCL WARN Cuda failure 'unspecified launch failure'", "exception", ()),
        ("enqueue.cc:1123 NCCL WARN Cuda failure 2 'out of memory'", "out_of_memory", ()),
    ],
)
def test_warnings(tmp_path: Path, text: str, kind: str, addresses: tuple[str, ...]) -> None:
    evidence = read_log(
        tmp_path,
        _INIT.format(n=7, pid=4711, rank=0)
        + _INIT.format(n=8, pid=4712, rank=1)
        + f"\nnode08:4712:4800 [0] {text}\n",
        "nccl.log",
    )
    (event,) = events(evidence)
    assert (event.kind, event.pid, event.node) == (kind, 4712, "node08")
    assert event.addresses == addresses
    assert event.place.line == 4
    assert evidence.pids == {0: 4711, 1: 4712}
    assert evidence.nodes == {0: "node07", 1: "node08"}
    assert evidence.ranks == 2
    assert evidence.identities == {"communicator 0xfa93daea854b060b"}


def test_the_rank_of_a_mismatch_is_the_one_that_says_it(tmp_path: Path) -> None:
    # NVIDIA/nccl 214: GPU 3 of the second node of 8 says rank 11
    evidence = read_log(
        tmp_path,
        "node-8x-v100-nvlink-1:39719:39719 [3] init.cu:1197 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 11. You can use NCCL_DEBUG=INFO\n",
    )
    (event,) = events(evidence)
    assert (event.kind, event.rank, event.about) == ("mismatch", 11, ())


def test_groups_of_one_size_do_not_tell_the_ranks_of_the_world(tmp_path: Path) -> None:
    evidence = read_log(
        tmp_path,
        _INIT.format(n=7, pid=4711, rank=0)
        + _INIT.format(n=8, pid=4712, rank=0).replace("0xfa93", "0xab00")
        + "node08:4712:4800 [0] a.cc:1 NCCL WARN Cuda failure 'x'\n",
    )
    assert not evidence.pids
    assert evidence.ranks is None


def test_errors_of_oneccl(tmp_path: Path) -> None:
    evidence = read_log(
        tmp_path,
        "2026:11:20-10:52:48:20832:[1] |CCL_ERROR| atl_ofi.cpp:1016 poll: fi_cq_readerr: err: 113\n",
    )
    (event,) = events(evidence)
    assert (event.kind, event.rank) == ("peer_lost", 1)

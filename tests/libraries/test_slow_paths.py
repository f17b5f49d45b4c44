"""Slow paths in NCCL's log. The lines are from public issues; names and addresses differ."""

from __future__ import annotations

import pytest
from nccl_log_lines import info, read

from torchcoll.cli import main
from torchcoll.libraries.nccl.slow_paths import slow_paths

_SOCKET = ["NET/Socket : Using [0]ens3:10.31.7.24<0> [1]virbr0:<0>", "Using network Socket"]
_ADAPTERS = "NET/IB : Using [0]mlx5_2:1/RoCE [1]mlx5_3:1/RoCE [RO]; OOB bond0:10.1.1.10<0>"
_HOST = "comm 0x5000 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0"
_HOSTS = "comm 0x5000 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"
_NO_GDR = [f"NET/IB : GPU Direct RDMA Disabled for HCA {n} 'mlx5_{n + 2}'" for n in (0, 1)]
_P2P = ["Could not enable P2P between dev 0(=5000) and dev 1(=8000)"]


@pytest.mark.parametrize(
    ("messages", "texts", "remedy"),
    [
        (  # NCCL 2.4 on a cloud, as nccl#226
            ["NET/IB : No device found.", *_SOCKET],
            ["NCCL found no InfiniBand device and uses TCP sockets (ens3, virbr0) between hosts"],
            "ibv_devinfo",
        ),
        (  # an image without rdma-core, as nccl#1410
            ["Failed to open libibverbs.so[.1]", *_SOCKET, _HOSTS],
            ["NCCL could not open libibverbs.so and uses TCP sockets (ens3, virbr0) between hosts"],
            "install libibverbs",
        ),
        (  # as nccl#1053
            ["NCCL_IB_DISABLE set by environment to 1.", "Using network Socket"],
            ["NCCL_IB_DISABLE=1 makes NCCL use TCP sockets between hosts"],
            "unset NCCL_IB_DISABLE",
        ),
        (  # as nccl#1537
            [_ADAPTERS, "Using network IB", *_NO_GDR, _HOSTS],
            [
                "GPU Direct RDMA is off for mlx5_2, mlx5_3: data to other hosts goes through host "
                "memory"
            ],
            "nvidia-peermem",
        ),
        (  # RCCL behind PCI switches with ACS
            [*_P2P, _HOST],
            [
                "GPUs have no P2P (dev 0(=5000) and dev 1): NCCL goes through host memory",
            ],
            "ACS",
        ),
        (  # g6.12xlarge
            ["P2P is disabled between connected GPUs 1 and 0. You can repress this message", _HOST],
            ["GPUs have no P2P (1 and 0): NCCL goes through host memory"],
            "ACS",
        ),
        # One host needs no network, whatever it lacks.
        (["NET/IB : No device found.", *_SOCKET, _HOST], [], ""),
        ([_ADAPTERS, "Using network IB", _HOSTS, "NET/IB : Made virtual device [0]"], [], ""),
        (
            [_ADAPTERS, "Using network IB", "NET/Socket : GPU Direct RDMA Disabled for HCA 0 'lo'"],
            [],
            "",
        ),
    ],
)
def test_each_cause_has_its_remedy(messages, texts, remedy):
    paths = slow_paths(read(*info(*messages)).processes)
    assert [path.text for path in paths] == texts
    assert all(remedy in path.remedy for path in paths)


def test_hosts_that_alone_use_sockets_are_named():
    good = info("Using network IB", _HOSTS, who="node1:11:12 [0]")
    (path,) = slow_paths(read(*good, *info(*_SOCKET, who="node2:21:22 [0]")).processes)
    assert path.text.endswith("between hosts, on node2 alone")


_TABLE = """
# nThread 1 nGpus 1 minBytes 1073741824 maxBytes 1073741824 step: 2(factor) iters: 5
#       size         count      type   redop    root     time   algbw   busbw #wrong
  1073741824     268435456     float     sum      -1  94978.1   11.31   21.20      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 21.2
"""


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ((), "NCCL found no InfiniBand device and uses TCP sockets (ens3, virbr0) between hosts; "),
        (("a",) * 16, "all_reduce on 16 nccl ranks takes 95"),
    ],
)
def test_a_table_with_its_log_is_explained_by_it(hosts, first, tmp_path, capsys):
    lines = info("NET/IB : No device found.", *_SOCKET)
    lines += [
        f"#  Rank {n:2} Group  0 Pid {n + 70} on {host} device {n} [0x07] NVIDIA H100 80GB HBM3"
        for n, host in enumerate(hosts)
    ]
    path = tmp_path / "all_reduce.out"
    path.write_text("\n".join(lines) + _TABLE)
    main([str(path)])
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(first)
    assert ("ibv_devinfo" in out) == (not hosts)

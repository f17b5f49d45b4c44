"""Which fabric a run was measured on: by its links or by who states it, never by a name alone."""

import pytest
from error_form import error_text
from judged import case_of, launch

from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.questions.check.limits import check_labels, fabric_of, label_problem, odd_links

SXM = {"nvlinks": 18, "to_switch": True}


def name_of(stated=None, **how):
    found = fabric_of(launch(case_of(300), **how), stated)
    return found.name if found else None


def test_recognised_by_its_links():
    assert name_of(device="NVIDIA H200", **SXM) == "nvswitch-h200"
    assert name_of(device="NVIDIA H100 80GB HBM3", **SXM) == "nvswitch-h100"
    # An H20 has the links of an H100; nobody knows its NVLS, so it is not held against 480 GB/s.
    assert name_of(device="NVIDIA H20", **SXM) == "nvswitch-h20"
    assert name_of(device="NVIDIA GB200", **SXM) == "nvswitch-b200"
    for other in ("NVIDIA H800", "NVIDIA GH200 480GB", "AMD Instinct MI300X", "NVIDIA B300"):
        assert name_of(device=other, **SXM) is None
    assert name_of(device="NVIDIA A100-SXM4-80GB", nvlinks=12, to_switch=True) == "nvswitch-a100"


@pytest.mark.parametrize(
    "how",
    [
        {"device": "NVIDIA H200"},  # the name alone
        {"device": "NVIDIA H200", "nvlinks": 18},
        {"device": "NVIDIA H200", "nvlinks": 18, "to_switch": False},
        {"device": "NVIDIA H200", "nvlinks": 17, "to_switch": True},
        {"device": "NVIDIA H100 NVL", "nvlinks": 12, "to_switch": False},
        {"device": "NVIDIA A100-SXM4-80GB", "nvlinks": 4, "to_switch": False},
        {"device": "NVIDIA H200", "hosts": 2, **SXM},
        {"device": "NVIDIA GeForce RTX 5090", **SXM},
        {"device": "AMD EPYC"},
        {"members": []},
    ],
)
def test_not_recognised(how):
    assert name_of(**how) is None


def test_one_rank_with_other_links_is_another_fabric_and_said():
    run = launch(case_of(300), **SXM)
    run.members[3]["nvlinks"] = 16
    run.members[5]["nvlinks"] = 16
    run.members[6]["nvlinks"] = 17
    assert fabric_of(run, None) is None
    assert odd_links(run) == [
        "16 NVLinks on ranks 3,5, 18 on the others",
        "17 NVLinks on rank 6, 18 on the others",
    ]
    assert odd_links(launch(case_of(300), **SXM)) == []
    # Another GPU may have another number.
    run = launch(case_of(300), **SXM)
    run.members[0] |= {"device_name": "NVIDIA A100-SXM4-80GB", "nvlinks": 12}
    assert odd_links(run) == []


def test_stated_beats_the_label_and_both_beat_the_links():
    assert name_of(labels={"fabric": "pcie-gen5"}, **SXM) == "pcie-gen5"
    assert name_of("nvswitch-h100", labels={"fabric": "pcie-gen5"}, **SXM) == "nvswitch-h100"
    assert name_of("ib-ndr:8", hosts=2) == "ib-ndr:8"
    assert name_of("ib-ndr:8", members=[]) == "ib-ndr:8"  # an import that names no hosts


def test_a_fabric_that_cannot_be_the_runs():
    for stated, hosts, message in (
        (
            "nvswitch-h200",
            2,
            error_text(
                "fabric",
                "nvswitch-h200 for a run on 2 hosts",
                "a fabric of this run; nvswitch-h200 is for one host",
            ),
        ),
        (
            "ib-ndr:8",
            1,
            error_text(
                "fabric",
                "ib-ndr:8 for a run on 1 host",
                "a fabric of this run; ib-ndr:8 is for several hosts",
            ),
        ),
    ):
        with pytest.raises(UsageError) as caught:
            name_of(stated, hosts=hosts)
        assert str(caught.value) == message


def test_a_fabric_of_other_links_than_the_devices():
    with pytest.raises(UsageError) as caught:
        name_of("nvswitch-h200", device="NVIDIA A100-SXM4-80GB")
    assert str(caught.value) == error_text(
        "fabric",
        "nvswitch-h200 for a run on A100",
        "a fabric of this run; nvswitch-h200 is for H200",
    )


def test_of_two_ranks_the_one_with_fewer_links_is_odd():
    run = launch(case_of(1, ranks=2), **SXM)
    run.members[0]["nvlinks"] = 12
    assert odd_links(run) == ["12 NVLinks on rank 0, 18 on the others"]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"fabric": "ib-ndr"}, error_text("fabric", "ib-ndr", "ib-ndr:N, N the rails of a node")),
        ({"link_gbps": "50G"}, error_text("label link_gbps", "'50G'", "GB/s above 0")),
        ({"link_gbps": "-1"}, error_text("label link_gbps", "'-1'", "GB/s above 0")),
    ],
)
def test_labels_are_checked_before_anything_is_measured(labels, message):
    with pytest.raises(UsageError) as caught:
        check_labels(labels)
    assert str(caught.value).startswith(message)


def test_labels_that_are_well():
    check_labels({"fabric": "ib-ndr:8", "link_gbps": "50"})
    check_labels({"fabric": "of-my-own"})  # a rule file may come later
    check_labels({})
    assert label_problem(launch(case_of(1), labels={"link_gbps": "x"})).startswith(
        "label link_gbps"
    )
    assert label_problem(launch(case_of(1))) == ""


@pytest.mark.parametrize(
    ("launcher", "named"),
    [
        ("mpirun -np 16 -x NCCL_IB_HCA=mlx5_4,mlx5_5 -x NCCL_DEBUG=WARN", 2),
        ("NCCL_IB_HCA==mlx5_0:1,mlx5_1:1,mlx5_2:1 mpirun -np 16", 3),
        ("mpirun -np 16 -x NCCL_IB_HCA=mlx5", 0),  # a prefix: all of them
        ("mpirun -np 16 -x NCCL_IB_HCA=^mlx5_8,mlx5_9", 0),
        ("mpirun -np 16 -x NCCL_IB_HCA=" + ",".join(f"mlx5_{n}" for n in range(8)), 0),
    ],
)
def test_a_pasted_command_that_names_too_few_interfaces_is_the_reason(
    launcher, named, tmp_path, capsys
):
    path = tmp_path / "thread.md"
    devices = [
        f"#  Rank {n:2} Group  0 Pid {900 + n} on node{n // 8} device {n % 8} [0000:1{n % 8}:00] "
        "NVIDIA H100 80GB HBM3\n"
        for n in range(16)
    ]
    path.write_text(
        f"```\n$ {launcher} ./build/all_reduce_perf -b 4G -e 8G -f 2 -g 1\n"
        f"# Using devices\n{''.join(devices)}"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        "  4294967296    1073741824     float     sum      -1    85899   50.00   93.75      0\n"
        "  8589934592    2147483648     float     sum      -1   171799   50.00   93.75      0\n"
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 93.75\n```\n"
    )
    for words in (["check", str(path), "--fabric", "ib-ndr:8"], ["show", str(path)]):
        main(words)
        out = " ".join(capsys.readouterr().out.split())
        assert (f"NCCL_IB_HCA names {named} interfaces for 8 GPUs a host" in out) == (named > 0)
        assert ("Next: name the interface of each GPU in NCCL_IB_HCA" in out) == (named > 0)
    assert "93.75 is low: 28 % of the lowest" in out  # 337.4 GB/s

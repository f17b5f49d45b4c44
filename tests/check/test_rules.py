"""Rules: each number by its source, and every way in which a file of them can be wrong."""

import pytest
from error_form import error_text
from judged import GIB, MIB, case_of

from torchcoll.core.errors import UsageError
from torchcoll.core.plausibility import device_named
from torchcoll.core.summary import summarise
from torchcoll.questions.check.rules import capped, load_fabric, packaged

RING = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
# links x GB/s a link of NCCL's src/graph/topo.h; Gbit/s over 8; and what was measured.
EXPECTED = {
    "nvswitch-a100": {("ring", c): 12 * 20 for c in ("all_reduce", "all_gather")}
    | {("point-to-point", "all_to_all"): 12 * 20},
    **{
        name: {("ring", c): 18 * 20.6 for c in RING}
        | {
            ("point-to-point", c): 18 * 20.6
            for c in ("all_to_all", "gather", "scatter", "sendrecv")
        }
        | {("NVLS", "all_reduce"): nvls}
        for name, nvls in (("nvswitch-h100", 480), ("nvswitch-h200", 475))
    },
    "nvswitch-h20": {("ring", c): 18 * 20.6 for c in RING},
    "nvswitch-b200": {("ring", "all_reduce"): 18 * 40.1},
    "xgmi-mi300x": {("ring", "all_reduce"): 7 * 48},
    "pcie-gen4": {("ring", "all_reduce"): 22},
    "pcie-gen5": {("ring", "all_reduce"): 41},
    "xe-link-max": {("point-to-point", "sendrecv"): 15},
    **{
        name: {("ring", c): 8 * gbit / 8 for c in ("all_reduce", "all_gather", "reduce_scatter")}
        for name, gbit in (("ib-hdr:8", 200), ("ib-ndr:8", 400))
    },
    "ethernet:25": {("ring", c): 25 * 0.119 for c in ("all_reduce", "all_gather")},
}


def test_every_number_of_the_package():
    assert {name.partition(":")[0] for name in EXPECTED} == set(packaged())
    for name, expected in EXPECTED.items():
        fabric = load_fabric(name)
        assert fabric.name == name and fabric.what
        found = {(x.algorithm, c): x.busbw_gbps for x in fabric.limits for c in x.collectives}
        assert found == pytest.approx(expected)
        assert all(0 < len(limit.source) <= 62 for limit in fabric.limits), "it ends a line"
        assert fabric.several_hosts == (":" in name)


def test_tcp_gets_95_percent_of_a_wire():
    # 1500 bytes of a frame with 40 of headers, of 1538 on the wire with gap, preamble and checksum.
    (limit,) = load_fabric("ethernet:1").limits
    assert limit.busbw_gbps == pytest.approx(0.125 * 1460 / 1538, abs=5e-4)


@pytest.mark.parametrize(
    ("name", "links", "devices"),
    [
        ("nvswitch-a100", 12, ("A100",)),
        ("nvswitch-h20", 18, ("H20",)),
        ("nvswitch-h100", 18, ("H100",)),
        ("nvswitch-h200", 18, ("H200",)),
        ("nvswitch-b200", 18, ("B200", "GB200")),
        ("xgmi-mi300x", None, ()),
    ],
)
def test_what_is_recognised_has_links(name, links, devices):
    fabric = load_fabric(name)
    assert (fabric.nvlinks, fabric.to_switch) == (links, True if links else None)
    assert fabric.devices == devices


def row(**changed):
    return summarise(case_of(100, **changed))


def held(name, **changed):
    return [limit.algorithm for limit in load_fabric(name).limits if limit.holds(row(**changed))]


def test_limits_hold_from_a_size_on():
    # results/h200-8gpu-kernels: an algbw of 193.3 at 64M is a busbw of 338, 91 %.
    assert held("nvswitch-h200", size_bytes=64 * MIB) == ["ring"]
    assert held("nvswitch-h200", size_bytes=64 * MIB - 4) == []
    broadcast = {"collective": "broadcast", "op": None}
    assert held("nvswitch-h200", size_bytes=256 * MIB, **broadcast) == ["ring"]
    assert held("nvswitch-h200", size_bytes=256 * MIB - 4, **broadcast) == []
    assert held("nvswitch-h200", size_bytes=GIB) == ["ring", "NVLS"]
    # 64 MiB a rank: 1 GiB of 16 ranks.
    assert held("ib-ndr:8", ranks=16, size_bytes=GIB) == ["ring"]
    assert held("ib-ndr:8", ranks=32, size_bytes=GIB) == []


@pytest.mark.parametrize(
    ("changed", "nvls"),
    [
        ({}, True),
        ({"ranks": 4}, False),  # up to 4 GPUs it gains nothing (NVIDIA/nccl#1455)
        ({"op": "prod"}, False),
        ({"op": "avg"}, False),
        ({"dtype": "bfloat16"}, True),
        ({"dtype": "int8"}, False),
        ({"dtype": None, "op": None}, True),  # nccl-tests' default
    ],
)
def test_nvls_is_for_what_nccl_does_with_it(changed, nvls):
    assert held("nvswitch-h100", **changed) == (["ring", "NVLS"] if nvls else ["ring"])


def test_within_a_host_its_links_are_all_that_a_ring_has():
    (limit,) = load_fabric("ib-ndr:8").limits
    h100 = device_named("NVIDIA H100 80GB HBM3")
    words = "the NVLinks of a H100, less than the interfaces of a node"
    assert capped(limit, h100) == (18 * 20.6, words)
    assert capped(limit, None) == (400, "400 Gbit/s a rail")
    assert capped(load_fabric("ib-ndr:4").limits[0], h100) == (200, "400 Gbit/s a rail")


NAMES = ", ".join(sorted({name.partition(":")[0] for name in EXPECTED}))


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ("nvlink", error_text("fabric", "nvlink", f"one of {NAMES}")),
        ("ib-ndr", error_text("fabric", "ib-ndr", "ib-ndr:N, N the rails of a node, above 0")),
        ("ib-ndr:x", error_text("fabric", "ib-ndr:x", "ib-ndr:N, N the rails of a node, above 0")),
        (
            "ib-ndr:-1",
            error_text("fabric", "ib-ndr:-1", "ib-ndr:N, N the rails of a node, above 0"),
        ),
        (
            "ethernet:nan",
            error_text("fabric", "ethernet:nan", "ethernet:N, N the Gbit/s of a node, above 0"),
        ),
        ("pcie-gen4:2", error_text("fabric", "pcie-gen4:2", "pcie-gen4 without a number")),
    ],
)
def test_a_fabric_that_is_none(stated, message):
    with pytest.raises(UsageError) as caught:
        load_fabric(stated)
    assert str(caught.value) == message

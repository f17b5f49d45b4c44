"""Bounds of devices: the numbers are those of NVIDIA's pages and of NCCL's src/graph/topo.h."""

import pytest

from torchcoll.core.plausibility import DEVICES, device_named, device_of
from torchcoll.core.result import Run

# Links of the largest part, GB/s of a link in one direction as NCCL reckons and on the wire, GB/s
# of the memory by the data sheet.
LINKS = {
    "V100": (6, 20, 25, 900),
    "A100": (12, 20, 25, 2039),
    "H100": (18, 20.6, 25, 3350),
    "H200": (18, 20.6, 25, 4800),
    "B200": (18, 40.1, 50, 8000),
}


def test_bounds_follow_from_links():
    assert {device.name for device in DEVICES} == set(LINKS)
    for device in DEVICES:
        links, each, wire, memory = LINKS[device.name]
        assert device.ring_gbps == pytest.approx(links * each)
        assert device.wire_gbps == links * wire
        assert device.memory_gbps == memory
        assert device.multicast == (device.name in ("H100", "H200", "B200"))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("A100-SXM4-40GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA GH200 120GB", "GH200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA A10", None),
        ("NVIDIA GeForce RTX 5090", None),
        ("Intel(R) Data Center GPU Max 1550", None),
        ("AMD EPYC", None),
        ("", None),
    ],
)
def test_names(name, known):
    device = device_named(name)
    assert (device and device.name) == known


def test_a_part_has_the_bounds_of_its_generation_and_its_own_name():
    h20, h100 = device_named("NVIDIA H20"), device_named("NVIDIA H100 80GB HBM3")
    assert (h20.ring_gbps, h20.wire_gbps) == (h100.ring_gbps, h100.wire_gbps)


def members(*names):
    return [{"device_name": name} for name in names]


def test_the_device_of_a_launch_is_of_one_kind_or_unknown():
    h200, a100 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB"
    assert device_of(Run(members=members(h200, h200))).name == "H200"
    assert device_of(Run(members=members(h200, a100))) is None
    assert device_of(Run(members=members(h200, "AMD EPYC"))) is None
    assert device_of(Run()) is None
    stated = {"spec": {"labels": {"gpu": "A100-SXM4-80GB"}}}
    assert device_of(Run(header=stated)).name == "A100"
    assert device_of(Run(header=stated, members=members(h200))).name == "H200"  # seen beats told

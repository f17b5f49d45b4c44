"""Limits of NCCL's algorithms on hand-made topologies. All expected figures are computed by
hand.
"""

from __future__ import annotations

import pytest
from made_topologies import cpu, gpu, graph, graphs, hgx, nic, nvlink, pci, switches, system

from torchcoll.libraries.nccl import ceilings
from torchcoll.libraries.nccl.speeds import gpu_path, nearest, rails, tree_lines
from torchcoll.libraries.nccl.topology import read_graphs, read_topology
from torchcoll.libraries.nccl.xml_tree import read_tree


def read(tmp_path, text, name="topo.xml"):
    path = tmp_path / name
    path.write_text(text)
    return read_topology(read_tree(str(path))[0], name)


def limits_by_key(tmp_path, text, hosts=None, graph_text=""):
    topologies = [read(tmp_path, text)]
    known_graphs = []
    if graph_text:
        (tmp_path / "graph.xml").write_text(graph_text)
        known_graphs = read_graphs(read_tree(str(tmp_path / "graph.xml"))[0])
    limits = ceilings.algorithm_limits(ceilings.make_reach(topologies, hosts), known_graphs)
    return {(limit.algorithm, limit.collectives[0]): limit for limit in limits}


def gbps(limits):
    return {key: limit.gbps for key, limit in limits.items() if limit.gbps is not None}


def test_eight_h100_on_one_host(tmp_path):
    """18 links x 20.6 = 370.8; a measured ring comes to 370, NVLS to 468 to 480 of 490."""
    limits = gbps(limits_by_key(tmp_path, hgx()))
    assert limits == {
        (ceilings.RING, "all_reduce"): pytest.approx(370.8),
        (ceilings.TREE, "all_reduce"): pytest.approx(370.8 * 7 / 8),
        (ceilings.NVLS, "all_reduce"): pytest.approx(490.28, abs=0.01),  # 0.85 x 370.8 x 14 / 9
        (ceilings.NVLS, "all_gather"): pytest.approx(275.78, abs=0.01),  # 0.85 x 370.8 x 7 / 8
        (ceilings.DIRECT, "all_to_all"): pytest.approx(370.8),
    }


def test_a100_have_no_nvls_and_two_gpus_no_middle_of_a_chain(tmp_path):
    limits = limits_by_key(tmp_path, hgx(gpus=2, sm=80, links=12))
    assert gbps(limits) == {
        (ceilings.RING, "all_reduce"): 240,
        (ceilings.TREE, "all_reduce"): 240,
        (ceilings.DIRECT, "all_to_all"): 240,
    }
    assert limits[ceilings.NVLS, "all_reduce"].formula == "needs Hopper or newer"
    assert "several hosts only" in limits[ceilings.COLLNET, "all_reduce"].formula


def test_over_pci_a_tree_shares_each_gpus_own_link(tmp_path):
    """Four GPUs, two below each switch, all links 24 GB/s: a chain of four sends twice over one."""
    below = [pci(f"0000:{n}a:00.0", gpu(n), gpu(n + 1)) for n in (0, 2)]
    limits = gbps(limits_by_key(tmp_path, system(cpu(0, *below))))
    assert limits[ceilings.RING, "all_reduce"] == 24
    assert limits[ceilings.TREE, "all_reduce"] == pytest.approx(24 / 2 * 2 * 3 / 4)


def test_unknown_links_are_no_limit(tmp_path):
    limits = limits_by_key(tmp_path, system(cpu(0, gpu(0, link=""), gpu(1, link=""))))
    assert gbps(limits) == {}
    assert "does not tell their PCI links" in limits[ceilings.RING, "all_reduce"].formula


@pytest.mark.parametrize(
    ("hosts", "tree"),
    [
        (2, 187.5),  # 100 GB/s x 2 x 15 / 16: each host sends S
        (4, 129.17),  # each sends 1.5 S: 100 / 1.5 x 2 x 31 / 32
    ],
)
def test_hosts_with_slow_interfaces(tmp_path, hosts, tree):
    """Four interfaces of 200 Gbit/s are 100 GB/s per host."""
    limits = gbps(limits_by_key(tmp_path, hgx(gbits=200, nics=4), hosts))
    assert limits == {
        (ceilings.RING, "all_reduce"): 100,
        (ceilings.TREE, "all_reduce"): pytest.approx(tree, abs=0.01),
        (ceilings.NVLS_TREE, "all_reduce"): pytest.approx(tree, abs=0.01),
    }


def test_hosts_with_fast_interfaces_are_limited_by_their_links(tmp_path):
    """Eight interfaces of 400 Gbit/s are 400 GB/s per host, more than the 370.8 of a GPU's
    links.
    """
    limits = gbps(limits_by_key(tmp_path, hgx(), 2))
    assert limits[ceilings.RING, "all_reduce"] == pytest.approx(370.8)
    assert limits[ceilings.TREE, "all_reduce"] == pytest.approx(370.8 / 2 * 2 * 15 / 16)
    # Within a host each GPU sends 9/8 of S at 85 %: 280.16 GB/s of S.
    assert limits[ceilings.NVLS_TREE, "all_reduce"] == pytest.approx(525.3, abs=0.01)


def test_one_gpu_a_host_has_the_network_alone(tmp_path):
    limits = gbps(limits_by_key(tmp_path, hgx(gpus=1, nics=1), 2))
    assert limits == {(ceilings.RING, "all_reduce"): 50, (ceilings.TREE, "all_reduce"): 50}


def test_a_network_that_reduces(tmp_path):
    """S goes out and comes in once: 100 GB/s x 2 x 15 / 16."""
    limits = gbps(limits_by_key(tmp_path, hgx(gbits=200, nics=4, more='coll="1"'), 2))
    assert limits[ceilings.COLLNET, "all_reduce"] == pytest.approx(187.5)
    assert (ceilings.COLLNET, "all_reduce") not in gbps(
        limits_by_key(tmp_path, hgx(gbits=200, nics=4), 2)
    )


def test_what_nccl_expects_on_one_host(tmp_path):
    """tuning.cc with 12 channels of 30 and NVLS 8 of 40 (60 to the switch)."""
    text = graphs(graph(0, 12, 30, 30), graph(1, 12, 30, 30), graph(3, 8, 40, 60))
    limits = limits_by_key(tmp_path, hgx(), graph_text=text)
    expected = {key: limit.expected_gbps for key, limit in limits.items() if limit.expected_gbps}
    assert expected == {
        (ceilings.RING, "all_reduce"): 360,
        (ceilings.TREE, "all_reduce"): pytest.approx(0.92 * 360 / 2 * 14 / 8),
        (ceilings.NVLS, "all_reduce"): pytest.approx(476),  # 8 x 40 x 0.85 x 7/8 x 2
        (ceilings.NVLS, "all_gather"): pytest.approx(
            8 * 40 * 0.85 * 7 / 8 * 7 / 8 * 7 / 8, abs=0.001
        ),
    }


@pytest.mark.parametrize(
    ("sm", "most_gbps"),
    [
        (70, (26.5, 18.5, 10.0)),
        (80, (24.0, 23.6, 17.8)),
        (90, (38.7, 41.4, 36.0)),
        (100, (70.0, 42.8, 24.0)),
    ],
)
def test_a_channel_of_a_tree_has_a_most(tmp_path, sm, most_gbps):
    """perChMaxTreeBws of NCCL 2.27's tuning.cc; 4 channels of 100, of which a tree takes 92 %."""
    for hosts, most in zip((1, 2, 4), most_gbps, strict=True):
        nets = hosts > 1
        text = graphs(graph(0, 4, 100, 100, nets=nets), graph(1, 4, 100, 100, nets=nets))
        limits = limits_by_key(tmp_path, hgx(sm=sm), hosts, graph_text=text)
        expected = 4 * most / 2 * 2 * (8 * hosts - 1) / (8 * hosts)
        assert limits[ceilings.TREE, "all_reduce"].expected_gbps == pytest.approx(
            expected, abs=0.001
        )


def test_what_nccl_expects_over_two_hosts(tmp_path):
    """Eight channels of 48 within, 40 between; a tree's channel has at most 41.4 there."""
    text = graphs(graph(0, 8, 48, 40, nets=True), graph(1, 8, 48, 40, nets=True))
    limits = limits_by_key(tmp_path, hgx(), 2, graph_text=text)
    assert limits[ceilings.RING, "all_reduce"].expected_gbps == 384
    assert limits[ceilings.TREE, "all_reduce"].expected_gbps == pytest.approx(
        8 * 41.4 / 2 * 2 * 15 / 16
    )
    within = limits_by_key(tmp_path, hgx(), 1, graph_text=text)
    assert within[ceilings.RING, "all_reduce"].expected_gbps is None  # its channels leave the host


def test_paths_between_gpus(tmp_path):
    topo = read(
        tmp_path,
        system(
            cpu(
                0,
                pci("0000:0a:00.0", gpu(0, nvlink(1, 2)), gpu(1, nvlink(0, 2))),
                pci("0000:0b:00.0", gpu(2), width=8),
                more='arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"',
            ),
            cpu(1, gpu(3), more='arch="x86_64" vendor="AuthenticAMD"'),
        ),
    )
    a, b, c, d = topo.gpus
    assert (gpu_path(a, b).path, gpu_path(a, b).gbps) == ("NVL", 40)  # 2 x 20, sm 80
    assert (gpu_path(a, c).path, gpu_path(a, c).gbps) == ("PHB", 12)  # 16 GT/s x8
    # Skylake's link to the other CPU.
    assert (gpu_path(a, d).path, gpu_path(a, d).gbps) == (
        "SYS",
        10,
    )
    assert (gpu_path(d, a).path, gpu_path(d, a).gbps) == ("SYS", 10)


def test_paths_through_switches_have_the_speed_of_the_slower_side(tmp_path):
    text = system(cpu(0, gpu(0, switches(6, 6)), gpu(1, switches(6, 5)), gpu(2, sm=200)))
    a, b, c = read(tmp_path, text).gpus
    assert gpu_path(a, b).gbps == 220  # 11 x 20
    assert gpu_path(a, c).path == "PHB"


def test_rails_by_index_and_the_nearest_interface(tmp_path):
    first, second = read(tmp_path, hgx(), "a.xml"), read(tmp_path, hgx(gbits=200, nics=7), "b.xml")
    result = rails([first, second])
    assert [rail.gbps for rail in result] == [(50, 25)] * 7 + [(50, None)]
    assert result[7].names == ("mlx5_7", None)
    assert [n.name for n in nearest(first.gpus[3], first.nics)] == ["mlx5_3"]


def test_the_tree_of_a_host(tmp_path):
    text = system(
        cpu(
            0,
            pci("0000:0A:00.0", gpu(0, switches(2, 2)), pci("0000:0c:00.0", nic("mlx5_0", 0))),
            pci("0000:0b:00.0"),  # nothing below it
            more='vendor="AuthenticAMD" arch="x86_64"',
        )
    )
    assert tree_lines(read(tmp_path, text)) == [
        "NUMA node 0 (AuthenticAMD x86_64)",
        "`- PCI switch 0000:0a:00.0 (PCI 24 GB/s)",
        "   |- GPU 0, 4 links to 2 switches (PCI 24 GB/s)",
        "   `- mlx5_0 200 Gbit/s (PCI 24 GB/s)",
    ]

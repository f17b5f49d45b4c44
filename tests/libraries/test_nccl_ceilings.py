"""Limits of NCCL's algorithms on hand-made topologies. All expected figures are computed by
hand.
"""

import pytest
from made_topologies import cpu, gpu, hgx, pci, system

from torchcoll.libraries.nccl import ceilings
from torchcoll.libraries.nccl.topology import read_topology, read_tree


def limits_by_key(tmp_path, text, hosts=None):
    path = tmp_path / "topo.xml"
    path.write_text(text)
    reach = ceilings.make_reach([read_topology(read_tree(str(path))[0])], hosts)
    limits = ceilings.algorithm_limits(reach)
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

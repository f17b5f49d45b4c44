"""NCCL's topology files, made by hand, with the figures that NCCL's sources give for them."""

from __future__ import annotations

import gzip

import pytest
from error_form import error_text, expecting
from made_topologies import cpu, gpu, nic, nvlink, pci, switches, system

from torchcoll.core.errors import UnreadableError
from torchcoll.core.plausibility import DEVICES
from torchcoll.libraries.nccl import speeds
from torchcoll.libraries.nccl.topology import Topology, distance, is_dump, read_topology, read_tree


def read(tmp_path, text: str) -> Topology:
    path = tmp_path / "topo.xml"
    path.write_text(text)
    return read_topology(read_tree(str(path))[0])


def ceiling(tmp_path, *cpus: str, version: int = 1) -> speeds.Ceiling:
    return speeds.ring_ceiling(read(tmp_path, system(*cpus, version=version)))


def test_gpus_links_interfaces_and_cpus(tmp_path):
    topo = read(
        tmp_path,
        system(
            cpu(
                0,
                pci(
                    "0000:01:00.0",
                    gpu(0, switches(2, 2, 2, 2, 2, 2)),
                    pci("0000:0A:00.0", nic("mlx5_0", 0), kind="0x020700", link="8.0 GT/s PCIe"),
                ),
                # The words of a mask are 32 bits each, and need not be padded.
                affinity="3,f000000f",
            )
        ),
    )
    (only,), (net,), (node,) = topo.gpus, topo.nics, topo.cpus
    assert (only.dev, only.rank, only.sm, only.gdr, only.busid) == (0, 0, 80, True, "0000:00:00.0")
    assert [(link.kind, link.to, link.count) for link in only.links] == [
        ("nvlink", "switch", 2)
    ] * 6
    assert (net.name, net.dev, net.speed_mbps, net.busid) == ("mlx5_0", 0, 200000, "0000:0a:00.0")
    assert node.cores == (0, 1, 2, 3, 28, 29, 30, 31, 32, 33)
    assert (topo.library, topo.hosts, topo.cut) == ("NCCL", 1, False)
    assert only.cpu is node and net.cpu is node


def test_a_file_for_nccl_topo_file_has_no_gpu_elements(tmp_path):
    topo = read(
        tmp_path,
        system(
            cpu(
                0,
                pci(
                    "ffff:ff:01.0",
                    pci("0001:00:00.0", kind="0x030200"),
                    pci("0101:00:00.0", kind="0x020700"),
                ),
            )
        ),
    )
    assert [(device.described, device.name) for device in topo.gpus] == [(False, "0001:00:00.0")]
    assert [device.busid for device in topo.nics] == ["0101:00:00.0"]
    assert distance(topo.gpus[0], topo.nics[0]) == "PIX"
    assert speeds.ring_ceiling(topo).gbps is None


def test_interfaces_that_nccl_does_not_use(tmp_path):
    fused = nic("mlx5_0", 0, more='net="0"') + '<nic><net name="x" speed="1"/></nic>'
    topo = read(tmp_path, system(cpu(0, fused, nic("eth0", 1, speed=-1))))
    assert [(nic.name, nic.speed_mbps) for nic in topo.nics] == [("eth0", None)]


def test_paths_between_devices(tmp_path):
    """In NCCL a path over several switches is PXB, and a path over a CPU is PHB."""
    topo = read(
        tmp_path,
        system(
            cpu(
                0,
                pci(
                    "0000:01:00.0",
                    gpu(0),
                    pci("0000:02:00.0", gpu(1), pci("0000:03:00.0", nic("a", 0), kind="0x020000")),
                ),
                gpu(2),
                nic("eth0", 1),
            ),
            cpu(1, gpu(3)),
        ),
    )
    a, eth0 = topo.nics
    assert [distance(gpu_, a) for gpu_ in topo.gpus] == ["PXB", "PIX", "PHB", "SYS"]
    assert [distance(gpu_, eth0) for gpu_ in topo.gpus] == ["PHB", "PHB", "PHB", "SYS"]
    assert distance(a, topo.gpus[1]) == "PIX"


@pytest.mark.parametrize(
    ("link", "width", "gbps"),
    [
        ("8 GT/s", 16, 12.0),
        ("16.0 GT/s PCIe", 16, 24.0),
        ("32.0 GT/s PCIe", 8, 24.0),
        ("64.0 GT/s PCIe", 16, 96.0),
        ("2.5 GT/s PCIe", 1, 0.1875),
        ("32.0 GT/s PCIe", 0, None),
        ("", 16, None),
        ("Unknown", 16, None),
    ],
)
def test_pci_links(tmp_path, link, width, gbps):
    topo = read(tmp_path, system(cpu(0, gpu(0, link=link, width=width))))
    assert speeds.pci_gbps(topo.gpus[0].node) == gbps


@pytest.mark.parametrize(
    ("name", "sm", "links"),
    [("V100", 70, 6), ("A100", 80, 12), ("H100", 90, 18), ("B200", 100, 18)],
)
def test_full_parts_are_what_the_package_has_for_their_names(tmp_path, name, sm, links):
    ceiling_gbps = ceiling(tmp_path, cpu(0, *(gpu(n, switches(links), sm=sm) for n in (0, 1))))
    (device,) = (device for device in DEVICES if device.name == name)
    assert ceiling_gbps.gbps == device.ring_gbps


def test_the_gpu_with_the_fewest_links_is_the_ceiling(tmp_path):
    limit = ceiling(tmp_path, cpu(0, gpu(0, switches(6, 6)), gpu(1, switches(5, 6))))
    assert limit.gbps == 220
    assert limit.source == "11 links x 20 GB/s, NCCL topo.h"


def test_four_gpus_with_four_links_to_each_other(tmp_path):
    """NVIDIA/nccl#1499: NCCL 2.21 logs maxBw 80.0 totalBw 240.0 for such a machine."""
    gpus = [gpu(n, *(nvlink(m, 4) for m in range(4) if m != n)) for n in range(4)]
    limit = ceiling(tmp_path, *(cpu(n, links) for n, links in enumerate(gpus)))
    assert (limit.gbps, limit.source) == (240, "12 links x 20 GB/s, NCCL topo.h")


def test_links_to_itself_connect_no_gpus(tmp_path):
    """Azure's file for NC A100 v4 has such links. Only PCI connects the GPUs, and the file lacks
    its speed.
    """
    limit = ceiling(tmp_path, *(cpu(n, gpu(n, nvlink(n, 12), link="", width=0)) for n in (0, 1)))
    assert limit.gbps is None
    assert limit.source == (
        "no NVLink joins the GPUs, and the file does not tell their PCI links "
        "(NCCL then takes 12 GB/s)"
    )


def test_without_links_the_pci_link_of_a_gpu(tmp_path):
    limit = ceiling(tmp_path, cpu(0, gpu(0), gpu(1, width=8)))
    assert limit.gbps == 12
    assert limit.source.startswith("the PCI link of one GPU, NCCL topo.cc; ")


def test_a_narrow_link_between_a_gpu_and_the_cpu_is_the_ceiling(tmp_path):
    # Four lanes of 8 GT/s, 6000 Mbit/s each: 3 GB/s.
    def bridge(*inside):
        return pci("0000:70:00.0", *inside, link="8.0 GT/s", width=4)

    limit = ceiling(tmp_path, cpu(0, bridge(gpu(0)), gpu(1)))
    assert limit.gbps == 3
    assert limit.source.startswith("the PCI link between GPU 0 and its CPU, NCCL topo.cc; ")
    # A ring within a switch does not pass its link to the CPU; one over two switches does.
    assert ceiling(tmp_path, cpu(0, bridge(gpu(0), gpu(1)))).gbps == 24
    assert ceiling(tmp_path, cpu(0, bridge(gpu(0), gpu(1)), gpu(2))).gbps == 3


@pytest.mark.parametrize(
    ("link", "width", "speeds_mbps", "gbps"),
    [
        ("32.0 GT/s", 16, (400_000,), 50.0),  # the wire carries 63, and NCCL takes it for 48
        ("16.0 GT/s", 16, (400_000,), 24.0),  # 31.5
        ("16.0 GT/s", 16, (200_000,), 25.0),
        ("16.0 GT/s", 16, (200_000, 200_000), 24.0),  # two ports of one device
        ("", 0, (400_000,), 50.0),
    ],
)
def test_an_interface_carries_no_more_than_its_pci_link(tmp_path, link, width, speeds_mbps, gbps):
    nets = "".join(nic(f"mlx5_{n}", n, speed) for n, speed in enumerate(speeds_mbps))
    topo = read(tmp_path, system(cpu(0, pci("0000:60:00.0", nets, link=link, width=width))))
    assert speeds.network_gbps(topo.nics, topo) == gbps


def test_an_interface_next_to_a_gpu_does_not_need_the_link_to_the_cpu(tmp_path):
    concurrent = pci("0000:60:00.0", nic("mlx5_0", 0))
    for inside, gbps in (((concurrent, gpu(0)), 25.0), ((concurrent,), 12.0)):
        switch = pci("0000:50:00.0", *inside, link="8.0 GT/s")
        topo = read(tmp_path, system(cpu(0, switch)))
        assert speeds.network_gbps(topo.nics, topo) == gbps


@pytest.mark.parametrize(
    ("cpus", "why"),
    [
        ([cpu(0)], "the file has no <gpu>: NVLink is not in it"),
        (
            [cpu(0, gpu(0, switches(12)))],
            "one GPU alone: a communicator of one rank on this host",
        ),
        (
            [cpu(0, gpu(0, nvlink(1, 4)), gpu(1, nvlink(0, 4)), gpu(2))],
            "NVLink joins GPUs 0 1 and 2, but not these with each other",
        ),
        (
            [cpu(0, gpu(0, switches(36), sm=107), gpu(1, switches(36), sm=107))],
            "NVLink of this generation is not known here",
        ),
        (
            [
                cpu(
                    0,
                    pci(
                        "0000:00:00.0",
                        *(f'<gpu dev="0" sm="100" rank="{r}">{switches(18)}</gpu>' for r in (0, 1)),
                        kind="0x030200",
                    ),
                )
            ],
            "ranks share a GPU, and so its links",
        ),
    ],
)
def test_where_there_is_no_ceiling(tmp_path, cpus, why):
    assert ceiling(tmp_path, *cpus) == speeds.Ceiling(None, why)


@pytest.mark.parametrize(
    ("gcn", "each"), [("906", 24), ("910", 36), ("gfx90a", 36), ("gfx942:sramecc+:xnack-", 48)]
)
def test_xgmi_of_amd(tmp_path, gcn, each):
    """On AMD ``sm`` is the number of compute units; 90 or 104 must not be read as compute
    capability.
    """
    gpus = [
        pci(
            f"0000:{n}0:00.0",
            f'<gpu dev="{n}" sm="104" gcn="{gcn}" arch="38911" rank="{n}" gdr="1">'
            f'<xgmi target="0000:{1 - n}0:00.0" count="3" tclass="0x038000"/></gpu>',
            kind="0x038000",
        )
        for n in (0, 1)
    ]
    topo = read(tmp_path, system(cpu(0, *gpus), version=2))
    assert topo.library == "RCCL" and topo.gpus[0].sm is None
    assert speeds.ring_ceiling(topo).gbps == 3 * each
    assert "RCCL topo.h" in speeds.ring_ceiling(topo).source


def test_an_unknown_xgmi(tmp_path):
    topo = read(
        tmp_path,
        system(cpu(0, pci("0", '<gpu gcn="gfx1250"><xgmi target="1" count="1"/></gpu>'))),
    )
    assert speeds.link_gbps(topo.gpus[0], topo.gpus[0].links[0]) is None


WHOLE = system(cpu(0, gpu(0, switches(12)), gpu(1, switches(12))))


def test_a_file_that_ends_early(tmp_path):
    path = tmp_path / "cut.xml"
    path.write_text(WHOLE[: WHOLE.index('count="12"', WHOLE.index('dev="1"'))])
    root, problems = read_tree(str(path))
    topo = read_topology(root)
    assert [(len(gpu_.links), gpu_.whole) for gpu_ in topo.gpus] == [(1, True), (0, False)]
    assert speeds.ring_ceiling(topo).source.startswith("the file is cut off")
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}: cut off (unclosed token: line 2, ")


def test_every_cut_is_reported(tmp_path):
    path = tmp_path / "cut.xml"
    for end in range(len("<system version="), len(WHOLE) - len("</system>\n"), 7):
        path.write_text(WHOLE[:end])
        try:
            root, problems = read_tree(str(path))
        except UnreadableError:
            assert end < WHOLE.index("\n")  # before the first element is whole
            continue
        assert read_topology(root).cut and problems


def test_a_packed_file(tmp_path):
    path = tmp_path / "topo.xml.gz"
    path.write_bytes(gzip.compress(WHOLE.encode()))
    assert is_dump(str(path))
    assert len(read_topology(read_tree(str(path))[0]).gpus) == 2
    path.write_bytes(gzip.compress(WHOLE.encode() * 20)[:-20])
    with pytest.raises(UnreadableError):  # two roots
        read_tree(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<!DOCTYPE s [<!ENTITY a "b">]><system/>', expecting("a file without DTD and entities")),
        ("<!DOCTYPE system><system/>", expecting("a file without DTD and entities")),
        (
            "<system><cpu></system>",
            expecting("well-formed XML (mismatched tag: line 1, column 15)"),
        ),
        ("<system a='&b;'/>", expecting("well-formed XML (undefined entity")),
        ('<?xml version="1.0" encoding="no"?><system/>', expecting("well-formed XML (")),
        ("<!-- nothing", expecting("well-formed XML (")),
        (
            '<?xml version="1.0"?><svg/>',
            error_text(
                "XML",
                "<svg> in {}",
                "<system> (NCCL_TOPO_DUMP_FILE)",
            ),
        ),
    ],
)
def test_files_that_are_refused(tmp_path, text, message):
    path = tmp_path / "x.xml"
    path.write_text(text)
    assert is_dump(str(path))
    with pytest.raises(UnreadableError) as caught:
        read_tree(str(path))
    assert message.format(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "is_xml"),
    [
        ("\n\n  <system/>", True),
        ("\ufeff<graphs/>", True),
        ("<!-- Copyright -->\n<system/>", True),
        ("<stdout>node:1:1 [0] NCCL INFO Using network IB", False),
        ("node:1:1 [0] NCCL INFO <system", False),
        ("", False),
    ],
)
def test_what_begins_as_a_dump(tmp_path, text, is_xml):
    path = tmp_path / "x"
    path.write_text(text, encoding="utf-8")
    assert is_dump(str(path)) is is_xml


def test_numbers_that_are_none(tmp_path):
    topo = read(
        tmp_path,
        system(
            '<cpu affinity="xyz"><pci busid="1" class="0x030200" link_width="many">'
            '<gpu dev="one" sm="" rank="-"><nvlink target="2" count="two"/></gpu></pci></cpu>'
        ),
    )
    (only,) = topo.gpus
    assert (only.name, only.rank, only.sm, only.gdr, only.links) == ("1", None, None, None, [])
    assert topo.cpus[0].cores == () and topo.cpus[0].numa is None


def test_deep_files_are_refused(tmp_path):
    """Each node walks up to the root, so 100 000 levels would need 10^10 steps."""
    nested = "<system>{}</system>".format
    assert read(tmp_path, nested("<pci>" * 99 + "</pci>" * 99)).gpus == []
    with pytest.raises(UnreadableError, match="at most 100 elements in each other"):
        read(tmp_path, nested("<pci>" * 100 + "</pci>" * 100))

"""``torchcoll log`` of NCCL's topology files."""

from __future__ import annotations

import csv
import io
import json

import made_topologies
import pytest
from error_form import error_text
from made_topologies import cpu, nic, nvlink, pci, switches, system

from torchcoll.cli import main

PCIE = "16.0 GT/s PCIe"
SWITCHES = switches(2, 2, 2, 2, 2, 2)


def gpu(dev: int, links: str = SWITCHES, sm: int = 80) -> str:
    return made_topologies.gpu(dev, links, sm=sm, link=PCIE)


def host(*inside: str) -> str:
    bridge = pci("0000:80:00.0", *inside, link="8 GT/s")
    return system(cpu(0, bridge, more='arch="x86_64" vendor="AuthenticAMD"'))


A100 = host(gpu(0), gpu(1), pci("0000:81:00.0", nic("mlx5_0", 0), kind="0x020700", link=PCIE))


@pytest.fixture(autouse=True)
def folder(in_tmp_path):
    (in_tmp_path / "topo.xml").write_text(A100)
    return in_tmp_path


def shown(capsys, *arguments: str, code: int = 0) -> list[str]:
    assert main(["log", *arguments]) == code
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    # The answer, what the links allow, comes first and has tests of its own.
    return lines[next(n for n, line in enumerate(lines) if line.startswith(("NCCL ", "|"))) :]


def test_a_topology(capsys):
    expected = [
        "NCCL topology: 2 GPUs, 1 NUMA node (AuthenticAMD x86_64), 1 network interface",
        "network: 25.000 GB/s, all interfaces of this host together, as far as their PCI links go, "
        "one direction: a ring over hosts has no more",
        "its links are those of --fabric nvswitch-a100",
        "",
        "GPU  rank  generation  gdr  NUMA  PCI               PCI  to CPU  links                 "
        "each    links",
        "                                  link             GB/s    GB/s                        "
        "GB/s     GB/s",
        "0       0  sm 80       yes     0  16.0 GT/s x16  24.000  12.000  12 to 6 NVSwitches  "
        "20.000  240.000",
        "1       1  sm 80       yes     0  16.0 GT/s x16  24.000  12.000  12 to 6 NVSwitches  "
        "20.000  240.000",
        "",
        "GB/s: one direction, as NCCL reckons (topo.h, topo.cc), below the rate of the wire",
        "",
        "network    dev  Gbit/s  gdr  NUMA  PCI               PCI  to CPU  nearest  path",
        "interface                          link             GB/s    GB/s  GPUs",
        "mlx5_0       0     200  yes     0  16.0 GT/s x16  24.000  12.000  0 1      PIX",
        "",
        "PIX through one PCI switch",
        "",
        "NUMA  cores  GPUs  network",
        "                   interfaces",
        "   0  0-15   0 1   mlx5_0",
    ]
    assert shown(capsys, "topo.xml")[: len(expected)] == expected


def test_a_link_that_is_down(folder, capsys):
    fewer = switches(1, 2, 2, 2, 2, 2)
    (folder / "down.xml").write_text(host(gpu(0), gpu(1), gpu(2, fewer)))
    lines = shown(capsys, "down.xml")
    assert "GPU 2 has 11 links, most have 12: a link that is down is not in the file" in lines
    assert not any("--fabric" in line for line in lines)  # these links are of no known one


def test_a_fabric_is_known_by_links_and_never_by_the_generation_alone(folder, capsys):
    for links, fabrics in ((18, "nvswitch-h100 or nvswitch-h20 or nvswitch-h200"), (8, "")):
        (folder / "h.xml").write_text(host(*(gpu(n, switches(links), sm=90) for n in (0, 1))))
        lines = [line for line in shown(capsys, "h.xml") if "--fabric" in line]
        which = "; which GPU it is, the file does not tell"
        assert lines == ([f"its links are those of --fabric {fabrics}{which}"] if fabrics else [])


@pytest.mark.parametrize(
    ("links", "text"),
    [
        (nvlink(1, 4), "4 to GPU 1"),
        (nvlink(0, 12), "12 to itself"),
        (nvlink(7, 3), "3 to GPUs that are not in the file"),
        (nvlink("1", 3, "0x068001"), "3 to the CPU"),
        ('<c2c bw="44712" count="10"/>', "10 x 44712 MB/s C2C to the CPU"),
    ],
)
def test_where_links_end(folder, capsys, links, text):
    (folder / "links.xml").write_text(host(gpu(0, links), gpu(1, "")))
    assert main(["log", "links.xml", "--format", "json"]) == 0
    (dump,) = json.loads(capsys.readouterr().out)["dumps"]
    assert [row["links_to"] for row in dump["gpus"]] == [text, None]


def test_two_hosts(folder, capsys):
    hosts = (cpu(0, gpu(0), more=f'host_hash="0x{name}"') for name in ("a", "b"))
    (folder / "rack.xml").write_text(system(*hosts))
    lines = shown(capsys, "rack.xml")
    assert lines[0].endswith(", 2 hosts")
    rows = [line.split() for line in lines if line.startswith(("0 ", "1-0 "))]
    assert [row[:3] for row in rows if row[3:5] == ["sm", "80"]] == [
        ["0", "0", "0"],
        ["1-0", "0", "1"],
    ]
    assert not any("--fabric" in line for line in lines)  # those lie within one host


def test_a_file_for_nccl(folder, capsys):
    unlinked = pci("0001:00:00.0", kind="0x030200", link="", width=0)
    (folder / "azure.xml").write_text(host(unlinked))
    assert shown(capsys, "azure.xml")[:2] == [
        "NCCL topology: 1 GPU, 1 NUMA node (AuthenticAMD x86_64), 0 network interfaces",
        "a file for NCCL_TOPO_FILE: the PCI devices, to which NCCL adds the links that it finds",
    ]


def test_files_that_end_early(folder, capsys):
    (folder / "topo.xml").write_text(A100[: A100.index('<gpu dev="1"') + 60])
    assert main(["log", "topo.xml"]) == 0
    out = capsys.readouterr()
    assert out.err.startswith("torchcoll: warning: topo.xml: cut off (")
    lines = out.out.splitlines()
    assert "the file is cut off: GPUs, links and interfaces may be missing" in lines


def test_json_and_csv(capsys):
    assert main(["log", "topo.xml", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (topology,) = document["dumps"]
    assert document["jobs"] == [] and document["files"] == []
    assert topology["file"] == "topo.xml"
    assert (topology["nics_gbps"], topology["fabrics"]) == (25, ["nvswitch-a100"])
    assert topology["gpus"][1]["links_gbps"] == 240
    assert main(["log", "topo.xml", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    limits = [row for row in rows if row["table"] == "limits"]
    assert {row["algorithm"] for row in limits} >= {"RING", "TREE"}
    rows = rows[: -len(limits)]
    assert [(row["file"], row["table"]) for row in rows] == [
        *[("topo.xml", "gpus")] * 2,
        ("topo.xml", "nics"),
        ("topo.xml", "cpus"),
    ]
    assert rows[0]["links_gbps"] == "240.0"


def test_with_a_log_and_with_files_that_are_refused(folder, capsys):
    (folder / "a.log").write_text("n:1:1 [0] NCCL INFO NCCL version 2.27.5+cuda12.9\n")
    (folder / "bad.xml").write_text('<!DOCTYPE s [<!ENTITY a "b">]><system version="&a;"/>')
    assert main(["log", "bad.xml", "a.log", "topo.xml"]) == 1
    out = capsys.readouterr()
    expected = error_text("XML", "bad.xml", "a file without DTD and entities")
    assert out.err == f"torchcoll: skipped: {expected}\n"
    lines = out.out.splitlines()
    assert (lines[0], lines[1], lines[3]) == (
        "NCCL 2.27.5 logged by 1 process on 1 host",
        "Next: log the choices too: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING",
        "topo.xml",
    )
    assert lines.count("a.log") == 1
    assert lines[-2] == "a.log: 1 lines: 1 understood"

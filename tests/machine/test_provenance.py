"""Mapped libraries, nearest NICs and interfaces, with small trees of files and on this host."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchcoll.machine import provenance
from torchcoll.machine.placement import (
    device_facts,
    network_interfaces,
    numa_nodes,
    pci_facts,
    rdma_devices,
)
from torchcoll.machine.provenance import mapped_libraries, rank_facts

ROOT = Path(__file__).resolve().parent.parent.parent


def maps(tmp_path, *paths):
    lines = [f"7f00-7f01 r-xp 00000000 fe:00 240 {' ' * 20}{path}\n" for path in paths]
    (tmp_path / "maps").write_text("7ffc-7ffd rw-p 00000000 00:00 0 [stack]\n" + "".join(lines))
    return str(tmp_path / "maps")


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/x/libnccl.so.2", None),
        ("/x/libnccl.so.2.30.7", "2.30.7"),
        ("/x/librccl.so.1.0.60303", "1.0.60303"),
        ("/x/libnccl-net.so", None),
        ("/opt/intel/oneapi/ccl/2021.14/lib/libccl.so.1.0", "2021.14"),
        ("/opt/3.11.7/lib/libccl.so.1.0", None),
        ("/x/libonecclshim.so", None),
        ("/x/libmpi.so.40.30.4", None),  # the interface's number, not Open MPI's
        ("/x/with blanks/libfabric.so.1", None),
        ("/x/libucc.so.1", None),
    ],
)
def test_communication_libraries_are_found(tmp_path, path, version):
    (result,) = mapped_libraries(maps=maps(tmp_path, path, "/lib/libc.so.6", path), environ={})
    assert result == {
        "name": os.path.basename(path),
        "path": path,
        "version": version,
        "how": "run path or system",
    }


def test_the_reason_why_a_file_was_loaded(tmp_path):
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"nccl")
    (tmp_path / "link.so").symlink_to(library)

    def how(path, **environ):
        return mapped_libraries(maps=maps(tmp_path, path), environ=environ)[0]["how"]

    assert how(library, LD_PRELOAD=f"/x/liba.so:{tmp_path / 'link.so'}") == "LD_PRELOAD"
    assert how(library, LD_PRELOAD="/x/liba.so libnccl.so.2") == "LD_PRELOAD"
    assert how(library, LD_LIBRARY_PATH=f"/x:{tmp_path}:") == "LD_LIBRARY_PATH"
    assert how(library, LD_PRELOAD="", LD_LIBRARY_PATH="") == "run path or system"
    assert how("/v/site-packages/nvidia/nccl/lib/libnccl.so.2") == "Python package"


def test_one_rank_of_a_host_may_leave_files_unread(tmp_path):
    library = tmp_path / "libccl.so.1.0"
    library.write_bytes(b"\0" * 999 + b"\0Gold-2022.2.0 2026-10-11T17:52:02Z (release)\0DPCPP")
    (read,) = mapped_libraries(maps=maps(tmp_path, library))
    assert read["version"] == "2022.2.0"
    (unread,) = mapped_libraries(maps=maps(tmp_path, library), thorough=False)
    assert unread["version"] is None


@pytest.mark.parametrize(("number", "text"), [(23007, "2.30.7"), (2708, "2.7.8")])
def test_numbers_of_nccl(number, text):
    def version(pointer):
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = number
        return 0

    assert provenance._nccl_version(SimpleNamespace(ncclGetVersion=version)) == text
    assert provenance._nccl_version(SimpleNamespace(ncclGetVersion=lambda _: 3)) is None


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_preloaded_library_is_the_one_named(tmp_path):
    sources = {
        "libnccl.so.2": "int ncclGetVersion(int *v) { *v = 22907; return 0; }",
        "libfabric.so.1": "unsigned fi_version(void) { return 2u << 16 | 3; }",
        "libmpi.so.12": "int MPI_Get_library_version(char *s, int *n)"
        ' { __builtin_strcpy(s, "Open MPI v9.1, package: me\\nmore"); return 0; }',
    }
    for name, source in sources.items():
        command = ["cc", "-shared", "-fPIC", "-w", "-o", tmp_path / name, "-x", "c", "-"]
        subprocess.run(command, input=source, text=True, check=True)
    program = (
        "import json; from torchcoll.machine.provenance import mapped_libraries as m\n"
        "print(json.dumps(m()))"
    )
    preload = ":".join(str(tmp_path / name) for name in sources)
    out = subprocess.check_output(
        [sys.executable, "-c", program], env={**os.environ, "LD_PRELOAD": preload}, cwd=ROOT
    )
    result = {m["name"]: (m["version"], m["how"]) for m in json.loads(out)}
    assert result["libnccl.so.2"] == ("2.29.7", "LD_PRELOAD")
    assert result["libfabric.so.1"] == ("2.3", "LD_PRELOAD")
    assert result["libmpi.so.12"] == ("Open MPI v9.1", "LD_PRELOAD")


def test_this_process_has_torchs_gloo():
    torch = pytest.importorskip("torch")
    facts = rank_facts(torch, "cpu", cpus=os.sched_getaffinity(0))
    (gloo,) = [m for m in facts["mapped"] if m["name"] == "libtorch_cpu.so"]
    assert gloo["version"] == torch.__version__
    assert Path(gloo["path"]).parent == Path(torch.__file__).parent / "lib"
    assert "pci_id" not in facts


# Two sockets. Socket 0: a switch with a GPU and a RoCE NIC, and another NIC at the bridge.
DEVICES = {
    "0000:03:00.0": ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:03:00.0", 0),  # GPU 0
    "0000:04:00.0": ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:04:00.0", 0),  # mlx5_0
    "0000:05:00.0": ("pci0000:00/0000:00:02.0/0000:05:00.0", 0),  # GPU 1
    "0000:06:00.0": ("pci0000:00/0000:00:03.0/0000:06:00.0", 0),  # eth1
    "0001:81:00.0": ("pci0001:80/0001:80:01.0/0001:81:00.0", 0),  # GPU 2
    "0002:c1:00.0": ("pci0002:c0/0002:c0:01.0/0002:c1:00.0", 1),  # GPU 3
}


@pytest.fixture
def sysfs(tmp_path):
    root = tmp_path / "sys"
    (root / "bus/pci/devices").mkdir(parents=True)
    for pci_id, (path, node) in DEVICES.items():
        device = root / "devices" / path
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        (root / "bus/pci/devices" / pci_id).symlink_to(device)
    nic(root, "infiniband", "mlx5_0", "0000:04:00.0")
    nic(root, "net", "ens4np0", "0000:04:00.0")
    nic(root, "net", "eth1", "0000:06:00.0", operstate="down", speed="-1")
    nic(root, "net", "lo", None, type="772", operstate="unknown", speed="")
    nic(root, "net", "docker0", None, operstate="down")
    (root / "class/net/bonding_masters").write_text("")
    port = root / "class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    for name, text in (("state", "4: ACTIVE"), ("rate", "400 Gb/sec (4X NDR)")):
        (port / name).write_text(f"{text}\n")
    (port / "link_layer").write_text("Ethernet\n")
    for node, cpus in (("node0", "0-3,8"), ("node1", "4-7")):
        (root / "devices/system/node" / node).mkdir(parents=True)
        (root / "devices/system/node" / node / "cpulist").write_text(f"{cpus}\n")
    return str(root)


def nic(root, room, name, pci_id, type="1", operstate="up", speed="400000"):
    entry = root / "class" / room / name
    entry.mkdir(parents=True)
    if pci_id:
        (entry / "device").symlink_to(root / "bus/pci/devices" / pci_id)
    if room == "net":
        for file, text in (("type", type), ("operstate", operstate), ("speed", speed)):
            (entry / file).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("gpu", "node", "near"),
    [
        ("0000:03:00.0", 0, [("mlx5_0", "PCIe switch")]),
        ("0000:05:00.0", 0, [("mlx5_0", "host bridge"), ("eth1", "host bridge")]),
        ("0001:81:00.0", 0, [("mlx5_0", "NUMA node"), ("eth1", "NUMA node")]),
        ("0002:c1:00.0", 1, [("mlx5_0", "host"), ("eth1", "host")]),
    ],
)
def test_the_nearest_nic(sysfs, gpu, node, near):
    facts = pci_facts(gpu, sysfs)
    assert facts["numa_node"] == node
    assert [(n["name"], n["shares"]) for n in facts["nearest_nics"]] == near


def test_virtio_lies_below_its_function(sysfs):
    root = Path(sysfs)
    below = root / "devices" / DEVICES["0000:06:00.0"][0] / "virtio2"
    below.mkdir()
    link = root / "class/net/eth1/device"
    link.unlink()
    link.symlink_to(below)
    (result,) = [i for i in network_interfaces(sysfs) if i["name"] == "eth1"]
    assert result["pci_id"] == "0000:06:00.0"


def test_a_host_without_that_device_or_any_nic(sysfs, tmp_path):
    assert pci_facts("0009:00:00.0", sysfs) == {}
    (Path(sysfs) / "bus/pci/devices/0000:03:00.0/numa_node").write_text("-1\n")
    assert pci_facts("0000:03:00.0", sysfs)["numa_node"] is None
    shutil.rmtree(Path(sysfs) / "class")
    assert pci_facts("0000:05:00.0", sysfs) == {"numa_node": 0, "nearest_nics": []}


def test_numa_nodes_of_cpus(sysfs):
    assert numa_nodes([8], sysfs) == [0]
    assert numa_nodes([0, 5], sysfs) == [0, 1]
    assert numa_nodes([], sysfs) == []


def test_interfaces(sysfs, tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net/if_inet6").write_text("fe80 02 40 20 80  ens4np0\n0001 01 80 10 80       lo\n")
    result = {i.pop("name"): i for i in network_interfaces(sysfs, str(tmp_path))}
    assert result["ens4np0"] == {
        **{"kind": "ethernet", "state": "up", "speed_mbps": 400000, "families": ["ipv6"]},
        "pci_id": "0000:04:00.0",
    }
    assert [result["eth1"][key] for key in ("state", "speed_mbps")] == ["down", None]
    assert [result["lo"][key] for key in ("kind", "speed_mbps")] == ["loopback", None]
    assert [result["docker0"][key] for key in ("kind", "pci_id")] == ["virtual", None]
    assert "bonding_masters" not in result
    assert rdma_devices(sysfs) == [
        {
            **{"name": "mlx5_0", "port": "1", "state": "active", "rate": "400 Gb/sec (4X NDR)"},
            "link": "Ethernet",
        }
    ]


@pytest.mark.skipif(not Path("/sys/class/net/lo").exists(), reason="needs Linux' sysfs")
def test_loopback_of_this_host():
    (lo,) = [i for i in network_interfaces() if i["name"] == "lo"]
    assert lo["kind"] == "loopback"
    assert "ipv4" in lo["families"]


def fake_torch(kind="cuda", **properties):
    properties = SimpleNamespace(name="GPU X", **properties)
    return SimpleNamespace(
        **{kind: SimpleNamespace(get_device_properties=lambda index: properties)}
    )


def test_device_of_new_torch():
    torch = fake_torch(uuid="ab-cd", pci_domain_id=1, pci_bus_id=0xCA, pci_device_id=0)
    assert device_facts(torch, "cuda:1") == {
        **{"device_name": "GPU X", "uuid": "ab-cd", "pci_id": "0001:ca:00.0"}
    }


def test_device_of_older_torch_is_found_by_its_uuid(tmp_path):
    folder = tmp_path / "driver/nvidia/gpus/0000:0B:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model:  X\nGPU UUID:   GPU-ab-cd\nBus Type:  PCIe\n")
    torch = fake_torch(uuid="ab-cd")
    assert device_facts(torch, "cuda:0", str(tmp_path))["pci_id"] == "0000:0b:00.0"
    assert device_facts(fake_torch(uuid="ef"), "cuda:0", str(tmp_path))["pci_id"] is None
    assert device_facts(fake_torch("xpu"), "xpu:0", str(tmp_path)) == {
        **{"device_name": "GPU X", "uuid": None, "pci_id": None}
    }


@pytest.mark.parametrize("name", ["libccl.so.1", "liboneccl_bindings_for_pytorch.so"])
def test_the_version_of_oneccl_is_in_its_file(tmp_path, name):
    """The version is in the library's file, as in 2021.14; Intel's bindings may contain oneCCL."""
    library = tmp_path / name
    library.write_bytes(b"\0Gold\0x\0Gold-2021.14.0 2026-11-22T 05:48:34Z (master/1fc0c38)\0")
    assert provenance.oneccl_version(maps(tmp_path, library)) == "2021.14.0"
    (result,) = mapped_libraries(maps=maps(tmp_path, library))
    assert result["version"] == "2021.14.0"

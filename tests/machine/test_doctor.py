"""torchcoll doctor: each trap present and absent, what can be used and why not, and the command."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ranks import busy

from torchcoll.cli import main
from torchcoll.core.backends import BACKENDS
from torchcoll.machine import doctor_facts as gathering
from torchcoll.machine.doctor import (
    CHECKS,
    backends,
    devices,
    findings,
    interfaces,
    rank_map,
    report,
)
from torchcoll.machine.doctor_facts import (
    IPEX,
    Facts,
    cpu_facts,
    gpu_facts,
    launch_facts,
    limits,
    module_facts,
)
from torchcoll.machine.launcher import Launch
from torchcoll.machine.placement import matching
from torchcoll.machine.setting_traps import trap_table
from torchcoll.machine.show import show_doctor

BINDINGS = "oneccl_bindings_for_pytorch"

ROOT = Path(__file__).resolve().parent.parent.parent
GIB = 1 << 30


def interface(name, kind="ethernet", state="up", families=("ipv4",), speed_mbps=None):
    return {
        **{"name": name, "kind": kind, "state": state, "families": list(families)},
        **{"speed_mbps": speed_mbps, "pci_id": None},
    }


def torch_of(version="2.12.1", built=("gloo",), **changes):
    names = ("gloo", "nccl", "xccl")
    return {
        **{"version": version, "cuda": None, "hip": None, "xpu": None, "nccl": None, "threads": 1},
        **{"built": {name: name in built for name in names}, "why": {}},
        **{"devices": {"cuda": [], "xpu": []}, **changes},
    }


def gpu(kind, index, node=0):
    nics = [{"name": "mlx5_0", "pci_id": "0000:04:00.0", "shares": "PCIe switch"}]
    return {
        **{"device": f"{kind}:{index}", "device_name": "GPU X", "error": ""},
        **{"pci_id": f"0000:{index:02x}:00.0", "numa_node": node, "nearest_nics": nics},
    }


def gpus_of(vendor=None, count=0, driver=None, files=True):
    none = {"pci": 0, "driver": None, "files": False}
    vendors = {name: dict(none) for name in ("NVIDIA", "AMD", "Intel")}
    if vendor:
        vendors[vendor] = {"pci": count, "driver": driver, "files": files}
    return vendors


def host(ranks, environ, **changes):
    """A host of 64 cores under torchrun."""
    facts = {
        "environ": environ,
        "launch": Launch("torchrun", 0, ranks, 0, ranks),
        "cpu": {
            **{"model": "CPU X", "affinity": list(range(64)), "numa_nodes": [0], "virtual": False},
            **{"steal": 0.0, "governor": "performance", "driver": "intel_pstate"},
        },
        "gpus": gpus_of(),
        "limits": {"shm_bytes": 32 * GIB, "memlock_bytes": None},
        "interfaces": [interface("eth0"), interface("eth1"), interface("lo", "loopback")],
        "torchrun": str(Path(sys.executable).parent / "torchrun"),
    }
    return Facts(**{**facts, **changes})


def nvidia(environ=None, ranks=8, version="2.12.1", **changes):
    devices = {"cuda": [gpu("cuda", i) for i in range(8)], "xpu": []}
    facts = {
        "torch": torch_of(
            version, ("gloo", "nccl"), cuda="13.0", nccl="2.27.5", devices=devices, why={}
        ),
        "gpus": gpus_of("NVIDIA", 8, "580.95.05"),
    }
    return host(ranks, environ or {}, **{**facts, **changes})


def intel(environ=None, ranks=12, **changes):
    devices = {"cuda": [], "xpu": [gpu("xpu", i) for i in range(12)]}
    facts = {
        "torch": torch_of("2.12.1+xpu", ("gloo", "xccl"), xpu="20250302", devices=devices),
        "gpus": gpus_of("Intel", 6, "xe"),
    }
    return host(ranks, environ or {}, **{**facts, **changes})


def plain(environ=None, ranks=2, **changes):
    """A CPU host with Intel's bindings."""
    ccl = {"version": "2.8.0", "registers": True, "error": ""}
    facts = {"torch": torch_of("2.8.0+cpu"), "modules": {BINDINGS: ccl}}
    return host(ranks, environ or {}, **{**facts, **changes})


def cpu(**changes):
    return {**host(1, {}).cpu, **changes}


def names(facts):
    return [finding.name for finding in findings(facts)]


@pytest.mark.parametrize("make", [nvidia, intel, plain])
def test_no_finding_on_a_healthy_host(make):
    assert findings(make({"PATH": "/bin", "NCCL_DEBUG": "WARN"})) == []


def test_without_any_facts_nothing_breaks():
    assert names(Facts()) == []
    assert report(Facts())["usable"] is False


# Each trap, on and off.
NOT_FOUND = "ImportError: libccl.so.1: cannot open shared object file: No such file or directory"
BAD_CCL = {"version": "2.8.0", "registers": False, "error": NOT_FOUND}
# As torch-ccl's issue 59 has it; its README names one version of torch for each release.
FOREIGN_CCL = {"version": "2.1.400", "registers": False, "error": "Mismatch in kernel signatures"}
LIBCCL = {
    **{"name": "libccl.so.1.0", "path": "/opt/ccl/libccl.so.1.0", "version": "2021.14.0"},
    "how": "LD_LIBRARY_PATH",
}
PRELOADED = {"name": "libnccl.so.2", "path": "/x/libnccl.so.2", "version": "2.32.3"}
RDMA = [{"name": "mlx5_0", "port": "1", "state": "active", "rate": "400", "link": "InfiniBand"}]
ONE_GPU = {**nvidia().torch, "devices": {"cuda": [gpu("cuda", 0)], "xpu": []}}
ON = [
    (intel({"ZE_AFFINITY_MASK": "3"}), "ze_affinity_mask", "error", "1 of the devices of 12"),
    (intel({"ZE_AFFINITY_MASK": "0.0,0.1"}), "ze_affinity_mask", "error", "shows 2"),
    (nvidia({"ZE_AFFINITY_MASK": "3"}), "ze_affinity_mask", "note", "Not now: no xccl or ccl"),
    (plain({"CCL_ATL_TRANSPORT": "mpi"}), "ccl_atl_transport", "error", "hangs"),
    (
        plain(ranks=4, cpu=cpu(affinity=[0, 1, 2, 3])),
        "ccl_worker_offload",
        "warning",
        "4 ranks on 4 cores",
    ),
    (
        host(1, {}, torch=torch_of("2.13.0+cpu"), gpus=gpus_of("NVIDIA", 1, "580.95")),
        "torch_without_gpu",
        "warning",
        "has no CUDA",
    ),
    (
        host(1, {}, torch=torch_of(), gpus=gpus_of("NVIDIA", 0, None)),  # only /dev/nvidia0
        "torch_without_gpu",
        "warning",
        "has no CUDA",
    ),
    (
        host(1, {}, torch=torch_of(), gpus=gpus_of("Intel", 1, "xe")),
        "torch_without_gpu",
        "warning",
        "has no XPU",
    ),
    (
        host(1, {}, torch=torch_of(), gpus=gpus_of("AMD", 1, "amdgpu")),
        "torch_without_gpu",
        "warning",
        "has no ROCm",
    ),
    (
        plain(ranks=8, torch=torch_of("2.8.0", threads=64)),
        "omp_num_threads",
        "warning",
        "OMP_NUM_THREADS=8",
    ),
    (
        nvidia(limits={"shm_bytes": 64 << 20, "memlock_bytes": None}),
        "small_shm",
        "warning",
        "64 MiB",
    ),
    (
        nvidia(limits={"shm_bytes": 0, "memlock_bytes": None}),
        "small_shm",
        "warning",
        "there is no /dev/shm",
    ),
    (
        nvidia(limits={"shm_bytes": GIB, "memlock_bytes": 8 << 20}, rdma=RDMA),
        "memlock",
        "error",
        "8 MiB next to mlx5_0",
    ),
    (
        nvidia({"NCCL_SOCKET_IFNAME": "ib"}),
        "interface_name",
        "error",
        "matches none with an address",
    ),
    (nvidia({"NCCL_SOCKET_IFNAME": "=eth"}), "interface_name", "error", "eth0, eth1, lo"),
    (plain({"NCCL_SOCKET_IFNAME": "ib"}), "interface_name", "note", "no nccl here"),
    (plain({"GLOO_SOCKET_IFNAME": "eth"}), "interface_name", "error", "no interface eth "),
    (plain({"GLOO_SOCKET_IFNAME": "eth0,eth7"}), "interface_name", "error", "no interface eth7"),
    (nvidia({"NCCL_IB_HCA": "mlx4"}, rdma=RDMA), "interface_name", "warning", "mlx5_0"),
    (nvidia({"NCCL_IB_HCA": "mlx5"}), "interface_name", "warning", "Devices here: none"),
    (nvidia(ranks=16), "more_ranks_than_devices", "error", "16 ranks on this host, 8 GPUs"),
    (
        nvidia({"CUDA_VISIBLE_DEVICES": "3"}, ranks=2, torch=ONE_GPU),
        "more_ranks_than_devices",
        "error",
        "2 ranks on this host, 1 GPU NCCL",
    ),
    (nvidia({"CUDA_VISIBLE_DEVICES": ""}), "hidden_devices", "warning", "hides every GPU"),
    (nvidia({"CUDA_VISIBLE_DEVICES": "-1"}), "hidden_devices", "warning", "=-1 hides"),
    (nvidia(mapped=[{**PRELOADED, "how": "LD_PRELOAD"}]), "preloaded", "note", "2.32.3"),
    (nvidia({"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}), "forced", "warning", "NCCL_PROTO=LL"),
    (plain({"CCL_ALLREDUCE": "ring"}), "forced", "warning", "CCL_ALLREDUCE=ring"),
    (nvidia({"NCCL_P2P_DISABLE": "1"}), "switched_off", "warning", "NCCL_P2P_DISABLE=1"),
    (nvidia({"NCCL_NVLS_ENABLE": "0"}), "switched_off", "warning", "NCCL_NVLS_ENABLE=0"),
    (nvidia({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}), "slowed", "warning", "over gloo"),
    (nvidia({"CUDA_LAUNCH_BLOCKING": "1"}), "slowed", "warning", "waited for"),
    (nvidia({"NCCL_DEBUG": "TRACE"}), "slowed", "warning", "logged"),
    (plain({"CCL_OP_SYNC": "1"}), "slowed", "warning", "CCL_OP_SYNC"),
    (nvidia(cpu=cpu(affinity=[0, 1])), "more_ranks_than_cores", "warning", "8 ranks share 2"),
    (plain(cpu=cpu(virtual=True, steal=0.05)), "stolen_time", "warning", "gave 5%"),
    (
        plain(cpu=cpu(governor="powersave", driver="acpi-cpufreq")),
        "cpu_governor",
        "warning",
        "lowest frequency",
    ),
    (plain(cpu=cpu(governor="powersave")), "cpu_governor", "note", "only under load"),
    (nvidia(cpu=cpu(numa_nodes=[1])), "other_numa_node", "warning", "sits on node 0"),
    (plain(torch=torch_of("2.13.0")), "bindings_version", "note", "2.8.0 with torch 2.13.0"),
    (nvidia(torchrun="/usr/bin/torchrun"), "foreign_torchrun", "warning", "/usr/bin/torchrun"),
    (nvidia({"NCCL_DEBG": "INFO"}), "unknown_variable", "note", "did you mean NCCL_DEBUG?"),
    (plain({"CCL_NOTHING_LIKE": "1"}), "unknown_variable", "note", "variable of oneCCL"),
    (nvidia({"NCCL_GIN_ENABLE": "1"}), "variable_of_another_version", "note", "NCCL 2.27.5"),
    (nvidia({"NCCL_LL_THRESHOLD": "0"}), "variable_of_another_version", "note", "NCCL_PROTO"),
    (plain(launch_error="RANK without WORLD_SIZE"), "launcher_variables", "error", "RANK without"),
]


@pytest.mark.parametrize(("facts", "name", "severity", "phrase"), ON)
def test_a_trap_that_is_there(facts, name, severity, phrase):
    (finding,) = [f for f in findings(facts) if f.name == name]
    assert finding.severity == severity
    assert phrase in f"{finding.what} {finding.why} {finding.action}"
    for text in (finding.what, finding.why, finding.action):
        assert text and "\n" not in text


def test_every_trap_is_tried():
    tried = {name for _, name, _, _ in ON}
    assert len(CHECKS) == len({check.__name__ for check in CHECKS})
    # Names of interfaces and of devices are two checks with one name; settings are one check.
    of_settings = {*(trap["name"] for trap in trap_table()["setting"]), "hidden_devices"}
    assert tried >= of_settings
    assert len(tried) == len(CHECKS) - 2 + len(of_settings)


OFF = [
    intel({"ZE_AFFINITY_MASK": ",".join(map(str, range(12)))}),
    intel({"ZE_AFFINITY_MASK": "3"}, launch=Launch("none")),
    plain({"CCL_ATL_TRANSPORT": "ofi"}),
    plain({"CCL_ATL_TRANSPORT": "mpi"}, launch=Launch("Intel MPI", 0, 2, 0, 2)),
    plain({"CCL_WORKER_OFFLOAD": "0"}, ranks=4, cpu=cpu(affinity=[0, 1, 2, 3])),
    plain(launch=Launch("Intel MPI", 0, 4, 0, 4), cpu=cpu(affinity=[0, 1, 2, 3])),
    plain(launch=Launch("none"), cpu=cpu(affinity=[0])),
    host(2, {}, torch=torch_of(), cpu=cpu(affinity=[0, 1])),  # no ccl to spin workers
    nvidia({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING"}),
    nvidia({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}),
    nvidia({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "^COLL"}),
    host(1, {}, torch=torch_of(), gpus=gpus_of("Intel", 1, "i915", files=False)),
    plain({"OMP_NUM_THREADS": "64"}, ranks=8, torch=torch_of("2.8.0", threads=64)),
    plain(launch=Launch("none"), torch=torch_of("2.8.0", threads=64)),
    host(4, {}, torch=torch_of("2.15.0", ("gloo", "nccl"), cuda="13.2")),  # no GPU, no NCCL
    nvidia(limits={"shm_bytes": GIB, "memlock_bytes": 8 << 20}),  # no RDMA, nothing is pinned
    nvidia(limits={"shm_bytes": GIB, "memlock_bytes": 64 * GIB}, rdma=RDMA),
    nvidia({"NCCL_SOCKET_IFNAME": "eth", "GLOO_SOCKET_IFNAME": "eth0,eth1"}),
    nvidia({"NCCL_SOCKET_IFNAME": "^docker,lo"}),
    nvidia({"NCCL_SOCKET_IFNAME": ""}),
    nvidia({"NCCL_SOCKET_IFNAME": "ib"}, interfaces=[]),  # nothing known is nothing wrong
    nvidia({"NCCL_IB_HCA": "=mlx5_0:1"}, rdma=RDMA),
    # Each rank of Slurm's sees the one GPU that it was given.
    nvidia(torch=ONE_GPU, launch=Launch("srun", 0, 8, 0, 8)),
    nvidia({"CUDA_VISIBLE_DEVICES": "0"}, torch=ONE_GPU, launch=Launch("srun", 0, 32, 0, 32)),
    nvidia(
        {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, ranks=16, torch={**nvidia().torch, "nccl": "2.30.7"}
    ),
    nvidia({"NCCL_HOSTID": "r0"}, ranks=16),
    nvidia({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}),
    plain({"CUDA_VISIBLE_DEVICES": ""}),
    nvidia(mapped=[{**PRELOADED, "how": "Python package"}]),
    nvidia({"NCCL_P2P_DISABLE": "0", "NCCL_NVLS_ENABLE": "1", "NCCL_ALGO": ""}),
    nvidia({"TORCH_DISTRIBUTED_DEBUG": "OFF", "CUDA_LAUNCH_BLOCKING": "0", "NCCL_DEBUG": "INFO"}),
    plain(cpu=cpu(virtual=True, steal=0.01)),
    nvidia(cpu=cpu(numa_nodes=[0, 1])),
    nvidia(cpu=cpu(numa_nodes=[])),
    plain(modules={**plain().modules, IPEX: {"version": "2.8.0", "registers": False, "error": ""}}),
    nvidia({"NCCL_CUMEM_HOST_ENABLE": "1", "NCCL_TESTS_X": "1"}),
    plain(torch=torch_of("2.8.1+cpu")),  # bindings of torch's own minor version
]


@pytest.mark.parametrize("facts", OFF)
def test_no_trap_without_its_cause(facts):
    assert findings(facts) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("eth", ["eth0", "eth1"]),
        ("eth0,ib", ["eth0"]),
        ("=eth0,eth1", ["eth0", "eth1"]),
        ("=eth", []),
        ("^eth", ["lo"]),
        ("^=eth0", ["eth1", "lo"]),
        ("^eth,lo", []),
        ("eth1:2", ["eth1"]),
    ],
)
def test_the_syntax_of_nccl_socket_ifname(value, expected):
    assert matching(value, ["eth0", "eth1", "lo"]) == expected


def test_every_backend_of_the_table_is_judged():
    assert {b.name for b in backends(nvidia())} == set(BACKENDS) - {"fake"}


def by_name(items):
    return {item.name: item for item in items}


def test_a_host_with_nvidia_gpus():
    facts = nvidia(mapped=[{**PRELOADED, "how": "Python package"}])
    assert by_name(devices(facts))["cuda"].detail == "8 x GPU X"
    result = by_name(backends(facts))
    assert [name for name, b in result.items() if b.usable] == ["gloo", "nccl"]
    # What is mapped, not what torch was built with.
    assert result["nccl"].detail == "cuda; NCCL 2.32.3"


def test_a_host_with_intel_gpus():
    result = by_name(backends(intel(modules=plain().modules)))
    assert [name for name, b in result.items() if b.usable] == ["gloo", "xccl", "ccl"]
    assert result["ccl"].detail.startswith("cpu, xpu; oneCCL, bindings 2.8.0")


def none_of(facts, kind):
    return {**facts.torch, "devices": {**facts.torch["devices"], kind: []}}


@pytest.mark.parametrize(
    ("facts", "name", "reason", "action"),
    [
        (
            plain(),
            "cuda",
            "has neither CUDA nor ROCm",
            "no action needed: no NVIDIA or AMD GPU here",
        ),
        (plain(gpus=gpus_of("NVIDIA", 1, "580")), "cuda", "has an NVIDIA GPU", "PyPI's has CUDA"),
        (plain(gpus=gpus_of("AMD", 1)), "cuda", "has an AMD GPU", "ROCm build"),
        (nvidia(torch=none_of(nvidia(), "cuda"), gpus=gpus_of()), "cuda", "no NVIDIA GPU", "gres"),
        (
            nvidia(torch=none_of(nvidia(), "cuda"), gpus=gpus_of("NVIDIA", 8, None, False)),
            "cuda",
            "no device files",
            "--gpus all",
        ),
        (
            nvidia({"CUDA_VISIBLE_DEVICES": ""}, torch=none_of(nvidia(), "cuda")),
            "cuda",
            "CUDA_VISIBLE_DEVICES='' hides",
            "unset CUDA_VISIBLE_DEVICES",
        ),
        (
            nvidia(torch={**none_of(nvidia(), "cuda"), "why": {"cuda": "driver is too old"}}),
            "cuda",
            "driver is too old",
            "nvidia-smi",
        ),
        (
            nvidia(
                torch={
                    **nvidia().torch,
                    "devices": {"cuda": [{**gpu("cuda", 0), "error": "no kernel image"}]},
                }
            ),
            "cuda",
            "cuda:0 fails at a sum: no kernel image",
            "nvidia-smi",
        ),
        (plain(), "xpu", "has no XPU", "no action needed: no Intel GPU here"),
        (plain(gpus=gpus_of("Intel", 1, "xe")), "xpu", "has an Intel GPU", "whl/xpu"),
        (intel(torch=none_of(intel(), "xpu")), "xpu", "finds no device", "ZE_AFFINITY_MASK"),
        (
            intel(torch=none_of(intel(), "xpu"), gpus=gpus_of("Intel", 1, "xe", False)),
            "xpu",
            "no device files",
            "--device /dev/dri",
        ),
    ],
)
def test_why_a_device_cannot_be_used(facts, name, reason, action):
    item = by_name(devices(facts))[name]
    assert not item.usable
    assert reason in item.reason
    assert action in item.action


@pytest.mark.parametrize(
    ("facts", "name", "reason", "action"),
    [
        (plain(), "nccl", "built without NCCL", "no action needed"),
        (nvidia(torch=none_of(nvidia(), "cuda")), "nccl", "no device: torch finds no", "smi"),
        (plain(), "xccl", "built without it", "no action needed"),
        (
            intel(torch={**intel().torch, "built": {"gloo": True}}),
            "xccl",
            "has XPU but not xccl",
            "torch 2.8 or newer",
        ),
        (intel(torch=none_of(intel(), "xpu")), "xccl", "no device", "xpu-smi"),
        (nvidia(), "ccl", "is not installed", "up to 2.8"),
        (
            plain(modules={BINDINGS: BAD_CCL}),
            "ccl",
            "libccl.so.1",
            "source oneCCL's setvars.sh, so that the loader finds libccl",
        ),
        (
            plain(modules={BINDINGS: FOREIGN_CCL}, torch=torch_of("2.13.0+cpu")),
            "ccl",
            "Mismatch in kernel signatures",
            "bindings_for_pytorch 2.1.400 is built for torch 2.1",
        ),
        (
            plain(modules={BINDINGS: BAD_CCL}, torch=torch_of("2.13.0+cpu")),
            "ccl",
            "libccl.so.1",
            "bindings_for_pytorch 2.8.0 is built for torch 2.8, not for 2.13",
        ),
        (
            plain(modules={BINDINGS: {"version": "2.8.0", "registers": False, "error": ""}}),
            "ccl",
            "registers no backend",
            "of the same minor version as torch",
        ),
        (plain(torch=torch_of(built=())), "gloo", "built without", "another build"),
        (
            Facts(torch_error="ModuleNotFoundError: No module named 'torch'"),
            "gloo",
            "torch cannot be imported",
            "pip install torch",
        ),
        (Facts(torch_error="OSError: libcudart.so"), "gloo", "libcudart.so", "broken"),
    ],
)
def test_why_a_backend_cannot_be_used(facts, name, reason, action):
    item = by_name(backends(facts))[name]
    assert not item.usable
    assert reason in item.reason
    assert action in item.action


def test_the_libraries_that_the_bindings_load_are_listed():
    """They are imported in a child process, so this process does not map them."""
    module = {"version": "2.8.0", "registers": True, "error": "", "mapped": [LIBCCL]}
    document = report(plain(modules={BINDINGS: module}))
    assert [library["name"] for library in document["libraries"]] == ["libccl.so.1.0"]
    assert document["versions"]["oneCCL"] == "2021.14.0"
    assert by_name(backends(plain(modules={BINDINGS: module})))["ccl"].detail == (
        "cpu; oneCCL 2021.14.0, bindings 2.8.0"
    )


def test_interfaces():
    down = {**RDMA[0], "port": "2", "state": "down"}
    facts = plain(
        interfaces=[
            interface("eth0", families=("ipv4", "ipv6"), speed_mbps=25000),
            interface("eth1", state="down"),
            interface("eth2", families=()),
            interface("tun0", "other", "unknown"),
            interface("lo", "loopback", "unknown"),
        ],
        rdma=[*RDMA, down],
    )
    result = by_name(interfaces(facts))
    assert {n: i.usable for n, i in result.items()} == {
        **{"eth0": True, "eth1": False, "eth2": False, "tun0": True, "lo": True},
        **{"mlx5_0:1": True, "mlx5_0:2": False},
    }
    assert result["eth0"].detail == "ethernet, ipv4, ipv6, 25 Gb/s"
    assert result["eth2"].reason == "ethernet, no address"
    assert "this host alone" in result["lo"].detail
    assert result["mlx5_0:2"].reason == "RDMA, InfiniBand, 400, port is down"


def test_ranks_and_their_devices():
    rows = rank_map(nvidia(launch=Launch("torchrun", 8, 16, 0, 8)))
    assert [(r["rank"], r["local_rank"], r["device"]) for r in rows[:2]] == [
        (8, 0, "cuda:0"),
        (9, 1, "cuda:1"),
    ]
    assert len(rows) == 8
    # Slurm may number across hosts: of the others nothing is known.
    (row,) = rank_map(nvidia(launch=Launch("srun", 0, 16, 0, 8)))
    assert (row["device"], row["pci_id"]) == ("cuda:0", "0000:00:00.0")
    assert [r["device"] for r in rank_map(nvidia(torch=ONE_GPU, ranks=3))] == [
        "cuda:0",
        "cuda",
        "cuda",
    ]
    assert [r["device"] for r in rank_map(plain())] == ["cpu", "cpu"]
    assert rank_map(plain(launch=Launch("none"))) == []


def test_cpu(tmp_path):
    (tmp_path / "cpuinfo").write_text("model name : CPU X\nflags\t: fpu hypervisor\n")
    (tmp_path / "stat").write_text("cpu  60 0 30 800 100 0 0 10 0 0\ncpu0 1\n")
    folder = tmp_path / f"devices/system/cpu/cpu{cpu_facts()['affinity'][0]}/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_governor").write_text("powersave\n")
    result = cpu_facts(str(tmp_path), str(tmp_path))
    assert (result["model"], result["virtual"], result["governor"]) == ("CPU X", True, "powersave")
    assert result["steal"] == 0.1
    empty = cpu_facts("/none", "/none")
    assert [empty[k] for k in ("model", "virtual", "steal", "governor")] == [None] * 4


def test_signs_of_gpus(tmp_path):
    def device(pci_id, vendor, kind):
        folder = tmp_path / "bus/pci/devices" / pci_id
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")

    device("0000:01:00.0", "0x10de", "0x030200")
    device("0000:01:00.1", "0x10de", "0x040300")  # its sound device
    device("0000:02:00.0", "0x1002", "0x120000")
    device("0000:03:00.0", "0x8086", "0x020000")  # a NIC
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
    (tmp_path / "driver/nvidia/version").write_text(f"{version}\nGCC version: gcc 12.2.0\n")
    (tmp_path / "module/xe").mkdir(parents=True)
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri/renderD128").write_text("")
    assert gpu_facts(*[str(tmp_path)] * 3) == {
        "NVIDIA": {"pci": 1, "driver": "580.95.05", "files": False},
        "AMD": {"pci": 1, "driver": None, "files": False},
        "Intel": {"pci": 0, "driver": "xe", "files": True},
    }
    assert gpu_facts("/none", "/none", "/none") == gpus_of()


@pytest.mark.parametrize(
    ("capabilities", "soft", "expected"),
    [
        ("0000000000000000", "8388608", 8388608),
        ("0000000000004000", "8388608", None),  # CAP_IPC_LOCK
        ("0000000000000000", "unlimited", None),
    ],
)
def test_limits(tmp_path, capabilities, soft, expected):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    line = f"Max locked memory         {soft}              unlimited            bytes\n"
    (tmp_path / "self/limits").write_text(line)
    assert limits(str(tmp_path))["memlock_bytes"] == expected
    assert limits("/none", "/none") == {"shm_bytes": 0, "memlock_bytes": None}


def test_a_child_is_no_part_of_the_job(tmp_path, monkeypatch):
    for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK", "SLURM_PROCID", "CCL_ROOT"):
        monkeypatch.setenv(name, "1")
    program = (
        "import os; print([n for n in os.environ if n.endswith(('RANK', 'PROCID', 'CCL_ROOT'))])"
    )
    assert gathering.run([sys.executable, "-c", program], 20 * busy()) == (0, "['CCL_ROOT']\n", "")
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert gathering.run(sleep, 0.1) == (-1, "", "no answer within 0.1 s")
    assert gathering.run([str(tmp_path / "absent")], 1)[0] == -1


def test_modules_are_imported_by_a_child(tmp_path, monkeypatch):
    for name in (IPEX, BINDINGS):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not in this process')")
    monkeypatch.syspath_prepend(tmp_path)
    found_there = {"version": "2.8.0+cpu", "registers": True, "error": "", "mapped": [LIBCCL]}
    good = json.dumps(found_there)
    answers = {
        IPEX: (1, "noise\n", "Traceback ...\nAttributeError: module 'os' has no attribute\n\n"),
        BINDINGS: (0, f"[W] noise\n{good}\n", "more noise"),
    }
    asked = []

    def run(command, timeout_s):
        asked.append(timeout_s)
        return answers[next(name for name in answers if name in command[-1])]

    result = module_facts(run)
    assert result[BINDINGS] == found_there
    assert result[IPEX]["error"] == "AttributeError: module 'os' has no attribute"
    assert all(limit > 20 for limit in asked)
    answers[IPEX] = (-1, "", "no answer within 60 s")
    assert module_facts(run)[IPEX]["error"] == "no answer within 60 s"
    answers[IPEX] = (-11, "", "")
    assert module_facts(run)[IPEX]["error"] == "exit code -11"


def test_a_contradiction_of_launchers_is_reported():
    launch, error = launch_facts({"RANK": "1"})
    assert (launch.launcher, "RANK without WORLD_SIZE" in error) == ("ambiguous", True)
    assert launch_facts({}) == (Launch("none"), "")


def printed(facts):
    out = io.StringIO()
    show_doctor(report(facts), file=out)
    return out.getvalue()


def test_what_is_piped():
    facts = nvidia({"NCCL_SOCKET_IFNAME": "ib"}, ranks=2, interfaces=[interface("eth0")], rdma=RDMA)
    text = printed(facts)
    answer = (
        "usable here: gloo, nccl; 1 error: NCCL_SOCKET_IFNAME=ib: it matches none with an address"
    )
    assert text.startswith(f"{answer}\nNext: Interfaces here: eth0. ")
    assert "\n\nVersions\n  torchcoll " in text
    assert "\n  yes  cuda  8 x GPU X\n" in text
    assert (
        "\n  no   ccl   oneccl_bindings_for_pytorch is not installed\n             -> use" in text
    )
    assert (
        "\n  2 of 2 ranks are on this host, started by torchrun\n"
        "  rank  local  device  PCI id        NUMA  nearest NIC           name\n"
        "     0      0  cuda:0  0000:00:00.0     0  mlx5_0 (PCIe switch)  GPU X\n"
    ) in text
    assert text.endswith(
        "\nHarmful settings: 1 found\n"
        "  error    NCCL_SOCKET_IFNAME=ib: it matches none with an address\n"
        "           NCCL ends with an error when it connects.\n"
        "           -> Interfaces here: eth0. A prefix matches many, '=' exactly one, "
        "'^' excludes.\n"
    )
    assert "\x1b" not in text
    assert text.isascii()


def test_no_backend():
    text = printed(Facts(torch_error="ModuleNotFoundError: No module named 'torch'"))
    assert text.startswith("no backend can be used here; no harmful setting found\n\nVersions\n")
    assert "-> pip install torch\n" in text
    assert text.endswith("\nHarmful settings: none found\n")


def doctor(*arguments, **environ):
    return subprocess.run(
        [sys.executable, "-m", "torchcoll", "doctor", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environ},
    )


def forked(jobs, folder, *arguments, **environ):
    """The same in a forked process that has already imported torch, which is much faster."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    job = jobs(
        folder,
        lambda: sys.exit(main(["doctor", *arguments])),
        1,
        environment={**dict.fromkeys(names), **environ},
    )
    return job.wait()[0]


def test_json_of_this_process(jobs, tmp_path):
    done = forked(jobs, tmp_path, "--json", NCCL_DEBG="INFO", GLOO_SOCKET_IFNAME="no0")
    assert (done.code, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert list(result) == [
        "schema",
        "torchcoll",
        "usable",
        "versions",
        "launch",
        "devices",
        "backends",
        "interfaces",
        "ranks",
        "libraries",
        "findings",
        "answer",
    ]
    assert (result["schema"], result["usable"]) == ("torchcoll-doctor/1", True)
    assert result["versions"]["torch"] == torch.__version__
    for section in ("devices", "backends", "interfaces"):
        for item in result[section]:
            assert list(item) == ["name", "usable", "detail", "reason", "action"]
            assert item["detail"] if item["usable"] else item["reason"] and item["action"]
    assert {"gloo", "nccl", "xccl", "ccl"} <= {item["name"] for item in result["backends"]}
    assert any(m["name"] == "libtorch_cpu.so" for m in result["libraries"])
    names = [finding["name"] for finding in result["findings"]]
    assert {"interface_name", "unknown_variable"} <= set(names)


def test_without_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    done = doctor(PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (4, "")
    assert done.stdout.startswith("no backend can be used here; ")


def test_other_ranks_print_nothing():
    done = doctor(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

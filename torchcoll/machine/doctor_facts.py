"""Gathers the facts for ``torchcoll doctor``. doctor.py and traps.py judge them. No function
raises: a fact that cannot be read is None. Tests replace /proc and /sys.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

from torchcoll.core.backends import BACKENDS, NCCL, installed_version
from torchcoll.core.errors import UsageError
from torchcoll.machine import placement
from torchcoll.machine.launcher import BY_HAND, Launch, detect
from torchcoll.machine.placement import text_in
from torchcoll.machine.provenance import mapped_libraries

# The modules that backends need in addition to torch.
BINDINGS = tuple(entry.module for entry in BACKENDS.values() if entry.module)
IPEX = "intel_extension_for_pytorch"
_IMPORT_LIMIT_S = 60  # IPEX took 6 to 18 s


def torch_facts(torch: Any, launch: Launch) -> dict[str, Any]:
    """Facts about torch: version; cuda, hip and xpu that it was built with, or None; built (backend
    -> whether it has it); devices and why there is none, by kind; threads; NCCL's version.
    """
    dist = torch.distributed
    try:
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    except Exception:  # AttributeError on a CPU build, RuntimeError without the library
        nccl = None
    facts: dict[str, Any] = {
        "version": str(torch.__version__),
        **{name: getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")},
        "built": {},
        "devices": {},
        "why": {},
        "threads": torch.get_num_threads(),
        NCCL: nccl,
    }
    for name in (e.name for e in BACKENDS.values() if e.communicates and not e.module):
        ask = getattr(dist, f"is_{name}_available", None)
        facts["built"][name] = bool(dist.is_available() and ask and ask())
    for kind in ("cuda", "xpu"):
        facts["devices"][kind], facts["why"][kind] = _devices(torch, kind, launch)
    return facts


def _devices(torch: Any, kind: str, launch: Launch) -> tuple[list[dict[str, Any]], str]:
    """(the devices of one kind, torch's error or warning about them)."""
    module = getattr(torch, kind, None)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            count = module.device_count() if module and module.is_available() else 0
        except Exception as error:
            return [], _first_line(error)
        # If the driver is too old torch returns False and only a warning tells why.
    text = next((_first_line(w.message) for w in warned), "")
    devices = []
    for index in range(count):
        facts = placement.device_facts(torch, f"{kind}:{index}")
        pci = placement.pci_facts(facts["pci_id"]) if facts.get("pci_id") else {}
        devices.append({"device": f"{kind}:{index}", **facts, **pci})
    if devices:
        local_device = rank_device(launch, devices)
        # Compute a sum on it, because a device in the list may not work.
        try:
            right = torch.ones(8, device=local_device["device"]).sum().item() == 8
            local_device["error"] = "" if right else "1 + 1 + ... is not right there"
        except Exception as error:
            local_device["error"] = _first_line(error)
    return devices, text


def rank_device(launch: Launch, devices: list[dict[str, Any]]) -> dict[str, Any]:
    """The device of this rank by its local rank; the only device if no other one is visible."""
    return devices[launch.local_rank % len(devices)]


def module_facts(run: Callable[..., tuple[int, str, str]]) -> dict[str, dict[str, Any]]:
    """Facts about Intel's extensions: version, error, registers (its backend), mapped. Each is
    imported in a child process: that takes seconds, prints, and may fail.
    """
    modules = {}
    for name in (IPEX, *BINDINGS):
        try:
            if find_spec(name) is None:
                continue
        except (ImportError, ValueError):
            continue
        modules[name] = _imported(name, run)
    return modules


def _imported(name: str, run: Callable[..., tuple[int, str, str]]) -> dict[str, Any]:
    names = [entry.name for entry in BACKENDS.values() if entry.module == name]
    program = (
        f"import json, sys\nsys.path = {sys.path}\nimport torch, {name} as module\n"
        "from torchcoll.machine.provenance import mapped_libraries\n"
        f"registers = any(map(torch.distributed.is_backend_available, {names}))\n"
        "version = getattr(module, '__version__', None)\n"
        "mapped = mapped_libraries(torch)\n"
        "facts = {'version': version, 'registers': registers, 'error': '', 'mapped': mapped}\n"
        "print('\\n' + json.dumps(facts))\n"
    )
    code, out, err = run([sys.executable, "-c", program], _IMPORT_LIMIT_S)
    try:
        return dict(json.loads(out.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        error = next(reversed(text_lines(err)), f"exit code {code}")
        return {"version": installed_version(name), "registers": False, "error": error}


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


# (arguments, time limit in seconds) -> (exit code, stdout, stderr)
Run = Callable[[list[str], float], tuple[int, str, str]]


@dataclass(frozen=True)
class Facts:
    """All facts. The function that gathers a dict documents its keys."""

    environ: Mapping[str, str] = field(default_factory=dict)
    launch: Launch = field(default_factory=lambda: Launch("none"))
    launch_error: str = ""
    torch: dict[str, Any] = field(default_factory=dict)  # empty if it cannot be imported
    torch_error: str = ""
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)  # only what is installed
    cpu: dict[str, Any] = field(default_factory=dict)
    gpus: dict[str, dict[str, Any]] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    interfaces: list[dict[str, Any]] = field(default_factory=list)
    rdma: list[dict[str, Any]] = field(default_factory=list)
    torchrun: str | None = None  # its path
    mapped: list[dict[str, Any]] = field(default_factory=list)

    @property
    def cores(self) -> int:
        """How many cores this process may use."""
        return len(self.cpu.get("affinity", ())) or 1

    @property
    def affinities(self) -> list[set[int]]:
        """The CPUs of each rank of this host; empty if unknown. torchrun pins no ranks."""
        local_cpus, launch = set(self.cpu.get("affinity", ())), self.launch
        others = local_cpus if launch.launcher in ("torchrun", BY_HAND) else set[int]()
        ranks = range(launch.local_ranks)
        return [local_cpus if rank == launch.local_rank else others for rank in ranks]

    @property
    def host_cores(self) -> int:
        """How many cores the ranks of this host may use together."""
        return len(set().union(*self.affinities)) or 1

    def devices(self, kind: str) -> list[dict[str, Any]]:
        return list(self.torch.get("devices", {}).get(kind, ()))

    @property
    def libraries(self) -> list[dict[str, Any]]:
        """The communication libraries of this process, and those that the bindings load."""
        of_modules = [
            library for module in self.modules.values() for library in module.get("mapped", ())
        ]
        return list({library["path"]: library for library in [*of_modules, *self.mapped]}.values())

    @property
    def nccl_version(self) -> str:
        """Version of the NCCL in this process, or else the one that torch reports; '' without."""
        libraries = [m for m in self.mapped if m["name"].startswith(("libnccl.", "librccl."))]
        return next((m["version"] for m in libraries if m["version"]), self.torch.get(NCCL) or "")

    def built(self, backend: str) -> bool:
        return bool(self.torch.get("built", {}).get(backend))


def gather(launch: Launch, launch_error: str = "") -> Facts:
    """All facts of this process and its host."""
    torch, torch_error = import_torch()
    about: dict[str, Any] = {}
    if torch:
        try:
            about = torch_facts(torch, launch)
        except Exception as error:  # a build that lacks an attribute that other builds have
            torch_error = f"it does not answer: {type(error).__name__}: {error}"
    return Facts(
        environ=dict(os.environ),
        launch=launch,
        launch_error=launch_error,
        torch=about,
        torch_error=torch_error,
        modules=module_facts(run),
        cpu=cpu_facts(),
        gpus=gpu_facts(),
        limits=limits(),
        interfaces=placement.network_interfaces(),
        rdma=placement.rdma_devices(),
        torchrun=which("torchrun"),
        mapped=mapped_libraries(torch),
    )


def import_torch() -> tuple[Any, str]:
    """(torch, ''), or (None, why it cannot be imported)."""
    try:
        import torch
    except Exception as error:  # a broken installation raises anything: OSError, AttributeError
        return None, f"{type(error).__name__}: {error}"
    return torch, ""


def launch_facts(environ: Mapping[str, str] | None = None) -> tuple[Launch, str]:
    """(this process's launch, what is wrong with its variables)."""
    try:
        return detect(environ), ""
    except UsageError as error:
        return Launch("ambiguous"), str(error)


# Variables of launchers. A child process with them would join the job: under mpirun, importing
# oneCCL may call MPI_Init.
_PREFIXES = """
    PMI_ PMIX_ MPI_ OMPI_ PALS_ SLURM_ HYDI_ I_MPI_HYDRA
    TORCHELASTIC_ RANK WORLD_SIZE LOCAL_ MASTER_
"""
_OF_LAUNCHERS = tuple(_PREFIXES.split())


def run(command: list[str], timeout_s: float) -> tuple[int, str, str]:
    """Run a command without the variables of the job: (exit code, stdout, stderr)."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(_OF_LAUNCHERS)}
    how: dict[str, Any] = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(command, timeout=timeout_s, env=env, errors="replace", **how)
    except subprocess.TimeoutExpired:
        return -1, "", f"no answer within {timeout_s:g} s"
    except OSError as error:
        return -1, "", str(error)
    return done.returncode, done.stdout, done.stderr


def text_lines(text: str) -> list[str]:
    """The lines of a text that are not blank, stripped."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def cpu_facts(proc: str = "/proc", sysfs: str = "/sys") -> dict[str, Any]:
    """Facts about the CPU: model, affinity, numa_nodes, virtual, steal (the share of the busy time
    since boot that the hypervisor gave to others), governor and its driver.
    """
    info = text_in(f"{proc}/cpuinfo") or ""
    model = re.search(r"^model name\s*:\s*(.*)$", info, re.M)
    flags = re.search(r"^flags\s*:\s*(.*)$", info, re.M)
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    steal = None
    # proc(5): user nice system idle iowait irq softirq steal, in ticks.
    fields = (text_in(f"{proc}/stat") or "").split("\n", 1)[0].split()
    if len(fields) >= 9 and fields[0] == "cpu":
        ticks = [int(field) for field in fields[1:9]]
        busy = sum(ticks) - ticks[3] - ticks[4]
        steal = ticks[7] / busy if busy else 0.0
    cpufreq = Path(sysfs, f"devices/system/cpu/cpu{min(affinity, default=0)}/cpufreq")
    return {
        "model": model[1] if model else None,
        "affinity": sorted(affinity) or list(range(os.cpu_count() or 1)),
        "numa_nodes": placement.numa_nodes(affinity, sysfs),
        "virtual": "hypervisor" in flags[1].split() if flags else None,
        "steal": steal,
        "governor": text_in(cpufreq / "scaling_governor"),
        "driver": text_in(cpufreq / "scaling_driver"),
    }


_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
# VGA, 3D and other display controllers; processing accelerators (AMD Instinct).
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")


def gpu_facts(proc: str = "/proc", sysfs: str = "/sys", dev: str = "/dev") -> dict[str, Any]:
    """Signs of GPUs that do not need torch: vendor -> pci (number of GPUs on the bus), driver (its
    version), files (whether /dev has the files that the vendor's runtime opens).
    """
    empty = {"pci": 0, "driver": None, "files": False}
    vendors: dict[str, dict[str, Any]] = {name: {**empty} for name in ("NVIDIA", "AMD", "Intel")}
    for device in Path(sysfs, "bus/pci/devices").glob("*"):
        vendor = _VENDORS.get(text_in(device / "vendor") or "")
        if vendor and (text_in(device / "class") or "").startswith(_GPU_CLASSES):
            vendors[vendor]["pci"] += 1
    version = text_in(f"{proc}/driver/nvidia/version") or ""
    number = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", version)
    vendors["NVIDIA"]["driver"] = number[0] if number else None
    modules = {"AMD": ("amdgpu",), "Intel": ("xe", "i915")}
    for vendor, names in modules.items():
        loaded = [n for n in names if Path(sysfs, "module", n).exists()]
        if loaded:
            version = text_in(Path(sysfs, "module", loaded[0], "version")) or ""
            vendors[vendor]["driver"] = f"{loaded[0]} {version}".strip()
    vendors["NVIDIA"]["files"] = Path(dev, "nvidiactl").exists() or Path(dev, "nvidia0").exists()
    vendors["AMD"]["files"] = Path(dev, "kfd").exists()
    vendors["Intel"]["files"] = any(Path(dev, "dri").glob("renderD*"))
    return vendors


_CAP_IPC_LOCK = 14  # linux/capability.h: the limit does not apply


def limits(proc: str = "/proc", shm: str = "/dev/shm") -> dict[str, Any]:
    """shm_bytes (size of /dev/shm; 0 if there is none) and memlock_bytes (None if unlimited)."""
    try:
        status = os.statvfs(shm)
        shm_bytes = status.f_blocks * status.f_frsize
    except (OSError, AttributeError):
        shm_bytes = 0
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)$", text_in(f"{proc}/self/status") or "", re.M)
    may_lock = bool(capabilities and int(capabilities[1], 16) >> _CAP_IPC_LOCK & 1)
    match = re.search(r"^Max locked memory\s+(\S+)", text_in(f"{proc}/self/limits") or "", re.M)
    limited = match is not None and match[1].isdigit() and not may_lock
    memlock = int(match[1]) if match and limited else None
    return {"shm_bytes": shm_bytes, "memlock_bytes": memlock}

"""The checks of ``torchcoll doctor``: each is a function of the facts that yields its findings.

They find traps of the host, the container, the installation, misspelt names and settings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from torchcoll.core.backends import BACKENDS, NCCL, ONECCL, VISIBLE_GPUS, minor_version, of_family
from torchcoll.core.shared_cores import oversubscribed_hosts
from torchcoll.core.units import counted, format_bytes
from torchcoll.libraries.known_variables import unknown_variables
from torchcoll.libraries.nccl import variables as nccl
from torchcoll.libraries.oneccl import variables as oneccl
from torchcoll.machine.doctor_facts import Facts, rank_device
from torchcoll.machine.placement import interface_problem, matching
from torchcoll.machine.setting_traps import Finding

_NCCL, _ONECCL = of_family(NCCL), of_family(ONECCL)

SEVERITIES = ("error", "warning", "note")
_GIB = 1 << 30


def launcher_variables(facts: Facts) -> Iterator[Finding]:
    # Every run of torchcoll would end with this error.
    if facts.launch_error:
        yield Finding(
            "launcher_variables",
            "error",
            facts.launch_error,
            "Every rank would end with this.",
            "See above; env | grep -E 'RANK|SIZE|PMI|SLURM|OMPI' shows them.",
        )


def foreign_torchrun(facts: Facts) -> Iterator[Finding]:
    # Module systems and partly active environments may set PATH without changing python.
    path = facts.torchrun
    if path and Path(path).parent != Path(sys.executable).parent and facts.torch:
        yield Finding(
            "foreign_torchrun",
            "warning",
            f"torchrun on PATH is {path}, not this Python's",
            "Ranks would run with another torch and another torchcoll, or find none.",
            "Start with: python -m torch.distributed.run",
        )


def torch_without_gpu(facts: Facts) -> Iterator[Finding]:
    # PyPI's wheels for Windows and macOS, and +cpu wheels, have no CUDA. XPU wheels are on another
    # index.
    if not facts.torch:
        return
    torch, gpus = facts.torch, facts.gpus
    present = {
        "CUDA": bool(gpus["NVIDIA"]["driver"] or gpus["NVIDIA"]["files"]) if gpus else False,
        "ROCm": bool(gpus["AMD"]["files"]) if gpus else False,
        "XPU": bool(gpus["Intel"]["files"] and gpus["Intel"]["pci"]) if gpus else False,
    }
    has = {"CUDA": torch.get("cuda"), "ROCm": torch.get("hip"), "XPU": torch.get("xpu")}
    if any(present[name] and has[name] for name in present):
        return
    for name in present:
        if present[name]:
            yield Finding(
                "torch_without_gpu",
                "warning",
                f"this torch {torch['version']} has no {name}, the host has a GPU for it",
                "Only the CPU is measured.",
                f"Install a build with {name} (pytorch.org's selector).",
            )


def more_ranks_than_devices(facts: Facts) -> Iterator[Finding]:
    # NCCL ends with 'Duplicate GPU detected'.
    count, ranks = len(facts.devices("cuda")), facts.launch.local_ranks
    shared = {"NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE"} & set(facts.environ)
    if not 0 < count < ranks or shared:
        return
    # torchrun shows all ranks the same devices; other launchers may give each rank its own.
    masked = any(facts.environ.get(name) for name in (*VISIBLE_GPUS, "SLURM_STEP_GPUS"))
    several = masked or facts.gpus.get("NVIDIA", {}).get("pci", 0) >= ranks
    if count == 1 and several and facts.launch.launcher != "torchrun":
        return
    yield Finding(
        "more_ranks_than_devices",
        "error",
        f"{ranks} ranks on this host, {counted(count, 'GPU')}",
        "NCCL refuses two ranks on one GPU.",
        f"Start {count} per host, or rehearse on one GPU: --rehearse.",
    )


def more_ranks_than_cores(facts: Facts) -> Iterator[Finding]:
    # The same check as in a run. A launcher that pins gives each rank its own cores.
    members = [{"affinity": ",".join(map(str, sorted(cpus)))} for cpus in facts.affinities]
    for _, text in oversubscribed_hosts(members):
        yield Finding(
            "more_ranks_than_cores",
            "warning",
            f"{text.partition(':')[0]} on this host",
            "Times include waiting for a core: medians of milliseconds, not of the network.",
            "Start fewer ranks, or widen the launcher's binding (--cpus-per-task, --bind-to none).",
        )


_STOLEN = 0.02  # of the busy time


def stolen_time(facts: Facts) -> Iterator[Finding]:
    steal = facts.cpu.get("steal") or 0.0
    if steal > _STOLEN:
        yield Finding(
            "stolen_time",
            "warning",
            f"the hypervisor gave {steal:.0%} of the CPU's busy time since boot to others",
            "Calls stop for a slice of milliseconds; tails and maxima are not the network's.",
            "Read medians, run more runs, or use a host of your own.",
        )


def governor(facts: Facts) -> Iterator[Finding]:
    # kernel: Documentation/admin-guide/pm/{cpufreq,intel_pstate}.rst. With intel_pstate and
    # amd-pstate-epp 'powersave' is the usual governor that follows the load.
    if facts.cpu.get("governor") != "powersave":
        return
    follows = str(facts.cpu.get("driver")).startswith(("intel_pstate", "amd-pstate-epp", "amd_ps"))
    yield Finding(
        "cpu_governor",
        "note" if follows else "warning",
        f"CPU frequency governor is powersave ({facts.cpu.get('driver')})",
        "The clock rises only under load: small messages are slow until it has."
        if follows
        else "The CPU stays at its lowest frequency.",
        "cpupower frequency-set -g performance (root).",
    )


def other_numa_node(facts: Facts) -> Iterator[Finding]:
    devices = facts.devices("cuda") or facts.devices("xpu")
    nodes = facts.cpu.get("numa_nodes") or []
    if not devices:
        return
    device = rank_device(facts.launch, devices)
    node = device.get("numa_node")
    if node is not None and nodes and node not in nodes:
        yield Finding(
            "other_numa_node",
            "warning",
            f"this rank may run on NUMA node {', '.join(map(str, nodes))}, "
            f"its {device['device']} sits on node {node}",
            "Each run and each copy crosses the sockets.",
            "Bind ranks to their GPU's node (srun --gpu-bind=closest, numactl, --cpu-bind list).",
        )


def small_shm(facts: Facts) -> Iterator[Finding]:
    # NCCL troubleshooting, 'Shared memory': --shm-size=1g. Docker gives 64 MiB.
    size_bytes = facts.limits.get("shm_bytes")
    if size_bytes is not None and size_bytes < _GIB:
        yield Finding(
            "small_shm",
            "warning",
            f"/dev/shm has {format_bytes(size_bytes)}" if size_bytes else "there is no /dev/shm",
            "NCCL, oneCCL and MPI exchange through it within a host, and fail to initialise.",
            "docker run --shm-size=1g or --ipc=host; Kubernetes: an emptyDir with medium Memory.",
        )


def memlock(facts: Facts) -> Iterator[Finding]:
    # NCCL troubleshooting: --ulimit memlock=-1. RDMA pins the buffers that it sends.
    size_bytes = facts.limits.get("memlock_bytes")
    if facts.rdma and size_bytes is not None and size_bytes < _GIB:
        yield Finding(
            "memlock",
            "error",
            f"locked memory is limited to {format_bytes(size_bytes)} next to "
            f"{facts.rdma[0]['name']}",
            "RDMA must pin its buffers: 'ibv_reg_mr failed', 'Cannot allocate memory'.",
            "ulimit -l unlimited; docker --ulimit memlock=-1; Slurm: LimitMEMLOCK of slurmd.",
        )


def bindings_version(facts: Facts) -> Iterator[Finding]:
    # Bindings that cannot be imported are reported as the backend's reason. A build from the source
    # of bindings 2.8 passed all tests with torch 2.13.
    for entry in BACKENDS.values():
        module = facts.modules.get(entry.module or "")
        if not module or not module["registers"] or not module["version"]:
            continue
        if minor_version(module["version"]) != minor_version(facts.torch["version"]):
            yield Finding(
                "bindings_version",
                "note",
                f"{entry.module} {module['version']} with torch {facts.torch['version']}",
                "Each release is made for one minor version of torch; with another its calls may "
                "fail or crash, unless it was built from source for this torch.",
                "Take the bindings of this torch, or build them for it.",
                (entry.name,),
            )


HOST_CHECKS = (
    *(launcher_variables, foreign_torchrun, torch_without_gpu, more_ranks_than_devices),
    *(more_ranks_than_cores, stolen_time, governor, other_numa_node, small_shm, memlock),
    bindings_version,
)


# Variable -> (library that reads it, whether as a pattern (machine/placement.py), backends).
_READERS: dict[str, tuple[str, bool, tuple[str, ...]]] = {
    **{
        e.interfaces: ("NCCL" if e.family else e.name, e.family == NCCL, (e.name,))
        for e in BACKENDS.values()
        if e.interfaces
    },
    "NCCL_OOB_NET_IFNAME": ("NCCL", True, _NCCL),
    "FI_TCP_IFACE": ("libfabric", False, _ONECCL),
    "CCL_KVS_IFACE": ("oneCCL", False, _ONECCL),
}


def interface_names(facts: Facts) -> Iterator[Finding]:
    addressed = {interface["name"]: bool(interface["families"]) for interface in facts.interfaces}
    for variable, (reader, pattern, backends) in _READERS.items():
        value = facts.environ.get(variable, "")
        problem = interface_problem(pattern, value, addressed) if value else ""
        if problem and addressed:  # without sysfs there are none, and no value can be judged
            names = ", ".join(name for name, has_address in addressed.items() if has_address)
            syntax = " A prefix matches many, '=' exactly one, '^' excludes."
            yield Finding(
                "interface_name",
                "error",
                f"{variable}={value}: {problem}",
                f"{reader} ends with an error when it connects.",
                f"Interfaces here: {names}.{syntax if pattern else ''}",
                backends,
            )


def rdma_names(facts: Facts) -> Iterator[Finding]:
    value = facts.environ.get("NCCL_IB_HCA", "")
    names = list(dict.fromkeys(port["name"] for port in facts.rdma))
    if value and not matching(value, names) and facts.interfaces:
        devices = ", ".join(names) or "none"
        yield Finding(
            "interface_name",
            "warning",
            f"NCCL_IB_HCA={value} matches no RDMA device",
            "NCCL falls back to sockets in silence, or fails.",
            f"Devices here: {devices}. A prefix matches many, '=' exactly one.",
            _NCCL,
        )


def unknown_names(facts: Facts) -> Iterator[Finding]:
    for name, near in unknown_variables(facts.environ):
        library = "oneCCL" if name.upper().startswith("CCL_") else "NCCL"
        versions = oneccl.VERSIONS if library == "oneCCL" else nccl.VERSIONS
        yield Finding(
            "unknown_variable",
            "note",
            f"{name} is no variable of {library} that torchcoll knows",
            f"A name that is not read has no effect (looked for in {', '.join(versions)}).",
            f"Check the spelling: did you mean {near}?" if near else "Check the spelling.",
        )


def names_of_other_versions(facts: Facts) -> Iterator[Finding]:
    version = facts.nccl_version
    # RCCL has NCCL's version numbers, but not all of its variables.
    if not version or facts.torch.get("hip"):
        return
    for name in sorted(facts.environ):
        if name.startswith("NCCL_") and nccl.reads(name, version) is False:
            instead = nccl.REMOVED.get(name)
            yield Finding(
                "variable_of_another_version",
                "note",
                f"{name} is set, and NCCL {version} does not read it",
                "It has no effect.",
                f"{instead[:1].upper()}{instead[1:]}." if instead else "Unset it.",
            )


NAME_CHECKS = (interface_names, rdma_names, unknown_names, names_of_other_versions)


def omp_num_threads(facts: Facts) -> Iterator[Finding]:
    # torchrun sets 1 for this reason; other launchers set nothing.
    ranks, threads = facts.launch.local_ranks, facts.torch.get("threads") or 1
    cores = facts.host_cores
    several = ranks > 1 and threads > 1  # a launcher that binds to one core leaves one thread
    if several and not facts.environ.get("OMP_NUM_THREADS") and ranks * threads > cores:
        yield Finding(
            "omp_num_threads",
            "warning",
            f"OMP_NUM_THREADS is not set: {ranks} ranks x {threads} threads on {cores} cores",
            "Threads of torch and of communication take each other's cores.",
            f"export OMP_NUM_THREADS={max(1, cores // ranks)}",
        )


def preloaded(facts: Facts) -> Iterator[Finding]:
    for library in facts.mapped:
        if library["how"] == "LD_PRELOAD":
            yield Finding(
                "preloaded",
                "note",
                f"LD_PRELOAD puts {library['path']} ({library['version']}) in front",
                "Every number belongs to it and not to the library that torch brought.",
                "Unset LD_PRELOAD if that was not meant.",
            )


VARIABLE_CHECKS = (omp_num_threads, preloaded)

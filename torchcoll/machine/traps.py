"""The checks of ``torchcoll doctor``: each is a function of the facts that yields its findings.

They find traps of the host, the container, the installation, misspelt names and settings. Severity,
effect and remedy of each finding stand in traps.toml.
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
from torchcoll.machine.setting_traps import Finding, trap_table

_NCCL, _ONECCL = of_family(NCCL), of_family(ONECCL)

SEVERITIES = ("error", "warning", "note")
_GIB = 1 << 30


def _found(key: str, what: str, backends: tuple[str, ...] = (), **fields: object) -> Finding:
    """The finding of an entry of traps.toml. fields: of its texts."""
    entry = trap_table()["found"][key]
    why, action = (entry[name].format_map(fields) for name in ("why", "action"))
    if "family" in entry:
        backends = of_family(entry["family"])
    return Finding(entry.get("name", key), entry["severity"], what, why, action, backends)


def launcher_variables(facts: Facts) -> Iterator[Finding]:
    # Every run of torchcoll would end with this error.
    if facts.launch_error:
        yield _found("launcher_variables", facts.launch_error)


def foreign_torchrun(facts: Facts) -> Iterator[Finding]:
    # Module systems and partly active environments may set PATH without changing python.
    path = facts.torchrun
    if path and Path(path).parent != Path(sys.executable).parent and facts.torch:
        yield _found("foreign_torchrun", f"torchrun on PATH is {path}, not this Python's")


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
            what = f"this torch {torch['version']} has no {name}, the host has a GPU for it"
            yield _found("torch_without_gpu", what, name=name)


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
    what = f"{ranks} ranks on this host, {counted(count, 'GPU')}"
    yield _found("more_ranks_than_devices", what, count=count)


def more_ranks_than_cores(facts: Facts) -> Iterator[Finding]:
    # The same check as in a run. A launcher that pins gives each rank its own cores.
    members = [{"affinity": ",".join(map(str, sorted(cpus)))} for cpus in facts.affinities]
    for _, text in oversubscribed_hosts(members):
        yield _found("more_ranks_than_cores", f"{text.partition(':')[0]} on this host")


_STOLEN = 0.02  # of the busy time


def stolen_time(facts: Facts) -> Iterator[Finding]:
    steal = facts.cpu.get("steal") or 0.0
    if steal > _STOLEN:
        what = f"the hypervisor gave {steal:.0%} of the CPU's busy time since boot to others"
        yield _found("stolen_time", what)


def governor(facts: Facts) -> Iterator[Finding]:
    # kernel: Documentation/admin-guide/pm/{cpufreq,intel_pstate}.rst.
    if facts.cpu.get("governor") != "powersave":
        return
    follows = str(facts.cpu.get("driver")).startswith(("intel_pstate", "amd-pstate-epp", "amd_ps"))
    what = f"CPU frequency governor is powersave ({facts.cpu.get('driver')})"
    yield _found("governor_that_follows" if follows else "cpu_governor", what)


def other_numa_node(facts: Facts) -> Iterator[Finding]:
    devices = facts.devices("cuda") or facts.devices("xpu")
    nodes = facts.cpu.get("numa_nodes") or []
    if not devices:
        return
    device = rank_device(facts.launch, devices)
    node = device.get("numa_node")
    if node is not None and nodes and node not in nodes:
        what = f"this rank may run on NUMA node {', '.join(map(str, nodes))}, "
        what += f"its {device['device']} sits on node {node}"
        yield _found("other_numa_node", what)


def small_shm(facts: Facts) -> Iterator[Finding]:
    size_bytes = facts.limits.get("shm_bytes")
    if size_bytes is not None and size_bytes < _GIB:
        there = f"/dev/shm has {format_bytes(size_bytes)}"
        yield _found("small_shm", there if size_bytes else "there is no /dev/shm")


def memlock(facts: Facts) -> Iterator[Finding]:
    size_bytes = facts.limits.get("memlock_bytes")
    if facts.rdma and size_bytes is not None and size_bytes < _GIB:
        limit, port = format_bytes(size_bytes), facts.rdma[0]["name"]
        yield _found("memlock", f"locked memory is limited to {limit} next to {port}")


def bindings_version(facts: Facts) -> Iterator[Finding]:
    # Bindings that cannot be imported are reported as the backend's reason. A build from the source
    # of bindings 2.8 passed all tests with torch 2.13.
    for entry in BACKENDS.values():
        module = facts.modules.get(entry.module or "")
        if not module or not module["registers"] or not module["version"]:
            continue
        if minor_version(module["version"]) != minor_version(facts.torch["version"]):
            what = f"{entry.module} {module['version']} with torch {facts.torch['version']}"
            yield _found("bindings_version", what, (entry.name,))


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
            yield _found(
                "interface_name",
                f"{variable}={value}: {problem}",
                backends,
                reader=reader,
                names=names,
                syntax=syntax if pattern else "",
            )


def rdma_names(facts: Facts) -> Iterator[Finding]:
    value = facts.environ.get("NCCL_IB_HCA", "")
    names = list(dict.fromkeys(port["name"] for port in facts.rdma))
    if value and not matching(value, names) and facts.interfaces:
        devices = ", ".join(names) or "none"
        yield _found("rdma_name", f"NCCL_IB_HCA={value} matches no RDMA device", devices=devices)


def unknown_names(facts: Facts) -> Iterator[Finding]:
    for name, near in unknown_variables(facts.environ):
        library = "oneCCL" if name.upper().startswith("CCL_") else "NCCL"
        versions = oneccl.VERSIONS if library == "oneCCL" else nccl.VERSIONS
        yield _found(
            "unknown_variable",
            f"{name} is no variable of {library} that torchcoll knows",
            versions=", ".join(versions),
            meant=f": did you mean {near}?" if near else ".",
        )


def names_of_other_versions(facts: Facts) -> Iterator[Finding]:
    version = facts.nccl_version
    # RCCL has NCCL's version numbers, but not all of its variables.
    if not version or facts.torch.get("hip"):
        return
    for name in sorted(facts.environ):
        if name.startswith("NCCL_") and nccl.reads(name, version) is False:
            instead = nccl.REMOVED.get(name)
            action = f"{instead[:1].upper()}{instead[1:]}." if instead else "Unset it."
            what = f"{name} is set, and NCCL {version} does not read it"
            yield _found("variable_of_another_version", what, action=action)


NAME_CHECKS = (interface_names, rdma_names, unknown_names, names_of_other_versions)


def omp_num_threads(facts: Facts) -> Iterator[Finding]:
    # torchrun sets 1 for this reason; other launchers set nothing.
    ranks, threads = facts.launch.local_ranks, facts.torch.get("threads") or 1
    cores = facts.host_cores
    several = ranks > 1 and threads > 1  # a launcher that binds to one core leaves one thread
    if several and not facts.environ.get("OMP_NUM_THREADS") and ranks * threads > cores:
        what = f"OMP_NUM_THREADS is not set: {ranks} ranks x {threads} threads on {cores} cores"
        yield _found("omp_num_threads", what, threads=max(1, cores // ranks))


def preloaded(facts: Facts) -> Iterator[Finding]:
    for library in facts.mapped:
        if library["how"] == "LD_PRELOAD":
            what = f"LD_PRELOAD puts {library['path']} ({library['version']}) in front"
            yield _found("preloaded", what)


VARIABLE_CHECKS = (omp_num_threads, preloaded)

"""Traps of the host, the container and the installation. Each is a function of the facts."""

from __future__ import annotations

from collections.abc import Iterator

from torchcoll.bench.doctor.facts import Facts
from torchcoll.bench.doctor.finding import Finding
from torchcoll.bench.doctor.frameworks import IPEX, own_device
from torchcoll.bench.doctor.usable import MASKS
from torchcoll.core.crowding import crowded
from torchcoll.core.units import format_bytes

_GIB = 1 << 30


def launcher_variables(facts: Facts) -> Iterator[Finding]:
    # What every start of torchcoll would say, said before.
    if facts.launch_error:
        yield Finding(
            "launcher_variables",
            "error",
            facts.launch_error,
            "Every rank would end with this.",
            "See above; env | grep -E 'RANK|SIZE|PMI|SLURM|OMPI' shows them.",
        )


def foreign_torchrun(facts: Facts) -> Iterator[Finding]:
    # PATH and python are chosen apart, by module systems and by half-active environments.
    command = facts.commands.get("torchrun")
    if command and not command["own"] and facts.torch:
        yield Finding(
            "foreign_torchrun",
            "warning",
            f"torchrun on PATH is {command['path']}, not this Python's",
            "Ranks would run with another torch and another torchcoll, or find none.",
            "Start with: python -m torch.distributed.run",
        )


def torch_without_gpu(facts: Facts) -> Iterator[Finding]:
    # PyPI's wheels for Windows and macOS, and +cpu wheels, have no CUDA; XPU wheels are on an
    # index of their own.
    if not facts.torch:
        return
    torch, gpus = facts.torch, facts.gpus
    there = {
        "CUDA": bool(gpus["NVIDIA"]["driver"] or gpus["NVIDIA"]["files"]) if gpus else False,
        "ROCm": bool(gpus["AMD"]["files"]) if gpus else False,
        "XPU": bool(gpus["Intel"]["files"] and gpus["Intel"]["pci"]) if gpus else False,
    }
    has = {"CUDA": torch.get("cuda"), "ROCm": torch.get("hip"), "XPU": torch.get("xpu")}
    if any(there[name] and has[name] for name in there):
        return
    for name in there:
        if there[name]:
            yield Finding(
                "torch_without_gpu",
                "warning",
                f"this torch {torch['version']} has no {name}, the host has a GPU for it",
                "Only the CPU is measured.",
                f"Install a build with {name} (pytorch.org's selector).",
            )


def more_ranks_than_devices(facts: Facts) -> Iterator[Finding]:
    # NCCL: 'Duplicate GPU detected'.
    count, ranks = len(facts.devices("cuda")), facts.launch.local_ranks
    shared = {"NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE"} & set(facts.environ)
    if not 0 < count < ranks or shared:
        return
    # torchrun shows every rank the same devices; others may have given each rank its own.
    masked = any(facts.environ.get(name) for name in (*MASKS, "SLURM_STEP_GPUS"))
    several = masked or facts.gpus.get("NVIDIA", {}).get("pci", 0) >= ranks
    if count == 1 and several and facts.launch.launcher != "torchrun":
        return
    yield Finding(
        "more_ranks_than_devices",
        "error",
        f"{ranks} ranks on this host, {count} GPU{'s' if count > 1 else ''}",
        "NCCL refuses two ranks on one GPU.",
        f"Start {count} per host, or rehearse on one GPU: --rehearse.",
    )


def more_ranks_than_cores(facts: Facts) -> Iterator[Finding]:
    # As the run judges it: a launcher that pins gives each rank its own.
    members = [{"affinity": ",".join(map(str, sorted(cpus)))} for cpus in facts.affinities]
    for _, text in crowded(members):
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
            "Read medians, run more launches, or use a host of your own.",
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
    mine = own_device(facts.launch, devices)
    node = mine.get("numa_node")
    if node is not None and nodes and node not in nodes:
        yield Finding(
            "other_numa_node",
            "warning",
            f"this rank may run on NUMA node {', '.join(map(str, nodes))}, "
            f"its {mine['device']} sits on node {node}",
            "Each launch and each copy crosses the sockets.",
            "Bind ranks to their GPU's node (srun --gpu-bind=closest, numactl, --cpu-bind list).",
        )


def small_shm(facts: Facts) -> Iterator[Finding]:
    # NCCL troubleshooting, 'Shared memory': --shm-size=1g. Docker gives 64 MiB.
    nbytes = facts.limits.get("shm_nbytes")
    if nbytes is not None and nbytes < _GIB:
        yield Finding(
            "small_shm",
            "warning",
            f"/dev/shm has {format_bytes(nbytes)}" if nbytes else "there is no /dev/shm",
            "NCCL, oneCCL and MPI exchange through it within a host, and fail to initialise.",
            "docker run --shm-size=1g or --ipc=host; Kubernetes: an emptyDir with medium Memory.",
        )


def memlock(facts: Facts) -> Iterator[Finding]:
    # NCCL troubleshooting: --ulimit memlock=-1. RDMA pins what it sends.
    nbytes = facts.limits.get("memlock_nbytes")
    if facts.rdma and nbytes is not None and nbytes < _GIB:
        yield Finding(
            "memlock",
            "error",
            f"locked memory is limited to {format_bytes(nbytes)} next to {facts.rdma[0]['name']}",
            "RDMA must pin its buffers: 'ibv_reg_mr failed', 'Cannot allocate memory'.",
            "ulimit -l unlimited; docker --ulimit memlock=-1; Slurm: LimitMEMLOCK of slurmd.",
        )


def ipex(facts: Facts) -> Iterator[Finding]:
    # Measured: with a foreign torch IPEX dies with AttributeError, and pip lets it.
    module = facts.modules.get(IPEX)
    if not module or not module["error"] or not facts.torch:
        return
    theirs = ".".join(str(module["version"]).split(".")[:2])
    ours = ".".join(facts.torch["version"].split(".")[:2])
    told = f"{IPEX} {module['version']} cannot be imported ({module['error']})"
    yield Finding(
        "ipex",
        "warning",
        told if theirs == ours else f"{told}: torch here is {ours}",
        "ccl on XPU needs it; xccl and ccl on the CPU do not.",
        f"Install torch {theirs}.* or remove it (upstream ended with 2.8)."
        if theirs != ours
        else "Install it again for this torch, or remove it.",
    )


CHECKS = (
    *(launcher_variables, foreign_torchrun, torch_without_gpu, more_ranks_than_devices),
    *(more_ranks_than_cores, stolen_time, governor, other_numa_node, small_shm, memlock, ipex),
)

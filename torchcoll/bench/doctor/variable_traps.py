"""Traps in the environment variables. Each is a function of the facts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchcoll.bench.doctor.facts import Facts
from torchcoll.bench.doctor.finding import Finding
from torchcoll.bench.doctor.usable import ccl_on_cpu, hiding


def _version(text: object) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(text))[:2])


_ONECCL = ("xccl", "ccl")


# -- Intel -----------------------------------------------------------------------------------


def ze_affinity_mask(facts: Facts) -> Iterator[Finding]:
    # 'comm_dev_uuids is not sub-vector of node_dev_uuids': uxlfoundation/oneCCL#217,
    # vllm-project/vllm#53076.
    mask = facts.environ.get("ZE_AFFINITY_MASK", "")
    seen = {part.strip() for part in mask.split(",") if part.strip()}
    if seen and len(seen) < facts.launch.local_ranks:
        yield Finding(
            "ze_affinity_mask",
            "error",
            f"ZE_AFFINITY_MASK={mask} shows {len(seen)} of the devices of "
            f"{facts.launch.local_ranks} ranks",
            "oneCCL must see every device of the communicator in each process: it hangs or fails.",
            "Unset it; each rank takes its device by its local rank.",
            _ONECCL,
        )


def ccl_atl_transport(facts: Facts) -> Iterator[Finding]:
    # Hung until a limit of 60 s (measured): each rank is an MPI world of its own.
    launcher = facts.launch.launcher
    if facts.environ.get("CCL_ATL_TRANSPORT") == "mpi" and launcher in _WITHOUT_MPI:
        yield Finding(
            "ccl_atl_transport",
            "error",
            f"CCL_ATL_TRANSPORT=mpi, and the ranks were started by {launcher}",
            "oneCCL waits for an MPI that nobody started: the first collective hangs.",
            "Unset it, or set ofi; or start with mpirun.",
            _ONECCL,
        )


_WITHOUT_MPI = ("torchrun", "RANK and WORLD_SIZE")
_WITH_MPI = ("Open MPI", "Intel MPI", "MPICH", "MPI", "PALS")


def ccl_worker_offload(facts: Facts) -> Iterator[Finding]:
    # 12 ms instead of 0.08 ms at 1 KiB, 2 ranks on 2 cores (measured). Under mpirun
    # oneCCL turns its workers off by itself.
    ranks = facts.launch.local_ranks
    if (
        facts.environ.get("CCL_WORKER_OFFLOAD") != "0"
        and ranks > 1
        and ranks * 2 > facts.host_cores
        and facts.launch.launcher not in _WITH_MPI
        and ccl_on_cpu(facts)
    ):
        yield Finding(
            "ccl_worker_offload",
            "warning",
            f"CCL_WORKER_OFFLOAD is not 0 with {ranks} ranks on {facts.host_cores} cores",
            "Each rank of ccl spins a worker besides itself: calls take 100 times as long.",
            "export CCL_WORKER_OFFLOAD=0",
        )


# -- NCCL and torch --------------------------------------------------------------------------


def nccl_debug_subsys(facts: Facts) -> Iterator[Finding]:
    # Setting it replaces INIT,BOOTSTRAP,ENV.
    names = facts.environ.get("NCCL_DEBUG_SUBSYS", "")
    words = {word.strip().upper() for word in names.split(",")}
    if not names or names.startswith("^"):
        return
    if facts.environ.get("NCCL_DEBUG", "").upper() not in ("INFO", "TRACE"):
        yield Finding(
            "nccl_debug_subsys",
            "note",
            f"NCCL_DEBUG_SUBSYS={names} without NCCL_DEBUG=INFO",
            "Nothing is logged.",
            "export NCCL_DEBUG=INFO, or unset it.",
        )
    elif not {"INIT", "ALL"} & words:
        yield Finding(
            "nccl_debug_subsys",
            "note",
            f"NCCL_DEBUG_SUBSYS={names} is without INIT",
            "It replaces the default INIT,BOOTSTRAP,ENV: the log does not tell ranks and channels.",
            f"export NCCL_DEBUG_SUBSYS=INIT,ENV,{names}",
        )


def hidden_devices(facts: Facts) -> Iterator[Finding]:
    text = hiding(facts)
    if text and (facts.torch.get("cuda") or facts.torch.get("hip")):
        yield Finding(
            "hidden_devices",
            "warning",
            f"{text} hides every GPU",
            "nccl cannot be used.",
            f"unset {text.split('=')[0]}",
        )


def nccl_implementation(facts: Facts) -> Iterator[Finding]:
    # torch/distributed/distributed_c10d.py of 2.14 and 2.15.
    value = facts.environ.get("TORCH_DIST_USE_NCCL2")
    version = _version(facts.torch.get("version"))
    if not facts.devices("cuda") or (version < (2, 14) and value is None):
        return
    new = value != "0" if version >= (2, 15) else value == "1"
    told = f"TORCH_DIST_USE_NCCL2={value}" if value is not None else "TORCH_DIST_USE_NCCL2 is unset"
    if version < (2, 14):
        why, action = f"torch {facts.torch['version']} does not read it.", "Unset it."
    else:
        which = "ProcessGroupNCCL2, which connects eagerly" if new else "the one of earlier torch"
        why = f"Backend nccl of torch {facts.torch['version']} is {which}."
        action = "Compare runs of one implementation only; 0 and 1 choose."
    yield Finding("nccl_implementation", "note", told, why, action)


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


CHECKS = (
    *(ze_affinity_mask, ccl_atl_transport, ccl_worker_offload, nccl_debug_subsys),
    *(hidden_devices, nccl_implementation, omp_num_threads, preloaded),
)

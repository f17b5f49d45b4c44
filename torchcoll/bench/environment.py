"""What a number depends on: versions, host and variables, and how much memory is free."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Mapping
from typing import Any

from torchcoll.bench.backends import library_version
from torchcoll.bench.launcher import Launch
from torchcoll.core.units import format_ranges

# Variables that change how a collective runs. Everything else stays private.
_PREFIXES = (
    *("NCCL_", "RCCL_", "CCL_", "FI_", "I_MPI_", "MPIR_", "MPICH_", "UCX_", "GLOO_", "TP_"),
    *("ZE_", "NEO_", "SYCL_", "ONEAPI_", "HSA_", "HIP_", "ROCR_", "TORCH_", "TORCHELASTIC_"),
    *("OMP_", "KMP_", "MKL_", "GOMP_", "PBS_", "PALS_", "PMI_", "PMIX_", "SLURM_", "OMPI_"),
    *("CUDA_CACHE_", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "LD_PRELOAD"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
_SECRET = ("KEY", "TOKEN", "SECRET", "PASS")
_OF_LAUNCH = ("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID")  # of this launch: no information
# Launchers number ranks in these: that they differ from rank to rank says nothing.
_LAUNCHERS = ("TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "PALS_", "PBS_")


def variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of the allow-list; values of names that look secret are masked."""
    env = os.environ if environ is None else environ
    return {
        name: "***" if any(word in name.upper() for word in _SECRET) else value
        for name, value in sorted(env.items())
        if name.startswith(_PREFIXES) and name not in _OF_LAUNCH
    }


def hostname() -> str:
    return socket.gethostname()


def differences(theirs: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str | None]:
    """The variables of a rank that differ from rank 0's (None: not set there)."""
    return {
        name: theirs.get(name)
        for name in sorted({*theirs, *known})
        if theirs.get(name) != known.get(name) and not name.startswith(_LAUNCHERS)
    }


def environment(torch: Any, backend: str) -> dict[str, Any]:
    """Versions, host and variables of this process, as the file's header keeps them."""
    from torchcoll import __version__

    return {
        "torchcoll": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "host": hostname(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "libraries": {backend: library_version(torch, backend)},
        "variables": variables(),
    }


def member(launch: Launch, device: str) -> dict[str, Any]:
    """This rank's line of the ``ranks`` record."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return {
        "rank": launch.rank,
        "host": hostname(),
        "pid": os.getpid(),
        "local_rank": launch.local_rank,
        "device": device,
        "device_name": _cpu_model(),
        "affinity": format_ranges(cores),
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            return next(
                line.split(":")[1].strip() for line in info if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def crowded(members: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(host, text) for each host whose ranks outnumber the cores that they may use.

    Then a call's time includes waiting for a core, which no network explains.
    """
    found = []
    for host in dict.fromkeys(m["host"] for m in members):
        here = [m for m in members if m["host"] == host]
        cores: set[int] = set()
        for m in here:
            cores |= _numbers(m["affinity"])
        if cores and len(here) > len(cores):
            text = f"{len(here)} ranks share {len(cores)} cores: times include waiting for a core"
            found.append((host, text))
    return found


def _numbers(text: str) -> set[int]:
    spans = (part.split("-") for part in text.split(",") if part)
    return {n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)}


def free_nbytes() -> int:
    """Bytes that processes of this host may still take: MemAvailable, or less by a cgroup limit.

    Linux overcommits, so an allocation succeeds and the kernel kills later: only asking protects.
    """
    free = [_meminfo(), _cgroup("memory.max", "memory.current", "")]
    free.append(_cgroup("memory.limit_in_bytes", "memory.usage_in_bytes", "memory"))
    return min((value for value in free if value is not None), default=sys.maxsize)


def _meminfo() -> int | None:
    try:
        with open("/proc/meminfo") as info:
            for line in info:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _cgroup(limit_file: str, usage_file: str, controller: str) -> int | None:
    """Limit minus usage of this process' cgroup (v2, or the v1 ``memory`` controller)."""
    try:
        with open("/proc/self/cgroup") as lines:
            paths = {line.split(":")[1]: line.rstrip("\n").split(":", 2)[2] for line in lines}
        path = next(path for names, path in paths.items() if controller in names.split(","))
        folder = f"/sys/fs/cgroup/{controller}".rstrip("/")
        # Inside a container the path of the host is not mounted; its own root is.
        base = folder + path if os.path.exists(f"{folder}{path}/{limit_file}") else folder
        with open(f"{base}/{limit_file}") as limit, open(f"{base}/{usage_file}") as usage:
            text = limit.read().strip()
            return None if text == "max" else int(text) - int(usage.read())
    except (OSError, StopIteration, ValueError, IndexError):
        return None

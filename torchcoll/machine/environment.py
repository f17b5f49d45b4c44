"""What a measurement depends on: versions, host, variables and free memory."""

from __future__ import annotations

import importlib
import os
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from torchcoll.core.backends import NCCL, ONECCL, BackendEntry
from torchcoll.core.units import format_ranges
from torchcoll.core.variables import JOB, kept_variables, kind_of
from torchcoll.machine.devices import Device
from torchcoll.machine.launcher import Launch

# Variables that differ in every run and have no information.
_OF_LAUNCH = ("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "NCCL_DEBUG_FILE")


def variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of ``environ``, or of this process, that a result file keeps."""
    kept = kept_variables(os.environ if environ is None else environ)
    return {name: value for name, value in kept.items() if name not in _OF_LAUNCH}


def utc_now() -> str:
    """The current time as ``2026-11-20T12:31:04+00:00``."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def hostname() -> str:
    return socket.gethostname()


def differences(
    rank_variables: Mapping[str, str], reference: Mapping[str, str]
) -> dict[str, str | None]:
    """The variables of a rank whose values differ from rank 0's; None if not set. Launchers'
    variables always differ from rank to rank, except for the address of the meeting.
    """
    return {
        name: rank_variables.get(name)
        for name in sorted({*rank_variables, *reference})
        if rank_variables.get(name) != reference.get(name)
        and (kind_of(name) != JOB or name.startswith("MASTER_"))
    }


def environment(torch: Any, entries: Sequence[BackendEntry]) -> dict[str, Any]:
    """Versions, host and variables of this process, for the header of a result file."""
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
        "libraries": {e.name: library_version(torch, e) for e in entries},
        "variables": variables(),
    }


def library_version(torch: Any, entry: BackendEntry) -> str:
    """The library with its version: ``NCCL 2.28.9``, ``oneCCL 2021.14.0, bindings 2.8.0``."""
    if entry.family == NCCL:
        version = ".".join(map(str, torch.cuda.nccl.version()))
        return f"{'RCCL' if torch.version.hip else 'NCCL'} {version}"
    if entry.family == ONECCL:
        from torchcoll.machine.provenance import oneccl_version

        oneccl = oneccl_version()
        if not entry.module:
            return f"oneCCL {f'{oneccl} ' if oneccl else ''}of torch {torch.__version__}"
        module = importlib.import_module(entry.module)
        bindings = f"bindings {getattr(module, '__version__', 'of unknown version')}"
        return f"oneCCL {f'{oneccl}, ' if oneccl else ''}{bindings}"
    return f"{entry.name} of torch {torch.__version__}"


def member(torch: Any, launch: Launch, device: Device) -> dict[str, Any]:
    """This rank's entry in the ``ranks`` record. Only ranks with an accelerator and the first rank
    of each host have mapped libraries, NUMA nodes, PCI id and NICs.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    facts: dict[str, Any] = {}
    if device.kind != "cpu" or launch.local_rank == 0:
        from torchcoll.machine.provenance import rank_facts

        facts = rank_facts(torch, device.name, thorough=launch.local_rank == 0, cpus=cores)
    return {
        "rank": launch.rank,
        "host": hostname(),
        "pid": os.getpid(),
        "local_rank": launch.local_rank,
        "device": device.name,
        "device_name": _cpu_model() if device.kind == "cpu" else None,
        "affinity": format_ranges(cores),
        **facts,
    }


def device_place(torch: Any, device: Device) -> tuple[str | None, str | None]:
    """(PCI id or UUID of the card with the device, identity of the device); None on the CPU."""
    if device.kind == "cpu":
        return None, None
    from torchcoll.core.shared_cores import device_identity
    from torchcoll.machine.placement import device_facts

    facts = {**device_facts(torch, device.name), "device": device.name}
    return facts.get("pci_id") or facts.get("uuid"), device_identity(facts)


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            names = (line for line in info if line.startswith("model name"))
            return next(names).split(":")[1].strip()
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


# Tests replace these folders.
_PROC, _CGROUPS = "/proc", "/sys/fs/cgroup"


def free_memory(device: Device) -> dict[str, Any]:
    """``where``: the device or host with this rank's buffers; ``free``: its free bytes."""
    free = device.free_bytes()
    if free is None:
        return {"where": hostname(), "free": free_bytes()}
    return {"where": f"{device.name} of {hostname()}", "free": free}


def free_bytes() -> int:
    """Bytes that processes of this host can still use: MemAvailable, or less if a cgroup limits it.
    Linux overcommits: an allocation succeeds and the kernel kills the process later.
    """
    free = [_number_in(f"{_PROC}/meminfo", "MemAvailable:", 1024)]
    free += _cgroup_free("", "memory.max", "memory.current", "inactive_file")
    free += _cgroup_free(
        "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    )
    return max(0, min((value for value in free if value is not None), default=sys.maxsize))


def _cgroup_free(controller: str, limit: str, usage: str, cache: str) -> list[int]:
    """Limit minus usage of this process's cgroup and of each of its parents (v2, or v1's
    ``memory``), without cached files, which the kernel frees when needed.
    """
    free: list[int] = []
    path = _cgroup_path(controller)
    while path is not None:
        # In a container only the container's own root is mounted, and not the host's path.
        base = os.path.join(_CGROUPS, controller, path)
        most, used = _number_in(f"{base}/{limit}"), _number_in(f"{base}/{usage}")
        if most is not None and used is not None:
            free.append(most - used + (_number_in(f"{base}/memory.stat", cache) or 0))
        path = os.path.dirname(path) if path else None
    return free


def _cgroup_path(controller: str) -> str | None:
    try:
        with open(f"{_PROC}/self/cgroup") as lines:
            for line in lines:
                _, names, path = line.rstrip("\n").split(":", 2)
                if controller in names.split(","):
                    return path.strip("/")
    except (OSError, ValueError):
        pass
    return None


def _number_in(path: str, name: str = "", unit: int = 1) -> int | None:
    """The number after ``name`` in a small file, or the file's only number; None without one."""
    try:
        with open(path) as lines:
            fields = next(line.split() for line in lines if not name or line.split()[0] == name)
        return int(fields[-1 if not name else 1]) * unit
    except (OSError, ValueError, IndexError, StopIteration):
        return None

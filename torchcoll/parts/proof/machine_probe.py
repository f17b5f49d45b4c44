"""Which backend and devices a proof can use on this node, and what forbids several ranks on one."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

from torchcoll.core.backends import choose_backends
from torchcoll.machine.environment import environment
from torchcoll.machine.launcher import Launch
from torchcoll.parts.proof.probe import Evidence, ProbeOptions

if TYPE_CHECKING:
    from torchcoll.core.backends import BackendEntry

_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader")


def measure(torch: Any, launch: Launch, options: ProbeOptions) -> Evidence:
    """Open each device once. Raises UnavailableError as a run does, such as for no GPU, one that
    others have taken, or a driver that is older than torch needs.
    """
    from torchcoll.machine.devices import open_device

    entries, kind = choose_backends(torch, options.backend or None, options.device or None)
    entry, names = entries[0], list[str]()
    count = 0
    if kind != "cpu":
        module = torch.get_device_module(kind)
        count = module.device_count() if module.is_available() else 0
        for index in range(max(1, count)):  # with none, the first says why
            device = open_device(torch, kind, Launch("none", local_rank=index), False)
            names.append(device.described)
    return {
        "backend": entry.name,
        "device": kind,
        "devices": count,
        "names": names,
        # RCCL on a shared GPU was never tried.
        "shares_device": entry.shares_device and kind == "cuda" and not torch.version.hip,
        "exclusive": kind == "cuda" and _exclusive(),
        "slices": any(" MIG " in f"{name} " for name in names),
        "family": entry.family,
        "library": _library(torch, entry, kind),
        "environment": environment(torch, [entry], kind),
    }


def _library(torch: Any, entry: BackendEntry, kind: str) -> str:
    from torchcoll.machine.environment import library_version

    return library_version(torch, entry, kind)


def _exclusive() -> bool:
    """Whether a GPU takes one process only (nvidia-smi -c EXCLUSIVE_PROCESS)."""
    try:
        smi = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):  # ROCm, and containers without the tool
        return False
    return "Exclusive" in smi.stdout

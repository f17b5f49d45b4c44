"""Hosts whose ranks outnumber the cores that they may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_MOST = 1 << 16  # more CPUs no kernel numbers (Linux: NR_CPUS at most 8192)


def crowded(members: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(host, text) for each host whose ranks outnumber the cores that they may use.

    Then a call's time includes waiting for a core, which no network explains. ``members``: of a
    Run; where one does not tell its affinity (not Linux, other tools), nothing is known.
    """
    crowds = []
    for host, here in by_host(members).items():
        cores = cores_of(here)
        if cores and len(here) > len(cores):
            plural = "s" if len(cores) > 1 else ""
            text = f"{len(here)} ranks share {len(cores)} core{plural}: "
            text += "times include waiting for a core"
            crowds.append((host, text))
    return crowds


def by_host(members: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Host -> its ranks."""
    hosts: dict[str, list[Mapping[str, Any]]] = {}
    for member in members:
        hosts.setdefault(str(member.get("host")), []).append(member)
    return hosts


def cores_of(members: Iterable[Mapping[str, Any]]) -> set[int]:
    """The cores that ranks of one host may use; empty where one does not tell its affinity."""
    spans = [_numbers(member.get("affinity")) for member in members]
    return set().union(*spans) if all(spans) else set()


def apart(members: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(host, text) for each host whose ranks see one GPU each, and not the others'.

    NCCL must see all GPUs of a host to find their NVLinks: with one in each task's cgroup (srun
    --gpus-per-task) it goes over PCIe or the host's memory and says nothing (NVIDIA/nccl#1066).
    ``members``: of a Run.
    """
    hosts_apart = []
    for host, here in by_host(members).items():
        several = len({m.get("pci_id") or m.get("uuid") for m in here}) == len(here) > 1
        amd = any(str(m.get("device_name")).startswith("AMD") for m in here)
        if several and not amd and all(m.get("device") == "cuda:0" for m in here):
            text = f"each of {len(here)} ranks sees its own GPU alone (srun --gpus-per-task does "
            text += "so): NCCL may find no NVLink between them (NVIDIA/nccl#1066). "
            text += "srun --gpus-per-node, or --gpu-bind=none, shows all to each"
            hosts_apart.append((host, text))
    return hosts_apart


def _numbers(text: object) -> set[int]:
    """``0-3,8`` as numbers; nothing where it is something else (a file edited by hand)."""
    if not isinstance(text, str):
        return set()
    spans = [part.split("-") for part in text.split(",") if part]
    if not all(number.strip().isdecimal() for span in spans for number in span):
        return set()
    ends = [(int(span[0]), int(span[-1])) for span in spans]
    if any(last >= _MOST for _, last in ends):
        return set()
    return {n for first, last in ends for n in range(first, last + 1)}

"""Hosts whose ranks share cores, or cannot see each other's GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchcoll.core.units import counted

_MOST = 1 << 16  # no kernel has higher CPU numbers (Linux: NR_CPUS is at most 8192)


def oversubscribed_hosts(members: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(host, warning) for each host with more ranks than cores, as far as affinities are known."""
    crowds = []
    for host, local in by_host(members).items():
        cores = cores_of(local)
        if cores and len(local) > len(cores):
            share = f"{len(local)} ranks share {counted(len(cores), 'core')}"
            crowds.append((host, f"{share}: times include waiting for a core"))
    return crowds


def by_host(members: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Group members by host: host -> its members."""
    hosts: dict[str, list[Mapping[str, Any]]] = {}
    for member in members:
        hosts.setdefault(str(member.get("host")), []).append(member)
    return hosts


def cores_of(members: Iterable[Mapping[str, Any]]) -> set[int]:
    """The cores that these ranks of one host may use; empty if an affinity is not recorded."""
    spans = [cpu_numbers(member.get("affinity")) for member in members]
    return set().union(*spans) if all(spans) else set()


def hosts_with_isolated_gpus(members: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(host, warning) for each host whose ranks see only their own GPUs: NCCL then silently uses
    PCIe or host memory (NVIDIA/nccl#1066).
    """
    isolated = []
    for host, local in by_host(members).items():
        separate = len({device_identity(m) for m in local}) == len(local) > 1
        amd = any(str(m.get("device_name")).startswith("AMD") for m in local)
        if separate and not amd and all(m.get("device") == "cuda:0" for m in local):
            text = f"each of {len(local)} ranks sees its own GPU alone (srun --gpus-per-task does "
            text += "so): NCCL may find no NVLink between them (NVIDIA/nccl#1066). "
            text += "srun --gpus-per-node, or --gpu-bind=none, shows all to each"
            isolated.append((host, text))
    return isolated


def cpu_numbers(text: object) -> set[int]:
    """The numbers in a list like ``0-3,8``; empty for anything else (a file edited by hand)."""
    spans = [item.split("-") for item in text.split(",") if item] if isinstance(text, str) else []
    if not all(number.strip().isdecimal() for span in spans for number in span):
        return set()
    ends = [(int(span[0]), int(span[-1])) for span in spans]
    if any(last >= _MOST for _, last in ends):
        return set()
    return {n for first, last in ends for n in range(first, last + 1)}


def device_identity(facts: Mapping[str, Any]) -> str | None:
    """What no two devices of a host have in common; None if nothing is known of the device.

    facts: device (``cuda:1``), device_name, uuid and pci_id, as in the ``ranks`` record.

    The partitions of one card share its PCI address, and on AMD the UUID too
    (ROCm/rocm-systems#3977). MIG slices count as one device: NCCL connects no slices of one GPU.
    """
    name = f"{facts.get('device_name') or ''} "
    uuid, pci_id = facts.get("uuid"), facts.get("pci_id")
    if " MIG " in name:
        return pci_id or uuid
    if uuid and not name.startswith("AMD"):
        return str(uuid)
    address = uuid or pci_id
    return f"{address}, {facts.get('device')}" if address else None

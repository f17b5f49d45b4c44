"""Which ranks of a host have the same device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def device_identity(facts: Mapping[str, Any]) -> str | None:
    """What no two devices of a host have in common; None if nothing is known of the device.

    facts: device (``cuda:1``), device_name, uuid and pci_id, as in the ``ranks`` record.

    The UUID comes before the PCI address, which the partitions of one card share (AMD's DPX, TPX
    and CPX, NVIDIA's MLOPart, Intel's tiles). AMD's partitions may share the UUID too
    (ROCm/rocm-systems#3977), so their index is added, as where there is no UUID. MIG slices count
    as one device: NCCL connects no slices of one GPU.
    """
    name = f"{facts.get('device_name') or ''} "
    uuid, pci_id = facts.get("uuid"), facts.get("pci_id")
    if " MIG " in name:
        return pci_id or uuid
    if uuid and not name.startswith("AMD"):
        return str(uuid)
    address = uuid or pci_id
    return f"{address}, {facts.get('device')}" if address else None

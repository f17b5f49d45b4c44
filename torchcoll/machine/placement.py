"""Where a device sits: its PCI id, NUMA node and nearest NICs, and the network interfaces of the
host. All from small files of sysfs, whose place is an argument.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from torchcoll.core.backends import NCCL, BackendEntry
from torchcoll.core.errors import UnavailableError

_PCI_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def device_facts(torch: Any, device: str, proc: str = "/proc") -> dict[str, Any]:
    """device_name, uuid and pci_id of ``cuda:1`` or ``xpu:0``; empty for a device without them.

    torch tells the PCI id from 2.9 on, and never on xpu; NVIDIA's driver tells it by UUID.
    """
    kind, _, index = device.partition(":")
    if kind == "cpu" or not hasattr(getattr(torch, kind, None), "get_device_properties"):
        return {}
    try:
        properties = getattr(torch, kind).get_device_properties(int(index or 0))
    except (RuntimeError, AssertionError):
        return {}
    uuid = getattr(properties, "uuid", None)
    facts = {"device_name": str(properties.name), "uuid": str(uuid) if uuid else None}
    parts: list[Any] = [
        getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")
    ]
    if all(isinstance(part, int) for part in parts):
        facts["pci_id"] = "{:04x}:{:02x}:{:02x}.0".format(*parts)
        return facts
    facts["pci_id"] = None
    if kind == "cuda" and uuid:
        for path in Path(proc, "driver/nvidia/gpus").glob("*/information"):
            with contextlib.suppress(OSError):
                if str(uuid).removeprefix("GPU-") in path.read_text():
                    facts["pci_id"] = path.parent.name.lower()
                    break
    return facts


def pci_facts(pci_id: str, sysfs: str = "/sys") -> dict[str, Any]:
    """NUMA node of a PCI device and the NICs that are nearest to it, with what they share.

    ``shares``: ``PCIe switch``, ``host bridge``, ``NUMA node`` or ``host``. Empty where sysfs has
    no such device, as in some containers.
    """
    device = Path(sysfs, "bus/pci/devices", pci_id)
    if not device.exists():
        return {}
    path, node = _pci_path(device), _node(device)
    near = []
    for name, nic in _nics(sysfs):
        other = _pci_path(nic)
        common = len(list(takewhile(lambda ids: ids[0] == ids[1], zip(path, other, strict=False))))
        # The first component is the host bridge, the last of each the device itself.
        shares = "PCIe switch" if common > 1 else "host bridge" if common else "host"
        if not common and node is not None and _node(nic) == node:
            shares = "NUMA node"
        near.append((_NEARNESS.index(shares), -common, name, other[-1], shares))
    best = min((n[:2] for n in near), default=None)
    nics = [{"name": n, "pci_id": i, "shares": s} for *k, n, i, s in near if tuple(k) == best]
    return {"numa_node": node, "nearest_nics": nics}


_NEARNESS = ("PCIe switch", "host bridge", "NUMA node", "host")


def _nics(sysfs: str) -> list[tuple[str, Path]]:
    """(name, device) of each PCI function that is a NIC; its RDMA name where it has one."""
    found: dict[str, tuple[str, Path]] = {}
    for room in ("infiniband", "net"):
        for entry in sorted(Path(sysfs, "class", room).glob("*")):
            path = _pci_path(entry / "device")
            if len(path) > 1:
                found.setdefault(path[-1], (entry.name, Path(sysfs, "bus/pci/devices", path[-1])))
    return list(found.values())


def _pci_path(device: Path) -> list[str]:
    """``["pci0000:00", "0000:00:01.0", "0000:01:00.0"]``: host bridge, bridges, device.

    virtio devices lie one level below their PCI function.
    """
    parts = os.path.realpath(device).split("/")
    return [p for p in parts if _PCI_ID.fullmatch(p) or re.fullmatch(r"pci\w+:\w+", p)]


def _node(device: Path) -> int | None:
    """None where the machine has one node and says -1."""
    node = number_in(device / "numa_node")
    return node if node is not None and node >= 0 else None


def numa_nodes_of(cpus: Iterable[int], sysfs: str = "/sys") -> list[int]:
    """The NUMA nodes that hold any of these CPUs."""
    mine, nodes = set(cpus), []
    for path in Path(sysfs, "devices/system/node").glob("node[0-9]*/cpulist"):
        with contextlib.suppress(OSError, ValueError):
            if mine & cpu_numbers(path.read_text()):
                nodes.append(int(path.parent.name[4:]))
    return sorted(nodes)


def cpu_numbers(text: str) -> set[int]:
    """``0-3,8`` as numbers."""
    spans = (part.split("-") for part in text.strip().split(",") if part)
    return {n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)}


_SIOCGIFADDR = 0x8915  # linux/sockios.h
_KINDS = {"1": "ethernet", "32": "infiniband", "772": "loopback"}  # linux/if_arp.h


def network_interfaces(sysfs: str = "/sys", proc: str = "/proc") -> list[dict[str, Any]]:
    """name, kind, state, speed in Mb/s, families with an address, and PCI id of each interface.

    ``state`` is the kernel's: up, down, dormant, unknown (loopback and tunnels are never more).
    """
    found = []
    for entry in sorted(Path(sysfs, "class/net").glob("*")):
        if not (entry / "type").exists():
            continue  # bonding_masters is a file
        speed = number_in(entry / "speed")
        pci = _pci_path(entry / "device") if (entry / "device").exists() else []
        kind = _KINDS.get(text_in(entry / "type") or "", "other")
        if kind == "ethernet" and not pci:
            kind = "virtual"
        found.append(
            {
                "name": entry.name,
                "kind": kind,
                "state": text_in(entry / "operstate"),
                "speed_mbps": speed if speed and speed > 0 else None,
                "families": _families(entry.name, proc, sysfs == "/sys"),
                "pci_id": pci[-1] if len(pci) > 1 else None,
            }
        )
    return found


def _families(name: str, proc: str, own: bool) -> list[str]:
    families = []
    if own:
        import fcntl  # not on Windows, where ranks come this far

        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked,
            contextlib.suppress(OSError),
        ):
            fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            families.append("ipv4")
    lines = (text_in(Path(proc, "net/if_inet6")) or "").splitlines()
    return families + ["ipv6"] * any(line.split()[-1] == name for line in lines)


def rdma_devices(sysfs: str = "/sys") -> list[dict[str, Any]]:
    """name, port, state, rate and link layer of each RDMA port (InfiniBand, RoCE, EFA)."""
    ports = sorted(Path(sysfs, "class/infiniband").glob("*/ports/*"))
    return [
        {
            "name": port.parent.parent.name,
            "port": port.name,
            "state": (text_in(port / "state") or "").split(": ")[-1].lower() or None,
            "rate": text_in(port / "rate"),
            "link": text_in(port / "link_layer"),
        }
        for port in ports
    ]


def text_in(path: Path | str) -> str | None:
    """What a small file says, stripped; None where it cannot be read."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None


def number_in(path: Path | str) -> int | None:
    try:
        return int(text_in(path) or "")
    except ValueError:
        return None


# Network interfaces that a variable names for a library and that this host does not have.
#
# gloo fails inside init_process_group, NCCL at the first collective, both far from the cause.


def check_interfaces(backends: Iterable[BackendEntry]) -> None:
    """Raise UnavailableError where a variable of these backends names no usable interface."""
    asked = [entry for entry in backends if os.environ.get(entry.interfaces)]
    if not asked:
        return

    there = {i["name"]: bool(i["families"]) for i in network_interfaces()}
    for entry in asked:
        variable, value = entry.interfaces, os.environ[entry.interfaces]
        problem = interface_problem(entry.family == NCCL, value, there)
        if there and problem:  # an empty list: no sysfs, nothing is known
            usable = ", ".join(name for name, has_address in there.items() if has_address)
            raise UnavailableError(
                variable,
                f"{value} on {socket.gethostname()} ({problem})",
                f"one of {usable}",
                f"Correct or unset {variable}.",
            )


def interface_problem(pattern: bool, value: str, there: Mapping[str, bool]) -> str:
    """What is wrong with ``value``, or nothing. ``there``: interface, whether it has an address.

    pattern: read as NCCL reads it (``matching``), else as a list of names.
    """
    if pattern:
        usable = [name for name, has_address in there.items() if has_address]
        return "" if matching(value, usable) else "it matches none with an address"
    # gloo opens each name of the list, exactly as it is written.
    for name in value.split(","):
        if name not in there:
            return f"no interface {name}" if name else "an empty name"
        if not there[name]:
            return f"{name} has no address"
    return ""


def matching(value: str, names: Sequence[str]) -> list[str]:
    """The interfaces that NCCL takes: ``eth`` is a prefix, ``=eth0`` exact, ``^docker`` all but
    these; lists with commas (NCCL's docs/userguide/source/env.rst).
    """
    exclude = value.startswith("^")
    rest = value.removeprefix("^")
    exact = rest.startswith("=")
    words = [w.split(":")[0] for w in rest.removeprefix("=").split(",") if w]
    hits = {n for n in names for w in words if (n == w if exact else n.startswith(w))}
    return [n for n in names if (n in hits) != exclude]

"""The location of a device: its PCI id, NUMA node and nearest NICs; and the network interfaces of
the host. Everything is read from sysfs, whose path is an argument.
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
from torchcoll.core.shared_cores import cpu_numbers

_PCI_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def device_facts(torch: Any, device: str, proc: str = "/proc") -> dict[str, Any]:
    """device_name, uuid and pci_id of ``cuda:1`` or ``xpu:0``; empty for a device without them.
    torch has the PCI id since 2.9, but not for xpu, whose UUID contains it.
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
    names = (f"pci_{component}_id" for component in ("domain", "bus", "device"))
    components: list[Any] = [getattr(properties, name, None) for name in names]
    if all(isinstance(component, int) for component in components):
        facts["pci_id"] = "{:04x}:{:02x}:{:02x}.0".format(*components)
        return facts
    facts["pci_id"] = _pci_id_of_intel(str(uuid)) if kind == "xpu" and uuid else None
    if kind == "cuda" and uuid:
        for path in Path(proc, "driver/nvidia/gpus").glob("*/information"):
            with contextlib.suppress(OSError):
                if str(uuid).removeprefix("GPU-") in path.read_text():
                    facts["pci_id"] = path.parent.name.lower()
                    break
    return facts


def _pci_id_of_intel(uuid: str) -> str | None:
    """The PCI id of an Intel GPU or of its card, if ``uuid`` is a tile's; None for other UUIDs.

    intel/compute-runtime, Device::generateUuidFromPciBusInfo: vendor, device, revision and PCI
    domain in two bytes each (little-endian), then a byte each for bus, device and function, four
    reserved bytes and the number of the tile.
    """
    try:
        octets = bytes.fromhex(uuid.replace("-", ""))
    except ValueError:
        return None
    if len(octets) != 16 or octets[:2] != b"\x86\x80" or any(octets[11:15]):
        return None
    domain = int.from_bytes(octets[6:8], "little")
    return f"{domain:04x}:{octets[8]:02x}:{octets[9]:02x}.{octets[10]:x}"


def drm_cards(sysfs: str) -> dict[str, Path]:
    """PCI id -> /sys/class/drm/card* of each GPU that the kernel drives."""
    return {
        (entry / "device").resolve().name.lower(): entry
        for entry in Path(sysfs, "class/drm").glob("card*")
        if "-" not in entry.name  # card0-HDMI-A-1 is a connector
    }


def pci_facts(pci_id: str, sysfs: str = "/sys") -> dict[str, Any]:
    """NUMA node of a PCI device, and the nearest NICs: ``shares`` is what a NIC shares with it
    (``_NEARNESS``). Empty if sysfs does not have the device, as in some containers.
    """
    device = Path(sysfs, "bus/pci/devices", pci_id)
    if not device.exists():
        return {}
    path, node = _pci_path(device), _node(device)
    near = []
    for name, nic in _nics(sysfs):
        nic_path = _pci_path(nic)
        common = len(
            list(takewhile(lambda ids: ids[0] == ids[1], zip(path, nic_path, strict=False)))
        )
        # The first component is the host bridge, and the last one is the device itself.
        shares = "PCIe switch" if common > 1 else "host bridge" if common else "host"
        if not common and node is not None and _node(nic) == node:
            shares = "NUMA node"
        near.append((_NEARNESS.index(shares), -common, name, nic_path[-1], shares))
    best = min((n[:2] for n in near), default=None)
    nics = [{"name": n, "pci_id": i, "shares": s} for *k, n, i, s in near if tuple(k) == best]
    return {"numa_node": node, "nearest_nics": nics}


_NEARNESS = ("PCIe switch", "host bridge", "NUMA node", "host")


def _nics(sysfs: str) -> list[tuple[str, Path]]:
    """(name, device) of each PCI function that is a NIC; with its RDMA name if it has one."""
    nics: dict[str, tuple[str, Path]] = {}
    for class_name in ("infiniband", "net"):
        for entry in sorted(Path(sysfs, "class", class_name).glob("*")):
            path = _pci_path(entry / "device")
            if len(path) > 1:
                nics.setdefault(path[-1], (entry.name, Path(sysfs, "bus/pci/devices", path[-1])))
    return list(nics.values())


def _pci_path(device: Path) -> list[str]:
    """The path of a device, from the host bridge on: ``["pci0000:00", "0000:00:01.0"]``."""
    components = os.path.realpath(device).split("/")
    return [p for p in components if _PCI_ID.fullmatch(p) or re.fullmatch(r"pci\w+:\w+", p)]


def _node(device: Path) -> int | None:
    """The NUMA node of a device; None if sysfs has -1, as on a machine with one node."""
    node = number_in(device / "numa_node")
    return node if node is not None and node >= 0 else None


def numa_nodes(cpus: Iterable[int], sysfs: str = "/sys") -> list[int]:
    """The NUMA nodes that have any of these CPUs."""
    wanted, nodes = set(cpus), []
    for path in Path(sysfs, "devices/system/node").glob("node[0-9]*/cpulist"):
        with contextlib.suppress(OSError, ValueError):
            if wanted & cpu_numbers(path.read_text()):
                nodes.append(int(path.parent.name[4:]))
    return sorted(nodes)


_SIOCGIFADDR = 0x8915  # linux/sockios.h
_KINDS = {"1": "ethernet", "32": "infiniband", "772": "loopback"}  # linux/if_arp.h


def network_interfaces(sysfs: str = "/sys", proc: str = "/proc") -> list[dict[str, Any]]:
    """name, kind, state (up, down, dormant or unknown, as of tunnels), speed in Mb/s, families with
    an address, and PCI id of each interface.
    """
    interfaces = []
    for entry in sorted(Path(sysfs, "class/net").glob("*")):
        if not (entry / "type").exists():
            continue  # bonding_masters is a file
        speed = number_in(entry / "speed")
        pci = _pci_path(entry / "device") if (entry / "device").exists() else []
        kind = _KINDS.get(text_in(entry / "type") or "", "other")
        if kind == "ethernet" and not pci:
            kind = "virtual"
        interfaces.append(
            {
                "name": entry.name,
                "kind": kind,
                "state": text_in(entry / "operstate"),
                "speed_mbps": speed if speed and speed > 0 else None,
                "families": _families(entry.name, proc, sysfs == "/sys"),
                "pci_id": pci[-1] if len(pci) > 1 else None,
            }
        )
    return interfaces


def _families(name: str, proc: str, is_this_host: bool) -> list[str]:
    families = []
    if is_this_host:
        import fcntl  # does not exist on Windows, where this module is imported too

        probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with probe, contextlib.suppress(OSError):
            fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            families.append("ipv4")
    lines = (text_in(Path(proc, "net/if_inet6")) or "").splitlines()
    if any(line.split()[-1] == name for line in lines):
        families.append("ipv6")
    return families


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
    """The stripped text of a small file; None if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None


def process_ids(proc: str = "/proc") -> list[int]:
    """The ids of the processes that this process can see; [] on a system without /proc."""
    try:
        return [int(name) for name in os.listdir(proc) if name.isdecimal()]
    except OSError:
        return []


def number_in(path: Path | str) -> int | None:
    """The whole number in a small file; None if it cannot be read or is not a number."""
    try:
        return int(text_in(path) or "")
    except ValueError:
        return None


# Checks of variables that name a network interface for a library. With an interface that this host
# does not have, gloo fails in init_process_group and NCCL at the first collective, and neither
# error names the variable.


def check_interfaces(backends: Iterable[BackendEntry]) -> None:
    """Raise UnavailableError if a variable of these backends names no usable interface."""
    with_variable = [entry for entry in backends if os.environ.get(entry.interfaces)]
    if not with_variable:
        return

    addressed = {i["name"]: bool(i["families"]) for i in network_interfaces()}
    for entry in with_variable:
        variable, value = entry.interfaces, os.environ[entry.interfaces]
        problem = interface_problem(entry.family == NCCL, value, addressed)
        if addressed and problem:  # without sysfs the list is empty, and no value can be judged
            usable = ", ".join(name for name, has_address in addressed.items() if has_address)
            given = f"{value} on {socket.gethostname()} ({problem})"
            action = f"Correct or unset {variable}."
            raise UnavailableError(variable, given, f"one of {usable}", action)


def interface_problem(pattern: bool, value: str, addressed: Mapping[str, bool]) -> str:
    """What is wrong with ``value``; '' if nothing. pattern: read as NCCL does (``matching``), not
    as a list. addressed: interface -> whether it has an address.
    """
    if pattern:
        usable = [name for name, has_address in addressed.items() if has_address]
        return "" if matching(value, usable) else "it matches none with an address"
    # gloo opens each name of the list exactly as it is written.
    for name in value.split(","):
        if name not in addressed:
            return f"no interface {name}" if name else "an empty name"
        if not addressed[name]:
            return f"{name} has no address"
    return ""


def matching(value: str, names: Sequence[str]) -> list[str]:
    """What NCCL selects from ``names``: ``eth`` (prefix), ``=eth0`` (exact), ``^docker`` (not)."""
    exclude = value.startswith("^")
    pattern = value.removeprefix("^")
    exact = pattern.startswith("=")
    prefixes = [w.split(":")[0] for w in pattern.removeprefix("=").split(",") if w]
    hits = {n for n in names for w in prefixes if (n == w if exact else n.startswith(w))}
    return [n for n in names if (n in hits) != exclude]

"""The ways between GPUs, and between hosts: what NCCL takes each for, in GB/s of one direction.

Within a host: NVLinks or XGMI directly or through switches, else PCI up to where both meet, and
from CPU to CPU what ncclTopoGetInterCpuBw of src/graph/topo.cc has for the processor (topo.h of
2.30). Between hosts: interfaces of the same place, which are on one rail where they are so cabled;
no file tells how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchcoll.core.errors import one_line
from torchcoll.libraries.nccl.speeds import link_gbps, network_gbps, once, pci_gbps
from torchcoll.libraries.nccl.topology import PATHS, Gpu, Link, Nic, Topology, TopologyCpu, distance
from torchcoll.libraries.nccl.xml_tree import Node

LINKED = "NVL"  # XGMI too: NCCL's word for the kind of path

# Intel's by the least model of family 6: Emerald, Sapphire Rapids, Skylake; older ones 6.
_INTEL = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0), (0, 6.0))
_AMD, _POWER, _ARM = 16.0, 32.0, 6.0


@dataclass(frozen=True)
class Way:
    """From one GPU to another. path: NCCL's word. gbps: of the narrowest part; None unknown."""

    path: str | None
    gbps: float | None


def way(one: Gpu, other: Gpu) -> Way:
    """The way that NCCL takes: links where there are any, else PCI."""
    if links := _links(one, other):
        sides = [_sum(*side) for side in links]
        return Way(LINKED, None if None in sides else min(gbps for gbps in sides if gbps))
    path = distance(one, other)
    if path is None or one.cpu is None or other.cpu is None:
        return Way(path, None)
    chains = [[n for n in (gpu.node, *gpu.node.above()) if n.tag == "pci"] for gpu in (one, other)]
    own = [n for n in chains[0] if n not in chains[1]], [n for n in chains[1] if n not in chains[0]]
    speeds = [pci_gbps(node) for part in own for node in part]
    if path == "SYS":
        speeds += [between_cpus_gbps(one.cpu), between_cpus_gbps(other.cpu)]
    known = [gbps for gbps in speeds if gbps is not None]
    return Way(path, min(known) if len(known) == len(speeds) else None)


def _links(one: Gpu, other: Gpu) -> list[tuple[Gpu, list[Link]]]:
    """Those between the two; through switches, those of each up to them."""
    direct = [link for link in one.links if link.peer is other]
    if direct:
        return [(one, direct)]
    sides = [(gpu, [x for x in gpu.links if x.to == "switch"]) for gpu in (one, other)]
    return sides if all(links for _, links in sides) else []


def _sum(gpu: Gpu, links: Sequence[Link]) -> float | None:
    speeds = [(link.count, link_gbps(gpu, link)) for link in links]
    if any(gbps is None for _, gbps in speeds):
        return None
    return round(sum(count * (gbps or 0.0) for count, gbps in speeds), 3)


def between_cpus_gbps(cpu: TopologyCpu) -> float | None:
    """None for processors that topo.cc has no figure for."""
    arch, vendor = cpu.arch, cpu.vendor
    if arch == "ppc64":
        return _POWER
    if arch == "arm64":
        return _ARM
    if vendor == "AuthenticAMD":
        return _AMD
    family, model = cpu.node.whole_number("familyid"), cpu.node.whole_number("modelid")
    if vendor != "GenuineIntel" or family is None or model is None:
        return None
    return next(gbps for least, gbps in _INTEL if (family == 6 and model >= least) or least == 0)


def nearest(gpu: Gpu, nics: Sequence[Nic]) -> list[Nic]:
    """The interfaces at the shortest distance over PCI."""
    paths = [(PATHS.index(path), nic) for nic in nics if (path := distance(nic, gpu))]
    least = min((place for place, _ in paths), default=None)
    return [nic for place, nic in paths if place == least]


@dataclass(frozen=True)
class Rail:
    """Interfaces of the same place on several hosts. names, gbps: a host each; None has none, or
    its speed is not told. As far as its PCI links go.
    """

    place: int
    names: tuple[str | None, ...]
    gbps: tuple[float | None, ...]


def rails(stated: Sequence[Topology]) -> list[Rail]:
    each = [once(one.nics) for one in stated]
    found = []
    for place in range(max(map(len, each), default=0)):
        here = [
            (own[place], one) if place < len(own) else None
            for own, one in zip(each, stated, strict=True)
        ]
        names = tuple(x[0].name or x[0].busid if x else None for x in here)
        found.append(
            Rail(place, names, tuple(network_gbps([x[0]], x[1]) if x else None for x in here))
        )
    return found


def tree_lines(stated: Topology) -> list[str]:
    """CPUs, what hangs below them, and the links of each GPU; in ASCII, for any terminal."""
    devices: dict[Node, list[Gpu | Nic]] = {}
    for gpu in stated.gpus:
        devices.setdefault(gpu.node, []).append(gpu)
    for nic in stated.nics:
        devices.setdefault(nic.node, []).append(nic)
    lines = []
    for cpu in stated.cpus:
        host = f"host {cpu.host} " if stated.hosts > 1 else ""
        numa = "?" if cpu.numa is None else cpu.numa
        lines.append(one_line(f"{host}NUMA node {numa} ({cpu.vendor or 'CPU'} {cpu.arch})"))
        lines += _below(cpu.node, devices, "")
    return lines


def _below(node: Node, devices: dict[Node, list[Gpu | Nic]], indent: str) -> list[str]:
    children = [child for child in node.children if _shown(child, devices)]
    lines: list[str] = []
    for child in children:
        last = child is children[-1]
        lines.append(f"{indent}{'`-' if last else '|-'} {_text(child, devices)}")
        lines += _below(child, devices, indent + ("   " if last else "|  "))
    return lines


def _shown(node: Node, devices: dict[Node, list[Gpu | Nic]]) -> bool:
    return node in devices or (node.tag == "pci" and any(below in devices for below in node.walk()))


def _text(node: Node, devices: dict[Node, list[Gpu | Nic]]) -> str:
    gbps = pci_gbps(node) if node.tag == "pci" else None
    link = f" (PCI {gbps:g} GB/s)" if gbps is not None else ""
    if node not in devices:
        return f"PCI switch {one_line(node.text('busid').lower())}{link}"
    words = [one_line(_device(device)) for device in devices[node]]
    return f"{', '.join(words)}{link}"


def _device(device: Gpu | Nic) -> str:
    if isinstance(device, Nic):
        speed = "" if device.speed_mbps is None else f" {device.speed_mbps / 1000:g} Gbit/s"
        return f"{device.name or 'interface ' + device.busid}{speed}"
    links = sum(link.count for link in device.links if link.to in ("switch", "gpu"))
    switches = [link for link in device.links if link.to == "switch"]
    to = f" to {len(switches)} switch{'es' if len(switches) > 1 else ''}" if switches else ""
    return f"GPU {device.name}" + (f", {links} link{'s' if links > 1 else ''}{to}" if links else "")

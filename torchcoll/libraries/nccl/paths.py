"""Paths between GPUs and rails between hosts, with the speed that NCCL assumes for each.

Speeds are in GB/s of one direction. Within a host a path goes over NVLinks or XGMI, directly or
through switches, or else over PCI up to where both devices meet. From CPU to CPU its speed is that
of ncclTopoGetInterCpuBw in src/graph/topo.cc for the processor (topo.h of 2.30). Between hosts the
interfaces with the same index form a rail, if they are cabled so, which no file tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, plural
from torchcoll.libraries.nccl.speeds import link_gbps, network_gbps, pci_gbps, unique_nics
from torchcoll.libraries.nccl.topology import PATHS, Gpu, Link, Nic, Topology, TopologyCpu, distance
from torchcoll.libraries.nccl.xml_tree import Node

LINKED = "NVL"  # NCCL's name of a path over links; also used for XGMI

# Intel: by the lowest model number of family 6 (Emerald Rapids, Sapphire Rapids, Skylake, older).
_INTEL = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0), (0, 6.0))
_AMD, _POWER, _ARM = 16.0, 32.0, 6.0


@dataclass(frozen=True)
class GpuPath:
    """The path from a GPU to another.

    path: NCCL's name of its kind.
    gbps: speed of its narrowest segment; None where that is not known.
    """

    path: str | None
    gbps: float | None


def gpu_path(source: Gpu, target: Gpu) -> GpuPath:
    """The path that NCCL uses: over links if there are any, else over PCI."""
    if links := _links(source, target):
        sides = [_sum(*side) for side in links]
        return GpuPath(LINKED, None if None in sides else min(gbps for gbps in sides if gbps))
    path = distance(source, target)
    if path is None or source.cpu is None or target.cpu is None:
        return GpuPath(path, None)
    chains = [
        [n for n in (gpu.node, *gpu.node.above()) if n.tag == "pci"] for gpu in (source, target)
    ]
    segments = (
        [n for n in chains[0] if n not in chains[1]],
        [n for n in chains[1] if n not in chains[0]],
    )
    speeds = [pci_gbps(node) for segment in segments for node in segment]
    if path == "SYS":
        speeds += [between_cpus_gbps(source.cpu), between_cpus_gbps(target.cpu)]
    rates = [gbps for gbps in speeds if gbps is not None]
    return GpuPath(path, min(rates) if len(rates) == len(speeds) else None)


def _links(source: Gpu, target: Gpu) -> list[tuple[Gpu, list[Link]]]:
    """The links between two GPUs; of GPUs that switches connect, the links of each GPU up to
    them.
    """
    direct = [link for link in source.links if link.peer is target]
    if direct:
        return [(source, direct)]
    sides = [(gpu, [x for x in gpu.links if x.to == "switch"]) for gpu in (source, target)]
    return sides if all(links for _, links in sides) else []


def _sum(gpu: Gpu, links: Sequence[Link]) -> float | None:
    speeds = [(link.count, link_gbps(gpu, link)) for link in links]
    if any(gbps is None for _, gbps in speeds):
        return None
    return round(sum(count * (gbps or 0.0) for count, gbps in speeds), 3)


def between_cpus_gbps(cpu: TopologyCpu) -> float | None:
    """The speed between CPUs of this kind; None where topo.cc has no figure for it."""
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
    """The interfaces at the shortest PCI distance from a GPU."""
    paths = [(PATHS.index(path), nic) for nic in nics if (path := distance(nic, gpu))]
    least = min((order for order, _ in paths), default=None)
    return [nic for order, nic in paths if order == least]


@dataclass(frozen=True)
class Rail:
    """The interfaces with the same index on several hosts.

    names: an entry for each host; None for a host without this interface.
    gbps: an entry for each host, limited by the PCI links; None where the speed is not known.
    """

    index: int
    names: tuple[str | None, ...]
    gbps: tuple[float | None, ...]


def rails(topologies: Sequence[Topology]) -> list[Rail]:
    """The rails between these hosts: a rail for each index of an interface."""
    each = [unique_nics(topo.nics) for topo in topologies]
    result = []
    for index in range(max(map(len, each), default=0)):
        interfaces = [
            (nics[index], topo) if index < len(nics) else None
            for nics, topo in zip(each, topologies, strict=True)
        ]
        names = tuple(x[0].name or x[0].busid if x else None for x in interfaces)
        result.append(
            Rail(index, names, tuple(network_gbps([x[0]], x[1]) if x else None for x in interfaces))
        )
    return result


def tree_lines(topo: Topology) -> list[str]:
    """The tree of CPUs, switches, interfaces and GPUs with their links; in ASCII, for any
    terminal.
    """
    devices: dict[Node, list[Gpu | Nic]] = {}
    for gpu in topo.gpus:
        devices.setdefault(gpu.node, []).append(gpu)
    for nic in topo.nics:
        devices.setdefault(nic.node, []).append(nic)
    lines = []
    for cpu in topo.cpus:
        host = f"host {cpu.host} " if topo.hosts > 1 else ""
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
    names = [one_line(_device(device)) for device in devices[node]]
    return f"{', '.join(names)}{link}"


def _device(device: Gpu | Nic) -> str:
    if isinstance(device, Nic):
        speed = "" if device.speed_mbps is None else f" {device.speed_mbps / 1000:g} Gbit/s"
        return f"{device.name or 'interface ' + device.busid}{speed}"
    links = sum(link.count for link in device.links if link.to in ("switch", "gpu"))
    switches = [link for link in device.links if link.to == "switch"]
    count = len(switches)
    to = f" to {count} {plural(count, 'switch', 'switches')}" if switches else ""
    return f"GPU {device.name}" + (f", {counted(links, 'link')}{to}" if links else "")

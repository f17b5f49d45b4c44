"""The speeds that NCCL and RCCL assume for the links of a topology, and for paths over them.

All speeds are in GB/s of one direction. NVLink: core/nvlink.py. XGMI: ncclTopoXGMISpeed of RCCL.
PCI: ncclTopoAddPci of src/graph/topo.cc, about three quarters of the wire's rate. Versions differ
slightly; these are the figures of NCCL 2.27 to 2.30, and of an RCCL that is based on 2.26.

Within a host a path goes over NVLinks or XGMI, directly or through switches, or else over PCI up to
where both devices meet. From CPU to CPU its speed is that of ncclTopoGetInterCpuBw in topo.cc for
the processor. Between hosts the interfaces with the same index form a rail, if they are cabled so,
which no file tells.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torchcoll.core.errors import one_line
from torchcoll.core.nvlink import generation_of
from torchcoll.core.units import counted, plural
from torchcoll.libraries.nccl.topology import (
    PATHS,
    Gpu,
    Link,
    Nic,
    Topology,
    TopologyCpu,
    TopologyDevice,
    distance,
)
from torchcoll.libraries.nccl.xml_tree import Node

_NVLINK_86 = 12.0  # compute capability 8.6 is an exception in ncclTopoNVLinkBw
_XGMI = ((r"910|gfx90a", 36.0), (r"gfx94\w|gfx95\w", 48.0), (r"90[0-8]|gfx90[0-8]", 24.0))
_LANE_MBPS = {2.5: 1500, 5.0: 3000, 8.0: 6000, 16.0: 12000, 32.0: 24000, 64.0: 48000}
_GT = re.compile(r"(\d+(?:\.\d+)?) GT/s")
_ASSUMED_PCI = (16, 6000)  # lanes and Mbit/s of a lane that NCCL assumes where the file has none


def link_gbps(gpu: Gpu, link: Link) -> float | None:
    """GB/s of a single one of these links; None where it is not known."""
    if link.kind == "xgmi":
        rates = (gbps for names, gbps in _XGMI if re.match(rf"(?:{names})(?!\w)", gpu.gcn))
        return next(rates, None)
    if link.kind != "nvlink" or gpu.sm is None:
        return None
    if gpu.sm == 86:
        return _NVLINK_86
    generation = generation_of(gpu.sm)
    return generation.nccl_gbps if generation else None


def wire_gbps(gpu: Gpu) -> float | None:
    """Signalling rate of one NVLink in GB/s; None where it is not known."""
    generation = generation_of(gpu.sm) if gpu.sm and gpu.sm != 86 else None
    return generation.wire_gbps if generation else None


def pci_gbps(node: Node) -> float | None:
    """GB/s of a PCI device's own link; None where the file lacks its speed or its width."""
    width, lane = _pci(node)
    return width * lane / 8000 if lane and width else None


def assumed_pci_gbps(node: Node) -> float:
    """GB/s of a PCI device's own link, with NCCL's assumptions where the file lacks its speed."""
    width, lane = _pci(node)
    return (width or _ASSUMED_PCI[0]) * (lane or _ASSUMED_PCI[1]) / 8000


def _pci(node: Node) -> tuple[int | None, int | None]:
    """(number of lanes, Mbit/s of one lane); None where the file lacks it."""
    match = _GT.match(node.text("link_speed"))
    width = node.whole_number("link_width")
    lane = _LANE_MBPS.get(float(match[1])) if match else None
    return width if width and width > 0 else None, lane


def narrowest_pci_gbps(device: TopologyDevice) -> float | None:
    """GB/s of the narrowest link from the device up to its CPU; None where one is not known."""
    chain = [device.node, *device.node.above()]
    return lowest([pci_gbps(node) for node in chain if node.tag == "pci"])


def lowest(speeds: Sequence[float | None]) -> float | None:
    """The lowest of these speeds; None without any, or if one is not known."""
    rates = [gbps for gbps in speeds if gbps is not None]
    return min(rates) if rates and len(rates) == len(speeds) else None


def _pci_wire_gbps(node: Node) -> float | None:
    """GB/s of a PCI device's own link on the wire, without its line code (8b/10b, 128b/130b)."""
    width, lane = _pci(node)
    match = _GT.match(node.text("link_speed"))
    if not (width and lane and match):
        return None
    rate = float(match[1])
    return width * rate / 8 * (128 / 130 if rate > 5 else 0.8)


def network_gbps(nics: list[Nic], topo: Topology) -> float | None:
    """GB/s of all these interfaces together; None where the speed of one is not known.

    The ports of one device share the PCI links up to where a GPU joins; data need not go further.
    Such a link limits the ports, at the speed that NCCL assumes for it, only if even its wire is
    slower than the ports: NCCL assumes 48 GB/s for a link that does carry a port of 400 Gbit/s.
    """
    joins = _gpus_below(topo.gpus)
    devices: dict[Node, list[Nic]] = {}
    for nic in nics:
        devices.setdefault(nic.node, []).append(nic)
    total = 0.0
    for ports in devices.values():
        if any(nic.speed_mbps is None for nic in ports):
            return None
        gbps = wanted = sum(nic.speed_mbps or 0 for nic in ports) / 8000
        for node in (ports[0].node, *ports[0].node.above()):
            if joins.get(node):
                break
            wire, link_speed = _pci_wire_gbps(node), pci_gbps(node)
            if node.tag == "pci" and wire is not None and link_speed is not None and wire < wanted:
                gbps = min(gbps, link_speed)
        total += gbps
    return total


def unique_nics(nics: list[Nic]) -> list[Nic]:
    """The interfaces without repetitions: a socket interface is listed below every CPU."""
    hosts = ((nic.cpu.host if nic.cpu else 0, nic) for nic in nics)
    return list({(host, n.name or n.busid, n.dev, n.port): n for host, n in hosts}.values())


def host_gbps(topo: Topology) -> float | None:
    """GB/s of all interfaces of one host together; None without any, and for several hosts."""
    hosts = {nic.cpu.host for nic in topo.nics if nic.cpu}
    return network_gbps(unique_nics(topo.nics), topo) if len(hosts) == 1 else None


def _gpus_below(gpus: list[Gpu]) -> dict[Node, set[Gpu]]:
    """Node -> the GPUs at or below it."""
    below: dict[Node, set[Gpu]] = {}
    for gpu in gpus:
        for node in (gpu.node, *gpu.node.above()):
            below.setdefault(node, set()).add(gpu)
    return below


def outward(gpu: Gpu) -> list[Link]:
    """The links over which a GPU reaches other GPUs of the file, through a switch or directly."""
    return [link for link in gpu.links if link.to == "switch" or link.peer is not None]


def sum_gbps(gpu: Gpu) -> float | None:
    """GB/s of all links over which a GPU reaches others; None without any, or if one is unknown."""
    links = outward(gpu)
    return _sum_gbps(gpu, links) if links else None


def _sum_gbps(gpu: Gpu, links: Sequence[Link]) -> float | None:
    speeds = [(link.count, link_gbps(gpu, link)) for link in links]
    if any(gbps is None for _, gbps in speeds):
        return None
    return round(sum(count * (gbps or 0.0) for count, gbps in speeds), 3)


def islands(gpus: list[Gpu]) -> list[list[Gpu]]:
    """Groups of GPUs that links or switches connect, in the order of the file."""
    group = {gpu: [gpu] for gpu in gpus}

    def join(first: Gpu, second: Gpu) -> None:
        members, added = group[first], group[second]
        if members is not added:
            members += added
            group.update({gpu: members for gpu in added})

    switched = [gpu for gpu in gpus if any(link.to == "switch" for link in gpu.links)]
    for gpu in gpus:
        if switched and gpu in switched:
            join(switched[0], gpu)
        for link in gpu.links:
            if link.peer is not None and link.peer in group:
                join(gpu, link.peer)
    by_first = {members[0]: members for members in group.values()}
    return [sorted(members, key=gpus.index) for members in by_first.values()]


@dataclass(frozen=True)
class Ceiling:
    """The busbw in GB/s that no ring can exceed and its source, or None and why it is unknown."""

    gbps: float | None
    source: str
    wire_gbps: float | None = None


def ring_ceiling(topo: Topology) -> Ceiling:
    """The ceiling of a ring. Each GPU sends all data once, so the slowest GPU bounds it."""
    gpus = topo.described_gpus
    what = "XGMI" if topo.library == "RCCL" else "NVLink"
    if topo.cut:
        return Ceiling(None, "the file is cut off: what is missing may be the slowest")
    if not gpus:
        return Ceiling(None, f"the file has no <gpu>: {what} is not in it")
    if len(gpus) == 1:
        return Ceiling(None, "one GPU alone: a communicator of one rank on this host")
    if len({gpu.node for gpu in gpus}) < len(gpus):
        return Ceiling(None, "ranks share a GPU, and so its links")
    joined = islands(gpus)
    if len(joined) == 1:
        return _links_ceiling(gpus, what, topo.library)
    if len(joined) < len(gpus) or topo.hosts > 1:
        names = " and ".join(" ".join(gpu.name for gpu in members) for members in joined)
        return Ceiling(None, f"{what} joins GPUs {names}, but not these with each other")
    speeds = [pci_gbps(gpu.node) for gpu in gpus]
    if any(gbps is None for gbps in speeds):
        source = f"no {what} joins the GPUs, and the file does not tell their PCI links"
        assumed = min(assumed_pci_gbps(gpu.node) for gpu in gpus)
        return Ceiling(None, f"{source} ({topo.library} then takes {assumed:g} GB/s)")
    # A ring crosses every link that has some of its GPUs on one side and some on the other.
    below = _gpus_below(gpus)
    crossed = [
        (gbps, node, gpu)
        for gpu in gpus
        for node in (gpu.node, *gpu.node.above())
        if node.tag == "pci" and len(below[node]) < len(gpus) and (gbps := pci_gbps(node))
    ]
    least, node, gpu = min(crossed, key=lambda crossing: crossing[0])
    which = "of one GPU" if node is gpu.node else f"between GPU {gpu.name} and its CPU"
    source = f"the PCI link {which}, {topo.library} topo.cc"
    return Ceiling(least, f"{source}; CPUs and shared switches may allow less")


def _links_ceiling(gpus: list[Gpu], what: str, library: str) -> Ceiling:
    sums = [(gbps, gpu) for gpu in gpus if (gbps := sum_gbps(gpu)) is not None]
    if len(sums) < len(gpus):
        return Ceiling(None, f"{what} of this generation is not known here")
    least, gpu = min(sums, key=lambda pair: pair[0])
    count = sum(link.count for link in outward(gpu))
    each = link_gbps(gpu, outward(gpu)[0])
    wire = wire_gbps(gpu)
    source = f"{counted(count, 'link')} x {each:g} GB/s, {library} topo.h"
    return Ceiling(least, source, round(count * wire, 3) if wire else None)


# Paths between GPUs, and rails between hosts.

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
        return GpuPath(LINKED, lowest([_sum_gbps(*side) for side in links]))
    path = distance(source, target)
    if path is None or source.cpu is None or target.cpu is None:
        return GpuPath(path, None)
    # Only the links below the first switch that both GPUs share.
    nodes = Counter(node for gpu in (source, target) for node in (gpu.node, *gpu.node.above()))
    speeds = [pci_gbps(node) for node, gpus in nodes.items() if gpus == 1 and node.tag == "pci"]
    if path == "SYS":
        speeds += [between_cpus_gbps(source.cpu), between_cpus_gbps(target.cpu)]
    return GpuPath(path, lowest(speeds))


def _links(source: Gpu, target: Gpu) -> list[tuple[Gpu, list[Link]]]:
    """The links between two GPUs; where switches connect them, the links of each up to these."""
    direct = [link for link in source.links if link.peer is target]
    if direct:
        return [(source, direct)]
    sides = [(gpu, [x for x in gpu.links if x.to == "switch"]) for gpu in (source, target)]
    return sides if all(links for _, links in sides) else []


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
    """The tree of CPUs, switches, interfaces and GPUs with their links, in ASCII."""
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
    switches = sum(link.to == "switch" for link in device.links)
    to = f" to {switches} {plural(switches, 'switch', 'switches')}" if switches else ""
    return f"GPU {device.name}" + (f", {counted(links, 'link')}{to}" if links else "")

"""The speeds that NCCL and RCCL assume for the links of a topology, and the ceiling of a ring.

All speeds are in GB/s of one direction. NVLink: core/plausibility.py. XGMI: ncclTopoXGMISpeed of
RCCL. PCI: ncclTopoAddPci of src/graph/topo.cc, about three quarters of the wire's rate. Versions
differ slightly; these are the figures of NCCL 2.27 to 2.30, and of an RCCL based on 2.26.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchcoll.core.plausibility import generation_of
from torchcoll.core.units import counted
from torchcoll.libraries.nccl.topology import Gpu, Link, Nic, Node, Topology, TopologyDevice

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


def pci_gbps(node: Node) -> float | None:
    """GB/s of a PCI device's own link; None where the file lacks its speed or its width."""
    width, lane = _pci(node)
    return width * lane / 8000 if lane and width else None


def _pci(node: Node) -> tuple[int | None, int | None]:
    """(number of lanes, Mbit/s of one lane); None where the file lacks it."""
    match = _GT.match(node.text("link_speed"))
    width = node.whole_number("link_width")
    lane = _LANE_MBPS.get(float(match[1])) if match else None
    return width if width and width > 0 else None, lane


def narrowest_pci_gbps(device: TopologyDevice) -> float | None:
    """GB/s of the narrowest link from the device up to its CPU; None where one is not known."""
    chain = (device.node, *device.node.above())
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
    if any(nic.speed_mbps is None for nic in nics):
        return None
    for ports in devices.values():
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
    speeds = [(link.count, link_gbps(gpu, link)) for link in outward(gpu)]
    if not speeds or any(gbps is None for _, gbps in speeds):
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
        links = (_pci(gpu.node) for gpu in gpus)
        usual_width, usual_lane = _ASSUMED_PCI
        assumed = min((w or usual_width) * (lane or usual_lane) / 8000 for w, lane in links)
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
    source = f"{counted(count, 'link')} x {each:g} GB/s, {library} topo.h"
    return Ceiling(least, source)

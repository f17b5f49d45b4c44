"""Facts and tables of NCCL's topology files, as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.core.errors import UnreadableError
from torchcoll.core.plausibility import device_named
from torchcoll.core.units import format_ranges
from torchcoll.libraries.nccl import speeds, topology
from torchcoll.libraries.nccl.topology import read_tree

Row = dict[str, Any]
_MOST_DEVICES = 1024  # of each kind: every interface is compared with every GPU


@dataclass
class Dump:
    """One XML file.

    facts, tables: as in ``JobLog``.
    links: (number of links, whether they go to switches, their sum in GB/s) of a GPU, where all
        GPUs have the same ones.
    """

    file: str
    facts: Row
    tables: dict[str, list[Row]] = field(default_factory=dict)
    links: tuple[int, bool, float] | None = None

    def matches(self, nvlinks: int | None, to_switch: bool | None, devices: Sequence[str]) -> bool:
        """Whether ``links`` are those of a fabric (rules/*.toml) with one of these GPUs."""
        specs = filter(None, map(device_named, devices))
        return self.links in {(nvlinks, to_switch, device.ring_gbps) for device in specs}


def read_dump(path: str) -> tuple[Dump, list[str]]:
    """Read an XML file: (its content, what was wrong with the file). Raises UnreadableError."""
    root, problems = read_tree(path)
    tags = Counter(node.tag for node in root.walk())
    if max(tags["gpu"], tags["net"]) > _MOST_DEVICES:
        expected = f"at most {_MOST_DEVICES} GPUs and interfaces"
        raise UnreadableError(f"XML {path}", "more", expected)
    topo = topology.read_topology(root, path)
    facts = {
        "library": topo.library,
        "version": topo.version or None,
        "cut": topo.cut,
        "hosts": topo.hosts,
        "gpu_count": len(topo.gpus),
        "gpus_described": len(topo.described_gpus),
        "cpu_count": len(topo.cpus),
        "cpu": " or ".join(dict.fromkeys(f"{c.vendor} {c.arch}".strip() for c in topo.cpus)),
        "nic_count": len(speeds.unique_nics(topo.nics)),
        "nics_gbps": None if topo.cut else speeds.host_gbps(topo),
        "odd_links": _odd_links(topo.described_gpus),
    }
    tables = {
        "gpus": [_gpu(gpu) for gpu in topo.gpus],
        "nics": [_nic(nic, topo) for nic in topo.nics],
        "cpus": [
            {
                "host": cpu.host,
                "numa": cpu.numa,
                "cores": format_ranges(cpu.cores) or None,
                "gpus": [gpu.name for gpu in topo.gpus if gpu.cpu is cpu],
                "nics": [nic.name or nic.busid for nic in topo.nics if nic.cpu is cpu],
            }
            for cpu in topo.cpus
        ],
    }
    tables = {name: rows for name, rows in tables.items() if rows}
    return Dump(path, facts, tables, _links(topo)), problems


def _gpu(gpu: topology.Gpu) -> Row:
    outward = speeds.outward(gpu)
    each = {speeds.link_gbps(gpu, link) for link in outward}
    whole = gpu.whole or not gpu.described
    return {
        "gpu": gpu.name,
        "rank": gpu.rank,
        "busid": gpu.busid or None,
        "generation": f"gcn {gpu.gcn}" if gpu.gcn else (gpu.sm and f"sm {gpu.sm}"),
        "gdr": gpu.gdr,
        **_place(gpu),
        "links": sum(link.count for link in outward) if gpu.described and whole else None,
        "links_to": _ends(gpu) if whole else None,
        "link_gbps": each.pop() if len(each) == 1 else None,
        "links_gbps": speeds.sum_gbps(gpu) if whole else None,
    }


def _place(device: topology.TopologyDevice) -> Row:
    return {
        "host": device.cpu.host if device.cpu else None,
        "numa": device.cpu.numa if device.cpu else None,
        "pci_speed": device.node.text("link_speed").removesuffix(" PCIe") or None,
        "pci_width": device.node.whole_number("link_width") or None,
        "pci_gbps": speeds.pci_gbps(device.node),
        "pci_to_cpu_gbps": speeds.narrowest_pci_gbps(device),
    }


def _ends(gpu: topology.Gpu) -> str | None:
    """All links of a GPU and where they end: ``12 to 6 NVSwitches``, ``1 each to GPU 1 2``."""
    texts = []
    if switches := [link for link in gpu.links if link.to == "switch"]:
        label = f"{len(switches)} NVSwitches" if len(switches) > 1 else "NVSwitch"
        texts.append(f"{sum(link.count for link in switches)} to {label}")
    for kind in dict.fromkeys(link.kind for link in gpu.links):
        peers: dict[int, list[str]] = {}
        for link in gpu.links:
            if link.peer is not None and link.kind == kind:
                peers.setdefault(link.count, []).append(link.peer.name)
        for count, names in peers.items():
            each = " each" if len(names) > 1 else ""
            texts.append(f"{count}{each} to GPU {' '.join(names)}")
    for link in gpu.links:
        if link.to == "itself":
            texts.append(f"{link.count} to itself")
        elif link.to == "cpu":
            speed = f" x {link.mbps} MB/s" if link.mbps else ""
            texts.append(f"{link.count}{speed} {'C2C ' if link.kind == 'c2c' else ''}to the CPU")
    if away := [link for link in gpu.links if link.to == "gpu" and link.peer is None]:
        texts.append(f"{sum(link.count for link in away)} to GPUs that are not in the file")
    return ", ".join(texts) or None


def _odd_links(gpus: list[topology.Gpu]) -> list[Row]:
    """GPUs with fewer links than most GPUs have. A link that is down is not in the file."""
    counts = {
        gpu.name: sum(link.count for link in gpu.links if link.kind != "c2c")
        for gpu in gpus
        if gpu.whole
    }
    if len(set(counts.values())) < 2:
        return []
    usual = max(set(counts.values()), key=lambda n: (Counter(counts.values())[n], n))
    return [{"gpu": name, "links": n, "usual": usual} for name, n in counts.items() if n < usual]


def _links(topo: topology.Topology) -> tuple[int, bool, float] | None:
    """``Dump.links``, of one host only: links within a host identify no fabric between hosts."""
    if topo.cut or topo.hosts > 1 or not topo.described_gpus:
        return None
    distinct = set()
    for gpu in topo.described_gpus:
        outward = speeds.outward(gpu)
        to_switch = bool(outward) and all(link.to == "switch" for link in outward)
        distinct.add((sum(link.count for link in outward), to_switch, speeds.sum_gbps(gpu)))
    count, switch, gbps = distinct.pop()
    return (count, switch, gbps) if not distinct and gbps is not None else None


def _nic(nic: topology.Nic, topo: topology.Topology) -> Row:
    paths = [(topology.distance(nic, gpu), gpu) for gpu in topo.gpus]
    near = min((topology.PATHS.index(path) for path, _ in paths if path), default=None)
    return {
        "nic": nic.name or nic.busid,
        "dev": nic.dev,
        "port": nic.port,
        "busid": nic.busid or None,
        "gbits": None if nic.speed_mbps is None else nic.speed_mbps / 1000,
        "gdr": nic.gdr,
        **_place(nic),
        "nearest_gpus": [g.name for p, g in paths if p and topology.PATHS.index(p) == near],
        "path": None if near is None else topology.PATHS[near],
    }

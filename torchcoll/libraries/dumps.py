"""What NCCL's topology and graph files come to: facts and tables of them, as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.core.errors import UnreadableError
from torchcoll.core.plausibility import device_named
from torchcoll.core.units import format_ranges
from torchcoll.libraries.nccl import speeds
from torchcoll.libraries.nccl.graphs import IDS, Channel, Graphs, graphs, pattern_name
from torchcoll.libraries.nccl.topology import (
    PATHS,
    Gpu,
    Nic,
    Topology,
    TopologyDevice,
    distance,
    topology,
)
from torchcoll.libraries.nccl.xml_tree import Node, read_tree

Row = dict[str, Any]
_MOST_DEVICES = 1024  # of each kind: every interface is looked at beside every GPU


@dataclass
class Dump:
    """kind: ``topology`` or ``graphs``. facts, tables: as those of a JobLog.

    links: (links, to a switch, GB/s) of a GPU where all have the same ones.
    """

    kind: str
    file: str
    facts: Row
    tables: dict[str, list[Row]] = field(default_factory=dict)
    links: tuple[int, bool, float] | None = None

    def is_of(self, nvlinks: int | None, to_switch: bool | None, devices: Sequence[str]) -> bool:
        """Whether the links are those of a fabric of these devices (rules/*.toml)."""
        known = [device for name in devices if (device := device_named(name))]
        each = {device.ring_gbps for device in known}
        return self.links in {(nvlinks, to_switch, gbps) for gbps in each}


def read_dump(path: str) -> tuple[Dump, list[str]]:
    """A dump, and what was wrong with its file. Raises UnreadableError."""
    root, problems = read_tree(path)
    return (_topology if root.tag == "system" else _graphs)(root, path), problems


def _topology(root: Node, path: str) -> Dump:
    tags = Counter(node.tag for node in root.walk())
    if max(tags["gpu"], tags["net"]) > _MOST_DEVICES:
        expected = f"at most {_MOST_DEVICES} GPUs and interfaces"
        raise UnreadableError(f"XML {path}", "more", expected)
    stated = topology(root, path)
    ceiling = speeds.ring_ceiling(stated)
    facts = {
        "library": stated.library,
        "version": stated.version or None,
        "cut": stated.cut,
        "hosts": stated.hosts,
        "gpu_count": len(stated.gpus),
        "gpus_described": len(stated.stated),
        "cpu_count": len(stated.cpus),
        "cpu": " or ".join(dict.fromkeys(f"{c.vendor} {c.arch}".strip() for c in stated.cpus)),
        "nic_count": len(speeds.once(stated.nics)),
        "nics_gbps": None if stated.cut else speeds.host_gbps(stated),
        "ring_ceiling_gbps": ceiling.gbps,
        "ring_ceiling_source": ceiling.source,
        "ring_wire_gbps": ceiling.wire_gbps,
        "nvls": any(
            link.to == "switch" for g in stated.gpus if (g.sm or 0) >= 90 for link in g.links
        ),
        "odd_links": _odd(stated.stated),
    }
    tables = {
        "gpus": [_gpu(gpu) for gpu in stated.gpus],
        "nics": [_nic(nic, stated) for nic in stated.nics],
        "cpus": [
            {
                "host": cpu.host,
                "numa": cpu.numa,
                "cores": format_ranges(cpu.cores) or None,
                "gpus": [gpu.name for gpu in stated.gpus if gpu.cpu is cpu],
                "nics": [nic.name or nic.busid for nic in stated.nics if nic.cpu is cpu],
            }
            for cpu in stated.cpus
        ],
    }
    return Dump("topology", path, facts, _filled(tables), _links(stated))


def _filled(tables: dict[str, list[Row]]) -> dict[str, list[Row]]:
    return {name: rows for name, rows in tables.items() if rows}


def _gpu(gpu: Gpu) -> Row:
    outward = speeds.outward(gpu)
    each = {speeds.link_gbps(gpu, link) for link in outward}
    whole = gpu.whole or not gpu.stated
    return {
        "gpu": gpu.name,
        "rank": gpu.rank,
        "busid": gpu.busid or None,
        "generation": f"gcn {gpu.gcn}" if gpu.gcn else (gpu.sm and f"sm {gpu.sm}"),
        "gdr": gpu.gdr,
        **_place(gpu),
        "links": sum(link.count for link in outward) if gpu.stated and whole else None,
        "links_to": _ends(gpu) if whole else None,
        "link_gbps": each.pop() if len(each) == 1 else None,
        "links_gbps": speeds.sum_gbps(gpu) if whole else None,
    }


def _place(device: TopologyDevice) -> Row:
    speed, width = device.node.text("link_speed"), device.node.whole_number("link_width")
    own, narrowest = speeds.pci_gbps(device.node), speeds.narrowest_pci_gbps(device)
    return {
        "host": device.cpu.host if device.cpu else None,
        "numa": device.cpu.numa if device.cpu else None,
        "pci_speed": speed.removesuffix(" PCIe") or None,
        "pci_width": width or None,
        "pci_gbps": own,
        "pci_to_cpu_gbps": narrowest,
    }


def _ends(gpu: Gpu) -> str | None:
    """``12 to 6 NVSwitches``, ``1 each to GPU 1 2``: all links of a GPU and where they end."""
    texts = []
    switches = [link for link in gpu.links if link.to == "switch"]
    if switches:
        many = f"{len(switches)} NVSwitches" if len(switches) > 1 else "NVSwitch"
        texts.append(f"{sum(link.count for link in switches)} to {many}")
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
    away = [link for link in gpu.links if link.to == "gpu" and link.peer is None]
    if away:
        texts.append(f"{sum(link.count for link in away)} to GPUs that are not in the file")
    return ", ".join(texts) or None


def _odd(gpus: list[Gpu]) -> list[Row]:
    """GPUs with fewer links than most: a link that is down is not in the file."""
    counts = {
        gpu.name: sum(link.count for link in gpu.links if link.kind != "c2c")
        for gpu in gpus
        if gpu.whole
    }
    if len(set(counts.values())) < 2:
        return []
    usual = max(set(counts.values()), key=lambda n: (Counter(counts.values())[n], n))
    return [{"gpu": name, "links": n, "usual": usual} for name, n in counts.items() if n < usual]


def _links(stated: Topology) -> tuple[int, bool, float] | None:
    """Of one host alone: a fabric that connects hosts is not known by the links within."""
    if stated.cut or stated.hosts > 1 or not stated.stated:
        return None
    found = set()
    for gpu in stated.stated:
        outward = speeds.outward(gpu)
        found.add(
            (
                sum(link.count for link in outward),
                bool(outward) and all(link.to == "switch" for link in outward),
                speeds.sum_gbps(gpu),
            )
        )
    count, switch, gbps = found.pop()
    return (count, switch, gbps) if not found and gbps is not None else None


def _nic(nic: Nic, stated: Topology) -> Row:
    paths = [(distance(nic, gpu), gpu) for gpu in stated.gpus]
    near = min((PATHS.index(path) for path, _ in paths if path), default=None)
    return {
        "nic": nic.name or nic.busid,
        "dev": nic.dev,
        "port": nic.port,
        "busid": nic.busid or None,
        "gbits": None if nic.speed_mbps is None else nic.speed_mbps / 1000,
        "gdr": nic.gdr,
        **_place(nic),
        "nearest_gpus": [g.name for p, g in paths if p and PATHS.index(p) == near],
        "path": None if near is None else PATHS[near],
    }


def _graphs(root: Node, path: str) -> Dump:
    found = graphs(root)
    used = [one for one in found if one.channels or one.orders]
    rings = [one for one in used if one.id == 0 and one.whole]
    facts: Row = {
        "version": root.text("version") or None,
        "cut": not root.whole,
        "graph_count": len(used),
        "unused": [_name(one) for one in found if one not in used],
        "alone": bool(used) and all(one.alone for one in used),
        "leaves_host": any(one.leaves_host for one in used),
        "ring_gbps": rings[0].together_gbps if len(rings) == 1 else None,
    }
    tables = {
        "graphs": [
            {
                "graph": _name(one),
                "pattern": pattern_name(one.pattern) or None,
                "channels": one.channels,
                "channels_read": len(one.orders),
                "gpus": max((len(c.gpus) for c in one.orders), default=None),
                "intra_gbps": one.intra_gbps,
                "inter_gbps": one.inter_gbps if one.leaves_host else None,
                "together_gbps": one.together_gbps,
                "intra_type": one.intra_type or None,
                "inter_type": (one.inter_type or None) if one.leaves_host else None,
                "crosses_nics": one.crossnic,
                "fallback": one.fallback,
            }
            for one in used
        ],
        "channels": [row for one in used for row in _orders(one)],
    }
    return Dump("graphs", path, facts, _filled(tables))


def _name(one: Graphs) -> str:
    number = one.id
    if number is None:
        return "?"
    return IDS[number] if 0 <= number < len(IDS) else f"graph {number}"


def _orders(one: Graphs) -> list[Row]:
    """Each order of the GPUs with its channels."""
    orders: dict[Channel, list[int]] = {}
    for number, channel in enumerate(one.orders):
        orders.setdefault(channel, []).append(number)
    return [
        {
            "graph": _name(one),
            "channels": format_ranges(numbers),
            "gpus": list(channel.gpus),
            "ranks": None if channel.ranks is None else list(channel.ranks),
            "nets": list(channel.nets),
        }
        for channel, numbers in orders.items()
    ]

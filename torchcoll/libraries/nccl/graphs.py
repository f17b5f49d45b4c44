"""The graphs that NCCL's search found for a topology (NCCL_GRAPH_DUMP_FILE, NCCL_GRAPH_FILE).

The speeds are not measurements: the search tries those of a fixed list and takes as many channels
as the links can then carry (src/graph/search.cc). The channels are those of the search; a
communicator runs twice as many or more over the same links (src/graph/connect.cc).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torchcoll.libraries.nccl.xml_tree import Node

IDS = ("ring", "tree", "CollNet chain", "NVLS", "CollNet direct")
_PATTERNS = ("", "balanced tree", "split tree", "tree", "ring", "NVLS", "CollNetDirect")
FALLBACK_GBPS = 0.1  # search.cc: no path was found, so the ranks are used in their order


class Channel(NamedTuple):
    """The order of the GPUs in one channel.

    gpus, nets: numbers of the NVML and network devices, in the order of the channel. A device of
        any host but the first is ``host-device``.
    ranks: the ranks of the GPUs; None where the file does not have them (NCCL < 2.30).
    """

    gpus: tuple[str, ...]
    ranks: tuple[int, ...] | None
    nets: tuple[str, ...]


@dataclass(frozen=True)
class SearchGraph:
    """One graph of the file. A field is None where its value is not known.

    channels: their number, by the attribute of the graph.
    intra_gbps, inter_gbps: bandwidth of one channel between GPUs of a host, and to its network.
    intra_type, inter_type: NCCL's name of the longest path that the search allowed.
    orders: the channels that are complete in the file.
    whole: the file has the end of this graph.
    """

    id: int | None
    pattern: int | None
    channels: int | None
    intra_gbps: float | None
    inter_gbps: float | None
    intra_type: str
    inter_type: str
    crossnic: bool | None
    orders: tuple[Channel, ...]
    whole: bool

    @property
    def leaves_host(self) -> bool:
        return any(channel.nets for channel in self.orders)

    @property
    def alone(self) -> bool:
        """The graph has one GPU and no network, so the search used no link."""
        isolated = self.intra_type == "LOC" and not self.leaves_host
        return isolated and bool(self.orders) and all(len(c.gpus) == 1 for c in self.orders)

    @property
    def fallback(self) -> bool:
        return self.intra_gbps == FALLBACK_GBPS

    @property
    def together_gbps(self) -> float | None:
        """Of all channels; of a ring, the busbw that NCCL expects. None without any link."""
        speeds = [self.intra_gbps, *([self.inter_gbps] if self.leaves_host else [])]
        counted = self.whole and not self.alone and not self.fallback
        if not self.channels or not counted or any(speed is None for speed in speeds):
            return None
        return round(self.channels * min(speed for speed in speeds if speed is not None), 3)


def pattern_name(number: int | None) -> str:
    """The name of a pattern (NCCL_TOPO_PATTERN_*); '' for None."""
    if number is None:
        return ""
    return _PATTERNS[number] if 0 < number < len(_PATTERNS) else f"pattern {number}"


def read_graphs(root: Node) -> list[SearchGraph]:
    """Read the graphs of a ``<graphs>`` element, including those without channels."""
    return [
        SearchGraph(
            node.whole_number("id"),
            node.whole_number("pattern"),
            node.whole_number("nchannels"),
            node.number("speedintra"),
            node.number("speedinter"),
            node.text("typeintra"),
            node.text("typeinter"),
            node.yes("crossnic"),
            tuple(_channel(child) for child in node.each("channel") if child.whole),
            node.whole,
        )
        for node in root.each("graph")
    ]


def _channel(node: Node) -> Channel:
    gpus = list(node.each("gpu"))
    ranks = [rank for gpu in gpus if (rank := gpu.whole_number("rank")) is not None]
    return Channel(
        tuple(_device(gpu) for gpu in gpus),
        tuple(ranks) if gpus and len(ranks) == len(gpus) else None,
        tuple(_device(net) for net in node.each("net")),
    )


def _device(node: Node) -> str:
    """Name of a device. From NCCL 2.21 on the highest byte of ``dev`` is the number of the host."""
    number = node.whole_number("dev")
    if number is None or number < 0:
        return "?"
    host, device = number >> 56, number & ((1 << 56) - 1)
    return f"{host}-{device}" if host else str(device)

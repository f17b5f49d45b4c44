"""What NCCL's search made of a topology: NCCL_GRAPH_DUMP_FILE, or a file for NCCL_GRAPH_FILE.

The numbers are the search's own, no measurement: it tries the speeds of a fixed list and takes as
many channels as the links then carry (src/graph/search.cc). Channels here are those of the
search; a communicator runs twice as many or more over the same links (src/graph/connect.cc).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torchcoll.libraries.nccl.xml_tree import Node

IDS = ("ring", "tree", "CollNet chain", "NVLS", "CollNet direct")
_PATTERNS = ("", "balanced tree", "split tree", "tree", "ring", "NVLS", "CollNetDirect")
FALLBACK_GBPS = 0.1  # search.cc: no path was found, and the ranks are taken in their order


class Channel(NamedTuple):
    """gpus, nets: NVML and network device numbers in the order of the channel; of the others of
    several hosts ``host-device``. ranks: where the file tells them (NCCL >= 2.30).
    """

    gpus: tuple[str, ...]
    ranks: tuple[int, ...] | None
    nets: tuple[str, ...]


@dataclass(frozen=True)
class Graphs:
    """One graph. channels: as its attribute says; those that are whole in the file are ``orders``.

    Bandwidths in GB/s a channel: between GPUs of a host, and to its network. Types are NCCL's names
    of the longest path that the search allowed. None is not known.
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
        """Of one GPU and no network: its search counted no link at all."""
        one = self.intra_type == "LOC" and not self.leaves_host
        return one and bool(self.orders) and all(len(c.gpus) == 1 for c in self.orders)

    @property
    def fallback(self) -> bool:
        return self.intra_gbps == FALLBACK_GBPS

    @property
    def together_gbps(self) -> float | None:
        """All channels: what NCCL expects of a ring as busbw. None where no link was counted."""
        speeds = [self.intra_gbps, *([self.inter_gbps] if self.leaves_host else [])]
        counted = self.whole and not self.alone and not self.fallback
        if not self.channels or not counted or any(speed is None for speed in speeds):
            return None
        return round(self.channels * min(speed for speed in speeds if speed is not None), 3)


def pattern_name(number: int | None) -> str:
    if number is None:
        return ""
    return _PATTERNS[number] if 0 < number < len(_PATTERNS) else f"pattern {number}"


def graphs(root: Node) -> list[Graphs]:
    """The graphs of a ``<graphs>``, those without channels too."""
    return [
        Graphs(
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
    """From 2.21 on the highest byte of ``dev`` is the number of the host."""
    number = node.whole_number("dev")
    if number is None or number < 0:
        return "?"
    host, own = number >> 56, number & ((1 << 56) - 1)
    return f"{host}-{own}" if host else str(own)

"""What NCCL's log says of a communicator's paths: rings, trees, connections, graphs found.

Each takes a message and gives what it says; None, or nothing, where the line was cut.
"""

from __future__ import annotations

import re

from torchcoll.libraries.nccl.graph import pattern_name
from torchcoll.libraries.nccl.members import Graph

# Ends with the ranks, or with what RCCL adds: else it is a connection that was cut.
_RING = re.compile(r"Channel (\d+)/\d+ :((?: +\d+)+)(?: *\.\.\.)?(?: comm .*)?$")
_CONNECTION = re.compile(
    r"(?:Channel|CollNet) (\d+)(?:/\d+)? : (\d+)(?:\[\w+\] -> (\d+)\[\w+\])?(?: \[\w+\])? "
    r"via ((?:P2P|SHM|NET|COLLNET|MNNVL)\b\S*)"
)
_NUMBERS = re.compile(r"/\d+(?:\(\d+\))?(?:\[\w+\])?")
_TREE = re.compile(r"\[(\d+)\] -?\d+/-?\d+/-?\d+->(\d+)->(-?\d+)")
_KINDS = re.compile(r"(\d+) (coll|collnet|nvls|p2p) channels(?! per)")
_PATTERN = re.compile(
    r"Pattern (\d+), crossNic \d+, nChannels (\d+), (?:bw|speed) (\d+(?:\.\d+)?)/(\d+(?:\.\d+)?), "
    r"type (\w+)/(\w+), sameChannels \d"
)
_SYSTEM = re.compile(
    r"=== System : max(?:Bw|Width) (\d+\.\d+)(?: total(?:Bw|Width) (\d+\.\d+))? ==="
)


def ring_of(message: str) -> tuple[int, tuple[int, ...]] | None:
    """(channel, ranks in order) of ``Channel 00/02 : 0 1``."""
    found = _RING.search(message)
    return (int(found[1]), tuple(map(int, found[2].split()))) if found else None


def connection_of(message: str) -> tuple[str, tuple[int, int] | None] | None:
    """(transport, pair of ranks) of ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``; devices and
    channels of the transport are left out: NET/IB/0/GDRDMA is NET/IB/GDRDMA.
    """
    found = _CONNECTION.search(message)
    if not found:
        return None
    pair = (int(found[2]), int(found[3])) if found[3] else None
    return _NUMBERS.sub("", found[4]), pair


def parents_of(message: str) -> dict[int, int]:
    """channel -> the rank above, of ``Trees [0] 1/-1/-1->0->-1``."""
    return {int(channel): int(up) for channel, _, up in _TREE.findall(message)}


def channels_of(message: str) -> dict[str, int]:
    """``24 coll channels, 16 nvls channels, ...``"""
    return {kind: int(number) for number, kind in _KINDS.findall(message)}


def graph_of(message: str) -> Graph | None:
    """``Pattern 4, crossNic 0, nChannels 12, bw 30.0/20.5, type NVL/PIX, sameChannels 1``."""
    found = _PATTERN.search(message)
    if not found:
        return None
    pattern = pattern_name(int(found[1]))
    return Graph(pattern, int(found[2]), float(found[3]), float(found[4]), found[5], found[6])


def bandwidths_of(message: str) -> tuple[float, float | None] | None:
    """(max, total) in GB/s of ``=== System : maxBw 240.0 totalBw 240.0 ===``: see Member."""
    found = _SYSTEM.match(message)
    return (float(found[1]), float(found[2]) if found[2] else None) if found else None

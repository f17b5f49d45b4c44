"""What a single message of NCCL's or RCCL's log says, whatever process it is of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from torchcoll.libraries.nccl.algorithms import PROTOCOLS, canonical
from torchcoll.libraries.nccl.topology import pattern_name


class Tuned(NamedTuple):
    """A cell of the tuning table, NCCL's cost model. An algbw of 0 means: never used."""

    function: str
    algorithm: str
    protocol: str
    latency_us: float
    algbw_gbps: float


class Graph(NamedTuple):
    """What the topology search found for a pattern; bandwidths in GB/s of one channel."""

    pattern: str
    channels: int
    intra_gbps: float
    inter_gbps: float
    intra_type: str
    inter_type: str


# Known messages with nothing that a table here shows.
#
# First words, and beginnings, of the INFO texts in ``libnccl.so.2`` 2.21.5 and 2.30.7 and in logs
# of 2.8 to 2.30 and of RCCL 2.26 to 2.30. Any other message is counted as unknown, because another
# version may log something new.

_TEXT = """
    Affinity Allocated Assigned Bootstrap Bootstrap: bootstrapSplit: CC Call Check Communicator
    Connected Could Cross-clique DMABUF DMA-BUF DMA_BUF Dmabuf ENV/Plugin: Enabled Failed GDRCOPY
    GIN GIN/Plugin: GPU Generated HIP Hipruntime Ignoring Imported Initialized Kernel LSA Launch
    Loading Local MNNVL MSCCL MSCCL++ Made Max Mem MemManager: NET NET/IB NET/OFI NET/Plugin
    NET/Plugin: NET/Socket NVLS New P2P PARAM: PROFILER/Plugin: PXN Plugin Protocol Proxy RAS
    RMA/Plugin: ROCr Rank Received Ring Search Setting Skipping Socket Successfully Symmetric
    TOPO/NET TUNER/Plugin: Topology Tree Tuning UDS: Using rank threadThresholds timings:
    ncclTopoGetCpuAffinity: ncclTopoPopulateNics
"""
_WORDS = frozenset(_TEXT.split())
_BEGINNINGS = (
    *("=== ", "===", "+ ", "- ", "[Proxy", "[Service", "GPU/", "CPU/", "NET/", "NVS/", "PCI/"),
    *("NIC/", "C2C", "GIN/", "Comm config ", "(", "ncclOs"),
)
# Shapes of lines: `src/misc/utils.cc:233 memory stack hunk` is of the ALLOC subsystem,
# ` 0 : NET/0 GPU/0 ...` is a channel of a graph, and `opCount` is of the COLL subsystem, which logs
# a line for each call and rank.
_SHAPES = re.compile(
    r"\S+\.(?:cc|cpp|h):\d+ |\s*\d+ : (?:NET|GPU)/|\w+: opCount [0-9a-f]+ sendbuff "
)


def is_known(first_word: str, message: str) -> bool:
    """Whether a message with this first word is one of NCCL's that is not needed here."""
    if message.startswith("Bootstrap timings"):
        return False
    return (
        first_word in _WORDS
        or not first_word
        or message.lstrip().startswith(_BEGINNINGS)
        or bool(_SHAPES.match(message))
        or " set to " in message
    )


# Parsers of a communicator's paths: rings, trees, connections and graphs.
#
# Each takes a message and returns its values; None, or an empty dict, if the line was cut.

# A ring ends with the ranks, or with what RCCL appends. Any other line that begins so is a
# connection that was cut.
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


def parse_ring(message: str) -> tuple[int, tuple[int, ...]] | None:
    """(channel, ranks in order) of ``Channel 00/02 : 0 1``."""
    match = _RING.search(message)
    return (int(match[1]), tuple(map(int, match[2].split()))) if match else None


def parse_connection(message: str) -> tuple[str, tuple[int, int] | None] | None:
    """(transport, pair of ranks) of ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``, without the
    numbers of devices and channels: NET/IB/0/GDRDMA is NET/IB/GDRDMA.
    """
    match = _CONNECTION.search(message)
    if not match:
        return None
    pair = (int(match[2]), int(match[3])) if match[3] else None
    return _NUMBERS.sub("", match[4]), pair


def parse_parents(message: str) -> dict[int, int]:
    """Channel -> parent of this rank, of ``Trees [0] 1/-1/-1->0->-1``."""
    return {int(channel): int(up) for channel, _, up in _TREE.findall(message)}


def parse_channels(message: str) -> dict[str, int]:
    """Kind -> number, of ``24 coll channels, 16 nvls channels, ...``."""
    return {kind: int(number) for number, kind in _KINDS.findall(message)}


def parse_graph(message: str) -> Graph | None:
    """Parse ``Pattern 4, crossNic 0, nChannels 12, bw 30.0/20.5, type NVL/PIX, sameChannels 1``."""
    match = _PATTERN.search(message)
    if not match:
        return None
    pattern = pattern_name(int(match[1]))
    return Graph(pattern, int(match[2]), float(match[3]), float(match[4]), match[5], match[6])


def parse_bandwidths(message: str) -> tuple[float, float | None] | None:
    """(max_gbps, total_gbps) of a Member, of ``=== System : maxBw 240.0 totalBw 240.0 ===``."""
    match = _SYSTEM.match(message)
    return (float(match[1]), float(match[2]) if match[2] else None) if match else None


# Parsers of the tuning table: what the cost model expects of each algorithm and protocol.
#
# Up to 2.17 one table, ``Latency/AlgBw | Tree/ LL | Tree/ LL128 |``; from 2.18 on blocks of
# algorithms, ``Algorithm | Tree | Ring | CollNetDirect |``, with three columns each. Both are
# followed by a row for each function.

Column = tuple[str, str]  # (algorithm, protocol)
_CELL = re.compile(r"(\d+\.\d+)/(\d+\.\d+)$")


def parse_columns(message: str) -> tuple[list[Column], bool]:
    """The columns of a block (>= 2.18), and whether all of its algorithms are known."""
    names = [canonical(cell.strip()) for cell in message.split("|")[1:-1]]
    columns = [(name, protocol) for name in names if name for protocol in PROTOCOLS]
    return columns, bool(columns) and None not in names


def parse_wide_columns(message: str) -> tuple[list[Column], bool]:
    """The columns of the only table (<= 2.17), and whether each was complete."""
    cells = [cell.split("/") for cell in message.split("|")[1:-1]]
    # Before 2.14 CollNet was a single algorithm; 2.14 added the chain.
    columns = [
        (canonical(a.strip()) or a.strip().upper(), canonical(p.strip()) or "")
        for a, p in (cell for cell in cells if len(cell) == 2)
    ]
    return columns, bool(columns) and len(columns) == len(cells)


def parse_row(message: str, columns: Sequence[Column]) -> list[Tuned]:
    """Parse ``AllReduce | 16.8/ 0.5 | ...``; [] for a row that is cut off, or of another table."""
    name, *cells = (cell.strip() for cell in message.split("|"))
    values = [_CELL.match(cell.replace(" ", "")) for cell in cells[:-1]]
    if len(values) != len(columns) or not all(values):
        return []
    return [
        Tuned(name, *column, float(value[1]), float(value[2]))
        for column, value in zip(columns, values, strict=True)
        if value
    ]

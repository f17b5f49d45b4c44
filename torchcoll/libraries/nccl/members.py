"""What NCCL's log tells of a process, and of a rank in a communicator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from torchcoll.libraries.calls import Call


class Tuned(NamedTuple):
    """A cell of the tuning table: what the cost model expects. algbw 0: not to be used."""

    function: str
    algorithm: str
    protocol: str
    latency_us: float
    algbw_gbps: float


class Graph(NamedTuple):
    """What the topology search found for a pattern; bandwidths in GB/s a channel."""

    pattern: str
    channels: int
    intra_gbps: float
    inter_gbps: float
    intra_type: str
    inter_type: str


@dataclass
class Member:
    """One rank of one communicator, as its process tells; None and '' are not told.

    comm_id: equal on all ranks (NCCL >= 2.18; of a split where it is told). parent, split: the
    handle that it was split from, and (number of the split, color). timings: the parts of 'Init
    timings' (>= 2.22) and ``total``, seconds; without ``rest`` the line was cut. bootstrap: alike
    (>= 2.23). rings: channel -> ranks in order. up: channel -> the rank above this one in the tree,
    -1 at its root. max_gbps: the best path from a GPU of this host to another, or to a network
    interface where the communicator has several hosts; total_gbps: all NVLinks of a GPU, or its PCI
    link where that is more (src/graph/search.cc, ncclTopoSearchInit). As NCCL reckons them.
    """

    rank: int | None = None
    nranks: int | None = None
    handle: str = ""
    made_by: str = ""
    comm_id: str = ""
    parent: str = ""
    split: tuple[int, int] | None = None
    cuda_dev: int | None = None
    bus_id: str = ""
    nodes: int | None = None
    local_ranks: int | None = None
    started: bool = False
    complete: bool = False
    ended: str = ""
    nvls: bool = False
    timings: dict[str, float] = field(default_factory=dict)
    bootstrap: dict[str, float] = field(default_factory=dict)
    channels: dict[str, int] = field(default_factory=dict)
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    up: dict[int, int] = field(default_factory=dict)
    max_gbps: float | None = None
    total_gbps: float | None = None
    graphs: list[Graph] = field(default_factory=list)
    tuning: list[Tuned] = field(default_factory=list)


@dataclass
class Process:
    """What one process tells. transports: kind -> connections; pairs: kind -> (from, to) ranks."""

    host: str
    pid: int
    file: str = ""
    library: str = "NCCL"
    version: str = ""
    git: str = ""
    driver: str = ""
    network: str = ""
    tuner: str = ""
    nvls: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    transports: Counter[str] = field(default_factory=Counter)
    pairs: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    calls: Counter[Call] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)

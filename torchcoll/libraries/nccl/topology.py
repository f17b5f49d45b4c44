"""NCCL's picture of a host: what NCCL_TOPO_DUMP_FILE has, or a file for NCCL_TOPO_FILE.

A dump has a ``<gpu>`` for each rank of the host and a ``<net>`` for each network interface. A file
that somebody wrote for NCCL_TOPO_FILE may have neither: NCCL adds them when it starts. There the
class of a PCI device says what it is. RCCL's files have ``xgmi`` for ``nvlink``, and their ``sm``
counts compute units.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torchcoll.core.bounds import MOST_DEPTH, MOST_TEXT
from torchcoll.core.errors import UnreadableError
from torchcoll.core.jsonl import lines_of
from torchcoll.core.stdin import from_stdin

# -------------------------------------------------------------------------------------------------
# The XML that NCCL and RCCL write of themselves, as a tree of plain nodes.
#
# NCCL_TOPO_DUMP_FILE has the root ``<system>``, NCCL_GRAPH_DUMP_FILE ``<graphs>``
# (src/graph/xml.cc). Each communicator overwrites the file, and people send parts of it: of a file
# that ends early everything before the cut is there, and what the cut left open is marked. No such
# file has a DTD or an entity, so both are refused.

ROOTS = ("system", "graphs")
_WHAT = "XML"
_MOST_FIGURE = 1e18
_MOST_NODES = 100_000  # 64 channels of 1000 GPUs are 64 000
_EXPECTED = "<system> (NCCL_TOPO_DUMP_FILE) or <graphs> (NCCL_GRAPH_DUMP_FILE)"
# expat's numbers of what only the end of the text can bring about: nothing there, an open token,
# half a character, an open CDATA section.
_CUT = (3, 5, 6, 20)
_BEGINS = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:\?xml|!--|!DOCTYPE|system|graphs)")


@dataclass(eq=False)
class Node:
    """One element. whole: its end was read. line: where it begins."""

    tag: str
    attributes: dict[str, str]
    parent: Node | None = field(default=None, repr=False)
    children: list[Node] = field(default_factory=list, repr=False)
    whole: bool = False

    def text(self, name: str) -> str:
        return self.attributes.get(name, "").strip()

    def whole_number(self, name: str) -> int | None:
        """Decimal or ``0x``; None where it is neither."""
        text = self.text(name)
        try:
            value = int(text, 16 if text.lower().startswith("0x") else 10)
        except ValueError:
            return None
        return value if abs(value) < 1 << 64 else None  # identifiers have 64 bits

    def number(self, name: str) -> float | None:
        try:
            value = float(self.text(name))
        except ValueError:
            return None
        return value if abs(value) < _MOST_FIGURE else None

    def yes(self, name: str) -> bool | None:
        value = self.whole_number(name)
        return None if value is None else value != 0

    def each(self, *tags: str) -> Iterator[Node]:
        return (child for child in self.children if child.tag in tags)

    def walk(self) -> Iterator[Node]:
        """All below it, in the order of the file. No recursion: nothing bounds how deep it is."""
        waiting = self.children[::-1]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children[::-1]

    def above(self) -> Iterator[Node]:
        node = self.parent
        while node is not None:
            yield node
            node = node.parent


class _Builder:
    """expat's calls -> nodes. ``root`` is there from the first element on."""

    def __init__(self, path: str) -> None:
        self.root: Node | None = None
        self._open: Node | None = None
        self._path = path
        self._depth = self._count = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._count += 1
        if self._depth > MOST_DEPTH or self._count > _MOST_NODES:
            what = f"XML {self._path}"
            if self._depth > MOST_DEPTH:
                raise UnreadableError(what, "more", f"at most {MOST_DEPTH} elements in each other")
            raise UnreadableError(what, "more", f"at most {_MOST_NODES} elements")
        node = Node(tag, attributes, self._open)
        if self._open is not None:
            self._open.children.append(node)
        self.root = self.root or node
        self._open = node

    def end(self, tag: str) -> None:
        self._depth -= 1
        if self._open is not None:
            self._open.whole = True
            self._open = self._open.parent

    def close(self) -> None:
        return None


def is_dump(path: str) -> bool:
    """Whether a file (.gz too) begins as such XML does; a log may begin with another ``<``.

    Raises UnreadableError for a file that cannot be read.
    """
    lines = (line for line in lines_of(Path(path), [], "log", MOST_TEXT) if line.strip())
    return bool(_BEGINS.match(next(lines, b"")))


def read_tree(path: str) -> tuple[Node, list[str]]:
    """The root of a dump, and what was wrong with the file: where it ends early.

    Raises UnreadableError for a file that cannot be read, is not well formed, has a DTD, or is the
    XML of something else.
    """
    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import DefusedXMLParser, ParseError

    problems: list[str] = []
    path = str(from_stdin(path))
    builder = _Builder(path)
    parser = DefusedXMLParser(target=builder, forbid_dtd=True)
    try:
        for line in lines_of(Path(path), problems, _WHAT):
            parser.feed(line)
        parser.close()
    except DefusedXmlException:
        raise UnreadableError(_WHAT, path, "a file without DTD and entities") from None
    except ParseError as error:
        if error.code not in _CUT or builder.root is None:
            raise UnreadableError(_WHAT, path, f"well-formed XML ({error})") from None
        if not problems:
            problems.append(f"{path}: cut off ({error}): what stands before that is read")
    except (LookupError, ValueError) as error:  # an encoding that Python does not have
        raise UnreadableError(_WHAT, path, f"well-formed XML ({error})") from None
    root = builder.root
    if root is None or root.tag not in ROOTS:
        got = f"<{root.tag}> in {path}" if root else path
        raise UnreadableError(_WHAT, got, _EXPECTED)
    return root, problems


# -------------------------------------------------------------------------------------------------

# The beginnings of PCI classes, as in src/graph/topo.cc (kvDictPciClass); 0x12 is RCCL's.
SWITCH, BRIDGE = "0x068000", "0x068001"
_GPU, _NIC = ("0x03", "0x12"), ("0x02",)
# In the order of NCCL's enum: the nearest first.
PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")


@dataclass
class TopologyCpu:
    """A NUMA node. host: number of the host in the file. cores: of its affinity mask."""

    node: Node = field(repr=False)
    host: int
    numa: int | None
    arch: str
    vendor: str
    cores: tuple[int, ...]


@dataclass
class Link:
    """Links of one GPU to one other end. kind: nvlink, xgmi or c2c.

    to: switch, gpu (``peer`` where the file has it), itself, or cpu. mbps: MB/s, told of c2c alone.
    """

    kind: str
    target: str
    count: int
    to: str
    peer: Gpu | None = None
    mbps: int | None = None


@dataclass(eq=False)
class TopologyDevice:
    """A GPU or a network interface and its place: ``node`` is the PCI device, or what stands for
    it. Its own PCI link is that of ``node``.
    """

    node: Node = field(repr=False)
    cpu: TopologyCpu | None
    busid: str
    whole: bool


@dataclass(eq=False)
class Gpu(TopologyDevice):
    """stated: it has a ``<gpu>``; else only its PCI device is known. sm: compute capability x
    10. gcn: AMD's name or number of the generation. part: of a GPU that ranks share (MLOPart).
    """

    stated: bool = False
    dev: int | None = None
    rank: int | None = None
    sm: int | None = None
    gcn: str = ""
    gdr: bool | None = None
    links: list[Link] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its number, on the second host of a file ``1-3``, as NCCL writes them."""
        own = self.busid if self.dev is None else str(self.dev)
        return f"{self.cpu.host}-{own}" if self.cpu and self.cpu.host else own


@dataclass(eq=False)
class Nic(TopologyDevice):
    """speed_mbps: Mbit/s; None where it is not known (NCCL then takes 10000). coll: its plug-in
    reduces within the network (SHARP).
    """

    name: str = ""
    dev: int | None = None
    port: int | None = None
    speed_mbps: int | None = None
    gdr: bool | None = None
    coll: bool = False


@dataclass
class Topology:
    """library: NCCL or RCCL. cut: the file ends early, so that anything may be missing."""

    file: str
    library: str
    version: str
    cut: bool
    hosts: int
    cpus: list[TopologyCpu]
    gpus: list[Gpu]
    nics: list[Nic]

    @property
    def stated(self) -> list[Gpu]:
        return [gpu for gpu in self.gpus if gpu.stated]


def topology(root: Node, file: str = "") -> Topology:
    """The tree of a ``<system>`` as GPUs, network interfaces and CPUs."""
    hashes: dict[str, int] = {}
    cpus = [_cpu(node, hashes) for node in root.walk() if node.tag == "cpu"]
    of = {cpu.node: cpu for cpu in cpus}
    gpus: list[Gpu] = []
    nics: list[Nic] = []
    for node in root.walk():
        if node.tag == "pci":
            gpus += _gpus(node, of)
        if node.tag == "nic" or (node.tag == "pci" and _bare(node, _NIC)):
            nics += _nics(node, _cpu_of(node, of))
    for gpu in gpus:
        _find_peers(gpu, gpus)
    amd = root.text("version") == "2" or any(gpu.gcn for gpu in gpus)
    library = "RCCL" if amd else "NCCL"
    hosts = max(len(hashes), 1)
    return Topology(file, library, root.text("version"), not root.whole, hosts, cpus, gpus, nics)


def distance(one: TopologyDevice, other: TopologyDevice) -> str | None:
    """The PCI path between two devices in NCCL's words: PIX through one switch, PXB through
    several, PHB through the CPU, SYS from CPU to CPU. None between hosts, and where unknown.

    As src/graph/paths.cc counts, but for some switches of Broadcom, whose two levels NCCL takes for
    one: their PXB is its PIX.
    """
    if one.cpu is None or other.cpu is None or one.cpu.host != other.cpu.host:
        return None
    if one.cpu is not other.cpu:
        return "SYS"
    mine, theirs = ([n for n in d.node.above() if n.tag == "pci"] for d in (one, other))
    common = next((step for step, key in enumerate(mine) if key in theirs), None)
    if common is None:
        return "PHB"
    return "PIX" if common + theirs.index(mine[common]) == 0 else "PXB"


def _cpu_of(node: Node, of: dict[Node, TopologyCpu]) -> TopologyCpu | None:
    return next((of[above] for above in node.above() if above in of), None)


def _cpu(node: Node, hashes: dict[str, int]) -> TopologyCpu:
    host = hashes.setdefault(node.text("host_hash"), len(hashes))
    offset = node.whole_number("affinity_offset") or 0
    cores = tuple(core + offset for core in _cores(node.text("affinity")))
    numa = node.whole_number("numaid")
    return TopologyCpu(node, host, numa, node.text("arch"), node.text("vendor"), cores)


def _cores(mask: str) -> Iterator[int]:
    """``00000000,00ffffff``: words of 32 bits, the highest first."""
    for place, word in enumerate(reversed(mask.split(","))):
        try:
            bits = int(word, 16) & 0xFFFFFFFF
        except ValueError:
            continue
        yield from (32 * place + bit for bit in range(32) if bits >> bit & 1)


def _bare(node: Node, classes: tuple[str, ...]) -> bool:
    """A PCI device of these classes whose ``<gpu>`` or ``<nic>`` is not in the file."""
    stated = any(node.each("gpu", "nic"))
    return node.text("class").lower().startswith(classes) and not stated


def _gpus(node: Node, of: dict[Node, TopologyCpu]) -> Iterator[Gpu]:
    stated, bare = list(node.each("gpu")), _bare(node, _GPU)
    if not stated and not bare:
        return
    busid, cpu = node.text("busid").lower(), _cpu_of(node, of)
    if bare:
        yield Gpu(node, cpu, busid, node.whole)
    for own in stated:
        gcn = own.text("gcn")
        yield Gpu(
            node,
            cpu,
            busid,
            own.whole,
            stated=True,
            dev=own.whole_number("dev"),
            rank=own.whole_number("rank"),
            sm=None if gcn else own.whole_number("sm"),
            gcn=gcn,
            gdr=own.yes("gdr"),
            links=[link for child in own.children if (link := _link(child, busid))],
        )


def _link(node: Node, busid: str) -> Link | None:
    count = node.whole_number("count")
    if node.tag not in ("nvlink", "xgmi", "c2c") or count is None or count < 1:
        return None
    target, tclass = node.text("target").lower(), node.text("tclass").lower()
    if node.tag == "c2c" or tclass == BRIDGE:
        return Link(node.tag, target, count, "cpu", mbps=node.whole_number("bw"))
    if tclass == SWITCH:
        return Link(node.tag, target, count, "switch")
    return Link(node.tag, target, count, "itself" if target == busid else "gpu")


def _find_peers(gpu: Gpu, gpus: list[Gpu]) -> None:
    for link in gpu.links:
        if link.to == "gpu":
            same = (g for g in gpus if g.busid == link.target)
            link.peer = next((g for g in same if _host(g) == _host(gpu)), None)


def _host(device: TopologyDevice) -> int | None:
    return device.cpu.host if device.cpu else None


def _nics(node: Node, cpu: TopologyCpu | None) -> Iterator[Nic]:
    if node.tag == "pci":  # without <nic>
        yield Nic(node, cpu, node.text("busid").lower(), node.whole)
        return
    pci = node.parent if node.parent is not None and node.parent.tag == "pci" else None
    busid = pci.text("busid").lower() if pci else ""
    for net in node.each("net"):
        # One that NCCL fused with others into a virtual one has net="0", or no dev.
        if net.yes("net") is False or net.whole_number("dev") is None:
            continue
        speed = net.whole_number("speed")
        yield Nic(
            pci or node,
            cpu,
            busid,
            net.whole,
            name=net.text("name"),
            dev=net.whole_number("dev"),
            port=net.whole_number("port"),
            speed_mbps=speed if speed and speed > 0 else None,
            gdr=net.yes("gdr"),
            coll=net.yes("coll") or False,
        )


# -------------------------------------------------------------------------------------------------
# What NCCL's search made of a topology: NCCL_GRAPH_DUMP_FILE, or a file for NCCL_GRAPH_FILE.
#
# The numbers are the search's own, no measurement: it tries the speeds of a fixed list and takes as
# many channels as the links then carry (src/graph/search.cc). Channels here are those of the
# search; a communicator runs twice as many or more over the same links (src/graph/connect.cc).

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

"""Reads NCCL's topology of a host: a dump (NCCL_TOPO_DUMP_FILE), or a file for NCCL_TOPO_FILE.

A dump has a ``<gpu>`` for each rank of the host and a ``<net>`` for each network interface. A
file for NCCL_TOPO_FILE may have neither, because NCCL adds them when it starts; then the class of
a PCI device tells what it is. RCCL's files have ``xgmi`` in place of ``nvlink``, and their ``sm``
is the number of compute units.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchcoll.core.bounds import MOST_DEPTH, MOST_TEXT
from torchcoll.core.errors import UnreadableError
from torchcoll.core.jsonl import lines_of
from torchcoll.core.opening import from_stdin

# The beginnings of PCI classes, as in src/graph/topo.cc (kvDictPciClass); 0x12 is RCCL's.
SWITCH, BRIDGE = "0x068000", "0x068001"
_GPU, _NIC = ("0x03", "0x12"), ("0x02",)
# In the order of NCCL's enum: the nearest first.
PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")


@dataclass
class TopologyCpu:
    """A NUMA node.

    host: number of the host in the file.
    cores: numbers of the cores in its affinity mask.
    """

    node: Node = field(repr=False)
    host: int
    numa: int | None
    arch: str
    vendor: str
    cores: tuple[int, ...]


@dataclass
class Link:
    """Links of one GPU that have the same other end.

    kind: nvlink, xgmi or c2c.
    target: bus id of the other end.
    to: switch, gpu, itself or cpu.
    peer: the GPU at the other end, where the file has it.
    mbps: MB/s of a c2c link; None for others.
    """

    kind: str
    target: str
    count: int
    to: str
    peer: Gpu | None = None
    mbps: int | None = None


@dataclass(eq=False)
class TopologyDevice:
    """A GPU or a network interface and its location.

    node: the element of its PCI device, whose link is the device's own, or the element in its
        place.
    whole: the file has the end of its element.
    """

    node: Node = field(repr=False)
    cpu: TopologyCpu | None
    busid: str
    whole: bool


@dataclass(eq=False)
class Gpu(TopologyDevice):
    """A GPU.

    described: the file has its ``<gpu>``; otherwise only its PCI device is known.
    sm: compute capability x 10.
    gcn: AMD's name or number of the generation.
    """

    described: bool = False
    dev: int | None = None
    rank: int | None = None
    sm: int | None = None
    gcn: str = ""
    gdr: bool | None = None
    links: list[Link] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its number; on the second host of a file ``1-3``, as NCCL writes it."""
        number = self.busid if self.dev is None else str(self.dev)
        return f"{self.cpu.host}-{number}" if self.cpu and self.cpu.host else number


@dataclass(eq=False)
class Nic(TopologyDevice):
    """A port of a network interface.

    speed_mbps: Mbit/s; None where it is not known (NCCL then assumes 10000).
    coll: its plug-in reduces within the network (SHARP).
    """

    name: str = ""
    dev: int | None = None
    port: int | None = None
    speed_mbps: int | None = None
    gdr: bool | None = None
    coll: bool = False


@dataclass
class Topology:
    """The hosts of one file.

    library: NCCL or RCCL.
    cut: the file ends early, so anything may be missing.
    hosts: how many hosts the file has.
    """

    file: str
    library: str
    version: str
    cut: bool
    hosts: int
    cpus: list[TopologyCpu]
    gpus: list[Gpu]
    nics: list[Nic]

    @property
    def described_gpus(self) -> list[Gpu]:
        """The GPUs that have a ``<gpu>`` in the file."""
        return [gpu for gpu in self.gpus if gpu.described]


def read_topology(root: Node, file: str = "") -> Topology:
    """Read the GPUs, network interfaces and CPUs of a ``<system>`` element."""
    hashes: dict[str, int] = {}
    cpus = [_cpu(node, hashes) for node in root.walk() if node.tag == "cpu"]
    cpus_by_node = {cpu.node: cpu for cpu in cpus}
    gpus: list[Gpu] = []
    nics: list[Nic] = []
    for node in root.walk():
        if node.tag == "pci":
            gpus += _gpus(node, cpus_by_node)
        if node.tag == "nic" or (node.tag == "pci" and _bare(node, _NIC)):
            nics += _nics(node, _find_cpu(node, cpus_by_node))
    for gpu in gpus:
        for link in gpu.links:
            if link.to == "gpu":
                candidates = (g for g in gpus if g.busid == link.target)
                link.peer = next((g for g in candidates if _host(g) == _host(gpu)), None)
    amd = root.text("version") == "2" or any(gpu.gcn for gpu in gpus)
    library = "RCCL" if amd else "NCCL"
    hosts = max(len(hashes), 1)
    return Topology(file, library, root.text("version"), not root.whole, hosts, cpus, gpus, nics)


def distance(first: TopologyDevice, second: TopologyDevice) -> str | None:
    """NCCL's name of the PCI path between two devices: PIX through one switch, PXB through several,
    PHB through the CPU, SYS from CPU to CPU. None between hosts, and where it is not known.

    The rules are those of src/graph/paths.cc, with one exception: NCCL merges the two levels of
    some Broadcom switches, so it has PIX where this function returns PXB.
    """
    if first.cpu is None or second.cpu is None or first.cpu.host != second.cpu.host:
        return None
    if first.cpu is not second.cpu:
        return "SYS"
    chains = ([n for n in d.node.above() if n.tag == "pci"] for d in (first, second))
    first_chain, second_chain = chains
    common = next((step for step, key in enumerate(first_chain) if key in second_chain), None)
    if common is None:
        return "PHB"
    return "PIX" if common + second_chain.index(first_chain[common]) == 0 else "PXB"


def _find_cpu(node: Node, cpus_by_node: dict[Node, TopologyCpu]) -> TopologyCpu | None:
    return next((cpus_by_node[n] for n in node.above() if n in cpus_by_node), None)


def _cpu(node: Node, hashes: dict[str, int]) -> TopologyCpu:
    host = hashes.setdefault(node.text("host_hash"), len(hashes))
    offset = node.whole_number("affinity_offset") or 0
    cores = tuple(core + offset for core in _cores(node.text("affinity")))
    numa = node.whole_number("numaid")
    return TopologyCpu(node, host, numa, node.text("arch"), node.text("vendor"), cores)


def _cores(mask: str) -> Iterator[int]:
    """Numbers of the cores in a mask like ``00000000,00ffffff``: 32 bits each, highest first."""
    for index, chunk in enumerate(reversed(mask.split(","))):
        try:
            bits = int(chunk, 16) & 0xFFFFFFFF
        except ValueError:
            continue
        yield from (32 * index + bit for bit in range(32) if bits >> bit & 1)


def _bare(node: Node, classes: tuple[str, ...]) -> bool:
    """Whether this is a PCI device of these classes without ``<gpu>`` or ``<nic>`` in the file."""
    described = any(node.each("gpu", "nic"))
    return node.text("class").lower().startswith(classes) and not described


def _gpus(node: Node, cpus_by_node: dict[Node, TopologyCpu]) -> Iterator[Gpu]:
    elements, bare = list(node.each("gpu")), _bare(node, _GPU)
    if not elements and not bare:
        return
    busid, cpu = node.text("busid").lower(), _find_cpu(node, cpus_by_node)
    if bare:
        yield Gpu(node, cpu, busid, node.whole)
    for element in elements:
        gcn = element.text("gcn")
        yield Gpu(
            node,
            cpu,
            busid,
            element.whole,
            described=True,
            dev=element.whole_number("dev"),
            rank=element.whole_number("rank"),
            sm=None if gcn else element.whole_number("sm"),
            gcn=gcn,
            gdr=element.yes("gdr"),
            links=[link for child in element.children if (link := _link(child, busid))],
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


def _host(device: TopologyDevice) -> int | None:
    return device.cpu.host if device.cpu else None


def _nics(node: Node, cpu: TopologyCpu | None) -> Iterator[Nic]:
    if node.tag == "pci":  # without <nic>
        yield Nic(node, cpu, node.text("busid").lower(), node.whole)
        return
    pci = node.parent if node.parent is not None and node.parent.tag == "pci" else None
    busid = pci.text("busid").lower() if pci else ""
    for net in node.each("net"):
        # An interface that NCCL merged with others into a virtual one has net="0", or no dev.
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


_ACTION = "Give one that NCCL wrote (NCCL_TOPO_DUMP_FILE=topo.xml); torchcoll show reads results."
_WHAT = "XML"
_MOST_NODES = 100_000
# expat's error codes for a text that ends early: no element, an open token, half a character, an
# open CDATA section.
_CUT = (3, 5, 6, 20)
_BEGINS = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:\?xml|!--|!DOCTYPE|system|graphs)")


@dataclass(eq=False)
class Node:
    """One element. whole: its end was read."""

    tag: str
    attributes: dict[str, str]
    parent: Node | None = field(default=None, repr=False)
    children: list[Node] = field(default_factory=list, repr=False)
    whole: bool = False

    def text(self, name: str) -> str:
        return self.attributes.get(name, "").strip()

    def whole_number(self, name: str) -> int | None:
        """A decimal or ``0x`` number; None for any other text."""
        text = self.text(name)
        try:
            value = int(text, 16 if text.lower().startswith("0x") else 10)
        except ValueError:
            return None
        return value if abs(value) < 1 << 64 else None  # identifiers have 64 bits

    def yes(self, name: str) -> bool | None:
        value = self.whole_number(name)
        return None if value is None else value != 0

    def each(self, *tags: str) -> Iterator[Node]:
        return (child for child in self.children if child.tag in tags)

    def walk(self) -> Iterator[Node]:
        """All nodes below this one, in the order of the file. Not recursive: a tree can be deep."""
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
    """Builds the nodes from expat's callbacks. ``root`` is set by the first element."""

    def __init__(self, path: str) -> None:
        self.root: Node | None = None
        self._open: Node | None = None
        self._path = path
        self._depth = self._count = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._count += 1
        what = f"XML {self._path}", "more"
        if self._depth > MOST_DEPTH:
            raise UnreadableError(*what, f"at most {MOST_DEPTH} elements in each other")
        if self._count > _MOST_NODES:
            raise UnreadableError(*what, f"at most {_MOST_NODES} elements")
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
    """Whether a file (also .gz) begins as these XML files do. Raises UnreadableError."""
    lines = (line for line in lines_of(Path(path), [], "log", MOST_TEXT) if line.strip())
    return bool(_BEGINS.match(next(lines, b"")))


def read_tree(path: str) -> tuple[Node, list[str]]:
    """(root, problems) of a file. Raises UnreadableError for broken XML, a DTD or another root."""
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
            raise UnreadableError(_WHAT, path, f"well-formed XML ({error})", _ACTION) from None
        if not problems:
            problems.append(f"{path}: cut off ({error}): the part before that is read")
    except (LookupError, ValueError) as error:  # an encoding that Python does not have
        raise UnreadableError(_WHAT, path, f"well-formed XML ({error})", _ACTION) from None
    root = builder.root
    if root is None or root.tag != "system":
        actual = f"<{root.tag}> in {path}" if root else path
        raise UnreadableError(_WHAT, actual, "<system> (NCCL_TOPO_DUMP_FILE)")
    return root, problems

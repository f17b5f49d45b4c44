"""NCCL's picture of a host: what NCCL_TOPO_DUMP_FILE has, or a file for NCCL_TOPO_FILE.

A dump has a ``<gpu>`` for each rank of the host and a ``<net>`` for each network interface. A file
that somebody wrote for NCCL_TOPO_FILE may have neither: NCCL adds them when it starts. There the
class of a PCI device says what it is. RCCL's files have ``xgmi`` for ``nvlink``, and their ``sm``
counts compute units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torchcoll.libraries.nccl.xml_tree import Node

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
        for link in gpu.links:
            if link.to == "gpu":
                same = (g for g in gpus if g.busid == link.target)
                link.peer = next((g for g in same if _host(g) == _host(gpu)), None)
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

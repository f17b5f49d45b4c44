"""The busbw that NCCL's algorithms can reach on a topology.

A ceiling counts bytes: what each GPU, or each host, must send and receive in one call of size S,
over the links that the topology file lists. It is not a forecast.

n: ranks, h: hosts, g: GPUs of a host. Sending S over links of B GB/s takes S / B. The busbw of an
all-reduce is 2 (n - 1) / n times S over the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, plural
from torchcoll.libraries.nccl import speeds
from torchcoll.libraries.nccl.algorithms import FUNCTIONS
from torchcoll.libraries.nccl.topology import Topology

RING, TREE, NVLS, NVLS_TREE, COLLNET = "RING", "TREE", "NVLS", "NVLS_TREE", "COLLNET"
DIRECT = "sends and receives"  # all that NCCL has no algorithm for
_RINGS = tuple(FUNCTIONS)
_REDUCED = ("all_reduce",)
_SHARED = ("all_gather", "reduce_scatter")
_DIRECT = tuple(
    c.name
    for c in COLLECTIVES.values()
    if c.has_data and c.name not in FUNCTIONS and not c.has_splits
)

# nvlsEfficiency of NCCL's tuning.cc by generation (major compute capability).
_EFFICIENCY = {9: 0.85, 10: 0.74}
_OF_A_RING = "the busbw of a ring is what each GPU sends"


@dataclass(frozen=True)
class Reach:
    """The hardware that an algorithm can use: equal hosts, or the weakest host in each respect.

    gpus: GPUs of each host.
    links: ceiling of a ring within one host.
    gpu_gbps: what the slowest GPU can send over its own links; None where it is not known.
    nics_gbps: all interfaces of the slowest host together; None where it is not known.
    nics: how many interfaces that host has.
    generation: major compute capability of the oldest GPU.
    switched: whether NVSwitches connect all GPUs of a host.
    in_network: whether every host has an interface that reduces in the network (SHARP).
    library: NCCL or RCCL, whose speeds of links are used.
    """

    hosts: int
    gpus: int
    links: speeds.Ceiling
    gpu_gbps: float | None
    nics_gbps: float | None
    nics: int
    generation: int | None
    switched: bool
    in_network: bool
    library: str = "NCCL"

    @property
    def ranks(self) -> int:
        return self.hosts * self.gpus


@dataclass(frozen=True)
class AlgorithmLimit:
    """The busbw that an algorithm can reach in some collectives.

    gbps: the limit; None where it is not known, and then ``formula`` says why.
    formula: how the limit is computed.
    source: where the speeds of the links come from.
    tuned: gbps contains a constant of NCCL's tuning model. Then it is what NCCL expects, and not
        a bound.
    """

    algorithm: str
    collectives: tuple[str, ...]
    gbps: float | None
    formula: str
    source: str = ""
    tuned: bool = False


def make_reach(topologies: Sequence[Topology], hosts: int | None = None) -> Reach:
    """What these hosts have together; ``hosts``: so many hosts like the only one."""
    links = [speeds.ring_ceiling(topo) for topo in topologies]
    without = [(topo, link) for topo, link in zip(topologies, links, strict=True) if not link.gbps]
    unknown = without[0][1] if without else None
    if unknown and len(topologies) > 1:
        file, count = one_line(without[0][0].file.rpartition("/")[2]), len(without)
        such = f"{count} of {len(topologies)} files {plural(count, 'gives', 'give')} none"
        unknown = replace(unknown, source=f"{such}, such as {file}: {unknown.source}")
    gpus = [gpu for topo in topologies for gpu in topo.described_gpus]
    link_speeds = [speeds.sum_gbps(gpu) or speeds.pci_gbps(gpu.node) for gpu in gpus]
    networks = [
        (None if topo.cut else speeds.host_gbps(topo), len(speeds.unique_nics(topo.nics)))
        for topo in topologies
    ]
    with_speed = [(gbps, count) for gbps, count in networks if gbps is not None]
    nics_gbps, nics = min(with_speed) if len(with_speed) == len(networks) else (None, 0)
    sms = [gpu.sm for gpu in gpus if gpu.sm]
    return Reach(
        hosts=len(topologies) if hosts is None else hosts,
        gpus=min(len(topo.described_gpus) for topo in topologies),
        links=unknown or min(links, key=lambda link: link.gbps or 0.0),
        gpu_gbps=speeds.lowest(link_speeds),
        nics_gbps=nics_gbps,
        nics=nics,
        generation=min(sms) // 10 if len(sms) == len(gpus) and sms else None,
        switched=bool(gpus) and all(any(x.to == "switch" for x in g.links) for g in gpus),
        in_network=all(any(nic.coll for nic in topo.nics) for topo in topologies),
        library=topologies[0].library,
    )


def algorithm_limits(reach: Reach) -> list[AlgorithmLimit]:
    """The limit of every algorithm, or in ``formula`` the reason why these hosts cannot use it."""
    if reach.hosts == 1:
        return _within(reach)
    if reach.nics_gbps is not None and reach.gpus:
        return _between(reach, reach.nics_gbps)
    unknown = "the file does not tell how fast the interfaces of a host are"
    text = unknown if reach.gpus else reach.links.source
    reduced = (AlgorithmLimit(name, _REDUCED, None, text) for name in (TREE, NVLS_TREE, COLLNET))
    return [AlgorithmLimit(RING, _RINGS, None, text), *reduced]


def _within(reach: Reach) -> list[AlgorithmLimit]:
    links = reach.links
    if links.gbps is None or reach.gpu_gbps is None:
        no_pci = "the PCI links of the GPUs are not in the file"
        why = links.source if links.gbps is None else no_pci
        names = ((RING, _RINGS), (TREE, _REDUCED), (NVLS, _REDUCED), (DIRECT, _DIRECT))
        limits = [AlgorithmLimit(name, collectives, None, why) for name, collectives in names]
    else:
        b = links.gbps
        limits = [
            AlgorithmLimit(RING, _RINGS, b, _OF_A_RING, links.source),
            _tree(reach, b),
            *_nvls(reach, b),
            AlgorithmLimit(DIRECT, _DIRECT, b, "each GPU sends what others get", links.source),
        ]
    why = "it is for several hosts only"
    return [*limits, AlgorithmLimit(COLLNET, _REDUCED, None, why)]


def _tree(reach: Reach, b: float) -> AlgorithmLimit:
    """The limit of a tree within a host: a chain with half the bus bandwidth (tuning.cc)."""
    n = reach.gpus
    gpu_gbps, source = reach.gpu_gbps or b, reach.links.source
    if n == 2:
        return AlgorithmLimit(TREE, _REDUCED, gpu_gbps, "two GPUs: each sends S", source)
    # Over a link that several GPUs share, S passes once in each direction.
    algbw = min(gpu_gbps / 2, b)
    formula = f"(n-1)/n x {gpu_gbps:g}: a GPU inside the chain sends S up and S down"
    return AlgorithmLimit(TREE, _REDUCED, _busbw(algbw, n), formula, source)


def _nvls(reach: Reach, b: float) -> list[AlgorithmLimit]:
    n, efficiency = reach.gpus, _efficiency(reach)
    if not reach.switched or efficiency is None:
        why = "no NVSwitch joins the GPUs" if not reach.switched else "needs Hopper or newer"
        return [AlgorithmLimit(NVLS, _REDUCED, None, why)]
    source = "bytes counted; efficiency: nvlsEfficiency, NCCL tuning.cc"
    gbps = efficiency * b
    reduced = f"{efficiency:g} x {b:g} x 2 (n-1)/(n+1): each GPU sends S, and S/n for all"
    shared = f"{efficiency:g} x {b:g} x (n-1)/n: S passes each GPU's links, its own part too"
    return [
        AlgorithmLimit(NVLS, _REDUCED, gbps * 2 * (n - 1) / (n + 1), reduced, source, True),
        AlgorithmLimit(NVLS, _SHARED, gbps * (n - 1) / n, shared, source, True),
    ]


_INSIDE = "within each host: {0}"


def _between(reach: Reach, nics: float) -> list[AlgorithmLimit]:
    """Limits over several hosts: the lower of the hosts' interfaces and the links within a host."""
    n, h, g = reach.ranks, reach.hosts, reach.gpus
    # With one GPU per host, no link within a host is used.
    b = None if g == 1 or reach.gpu_gbps is None else reach.links.gbps
    interfaces = f"{counted(reach.nics, 'interface')} of a host, {nics:g} GB/s"
    if g > 1 and b is None:
        interfaces += "; what the links within a host allow is not known"

    def lower(
        name: str, names: tuple[str, ...], network: tuple[float, str], inside: tuple[float, str]
    ) -> AlgorithmLimit:
        gbps, formula = network
        if b is None or gbps <= inside[0]:
            return AlgorithmLimit(name, names, gbps, formula, interfaces)
        gbps, formula = inside
        return AlgorithmLimit(name, names, gbps, _INSIDE.format(formula), reach.links.source)

    links = b or 0.0
    passed = "a host's interfaces pass all that a GPU's links pass"
    limits = [lower(RING, _RINGS, (nics, passed), (links, _OF_A_RING))]
    trees = tree_gbps(nics, h, n), "a host sends 2 (h-1)/h S, the mean of two trees"
    chain = _busbw(min((reach.gpu_gbps or 0.0) / (2 if g > 2 else 1), links), n)
    text = "a GPU inside the chain sends S up and S down" if g > 2 else "each GPU sends S"
    limits.append(lower(TREE, _REDUCED, trees, (chain, text)))
    efficiency = _efficiency(reach)
    if b is None or not reach.switched or efficiency is None:
        why = "no NVSwitch joins the GPUs of a host, or they are older than Hopper"
        limits.append(AlgorithmLimit(NVLS_TREE, _REDUCED, None, why))
    else:
        switch = _busbw(efficiency * links * g / (g + 1), n)
        text = f"{efficiency:g} x {links:g}, each GPU sends S, and S/g for all"
        tree = lower(NVLS_TREE, _REDUCED, trees, (switch, text))
        limits.append(replace(tree, tuned=tree.gbps == switch))
    if not reach.in_network:
        why = "no interface with coll=1 (a plug-in that reduces in the network) in the file"
        return [*limits, AlgorithmLimit(COLLNET, _REDUCED, None, why)]
    network = _busbw(nics, n), "a host sends and receives S once, the network reduces"
    inside = _busbw(links * g / (2 * (g - 1)), n) if g > 1 else 0.0
    return [*limits, lower(COLLNET, _REDUCED, network, (inside, "each GPU sends 2 (g-1)/g S"))]


def tree_gbps(nics: float, hosts: int, ranks: int) -> float:
    """What the interfaces of a host, ``nics`` GB/s together, allow a pair of trees over hosts."""
    return _busbw(nics * hosts / (2 * (hosts - 1)), ranks)


def _efficiency(reach: Reach) -> float | None:
    return _EFFICIENCY.get(min(reach.generation or 0, 10))


def _busbw(algbw: float, n: int) -> float:
    return algbw * 2 * (n - 1) / n

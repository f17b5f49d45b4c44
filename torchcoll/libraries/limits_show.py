"""What a topology allows: the device tree, the paths between GPUs, each algorithm's limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.answer import Answer
from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_bandwidth, shorten
from torchcoll.libraries.nccl import speeds
from torchcoll.libraries.nccl.ceilings import AlgorithmLimit, Reach, algorithm_limits
from torchcoll.libraries.nccl.speeds import GpuPath, Rail, gpu_path, nearest, rails, tree_lines
from torchcoll.libraries.nccl.topology import Gpu, Topology
from torchcoll.libraries.shares import Machine
from torchcoll.report.grid import Grid, Head, make_grid

_ASSUMED_HOSTS = (2, 4)  # numbers of hosts that are assumed where one host is given
_MATRIX = 32  # GPUs in the matrix of paths; json has all
_MOST_NAMES = 4  # nearest interfaces in a row
_PATHS = (
    "NVL: links of the GPUs, directly or through switches; PIX, PXB: through one PCI switch, "
    "several; PHB: through the CPU; SYS: from CPU to CPU"
)
_ASSUMED_SPEED = "GB/s of one direction, as {0} reckons, below the rate of the wire"

_DUMP = "set NCCL_TOPO_DUMP_FILE=topo.xml for a job on this machine, and give that file"

Limits = list[tuple[Reach, list[AlgorithmLimit]]]


@dataclass(frozen=True)
class LimitsView:
    """The limits of a machine in each form.

    titled: (title, tables). rows: one for each algorithm and number of hosts. document: for json.
    """

    titled: list[tuple[str, list[Grid]]]
    rows: list[dict[str, Any]]
    document: dict[str, Any]
    answer: Answer


def limits_view(machine: Machine) -> LimitsView:
    """Return what the links of ``machine`` allow."""
    limits = _limits(machine)
    rows = [_record(reach, limit) for reach, reach_limits in limits for limit in reach_limits]
    several = len(machine.hosts) > 1
    titled: list[tuple[str, list[Grid]]] = []
    for topo in machine.hosts:
        tree = Grid([], [], above=tree_lines(topo))
        title = one_line(topo.file) if several else ""
        titled.append((title, [tree, _matrix(topo), _sums(topo)]))
    titled.append(("", _between(machine)))
    for reach, reach_limits in limits:
        titled.append(
            (f"{_scope_text(reach, not several)}: busbw", [_limits_grid(reach, reach_limits)])
        )
    return LimitsView(titled, rows, _document(machine, rows), _answer(limits, machine))


def _limits(machine: Machine) -> Limits:
    counts = [1, len(machine.hosts)]
    if len(machine.hosts) == 1 and machine.reach(1).nics_gbps is not None:
        counts = [1, *_ASSUMED_HOSTS]
    reaches = [machine.reach(count) for count in dict.fromkeys(counts)]
    return [(reach, algorithm_limits(reach, machine.graphs)) for reach in reaches]


def _answer(limits: Limits, machine: Machine) -> Answer:
    """The headline: what each reach allows, and the slowest path between the hosts."""
    if not any(host.described_gpus for host in machine.hosts):
        return _template_answer(machine)
    texts: list[str] = []
    reasons: set[str] = set()  # why no limit is known; each is said once
    like = len(machine.hosts) == 1
    for reach, reach_limits in limits:
        scope = _scope_text(reach, like)
        bounded = [limit for limit in reach_limits if limit.gbps is not None]
        if not bounded:
            why = reach_limits[0].formula
            if why not in reasons:
                texts.append(f"{scope}: no limit is known: {why}")
            reasons.add(why)
            continue
        first, collective = bounded[0], bounded[0].collectives[0]
        comparable = [limit for limit in bounded if collective in limit.collectives]
        best = max(comparable, key=lambda limit: limit.gbps or 0.0)
        text = f"{scope}: {first.algorithm} at most {format_bandwidth(first.gbps)} GB/s busbw"
        if best is not first:
            expects = f"{reach.library} expects " if best.tuned else ""
            text += f", {expects}{best.algorithm} {format_bandwidth(best.gbps)} in {collective}"
        if like and reach.hosts > 1:
            texts.append(text + _interfaces_text(machine, first.gbps or 0.0))
            break  # more hosts like it have the same interfaces; the tables have them
        texts.append(text)
    if (slowest := _slowest(machine)) is not None:
        texts.append(slowest)
    return Answer("; ".join(texts), "doubt" if machine.problems or reasons else "")


def _interfaces_text(machine: Machine, gbps: float) -> str:
    """Says that the interfaces of the file are what limits several hosts."""
    interfaces = machine.reach(1).nics_gbps
    if interfaces is None or not math.isclose(gbps, interfaces, rel_tol=0.05):
        return ""
    number = counted(len(speeds.unique_nics(machine.hosts[0].nics)), "network interface")
    return f": the file has {number}, {format_bandwidth(interfaces)} GB/s"


def _template_answer(machine: Machine) -> Answer:
    """A file for NCCL_TOPO_FILE has the PCI devices alone: NCCL adds the links of the GPUs."""
    topo = machine.hosts[0]
    nics = speeds.unique_nics(topo.nics)
    text = f"{counted(len(topo.gpus), 'GPU')} and {counted(len(nics), 'network interface')}"
    devices = [*(gpu.node for gpu in topo.gpus), *(nic.node for nic in nics)]
    pci_gbps = {gbps for device in devices if (gbps := speeds.pci_gbps(device))}
    if pci_gbps:
        ends = dict.fromkeys(format_bandwidth(pick(pci_gbps)) for pick in (min, max))
        text += f" on PCI links of {' to '.join(ends)} GB/s"
    text += "; the links of the GPUs are not in this file, as in one for NCCL_TOPO_FILE"
    return Answer(text, "doubt", next_step=_DUMP)


def _scope_text(reach: Reach, like: bool = False) -> str:
    if reach.hosts == 1:
        text = "within the host" if like else "within a host"
    else:
        text = f"over {reach.hosts} hosts{' like it' if like else ''}"
    return f"{text}, {counted(reach.ranks, 'GPU')}" if reach.gpus else text


def _matrix(topo: Topology) -> Grid:
    gpus = topo.gpus[:_MATRIX]
    if len(gpus) < 2:
        return Grid([], [])
    paths = [[None if a is b else gpu_path(a, b) for b in gpus] for a in gpus]
    path_kinds = {path.path for row in paths for path in row if path}
    # With one kind of path its name moves to the title, so that eight GPUs fit into 80 columns.
    one_kind = len(path_kinds) == 1

    def cell(path: GpuPath | None) -> str:
        if path is None:
            return "-"
        gbps = "?" if path.gbps is None else f"{path.gbps:g}"
        return gbps if one_kind else f"{path.path or '?'} {gbps}"

    heads = [Head("GPU", repeat=True, left=True), *(Head(gpu.name) for gpu in gpus)]
    rows = [[gpu.name, *map(cell, row)] for gpu, row in zip(gpus, paths, strict=True)]
    below = [_ASSUMED_SPEED.format(topo.library), _PATHS]
    if len(topo.gpus) > _MATRIX:
        below.append(f"the first {_MATRIX} of {len(topo.gpus)} GPUs; --format json has all")
    what = f"all {next(iter(path_kinds)) or 'unknown'}" if one_kind else "path"
    return Grid(heads, rows, [f"from GPU to GPU: {what}, GB/s"], below)


def _sums(topo: Topology) -> Grid:
    rows = [_gpu(gpu, topo) for gpu in topo.gpus]
    if not any(row["links_gbps"] or row["pci_gbps"] for row in rows):
        return Grid([], [], above=["the file has no speed of a GPU's links"])

    def gbps(name: str) -> Any:
        return lambda row: format_bandwidth(row[name])

    def interfaces(row: dict[str, Any]) -> str:
        names = row["nearest_interfaces"]
        return one_line(shorten(names, _MOST_NAMES, " ...", between=" ")) or "-"

    return make_grid(
        [
            (Head("GPU", left=True), lambda row: row["gpu"]),
            (Head("links", "GB/s"), gbps("links_gbps")),
            (Head("their wire", "GB/s", drop=1), gbps("links_wire_gbps")),
            (Head("PCI", "GB/s"), gbps("pci_gbps")),
            (Head("PCI to CPU", "GB/s"), gbps("pci_to_cpu_gbps")),
            (Head("nearest interfaces", left=True), interfaces),
        ],
        rows,
        above=["each GPU's own, all links together, one direction"],
    )


def _gpu(gpu: Gpu, topo: Topology) -> dict[str, Any]:
    wire, count = speeds.wire_gbps(gpu), sum(link.count for link in speeds.outward(gpu))
    return {
        "gpu": gpu.name,
        "links_gbps": speeds.sum_gbps(gpu),
        "links_wire_gbps": wire * count if wire and count else None,
        "pci_gbps": speeds.pci_gbps(gpu.node),
        "pci_to_cpu_gbps": speeds.narrowest_pci_gbps(gpu),
        "nearest_interfaces": [
            n.name or n.busid for n in nearest(gpu, speeds.unique_nics(topo.nics))
        ],
    }


def _between(machine: Machine) -> list[Grid]:
    """The network interfaces of one host, or of several hosts as rails: a row for each index."""
    all_rails = rails(machine.hosts)
    if not all_rails:
        return []
    heads, below = [Head("interface", left=True), Head("GB/s")], []
    rows = [[_rail_name(rail), *map(format_bandwidth, rail.gbps)] for rail in all_rails]
    above = ["interfaces between hosts, one direction, as far as their PCI links go"]
    if len(machine.hosts) > 1:
        heads = [Head("rail", left=True)]
        heads += [Head(f"host {number}", "GB/s") for number in range(len(machine.hosts))]
        rows.append(["all", *(format_bandwidth(speeds.host_gbps(topo)) for topo in machine.hosts)])
        above.append(
            "a rail is the interfaces at one position of each host; no file says how it is cabled"
        )
        below = list(filter(None, [_slowest(machine)]))
    return [Grid(heads, rows, above, below)]


def _rail_name(rail: Rail) -> str:
    names = dict.fromkeys(name for name in rail.names if name)
    return one_line("/".join(names) or f"{rail.index}")


def _slowest(machine: Machine) -> str | None:
    """A sentence about the slowest path between several hosts; None for one host."""
    if len(machine.hosts) < 2:
        return None
    all_rails = rails(machine.hosts)
    missing = [
        f"{_rail_name(rail)} on host {host}"
        for rail in all_rails
        for host, gbps in enumerate(rail.gbps)
        if gbps is None
    ]
    if not all_rails or missing:
        what = ", ".join(missing[:4]) or "no interface in the files"
        return f"the slowest path between the hosts is unknown: {what} is missing"
    pairs = [(gbps or 0.0, rail, host) for rail in all_rails for host, gbps in enumerate(rail.gbps)]
    least = min(gbps for gbps, _, _ in pairs)
    slow = [(rail, host) for gbps, rail, host in pairs if gbps == least]
    number, slowest = len(all_rails), format_bandwidth(least)
    if len(slow) == len(pairs):
        return f"all {counted(number, 'rail')} between the hosts have {slowest} GB/s"
    names = shorten([f"{_rail_name(rail)} on host {host}" for rail, host in slow], 4)
    fastest = format_bandwidth(max(gbps for gbps, _, _ in pairs))
    return (
        f"the slowest way between the hosts: {names}, {slowest} GB/s, where the fastest has "
        f"{fastest}; NCCL gives all channels the same share, so where each has a rail of its own "
        f"they carry {number} x {slowest} = {format_bandwidth(number * least)} GB/s"
    )


def _limits_grid(reach: Reach, limits: Sequence[AlgorithmLimit]) -> Grid:
    listed = [
        limit for limit in limits if limit.gbps is not None or limit.expected_gbps is not None
    ]
    numbers = {
        (limit.algorithm, limit.collectives): number for number, limit in enumerate(listed, 1)
    }

    def mark(limit: AlgorithmLimit) -> str:
        return f"[{numbers[limit.algorithm, limit.collectives]}]"

    below = [
        f"{mark(limit)} {limit.algorithm} of {' '.join(limit.collectives)}: "
        f"{limit.formula} ({limit.source})"
        for limit in listed
        if limit.gbps is not None
    ]
    unknown: dict[str, list[str]] = {}
    for limit in limits:
        if limit.gbps is None:
            name = f"{mark(limit)} {limit.algorithm}" if limit in listed else limit.algorithm
            unknown.setdefault(limit.formula, []).append(name)
    below += [f"{', '.join(names)}: no limit: {why}" for why, names in unknown.items()]
    if any(limit.model_gbps is not None for limit in listed):
        below.append(
            f"{reach.library} expects: its graph, or its constants alone, through "
            "src/graph/tuning.cc (2.30), Simple protocol: its model, no bound"
        )
    columns: list[tuple[Head, Any]] = [
        (Head("algorithm", left=True), lambda limit: limit.algorithm),
        (
            Head("of", left=True),
            lambda limit: shorten(limit.collectives, 1 if len(limit.collectives) > 2 else 2),
        ),
        (Head("at most", "GB/s"), lambda limit: format_bandwidth(limit.bound_gbps)),
        (
            Head(f"{reach.library} expects", "GB/s"),
            lambda limit: format_bandwidth(limit.model_gbps),
        ),
        (Head("how", left=True), mark),
    ]
    if not listed:
        return Grid([], [], below=below)
    return make_grid(columns, listed, below=[one_line(line) for line in below])


def _record(reach: Reach, limit: AlgorithmLimit) -> dict[str, Any]:
    return {
        "hosts": reach.hosts,
        "gpus_per_host": reach.gpus,
        "algorithm": limit.algorithm,
        "collectives": list(limit.collectives),
        "busbw_gbps": limit.gbps,
        "expected_busbw_gbps": limit.expected_gbps,
        "is_bound": limit.gbps is not None and not limit.tuned,
        "formula": limit.formula,
        "source": limit.source or None,
    }


def _document(machine: Machine, records: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "hosts": [
            {
                "file": topo.file,
                "library": topo.library,
                "gpus": [_gpu(gpu, topo) for gpu in topo.gpus],
                "ways": [
                    {"from": gpu.name, "to": peer.name, **vars(gpu_path(gpu, peer))}
                    for gpu in topo.gpus
                    for peer in topo.gpus
                    if gpu is not peer
                ],
                "interfaces_gbps": speeds.host_gbps(topo),
            }
            for topo in machine.hosts
        ],
        "rails": [
            {"place": rail.index, "names": rail.names, "gbps": rail.gbps}
            for rail in rails(machine.hosts)
        ],
        "slowest": _slowest(machine),
        "rows": records,
    }

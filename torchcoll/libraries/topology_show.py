"""Tables of NCCL's topology files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_bandwidth, shorten
from torchcoll.report.grid import Grid, Head, make_grid

if TYPE_CHECKING:
    from torchcoll.libraries.dumps import Dump


_MOST = 64  # GPUs in a cell; json has all
_PATHS = {
    "PIX": "through one PCI switch",
    "PXB": "through several PCI switches",
    "PHB": "through the CPU",
    "SYS": "from CPU to CPU",
}
_ASSUMED_SPEED = "GB/s: one direction, as {0} reckons (topo.h, topo.cc), below the rate of the wire"

DumpRow = dict[str, Any]


def dump_grids(dump: Dump) -> list[Grid]:
    """The grids of one file: first its summary, then its tables."""
    return [Grid([], [], above=_about_topology(dump)), *_topology_grids(dump)]


def _about_topology(dump: Dump) -> list[str]:
    facts = dump.facts
    counts = [counted(facts["gpu_count"], "GPU"), counted(facts["cpu_count"], "NUMA node")]
    counts[1] += f" ({one_line(facts['cpu'])})" if facts["cpu"] else ""
    counts.append(counted(facts["nic_count"], "network interface"))
    if facts["hosts"] > 1:
        counts.append(f"{facts['hosts']} hosts")
    lines = [f"{facts['library']} topology: {', '.join(counts)}"]
    if facts["cut"]:
        lines.append("the file is cut off: GPUs, links and interfaces may be missing")
    if facts["gpu_count"] and not facts["gpus_described"]:
        lines.append(
            "a file for NCCL_TOPO_FILE: the PCI devices, to which NCCL adds the links that it finds"
        )
    else:
        lines.append(_ring(facts))
    if facts["nics_gbps"]:
        lines.append(
            f"network: {format_bandwidth(facts['nics_gbps'])} GB/s, all interfaces of this host "
            "together, as far as their PCI links go, one direction: a ring over hosts has no more"
        )
    lines += [
        f"GPU {row['gpu']} has {counted(row['links'], 'link')}, most have {row['usual']}: a link "
        "that is down is not in the file"
        for row in facts["odd_links"]
    ]
    if fabrics := facts.get("fabrics"):
        names = " or ".join(fabrics)
        which = "; which GPU it is, the file does not tell" if len(fabrics) > 1 else ""
        lines.append(f"its links are those of --fabric {names}{which}")
    return [one_line(line) for line in lines]


def _ring(facts: DumpRow) -> str:
    if facts["ring_ceiling_gbps"] is None:
        return f"ring: no ceiling: {facts['ring_ceiling_source']}"
    text = f"ring: at most {format_bandwidth(facts['ring_ceiling_gbps'])} GB/s of busbw: "
    text += str(facts["ring_ceiling_source"])
    if facts["ring_wire_gbps"]:
        text += f" (the wire signals {facts['ring_wire_gbps']:g})"
    if facts["nvls"]:
        text += "; all_reduce within the switches (NVLS) may pass it"
    return text


def _topology_grids(dump: Dump) -> list[Grid]:
    tables, library = dump.tables, dump.facts["library"]
    several = dump.facts["hosts"] > 1
    host = [(Head("host", repeat=True), field_cell("host"))] if several else []
    gpus, nics, cpus = (tables.get(name, []) for name in ("gpus", "nics", "cpus"))
    reckoned = any(row["links_gbps"] or row["pci_gbps"] for row in gpus)
    return [
        make_grid(
            [
                (Head("GPU", left=True, repeat=True), field_cell("gpu")),
                (Head("rank"), field_cell("rank")),
                *host,
                (Head("generation", left=True, drop=4), field_cell("generation")),
                (Head("gdr", left=True, drop=5), _yes("gdr")),
                (Head("NUMA", drop=3), field_cell("numa")),
                (Head("PCI", "link", left=True, drop=6), _pci),
                (Head("PCI", "GB/s", drop=1), _gbps("pci_gbps")),
                (Head("to CPU", "GB/s", drop=2), _to_cpu),
                (Head("links", left=True), field_cell("links_to")),
                (Head("each", "GB/s", drop=1), _gbps("link_gbps")),
                (Head("links", "GB/s"), _gbps("links_gbps")),
            ],
            gpus,
            below=[_ASSUMED_SPEED.format(library)] if reckoned else [],
        ),
        make_grid(
            [
                (Head("network", "interface", left=True, repeat=True), field_cell("nic")),
                (Head("dev", drop=4), field_cell("dev")),
                *host,
                (Head("Gbit/s"), lambda row: "-" if row["gbits"] is None else f"{row['gbits']:g}"),
                (Head("gdr", left=True, drop=2), _yes("gdr")),
                (Head("NUMA", drop=3), field_cell("numa")),
                (Head("PCI", "link", left=True, drop=6), _pci),
                (Head("PCI", "GB/s", drop=1), _gbps("pci_gbps")),
                (Head("to CPU", "GB/s", drop=1), _to_cpu),
                (Head("nearest", "GPUs", left=True), _list("nearest_gpus")),
                (Head("path", left=True), field_cell("path")),
            ],
            nics,
            below=_legend({row["path"] for row in nics}),
        ),
        make_grid(
            [
                *host,
                (Head("NUMA", repeat=True), field_cell("numa")),
                (Head("cores", left=True), field_cell("cores")),
                (Head("GPUs", left=True), _list("gpus")),
                (Head("network", "interfaces", left=True), _list("nics")),
            ],
            cpus,
        ),
    ]


def _pci(row: DumpRow) -> str:
    if row["pci_speed"] is None:
        return "-"
    return one_line(f"{row['pci_speed']} x{row['pci_width'] or '?'}")


def _to_cpu(row: DumpRow) -> str:
    """The narrowest link up to the CPU; ``-`` where the device's own link is the narrowest."""
    device_gbps, narrowest = row["pci_gbps"], row["pci_to_cpu_gbps"]
    return "-" if device_gbps == narrowest else format_bandwidth(narrowest)


def field_cell(key: str) -> Callable[[DumpRow], str]:
    """A cell with a field of a row; ``-`` if it has none."""
    return lambda row: "-" if row[key] is None else one_line(row[key])


def _yes(key: str) -> Callable[[DumpRow], str]:
    return lambda row: "-" if row[key] is None else ("yes" if row[key] else "no")


def _gbps(key: str) -> Callable[[DumpRow], str]:
    return lambda row: format_bandwidth(row[key])


def _list(key: str) -> Callable[[DumpRow], str]:
    def cell(row: DumpRow) -> str:
        return one_line(shorten([*map(str, row[key] or ())], _MOST, " ...", between=" ")) or "-"

    return cell


def _legend(types: set[str | None]) -> list[str]:
    entries = [f"{name} {text}" for name, text in _PATHS.items() if name in types]
    return [", ".join(entries)] if entries else []

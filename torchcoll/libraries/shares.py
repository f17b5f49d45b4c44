"""How much of what its links allow a case reached: rows beside the limits of a topology.

Of the algorithm that ran, where the library's log names it or there is only one; and of the best
that these GPUs could have used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torchcoll.core.backends import backend_of
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.core.plausibility import crossing, device_of
from torchcoll.core.result import Run, hosts_of
from torchcoll.core.summary import Row
from torchcoll.core.units import counted
from torchcoll.libraries.nccl.ceilings import (
    COLLNET,
    DIRECT,
    NVLS,
    NVLS_TREE,
    AlgorithmLimit,
    Reach,
    limits_of,
    reach_of,
)
from torchcoll.libraries.nccl.graphs import Graphs, graphs
from torchcoll.libraries.nccl.topology import Topology, topology
from torchcoll.libraries.nccl.xml_tree import read_tree

_SLACK = 1.02  # versions of NCCL reckon a link a little differently
_MOST_GPUS = 256  # of a file: every pair is looked at


@dataclass
class Machine:
    """The hosts of these topology files, each with the file it is of, and the graphs of a search.

    problems: what was wrong with the files.
    """

    hosts: list[Topology]
    graphs: list[Graphs] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def reach(self, hosts: int) -> Reach:
        """Over so many hosts: all of those that are given, or as many like the one."""
        return reach_of(self.hosts, hosts)


def read_machine(paths: Sequence[str]) -> Machine:
    """Topologies of one host each, and at most one graph file, in any order.

    Raises UnreadableError for what is no such XML, and UsageError where no topology is among them,
    for a second graph file, for files without GPUs, and for a graph of other GPUs.
    """
    found = Machine([])
    graphed = ""
    for path in paths:
        root, problems = read_tree(path)
        found.problems += problems
        if root.tag == "system":
            stated = topology(root, path)
            _check(stated)
            found.hosts.append(stated)
        elif graphed:
            raise UsageError("graph file", f"{graphed} and {path}", "one, of all these hosts")
        else:
            graphed = path
            found.graphs = graphs(root)
    if not found.hosts:
        action = "Have NCCL write it: NCCL_TOPO_DUMP_FILE=topo.xml."
        raise UsageError("topology", f"{graphed} alone, a graph", "a topology beside it", action)
    # A graph lists the GPUs of its host: those of another one say nothing here.
    sizes = {len(c.gpus) for g in found.graphs if g.id == 0 for c in g.orders}
    known = {len(one.stated) for one in found.hosts if one.stated}
    if sizes and known and not sizes & known:
        (most,) = {max(sizes)}
        got = f"rings of {counted(most, 'GPU')} in {graphed}"
        expected = f"{' or '.join(map(str, sorted(known)))}, as the topology has"
        raise UsageError("graph file", got, expected, "Give the two files of one run.")
    return found


def _check(stated: Topology) -> None:
    if len(stated.gpus) > _MOST_GPUS:
        expected = f"at most {_MOST_GPUS} GPUs in a topology"
        raise UnreadableError("XML", f"{len(stated.gpus)} in {stated.file}", expected)
    if not stated.gpus:
        raise UsageError("topology", f"no GPU in {stated.file}", "one or more")


@dataclass(frozen=True)
class RowLimit:
    """limit: of the algorithm that ran; best: the highest of all that the row could have used.
    Shares are of busbw; None where ``reason`` says why, or which algorithm ran is not known.
    """

    limit: AlgorithmLimit | None = None
    best: AlgorithmLimit | None = None
    limit_share: float | None = None
    best_share: float | None = None
    reason: str = ""


def limits_for(paths: Sequence[str]) -> Callable[[Run, Sequence[Row]], list[RowLimit]]:
    """What these files allow the rows of a run. Raises as ``read_machine``."""
    machine = read_machine(paths)
    return lambda run, rows: shares_of(machine, run, rows)


def shares_of(machine: Machine, run: Run, rows: Sequence[Row]) -> list[RowLimit]:
    """One for each row. Raises UsageError where the topology cannot be that of the run."""
    hosts = hosts_of(run)
    given = len(machine.hosts)
    files = ", ".join(one.file for one in machine.hosts)
    if hosts and given > 1 and given != hosts:
        got, expected = f"{given} hosts ({files})", f"1, or {hosts} as the run has"
        raise UsageError("topology", got, expected)
    device, own = device_of(run), machine.reach(max(hosts, 1)).own_gbps
    if device and own and machine.reach(1).switched and own > _SLACK * device.ring_gbps:
        got = f"GPUs with {own:g} GB/s of links in {files}"
        raise UsageError("topology", got, f"at most the {device.ring_gbps:g} of a {device.name}")
    reaches: dict[tuple[int, int], list[AlgorithmLimit]] = {}
    found = []
    for row in rows:
        reach, reason = _reach(machine, row, hosts)
        if reach is None:
            found.append(RowLimit(reason=reason))
            continue
        key = (reach.hosts, reach.gpus)
        if key not in reaches:
            reaches[key] = limits_of(reach, machine.graphs)
        found.append(_share(row, reaches[key], reach))
    return found


def _reach(machine: Machine, row: Row, hosts: int) -> tuple[Reach | None, str]:
    """What the ranks of a row have, or why that is not known."""
    if row.device == "cpu" or backend_of(row.backend).staged:
        return None, "not over the links of the GPUs"
    if row.ranks < 2 or row.busbw_gbps is None or not row.communicates:
        return None, "no bandwidth"
    if row.group:
        return None, "a sub-group: which GPUs it has is not in the topology"
    most = machine.reach(1).gpus
    together = machine.hosts[0].hosts if len(machine.hosts) == 1 else 1  # NVLinks over hosts
    count = max(hosts // together, 1) if hosts else 0
    count = count or max(len(machine.hosts), -(-row.ranks // most) if most else 1)
    if row.ranks % count or not most or row.ranks // count > most:
        text = f"{row.ranks} ranks on {counted(count, 'host')} of {counted(most, 'GPU')}"
        return None, f"{text} in the topology"
    reach = machine.reach(count)
    own = row.ranks // count
    if own < most and not reach.switched:
        return None, f"{own} of {most} GPUs: which links they have between them is not told"
    return replace(reach, gpus=own), ""


def _share(row: Row, limits: Sequence[AlgorithmLimit], reach: Reach) -> RowLimit:
    if row.collective not in {name for one in limits for name in one.collectives}:
        limit = _direct(row, reach)
        usable = [limit] if limit else []
    else:
        own = [one for one in limits if row.collective in one.collectives]
        usable = [one for one in own if one.gbps is not None and _takes(one, row)]
    if not usable:
        return RowLimit(reason="no limit is known for it")
    best = max(usable, key=lambda one: one.gbps or 0.0)
    used = _used(row, usable)

    def share(one: AlgorithmLimit | None) -> float | None:
        return None if one is None or not one.gbps else (row.busbw_gbps or 0.0) / one.gbps

    reason = "" if used else "which algorithm ran is not known: no log of the library beside it"
    return RowLimit(used, best, share(used), share(best), reason)


def _direct(row: Row, reach: Reach) -> AlgorithmLimit | None:
    """Sends and receives over hosts: what must pass the interfaces of the busiest one."""
    hosts = [str(rank // reach.gpus) for rank in range(reach.ranks)]
    share = crossing(row.collective, hosts, row.root)
    if reach.hosts < 2 or reach.nics_gbps is None or not share:
        return None
    entry = COLLECTIVES[row.collective]
    each = reach.nics_gbps / reach.gpus
    gbps = each / share * entry.moved(row.ranks) * entry.bus_factor(row.ranks)
    text = f"what must leave a host over {reach.nics_gbps:g} GB/s of its interfaces"
    return AlgorithmLimit(DIRECT, (row.collective,), gbps, text, "bytes counted")


# ncclNvlsSupported() of NCCL's src/include/device.h.
_SUMMED = ("float32", "float64")
_ALSO_EXTREMES = ("float16", "bfloat16", "int32", "int64", "uint32", "uint64")


def _takes(limit: AlgorithmLimit, row: Row) -> bool:
    """Whether switches reduce this type so."""
    in_switch = limit.algorithm in (NVLS, NVLS_TREE)
    if not in_switch or not COLLECTIVES[row.collective].has_op:
        return True
    sums = row.op in (None, "sum")
    extremes = row.op in ("min", "max") and row.dtype in _ALSO_EXTREMES
    known = row.dtype is None or row.dtype in (*_SUMMED, *_ALSO_EXTREMES)
    return known and (sums or extremes)


def _used(row: Row, usable: Sequence[AlgorithmLimit]) -> AlgorithmLimit | None:
    if len({one.algorithm for one in usable}) == 1 and not row.algorithm:
        return usable[0]
    names = {part.partition("/")[0].strip() for part in (row.algorithm or "").split(",")}
    if len(names) != 1:
        return None
    (name,) = names
    name = COLLNET if name.startswith(COLLNET) else name
    return next((one for one in usable if one.algorithm == name), None)

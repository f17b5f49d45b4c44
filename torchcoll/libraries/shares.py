"""What a topology allows, and the share of it that each row of a run reached.

There are two shares: of the limit of the algorithm that ran, where the library's log names it or
only one is possible, and of the limit of the best algorithm that these GPUs could have used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torchcoll.core.backends import backend_of
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.core.plausibility import crossing, device_of
from torchcoll.core.result import Run
from torchcoll.core.run_facts import hosts_of
from torchcoll.core.summary import Row
from torchcoll.core.units import counted
from torchcoll.libraries.nccl import ceilings
from torchcoll.libraries.nccl.topology import Topology, read_topology, read_tree

_SLACK = 1.02  # versions of NCCL assume slightly different speeds of a link
_MOST_GPUS = 256  # in a file: every pair of GPUs is looked at


@dataclass
class Machine:
    """The hosts of some topology files. problems: what was wrong with the files."""

    hosts: list[Topology] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def reach(self, hosts: int) -> ceilings.Reach:
        """What ``hosts`` hosts have: all hosts of the files, or so many like the only one."""
        return ceilings.make_reach(self.hosts, hosts)


def read_machine(paths: Sequence[str]) -> Machine:
    """Read a topology of each host. Raises UnreadableError, and UsageError without GPUs."""
    machine = Machine()
    for path in paths:
        root, problems = read_tree(path)
        machine.problems += problems
        topo = read_topology(root, path)
        if len(topo.gpus) > _MOST_GPUS:
            expected = f"at most {_MOST_GPUS} GPUs in a topology"
            raise UnreadableError("XML", f"{len(topo.gpus)} in {topo.file}", expected)
        if not topo.gpus:
            raise UsageError("topology", f"no GPU in {topo.file}", "one or more")
        machine.hosts.append(topo)
    return machine


@dataclass(frozen=True)
class RowLimit:
    """The limits of one row, and the shares of them that its busbw reached.

    limit: of the algorithm that ran; None where it is not known which one did.
    best: the highest limit of all algorithms that the row could have used.
    reason: why a limit is None.
    """

    limit: ceilings.AlgorithmLimit | None = None
    best: ceilings.AlgorithmLimit | None = None
    limit_share: float | None = None
    best_share: float | None = None
    reason: str = ""


def load_limits(paths: Sequence[str]) -> Callable[[Run, Sequence[Row]], list[RowLimit]]:
    """Returns a function (run, rows) -> limits of the rows. Raises as ``read_machine``."""
    machine = read_machine(paths)
    return lambda run, rows: row_limits(machine, run, rows)


def row_limits(machine: Machine, run: Run, rows: Sequence[Row]) -> list[RowLimit]:
    """The limits of each row. Raises UsageError if the topology cannot be that of the run."""
    hosts = hosts_of(run)
    file_count = len(machine.hosts)
    files = ", ".join(host.file for host in machine.hosts)
    if hosts and file_count > 1 and file_count != hosts:
        expected = f"1, or {hosts} as the run has"
        raise UsageError("topology", f"{file_count} hosts ({files})", expected)
    device, link_gbps = device_of(run), machine.reach(max(hosts, 1)).gpu_gbps
    if device and link_gbps and machine.reach(1).switched and link_gbps > _SLACK * device.ring_gbps:
        actual = f"GPUs with {link_gbps:g} GB/s of links in {files}"
        raise UsageError("topology", actual, f"at most the {device.ring_gbps:g} of a {device.name}")
    reaches: dict[tuple[int, int], list[ceilings.AlgorithmLimit]] = {}
    limits = []
    for row in rows:
        reach, reason = _reach(machine, row, hosts)
        if reach is None:
            limits.append(RowLimit(reason=reason))
            continue
        key = (reach.hosts, reach.gpus)
        if key not in reaches:
            reaches[key] = ceilings.algorithm_limits(reach)
        limits.append(_share(row, reaches[key], reach))
    return limits


def _reach(machine: Machine, row: Row, hosts: int) -> tuple[ceilings.Reach | None, str]:
    """(what the ranks of a row have, ''), or (None, why that is not known)."""
    if row.device == "cpu" or backend_of(row.backend).staged:
        return None, "not over the links of the GPUs"
    if row.ranks < 2 or row.busbw_gbps is None or not row.communicates:
        return None, "no bandwidth"
    if row.group:
        return None, "a sub-group: which GPUs it has is not in the topology"
    most = machine.reach(1).gpus
    # A topology of NVLinks over hosts has several hosts.
    hosts_per_topology = machine.hosts[0].hosts if len(machine.hosts) == 1 else 1
    count = max(hosts // hosts_per_topology, 1) if hosts else 0
    count = count or max(len(machine.hosts), -(-row.ranks // most) if most else 1)
    if row.ranks % count or not most or row.ranks // count > most:
        text = f"{row.ranks} ranks on {counted(count, 'host')} of {counted(most, 'GPU')}"
        return None, f"{text} in the topology"
    reach = machine.reach(count)
    local_ranks = row.ranks // count
    if local_ranks < most and not reach.switched:
        return None, f"{local_ranks} of {most} GPUs: the links between them are not in the file"
    return replace(reach, gpus=local_ranks), ""


def _share(row: Row, limits: Sequence[ceilings.AlgorithmLimit], reach: ceilings.Reach) -> RowLimit:
    matching = [candidate for candidate in limits if row.collective in candidate.collectives]
    if not matching:
        matching = list(filter(None, [_direct(row, reach)]))
    usable = [limit for limit in matching if limit.gbps is not None and _takes(limit, row)]
    if not usable:
        return RowLimit(reason="no limit is known for it")
    best = max(usable, key=lambda candidate: candidate.gbps or 0.0)
    used, busbw = _used(row, usable), row.busbw_gbps or 0.0
    used_share, best_share = (
        busbw / limit.gbps if limit and limit.gbps else None for limit in (used, best)
    )
    reason = "" if used else "the algorithm that ran is unknown: no log of the library with it"
    return RowLimit(used, best, used_share, best_share, reason)


def _direct(row: Row, reach: ceilings.Reach) -> ceilings.AlgorithmLimit | None:
    """The limit of sends and receives between hosts: the interfaces of the busiest host."""
    hosts = [str(rank // reach.gpus) for rank in range(reach.ranks)]
    share = crossing(row.collective, hosts, row.root)
    if reach.hosts < 2 or reach.nics_gbps is None or not share:
        return None
    entry = COLLECTIVES[row.collective]
    each = reach.nics_gbps / reach.gpus
    gbps = each / share * entry.moved(row.ranks) * entry.bus_factor(row.ranks)
    text = f"what must leave a host over {reach.nics_gbps:g} GB/s of its interfaces"
    return ceilings.AlgorithmLimit(ceilings.DIRECT, (row.collective,), gbps, text, "bytes counted")


# ncclNvlsSupported() of NCCL's src/include/device.h.
_SUMMED = ("float32", "float64")
_ALSO_EXTREMES = ("float16", "bfloat16", "int32", "int64", "uint32", "uint64")


def _takes(limit: ceilings.AlgorithmLimit, row: Row) -> bool:
    """Whether the algorithm supports the type and reduction. NVSwitches do not support all."""
    in_switch = limit.algorithm in (ceilings.NVLS, ceilings.NVLS_TREE)
    if not in_switch or not COLLECTIVES[row.collective].has_op:
        return True
    sums = row.op in (None, "sum")
    extremes = row.op in ("min", "max") and row.dtype in _ALSO_EXTREMES
    supported = row.dtype is None or row.dtype in (*_SUMMED, *_ALSO_EXTREMES)
    return supported and (sums or extremes)


def _used(row: Row, usable: Sequence[ceilings.AlgorithmLimit]) -> ceilings.AlgorithmLimit | None:
    if len({limit.algorithm for limit in usable}) == 1 and not row.algorithm:
        return usable[0]
    names = {choice.partition("/")[0].strip() for choice in (row.algorithm or "").split(",")}
    if len(names) != 1:
        return None
    (name,) = names
    name = ceilings.COLLNET if name.startswith(ceilings.COLLNET) else name
    return next((limit for limit in usable if limit.algorithm == name), None)

"""The limits of a machine in ``torchcoll log TOPOLOGY``: what its links allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.core.answer import Answer
from torchcoll.core.errors import UnreadableError, UsageError, one_line
from torchcoll.core.units import counted, format_bandwidth, shorten
from torchcoll.libraries.nccl import speeds
from torchcoll.libraries.nccl.ceilings import AlgorithmLimit, Reach, algorithm_limits, make_reach
from torchcoll.libraries.nccl.topology import Topology, read_topology, read_tree
from torchcoll.report.grid import Grid, Head, make_grid

_MOST_GPUS = 256  # in a file: every pair of GPUs is looked at
_ASSUMED_HOSTS = (2, 4)  # numbers of hosts that are assumed where one host is given
_DUMP = "set NCCL_TOPO_DUMP_FILE=topo.xml for a job on this machine, and give that file"

Limits = list[tuple[Reach, list[AlgorithmLimit]]]


@dataclass
class Machine:
    """The hosts of some topology files. problems: what was wrong with the files."""

    hosts: list[Topology] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def reach(self, hosts: int) -> Reach:
        """What ``hosts`` hosts have: all hosts of the files, or so many like the only one."""
        return make_reach(self.hosts, hosts)


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
class LimitsView:
    """The limits of a machine.

    titled: (title, tables). rows: one for each algorithm and number of hosts.
    """

    titled: list[tuple[str, list[Grid]]]
    rows: list[dict[str, Any]]
    answer: Answer


def limits_view(machine: Machine) -> LimitsView:
    """Return what the links of ``machine`` allow."""
    limits = _limits(machine)
    rows = [_record(reach, limit) for reach, reach_limits in limits for limit in reach_limits]
    like = len(machine.hosts) == 1
    titled = [
        (f"{_scope_text(reach, like)}: busbw", [_limits_grid(reach, reach_limits)])
        for reach, reach_limits in limits
    ]
    return LimitsView(titled, rows, _answer(limits, machine))


def _limits(machine: Machine) -> Limits:
    counts = [1, len(machine.hosts)]
    if len(machine.hosts) == 1 and machine.reach(1).nics_gbps is not None:
        counts = [1, *_ASSUMED_HOSTS]
    reaches = [machine.reach(count) for count in dict.fromkeys(counts)]
    return [(reach, algorithm_limits(reach)) for reach in reaches]


def _answer(limits: Limits, machine: Machine) -> Answer:
    """The headline: what each reach allows."""
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


def _limits_grid(reach: Reach, limits: Sequence[AlgorithmLimit]) -> Grid:
    listed = [limit for limit in limits if limit.gbps is not None]

    def mark(limit: AlgorithmLimit) -> str:
        return f"[{1 + listed.index(limit)}]"

    below = [
        f"{mark(limit)} {limit.algorithm} of {' '.join(limit.collectives)}: "
        f"{limit.formula} ({limit.source})"
        for limit in listed
    ]
    unknown: dict[str, list[str]] = {}
    for limit in limits:
        if limit.gbps is None:
            unknown.setdefault(limit.formula, []).append(limit.algorithm)
    below += [f"{', '.join(names)}: no limit: {why}" for why, names in unknown.items()]
    if any(limit.tuned for limit in listed):
        below.append(f"{reach.library} expects: its constants in src/graph/tuning.cc, no bound")
    if not listed:
        return Grid([], [], below=below)

    def gbps(tuned: bool) -> Callable[[AlgorithmLimit], str]:
        return lambda limit: format_bandwidth(limit.gbps if limit.tuned is tuned else None)

    def of(limit: AlgorithmLimit) -> str:
        return shorten(limit.collectives, 1 if len(limit.collectives) > 2 else 2)

    columns: list[tuple[Head, Callable[[AlgorithmLimit], str]]] = [
        (Head("algorithm", left=True), lambda limit: limit.algorithm),
        (Head("of", left=True), of),
        (Head("at most", "GB/s"), gbps(False)),
        (Head(f"{reach.library} expects", "GB/s"), gbps(True)),
        (Head("how", left=True), mark),
    ]
    return make_grid(columns, listed, below=[one_line(line) for line in below])


def _record(reach: Reach, limit: AlgorithmLimit) -> dict[str, Any]:
    return {
        "hosts": reach.hosts,
        "gpus_per_host": reach.gpus,
        "algorithm": limit.algorithm,
        "collectives": list(limit.collectives),
        "busbw_gbps": limit.gbps,
        "is_bound": limit.gbps is not None and not limit.tuned,
        "formula": limit.formula,
        "source": limit.source or None,
    }

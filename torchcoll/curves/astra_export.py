"""Write the model of a machine as input of ASTRA-sim's analytical network: a folder of files.

``network.yml``: one file for each collective and number of ranks, because each has its own law. The
    topology is a link from each rank to each other rank. The simulator's GB is 2^30 bytes
    (bw_GBps_to_Bpns in its NetworkFunction.cpp), so bandwidths are divided by 1.0737. A switch
    would be wrong: a message pays its latency twice there, and in the congestion-aware simulator
    its bytes twice as well, so that times were 1.85 and 2.00 of the model's (1 and 64 MiB). Over
    links both simulators give the same times.
``system.json``: a ring without chunks, because the measured steps have no chunks either.
``traces/``: one trace for each rank of each case, or of one captured step. A node with the model's
    launch overhead precedes each call. It is no CPU node, on which the simulator's statistics fail.
``run.sh``: runs all simulations; ``load`` reads its output (importers/astra_sim.py).

If the model has measurements on this number of ranks, the links are those over which a ring takes
the measured time; otherwise they come from the law over ranks. If that law is not a ring, the links
are chosen such that the steps of a ring add up to the law's time on this number of ranks, and a
note says so. The simulator's other algorithms do not match the laws: its double binary tree sends
all data at each level (the law: twice in total), its halving and doubling of all_reduce takes twice
the steps, and its all_to_all in a ring takes n (n - 1) / 2. Hosts are not modelled as a second
dimension: there a byte crosses between hosts once per host, in the law once per rank.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchcoll.core.collectives import COLLECTIVES, Layout
from torchcoll.core.errors import UnusableError, UsageError
from torchcoll.core.intervals import Union
from torchcoll.core.opening import not_written, replace_file
from torchcoll.core.result import Run
from torchcoll.core.run_facts import hosts_of
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.curves.model import MachineModel, OverRanks, OverSizes, terms
from torchcoll.curves.model_check import kind_differences
from torchcoll.curves.rank_laws import StepLaw, step_laws
from torchcoll.libraries.execution_trace import (
    CASE_LINE,
    COLLECTIVE,
    COMP,
    KINDS,
    RECV,
    SEND,
    SIMULATED,
    STEP_LINE,
    SUFFIX,
    ChakraNode,
    Value,
    encode_nodes,
)
from torchcoll.stats.sides import Reading, Side

GIB_PER_GB = 1e9 / 2**30
_MOST_FILES = 100_000
_ENDPOINT_NS = 1  # of a step; with 0 the first is at 0 ns, and the simulator ends with an error
_NO_MEMORY_GBPS = 1_000_000_000  # a reduction that takes no time
# direct1: a block after the other to each, n - 1 steps.
_ALGORITHMS = {**dict.fromkeys(SIMULATED, "ring"), "all_to_all": "direct1"}
_RUN = """#!/bin/sh
# ASTRA_SIM=/.../AstraSim_Analytical_Congestion_Aware sh run.sh > sim.log
# torchcoll model validate --predicted sim.log RUN holds what it says against what was measured.
cd "$(dirname "$0")" || exit 1
if [ ! -x "${{ASTRA_SIM-}}" ]; then
  echo "run.sh: ASTRA_SIM: got '${{ASTRA_SIM-}}', expected the whole path of the simulator" >&2
  exit 2
fi
failed=0
simulate() {{ # LINE NETWORK TRACES
  echo "$1"
  "$ASTRA_SIM" --workload-configuration="traces/$3/$3" \\
    --system-configuration="$2/system.json" --network-configuration="$2/network.yml" \\
    --remote-memory-configuration=memory.json{groups} || failed=1
}}
"""


@dataclass(frozen=True)
class Links:
    """The links between all ranks that the simulator is given.

    ranks: the number of ranks of the ring.
    gbps: bandwidth of a link in GB/s of 10^9 bytes.
    step_ns: latency of a link.
    launch_ns: overhead before each call.
    about: the collective and its law, for a comment in the file.
    notes: sentences on what was approximated.
    """

    ranks: int
    gbps: float
    step_ns: float
    launch_ns: float
    about: str
    notes: tuple[str, ...] = ()


@dataclass
class SimulatorInput:
    """What was written: the names of the cases and the number of files.

    notes: a sentence on each thing that was skipped or approximated.
    """

    folder: Path
    cases: list[str] = field(default_factory=list)
    files: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Simulation:
    """One simulation.

    line: what run.sh prints before it.
    network: the name of the folder with its links.
    traces: the encoded trace of each rank.
    """

    line: str
    network: str
    traces: Sequence[bytes]


def export_run(model: MachineModel, run: Run, folder: Path) -> SimulatorInput:
    """Write a simulation of each case that a run measured on all of its ranks.

    Raises UsageError if no case can be simulated, or if the folder is not empty.
    """
    written = SimulatorInput(folder)
    modelled = {entry.collective for entry in model.entries}
    hosts = hosts_of(run) or None
    simulations: dict[str, _Simulation] = {}
    links: dict[str, Links] = {}
    left_out: dict[str, int] = {}
    for item in Side("run", [run]).measured("time", Reading()):
        result = item.result
        name = result.case.collective
        reason = f"{name}, which the model does not have"
        if (
            name in modelled
        ):  # ``simulated_links`` takes the model's main entry: the case has to be of that kind
            differences = kind_differences(model.entry(item.row.collective), run, item)
            texts = [f"{field}={value}" for field, value in differences.items()]
            reason = f"another kind: {', '.join(texts)}" if differences else ""
        reason = reason if name in SIMULATED else f"{name}, which ASTRA-sim has no model of"
        reason = "a sub-group" if result.members else reason
        reason = f"{result.status}" if result.status != "ok" else reason
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        ranks, size_bytes = result.ranks, result.size_bytes
        network = f"{name}-{ranks}ranks"
        if network not in links:
            links[network] = simulated_links(model, name, ranks, hosts)
        nodes = _run(0, links[network].launch_ns, ())
        collective = COLLECTIVES[name]
        layout = Layout(0, ranks, size_bytes // collective.parts(ranks))
        input_bytes = result.bytes_in or collective.elements(layout)[0]
        nodes.append(_collective(len(nodes), name, input_bytes, [n.id for n in nodes]))
        line = CASE_LINE.format(name, size_bytes, ranks)
        simulation = _Simulation(line, network, [encode_nodes(nodes)] * ranks)
        simulations.setdefault(f"{network}-{size_bytes}", simulation)
    if not simulations:
        reasons = (
            "; ".join(f"{count} of {reason}" for reason, count in left_out.items()) or "no case"
        )
        expected = f"cases of {', '.join(SIMULATED)}"
        raise UnusableError("astra-sim", reasons, expected)
    written.notes += [f"left out: {count} cases of {reason}" for reason, count in left_out.items()]
    _write(written, model, links, simulations, {})
    return written


def export_step(model: MachineModel, traffic: Traffic, folder: Path) -> SimulatorInput:
    """Write a simulation of one training step: its calls, and the computation between them.

    Raises UsageError if the traffic of some ranks is missing, or if no call can be simulated.
    """
    written = SimulatorInput(folder)
    world = range(traffic.ranks)
    calls_by_rank = traffic.calls
    if set(calls_by_rank) != set(world):
        alike = traffic.source == "plan" and all(
            tuple(traffic.members(call)) == tuple(world)
            for calls in calls_by_rank.values()
            for call in calls
        )
        if not alike:
            available = f"{len(calls_by_rank)} of {traffic.ranks} ranks"
            raise UsageError(
                "traffic", available, "all ranks, or a plan in which all are one group"
            )
        calls_by_rank = {rank: next(iter(calls_by_rank.values())) for rank in world}
    marked = [{c.step for c in calls if c.step is not None} for calls in traffic.calls.values()]
    step = max(set.intersection(*marked), default=None) if marked else None
    if step is not None:
        calls_by_rank = {
            r: [c for c in calls if c.step == step] for r, calls in calls_by_rank.items()
        }
        written.notes.append(f"step {step}, the last that every rank marked")
    sent: dict[str, int] = {}
    for call in calls_by_rank[0]:
        if call.collective in SIMULATED:
            moved = max(call.bytes_in, call.bytes_out)
            sent[call.collective] = sent.get(call.collective, 0) + moved
    if not sent:
        raise UsageError("traffic", "no call that ASTRA-sim has a model of", ", ".join(SIMULATED))
    name = max(sent, key=lambda name: sent[name])
    links = simulated_links(model, name, traffic.ranks, None)
    groups: dict[tuple[int, ...], int] = {}
    left_out: dict[str, int] = {}
    traces = []
    for rank in world:
        spans = traffic.steps.get(rank, [])
        span = spans[step] if step is not None and step < len(spans) else None
        nodes = _step_nodes(
            traffic, calls_by_rank[rank], rank, span, links.launch_ns, groups, left_out
        )
        traces.append(encode_nodes(nodes))
    written.notes += [f"left out: {count} calls of {name}" for name, count in left_out.items()]
    written.notes.append("computation in whole microseconds, as Chakra has it")
    if any(c.time_ns and c.span is None for calls in calls_by_rank.values() for c in calls):
        written.notes.append("the start of kernels is not recorded: the time of issue is used")
    if len(sent) > 1:
        written.notes.append(f"the network is that of {name}, which moves most: others may differ")
    ids = {str(number): list(ranks) for ranks, number in groups.items()}
    step_of = {"step": _Simulation(STEP_LINE, "step", traces)}
    _write(written, model, {"step": links}, step_of, ids)
    return written


def _collective(number: int, name: str, put_in: int, after: Iterable[int] = ()) -> ChakraNode:
    attributes: dict[str, Value] = {
        "is_cpu_op": False,
        "comm_type": KINDS[name],
        "comm_size": put_in,
    }
    return ChakraNode(number, name, COLLECTIVE, tuple(after), attributes=attributes)


def _run(number: int, launch_ns: float, after: Sequence[int]) -> list[ChakraNode]:
    """The node for the launch overhead of a call, rounded to microseconds; none if that is 0."""
    micros = round(launch_ns / 1000)
    if not micros:
        return []
    attributes: dict[str, Value] = {"is_cpu_op": False}
    return [ChakraNode(number, "launch", COMP, tuple(after), 0, micros, attributes)]


def _step_nodes(
    traffic: Traffic,
    calls: Sequence[TrafficCall],
    rank: int,
    span: tuple[int, int] | None,
    launch_ns: float,
    groups: dict[tuple[int, ...], int],
    left_out: dict[str, int],
) -> list[ChakraNode]:
    """The graph of one rank: a chain of computation and calls.

    A call that the rank does not wait for is not part of the chain; the computation after the last
    call waits for all such calls. A call is placed where it ran, which on a GPU is long after it
    was issued. The time between calls counts as computation, unless the source of the traffic
    recorded when the rank computed.

    span: start and end of the marked step in ns. The time before the first call and after the
    end of the last one is computation too.
    groups: gets a number for each group of ranks that is not the world.
    left_out: gets the number of calls that cannot be simulated, by collective.
    """
    nodes: list[ChakraNode] = []
    chain: tuple[int, ...] = ()
    concurrent: list[int] = []
    ran = [_ran(call) for call in calls]
    reached = span[0] if span else ran[0][0] if ran else None
    traced = rank in traffic.computing and any(call.span for call in calls)
    computing = Union(traffic.computing[rank]) if traced else None
    world = tuple(range(traffic.ranks))

    def compute(from_ns: int | None, to_ns: int | None, after: tuple[int, ...]) -> None:
        nonlocal chain
        gap = 0 if from_ns is None or to_ns is None else to_ns - from_ns
        if computing is not None and gap > 0 and from_ns is not None and to_ns is not None:
            gap = computing.within(from_ns, to_ns)
        if gap >= 500:
            attributes: dict[str, Value] = {"is_cpu_op": False}
            micros = round(gap / 1000)
            nodes.append(ChakraNode(len(nodes), "compute", COMP, after, 0, micros, attributes))
            chain = (nodes[-1].id,)

    for call, (begin, end) in zip(calls, ran, strict=True):
        compute(reached, begin, chain)
        run = [] if call.point_to_point else _run(len(nodes), launch_ns, chain)
        after = tuple(node.id for node in run) or chain
        node = _call_node(len(nodes) + len(run), call, rank, after)
        if node is None:
            left_out[call.collective] = left_out.get(call.collective, 0) + 1
            continue
        members = tuple(traffic.members(call))
        if members != world:
            node.attributes["pg_name"] = str(groups.setdefault(members, len(groups) + 1))
        nodes += [*run, node]
        waited = call.asynchronous is False
        if waited:
            chain = (node.id,)
        else:
            concurrent.append(node.id)
        if begin is not None:
            issued = 0 if computing is not None else sum(1000 * n.duration_us for n in run)
            until = (begin if end is None else end) if waited else begin + issued
            # Calls of several streams may begin in another order: nothing is counted twice.
            reached = until if reached is None else max(reached, until)
    ends = [end for _, end in ran if end is not None]
    if span and ends and (computing is not None or len(ends) == len(calls)):
        if computing is not None:  # computation that overlaps the last calls
            compute(reached, max(ends), chain)
        last = max(ends) if reached is None else max(reached, *ends)
        compute(last, span[1], (*chain, *concurrent))
    if not nodes:  # a rank without calls: the simulator ends with an error on an empty trace
        nodes.append(ChakraNode(0, "compute", COMP, attributes={"is_cpu_op": False}))
    return nodes


def _ran(call: TrafficCall) -> tuple[int | None, int | None]:
    """Start and end of a call in ns; a kernel with a time only counts from when it was issued."""
    if call.span:
        return call.span
    if call.start_ns is None or not call.time_ns:
        return call.start_ns, None
    return call.start_ns, call.start_ns + call.time_ns


def _call_node(
    number: int, call: TrafficCall, rank: int, after: tuple[int, ...]
) -> ChakraNode | None:
    if call.collective in SIMULATED:
        return _collective(number, call.collective, call.bytes_in, after)
    if not call.point_to_point or call.peer is None:
        return None
    sends = bool(call.bytes_in)
    attributes: dict[str, Value] = {
        "is_cpu_op": False,
        "comm_size": call.bytes_in or call.bytes_out,
        "comm_src": rank if sends else call.peer,
        "comm_dst": call.peer if sends else rank,
        "comm_tag": call.sequence,
    }
    return ChakraNode(
        number, call.collective, SEND if sends else RECV, after, attributes=attributes
    )


def simulated_links(model: MachineModel, collective: str, ranks: int, hosts: int | None) -> Links:
    """The links over which a ring of this many ranks takes the time that the model predicts.

    Like ``predict``, this uses the law over sizes if the model has measurements on this number of
    ranks, and otherwise the law over ranks (on 3 and 4 gloo ranks on 2 cores the law over ranks was
    off by 39 and 58 %, the law over sizes by 20 and 19 %). If the model has no law over ranks, the
    curve on the nearest number of ranks counts as a ring's.

    hosts: None for as many hosts as the ranks need if hosts are as full as the measured ones.
    Raises UsageError if the model has no bandwidth, or if there are several hosts and it has no
    links between hosts.
    """
    if ranks < 2:
        raise UsageError("astra-sim", f"{ranks} rank", "2 ranks or more")
    entry = model.entry(collective)
    ring = next(iter(step_laws(collective)))
    law = entry.over_ranks
    for curve in entry.over_sizes:
        if curve.ranks == ranks and hosts in (None, curve.hosts) and any(curve.bandwidths):
            return _measured(curve, collective, ring, ranks, law)
    if law is None:
        curve = min(entry.over_sizes, key=lambda curve: abs(curve.ranks - ranks))
        return _measured(curve, collective, ring, ranks, None)
    if hosts and hosts > 1 and law.between is None:
        raise UsageError("hosts", hosts, "1: links between hosts were not measured")
    if hosts is None and max(law.hosts) > 1:
        hosts = max(1, math.ceil(ranks / (entry.ranks_per_host or ranks) - 1e-9))
    law_steps = next(steps for steps in step_laws(collective) if steps.name == law.law)
    row = terms(law_steps, 1.0, ranks, hosts or 1, min(law.hosts) > 1)
    total_ns = ns_a_byte = 0.0
    for link, steps, sent in ((law.within, *row[1:3]), (law.between, *row[3:5])):
        step, rate = link or (None, None)
        total_ns += steps * step[0] if step else 0.0
        if sent and rate is None:
            raise UsageError("model", f"no bandwidth for {law.law}", "one, of larger sizes")
        ns_a_byte += sent / rate[0] if rate else 0.0
    notes = []
    if law.law != ring.name:
        notes.append(
            f"{collective}: the law is {law.law}, simulated as a ring; its links are such that "
            f"{ranks} ranks take as long as in the model"
        )
    if hosts and hosts > 1 and law.within is not None:
        notes.append(f"{collective}: links within and between hosts are put together in one kind")
    return Links(
        ranks,
        ring.share(ranks) / ns_a_byte,
        total_ns / ring.steps(ranks),
        law.launch_ns[0] if law.launch_ns else 0.0,
        f"{collective}, law: {law.law}",
        tuple(notes),
    )


def _measured(
    curve: OverSizes, collective: str, ring: StepLaw, ranks: int, law: OverRanks | None
) -> Links:
    """The links from one measured curve: the latency of its smallest sizes, which includes the
    launch overhead of the law over ranks, and the bandwidth of its largest sizes.
    """
    rates = [bandwidth[0] for bandwidth in curve.bandwidths if bandwidth]
    if not rates:
        raise UsageError("model", f"no bandwidth of {collective}", "one, of larger sizes")
    latency_ns = max(curve.law.pieces[0].latency_ns, 0.0)
    launch_ns = min(law.launch_ns[0], latency_ns) if law and law.launch_ns else 0.0
    notes = []
    if curve.ranks != ranks:
        notes.append(f"{collective} was measured on {curve.ranks} ranks alone: taken for a ring")
    if len(curve.law.pieces) > 1:
        notes.append(
            f"{collective}: {len(curve.law.pieces)} ranges of sizes: the latency is of the first, "
            "the bandwidth of the last"
        )
    return Links(
        ranks,
        rates[-1] * ring.share(curve.ranks),
        (latency_ns - launch_ns) / ring.steps(curve.ranks),
        launch_ns,
        f"{collective}, as measured on {curve.ranks} ranks",
        tuple(notes),
    )


def _write(
    written: SimulatorInput,
    model: MachineModel,
    links: Mapping[str, Links],
    simulations: Mapping[str, _Simulation],
    groups: Mapping[str, list[int]],
) -> None:
    traces = sum(len(simulation.traces) for simulation in simulations.values())
    if traces > _MOST_FILES:
        raise UsageError("astra-sim", f"{traces} traces", f"at most {_MOST_FILES}")
    source = model.path.name if model.path else "a model"
    # As in ASTRA-sim's HGX-H100-validated.json, but without chunks and without the simulator's own
    # costs of memory and end points: the measured steps include these.
    system = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": _ENDPOINT_NS,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        **{
            f"{n.replace('_', '-')}-implementation": [algorithm]
            for n, algorithm in _ALGORITHMS.items()
        },
        "collective-optimization": "localBWAware",
        "local-mem-bw": _NO_MEMORY_GBPS,
        "boost-mode": 0,
    }
    files: dict[str, str | bytes] = {
        "memory.json": json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}, indent=1) + "\n",
    }
    for name, link in links.items():
        files[f"{name}/network.yml"] = (
            f"# torchcoll model export, from {source}: {link.about}\n"
            f"# Here a GB is 2^30 bytes: {link.gbps:.6g} GB/s of 10^9 bytes.\n"
            "topology: [ FullyConnected ]\n"
            f"npus_count: [ {link.ranks} ]\n"
            f"bandwidth: [ {link.gbps * GIB_PER_GB:.6g} ]  # GB/s\n"
            f"latency: [ {max(0.0, link.step_ns - _ENDPOINT_NS):.6g} ]  # ns\n"
        )
        files[f"{name}/system.json"] = json.dumps(system, indent=1) + "\n"
        written.notes += link.notes
    option = ""
    if groups:
        files["groups.json"] = json.dumps(dict(groups), indent=1) + "\n"
        option = " \\\n    --comm-group-configuration=groups.json"
    lines = []
    for name, simulation in simulations.items():
        lines.append(f"simulate {shlex.quote(simulation.line)} {simulation.network} {name}\n")
        for rank, content in enumerate(simulation.traces):
            files[f"traces/{name}/{name}.{rank}{SUFFIX}"] = content
    files["run.sh"] = _RUN.format(groups=option) + "".join(lines) + "exit $failed\n"
    _save(written.folder, files)
    written.cases, written.files = list(simulations), len(files)


def _save(folder: Path, files: Mapping[str, str | bytes]) -> None:
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError("astra-sim", folder, "a folder that is new or empty")
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = content.encode() if isinstance(content, str) else content
            replace_file(path, data, only_new=True)
    except OSError as error:
        expected = "a folder that can be written"
        raise not_written("astra-sim", folder, error, expected) from None

"""The model of a machine as the input of ASTRA-sim's analytical network: files in a folder.

``network.yml``, one a collective and number of ranks, as each has its law: a link from each rank to
each. Its GB are 2^30 bytes (bw_GBps_to_Bpns in the simulator's NetworkFunction.cpp), so bandwidths
are divided by 1.0737. Not a switch: over that a message passes the latency twice, and in the
congestion-aware simulator its bytes twice as well, one link after the other; so its times were
1.85 and 2.00 of the model's (1 and 64 MiB), and over links those of both simulators are the same.
``system.json``: a ring in one piece, for the measured steps are not cut in chunks either. A trace a
rank and case, or of one captured step, each call after a node of the model's launch overhead (not
one of the CPU: the simulator's statistics fail on those), and ``run.sh``, whose output ``load``
reads (importers/astra_sim.py).

Where these ranks were measured, the links are those over which a ring takes what they took; else
those of the law over ranks. Where that is no ring, the links are such that the steps of a ring add
up to it on this number of ranks, and that is said. The simulator's other algorithms are other laws:
its double binary tree sends all of the data a level (the law: twice in all), its halvings and
doublings of all_reduce are twice the steps, its all_to_all in a ring takes n (n - 1) / 2. Nor are
hosts a second dimension: between them a byte goes once a host there, and once a rank in the law.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchcoll.core.collectives import COLLECTIVES, Layout
from torchcoll.core.errors import UsageError
from torchcoll.core.intervals import Union
from torchcoll.core.opening import replace_file
from torchcoll.core.result import Run, hosts_of
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.curves.model import MachineModel, OverRanks, OverSizes, terms
from torchcoll.curves.model_check import differing
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
    """Links from each rank to each: GB/s of 10^9 bytes, and ns from one to another, for a ring of
    so many ranks; ns before each call. about: whose, and the law.
    """

    ranks: int
    gbps: float
    step_ns: float
    launch_ns: float
    about: str
    notes: tuple[str, ...] = ()


@dataclass
class SimulatorInput:
    """What was written. notes: what could not be, a sentence each."""

    folder: Path
    cases: list[str] = field(default_factory=list)
    files: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Simulation:
    """line: what run.sh says before it; network: whose links; a trace of each rank."""

    line: str
    network: str
    traces: Sequence[bytes]


def export_run(model: MachineModel, run: Run, folder: Path) -> SimulatorInput:
    """A simulation for each case of a run that was measured on all of its ranks.

    Raises UsageError where none can be simulated, or the folder is there and not empty.
    """
    done = SimulatorInput(folder)
    known = {entry.collective for entry in model.entries}
    hosts = hosts_of(run) or None
    simulations: dict[str, _Simulation] = {}
    links: dict[str, Links] = {}
    left: dict[str, int] = {}
    for item in Side("run", [run]).measured("time", Reading()):
        result = item.result
        name = result.case.collective
        why = f"{name}, which the model does not have"
        if name in known:  # where a case is not what ``links_of`` has the links of
            other = differing(model.entry(item.row.collective).kind, item)
            texts = [f"{field}={value}" for field, value in other.items()]
            why = f"another kind: {', '.join(texts)}" if other else ""
        why = why if name in SIMULATED else f"{name}, which ASTRA-sim has no model of"
        why = "a sub-group" if result.members else why
        why = f"{result.status}" if result.status != "ok" else why
        if why:
            left[why] = left.get(why, 0) + 1
            continue
        ranks, size_bytes = result.ranks, result.size_bytes
        network = f"{name}-{ranks}ranks"
        if network not in links:
            links[network] = links_of(model, name, ranks, hosts)
        nodes = _run(0, links[network].launch_ns, ())
        collective = COLLECTIVES[name]
        layout = Layout(0, ranks, size_bytes // collective.parts(ranks))
        put_in = result.bytes_in or collective.elements(layout)[0]
        nodes.append(_collective(len(nodes), name, put_in, [n.id for n in nodes]))
        line = CASE_LINE.format(name, size_bytes, ranks)
        own = _Simulation(line, network, [encode_nodes(nodes)] * ranks)
        simulations.setdefault(f"{network}-{size_bytes}", own)
    if not simulations:
        got = "; ".join(f"{count} of {why}" for why, count in left.items()) or "no case"
        expected = f"cases of {', '.join(SIMULATED)}"
        raise UsageError("astra-sim", got, expected)
    done.notes += [f"left out: {count} cases of {why}" for why, count in left.items()]
    _write(done, model, links, simulations, {})
    return done


def export_step(model: MachineModel, traffic: Traffic, folder: Path) -> SimulatorInput:
    """One step of a training: its calls, and between them the time in which something else ran.

    Raises UsageError where ranks are missing, or nothing can be simulated.
    """
    done = SimulatorInput(folder)
    world = range(traffic.ranks)
    own = traffic.calls
    if set(own) != set(world):
        alike = traffic.source == "plan" and all(
            tuple(traffic.members(call)) == tuple(world) for calls in own.values() for call in calls
        )
        if not alike:
            got = f"{len(own)} of {traffic.ranks} ranks"
            raise UsageError("traffic", got, "all ranks, or a plan in which all are one group")
        own = {rank: next(iter(own.values())) for rank in world}
    marked = [{c.step for c in calls if c.step is not None} for calls in traffic.calls.values()]
    step = max(set.intersection(*marked), default=None) if marked else None
    if step is not None:
        own = {r: [c for c in calls if c.step == step] for r, calls in own.items()}
        done.notes.append(f"step {step}, the last that every rank marked")
    sent: dict[str, int] = {}
    for call in own[0]:
        if call.collective in SIMULATED:
            moved = max(call.bytes_in, call.bytes_out)
            sent[call.collective] = sent.get(call.collective, 0) + moved
    if not sent:
        raise UsageError("traffic", "no call that ASTRA-sim has a model of", ", ".join(SIMULATED))
    name = max(sent, key=lambda one: sent[one])
    links = links_of(model, name, traffic.ranks, None)
    groups: dict[tuple[int, ...], int] = {}
    left: dict[str, int] = {}
    traces = []
    for rank in world:
        spans = traffic.steps.get(rank, [])
        span = spans[step] if step is not None and step < len(spans) else None
        nodes = _step_nodes(traffic, own[rank], rank, span, links.launch_ns, groups, left)
        traces.append(encode_nodes(nodes))
    done.notes += [f"left out: {count} calls of {one}" for one, count in left.items()]
    done.notes.append("computation in whole microseconds, as Chakra has it")
    if any(c.time_ns and c.span is None for calls in own.values() for c in calls):
        done.notes.append("when kernels began is not told: taken from when they were issued")
    if len(sent) > 1:
        done.notes.append(f"the network is that of {name}, which moves most: others may differ")
    ids = {str(number): list(ranks) for ranks, number in groups.items()}
    step_of = {"step": _Simulation(STEP_LINE, "step", traces)}
    _write(done, model, {"step": links}, step_of, ids)
    return done


def _collective(number: int, name: str, put_in: int, after: Iterable[int] = ()) -> ChakraNode:
    attributes: dict[str, Value] = {
        "is_cpu_op": False,
        "comm_type": KINDS[name],
        "comm_size": put_in,
    }
    return ChakraNode(number, name, COLLECTIVE, tuple(after), attributes=attributes)


def _run(number: int, launch_ns: float, after: Sequence[int]) -> list[ChakraNode]:
    """What a call costs before its first step, in whole microseconds."""
    micros = round(launch_ns / 1000)
    if not micros:
        return []
    own: dict[str, Value] = {"is_cpu_op": False}
    return [ChakraNode(number, "launch", COMP, tuple(after), 0, micros, own)]


def _step_nodes(
    traffic: Traffic,
    calls: Sequence[TrafficCall],
    rank: int,
    span: tuple[int, int] | None,
    launch_ns: float,
    groups: dict[tuple[int, ...], int],
    left: dict[str, int],
) -> list[ChakraNode]:
    """The program of one rank: what it computes is a chain; a call that it does not wait for hangs
    beside it, and what follows the last call waits for all. span: the marked step, of which the
    part before the first call, and that after the end of the last, are computation too.

    Calls stand where they ran, which on a GPU is long after they were issued. Between them all is
    computation, or, where the source tells it, what was.
    """
    nodes: list[ChakraNode] = []
    chain: tuple[int, ...] = ()
    concurrent: list[int] = []
    ran = [_ran(call) for call in calls]
    reached = span[0] if span else ran[0][0] if ran else None
    told = rank in traffic.computing and any(call.span for call in calls)
    computing = Union(traffic.computing[rank]) if told else None
    world = tuple(range(traffic.ranks))

    def compute(from_ns: int | None, to_ns: int | None, after: tuple[int, ...]) -> None:
        nonlocal chain
        gap = 0 if from_ns is None or to_ns is None else to_ns - from_ns
        if computing is not None and gap > 0 and from_ns is not None and to_ns is not None:
            gap = computing.within(from_ns, to_ns)
        if gap >= 500:
            own: dict[str, Value] = {"is_cpu_op": False}
            micros = round(gap / 1000)
            nodes.append(ChakraNode(len(nodes), "compute", COMP, after, 0, micros, own))
            chain = (nodes[-1].id,)

    for call, (begin, end) in zip(calls, ran, strict=True):
        compute(reached, begin, chain)
        run = [] if call.point_to_point else _run(len(nodes), launch_ns, chain)
        after = tuple(node.id for node in run) or chain
        made = _call_node(len(nodes) + len(run), call, rank, after)
        if made is None:
            left[call.collective] = left.get(call.collective, 0) + 1
            continue
        members = tuple(traffic.members(call))
        if members != world:
            made.attributes["pg_name"] = str(groups.setdefault(members, len(groups) + 1))
        nodes += [*run, made]
        waited = call.asynchronous is False
        if waited:
            chain = (made.id,)
        else:
            concurrent.append(made.id)
        if begin is not None:
            issued = 0 if computing is not None else sum(1000 * n.duration_us for n in run)
            until = (begin if end is None else end) if waited else begin + issued
            # Calls of several streams may begin in another order: nothing is counted twice.
            reached = until if reached is None else max(reached, until)
    ends = [end for _, end in ran if end is not None]
    if span and ends and (computing is not None or len(ends) == len(calls)):
        if computing is not None:  # beside the last calls
            compute(reached, max(ends), chain)
        last = max(ends) if reached is None else max(reached, *ends)
        compute(last, span[1], (*chain, *concurrent))
    if not nodes:  # of a rank without calls: the simulator ends with an error on an empty trace
        nodes.append(ChakraNode(0, "compute", COMP, attributes={"is_cpu_op": False}))
    return nodes


def _ran(call: TrafficCall) -> tuple[int | None, int | None]:
    """When it began and ended; of a kernel of which only its time is known, as if at its issue."""
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


def links_of(model: MachineModel, collective: str, ranks: int, hosts: int | None) -> Links:
    """The links over which a ring of this many ranks takes what the model says of them: where they
    were measured its law over sizes, else that over ranks, as ``predict`` does (on 3 and 4 gloo
    ranks of 2 cores the law over ranks was 39 and 58 % off, that over sizes 20 and 19 %).

    hosts: None is as many as the ranks need on hosts as full as the measured ones. Without a law
    over ranks: what was measured on the nearest number of them, as a ring's. Raises UsageError
    where the model has no bandwidth, or no links between hosts and there are several.
    """
    if ranks < 2:
        raise UsageError("astra-sim", f"{ranks} rank", "2 ranks or more")
    entry = model.entry(collective)
    ring = next(iter(step_laws(collective)))
    law = entry.over_ranks
    for one in entry.over_sizes:
        if one.ranks == ranks and hosts in (None, one.hosts) and any(one.bandwidths):
            return _measured(one, collective, ring, ranks, law)
    if law is None:
        one = min(entry.over_sizes, key=lambda own: abs(own.ranks - ranks))
        return _measured(one, collective, ring, ranks, None)
    if hosts and hosts > 1 and law.between is None:
        raise UsageError("hosts", hosts, "1: links between hosts were not measured")
    if hosts is None and max(law.hosts) > 1:
        hosts = max(1, math.ceil(ranks / (entry.ranks_per_host or ranks) - 1e-9))
    own_law = next(one for one in step_laws(collective) if one.name == law.law)
    row = terms(own_law, 1.0, ranks, hosts or 1, min(law.hosts) > 1)
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
    one: OverSizes, collective: str, ring: StepLaw, ranks: int, law: OverRanks | None
) -> Links:
    """The latency of its smallest sizes, of which the run of the law is a part, and the
    bandwidth of its largest.
    """
    rates = [bandwidth[0] for bandwidth in one.bandwidths if bandwidth]
    if not rates:
        raise UsageError("model", f"no bandwidth of {collective}", "one, of larger sizes")
    latency_ns = max(one.law.pieces[0].latency_ns, 0.0)
    launch_ns = min(law.launch_ns[0], latency_ns) if law and law.launch_ns else 0.0
    notes = []
    if one.ranks != ranks:
        notes.append(f"{collective} was measured on {one.ranks} ranks alone: taken for a ring")
    if len(one.law.pieces) > 1:
        notes.append(
            f"{collective}: {len(one.law.pieces)} ranges of sizes: the latency is of the first, "
            "the bandwidth of the last"
        )
    return Links(
        ranks,
        rates[-1] * ring.share(one.ranks),
        (latency_ns - launch_ns) / ring.steps(one.ranks),
        launch_ns,
        f"{collective}, as measured on {one.ranks} ranks",
        tuple(notes),
    )


def _write(
    done: SimulatorInput,
    model: MachineModel,
    links: Mapping[str, Links],
    simulations: Mapping[str, _Simulation],
    groups: Mapping[str, list[int]],
) -> None:
    traces = sum(len(own.traces) for own in simulations.values())
    if traces > _MOST_FILES:
        raise UsageError("astra-sim", f"{traces} traces", f"at most {_MOST_FILES}")
    source = model.path.name if model.path else "a model"
    # As ASTRA-sim's own HGX-H100-validated.json, in one piece, and with nothing of its own beside
    # the steps: what memory and end points take is in the steps that were measured.
    system = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": _ENDPOINT_NS,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        **{f"{n.replace('_', '-')}-implementation": [own] for n, own in _ALGORITHMS.items()},
        "collective-optimization": "localBWAware",
        "local-mem-bw": _NO_MEMORY_GBPS,
        "boost-mode": 0,
    }
    files: dict[str, str | bytes] = {
        "memory.json": json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}, indent=1) + "\n",
    }
    for name, own in links.items():
        files[f"{name}/network.yml"] = (
            f"# torchcoll model export, from {source}: {own.about}\n"
            f"# Here a GB is 2^30 bytes: {own.gbps:.6g} GB/s of 10^9 bytes.\n"
            "topology: [ FullyConnected ]\n"
            f"npus_count: [ {own.ranks} ]\n"
            f"bandwidth: [ {own.gbps * GIB_PER_GB:.6g} ]  # GB/s\n"
            f"latency: [ {max(0.0, own.step_ns - _ENDPOINT_NS):.6g} ]  # ns\n"
        )
        files[f"{name}/system.json"] = json.dumps(system, indent=1) + "\n"
        done.notes += own.notes
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
    _save(done.folder, files)
    done.cases, done.files = list(simulations), len(files)


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
        expected = f"a folder that can be written ({error.strerror})"
        raise UsageError("astra-sim", folder, expected) from None

"""The model of a machine as the input of ASTRA-sim's analytical network: files in a folder.

``network.yml``: one dimension, or hosts as a second one. Its GB are 2^30 bytes (bw_GBps_to_Bpns in
the simulator's NetworkFunction.cpp), and a message over a switch passes its latency twice, up and
down: so bandwidths are divided by 1.0737 and latencies halved. ``system.json``: the algorithm whose
law the model has, in one piece, for the measured steps are not cut in chunks either. A trace a
rank and case, or of one captured step, and ``run.sh``, whose output ``load`` reads
(importers/astra_sim.py).

What has no place there: the model's launch overhead, which is left out, and said.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchcoll.core.collectives import COLLECTIVES, Layout
from torchcoll.core.errors import UsageError
from torchcoll.core.result import Run
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.curves.model import MachineModel, OverRanks
from torchcoll.curves.step_laws import step_laws
from torchcoll.libraries.execution_trace import (
    CASE_LINE,
    COLLECTIVE,
    COMP,
    KINDS,
    RECV,
    SEND,
    SIMULATED,
    SUFFIX,
    ChakraNode,
    Value,
    encoded,
)

GIB_PER_GB = 1e9 / 2**30
_PASSES = 2  # of a switch: up and down
_MOST_FILES = 100_000
_ALGORITHMS = {
    "ring": "ring",
    "tree": "doubleBinaryTree",
    "recursive doubling": "halvingDoubling",
    "linear": "direct",
}
_IMPLEMENTATIONS = tuple(f"{name.replace('_', '-')}-implementation" for name in SIMULATED)
_RUN = """#!/bin/sh
# ASTRA_SIM=.../AstraSim_Analytical_Congestion_Aware sh run.sh > sim.log
# torchcoll model validate --predicted sim.log RUN holds what it says against what was measured.
cd "$(dirname "$0")" || exit 1
simulate() {{
  echo "$1"
  "${{ASTRA_SIM:?the path of the simulator}}" --workload-configuration="$2" \\
    --system-configuration=system.json --network-configuration=network.yml \\
    --remote-memory-configuration=memory.json{groups}
}}
"""


@dataclass(frozen=True)
class Dimension:
    """Ranks of a switch; GB/s of 10^9 bytes, and ns from one to another of them."""

    ranks: int
    gbps: float
    step_ns: float


@dataclass
class SimulatorInput:
    """What was written. notes: what could not be, a sentence each."""

    folder: Path
    cases: list[str] = field(default_factory=list)
    files: int = 0
    notes: list[str] = field(default_factory=list)


def export_run(model: MachineModel, run: Run, folder: Path) -> SimulatorInput:
    """A simulation for each case of a run that was measured on all of its ranks.

    Raises UsageError where none can be simulated, or the folder is there and not empty.
    """
    done = SimulatorInput(folder)
    cases: dict[str, tuple[str, list[bytes]]] = {}
    left: dict[str, int] = {}
    ranks = run.ranks
    for result in run.results:
        name = result.case.collective
        why = "" if name in SIMULATED else f"{name}, which ASTRA-sim has no model of"
        why = "a sub-group" if result.members else why
        why = f"{result.status}" if result.status != "ok" else why
        if why:
            left[why] = left.get(why, 0) + 1
            continue
        ranks = result.ranks
        size_bytes = result.size_bytes
        put_in = result.bytes_in or _bytes_in(name, size_bytes, ranks)
        key = f"{name}-{size_bytes}"
        line = CASE_LINE.format(name, size_bytes, ranks)
        cases.setdefault(key, (line, [encoded([_collective(0, name, put_in)])] * ranks))
    if not cases:
        got = "; ".join(f"{count} of {why}" for why, count in left.items()) or "no case"
        expected = f"cases of {', '.join(SIMULATED)}"
        raise UsageError("astra-sim", got, expected)
    done.notes += [f"left out: {count} cases of {why}" for why, count in left.items()]
    names = [key.rpartition("-")[0] for key in cases]
    hosts = len({str(m["host"]) for m in run.members if m.get("host")}) or None
    _write(done, model, names[0], ranks, hosts, cases, {})
    if len(set(names)) > 1:
        done.notes.append(f"network.yml is of {names[0]}: other collectives may use others")
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
    step = _last_step(traffic)
    if step is not None:
        own = {r: [c for c in calls if c.step == step] for r, calls in own.items()}
        done.notes.append(f"step {step}, the last that every rank marked")
    groups: dict[tuple[int, ...], int] = {}
    left: dict[str, int] = {}
    traces = [encoded(_step_nodes(traffic, own[rank], rank, groups, left)) for rank in world]
    names = [c.collective for calls in own.values() for c in calls if c.collective in SIMULATED]
    if not names:
        raise UsageError("traffic", "no call that ASTRA-sim has a model of", ", ".join(SIMULATED))
    done.notes += [f"left out: {count} calls of {name}" for name, count in left.items()]
    done.notes.append("computation in whole microseconds, as Chakra has it")
    ids = {str(number): list(ranks) for ranks, number in groups.items()}
    cases = {"step": ("torchcoll step", traces)}
    _write(done, model, names[0], traffic.ranks, None, cases, ids)
    return done


def _last_step(traffic: Traffic) -> int | None:
    each = [{c.step for c in calls if c.step is not None} for calls in traffic.calls.values()]
    common = set.intersection(*each) if each else set()
    return max(common) if common else None


def _bytes_in(name: str, size_bytes: int, ranks: int) -> int:
    entry = COLLECTIVES[name]
    return entry.elements(Layout(0, ranks, size_bytes // entry.parts(ranks)))[0]


def _collective(number: int, name: str, put_in: int, after: Iterable[int] = ()) -> ChakraNode:
    attributes: dict[str, Value] = {
        "is_cpu_op": False,
        "comm_type": KINDS[name],
        "comm_size": put_in,
    }
    return ChakraNode(number, name, COLLECTIVE, tuple(after), attributes=attributes)


def _step_nodes(
    traffic: Traffic,
    calls: Sequence[TrafficCall],
    rank: int,
    groups: dict[tuple[int, ...], int],
    left: dict[str, int],
) -> list[ChakraNode]:
    """The program of one rank: what it computes is a chain; a call that it does not wait for hangs
    beside it, and the end waits for all.
    """
    nodes: list[ChakraNode] = []
    last: int | None = None
    reached = calls[0].start_ns if calls else None
    world = tuple(range(traffic.ranks))

    def add(node: ChakraNode) -> int:
        nodes.append(node)
        return node.id

    for call in calls:
        gap = 0 if call.start_ns is None or reached is None else call.start_ns - reached
        if gap >= 500:
            after = () if last is None else (last,)
            micros = round(gap / 1000)
            own: dict[str, Value] = {"is_cpu_op": False}
            node = ChakraNode(len(nodes), "compute", COMP, after, 0, micros, own)
            last = add(node)
        made = _call_node(len(nodes), call, rank, () if last is None else (last,))
        if made is None:
            left[call.collective] = left.get(call.collective, 0) + 1
            continue
        members = tuple(traffic.members(call))
        if members != world:
            made.attributes["pg_name"] = str(groups.setdefault(members, len(groups) + 1))
        number = add(made)
        waited = call.asynchronous is False
        last = number if waited else last
        if call.start_ns is not None:
            reached = call.start_ns + ((call.time_ns or 0) if waited else 0)
    return nodes


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


# -- the machine ---------------------------------------------------------------------------------


def dimensions(
    model: MachineModel, collective: str, ranks: int, hosts: int | None
) -> tuple[list[Dimension], str, float]:
    """The dimensions of a network, the law of the collective, and its launch overhead in ns.

    Without a law over ranks: what was measured on the nearest number of them, as a ring's.
    """
    entry = model.entry(collective)
    law = entry.over_ranks
    if law is not None:
        return [*_links(law, ranks, hosts)], law.law, law.launch_ns[0] if law.launch_ns else 0.0
    one = min(entry.over_sizes, key=lambda own: abs(own.ranks - ranks))
    ring = next(iter(step_laws(collective)))
    least = one.law.pieces[0]
    rates = [bandwidth[0] for bandwidth in one.bandwidths if bandwidth]
    if not rates:
        raise UsageError("model", f"no bandwidth of {collective}", "one, of larger sizes")
    gbps = rates[-1] * ring.share(one.ranks)
    step_ns = max(least.latency_ns, 0.0) / max(ring.steps(one.ranks), 1.0)
    return [Dimension(ranks, gbps, step_ns)], ring.name, 0.0


def _links(law: OverRanks, ranks: int, hosts: int | None) -> Iterable[Dimension]:
    each = [
        (step[0] if step else 0.0, rate[0] if rate else None)
        for step, rate in filter(None, (law.within, law.between))
    ]
    if hosts and hosts > 1 and law.between is None:
        raise UsageError("hosts", hosts, "1: links between hosts were not measured")
    split = law.within is not None and law.between is not None and hosts and 1 < hosts < ranks
    if split and hosts and ranks % hosts:
        raise UsageError("ranks", f"{ranks} on {hosts} hosts", "equally many on each host")
    counts = [ranks // (hosts or 1), hosts or 1] if split else [ranks]
    links = each if split else each[-1:] if law.within is None or (hosts or 1) > 1 else each[:1]
    for count, (step_ns, gbps) in zip(counts, links, strict=True):
        if gbps is None:
            raise UsageError("model", f"no bandwidth for {law.law}", "one, of larger sizes")
        yield Dimension(count, gbps, step_ns)


def network_text(own: Sequence[Dimension], about: str) -> str:
    def listed(values: Iterable[object]) -> str:
        return "[ " + ", ".join(map(str, values)) + " ]"

    gbps = ", ".join(f"{one.gbps:.6g}" for one in own)
    return (
        f"# {about}\n"
        f"# Here a GB is 2^30 bytes: {gbps} GB/s of 10^9 bytes.\n"
        "# A switch counts its latency up and down: half of what a step takes.\n"
        f"topology: {listed('Switch' for _ in own)}\n"
        f"npus_count: {listed(one.ranks for one in own)}\n"
        f"bandwidth: {listed(f'{one.gbps * GIB_PER_GB:.6g}' for one in own)}  # GB/s\n"
        f"latency: {listed(f'{one.step_ns / _PASSES:.6g}' for one in own)}  # ns\n"
    )


def system_object(law: str, count: int) -> dict[str, Any]:
    """As ASTRA-sim's own HGX-H100-validated.json, in one piece."""
    algorithm = [_ALGORITHMS.get(law, "ring")] * count
    return {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        **dict.fromkeys(_IMPLEMENTATIONS, algorithm),
        "collective-optimization": "localBWAware",
        "local-mem-bw": 3350,
        "boost-mode": 0,
    }


# -- the files -----------------------------------------------------------------------------------


def _write(
    done: SimulatorInput,
    model: MachineModel,
    collective: str,
    ranks: int,
    hosts: int | None,
    cases: Mapping[str, tuple[str, list[bytes]]],
    groups: Mapping[str, list[int]],
) -> None:
    if ranks < 2:
        raise UsageError("astra-sim", f"{ranks} rank", "2 ranks or more")
    if len(cases) * ranks > _MOST_FILES:
        got = f"{len(cases)} cases on {ranks} ranks"
        raise UsageError("astra-sim", got, f"at most {_MOST_FILES} traces")
    own, law, launch_ns = dimensions(model, collective, ranks, hosts)
    source = model.path.name if model.path else "a model"
    about = f"torchcoll model export, from {source}: {collective}, {law}"
    if launch_ns:
        done.notes.append(
            f"the model's launch overhead, {launch_ns / 1000:.3g} us a call, has no place in "
            "ASTRA-sim: its times are without it"
        )
    files: dict[str, str | bytes] = {
        "network.yml": network_text(own, about),
        "system.json": json.dumps(system_object(law, len(own)), indent=1) + "\n",
        "memory.json": json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}, indent=1) + "\n",
    }
    option = ""
    if groups:
        files["groups.json"] = json.dumps(dict(groups), indent=1) + "\n"
        option = " \\\n    --comm-group-configuration=groups.json"
    lines = []
    for name, (line, traces) in cases.items():
        lines.append(f"simulate {shlex.quote(line)} traces/{name}/{name}\n")
        for rank, content in enumerate(traces):
            files[f"traces/{name}/{name}.{rank}{SUFFIX}"] = content
    files["run.sh"] = _RUN.format(groups=option) + "".join(lines)
    _save(done.folder, files)
    done.cases, done.files = list(cases), len(files)


def _save(folder: Path, files: Mapping[str, str | bytes]) -> None:
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError("astra-sim", folder, "a folder that is new or empty")
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        expected = f"a folder that can be written ({error.strerror})"
        raise UsageError("astra-sim", folder, expected) from None

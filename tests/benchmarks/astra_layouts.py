"""ASTRA-sim on the steps that `torchcoll plan --config` plans: its time beside the plan's.

    python tests/benchmarks/astra_layouts.py [SIMULATOR]

SIMULATOR: AstraSim_Analytical_Congestion_Unaware, built from github.com/astra-sim. Its formulas
are evaluated here too (``by_formulas``), with calls of several groups at once, as the plan has
them, and with one call at a time, as the simulator has them. Llama-3-8B on 8 ranks of one host, in
three layouts, with and without computation. Each act of the plan's program is
a node of a Chakra trace: computation, or a call that depends on what the plan says that it waits
for, and on the call before it in its group. The machine is a ring of 2 us a step and 100 GB/s a
link, for the simulator as it is, for the plan as a model that `torchcoll model fit` made of such
calls on 2, 4 and 8 ranks. sent: what the nodes of a rank say, as the bytes that a ring sends.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

from astra_sim import SIZES, of
from common import title

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.curves.astra_export import Links, SimulatorInput, _Simulation, _write
from torchcoll.curves.model import MachineModel
from torchcoll.curves.model_fit import fit_model
from torchcoll.curves.rank_laws import step_laws
from torchcoll.libraries.execution_trace import (
    COLLECTIVE,
    COMP,
    KINDS,
    STEP_LINE,
    ChakraNode,
    encode_nodes,
)
from torchcoll.training.architectures import read_architecture
from torchcoll.training.config_plan import TrainingOptions, plan_config
from torchcoll.training.config_projection import plan_layout
from torchcoll.training.layer_calls import parse_batch
from torchcoll.training.layouts import parse_layout
from torchcoll.training.projection import PASS_SHARES
from torchcoll.training.step_program import BeginCall, PassWork, SentCall, StepProgram
from torchcoll.training.timeline import Mark, Wait

RANKS, STEP_NS, LINK_GBPS, COMPUTE_MS = 8, 2000, 100.0, 400.0
LAYOUTS = ("dp=8", "fsdp=8", "fsdp=2,tp=4,sp")
ALIKE = ("all_reduce", "all_gather", "reduce_scatter")


def ring_machine() -> MachineModel:
    """A model fitted to calls that take just what the ring takes."""
    runs = []
    for name in ALIKE:
        ring = next(iter(step_laws(name)))
        runs += [
            of(name, n, SIZES, lambda ranks, size, law=ring: ring_ns(law, ranks, size))
            for n in (2, 4, 8)
        ]
    return fit_model(runs).model


def ring_ns(law, ranks: int, size_bytes: int) -> float:  # type: ignore[no-untyped-def]
    return float(law.steps(ranks) * STEP_NS + law.share(ranks) * size_bytes / LINK_GBPS)


class TraceWriter:
    """The nodes of one rank."""

    def __init__(self, groups: Mapping[str, tuple[int, int]], rank: int) -> None:
        self.groups, self.rank = groups, rank
        self.nodes: list[ChakraNode] = []
        self.sent_bytes = 0.0
        self._chain: tuple[int, ...] = ()  # what the host waits for
        self._events: dict[Hashable, tuple[int, ...]] = {}
        self._last: dict[str, int] = {}  # call of each group
        self.ranks_of: dict[int, int] = {}  # of the group, by the id of a call
        self._passed_us = self._passed_ns = 0.0  # computation: whole microseconds, and exactly

    def write(self, program: StepProgram, compute_ns: float) -> None:
        for act in program.acts:
            if isinstance(act, PassWork):
                self._compute(act.share * PASS_SHARES[act.phase] * compute_ns)
            elif isinstance(act, BeginCall):
                before = self._chain if act.after is None else self._events.get(act.after, ())
                self._call(act.name, act.sent, before)
            elif isinstance(act, Wait):
                ends = [n for name in act.calls for n in self._events.get(name, ())]
                self._chain = tuple(dict.fromkeys((*self._chain, *ends)))
            elif isinstance(act, Mark):
                self._events[act.event] = self._chain

    def members(self, group: str) -> tuple[int, ...]:
        ranks, apart = self.groups[group]
        first = self.rank - self.rank // apart % ranks * apart
        return tuple(first + n * apart for n in range(ranks))

    def name_of(self, group: str) -> str:
        """The number of this rank's group of that name: none is 0."""
        return str(1 + self.members(group)[0] + RANKS * list(self.groups).index(group))

    def _compute(self, time_ns: float) -> None:
        self._passed_ns += time_ns
        micros = round(self._passed_ns / 1000 - self._passed_us)
        if micros:
            self._passed_us += micros
            attributes: dict[str, bool | int | str] = {"is_cpu_op": False}
            number = len(self.nodes)
            self.nodes.append(
                ChakraNode(number, "compute", COMP, self._chain, 0, micros, attributes)
            )
            self._chain = (number,)

    def _call(self, name: Hashable, sent: SentCall, before: tuple[int, ...]) -> None:
        if sent.group not in self.groups:
            return
        ranks, _ = self.groups[sent.group]
        entry = COLLECTIVES[sent.collective]
        put_in = sent.size_bytes // (ranks if sent.collective == "all_gather" else 1)
        self.sent_bytes += sent.size_bytes * entry.moved(ranks) * entry.bus_factor(ranks)
        after = [*before, *(n for n in [self._last.get(sent.group)] if n is not None)]
        number = len(self.nodes)
        attributes: dict[str, bool | int | str] = {
            "is_cpu_op": False,
            "comm_type": KINDS[sent.collective],
            "comm_size": put_in,
        }
        if ranks < RANKS:
            attributes["pg_name"] = self.name_of(sent.group)
        self.nodes.append(
            ChakraNode(
                number, sent.collective, COLLECTIVE, tuple(dict.fromkeys(after)), 0, 0, attributes
            )
        )
        self.ranks_of[number] = ranks
        self._last[sent.group] = number
        self._events[name] = (number,)


def by_formulas(writer: TraceWriter, at_once: bool) -> float:
    """Returns when the last node of a rank ends, in ns, as ASTRA-sim's formulas have it.

    A ring of n ranks has 2 (n - 1) steps for an all_reduce, n - 1 otherwise, of a message of 1 / n
    of the data (astra-sim/system/astraccl/native_collectives/collective_algorithm/Ring.cc, commit
    518bd513). A message takes latency + bytes / bandwidth, in whole ns
    (astra-network-analytical, commit 599a047, BasicTopology::compute_communication_delay), and each
    step the delay of an end point, which the exported latency leaves out. Every rank is alike, and
    groups do not slow each other down. Nodes begin when those that they depend on have ended.

    at_once: a rank makes calls of several groups at the same time, as the plan has it; otherwise
    one call at a time, as ASTRA-sim has it (HardwareResource::is_available), the earlier node
    first.
    """
    ends: dict[int, float] = {}
    waiting = list(writer.nodes)
    running: list[tuple[float, ChakraNode]] = []
    now = 0.0
    while waiting or running:
        for node in list(waiting):
            busy = (
                any(other.kind == COMP for _, other in running)
                if node.kind == COMP
                else (not at_once and any(other.kind != COMP for _, other in running))
            )
            if not busy and all(n in ends for n in node.after):
                waiting.remove(node)
                running.append((now + _duration_ns(writer, node), node))
        now = min(end for end, _ in running)
        ends |= {node.id: end for end, node in running if end == now}
        running = [(end, node) for end, node in running if end > now]
    return now


def _duration_ns(writer: TraceWriter, node: ChakraNode) -> float:
    if node.kind == COMP:
        return 1000 * node.duration_us
    ranks = writer.ranks_of[node.id]
    steps = (2 if node.name == "all_reduce" else 1) * (ranks - 1)
    parts = 1 if node.name == "all_gather" else ranks
    message = int(node.attributes["comm_size"]) // parts
    return steps * (1 + int(STEP_NS - 1 + message / LINK_GBPS))


def simulate(
    simulator: str,
    machine: MachineModel,
    groups: Mapping[str, tuple[int, int]],
    writers: Sequence[TraceWriter],
    folder: Path,
) -> float:
    """Returns when the last rank ends, in ns, as ASTRA-sim itself has it."""
    members = {
        writer.name_of(group): list(ranks)
        for writer in writers
        for group in groups
        if len(ranks := writer.members(group)) < RANKS
    }
    links = Links(RANKS, LINK_GBPS, STEP_NS, 0.0, "a ring")
    target = Path(tempfile.mkdtemp(dir=folder))
    traces = [encode_nodes(writer.nodes) for writer in writers]
    step = {"step": _Simulation(STEP_LINE, "step", traces)}
    _write(SimulatorInput(target), machine, {"step": links}, step, members)
    environ = {**os.environ, "ASTRA_SIM": simulator}
    # With communicator groups it frees them twice when all is over, and is aborted: what it printed
    # before counts.
    ended = subprocess.run(
        ["sh", str(target / "run.sh")], env=environ, capture_output=True, text=True
    )
    cycles = [int(n) for n in re.findall(r"finished, (\d+) cycles", ended.stdout)]
    assert len(cycles) == RANKS, ended.stdout[-2000:] + ended.stderr[-2000:]
    return float(max(cycles))


def report(simulator: str, layouts: Sequence[str], folder: Path) -> None:
    machine, architecture = ring_machine(), read_architecture("llama-3-8b")
    options, batch = TrainingOptions("bfloat16"), parse_batch("1x2048")
    print(
        f"{'layout':16} computed    calls             sent        planned (90 % interval)      "
        "        at once   one at a time  simulated"
    )
    for text in layouts:
        layout = parse_layout(text)
        program = plan_config(architecture, layout, batch, options).program
        for compute_ms in (0.0, COMPUTE_MS):
            compute_ns = 1e6 * compute_ms
            step = plan_layout(machine, architecture, layout, batch, options, compute_ns)
            assert step.step_ns is not None
            writers = [TraceWriter(layout.groups(), rank) for rank in range(RANKS)]
            for writer in writers:
                writer.write(program, compute_ns)
            first = writers[0]
            formulas = [by_formulas(first, at_once) / 1e6 for at_once in (True, False)]
            ns = simulate(simulator, machine, layout.groups(), writers, folder) if simulator else 0
            value, low, high = (end / 1e6 for end in step.step_ns)
            print(
                f"{text:16} {compute_ms:5.0f} ms {len(first.ranks_of):4} {step.calls:4} "
                f"{first.sent_bytes / 1e9:8.4f} {step.sent_bytes / 1e9:8.4f} GB "
                f"{value:9.3f} ms ({low:.3f} to {high:.3f}) {formulas[0]:9.3f} ms "
                f"{formulas[1]:9.3f} ms {f'{ns / 1e6:9.3f} ms' if ns else '-':>12}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("simulator", nargs="?", default="", metavar="SIMULATOR")
    parser.add_argument("--layouts", nargs="+", default=LAYOUTS, metavar="LAYOUT")
    asked = parser.parse_args()
    title("ASTRA-sim on the steps of torchcoll plan")
    simulator = os.path.abspath(asked.simulator) if asked.simulator else ""
    with tempfile.TemporaryDirectory() as folder:
        report(simulator, asked.layouts, Path(folder))


if __name__ == "__main__":
    main()

"""A model and a run as ASTRA-sim's input; every number worked out by hand."""

from __future__ import annotations

import json
import os
import subprocess

import handmade
import made_models
import pytest
from made_launches import measured
from made_launches import run as made_run

from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.file import save
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.curves.astra_export import dimensions, export_run, export_step
from torchcoll.curves.model import model_object
from torchcoll.curves.model_fit import fit_model
from torchcoll.importers.traces import read_traffic
from torchcoll.libraries.execution_trace import COMP, read_nodes


@pytest.fixture(scope="module")
def model():
    """5 us to launch, 2 us a step of a ring, 10 GB/s."""
    return fit_model(made_models.runs()).model


def yaml_list(text, name):
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name}: "))
    return [float(x) for x in line.partition("[")[2].partition("]")[0].split(",")]


def test_a_case_of_a_run(model, tmp_path):
    run = handmade.run(handmade.result(case=handmade.case(size_bytes=1 << 20)))
    done = export_run(model, run, tmp_path / "sim")
    network = (tmp_path / "sim" / "network.yml").read_text()
    # 10 GB/s of 10^9 bytes are 9.31323 of 2^30; 2 us a step are two passes of the switch.
    assert yaml_list(network, "bandwidth") == [pytest.approx(9.31323, rel=1e-3)]
    assert yaml_list(network, "latency") == [pytest.approx(1000, rel=1e-3)]
    assert "topology: [ Switch ]" in network
    system = json.loads((tmp_path / "sim" / "system.json").read_text())
    assert system["all-reduce-implementation"] == ["ring"]
    traffic = read_traffic([tmp_path / "sim" / "traces" / f"all_reduce-{1 << 20}"])
    assert [c.bytes_in for calls in traffic.calls.values() for c in calls] == [1 << 20] * run.ranks
    script = (tmp_path / "sim" / "run.sh").read_text()
    assert f"torchcoll case: collective=all_reduce size_bytes={1 << 20} ranks={run.ranks}" in script
    assert any("launch overhead, 5 us a call" in note for note in done.notes)
    with pytest.raises(UsageError, match="a folder that is new or empty"):
        export_run(model, run, tmp_path / "sim")


def test_a_captured_step(model, tmp_path):
    """1 ms of computing, a call that nobody waits for, 2 ms more, one that is waited for."""
    calls = [
        TrafficCall("all_reduce", 64, 64, group="w", start_ns=0, time_ns=5000, step=0),
        TrafficCall("all_reduce", 128, 128, group="w", asynchronous=True, start_ns=10**6, step=1),
        TrafficCall("all_gather", 8, 16, group="w", asynchronous=False, start_ns=3 * 10**6, step=1),
        TrafficCall("broadcast", 8, 8, group="w", start_ns=3 * 10**6, step=1),
    ]
    traffic = Traffic(
        ranks=2, calls={0: calls, 1: calls}, groups={"w": Group("w", (0, 1))}, steps={}
    )
    done = export_step(model, traffic, tmp_path / "sim")
    nodes = read_nodes(tmp_path / "sim" / "traces" / "step" / "step.1.et")
    kinds = [(n.name, n.duration_us, n.after) for n in nodes]
    assert kinds == [
        ("all_reduce", 0, ()),
        ("compute", 2000, ()),
        ("all_gather", 0, (1,)),
    ]
    assert nodes[1].kind == COMP
    assert "left out: 2 calls of broadcast" in done.notes


def test_what_cannot_be_simulated_is_refused(model, tmp_path):
    run = handmade.run(handmade.result(case=handmade.case(collective="broadcast")))
    with pytest.raises(UsageError, match="1 of broadcast, which ASTRA-sim has no model of"):
        export_run(model, run, tmp_path / "sim")
    traffic = Traffic(ranks=2, calls={0: []})
    with pytest.raises(UsageError, match="1 of 2 ranks"):
        export_step(model, traffic, tmp_path / "sim")


def test_hosts_that_were_not_measured_are_not_exported(model):
    """The model is of one host: there is no link between hosts to give to a simulator."""
    with pytest.raises(UsageError, match="hosts: got 2, expected 1: links between hosts were not"):
        dimensions(model, "all_reduce", 16, 2)


def test_hosts_of_unequal_ranks_are_no_dimensions():
    """Ring: 1 us a step and 100 GB/s within a host, 4 us and 20 GB/s between."""

    def launch(ranks, hosts):
        across = 2 * (hosts - 1)
        steps = (2 * (ranks - 1) - across) * 1000 + across * 4000
        rate = (20 if hosts > 1 else 100) / (2 * (ranks - 1) / ranks)
        rows = [
            measured(round(10_000 + steps + n / rate), ranks, size_bytes=n)
            for n in made_models.SIZES
        ]
        return made_run(*rows, ranks=ranks, hosts=[f"node{n}" for n in range(hosts)])

    places = ((2, 1), (4, 1), (8, 1), (16, 2), (32, 4))
    fitted = fit_model([launch(*place) for place in places]).model
    (inner, outer), law, _ = dimensions(fitted, "all_reduce", 32, 4)
    assert (law, inner.ranks, outer.ranks) == ("ring", 8, 4)
    assert [inner.gbps, outer.gbps] == pytest.approx([100, 20], rel=0.02)
    with pytest.raises(UsageError, match="ranks: got 30 on 4 hosts, expected equally many"):
        dimensions(fitted, "all_reduce", 30, 4)


def test_a_model_without_a_bandwidth_is_not_exported():
    """As long at every size: nothing tells what a byte costs, and nothing is invented."""
    rows = [measured(50_000, 4, size_bytes=8 << k) for k in range(6)]
    with pytest.raises(UsageError, match="model: got no bandwidth of all_reduce"):
        dimensions(fit_model([made_run(*rows, ranks=4)]).model, "all_reduce", 4, None)


def test_the_command_and_the_way_back(model, tmp_path, capsys):
    """What run.sh prints and a simulator adds is read, and held against the run."""
    (tmp_path / "machine.json").write_text(json.dumps(model_object(model)))
    cases = [handmade.case(size_bytes=1 << power) for power in (20, 22)]
    run = handmade.run(*(handmade.result(case=case) for case in cases))
    save(run, tmp_path / "run.jsonl")
    folder = tmp_path / "sim"
    command = ["model", "export", str(tmp_path / "machine.json"), str(tmp_path / "run.jsonl")]
    assert main([*command, "--astra-sim", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("2 simulations, 20 files: ")
    simulator = tmp_path / "simulator"
    simulator.write_text(
        '#!/bin/sh\nfor n in 0 1 2 3 4 5 6 7; do echo "[info] sys[$n] finished, 900000 cycles, '
        'exposed communication 900000 cycles."; done\n'
    )
    simulator.chmod(0o755)
    environ = {**os.environ, "ASTRA_SIM": str(simulator)}
    said = subprocess.run(["sh", folder / "run.sh"], env=environ, capture_output=True, text=True)
    (tmp_path / "sim.log").write_text(said.stdout)
    arguments = ["--predicted", str(tmp_path / "sim.log"), str(tmp_path / "run.jsonl")]
    assert main(["model", "validate", *arguments, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [case["ratio"] for case in found["cases"]] == [pytest.approx(0.9)] * 2  # of 1 ms

"""A model and a run as ASTRA-sim's input; every number worked out by hand, or ASTRA-sim's own.

SAID: what ASTRA-sim said to these very files on 22 November 2026, its congestion-unaware and its
congestion-aware simulator alike: astra-sim 518bd513, astra-network-analytical 599a0473
(results/benchmarks/astra-sim-2026-11-22.txt).
"""

from __future__ import annotations

import json
import os
import subprocess

import handmade
import made_models
import pytest
from error_form import error_text
from made_runs import measured
from made_runs import run as made_run

from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.file import save
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.curves.astra_export import export_run, export_step, simulated_links
from torchcoll.curves.model_file import model_object
from torchcoll.curves.model_fit import fit_model
from torchcoll.curves.rank_laws import step_laws
from torchcoll.importers.traces import read_traffic
from torchcoll.libraries.execution_trace import COMP, read_nodes


@pytest.fixture(scope="module")
def model():
    """5 us to launch, 2 us a step of a ring, 10 GB/s."""
    return fit_model(made_models.runs()).model


# Of 1 MiB on 8 ranks, where the law has 5 us to launch, 2 us a step and 10 GB/s.
SAID = {
    ("all_reduce", "ring"): 216499,
    ("all_reduce", "tree"): 226705,
    ("all_reduce", "recursive doubling"): 325573,
    ("all_reduce", "linear"): 752993,
    ("all_gather", "ring"): 110750,
    ("all_gather", "tree"): 115853,
    ("reduce_scatter", "ring"): 110750,
    ("reduce_scatter", "recursive doubling"): 102749,
    ("all_to_all", "ring"): 110750,
    ("all_to_all", "tree"): 115853,
    ("all_to_all", "recursive doubling"): 102749,
}


def yaml_list(text, name):
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name}: "))
    return [float(x) for x in line.partition("[")[2].partition("]")[0].split(",")]


def cycles(folder, collective, size_bytes, ranks):
    """What the simulator makes of the files: of whole ns each, a step is the latency and an n-th of
    the data over the bandwidth (BasicTopology.cpp), and a ring of all_reduce has 2 (n - 1); and
    there is 1 ns of an end point before each, and after the last.
    """
    name = f"{collective}-{ranks}ranks"
    network = (folder / name / "network.yml").read_text()
    (latency,), (bandwidth,) = (yaml_list(network, key) for key in ("latency", "bandwidth"))
    nodes = read_nodes(folder / "traces" / f"{name}-{size_bytes}" / f"{name}-{size_bytes}.1.et")
    put_in = nodes[-1].attributes["comm_size"]
    message = put_in if collective == "all_gather" else put_in // ranks
    step = int(latency + message / (bandwidth * 2**30 / 1e9))
    steps = (2 if collective == "all_reduce" else 1) * (ranks - 1)
    return sum(1000 * node.duration_us for node in nodes) + steps * (1 + step) + 1


def test_a_case_of_a_run(model, tmp_path):
    run = handmade.run(handmade.result(case=handmade.case(size_bytes=1 << 20)))
    done = export_run(model, run, tmp_path / "sim")
    network = (tmp_path / "sim" / "all_reduce-8ranks" / "network.yml").read_text()
    # 10 GB/s of 10^9 bytes are 9.31323 of 2^30; 2 us a step, of which 1 ns is an end point's.
    assert yaml_list(network, "bandwidth") == [pytest.approx(9.31323, rel=1e-4)]
    assert yaml_list(network, "latency") == [pytest.approx(1999, abs=0.2)]
    assert "topology: [ FullyConnected ]" in network
    system = json.loads((tmp_path / "sim" / "all_reduce-8ranks" / "system.json").read_text())
    assert system["all-reduce-implementation"] == ["ring"]
    traces = tmp_path / "sim" / "traces" / f"all_reduce-8ranks-{1 << 20}"
    traffic = read_traffic([traces])
    assert [c.bytes_in for calls in traffic.calls.values() for c in calls] == [1 << 20] * run.ranks
    launch, call = read_nodes(traces / f"all_reduce-8ranks-{1 << 20}.7.et")
    assert (launch.kind, launch.duration_us, call.after) == (COMP, 5, (launch.id,))
    script = (tmp_path / "sim" / "run.sh").read_text()
    assert f"torchcoll case: collective=all_reduce size_bytes={1 << 20} ranks={run.ranks}" in script
    assert done.notes == []
    with pytest.raises(UsageError, match="a folder that is new or empty"):
        export_run(model, run, tmp_path / "sim")


@pytest.mark.parametrize(("collective", "law"), SAID)
def test_the_simulator_says_what_the_law_says(collective, law, tmp_path):
    """Whatever the law, to a ns a step, 14 at most, each rounded down; 8 ranks not measured."""
    (own,) = (one for one in step_laws(collective) if one.name == law)

    def time_ns(ranks, size_bytes):
        return 5000 + own.steps(ranks) * 2000 + own.share(ranks) * size_bytes / 10

    runs = [
        made_run(
            *(
                measured(round(time_ns(n, size)), n, size_bytes=size, collective=collective)
                for size in made_models.SIZES
            ),
            ranks=n,
        )
        for n in (2, 4, 16)
    ]
    case = made_run(measured(10**6, 8, size_bytes=1 << 20, collective=collective), ranks=8)
    done = export_run(fit_model(runs).model, case, tmp_path / "sim")
    said = SAID[collective, law]
    assert cycles(tmp_path / "sim", collective, 1 << 20, 8) == said
    assert said == pytest.approx(time_ns(8, 1 << 20), abs=14)
    assert any(f"the law is {law}, simulated as a ring" in n for n in done.notes) == (law != "ring")


def test_the_system_is_what_the_simulator_was_given(model, tmp_path):
    """Nothing beside the steps, all_to_all a block after the other: as when SAID was printed. With
    an endpoint-delay of 0 it ended with 'Assertion get_event_time() > current_time failed', where
    no run came first.
    """
    run = handmade.run(handmade.result(case=handmade.case(size_bytes=1 << 20)))
    export_run(model, run, tmp_path / "sim")
    assert json.loads((tmp_path / "sim" / "all_reduce-8ranks" / "system.json").read_text()) == {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 1,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        "all-reduce-implementation": ["ring"],
        "all-gather-implementation": ["ring"],
        "reduce-scatter-implementation": ["ring"],
        "all-to-all-implementation": ["direct1"],
        "collective-optimization": "localBWAware",
        "local-mem-bw": 10**9,
        "boost-mode": 0,
    }


def test_each_collective_has_its_own_links(tmp_path):
    """And each number of ranks; what the model lacks is left out, not guessed."""
    model = fit_model(made_models.runs(("all_reduce", "all_gather"))).model
    cases = [
        measured(10**6, ranks, size_bytes=1 << 20, collective=name, op=op, in_place=in_place)
        for name, op, in_place in (
            ("all_reduce", "sum", True),
            ("all_gather", None, False),
            ("reduce_scatter", "sum", False),
        )
        for ranks in (4, 8)
    ]
    done = export_run(model, made_run(*cases, ranks=8), tmp_path / "sim")
    names = [f"{name}-{n}ranks" for name in ("all_reduce", "all_gather") for n in (4, 8)]
    assert done.cases == [f"{name}-{1 << 20}" for name in names]
    counts = [
        yaml_list((tmp_path / "sim" / name / "network.yml").read_text(), "npus_count")
        for name in names
    ]
    assert counts == [[4], [8], [4], [8]]
    assert "left out: 2 cases of reduce_scatter, which the model does not have" in done.notes


def test_another_kind_of_case_is_left_out_and_said(tmp_path):
    """The links are those of float32, which was measured on 8 ranks too; bfloat16 takes longer."""
    cases = {
        ranks: [
            measured(factor * (10_000 + size), ranks, size_bytes=size, dtype=dtype)
            for size in made_models.SIZES[:4]
            for dtype, factor in (("bfloat16", 3), ("float32", 1))
            if dtype == "float32" or ranks == 4
        ]
        for ranks in (4, 8)
    }
    runs = [made_run(*own, ranks=ranks) for ranks, own in cases.items()]
    done = export_run(fit_model(runs).model, runs[0], tmp_path / "sim")
    assert done.cases == [f"all_reduce-4ranks-{size}" for size in made_models.SIZES[:4]]
    assert "left out: 4 cases of another kind: dtype=bfloat16" in done.notes


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
    # From the start of the first to that of the second: 2 ms, in which 5 us are its run.
    assert kinds == [
        ("launch", 5, ()),
        ("all_reduce", 0, (0,)),
        ("compute", 1995, ()),
        ("launch", 5, (2,)),
        ("all_gather", 0, (3,)),
    ]
    assert [n.id for n in nodes] == list(range(5))
    assert nodes[2].kind == COMP
    assert "left out: 2 calls of broadcast" in done.notes


def test_a_marked_step_begins_and_ends_with_what_it_computes(model, tmp_path):
    """1 ms before a call that nobody waits for, and 5 ms from its end at 4 ms on, after it."""
    call = TrafficCall(
        "all_reduce",
        64,
        64,
        group="w",
        asynchronous=True,
        start_ns=10**6,
        time_ns=3 * 10**6,
        step=0,
    )
    spans = [(0, 9 * 10**6)]
    traffic = Traffic(
        ranks=2,
        calls={0: [call], 1: [call]},
        groups={"w": Group("w", (0, 1))},
        steps={0: spans, 1: spans},
    )
    export_step(model, traffic, tmp_path / "sim")
    nodes = read_nodes(tmp_path / "sim" / "traces" / "step" / "step.0.et")
    assert [(n.name, n.duration_us, n.after) for n in nodes] == [
        ("compute", 1000, ()),
        ("launch", 5, (0,)),
        ("all_reduce", 0, (1,)),
        ("compute", 5000, (0, 2)),
    ]


MS = 10**6


def gpu_step(asynchronous, computing):
    """Issued at 1 and 2 ms; the kernels ran from 10 to 20 and from 20 to 30 ms of 40."""
    calls = [
        TrafficCall("all_reduce", 64, 64, group="w", sequence=number, step=0, clock="device",
                    asynchronous=asynchronous, start_ns=issued * MS, time_ns=10 * MS,
                    began_ns=began * MS)
        for number, (issued, began) in enumerate([(1, 10), (2, 20)])
    ]  # fmt: skip
    both = {0: calls, 1: calls}
    spans = {rank: [(0, 40 * MS)] for rank in both}
    busy = {rank: [(a * MS, b * MS) for a, b in computing] for rank in both if computing}
    return Traffic("kineto", 2, both, {"w": Group("w", (0, 1))}, spans, busy)


@pytest.mark.parametrize(
    ("asynchronous", "computing", "micros"),
    [
        # Waited for: 10 ms before the first kernel, none between, 9 of the 10 ms after the last.
        (False, [(0, 10), (30, 39)], [10000, 9000]),
        # Not waited for: 5 ms beside the first, 4 beside the second, and 9 that wait for both.
        (True, [(0, 15), (20, 24), (30, 39)], [10000, 5000, 4000, 9000]),
        (False, [], [10000, 10000]),  # not told: all that is no call
    ],
)
def test_a_step_of_a_gpu_is_where_its_kernels_ran(model, tmp_path, asynchronous, computing, micros):
    export_step(model, gpu_step(asynchronous, computing), tmp_path / "sim")
    nodes = read_nodes(tmp_path / "sim" / "traces" / "step" / "step.0.et")
    assert [n.duration_us for n in nodes if n.name == "compute"] == micros
    calls = {n.id for n in nodes if n.name == "all_reduce"}
    last = nodes[-1]
    assert (last.name, calls <= set(last.after)) == ("compute", asynchronous)


def test_a_rank_without_calls_has_a_node(model, tmp_path):
    """An empty trace ended ASTRA-sim with 'No dependancy free nodes found'."""
    call = TrafficCall("all_reduce", 64, 64, group="w", asynchronous=False)
    groups = {"w": Group("w", (0, 2))}
    traffic = Traffic(ranks=3, calls={0: [call], 1: [], 2: [call]}, groups=groups, steps={})
    export_step(model, traffic, tmp_path / "sim")
    (node,) = read_nodes(tmp_path / "sim" / "traces" / "step" / "step.1.et")
    assert (node.kind, node.duration_us, node.after) == (COMP, 0, ())


def test_groups_and_messages_of_a_step(model, tmp_path):
    """Rows and columns of 2 x 2 ranks: their files are those that ASTRA-sim ran to the end."""
    groups = {
        "w": Group("w", (0, 1, 2, 3)),
        **{f"row{r}": Group(f"row{r}", (2 * r, 2 * r + 1)) for r in range(2)},
    }

    def calls(rank):
        own = {"group": "w", "peer": rank ^ 1, "sequence": 7, "asynchronous": False}
        return [
            TrafficCall("all_reduce", 64, 64, group=f"row{rank // 2}", asynchronous=False),
            TrafficCall("recv", 0, 8, **own) if rank % 2 else TrafficCall("send", 8, 0, **own),
        ]

    traffic = Traffic(ranks=4, calls={r: calls(r) for r in range(4)}, groups=groups, steps={})
    done = export_step(model, traffic, tmp_path / "sim")
    assert json.loads((tmp_path / "sim" / "groups.json").read_text()) == {"1": [0, 1], "2": [2, 3]}
    assert "--comm-group-configuration=groups.json" in (tmp_path / "sim" / "run.sh").read_text()
    _, call, message = read_nodes(tmp_path / "sim" / "traces" / "step" / "step.3.et")
    assert call.attributes["pg_name"] == "2"
    sides = [message.attributes[key] for key in ("comm_src", "comm_dst", "comm_tag", "comm_size")]
    assert sides == [2, 3, 7, 8]
    assert done.cases == ["step"]


def test_what_cannot_be_simulated_is_refused(model, tmp_path):
    run = handmade.run(handmade.result(case=handmade.case(collective="broadcast")))
    with pytest.raises(UsageError, match="1 of broadcast, which ASTRA-sim has no model of"):
        export_run(model, run, tmp_path / "sim")
    traffic = Traffic(ranks=2, calls={0: []})
    with pytest.raises(UsageError, match="1 of 2 ranks"):
        export_step(model, traffic, tmp_path / "sim")


def test_hosts_that_were_not_measured_are_not_exported(model):
    """The model is of one host: there is no link between hosts to give to a simulator."""
    with pytest.raises(
        UsageError, match=error_text("hosts", "2", "1: links between hosts were not")
    ):
        simulated_links(model, "all_reduce", 16, 2)


def test_hosts_are_links_of_one_kind():
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
    # 46 steps of 24 ranks on 3 hosts: 42 of 1 us and 4 of 4 us, 1.261 us each.
    for hosts in (3, None):  # 8 ranks a host is what was measured
        own = simulated_links(fitted, "all_reduce", 24, hosts)
        assert (own.ranks, own.about) == (24, "all_reduce, law: ring")
        assert [own.gbps, own.step_ns] == pytest.approx([20, 1260.9], rel=0.02)
        assert own.launch_ns == pytest.approx(10_000, rel=0.1)
        assert "within and between hosts are put together" in own.notes[0]
    # Measured: 62 steps of 32 ranks on 4 hosts, 56 of 1 us and 6 of 4 us, 1.290 us each.
    for ranks, hosts, gbps, step_ns in ((32, 4, 20, 1290.3), (8, 1, 100, 1000)):
        own = simulated_links(fitted, "all_reduce", ranks, hosts)
        assert own.about == f"all_reduce, as measured on {ranks} ranks"
        assert [own.gbps, own.step_ns] == pytest.approx([gbps, step_ns], rel=0.02)
        assert own.notes == ()


def test_what_was_measured_goes_before_a_law_over_ranks():
    """Two cores: 4 ranks take twice what a ring from 2 ranks on would; the run says so."""
    times = {2: 1, 3: 1.5, 4: 4}
    runs = [
        made_run(
            *(
                measured(round(factor * (60_000 + size)), n, size_bytes=size)
                for size in made_models.SIZES
            ),
            ranks=n,
        )
        for n, factor in times.items()
    ]
    own = simulated_links(fit_model(runs).model, "all_reduce", 4, None)
    # 4 x (60 us + 1 ns a byte): 6 steps, and 1.5 x the size at 0.375 GB/s.
    assert own.gbps == pytest.approx(0.375, rel=0.01)
    assert 6 * own.step_ns + own.launch_ns == pytest.approx(240_000, rel=0.01)


def test_one_number_of_ranks_is_taken_for_a_ring():
    """24 us and a ns for 5 bytes on 4 ranks: 6 steps of 4 us, and 1.5 x the size at 7.5 GB/s."""
    rows = [measured(24_000 + size // 5, 4, size_bytes=size) for size in made_models.SIZES]
    found = fit_model([made_run(*rows, ranks=4)]).model
    notes = ("all_reduce was measured on 4 ranks alone: taken for a ring",)
    for ranks, said in ((4, ()), (6, notes)):
        own = simulated_links(found, "all_reduce", ranks, None)
        assert [own.gbps, own.step_ns] == pytest.approx([7.5, 4000], rel=0.02)
        assert (own.ranks, own.notes) == (ranks, said)


def test_a_model_without_a_bandwidth_is_not_exported():
    """As long at every size: nothing tells what a byte costs, and nothing is invented."""
    rows = [measured(50_000, 4, size_bytes=8 << k) for k in range(6)]
    with pytest.raises(UsageError, match=error_text("model", "no bandwidth of all_reduce")):
        simulated_links(fit_model([made_run(*rows, ranks=4)]).model, "all_reduce", 4, None)


def test_one_rank_is_refused(model):
    with pytest.raises(UsageError, match=error_text("astra-sim", "1 rank", "2 ranks or more")):
        simulated_links(model, "all_reduce", 1, None)


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
    none = subprocess.run(["sh", folder / "run.sh"], env={}, capture_output=True, text=True)
    assert (none.returncode, none.stdout) == (2, "")
    assert none.stderr == error_text("run.sh: ASTRA_SIM", "''", "the whole path of the simulator\n")
    simulator.write_text("#!/bin/sh\nexit 3\n")  # as one that ends with an error
    assert (
        subprocess.run(["sh", folder / "run.sh"], env=environ, stdout=subprocess.DEVNULL).returncode
        == 1
    )
    arguments = ["--predicted", str(tmp_path / "sim.log"), str(tmp_path / "run.jsonl")]
    assert main(["model", "validate", *arguments, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [case["ratio"] for case in found["cases"]] == [pytest.approx(0.9)] * 2  # of 1 ms

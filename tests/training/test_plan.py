"""Plans of trainings: on a machine of exact figures, worked out by hand."""

import csv
import io
import itertools
import json
import re
from dataclasses import replace

import made_models
import pytest
from error_form import error_text
from made_models import even_buckets, planned_buckets, ring_ns
from made_runs import measured, run
from parallel_models import llama_config

import torchcoll
from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.parts.curves.model_file import model_object
from torchcoll.parts.curves.model_fit import fit_model
from torchcoll.parts.curves.predictor import predict_all
from torchcoll.parts.training.captured_plan import captured_program, plan_traffic
from torchcoll.parts.training.plan_show import plan_answer, show_training_plans
from torchcoll.parts.training.projection import (
    STRONG,
    WEAK,
    Computation,
    Plan,
    PlannedStep,
)
from torchcoll.parts.training.step_program import (
    BACKWARD,
    FORWARD,
    PassWork,
    ProgramWriter,
    SentCall,
    StepProgram,
)

MS = 1e6


@pytest.fixture(scope="module")
def model():
    return fit_model(made_models.runs(("all_reduce", "all_gather", "reduce_scatter"))).model


@pytest.fixture
def file(model, tmp_path):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(model_object(model)))
    return str(path)


@pytest.fixture
def buckets(tmp_path):
    """The file of a step of DDP on 4 ranks, of 2 MB."""
    path = tmp_path / "traffic.jsonl"
    even_buckets(2_000_000, 4).save(path)
    return str(path)


PASSES = {FORWARD: 10.0, BACKWARD: 20.0}
DP = SentCall("dp", "all_reduce", 1)


def of_calls(*calls):
    """The program of (collective, asynchronous, module) calls of growing sizes."""
    sent = [SentCall("dp", name, n) for n, (name, _, _) in enumerate(calls, 1)]
    made = [
        TrafficCall(name, 1, 1, asynchronous=free, module=module) for name, free, module in calls
    ]
    return captured_program(list(zip(made, sent, strict=True)))


def test_what_leaves_hides_under_what_comes_after():
    writer = ProgramWriter()
    writer.work(FORWARD, 1.0)
    for _ in range(2):
        writer.work(BACKWARD, 0.5)
        writer.start(DP)
    program = StepProgram(tuple(writer.acts))
    # Gradients at 20 and 30: 8 each, so that the first hides and the second ends at 38.
    assert program.step_ns(lambda sent: 8.0, PASSES) == 38
    # 15 each: from 20 to 35, then to 50.
    assert program.step_ns(lambda sent: 15.0, PASSES) == 50


def test_what_stops_is_exposed():
    blocking = of_calls(("all_reduce", False, ""), ("all_reduce", False, ""))
    assert blocking.step_ns(lambda sent: 3.0, PASSES) == 36


def test_a_captured_step_of_fsdp_overlaps():
    """The root of 1 byte and a unit of 2 gather at 0 and 4, and compute from 4 and 8 on for 3.33
    and 6.67; the unit gathers again while it computes, and scatters 4 of 5 bytes at 30.67; the root
    at 34.67.
    """
    program = of_calls(
        ("all_gather", False, "(root)"),
        ("all_gather", False, "a"),
        ("all_gather", False, "a"),
        ("reduce_scatter", False, "a"),
        ("reduce_scatter", False, "(root)"),
    )
    assert [act.share for act in program.acts if isinstance(act, PassWork)] == pytest.approx(
        [1 / 3, 2 / 3, 4 / 9, 5 / 9]
    )
    assert program.step_ns(lambda sent: 4.0, PASSES) == pytest.approx(14 + 4 + 20 + 4 - 0.0, abs=4)


def test_micro_batches_of_a_captured_step_of_fsdp():
    forward = [("all_gather", False, "(root)"), ("all_gather", False, "a")]
    backward = [("all_gather", False, "a"), ("reduce_scatter", False, "a")]
    program = of_calls(*forward, *backward, *forward, *backward)
    phases = [act.phase for act in program.acts if isinstance(act, PassWork)]
    assert phases == [FORWARD, FORWARD, BACKWARD] * 2


def test_a_step_of_even_buckets(model):
    """2 000 000 bytes: a bucket of 1 MiB, then 951 424; a backward pass of 1 ms."""
    projection = planned_buckets(model, 2_000_000, [4], 1.5 * MS)
    first_ns, second_ns = ring_ns("all_reduce", 1 << 20, 4), ring_ns("all_reduce", 951_424, 4)
    assert projection.step.comm_ns[0] == pytest.approx(first_ns + second_ns, rel=1e-3)
    # The second begins when it is ready, at the end of the backward pass: all of it is exposed.
    assert projection.step.exposed_ns[0] == pytest.approx(second_ns, rel=1e-3)
    assert projection.step.compute_ns == 1.5 * MS


def test_ranks_beyond_the_data_are_said_and_one_host_is_no_network(model):
    projection = planned_buckets(model, 2_000_000, [32], None)
    expected = ring_ns("all_reduce", 1 << 20, 32) + ring_ns("all_reduce", 951_424, 32)
    value, low, high = projection.step.comm_ns
    assert value == pytest.approx(expected, rel=0.01)
    assert low < value < high
    assert all("4x the most ranks (8)" in row.extrapolated for row in projection.step.rows)
    assert any("fitted on one host" in note for note in projection.notes)
    assert any("times are extrapolated" in note for note in projection.notes)
    assert projection.step.exposed_ns is None


def test_over_ranks_weak_keeps_the_work_and_strong_divides_it(model):
    projection = planned_buckets(model, 2_000_000, [2, 4, 8], 12 * MS)
    assert [step.compute_ns for step in projection.weak] == [12 * MS] * 3
    assert [step.compute_ns for step in projection.strong] == [12 * MS, 6 * MS, 3 * MS]


def steps(*times):
    return [
        PlannedStep(
            n,
            {},
            (),
            (0, 0, 0),
            Computation((compute,) * 3),
            (0, 0, 0),
            (step, low, high),
        )
        for n, compute, step, low, high in times
    ]


def test_where_it_stops():
    weak = steps((2, 10, 12, 11, 13), (4, 10, 19, 15, 21), (8, 10, 30, 19, 50))
    strong = steps((2, 80, 80, 80, 80), (4, 40, 50, 41, 70), (8, 20, 45, 21, 69))
    result = Plan("", weak[0], weak, strong)
    # Half of 19 is below 10; of 21 it is not; of 30 it is not either.
    assert result.scaling_break(WEAK) == (weak[1], weak[2])
    # 80 to 50 is 1.6 times; 50 to 45 is less than 1.25; by the ends 41 to 21 is, 80 to 70 is not.
    assert result.scaling_break(STRONG) == (strong[1], strong[2])
    assert plan_answer(result).headline == (
        "weak scaling to 4 ranks (at 8 only 33 % of a step computes); "
        "strong scaling to 4 ranks (8 ranks: 1.11x as fast as 4)"
    )
    assert plan_answer(Plan("", weak[0], weak[2:], strong[1:])).headline == (
        "weak scaling not at all (at 8 only 33 % of a step computes); "
        "strong scaling not at all (8 ranks: 1.11x)"
    )


def computing(ms):
    return Computation((ms * MS,) * 3)


def planned(calls):
    groups = {"data": Group("data", (0, 1, 2, 3)), "pair": Group("pair", (0, 1))}
    return Traffic("plan", 4, {0: calls}, groups)


def test_a_traffic_of_ddp(model):
    calls = [
        TrafficCall("all_reduce", n, n, "float32", "sum", group="data", asynchronous=True)
        for n in (1 << 20, 1 << 18)
    ]
    projection = plan_traffic(model, planned(calls), [], computing(1.5))
    times = [ring_ns("all_reduce", n, 4) for n in (1 << 20, 1 << 18)]
    assert projection.step.comm_ns[0] == pytest.approx(sum(times), rel=1e-3)
    # The first at 4/5 of the pass, from 0.8 to 0.97 ms; the second from its end on.
    assert projection.step.exposed_ns[0] == pytest.approx(times[1], rel=1e-3)


def test_a_traffic_of_shards_and_the_groups_that_grow(model):
    gather = TrafficCall(
        "all_gather", 1 << 18, 1 << 20, "float32", group="data", asynchronous=False, module="a"
    )
    scatter = TrafficCall(
        "reduce_scatter",
        1 << 20,
        1 << 18,
        "float32",
        "avg",
        group="data",
        asynchronous=False,
        module="a",
    )
    pair = TrafficCall("all_reduce", 4096, 4096, "float32", "sum", group="pair", asynchronous=False)
    projection = plan_traffic(
        model, planned([gather, gather, scatter, pair]), [4, 8], computing(15)
    )
    calls_by_rank = {(row.group, row.collective): row for row in projection.weak[1].rows}
    assert calls_by_rank["data", "all_gather"].ranks == 8
    assert calls_by_rank["data", "all_gather"].size_bytes == 1 << 20  # all of it, over more ranks
    assert calls_by_rank["data", "all_gather"].calls == 2
    assert calls_by_rank["pair", "all_reduce"].ranks == 2
    assert calls_by_rank["data", "all_gather"].time_ns[0] == pytest.approx(
        2 * ring_ns("all_gather", 1 << 20, 8), rel=1e-3
    )


def test_a_group_whose_ranks_are_on_different_hosts():
    """8 ranks a host. The ranks 0, 8, ..., 56 are on 8 hosts, beside 7 groups alike."""

    def time_ns(ranks, size_bytes, hosts):
        """10 us; a step 1 us, between hosts 5; 100 GB/s, between hosts 20, of a host's ranks."""
        steps = 2 * (ranks - hosts) * 1000 + 2 * (hosts - 1) * 5000
        return 10_000 + steps + 2 * (ranks - 1) / ranks * size_bytes / (20 if hosts > 1 else 100)

    def launch(ranks, hosts):
        sizes = [1 << k for k in range(12, 30, 2)]
        results = [measured(round(time_ns(ranks, n, hosts)), ranks, size_bytes=n) for n in sizes]
        return run(*results, ranks=ranks, hosts=[f"node{n}" for n in range(hosts)])

    places = [(2, 1), (4, 1), (8, 1), (16, 2), (32, 4), (64, 8)]
    fitted = fit_model([launch(*setup) for setup in places]).model
    call = TrafficCall("all_reduce", 1 << 24, 1 << 24, "float32", "sum", asynchronous=True)
    inner, outer = replace(call, group="tp"), replace(call, group="dp")
    groups = {"tp": Group("tp", tuple(range(8))), "dp": Group("dp", tuple(range(0, 64, 8)))}
    projection = plan_traffic(fitted, Traffic("plan", 64, {0: [inner, outer]}, groups), [], None)
    calls_by_rank = {row.group: row.time_ns[0] for row in projection.step.rows}
    # 10 + 14 us, and 1.75 x 16M at 100 GB/s.
    assert calls_by_rank["tp"] == pytest.approx(317_601, rel=0.01)
    # 10 us + 14 x 5 us, and 1.75 x 8 x 16M at 20 GB/s: the groups share the links of a host.
    assert calls_by_rank["dp"] == pytest.approx(11_824_051, rel=0.01)


def test_groups_that_leave_a_host_take_turns():
    """Two calls of 30 from 30 on, and 10 of work after the second: to 100 on one network; if tp
    stays on its host, both end at 60.
    """
    writer = ProgramWriter()
    writer.work(FORWARD, 1.0)
    writer.work(BACKWARD, 1.0)
    writer.start(SentCall("dp", "all_reduce", 1))
    writer.block([SentCall("tp", "all_reduce", 1)])
    writer.work(FORWARD, 1.0)
    program = StepProgram(tuple(writer.acts))
    lanes = {"dp": "network", "tp": "network"}
    assert program.step_ns(lambda sent: 30.0, PASSES, lanes) == 30 + 60 + 10
    assert program.step_ns(lambda sent: 30.0, PASSES) == 30 + 30 + 10


def test_shards_that_are_not_gathered_again(model):
    """reshard_after_forward=False: two units, gathered forward, scattered backward."""
    gather = TrafficCall("all_gather", 1 << 24, 1 << 26, "float32", group="data")
    scatter = TrafficCall("reduce_scatter", 1 << 26, 1 << 24, "float32", "avg", group="data")
    calls = [
        replace(original, asynchronous=False, module=module)
        for original, module in ((gather, "a"), (gather, "b"), (scatter, "b"), (scatter, "a"))
    ]
    projection = plan_traffic(model, planned(calls), [], computing(60))
    # Each call 5 + 3 x 2 us and 0.75 x 64M at 10 GB/s = 5.044 ms. The second gather runs under the
    # first half of the forward pass, the first scatter under the second half of the backward one.
    assert projection.step.exposed_ns[0] == pytest.approx(2 * 5_044_165, rel=1e-3)


def test_a_step_grows_where_a_group_has_all_ranks(model):
    pair = TrafficCall("all_reduce", 4096, 4096, "float32", "sum", group="pair", asynchronous=True)
    with pytest.raises(
        UsageError, match=error_text("ranks", "groups pair of 2", "one of all 4 ran")
    ):
        plan_traffic(model, planned([pair]), [4, 8], None)


def test_the_answer_comes_first(file, buckets, capsys):
    command = ["plan", buckets, "--machine", file]
    assert main([*command, "--step-ms", "1.5"]) == 0
    out = capsys.readouterr().out
    first = " ".join(out.partition("\nall communication")[0].split())
    # 5 + 12 us and 1.5 x 104.8576 us, and 1.5 x 95.1424 us
    assert first.startswith("a step on 4 ranks takes 1.66 ms: 1.50 ms of computation and 160 us (")
    assert "of communication that computation does not hide" in first
    assert "\nall communication (3 MB per" in out and " takes 334 us (" in out


def test_json_and_csv(file, buckets, capsys):
    command = ["plan", buckets, "--machine", file]
    command += ["--ranks", "2..8", "--step-ms", "3"]
    assert main([*command, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "torchcoll-plan/1"
    assert [step["ranks"] for step in document["weak"]] == [2, 4, 8]
    assert document["strong"][0]["compute_ns"] == 6 * MS  # captured on 4
    assert main([*command, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["table"] for row in rows] == ["calls"] * 2 + ["weak"] * 3 + ["strong"] * 3


def test_without_computation_there_is_one_table_over_ranks(file, buckets, capsys):
    assert main(["plan", buckets, "--machine", file, "--ranks", "2..8"]) == 0
    out = capsys.readouterr().out
    assert "weak scaling: not known without --step-ms" in out
    assert "strong scaling" not in out


def test_a_config_needs_no_machine(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(llama_config()))
    assert main(["plan", str(path), "--parallel", "fsdp=4"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    # 2 layers of 2720 and a root of 1040 elements in 2 bytes, 3/4 of: 3 times the layers, 2 times
    # the root.
    assert (
        f"sends {0.75 * 2 * (3 * 2 * 2720 + 2 * 1040) / 1e3:.1f} kB per rank in 8 calls per step"
        in first
    )
    assert "in 8 calls" in first


def test_a_model_from_its_code(tmp_path, monkeypatch, capsys):
    """Three layers of 4 x 4 and 4, an embedding and a head: FSDP2 gathers 1 + 2 x 3 times."""
    (tmp_path / "planned_code.py").write_text(
        "from torch import nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.embedding = nn.Embedding(8, 4)\n"
        "        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))\n"
        "        self.head = nn.Linear(4, 8)\n"
    )
    monkeypatch.chdir(tmp_path)
    command = ["plan", "planned_code:Model", "--ranks", "4"]
    assert main([*command, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    calls = {(row["collective"], row["size_bytes"]): row["calls"] for row in rows}
    layer, root = 4 * (4 * 4 + 4), 4 * (8 * 4 + 8 * 4 + 8)
    assert calls == {
        ("all_gather", layer): 6,
        ("all_gather", root): 1,
        ("reduce_scatter", layer): 3,
        ("reduce_scatter", root): 1,
    }
    assert main([*command, "--parallel", "fsdp=2,tp=2"]) == 2
    assert "for a model from its code" in capsys.readouterr().err


def test_all_lists_of_blocks_are_units(tmp_path, monkeypatch):
    """An encoder and a decoder of two and three blocks, and an embedding in the root."""
    (tmp_path / "two_stacks.py").write_text(
        "from torch import nn\n\n\nclass Stack(nn.Module):\n    def __init__(self, count):\n"
        "        super().__init__()\n"
        "        self.block = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))\n\n\n"
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.shared = nn.Embedding(8, 4)\n"
        "        self.encoder, self.decoder = Stack(2), Stack(3)\n"
    )
    monkeypatch.chdir(tmp_path)
    rows = torchcoll.plan("two_stacks:Model", "fsdp=4").step.rows
    gathered = {row.size_bytes: row.calls for row in rows if row.collective == "all_gather"}
    assert gathered == {4 * (16 + 4): 2 * 5, 4 * 32: 1}


def test_layouts_are_compared(capsys):
    command = ["plan", "gpt2", "--ranks", "8", "--compare", "dp,fsdp,fsdp+tp=2"]
    assert main([*command, "--machine", "8xH100", "--step-ms", "50", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["layout"] for row in document["rows"]} == {"dp=8", "fsdp=8", "fsdp=4,tp=2"}
    assert all(row["step_ns"] >= 50e6 for row in document["rows"])
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("of 3 layouts on 8 ranks dp=8 sends least (")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("", error_text("model", "none", "a config.json, a name such as llama-3-8b, MODULE:FAC")),
        ("gpt2", error_text("parallel", "none", "a layout such as fsdp=64, or a num")),
        ("nix", error_text("config", "nix", "a config.json, MODULE:FACTORY, or one of")),
        ("nix:make --ranks 2", error_text("model", "nix:make", "a module that can be")),
        (
            "gpt2 --parallel dp=4 --ranks 8",
            error_text("parallel", "dp=4 = 4 ranks", "8, as --ranks says"),
        ),
        ("gpt2 --ranks 8 --batch 8", error_text("batch", "8", "SEQUENCESxTOKENS")),
        (
            "vit-base --ranks 8 --batch 2x196",
            error_text("batch", "2x196", "197 tokens, which an image has: 64x197"),
        ),
        (
            "gpt2 --ranks 8,16 --compare dp,fsdp",
            error_text("ranks", "8,16", "one number to compare layouts on"),
        ),
        ("gpt2 --ranks 8 --compare dp=4", error_text("compare", "dp=4 = 4 ranks", "8")),
        (
            "gpt2 --ranks 8 --compare dp --parallel dp",
            error_text("parallel", "dp", "one of --parallel, --compare and --find"),
        ),
        ("gpt2 --ranks 8 --dtype fp7", error_text("dtype", "fp7", "one of")),
        ("gpt2 --ranks 8..2", error_text("ranks", "8..2", "from above 0, and not down")),
        ("gpt2 --ranks 4 --step-ms 0", error_text("step-ms", "0", "a number above 0")),
        ("gpt2 --ranks 4 --mfu 0.4", error_text("mfu", "0.4", "a machine whose GPU is known")),
        (
            "nix/config.json --ranks 4",
            error_text("file", "nix/config.json", "a file"),
        ),
    ],
)
def test_what_is_refused_in_one_line(file, monkeypatch, tmp_path, capsys, arguments, error):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--machine", file, *arguments.split()]) in (2, 3)
    err = capsys.readouterr().err
    assert err.startswith(f"torchcoll: error: {error}")
    assert err.count("\n") == 1


def test_what_is_only_a_guess_is_told_as_one(monkeypatch, capsys):
    """Times that are three times too long and too short in turn tell nothing of 8 times as many
    ranks; of those that were measured they do.
    """
    factors = itertools.cycle((3, 1 / 3))
    monkeypatch.setattr(made_models, "ring_ns", lambda *case: next(factors) * ring_ns(*case))
    model = fit_model(made_models.runs()).model
    projection = planned_buckets(model, 2_000_000, [2, 8, 64], 12 * MS)
    assert (
        [step.ranks for step in projection.weak]
        == [step.ranks for step in projection.strong]
        == [2, 8]
    )
    note = "the 90 % interval of the communication is wider than 100x"
    note = f"on 64 ranks the time is only a guess: {note}"
    assert note in projection.notes
    show_training_plans([projection])
    # Each call alone has 1/8.97 to 8.7 times its time; two calls of about half of the sum each,
    # with independent errors, have sqrt(1/2) of their logarithms.
    answer = told(capsys)
    assert answer.startswith("a step on 8 ranks takes ")
    assert "; 12.0 ms on 2 ranks" in answer
    show_training_plans([planned_buckets(model, 2_000_000, [64], 12 * MS)])
    assert told(capsys) == (
        "how long a step on 64 ranks communicates is only a guess, 84.5 us to 10.7 ms. "
        "Measure nearer sizes, or more numbers of ranks, and fit again."
    )


def told(capsys):
    return " ".join(capsys.readouterr().out.partition("\n\n")[0].split())


def test_a_model_without_the_collective_is_refused():
    model = fit_model(made_models.runs(["all_gather"])).model
    text = error_text(
        "collective",
        "all_reduce",
        "what the model has: all_gather. Measure it, on 2, 4, 8 ranks: torchrun "
        "--nproc-per-node 8 -m torchcoll.allreduce",
    )
    with pytest.raises(UsageError, match=f"^{text}"):
        planned_buckets(model, 16_000_000_000, [8])
    several = error_text("collectives", "all_reduce, all_to_all", "what the model has: all_gather")
    with pytest.raises(UsageError, match=f"^{several}") as caught:
        model.check_collectives(["all_reduce", "all_gather", "all_to_all", "all_reduce"])
    assert "-m torchcoll.suite --collectives all_reduce,all_to_all -b" in str(caught.value)


def test_what_was_not_measured_is_half_an_all_reduce():
    model = fit_model(made_models.runs()).model
    whole = model.predict("all_reduce", 1 << 24, 8)
    half = model.predict("all_gather", 1 << 24, 8)
    assert half.time_ns == whole.time_ns / 2
    assert half.low_ns < whole.low_ns / 2 and half.high_ns > 1.5 * whole.high_ns / 2
    assert half.beyond == "all_gather not measured: half an all_reduce"
    (row,) = predict_all(model, [8], [1 << 24], "allgather")  # as the command, model predict
    assert row.prediction == half
    assert (row.kind["collective"], row.kind["dtype"]) == ("all_gather", "float32")


def test_a_step_time_without_a_machine_and_layouts_that_are_no_text():
    with pytest.raises(UsageError) as caught:
        torchcoll.plan("gpt2", "dp=8", step_ms=30.0)
    assert caught.value.what == "step_ms"
    with pytest.raises(UsageError) as caught:
        torchcoll.compare_plans("gpt2", 3, ranks=8)
    assert caught.value.what == "compare"


@pytest.mark.parametrize(("step_ms", "objects"), [(900.0, False), (600.0, True)])
def test_a_computation_beyond_the_peak_is_objected_to(step_ms, objects):
    """8,192 tokens of 8e9 parameters: 6 x 7.5e9 and 12 x 32 x 4096 x 8192 operations each."""
    plan = torchcoll.plan("llama-3-8b", "fsdp=8", machine="8xH100", step_ms=step_ms)
    flops = 8192 * (6 * (8_030_261_248 - 128_256 * 4096) + 12 * 32 * 4096 * 8192)
    assert plan.step.compute.flops == pytest.approx(flops)
    assert plan.step.mfu == pytest.approx(flops / 989e12 / plan.step.step_ns[0] * 1e9)
    assert plan.step.tokens_per_s == pytest.approx(8192 / plan.step.step_ns[0] * 1e9)
    assert any("no training reaches 75 %" in note for note in plan.notes) == objects


def test_a_plan_that_does_not_fit_says_so(capsys):
    """2 bytes for each of 70.6e9 parameters, gradients and two states are 8.8 GB of 64 ranks; the
    activations are 34 bytes and more for 8192 tokens, 80 layers and 8192 columns, 182 GB.
    """
    command = ["plan", "llama-3-70b", "--machine", "8xH100", "--parallel"]
    for layout, fits in (("fsdp=64", False), ("fsdp=64,ckpt", True)):
        assert main([*command, layout]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert (" does not fit: " in text and "on a GPU of 84.9 GB" in text) == (not fits)


def test_ddp_that_does_not_fit_says_so_first_and_names_a_layout_that_surely_fits(capsys):
    assert main(["plan", "llama-3-8b", "--machine", "8xH100", "--parallel", "dp=8"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.match(
        r"a step of \S+ with DDP on 8 ranks \(dp=8\) does not fit: \d+ GB of memory", text
    )
    assert "if it did: a step of" in text
    plan = torchcoll.plan("llama-3-8b", "dp=8", machine="8xH100")
    name, needed = plan.smaller
    assert name.startswith("fsdp=8") and needed < plan.memory_bytes


def test_a_plan_that_does_not_fit_names_a_like_one_that_does(capsys):
    """Meta trained Llama 3 405B so, without checkpointing, on GPUs of 80 GB (arXiv 2407.21783).

    Megatron-LM keeps 34 bytes and less of a token's column in 128 passes of a layer on a rank of
    tp; DTensor also keeps both inputs of a layer that it gathers, 2 x 268 MB.
    """
    command = ["plan", "llama-3-405b", "--machine", "8xH100", "--batch", "16x1x8192", "--parallel"]
    assert main([*command, "fsdp=128,tp=8,pp=16x8,sp"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "does not fit: 151 GB of memory on a GPU of 84.9 GB" in text
    assert "; zero1=128,tp=8,pp=16x8,sp needs 88.1 GB, tight; --find has others" in text
    assert main([*command, "zero1=128,tp=8,pp=16x8,sp"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "it is tight: 88.1 GB of memory on a GPU of 84.9 GB, and a plan may be off by 10" in text
    plan = torchcoll.plan("llama-3-70b", "fsdp=64", machine="8xH100")
    assert plan.smaller is not None and plan.smaller[0] == "fsdp=64,ckpt"


def test_mfu_in_place_of_a_time():
    plan = torchcoll.plan("llama-3-8b", "fsdp=8", machine="8xH100", mfu=40)
    assert plan.compute_ns == pytest.approx(plan.step.compute.flops / 0.4 / 989e12 * 1e9)
    value, low, high = torchcoll.plan("llama-3-8b", "fsdp=8", machine="8xH100").step.step_ns
    assert low < 0.9 * value and high > 1.1 * value  # the range of MFU


def test_a_published_machine_gives_times_within_its_links(capsys):
    command = ["plan", "--machine", "8xH100", "llama-3-8b", "--ranks", "64"]
    assert main([*command, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    step = document["step"]
    # 65 all_gather of 416 MiB to 1.96 GiB and 33 reduce_scatter, 46 GB: at most the 450 GB/s that a
    # H100 sends; at least 50 GB/s, which eight times 400 Gbit/s cannot be slower than, 0.93 s.
    sent = sum(row["calls"] * row["size_bytes"] for row in document["rows"])
    assert 63 / 64 * sent / 450 < step["comm_low_ns"] < step["comm_ns"] < step["comm_high_ns"]
    assert step["comm_high_ns"] < 63 / 64 * sent / 50

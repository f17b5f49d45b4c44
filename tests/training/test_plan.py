"""Plans of trainings: on a machine of exact figures, worked out by hand."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import json
from dataclasses import replace

import made_models
import pytest
import torch
from error_form import error_text
from made_models import ring_ns
from made_runs import measured, run

from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.curves.model_file import model_object
from torchcoll.curves.model_fit import fit_model
from torchcoll.training.buckets import gradient_buckets
from torchcoll.training.plan_show import show_projection
from torchcoll.training.projection import (
    STRONG,
    WEAK,
    PlannedStep,
    Projection,
    plan_shape,
    plan_traffic,
    timeline_acts,
)
from torchcoll.training.shapes import (
    SHAPES,
    SentCall,
    StepStage,
    parse_degrees,
    stages_from_shape,
)
from torchcoll.training.sharded import BACKWARD, FORWARD
from torchcoll.training.timeline import step_ns

MS = 1e6


@pytest.fixture(scope="module")
def model():
    return fit_model(made_models.runs(("all_reduce", "all_gather", "reduce_scatter"))).model


@pytest.fixture
def file(model, tmp_path):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(model_object(model)))
    return str(path)


# -- shapes ------------------------------------------------------------------------------------


def test_parameters_of_llama_8b():
    """Meta's own count is 8.03e9: 32 layers of 218 112 000, twice 128256 x 4096, and a norm."""
    shape = SHAPES["llama-8b"]
    assert shape.layer_parameters == 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert shape.parameters == 8_030_261_248
    assert SHAPES["llama-70b"].parameters == 70_553_706_496
    assert SHAPES["llama-405b"].parameters == pytest.approx(405.9e9, rel=1e-3)


def every(stages, name):
    return [s for stage in stages for s in getattr(stage, name)]


def test_tensor_parallel_layers_stop_four_times():
    stages = stages_from_shape(SHAPES["llama-8b"], 8e9, {"tp": 8}, 2048, "bfloat16")
    stops = every(stages, "blocking")
    assert stops == [SentCall("tp", "all_reduce", 2048 * 4096 * 2)] * (4 * 32)
    assert every(stages, "overlapping") == every(stages, "needs") == []
    for phase in (FORWARD, BACKWARD):
        assert sum(stage.share for stage in stages if stage.phase == phase) == pytest.approx(1)


def test_ddp_sends_every_gradient_once():
    stages = stages_from_shape(SHAPES["llama-8b"], 8e9, {"dp": 64, "tp": 2}, 2048, "bfloat16")
    sizes = [s.size_bytes for s in every(stages, "overlapping")]
    assert sum(sizes) == pytest.approx(SHAPES["llama-8b"].parameters, rel=1e-6)  # 2 bytes / tp
    assert all(size >= 25 << 20 for size in sizes[1:-1])  # DDP closes above its cap


def test_fsdp_gathers_twice_and_scatters_once():
    stages = stages_from_shape(SHAPES["llama-8b"], 8e9, {"fsdp": 64}, 2048, "bfloat16")
    gathered = [s.size_bytes for s in every(stages, "needs")]
    scattered = [s.size_bytes for s in every(stages, "overlapping")]
    whole = 2 * SHAPES["llama-8b"].parameters
    assert sum(scattered) == whole
    head = 2 * (128256 * 4096 + 4096)  # is still there when the backward pass begins
    assert sum(gathered) == 2 * whole - head


# -- the timeline -------------------------------------------------------------------------------

PASSES = {FORWARD: 10.0, BACKWARD: 20.0}
DP = SentCall("dp", "all_reduce", 1)


def test_what_leaves_hides_under_what_comes_after():
    stages = [
        StepStage(FORWARD, 1),
        StepStage(BACKWARD, 0.5, overlapping=(DP,)),
        StepStage(BACKWARD, 0.5, overlapping=(DP,)),
    ]
    # Gradients at 20 and 30: 8 each, so that the first hides and the second ends at 38.
    assert step_ns(timeline_acts(stages, lambda sent: 8.0, PASSES)) == 38
    # 15 each: from 20 to 35, then to 50.
    assert step_ns(timeline_acts(stages, lambda sent: 15.0, PASSES)) == 50


def test_what_stops_is_exposed():
    stages = [StepStage(FORWARD, 1, blocking=(DP, DP)), StepStage(BACKWARD, 1)]
    assert step_ns(timeline_acts(stages, lambda sent: 3.0, PASSES)) == 36


def test_the_next_part_is_gathered_while_this_one_computes():
    first, second, third = (SentCall("fsdp", "all_gather", n) for n in (1, 2, 3))
    back = SentCall("fsdp", "reduce_scatter", 4)
    stages = [
        StepStage(FORWARD, 0.5, needs=(first,)),  # 0 to 4, computes to 9
        StepStage(FORWARD, 0.5, needs=(second,)),  # 4 to 8, computes 9 to 14
        StepStage(BACKWARD, 1, needs=(third,), overlapping=(back,)),  # 9 to 13, computes 14 to 34
    ]
    assert (
        step_ns(timeline_acts(stages, lambda sent: 4.0, PASSES)) == 38
    )  # what is scattered, from 34


# -- steps --------------------------------------------------------------------------------------


def test_a_step_of_even_buckets(model):
    """2 000 000 bytes: a bucket of 1 MiB, then 951 424; a backward pass of 1 ms."""
    projection = plan_shape(model, None, 1e6, {"dp": 4}, [], 1 * MS, 8192, "bfloat16")
    first_ns, second_ns = ring_ns("all_reduce", 1 << 20, 4), ring_ns("all_reduce", 951_424, 4)
    assert projection.step.comm_ns[0] == pytest.approx(first_ns + second_ns, rel=1e-3)
    # The second begins when it is ready, at the end of the backward pass: all of it is exposed.
    assert projection.step.exposed_ns[0] == pytest.approx(second_ns, rel=1e-3)
    assert projection.step.compute_ns == 1.5 * MS
    assert projection.step.hidden_ns[0] == pytest.approx(first_ns, rel=1e-3)


def test_ranks_beyond_the_data_are_said_and_one_host_is_no_network(model):
    projection = plan_shape(model, None, 1e6, {"dp": 32}, [], None, 8192, "bfloat16")
    expected = ring_ns("all_reduce", 1 << 20, 32) + ring_ns("all_reduce", 951_424, 32)
    value, low, high = projection.step.comm_ns
    assert value == pytest.approx(expected, rel=0.01)
    assert low < value < high
    assert all("4x the most ranks (8)" in row.extrapolated for row in projection.step.rows)
    assert any("fitted on one host" in note for note in projection.notes)
    assert any("times are extrapolated" in note for note in projection.notes)
    assert projection.step.exposed_ns is None


def test_over_ranks_weak_keeps_the_work_and_strong_divides_it(model):
    projection = plan_shape(model, None, 1e6, {"dp": 4}, [2, 4, 8], 8 * MS, 8192, "bfloat16")
    assert [step.compute_ns for step in projection.weak] == [12 * MS] * 3
    assert [step.compute_ns for step in projection.strong] == [24 * MS, 12 * MS, 6 * MS]


def steps(*times):
    return [
        PlannedStep(n, {}, (), (0, 0, 0), compute, (0, 0, 0), (step, low, high))
        for n, compute, step, low, high in times
    ]


def test_where_it_stops():
    weak = steps((2, 10, 12, 11, 13), (4, 10, 19, 15, 21), (8, 10, 30, 19, 50))
    strong = steps((2, 80, 80, 80, 80), (4, 40, 50, 41, 70), (8, 20, 45, 21, 69))
    result = Projection("", weak[0], weak, strong, backward_ns=1.0)
    # Half of 19 is below 10; of 21 it is not; of 30 it is not either.
    assert result.scaling_limit(WEAK) == (8, None, 4)
    # 80 to 50 is 1.6 times; 50 to 45 is less than 1.25; by the ends 41 to 21 is, 80 to 70 is not.
    assert result.scaling_limit(STRONG) == (4, None, 2)


# -- traffic ------------------------------------------------------------------------------------


def planned(calls):
    groups = {"data": Group("data", (0, 1, 2, 3)), "pair": Group("pair", (0, 1))}
    return Traffic("plan", 4, {0: calls}, groups)


def test_a_traffic_of_ddp(model):
    calls = [
        TrafficCall("all_reduce", n, n, "float32", "sum", group="data", asynchronous=True)
        for n in (1 << 20, 1 << 18)
    ]
    projection = plan_traffic(model, planned(calls), [], 1 * MS)
    times = [ring_ns("all_reduce", n, 4) for n in (1 << 20, 1 << 18)]
    assert projection.step.comm_ns[0] == pytest.approx(sum(times), rel=1e-3)
    # The first at 4/5 of the pass, from 0.8 to 0.97 ms; the second from its end on.
    assert projection.step.exposed_ns[0] == pytest.approx(times[1], rel=1e-3)


def test_a_traffic_of_shards_and_the_groups_that_grow(model):
    gather = TrafficCall(
        "all_gather", 1 << 18, 1 << 20, "float32", group="data", asynchronous=False
    )
    scatter = TrafficCall(
        "reduce_scatter", 1 << 20, 1 << 18, "float32", "avg", group="data", asynchronous=False
    )
    pair = TrafficCall("all_reduce", 4096, 4096, "float32", "sum", group="pair", asynchronous=False)
    projection = plan_traffic(model, planned([gather, gather, scatter, pair]), [4, 8], 10 * MS)
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


def test_shards_that_are_not_gathered_again(model):
    """reshard_after_forward=False: two units, gathered forward, scattered backward."""
    gather = TrafficCall("all_gather", 1 << 24, 1 << 26, "float32", group="data")
    scatter = TrafficCall("reduce_scatter", 1 << 26, 1 << 24, "float32", "avg", group="data")
    calls = [
        replace(original, asynchronous=False) for original in (gather, gather, scatter, scatter)
    ]
    projection = plan_traffic(model, planned(calls), [], 40 * MS)
    # Each call 5 + 3 x 2 us and 0.75 x 64M at 10 GB/s = 5.044 ms. The second gather runs under the
    # first half of the forward pass, the first scatter under the second half of the backward one.
    assert projection.step.exposed_ns[0] == pytest.approx(2 * 5_044_165, rel=1e-3)


def test_a_step_grows_where_a_group_has_all_ranks(model):
    pair = TrafficCall("all_reduce", 4096, 4096, "float32", "sum", group="pair", asynchronous=True)
    with pytest.raises(
        UsageError, match=error_text("ranks", "groups pair of 2", "one of all 4 ran")
    ):
        plan_traffic(model, planned([pair]), [4, 8], None)


# -- the command --------------------------------------------------------------------------------


def test_the_answer_comes_first(file, capsys):
    command = ["plan", "--machine", file, "--parameters", "1e6", "--parallel", "dp=4"]
    assert main([*command, "--backward-ms", "1"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    # 5 + 12 us and 1.5 x 104.8576 us, and 1.5 x 95.1424 us
    # Alone, on the cores that compute.
    assert first.startswith("4 ranks (dp=4): at least 334 us (")
    assert "of communication a step, 160 us (" in first
    assert first.endswith("exposed under a backward pass of 1.00 ms: 90 % of a step computes")


def test_json_csv_and_a_picture(file, tmp_path, capsys):
    command = ["plan", "--machine", file, "--parameters", "1e6", "--parallel", "dp=4"]
    command += ["--ranks", "2..8", "--backward-ms", "1"]
    picture = tmp_path / "plan.png"
    assert main([*command, "--format", "json", "--plot", str(picture)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "torchcoll-plan/1"
    assert [step["ranks"] for step in document["weak"]] == [2, 4, 8]
    assert document["strong"][0]["compute_ns"] == 3 * MS
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert main([*command, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["table"] for row in rows] == ["calls"] * 2 + ["weak"] * 3 + ["strong"] * 3


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("", error_text("plan", "nothing", "--traffic PATH, --shape NAME or --parameters N")),
        ("--parameters 8e9 --parallel dp=4,tp=2", error_text("parallel", "tp", "--shape NAME")),
        ("--shape lama-8b --parallel dp=2", error_text("shape", "lama-8b", "one of llama-8b")),
        (
            "--shape llama-8b --parameters 1e9 --parallel dp=2",
            error_text("parameters", "1e+09", ""),
        ),
        (
            "--shape llama-8b --parallel dp=64,tp=8 --ranks 500",
            error_text("ranks", "500", "a mult"),
        ),
        (
            "--shape llama-8b --parallel dp=64,tp=8 --ranks 256",
            error_text("parallel", "dp=64 x tp=8 = 512 ranks", "256, as --ranks says"),
        ),
        ("--shape llama-8b --parallel tp=6 --ranks 8..64", error_text("ranks", "8", "a multiple")),
        ("--shape llama-8b --parallel dp=two", error_text("parallel", "dp=two", "degrees such as")),
        ("--shape llama-8b --parallel pp=2", error_text("parallel", "pp", "one of dp, fsdp, tp")),
        ("--shape llama-8b --parallel dp=2,dp=2", error_text("parallel", "dp twice", "each once")),
        (
            "--shape llama-8b --parallel dp=2,fsdp=2",
            error_text("parallel", "dp=2,fsdp=2", "dp or f"),
        ),
        (
            "--parameters 1e6 --ranks 8..2",
            error_text("ranks", "8..2", "from above 0, and not down"),
        ),
        (
            "--parameters 1e6 --ranks 4 --backward-ms 0",
            error_text("backward-ms", "0", "a number ab"),
        ),
        ("--parameters x --ranks 4", error_text("parameters", "x", "a number")),
        (
            "--parameters 1e6 --ranks 4 --plot p.png",
            error_text("plot", "p.png", "--ranks with sev"),
        ),
        ("--traffic nix", error_text("trace", "nix", "a file that exists")),
        ("--traffic nix --shape llama-8b", error_text("shape", "llama-8b beside --traffic", "one")),
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
    projection = plan_shape(model, None, 1e6, {"dp": 2}, [2, 8, 64], 8 * MS, 8192, "bfloat16")
    assert (
        [step.ranks for step in projection.weak]
        == [step.ranks for step in projection.strong]
        == [2, 8]
    )
    note = "on 64 ranks nothing is told: the 90 % interval of the communication is wider than 100x"
    assert note in projection.notes
    show_projection(projection)
    comm = "at least 78.6 us (8.77 us to 684 us) of communication a step"
    assert f"2 ranks (dp=2): {comm}" in told(capsys)
    show_projection(plan_shape(model, None, 1e6, {"dp": 64}, [2, 64], 8 * MS, 8192, "bfloat16"))
    assert told(capsys) == (
        "64 ranks (dp=64): communication a step is only a guess, 84.5 us to 10.7 ms. Measure "
        "nearer sizes, or more numbers of ranks, and fit again."
    )


def told(capsys):
    return capsys.readouterr().out.splitlines()[0]


def test_a_model_without_the_collective_is_refused():
    model = fit_model(made_models.runs(["all_gather"])).model
    text = error_text(
        "collective",
        "all_reduce",
        "what the model has: all_gather. Measure it, on 2, 4, 8 ranks: torchrun "
        "--nproc-per-node 8 -m torchcoll.allreduce",
    )
    with pytest.raises(UsageError, match=f"^{text}"):
        plan_shape(model, SHAPES["llama-8b"], 8e9, {"dp": 8}, [], None, 8192, "bfloat16")


def test_what_was_not_measured_is_half_an_all_reduce():
    model = fit_model(made_models.runs()).model
    whole = model.predict("all_reduce", 1 << 24, 8)
    half = model.predict("all_gather", 1 << 24, 8)
    assert half.time_ns == whole.time_ns / 2
    assert half.low_ns < whole.low_ns / 2 and half.high_ns > 1.5 * whole.high_ns / 2
    assert half.beyond == "all_gather not measured: half an all_reduce"


def test_a_published_machine_answers_in_one_sentence(capsys):
    command = ["plan", "--machine", "8xH100", "--shape", "llama-8b", "--parallel", "fsdp=64"]
    assert main([*command, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    step = document["step"]
    # 67 all_gather of 416 MiB to 1002 MiB and 34 reduce_scatter, 47 GB: at most the 450 GB/s that a
    # H100 sends; at least 50 GB/s, which eight times 400 Gbit/s cannot be slower than, 0.93 s.
    sent = sum(row["calls"] * row["size_bytes"] for row in document["rows"])
    assert 63 / 64 * sent / 450 < step["comm_low_ns"] < step["comm_ns"] < step["comm_high_ns"]
    assert step["comm_high_ns"] < 63 / 64 * sent / 50
    assert document["depends"].startswith("the bandwidth of the network between hosts")
    assert main(command) == 0
    assert "of communication a step; it depends most on the bandwidth" in capsys.readouterr().out


def test_degrees():
    assert parse_degrees("dp=64,tp=8") == {"dp": 64, "tp": 8}


# -- DDP's buckets of a shape ----------------------------------------------------------------------


def llama(shape):
    """The decoder of a shape on meta, with parameters in the order of Hugging Face's Llama."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            linear = functools.partial(torch.nn.Linear, bias=False)
            self.q = linear(shape.hidden, shape.hidden)
            self.k = linear(shape.hidden, shape.key_columns)
            self.v = linear(shape.hidden, shape.key_columns)
            self.o = linear(shape.hidden, shape.hidden)
            self.gate = linear(shape.hidden, shape.feed_forward)
            self.up = linear(shape.hidden, shape.feed_forward)
            self.down = linear(shape.feed_forward, shape.hidden)
            self.norm_in = torch.nn.RMSNorm(shape.hidden)
            self.norm_post = torch.nn.RMSNorm(shape.hidden)

    model = torch.nn.Module()
    with torch.device("meta"):
        model.embedding = torch.nn.Embedding(shape.vocabulary, shape.hidden)
        model.layers = torch.nn.ModuleList(Layer() for _ in range(shape.layers))
        model.norm = torch.nn.RMSNorm(shape.hidden)
        model.head = torch.nn.Linear(shape.hidden, shape.vocabulary, bias=False)
    return model.to(torch.bfloat16)


def llama_step(model):
    """A forward and a backward pass of one sequence of 8 tokens; 128 columns a head."""
    x = model.embedding(torch.zeros(1, 8, dtype=torch.long))
    for layer in model.layers:
        y = layer.norm_in(x)
        q, k, v = (
            part(y).view(1, 8, -1, 128).transpose(1, 2) for part in (layer.q, layer.k, layer.v)
        )
        repeats = q.shape[1] // k.shape[1]
        scores = q @ k.repeat_interleave(repeats, 1).transpose(2, 3)
        mixed = scores.softmax(3) @ v.repeat_interleave(repeats, 1)
        x = x + layer.o(mixed.transpose(1, 2).reshape(1, 8, -1))
        y = layer.norm_post(x)
        x = x + layer.down(torch.nn.functional.silu(layer.gate(y)) * layer.up(y))
    model.head(model.norm(x)).sum().backward()


def test_ddp_sends_the_buckets_of_a_shape_that_torch_assigns():
    """DDP splits no parameter: 161 buckets and one for the embedding, of 32 to 1002 MiB."""
    shape = SHAPES["llama-8b"]
    stages = stages_from_shape(shape, shape.parameters, {"dp": 8}, 8192, "bfloat16")
    sent = [call.size_bytes for stage in stages for call in stage.overlapping]
    plan = gradient_buckets(llama(shape), step=llama_step)
    assert sent == [bucket.size_bytes for bucket in plan.buckets]
    assert (len(sent), sum(sent)) == (162, 2 * 8_030_261_248)

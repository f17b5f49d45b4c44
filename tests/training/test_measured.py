"""A plan beside measured steps: captures whose decomposition is known by hand, and real ones."""

import importlib
import json
import math
from dataclasses import replace

import made_models
import pytest
import torch
import torch.distributed as dist
from error_form import error_text
from made_models import ring_ns
from parallel_models import TOKENS, Llama, llama_config, train_step
from ranks import Job
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torchcoll
from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.parts.curves.model_file import model_object
from torchcoll.parts.curves.model_fit import fit_model
from torchcoll.parts.curves.predictor import Prediction
from torchcoll.parts.training.captured_plan import plan_traffic
from torchcoll.parts.training.measured_step import CallKind, match_kinds, measure_step
from torchcoll.parts.training.projection import (
    Computation,
    Correction,
    PlannedRow,
)

MS = 1_000_000
# fully_shard of torch 2.6 needs a device that has streams.
SHARDS = hasattr(torch.cpu.Stream(), "record_event")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
GATHERED = 1 << 20


@pytest.fixture(scope="module")
def model():
    return fit_model(made_models.runs(COLLECTIVES)).model


@pytest.fixture
def machine_file(model, tmp_path):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(model_object(model)))
    return str(path)


GATHER = TrafficCall(
    "all_gather", GATHERED // 2, GATHERED, "float32", group="0", asynchronous=False
)
SCATTER = TrafficCall(
    "reduce_scatter", GATHERED, GATHERED // 2, "float32", "avg", group="0", asynchronous=False
)
GROUP = {"0": Group("0", (0, 1), "gloo")}
NCCL = {"0": Group("0", (0, 1), "nccl")}  # runs the calls of a group one after another
PLAN = Traffic("plan", 2, {0: [GATHER, replace(SCATTER, sequence=1)]}, GROUP)
GATHER_NS, SCATTER_NS = (ring_ns(name, GATHERED, 2) for name in COLLECTIVES[1:])


def captured(steps=4, late_ns=0, slower_ns=0, gap_ns=0, **changes):
    """Two ranks: compute 3 ms, gather, compute 5 ms, scatter; rank 1 begins its gather ``late_ns``
    later than rank 0, the scatter takes ``slower_ns`` more, and before the mark nothing happens for
    ``gap_ns``.
    """
    calls, marks = {0: [], 1: []}, {0: [], 1: []}
    for rank in (0, 1):
        now = 0
        for step in range(steps):
            begin = now
            now += 3 * MS + (late_ns if rank else 0)
            gathering = round(GATHER_NS) + (0 if rank else late_ns)
            calls[rank].append(
                replace(
                    GATHER,
                    sequence=2 * step,
                    step=step,
                    start_ns=now,
                    time_ns=gathering,
                    **changes,
                )
            )
            now += gathering + 5 * MS
            scattering = round(SCATTER_NS) + slower_ns
            calls[rank].append(
                replace(
                    SCATTER,
                    sequence=2 * step + 1,
                    step=step,
                    start_ns=now,
                    time_ns=scattering,
                    **changes,
                )
            )
            now += scattering + gap_ns
            marks[rank].append((begin, now))
    return Traffic("capture", 2, calls, dict(GROUP), marks)


def measured(traffic, model, compute_ns=None, plan=PLAN):
    step = plan_traffic(model, plan, [], compute_ns and Computation((compute_ns,) * 3)).step
    return measure_step(step, traffic, "", compute_ns)


def test_a_step_as_planned_has_factor_one(model):
    result = measured(replace(captured(), path="step.jsonl"), model, 8 * MS)
    assert result.capture == "step.jsonl"
    assert result.planned_ns[0] == pytest.approx(GATHER_NS + SCATTER_NS, rel=1e-3)
    assert result.correction.factor[0] == pytest.approx(1, rel=1e-3)
    assert result.late_ns == 0
    assert result.gaps_ns == pytest.approx(0, abs=2)
    # All calls are synchronous on gloo: nothing hides them.
    assert result.correction.blocking == {"all_gather", "reduce_scatter"}
    assert result.unmatched == {"plan": {}, "capture": {}}


def test_late_slower_and_gaps_are_told_apart(model):
    traffic = captured(late_ns=2 * MS, slower_ns=MS, gap_ns=MS // 2)
    result = measured(traffic, model, 8 * MS)
    planned = GATHER_NS + SCATTER_NS
    assert result.slower_ns == pytest.approx(MS, rel=1e-2)
    # Rank 0 waits 2 ms, rank 1 not at all.
    assert result.late_ns == pytest.approx(MS, rel=1e-6)
    assert result.correction.factor[0] == pytest.approx((planned + 2 * MS) / planned, rel=1e-2)
    assert result.correction.factors["all_gather"][0] == pytest.approx(
        (GATHER_NS + MS) / GATHER_NS, rel=1e-2
    )
    assert result.correction.factors["reduce_scatter"][0] == pytest.approx(
        (SCATTER_NS + MS) / SCATTER_NS, rel=1e-2
    )
    # Rank 0 has 0.5 ms without calls and computation, rank 1 computes 2 ms longer.
    assert result.gaps_ns == pytest.approx((MS / 2 + 2 * MS + MS / 2) / 2, rel=1e-6)
    assert result.correction.gap_ns == pytest.approx(result.gaps_ns / 2)


def test_without_the_computation_gaps_are_part_of_it(model):
    result = measured(captured(gap_ns=MS), model)
    assert result.gaps_ns is None
    assert result.computing_ns == pytest.approx(9 * MS, rel=1e-6)
    assert any("--step-ms says how long" in note for note in result.notes)


def test_a_trace_has_computation_and_copies(model):
    """3 ms and 5 ms of computation; of the latter 1 ms runs beside the scatter, 0.5 ms copies."""
    traffic = captured(steps=1, slower_ns=MS, gap_ns=MS // 4)
    traffic.source = "kineto"
    for rank in (0, 1):
        scatter = traffic.calls[rank][1].start_ns
        traffic.computing[rank] = [(0, 3 * MS), (scatter - 4 * MS, scatter + MS)]
        traffic.copies[rank] = [(scatter - MS // 2, scatter)]
    result = measured(traffic, model)
    assert result.copies_ns == MS // 2
    assert result.computing_ns == 8 * MS - MS // 2
    # After the gather nothing runs for 1 ms, and before the mark for 0.25 ms.
    assert result.gaps_ns == pytest.approx(1.25 * MS, rel=1e-3)
    planned = GATHER_NS + SCATTER_NS
    assert result.correction.factor[0] == pytest.approx((planned + 1.5 * MS) / planned, rel=1e-3)
    # DDP does not copy: other collectives take the factor without the copies.
    assert result.correction.others[0] == pytest.approx((planned + MS) / planned, rel=1e-3)


def test_a_call_behind_another_is_no_longer_than_its_own(model):
    """DDP: the second bucket is issued while the first is in flight."""
    calls = [
        replace(GATHER, collective="all_reduce", bytes_in=GATHERED, op="sum", asynchronous=True),
        replace(
            GATHER,
            collective="all_reduce",
            bytes_in=GATHERED,
            op="sum",
            asynchronous=True,
            sequence=1,
        ),
    ]
    each = round(ring_ns("all_reduce", GATHERED, 2))
    ran = {
        rank: [
            replace(calls[0], step=0, start_ns=0, time_ns=2 * each),
            replace(calls[1], step=0, start_ns=each, time_ns=3 * each),  # from 2 x each on
        ]
        for rank in (0, 1)
    }
    traffic = Traffic("kineto", 2, ran, dict(NCCL), {rank: [(0, 10 * each)] for rank in (0, 1)})
    result = measured(traffic, model, plan=Traffic("plan", 2, {0: calls}, GROUP))
    assert result.transfer_ns == 4 * each
    assert result.correction.factor[0] == pytest.approx(2, rel=1e-3)
    assert result.gaps_ns is None  # asynchronous, and no computation recorded
    assert any("gaps between calls are unknown" in note for note in result.notes)


def test_a_collective_without_time_of_its_own_takes_the_factor_of_all(model):
    """The scatter is issued while the gather is in flight, and ends with it."""
    whole = 2 * round(GATHER_NS + SCATTER_NS)
    gather = replace(GATHER, step=0, start_ns=0, time_ns=whole, asynchronous=True)
    scatter = replace(SCATTER, step=0, sequence=1, start_ns=9, time_ns=whole - 9, asynchronous=True)
    calls = {rank: [gather, scatter] for rank in (0, 1)}
    traffic = Traffic("capture", 2, calls, dict(NCCL), {rank: [(0, whole)] for rank in (0, 1)})
    # gloo runs both at the same time.
    on_gloo = measured(replace(traffic, groups=dict(GROUP)), model)
    assert set(on_gloo.correction.factors) == {"all_gather", "reduce_scatter"}
    result = measured(traffic, model)
    assert set(result.correction.factors) == {"all_gather"}
    assert any(note.startswith("reduce_scatter ended with") for note in result.notes)
    kind = ("reduce_scatter", GATHERED, 2)
    corrected_ns = result.correction.of(model.predict(*kind), *kind).time_ns
    assert corrected_ns == pytest.approx(2 * SCATTER_NS, rel=1e-3)


def test_one_rank_alone_does_not_show_who_is_late(model):
    traffic = captured(late_ns=2 * MS)
    del traffic.calls[1], traffic.steps[1]
    result = measured(traffic, model)
    assert result.late_ns is None
    assert result.slower_ns == pytest.approx(2 * MS, rel=1e-2)
    assert any("1 of the 2 ranks of its group" in note for note in result.notes)


def test_the_interval_is_that_of_another_step(model):
    """Equal steps: at least 5 %. Student's t of 3 degrees is 2.353, exp(2.353 x 0.05) = 1.125."""
    value, low, high = measured(captured(), model).correction.factor
    assert high / value == pytest.approx(value / low) == pytest.approx(1.125, abs=0.001)
    # One step: exp(1.645 x 0.4) = 1.931.
    value, _, high = measured(captured(steps=1), model).correction.factor
    assert high / value == pytest.approx(1.931, abs=0.001)


def test_calls_match_by_collective_size_and_group():
    def row(group, calls, size=64, ranks=2, apart=1):
        return PlannedRow(group, "all_reduce", ranks, size, calls, None, apart=apart)

    rows = [row("tp", 3), row("dp", 2, apart=2), row("dp", 1, size=128, apart=2)]
    captured = {
        CallKind("all_reduce", 64, 2, 1): 2,
        CallKind("all_reduce", 64, 2, 2): 2,
        CallKind("all_reduce", 128, 2, 4): 1,  # another mesh
        CallKind("all_reduce", 128, 4, 1): 1,  # of more ranks
    }
    matches = [
        (row.group, kind.size_bytes, kind.apart, n) for row, kind, n in match_kinds(rows, captured)
    ]
    assert matches == [("tp", 64, 1, 2), ("dp", 64, 2, 2), ("dp", 128, 4, 1)]


def test_what_does_not_match_is_said(model, capsys):
    traffic = captured()
    loss = replace(GATHER, collective="all_reduce", bytes_in=4, bytes_out=4, op="sum")
    for rank, calls in traffic.calls.items():
        extra = [
            replace(loss, sequence=8 + step, step=step, start_ns=marks[1] - 10, time_ns=5)
            for step, marks in enumerate(traffic.steps[rank])
        ]
        traffic.calls[rank] = sorted([*calls, *extra], key=lambda call: call.start_ns)
    plan = replace(PLAN, calls={0: [*PLAN.calls[0], replace(GATHER, bytes_out=512, bytes_in=256)]})
    result = torchcoll.plan(plan, machine=model, measured=traffic, step_ms=8)
    unmatched = result.measured.unmatched
    assert [(kind.collective, kind.size_bytes) for kind in unmatched["plan"]] == [
        ("all_gather", 512)
    ]
    assert [(kind.collective, kind.size_bytes) for kind in unmatched["capture"]] == [
        ("all_reduce", 4)
    ]
    torchcoll.show(result)
    out = " ".join(capsys.readouterr().out.split())
    assert "1 call of the plan is not in the capture, and not in the factor: 1 all_gather" in out
    assert "1 call of the capture is not in the plan, and not in the factor: 1 all_reduce" in out


def test_nothing_that_matches_is_an_error(model):
    other = replace(PLAN, calls={0: [replace(GATHER, bytes_in=64, bytes_out=128)]})
    start = error_text("measured traffic", "1 all_gather of 1048576 bytes on 2 ranks")
    with pytest.raises(UsageError, match=f"^{start}.*same model, batch, dtype"):
        torchcoll.plan(other, machine=model, measured=captured())
    with pytest.raises(UsageError, match="a plan, expected a capture of steps that ran"):
        torchcoll.plan(PLAN, machine=model, measured=PLAN)


def test_the_plan_takes_the_factor_the_gaps_and_the_waiting(model):
    traffic = captured(slower_ns=MS, gap_ns=MS // 2)
    result = torchcoll.plan(PLAN, machine=model, measured=traffic, step_ms=8)
    planned = GATHER_NS + SCATTER_NS
    assert result.uncorrected.comm_ns[0] == pytest.approx(planned, rel=1e-3)
    assert result.step.comm_ns[0] == pytest.approx(planned + MS, rel=1e-2)
    # gloo: every call is waited for. The measured step is 8 ms, the calls, and the gap.
    step = traffic.steps[0][0][1]
    assert result.step.step_ns[0] == pytest.approx(step, rel=1e-2)
    assert result.step.exposed_ns[0] == pytest.approx(step - 8 * MS, rel=1e-2)
    # The same kinds of calls have the error of the factor alone.
    value, _, high = result.step.comm_ns
    assert high / value == pytest.approx(1.125, abs=0.001)
    assert "the measured step communicates" in result._repr_html_()


def test_the_computation_of_the_capture_is_said_and_bounds_step_ms(model):
    """A captured step computes 8 ms, and is longer by its calls."""
    traffic = captured()
    result = torchcoll.plan(PLAN, machine=model, measured=traffic)
    assert result.compute_ns == pytest.approx(8 * MS, abs=2)
    note = "8.00 ms outside of calls, as computation, are the capture's, taken to be of the planned"
    assert any(each.startswith(note) for each in result.measured.notes)
    said = torchcoll.plan(PLAN, machine=model, measured=traffic, step_ms=8)
    assert not any("of computation are" in each for each in said.measured.notes)
    with pytest.raises(UsageError, match=f"^{error_text('step_ms', '1000', 'at most the')}"):
        torchcoll.plan(PLAN, machine=model, measured=traffic, step_ms=1000)


def test_a_capture_corrects_only_a_machine_with_its_device(model):
    """A gloo step on CPUs would give a machine with GPUs a factor of hundreds."""
    expected = error_text("measured", "a capture with gloo on CPUs", "one on GPUs, as 8xH100 has")
    with pytest.raises(UsageError, match=f"^{expected}"):
        torchcoll.plan(PLAN, machine="8xH100", measured=captured(), step_ms=8)
    with pytest.raises(UsageError, match=f"^{expected}"):
        torchcoll.plan(captured(), machine="8xH100", measured=captured())
    on_gpus = captured()
    on_gpus.groups = {
        name: replace(group, backend="nccl") for name, group in on_gpus.groups.items()
    }
    expected = error_text("measured", "a capture with nccl on GPUs", "one on CPUs, as ")
    with pytest.raises(UsageError, match=f"^{expected}"):
        torchcoll.plan(PLAN, machine=model, measured=on_gpus, step_ms=8)


def test_other_collectives_take_the_factor_of_all(model):
    result = measured(captured(slower_ns=MS), model)
    factor = result.correction.factor[0]
    plain = model.predict("all_reduce", 1 << 16, 2)
    found = result.correction.of(plain, "all_reduce", 1 << 16, 2)
    assert found.time_ns == pytest.approx(factor * plain.time_ns)
    assert found.high_ns / found.time_ns > plain.high_ns / plain.time_ns


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    """Folders with three captured steps of two ranks, by layout."""
    folder = tmp_path_factory.mktemp("captures")

    def target():
        torch.manual_seed(0)
        dist.init_process_group("gloo")
        for kind in ("dp", "fsdp"):
            model = Llama()
            if kind == "dp":
                model = DistributedDataParallel(model)
            else:
                mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
                for module in (*model.layers, model):
                    fully_shard(module, mesh=mesh)
            for _ in range(3):
                train_step(model)
            with torchcoll.capture(folder / kind) as traffic:
                for _ in range(3):
                    train_step(model)
                    traffic.step()
        dist.barrier()

    importlib.import_module("torch._dynamo")  # DDP does: once here, and not in each rank
    job = Job(folder, target, 2)
    try:
        ended = job.wait()
        assert [e.code for e in ended.values()] == [0, 0], ended[0].stderr[-3000:]
    finally:
        job.kill()
    return folder


@pytest.mark.skipif(not SHARDS, reason="fully_shard of this torch needs a device with streams")
@pytest.mark.parametrize("kind", ["fsdp", "dp"])
def test_real_steps_on_two_ranks(kind, captures, machine_file, tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(llama_config()))
    command = ["plan", str(config), "--machine", machine_file, "--dtype", "float32"]
    command += ["--batch", f"1x{TOKENS}", "--measured", str(captures / kind)]
    assert main([*command, "--parallel", f"{kind}=2", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = document["measured"]
    assert found["unmatched"] == []
    assert found["steps"] == 3 and found["ranks"] == 2 and found["layout"] == f"{kind}=2"
    planned = sum(row["planned_ns"] for row in found["matched"])
    assert found["planned"]["value"] == pytest.approx(planned)
    # Calls of real gloo ranks are much slower than on the machine of the fixture.
    assert found["factor"]["value"] > 1
    parts = planned + found["slower_ns"] + found["late_ns"]
    assert parts == pytest.approx(found["factor"]["value"] * planned)
    matched = {(row["collective"], row["size_bytes"]): row["calls"] for row in found["matched"]}
    assert matched == {
        (row["collective"], row["size_bytes"]): row["calls"] for row in document["rows"]
    }
    if kind == "fsdp":
        assert sorted(found["blocking"]) == ["all_gather", "reduce_scatter"]
        # Nothing is hidden, and the computation is the rest of the step.
        assert document["compute_ns"] == pytest.approx(found["computing_ns"])
        assert document["step"]["exposed_ns"] == pytest.approx(document["step"]["comm_ns"])


def test_calls_without_durations_give_no_factor(model):
    traffic = captured(gap_ns=MS)
    traffic.calls = {
        rank: [replace(one, time_ns=1) for one in calls] for rank, calls in traffic.calls.items()
    }
    for path, name in (("", "traffic"), ("step.jsonl", "step.jsonl")):
        with pytest.raises(UsageError) as caught:
            measured(replace(traffic, path=path), model, 8 * MS)
        what = f"{name}, whose calls took less than 0.1 % of their plan"
        assert str(caught.value) == error_text(
            "measured", what, "a capture of calls with durations"
        )


@pytest.mark.parametrize(
    ("size_bytes", "ranks", "variances"),
    [(1024, 2, 1), (512, 2, 1.5), (2048, 2, 1.5), (511, 2, 2), (2049, 2, 2), (1024, 4, 2)],
)
def test_a_corrected_time_has_the_errors_of_factor_and_machine(size_bytes, ranks, variances):
    """The machine is right within 2 times, half of it common; so is the factor, which is 3."""
    sizes = {("all_reduce", 2): frozenset({1024})}
    ends = (3.0, 1.5, 6.0)
    correction = Correction(ends, ends, {"all_reduce": ends}, sizes, 0.0, frozenset())
    predicted = Prediction(100.0, 50.0, 200.0, "", 0.5)
    time_ns, low_ns, high_ns, *_ = correction.of(predicted, "all_reduce", size_bytes, ranks)
    wide = 2 ** math.sqrt(variances)
    assert (time_ns, low_ns, high_ns) == pytest.approx((300, 300 / wide, 300 * wide))

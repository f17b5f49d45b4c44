"""What FSDP2 costs on curves: three units of 1 MiB on 2 ranks, all times added up on paper."""

from __future__ import annotations

import io

import pytest
from error_form import error_text
from made_curves import MIB, MS, curve, line
from made_runs import run
from torch import nn

import torchcoll
from torchcoll.core.errors import UsageError
from torchcoll.curves.model_fit import fit_model
from torchcoll.training.traffic_projection import plan_traffic

# all_gather of 1 MiB takes 2 ms, reduce_scatter 3; forward 1 ms a unit and backward 2.
BACKWARD_MS = 6


def model():
    return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(3)))


def plan(reshard, ranks=2, **how):
    return torchcoll.shard_traffic(model(), nn.Linear, ranks, reshard_after_forward=reshard, **how)


def both(ranks=2, gather=1.0, reduce=2.0, **changed):
    gathers = curve(line(gather), ranks=ranks, collective="all_gather", op=None, **changed)
    reduces = curve(line(reduce), ranks=ranks, collective="reduce_scatter", **changed)
    return run(*gathers.results, *reduces.results, ranks=ranks)


def ms(value):
    return pytest.approx(value * MS)


def test_beside_the_computation():
    """Resharded. all_gather 1: 0 to 2, 2: 2 to 4, 3: 4 to 6, so the forward pass ends at 7.
    Backward: all_gather 3: 6 to 8, computed to 10; all_gather 2, prefetched: 8 to 10;
    reduce_scatter 3: 10 to 13; all_gather 1, behind it: 13 to 15; unit 2 has computed at 12, waits
    for 13, and its reduce_scatter for the all_gather: 15 to 18; unit 1: 15 to 17; its
    reduce_scatter: 18 to 21.
    Kept: forward to 7; unit 3 to 9, reduce_scatter to 12; unit 2 to 11, reduce_scatter 12 to 15;
    unit 1 from 12 to 14, reduce_scatter 15 to 18. The passes are 9.
    """
    advice = torchcoll.advise([plan(True), plan(False)], both(), backward_ms=BACKWARD_MS)
    resharded, kept = advice.rows
    assert (resharded.exposed_ns, kept.exposed_ns) == (ms(12), ms(9))
    assert (resharded.communication_ns, kept.communication_ns) == (ms(6 * 2 + 9), ms(3 * 2 + 9))
    assert (resharded.hidden_ns, kept.hidden_ns) == (ms(9), ms(6))
    assert (resharded.calls, kept.calls) == (9, 6)
    assert resharded.ratio == pytest.approx(21 / 18)
    # 1.167: real steps of a setting that was said to take 1.161 took 1.010 of the best.
    assert [row.result for row in advice.rows] == ["inconclusive", "best"]
    assert any("by no more than 20 %" in note for note in advice.notes)
    assert (resharded.choice, kept.choice) == ("3 units, resharded", "3 units, kept")
    assert advice.best is kept and advice.forward_ns == ms(3)
    assert not any(note.startswith("assumption") for note in advice.notes)


@pytest.mark.parametrize(("reshard", "exposed"), [(True, 12), (False, 9)])
def test_a_plan_of_a_training_says_the_same(reshard, exposed):
    """`torchcoll plan` of the same step, by a model of the same curves: added up above."""
    machine = fit_model(both()).model
    # The forward pass takes half as long as the backward pass.
    projection = plan_traffic(machine, plan(reshard), [], 1.5 * BACKWARD_MS * MS)
    assert projection.step.exposed_ns[0] == pytest.approx(exposed * MS, rel=0.01)


def test_on_cpus_nothing_is_hidden():
    advice = torchcoll.advise([plan(True), plan(False)], both(device="cpu"), backward_ms=6)
    assert [row.exposed_ns for row in advice.rows] == [ms(21), ms(15)]
    assert [row.hidden_ns for row in advice.rows] == [0, 0]
    # Known without a backward time; only the ratio is not.
    advice = torchcoll.advise([plan(True), plan(False)], both(device="cpu"))
    assert [row.exposed_ns for row in advice.rows] == [ms(21), ms(15)]
    assert advice.best is None


def test_without_a_backward_time_communication_is_known():
    """6 all_gathers of 2 ms and 3 reduce_scatters of 3 ms, kept 3 and 3. What of them is hidden
    depends on the passes.
    """
    advice = torchcoll.advise([plan(True), plan(False)], both())
    assert [row.communication_ns for row in advice.rows] == [ms(21), ms(15)]
    assert [row.exposed_ns for row in advice.rows] == [None, None]
    assert advice.best is None


def test_from_all_reduce_alone():
    """4 ms: half of it for each. Kept: reduce_scatter 9 to 11, 11 to 13, 13 to 15."""
    halves = curve(line(3), backend="nccl")
    advice = torchcoll.advise([plan(False)], halves, backward_ms=BACKWARD_MS)
    assert advice.rows[0].exposed_ns == ms(15 - 9)
    assert [used.share for used in advice.curves] == [0.5, 0.5]
    assert (
        "assumption: all_gather and reduce_scatter not measured: taken for half of an all_reduce "
        "of as many bytes, as in a ring, which does one after the other"
    ) in advice.notes
    # gloo's reduce_scatter is an all_reduce.
    advice = torchcoll.advise([plan(False)], curve(line(3)), backward_ms=BACKWARD_MS)
    assert advice.rows[0].communication_ns == ms(3 * 2 + 3 * 4)
    assert any(
        "the time of an all_reduce of as many bytes, which gloo runs" in n for n in advice.notes
    )


def test_replicas_have_a_group_of_their_own():
    """Shards of 512 KiB: 5 ms over the replicas. Beside the reduce_scatter of the next unit: 12 to
    17, 17 to 22, 22 to 27.
    """
    every = run(*both().results, *curve(line(4.5)).results)
    advice = torchcoll.advise([plan(False, 4, replicas=2)], every, backward_ms=BACKWARD_MS)
    assert advice.rows[0].communication_ns == ms(15 + 3 * 5)
    assert advice.rows[0].exposed_ns == ms(27 - 9)
    assert [(used.collective, used.ranks) for used in advice.curves] == [
        *(("all_gather", 2), ("reduce_scatter", 2), ("all_reduce", 2)),
    ]


def test_resharded_to_a_number():
    """On 4 ranks, to pairs: the second all_gather is of 2 ranks, and takes 12 ms."""
    pairs = curve(line(11), ranks=2, collective="all_gather", op=None)
    every = run(*both(4).results, *pairs.results, ranks=4)
    advice = torchcoll.advise([plan(2, 4)], every, backward_ms=BACKWARD_MS)
    assert advice.rows[0].communication_ns == ms(3 * 2 + 3 * 12 + 3 * 3)
    assert [used.ranks for used in advice.curves] == [4, 2, 4]


def test_memory():
    """Units of 1 MiB, 2 ranks. Kept of parameters and gradients: twice 3 halves. At the worst, in
    the backward pass of unit 2: its parameters and those of unit 1, its gradients, and what the
    reduce_scatter of unit 3 sends.
    """
    resharded = plan(True)
    assert (resharded.sharded_bytes, resharded.peak_bytes) == (3 * MIB, 4 * MIB)
    # All kept: 3 when the last is copied out, and the outputs of its all_gather and of the one
    # before.
    assert plan(False).peak_bytes == 5 * MIB
    # One unit: 3 of parameters and 3 of gradients, then 3 of these and 3 that are sent.
    assert plan(True, together=3).peak_bytes == 6 * MIB
    # In 16 bits all but what is kept is half as large.
    half = plan(True, param_dtype="bf16", reduce_dtype="bf16")
    assert (half.sharded_bytes, half.peak_bytes) == (3 * MIB, 2 * MIB)


def test_launches_give_an_interval():
    """Sums 15, 16.5 and 18 against 21, 23.1 and 25.2: each 1.4, so the interval is a point."""
    three = [both(gather=g, reduce=r, device="cpu") for g, r in ((1, 2), (1.2, 2.3), (1.4, 2.6))]
    advice = torchcoll.advise([plan(True), plan(False)], three, backward_ms=0)
    row = advice.rows[0]
    assert (row.ratio, row.ratio_low, row.ratio_high) == pytest.approx((1.4, 1.4, 1.4))
    assert (advice.runs, row.result) == (3, "worse")
    assert (row.exposed_low_ns, row.exposed_high_ns) == (ms(21), ms(25.2))


def test_the_least_memory_of_those_no_worse():
    """1 unit takes 6 MiB at its peak, 3 units 4 MiB and, at 1.5 % more time, are as good."""
    slow = both(gather=0.01, reduce=0.01, device="cpu")
    advice = torchcoll.advise([plan(False, together=3), plan(False)], slow, backward_ms=6)
    # 3.01 + 3.01 and 6 x 1.01, with passes of 9 ms: 15.02 and 15.06.
    assert advice.rows[1].ratio == pytest.approx(15.06 / 15.02)
    assert (advice.best.choice, advice.least.choice) == ("1 unit of 3, kept", "3 units, kept")


def test_what_a_plan_costs():
    """2 MiB and 1: between 1 and 4 MiB all_gather takes 3 ms, reduce_scatter 4."""
    costs = torchcoll.cost(plan(False, together=2), both())
    assert [(row.collective, row.size_bytes, row.calls, row.isolated_ns) for row in costs.rows] == [
        ("all_gather", 2 * MIB, 1, ms(3)),
        ("all_gather", MIB, 1, ms(2)),
        ("reduce_scatter", MIB, 1, ms(3)),
        ("reduce_scatter", 2 * MIB, 1, ms(4)),
    ]
    assert costs.rows[0].isolated_as == "between measured sizes, synchronized, float32"
    assert {(row.reason, row.contention_ns) for row in costs.rows} == {("", None)}
    assert costs.notes[-1] == "a plan: nothing ran. Its calls one after the other: 12.00 ms"
    # From all_reduce alone: 2 MiB take 3 ms, of nccl half of it for each.
    costs = torchcoll.cost(plan(False, together=3), curve(line(3), backend="nccl"))
    assert [row.isolated_ns for row in costs.rows] == [ms(3), ms(3)]
    assert costs.rows[0].isolated_as.startswith("assumption: half of all_reduce between measured")
    # Not on curves that are too short, nor on other ranks.
    costs = torchcoll.cost(plan(False), curve(sizes=(MIB // 4, MIB // 2)))
    assert {row.reason for row in costs.rows} == {"1M is above the sizes measured"}
    assert costs.notes[-1] == (
        "a plan: nothing ran, and the run has no time for any of its 6 calls (1M is above the "
        "sizes measured). torchcoll.run(plan.spec()) measures them"
    )
    costs = torchcoll.cost(plan(False), curve(ranks=4))
    assert {row.reason for row in costs.rows} == {
        "all_gather is not in the run", "reduce_scatter is not in the run"
    }  # fmt: skip


def test_beyond_the_curve():
    small = curve(line(3), sizes=(MIB // 4, MIB // 2))
    advice = torchcoll.advise([plan(False)], small, backward_ms=6)
    assert (advice.rows[0].result, advice.best) == ("beyond the curve", None)
    assert advice.notes[-1].endswith("Measure with -e 1M")


@pytest.mark.parametrize(
    ("curves", "how", "line"),
    [
        (
            lambda: curve(collective="broadcast"),
            {},
            error_text(
                "curve",
                "no case of all_gather, nor of all_reduce",
                "all_gather over sizes. Measure it: torchrun --nproc-per-node 2 -m "
                "torchcoll.allgather -b 64K -e 256M -J FILE.",
            ),
        ),
        (
            lambda: curve(ranks=4),
            {},
            error_text(
                "ranks of the curve",
                "4",
                "2, as all_gather has in the group shard. Measure it: torchrun "
                "--nproc-per-node 2 -m torchcoll.allreduce -b 64K -e 256M -J FILE.",
            ),
        ),
        (
            lambda: curve(sizes=(MIB,)),
            {},
            error_text(
                "curve of all_reduce",
                "1 size that its run has",
                "2 or more sizes. Measure it: torchrun --nproc-per-node 2 -m "
                "torchcoll.allreduce -b 64K -e 256M -J FILE.",
            ),
        ),
        (curve, {"caps_mb": [1]}, error_text("caps_mb", "[1]", "none with plans of FSDP2")),
        (curve, {"accumulate": 2}, error_text("accumulate", "2", "none with plans of FSDP2")),
    ],
)
def test_bad_input(curves, how, line):
    with pytest.raises(UsageError) as caught:
        torchcoll.advise(plan(True), curves(), **how)
    assert str(caught.value) == line


def test_plans_of_other_numbers_of_ranks():
    with pytest.raises(UsageError) as caught:
        torchcoll.advise([plan(True), plan(True, 4)], both())
    assert str(caught.value) == error_text("plans", "2 and 4 ranks", "plans of as many ranks")


def test_shown_as_traffic_too():
    file = io.StringIO()
    torchcoll.show(plan(False), format="csv", file=file)
    assert "reduce_scatter" in file.getvalue()

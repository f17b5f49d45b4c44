"""A baseline from good runs: its figures by hand, which runs enter it, and what it finds."""

import math
from dataclasses import replace

import numpy as np
import pytest
from made_fleet import made_fleet, made_summaries
from made_runs import make_runs

from torchcoll.core.case import Case
from torchcoll.core.errors import UsageError
from torchcoll.core.result import Verification
from torchcoll.parts.fleet.good_runs import (
    AS_USUAL,
    DOUBTED,
    SLOW,
    CannotJudge,
    GoodRun,
    GoodRuns,
    baseline_of,
    judge_new_run,
    limits_of,
    mean_over_cases,
    runs_missing,
)
from torchcoll.parts.fleet.learning import learn
from torchcoll.parts.fleet.noise import NoiseBaseline, SeriesNoise
from torchcoll.parts.fleet.records import CaseKey, summarise_run
from torchcoll.parts.fleet.series import SummariesBuilder


@pytest.mark.parametrize("sign", [1, -1])
def test_a_case_counts_with_at_most_3_spreads(sign):
    """Its deviation of 30 spreads is 3, and a third of it is the mean of three cases."""
    deviations, spreads = np.array([[0.0, 0.0, sign * 0.3]]), np.full(3, 0.01)
    assert mean_over_cases(deviations, spreads).tolist() == [pytest.approx(sign * 0.01)]


def key_of(size):
    case = Case("all_reduce", size, "float32", "sum", None, True, "synchronized", "nccl", "cuda")
    return CaseKey(case, 8, "median", "host")


def good_runs(log_times, nodes):
    """log_times: rows of runs; nodes: the name of each run's node."""
    table = np.array(log_times, dtype=float)
    runs = tuple(GoodRun(f"r{i}", node, i * 86_400_000_000) for i, node in enumerate(nodes))
    return GoodRuns("GPU", 8, runs, tuple(key_of(1 << c) for c in range(table.shape[1])), table)


def summaries_of_runs(runs):
    builder = SummariesBuilder()
    for run in runs:
        builder.add(*summarise_run(run))
    return builder.build()


def times_of(run):
    return {case.key: case.time_ns for case in summarise_run(run)[1]}


def test_series_of_equal_variance_share_their_degrees_of_freedom():
    """Four series of ten nights with variance 1: all 4 x 9 degrees belong to each."""
    ones = np.ones((4, 1))
    baseline = NoiseBaseline(9 * ones, 27 * ones, ones, ones[0], ones[0], np.full(4, 10))
    noise = SeriesNoise.of(baseline, correlation=0.0)
    assert noise.degrees.ravel().tolist() == pytest.approx([36] * 4)
    assert noise.scale.ravel().tolist() == pytest.approx([1] * 4)


@pytest.mark.parametrize(
    ("nodes", "missing"),
    [
        ("aaaaa", 0),
        ("aaa", 0),
        ("abcde", 0),
        ("abcd", 4),  # 4 nodes of which each may differ: 4 + 4 runs
        ("aabbccdd", 0),
        ("aab", 3),
        ("aaabbb", 0),
        ("aabcde", 0),
        ("", 3),
    ],
)
def test_how_many_runs_are_missing(nodes, missing):
    assert runs_missing(list(nodes)) == missing


def test_the_figures_of_five_runs_of_one_case_by_hand():
    """Five runs that deviate by -2, -1, 0, 1 and 2 %: the mean square with 4 degrees of freedom is
    (4 + 1 + 0 + 1 + 4) / 4 = 2.5. Neighbours may have a correlation of 0.5, so that two of five
    have (4 * 0.5 + 3 * 0.25 + 2 * 0.125 + 1 * 0.0625) / 10 = 0.30625 on average, which the runs
    do not show: the variance is 2.5 / 0.69375.
    """
    deviations = [[0.02], [-0.01], [0.0], [-0.02], [0.01]]
    baseline = baseline_of(good_runs(math.log(1e6) + np.array(deviations), ["a"] * 5))
    assert np.exp(baseline.levels) == pytest.approx([1e6])
    (spread,) = baseline.spreads
    assert spread == pytest.approx(math.sqrt(2.5 / 0.69375) / 100)
    assert baseline.run_spread == pytest.approx(spread)  # of one case its mean is the case
    assert (baseline.degrees, baseline.run_degrees) == ([4], 4)
    # 4.604 is the 99.5 % quantile of Student's t with 4 degrees of freedom in every table; its
    # standard deviation is the root of 2. The median of the five has 1.5 * (1 + 4 * 0.30625) / 5 =
    # 0.6675 of the variance of a run. 1 + 4.5 / 5 is for a spread of 4 degrees of freedom.
    limit = 4.604 / math.sqrt(2) * 1.9 * spread * math.sqrt(1.6675)
    limits = limits_of(baseline, "a")
    assert limits.run_limit == pytest.approx(limit, rel=1e-3)
    assert limits.case_limits.tolist() == pytest.approx([limit], rel=1e-3)
    # A slowdown is probable beyond the 97.5 % quantile, 2.776, and found 9 times in 10 from 1.2816
    # standard deviations more on.
    named = 2.776 * spread * math.sqrt(1.6675)
    assert limits.run_named == pytest.approx(named, rel=1e-3)
    found = limits.run_detectable - limits.run_named
    assert found == pytest.approx(1.2816 * spread * math.sqrt(1.6675), rel=1e-3)
    assert baseline.slowest == pytest.approx([0.02])
    # From 10 % on it finds a slow run, and people act on 5 %: so a usual time is no PASS.
    assert judge_new_run(baseline, "a", {key_of(1): 1e6}).state == DOUBTED


def test_each_node_has_its_own_usual_time_of_each_case():
    """Node b takes 10 % longer in the second of three cases."""
    steps = [0.0, 0.001, -0.001, 0.002, -0.002, 0.0]
    table = [[10 + s, 12 + s + 0.1 * (node == "b"), 9 - s] for node in "abc" for s in steps]
    baseline = baseline_of(good_runs(table, [node for node in "abc" for _ in steps]))
    assert baseline.by_node
    assert baseline.nodes == ("a", "b", "c")
    assert baseline.effects[:2] == pytest.approx(np.array([[0, 0, 0], [0, 0.1, 0]]))
    usual = {key_of(1): math.exp(10), key_of(2): math.exp(12.1), key_of(4): math.exp(9)}
    assert judge_new_run(baseline, "b", usual).state == AS_USUAL
    judged = judge_new_run(baseline, "a", usual)
    (slow,) = judged.cases_that_are(SLOW)
    assert slow.key == key_of(2)
    assert slow.effect == pytest.approx(0.1)
    assert not judged.slow_overall  # one case of three, clipped


def test_a_node_that_fewer_than_five_nodes_say_nothing_of():
    baseline = baseline_of(good_runs([[10.0], [10.1], [10.0], [9.9], [10.0]], ["a"] * 5))
    with pytest.raises(CannotJudge, match="good runs of a for a run of b"):
        limits_of(baseline, "b")
    with pytest.raises(CannotJudge, match="no case in common"):
        judge_new_run(baseline, "a", {key_of(1 << 30): 1e6})


def test_times_that_agree_to_the_digit_and_a_case_that_half_of_the_runs_lack():
    table = [[10.0, 11.0 if run % 2 else math.nan] for run in range(12)]
    baseline = baseline_of(good_runs(table, ["a"] * 12))
    judged = judge_new_run(baseline, "a", {key_of(1): math.exp(10.02), key_of(2): math.exp(11)})
    assert judged.limits.case_limits.tolist() == pytest.approx([math.log(1.01)] * 2)
    assert [case.key for case in judged.cases_that_are(SLOW)] == [key_of(1)]


def test_a_run_that_lacks_cases_has_wider_limits_and_says_so():
    runs = made_fleet(1, 30)
    (baseline,) = learn(summaries_of_runs(runs)).baselines
    new = times_of(made_fleet(1, 31)[-1])
    whole = judge_new_run(baseline, "node000", new)
    half = judge_new_run(baseline, "node000", dict(list(new.items())[:5]))
    assert (len(whole.cases), len(half.cases)) == (10, 5)
    assert half.limits.run_limit >= whole.limits.run_limit


def test_which_runs_are_left_out_and_why():
    runs = made_fleet(1, 20, times=lambda node, night, case: 1.2 if night == 7 else 1)
    runs[3].end = {"status": "interrupted", "exit_code": 1}
    runs[4].end = None
    runs[5].results[2] = replace(runs[5].results[2], verification=Verification(100, wrong=1))
    runs[6].results[0] = replace(runs[6].results[0], status="failed")
    selection = learn(summaries_of_runs(runs))
    *failed, slow = selection.left_out
    assert {item.run_id: item.reason for item in failed} == {
        "0003-0000": "the run was interrupted",
        "0004-0000": "the run did not end",
        "0005-0000": "wrong results in all_reduce 1M",
        "0006-0000": "failed in all_reduce 1K",
    }
    assert slow.run_id == "0007-0000"
    percent, _, text = slow.reason.partition(" ")
    assert float(percent) == pytest.approx(20, abs=1)  # noise 0.2 %
    assert text == "% slower than the other runs in all cases"
    (baseline,) = selection.baselines
    assert len(baseline.good.runs) == 15
    assert not {item.run_id for item in selection.left_out} & {
        run.run_id for run in baseline.good.runs
    }


def test_runs_of_other_tools_which_do_not_say_that_they_ended():
    source = {"tool": "nccl-tests", "version": "2.13"}
    runs = make_runs([1_000_000 + 1000 * i for i in range(6)], source=source)
    for run in runs:
        run.end = None
    (baseline,) = learn(summaries_of_runs(runs)).baselines
    assert len(baseline.good.runs) == 6


def test_a_run_that_is_slow_for_its_node_is_left_out():
    """Nodes differ by 5 %, so 4 % is slow for one of them only."""

    def times(node, night, case):
        return (1 + 0.05 * node) * (1.04 if (node, night) == (1, 4) else 1)

    selection = learn(summaries_of_runs(made_fleet(3, 8, times=times)))
    assert [item.run_id for item in selection.left_out] == ["0004-0001"]


def test_too_few_good_runs_is_an_error_that_says_how_many_are_missing():
    runs = made_fleet(1, 3)
    runs[2].end = None
    with pytest.raises(UsageError, match=r"2 good runs of Xeon, 2 ranks, 1 more needed") as info:
        learn(summaries_of_runs(runs))
    assert "the run did not end" in str(info.value)


def test_a_baseline_of_each_device_model_and_number_of_ranks():
    runs = made_fleet(1, 6)
    for index, run in enumerate(make_runs([1_000_000 + 100 * i for i in range(7)], ranks=4)):
        run.header["run_id"] = f"other{index}"
        runs.append(run)
    few = make_runs([1_000_000] * 2, device_name="Other")
    for index, run in enumerate(few):
        run.header["run_id"] = f"few{index}"
    selection = learn(summaries_of_runs([*runs, *few]))
    kinds = [(b.good.device_name, b.good.ranks, len(b.good.runs)) for b in selection.baselines]
    assert kinds == [("Xeon", 4, 7), ("Xeon", 2, 6)]
    assert selection.too_few == ("2 good runs of Other, 2 ranks, 1 more needed",)


def test_healthy_runs_pass_and_a_slow_run_and_a_slow_case_are_found():
    """30 baselines of 20 runs, 40 healthy runs by each; tests/benchmarks/baseline_error.py has
    more.
    """
    alarms = 0
    for seed in range(30):
        runs = list(made_summaries(1, 60, seed=seed))
        builder = SummariesBuilder()
        for run, cases in runs[:20]:
            builder.add(run, cases)
        (baseline,) = learn(builder.build()).baselines
        for _, cases in runs[20:]:
            times = {case.key: case.time_ns for case in cases}
            alarms += judge_new_run(baseline, "node000", times).state == SLOW
    assert alarms <= 12  # 1 % of 1,200
    judged = judge_new_run(baseline, "node000", {key: 1.05 * ns for key, ns in times.items()})
    assert judged.slow_overall
    assert judged.effect == pytest.approx(math.log(1.05), abs=0.01)
    worst = list(times)[3]
    judged = judge_new_run(baseline, "node000", {**times, worst: 1.2 * times[worst]})
    assert [case.key for case in judged.cases_that_are(SLOW)] == [worst]
    assert not judged.slow_overall

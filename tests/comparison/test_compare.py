"""Every result with its reason, and what enters a comparison."""

import re

import pytest
from error_form import error_text, got
from made_runs import given, in_turn, make_runs, measured, run

import torchcoll
from torchcoll.core.errors import UsageError
from torchcoll.core.result import Reported, Verification
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.comparison.conclusion_show import answer_of
from torchcoll.questions.comparison.show import comparison_grids

BASE = make_runs([100_000, 101_000, 99_000, 100_500, 99_500, 100_000])


@pytest.fixture(autouse=True)
def _screen(monkeypatch):
    """The answer below long tables alone, as users get it."""
    monkeypatch.setattr("torchcoll.report.grid._SCREEN", 15)


def results(base, new, **choices):
    if isinstance(base, list) and isinstance(new, list):
        base, new = in_turn(base, new)
    return [(row.result, row.reason) for row in compare(base, new, **choices).rows]


def times(factor):
    return make_runs(
        [round(factor * n) for n in (100_100, 101_000, 99_000, 100_600, 99_400, 99_900)]
    )


def test_faster_and_slower():
    assert results(BASE, times(1.05)) == [("slower", "p < 0.0001")]
    assert results(BASE, times(0.95)) == [("faster", "p < 0.0001")]


def test_of_bandwidth_more_is_faster():
    (row,) = compare(*in_turn(BASE, times(1.05)), metric="busbw").rows
    assert row.result == "slower"
    assert row.ratio == pytest.approx(1 / 1.05, rel=2e-3)
    # 1024 bytes in 100 us are 0.01024 GB/s, and two ranks have a bus factor of 1.
    assert row.base == pytest.approx(0.01024, rel=1e-3)
    assert compare(BASE, times(0.95), metric="algbw").rows[0].result == "faster"


def test_same_and_the_threshold():
    assert results(BASE, times(1)) == [("same", "90 % within 2 %")]
    assert results(BASE, times(1.05), threshold=0.1) == [("same", "90 % within 10 %")]


def test_unclear_says_how_many_launches_would_settle_it():
    noisy = make_runs([100_000, 110_000, 95_000])
    ((result, reason),) = results(noisy, make_runs([104_000, 113_000, 98_000]))
    # By hand: six runs, three parameters; the side in statsmodels' OLS has p 0.537.
    assert result == "inconclusive"
    # The spread of one run is 8.1 %. Of 30 runs a side the error is that times the root of
    # 2 / 30, 2.1 %, and 80 % at level 5 % takes 2.85 of it (noncentral t, 57 degrees): 6.1 %.
    text = re.fullmatch(r"p 0.54, 30 runs per side would show (.*) %", reason)
    assert text and float(text[1]) == pytest.approx(5.9, abs=0.3)


def test_near_the_threshold_it_may_take_any_number_of_launches():
    new = make_runs([round(1.0199 * n) for n in (100_000, 101_000, 99_000)])
    ((result, reason),) = results(make_runs([100_000, 101_000, 99_000]), new)
    # The spread of one run is 1 %, so that 30 runs would show an eighth of the 5.9 % above.
    assert (result, reason) == ("inconclusive", "p 0.08, 30 runs per side would show 0.74 %")


def test_one_launch_a_side():
    (row,) = compare(make_runs([100]), make_runs([150])).rows
    assert (row.result, row.reason) == ("inconclusive", "1 run a side")
    assert row.ratio == pytest.approx(1.5)
    assert row.judged.p_value is None
    assert results(make_runs([100]), times(1)) == [("inconclusive", "1 run in base")]
    assert results(times(1), make_runs([100])) == [("inconclusive", "1 run in new")]


def test_launches_that_are_copies():
    reason = "the runs of each side are equal: no spread to judge by"
    copies = make_runs([100] * 3), make_runs([150] * 3)
    assert results(*copies) == [("inconclusive", reason)]


def test_two_launches_a_side_are_not_judged():
    """2.9x slower at 1 % noise: with one degree of freedom it would be shown 4 times in 10."""
    base, new = in_turn(make_runs([100_000, 101_000]), make_runs([290_000, 293_000]))
    assert results(base, new) == [("inconclusive", "2 runs a side")]
    answer = answer_of(compare(base, new))
    assert answer.headline == "new looks 2.9x slower than base at 1K"
    assert answer.details == ("not proven: only 2 runs of each side; at least 3 are needed",)
    assert results(base, make_runs([290_000] * 3)) == [("inconclusive", "2 runs in base")]


def test_a_case_that_ran_twice_in_a_launch_is_one_launch():
    twice = run(measured(100), measured(121))
    (row,) = compare(twice, make_runs([110])).rows
    assert (row.reason, row.ratio) == ("1 run a side", pytest.approx(1.0))


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (run(measured(1, size_bytes=8)), "only in base"),
        (
            run(
                measured(100, status="wrong", verification=Verification(8, 3)),
                measured(1, size_bytes=8),
            ),
            "wrong in new: 3 of 8",
        ),
        (
            run(
                measured(100, status="oom", reason="too large", time_ns={}),
                measured(1, size_bytes=8),
            ),
            "oom in new: too large",
        ),
        (run(measured(100, time_ns={}), measured(1, size_bytes=8)), "no time in new"),
    ],
)
def test_incomparable(new, reason):
    base = run(measured(100), measured(100, size_bytes=8))
    found = compare(base, new)
    row = next(row for row in found.rows if row.pair.size_bytes == 1024)
    assert (row.result, row.reason, row.ratio) == ("not comparable", reason, None)


def test_one_rank_has_no_bandwidth():
    base, new = run(measured(100, ranks=1), ranks=1), run(measured(120, ranks=1), ranks=1)
    assert results(base, new, metric="busbw") == [("not comparable", "no busbw in base")]
    assert results(base, new) == [("inconclusive", "1 run a side")]


def test_a_case_with_a_wrong_launch_is_not_judged():
    wrong = [run(measured(10, status="wrong", verification=Verification(8, 3)))]
    (row,) = compare(*in_turn(BASE, times(1) + wrong)).rows
    assert (row.result, row.reason) == ("not comparable", "wrong in 1 of 7 runs of new")
    assert len(row.judged.new) == 6


def test_holm_is_over_the_cases():
    """A p of 0.016 alone is evidence; beside nine other cases it is none."""
    base = [{n: time for n in range(1, 11)} for time in (1000, 1010, 990)]
    new = [
        {n: time if n > 1 else round(1.04 * time) for n in range(1, 11)}
        for time in (1000, 1010, 990)
    ]
    sides = in_turn(make_runs(base), make_runs(new))
    alone = compare(*sides, filter="size=1").rows[0]
    # statsmodels 0.15.0: OLS(log of 1000, 1040, 1010, 1050, 990, 1030; [1, side, 0 to 5]).
    raw = 0.015525271451005017
    assert alone.judged.p_value == pytest.approx(raw, rel=0.01)  # there of one noise
    assert alone.result == "slower"
    concurrent = compare(*sides)
    assert concurrent.rows[0].judged.p_value == pytest.approx(10 * raw, rel=0.01)
    assert concurrent.tally == {"inconclusive": 10}


def test_the_worst_is_the_slowest_whatever_the_metric():
    base = make_runs([{8: 100, 64: 200, 512: 400}])
    new = make_runs([{8: 150, 64: 200, 512: 200}])
    for metric in ("time", "busbw"):
        ranked = compare(base, new, metric=metric).ranked
        assert [row.pair.size_bytes for row in ranked] == [8, 64, 512]


def test_a_case_without_a_size_has_no_name_in_the_answer():
    """A barrier, alone on both sides."""
    cold = {"cold_ns": [[3000, 1000]] * 2}
    base, new = (
        [
            run(measured(factor * n, collective="barrier", size_bytes=0, **cold))
            for n in (1000, 1010, 990)
        ]
        for factor in (1, 2)
    )
    text = answer_of(compare(*in_turn(base, new))).text
    assert re.fullmatch(r"new is 2.0x slower than base \(at least 1.9\dx, 3 runs each\)", text)


def test_a_mean_that_says_the_contrary_is_not_in_the_answer():
    """Two sizes are slower by 5 %; the third scatters around twice as fast, so that the geometric
    mean of the speed-ups is (2 / 1.05 ** 2) ** (1 / 3) = 1.22.
    """
    noise = (1000, 1001, 999, 1002, 998, 1000)
    far = (1000, 4000, 250, 3000, 333, 1000)
    base = [{8: n, 64: n, 512: 10 * f} for n, f in zip(noise, far, strict=True)]
    new = [{8: 1.05 * n, 64: 1.05 * n, 512: 5 * f} for n, f in zip(noise, far[::-1], strict=True)]
    found = compare(*in_turn(make_runs(base), make_runs(new)))
    assert [row.result for row in found.rows] == ["slower", "slower", "inconclusive"]
    text = answer_of(found).text
    assert text.startswith("new is 1.05x slower than base at 8 B and 64 B (at least ")
    assert text.endswith("; not decided: 512 2.0x faster")


def test_a_number_in_the_answer_has_its_name():
    """A root is a number, as a size is."""
    base, new = (
        [run(*(measured(ns, collective="broadcast", root=root) for root in (0, 1)))]
        for ns in (100, 150)
    )
    assert answer_of(compare(base, new)).text.startswith(
        "new looks 1.50x slower than base in both cases; not proven: only 1 run of each side"
    )
    (second,) = (run(measured(ns, collective="broadcast", root=1)) for ns in (200,))
    second.results[:0] = run(measured(100, collective="broadcast", root=0)).results
    answer = answer_of(compare(base, [second]))
    assert answer.headline.endswith("than base with root 1")
    assert answer.details[-1] == "1K root 0 is within 2 %"


def test_single_runs_say_what_looks_slower_and_what_faster():
    found = compare(
        make_runs([{8: 100, 64: 100, 512: 100}]), make_runs([{8: 101, 64: 103, 512: 98}])
    )
    answer = answer_of(found)
    assert answer.level == "doubt"
    assert answer.headline == "new is within 3 % of base at all sizes"
    assert answer.details == (
        "furthest: 64 1.03x slower",
        "not proven: only 1 run of each side; at least 3 are needed",
    )
    both = compare(make_runs([{8: 100, 64: 100, 512: 100}]), make_runs([{8: 99, 64: 130, 512: 80}]))
    assert answer_of(both).headline == (
        "Cannot tell whether new is slower than base (only 1 run of each side; at least 3 are "
        "needed)"
    )
    assert answer_of(both).details == (
        "new looks 1.30x slower than base at 64 B",
        "1.25x faster at 512 B",
        "8 is within 2 %",
    )
    far = compare(make_runs([{8: 100, 64: 100, 512: 100}]), make_runs([{8: 101, 64: 103, 512: 50}]))
    assert answer_of(far).headline == "new looks 2.0x faster than base at 512 B"
    assert answer_of(far).details[1] == "the other 2 cases are within 3 %"
    most = compare(make_runs([{8: 100, 64: 100, 512: 100}]), make_runs([{8: 90, 64: 103, 512: 50}]))
    assert answer_of(most).headline == "new looks 1.11x to 2.0x faster than base at 8 B and 512 B"


def test_sizes_that_another_tool_did_not_measure_come_after_what_it_did():
    source = {"tool": "nccl-tests", "version": "2.13"}
    base = run(*(given(100, size_bytes=size) for size in (8, 64, 512)), source=source)
    new = run(*(given(200, size_bytes=size) for size in (64, 512)), source=source)
    answer = answer_of(compare(base, new))
    assert answer.headline.startswith("new looks 2.0x slower than base in both cases")
    assert answer.details[-1] == "new lacks 1 of 3 cases (8)"


def test_means_are_compared_like_with_like():
    # Rank 0 takes 100, 100, 400 and rank 1 half of it: the mean over both is 150; the median of
    # the completions is 100.
    calls = {"host": [[100, 100, 400], [50, 50, 200]]}
    ours = run(measured(1, time_ns=calls))
    source = {"tool": "nccl-tests", "version": "2.13"}
    theirs = run(given(300, clock="host"), source=source)
    found = compare(ours, theirs)
    (row,) = found.rows
    assert (row.base, row.new) == (pytest.approx(150), pytest.approx(300))
    assert (row.result, row.reason) == ("inconclusive", "single means, 1 run a side")
    note = "some figures are means, and no single calls are known; samples are read as means too"
    assert note in found.notes
    assert found.reading == "mean over calls, mean over ranks"
    slowest = compare(ours, run(given(300, over_ranks="max"), source=source)).rows[0]
    assert slowest.base == pytest.approx(200)
    assert compare(ours, theirs, over_ranks="min").rows[0].base == pytest.approx(100)


def test_samples_beside_a_mean_of_their_own_source_are_read_as_means():
    both = measured(
        1, time_ns={"host": [[100, 100, 400]] * 2}, reported=Reported(7, "mean", "mean")
    )
    (row,) = compare(run(both), run(given(300, over_ranks="max"))).rows
    assert row.base == pytest.approx(200)


def test_published_figures_are_a_reference_and_never_evidence():
    table = [run(given(f * 100), source={"tool": "a published table"}) for f in (1, 1.01, 0.99)]
    ours = make_runs([200, 201, 199])
    (row,) = compare(table, ours).rows
    assert (row.result, row.reason) == ("inconclusive", "reference, a published figure")
    assert (row.judged.ratio.low, row.judged.p_value) == (None, None)
    assert row.ratio == pytest.approx(1.5, rel=2e-3)  # means over two ranks, as given


def test_launches_of_means_are_launches():
    sides = [
        [run(given(f * n), source={"tool": "osu"}) for n in (100, 101, 99, 100.5)] for f in (1, 1.1)
    ]
    assert [row.result for row in compare(*sides).rows] == ["slower"]


def test_rehearsals_do_not_mix_with_real_launches():
    rehearsals = make_runs([100], rehearse=True)
    with pytest.raises(UsageError, match=got(r"1 rehearsals \(--rehearse\) among 2 runs")):
        compare(rehearsals, make_runs([100]))
    event = make_runs([100], events=[{"kind": "rehearsal", "message": "one GPU"}])
    assert any("rehearsals" in note for note in compare(rehearsals, event).notes)


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({"metric": "gbps"}, error_text("metric", "gbps", "one of time, algbw, busbw")),
        ({"over_ranks": "p99"}, error_text("over-ranks", "p99", "one of max, mean, min, rank0")),
        ({"threshold": 0}, error_text("threshold", "0", "above 0 % and below 100 %")),
        ({"by": "weather"}, error_text("by", "weather", "one of collective, dtype, op, ")),
    ],
)
def test_choices_that_do_not_exist(choices, text):
    with pytest.raises(UsageError) as caught:
        compare(BASE, BASE[:1], **choices)
    assert str(caught.value).startswith(text)


def test_the_public_name_and_what_show_prints(capsys):
    found = torchcoll.compare(*in_turn(BASE, times(1.05)))
    assert found.tally == {"slower": 1}
    torchcoll.show(found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "new is 1.05x slower than base at 1K (at least 1.04x, 6 runs each)"
    # 1 / 1.05 is 0.952.
    assert lines[-1].split()[:6] == ["1K", "100.0", "us", "105.0", "us", "0.952"]


def test_without_samples_the_sources_say_what_a_figure_is():
    source = {"tool": "a published table"}
    sides = [run(given(ns, over_ranks="unknown"), source=source) for ns in (100, 150)]
    assert compare(*sides).reading == "mean over calls, as published"
    medians = run(given(100, statistic="median", over_ranks="max"), source=source)
    found = compare(sides[0], medians)
    assert found.reading == (
        "base: mean over calls, as published; new: median over calls, max over ranks"
    )
    # Samples on one side say nothing of the other's source.
    assert compare(sides[0], run(measured(100))).reading == (
        "base: mean over calls, as published; new: mean over calls, mean over ranks"
    )


def test_no_size_exceeds_the_best_of_its_side():
    """Of 100 and 400 us the geometric mean is 200 us: the one size is its side's best."""
    times_ns = [100_000, 400_000]
    comparison = compare(make_runs(times_ns), make_runs(times_ns, device_name="PVC"))
    cells = [cell for grid in comparison_grids(comparison) for row in grid.rows for cell in row]
    assert [cell for cell in cells if cell.endswith("%")] == ["100.0 %", "100.0 %"]


def test_the_identity_of_a_job_of_intel_mpi_is_no_difference():
    base, new = in_turn(make_runs([100_000] * 2), make_runs([100_000] * 2))
    for number, one in enumerate([*base, *new]):
        one.environment["variables"] = {"I_MPI_HYDRA_UUID": str(number), "I_MPI_FABRICS": "shm"}
    new[0].environment["variables"]["I_MPI_FABRICS"] = "ofi"
    names = [difference.name for difference in compare(base, new).differences]
    assert names == ["I_MPI_FABRICS"]


def test_the_speed_up_does_not_contradict_the_times_beside_it():
    base, new = in_turn(
        make_runs([200_000, 120_000, 90_000]), make_runs([190_000, 125_000, 70_000])
    )
    comparison = compare(base, new)
    (row,) = comparison.rows
    assert row.result == "inconclusive"
    assert row.speed == pytest.approx((200 * 120 * 90 / (190 * 125 * 70)) ** (1 / 3))
    low, high = row.interval
    assert low <= row.speed <= high
    below = [line for grid in comparison_grids(comparison) for line in grid.below]
    assert not any("drift" in line for line in below)
    assert "more runs would not help" not in answer_of(comparison).text


def test_a_speed_up_corrected_for_drift_says_so():
    base, new = in_turn(
        make_runs([100_000, 90_100, 81_000]), make_runs([190_000, 170_900, 154_000])
    )
    comparison = compare(base, new)
    (row,) = comparison.rows
    assert row.result == "slower"
    assert row.speed == pytest.approx(0.5, rel=0.01)  # the means give 0.526
    below = [line for grid in comparison_grids(comparison) for line in grid.below]
    assert "speed-up is corrected for the drift over the order of the runs" in below


def test_the_next_step_counts_the_cases_that_more_runs_do_not_decide():
    base = [{1024: 9_000, 2048: 100_000}, {1024: 90_000, 2048: 120_000}, {1024: 900, 2048: 90_000}]
    new = [{1024: 10_000, 2048: 90_000}, {1024: 1_000, 2048: 99_000}, {1024: 80_000, 2048: 125_000}]
    text = compare(*in_turn(make_runs(base), make_runs(new))).answer.text
    assert "more than 60 runs of each side are needed for 1 of 2 cases" in text


def test_sizes_that_are_slower_by_the_same_factor_are_one_range():
    """Single runs: 6 of 10 sizes, all from 128 B on, take 1.6 times as long."""
    sizes = [8 << n for n in range(10)]
    slow = {size: 160 if size >= 128 else 100 for size in sizes}
    answer = answer_of(compare(make_runs([dict.fromkeys(sizes, 100)]), make_runs([slow])))
    assert answer.headline == "new looks 1.60x slower than base from 128 B on"
    assert answer.details[1] == "the other 4 cases are within 2 %"

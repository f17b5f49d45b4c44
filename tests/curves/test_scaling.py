"""Curves over the number of ranks: what is in them, and what is told beside them."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from error_form import error_text
from handmade import Terminal
from made_runs import given, measured, run
from made_starts import MS, start

from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.parts.curves.scaling import scaling
from torchcoll.parts.curves.scaling_show import scaling_grids, show_scaling

RESULTS = Path(__file__).parents[2] / "results"

NOISE = (0.99, 1.01)


def launch(ranks, times, hosts=1, **changed):
    """A run with a case of each size -> ns; the first call takes thrice as long."""
    names = [f"node{n}" for n in range(hosts)]
    results = [measured(round(ns), ranks, size_bytes=n, ordinal=0) for n, ns in times.items()]
    return run(*results, ranks=ranks, hosts=names, **changed)


def found(runs, *sizes):
    return scaling(list(runs), sizes=sizes)


def grown(law, ranks=(2, 4, 8, 16), **changed):
    return [launch(n, {1024: law(n) * f}, **changed) for n in ranks for f in NOISE]


def test_a_curve_over_ranks():
    (curve,) = found(grown(lambda n: 2000 + 3000 * math.log2(n))).curves
    assert [point.ranks for point in curve.points] == [2, 4, 8, 16]
    two = curve.points[0]
    # 5000 ns, one run 1 % slower and one faster.
    assert two.time_ns == pytest.approx(5000, rel=1e-3)
    assert (two.low_ns, two.high_ns, two.runs, two.hosts) == (4950, 5050, 2, (1,))
    # 1024 B in 5 us, all_reduce on 2 ranks: a bus factor of 1, and 0.2048 of 0.5 GB/s.
    assert two.busbw_gbps == pytest.approx(0.2048, rel=1e-3)
    assert two.first_ns == pytest.approx(15_000, rel=1e-3)
    time, first = curve.fits
    assert (time.figure, time.subset, time.growth.result) == ("time", "", "log2 n")
    assert (first.figure, first.growth.result) == ("1st call of the case", "log2 n")
    assert time.growth.law.slope_ns == pytest.approx(3000, rel=0.02)
    assert first.growth.law.slope_ns == pytest.approx(9000, rel=0.02)


def test_a_spread_stands_behind_its_figure():
    """Times of 4950 and 5050 ns; the first calls take thrice as long."""
    (table, *_) = scaling_grids(found(grown(lambda n: 5000)))
    row = dict(zip([head.text for head in table.heads], table.rows[0], strict=True))
    assert list(row)[-5:] == ["runs", "time", "range over runs", "busbw GB/s", "first call"]
    assert row["range over runs"] == "4.95 us to 5.05 us"
    # Of a start, which has no time, it is that of the first call.
    starts = ((2, 2), (4, 2), (4, 4))
    runs = [start([n, 1, 1], m, phases={"communicator": [MS] * m}) for n, m in starts]
    table = scaling_grids(found(runs))[1]
    assert [head.text for head in table.heads][-2:] == ["time to first result", "range over runs"]
    assert table.rows[0][-1] == "3.00 ms to 5.00 ms"


def test_rows_are_whole_in_80_columns(monkeypatch):
    """No row is cut into several tables: what does not fit is left out, and named."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    runs = [*grown(lambda n: 2e9 + 3e8 * math.log2(n), ranks=(12, 96, 768), hosts=3)]
    show_scaling([found(runs)], file=out)
    lines = out.text().splitlines()
    assert max(map(len, lines)) <= 80
    heads = [line.split() for line in lines if line.strip().startswith("size ")]
    assert len(heads) == 2  # of the curves and of their growth
    assert heads[1][:4] == ["size", "figure", "ranks", "result"]
    (row,) = (line for line in lines if line.split()[:3] == ["1K", "time", "12"])
    # log2 12 is 3.585 and log2 768 is 9.585: 4.8755 s are 1.585 times 3.0755 s.
    assert row.split()[3:7] == ["to", "768", "grows", "1.585"]


def test_the_start_of_the_launch_is_a_curve_of_its_own():
    runs = [
        start([n, 1, 1], n, phases={"communicator": [MS * n] * n}) for n in (2, 4, 8) for _ in "ab"
    ]
    (curve,) = found(runs).starts
    assert [point.first_ns for point in curve.points] == [4 * MS, 8 * MS, 16 * MS]
    assert curve.points[0].time_ns is None
    assert [(fit.figure, fit.growth.result) for fit in curve.fits] == [
        ("time to first result", "n")
    ]


def test_one_rank_is_shown_and_in_no_fit():
    result = found(grown(lambda n: 1000 * n, (1, 2, 4)))
    (curve,) = result.curves
    assert [point.ranks for point in curve.points] == [1, 2, 4]
    assert curve.points[0].busbw_gbps is None
    assert curve.fits[0].growth.result == "too few points"
    assert "1 rank communicates nothing: it is in no fit" in result.notes


def test_one_host_and_several_are_fitted_apart():
    near = grown(lambda n: 1000 * n, (2, 4, 8))
    far = [
        launch(n, {1024: 90_000 * f}, hosts=n // 8) for n in (16, 32, 64) for f in (0.999, 1.001)
    ]
    result = found([*near, *far])
    (curve,) = result.curves
    fits = [(fit.subset, fit.growth.result) for fit in curve.fits if fit.figure == "time"]
    assert fits == [("one host", "n"), ("several hosts", "constant")]
    assert [point.hosts for point in curve.points][2:5] == [(1,), (2,), (4,)]
    assert "each part is fitted by itself" in result.notes[0]


def test_three_sizes_stand_for_all_and_others_can_be_asked_for():
    sizes = {n: 1000 for n in (8, 64, 512, 4096, 32768)}
    runs = [launch(n, sizes) for n in (2, 4)] + [launch(2, {4: 1000})]
    result = found(runs)
    # 4 bytes are measured on 2 ranks alone.
    assert [curve.size_bytes for curve in result.curves] == [8, 512, 32768]
    assert result.left_out == [4, 64, 4096]
    assert [curve.size_bytes for curve in found(runs, 4096, 64).curves] == [64, 4096]
    with pytest.raises(
        UsageError, match=error_text("sizes", "1K", "sizes that were measured: 4, 8,")
    ):
        found(runs, 1024)


def test_what_differs_beside_the_ranks_is_told():
    runs = [
        launch(n, {1024: 1000}, environment={"kernel": kernel}, labels={"nproc": str(n)})
        for n, kernel in ((2, "6.1"), (4, "6.8"))
    ]
    assert found(runs).curves[0].hidden == "kernel (6.1, 6.8)"
    note = "hidden: the runs of a curve are not alike in kernel (6.1, 6.8)"
    assert note in found(runs).notes
    assert found(grown(lambda n: 1000)).curves[0].hidden == ""


def test_forced_algorithms_are_curves_of_their_own():
    runs = [
        launch(n, {1024: 1000}, variables={"NCCL_ALGO": name})
        for n in (2, 4)
        for name in ("Ring", "Tree")
    ]
    assert [curve.kind["NCCL_ALGO"] for curve in found(runs).curves] == ["Ring", "Tree"]


def test_wrong_cases_are_a_caveat_of_the_answer():
    bad = launch(4, {1024: 1})
    bad.results[0].status = "wrong"
    answer = found([*grown(lambda n: 1000 * n), bad]).answer
    assert re.match(
        r"time grows [0-9.]+x from 2.00 us on 2 to [0-9.]+ us on \d+ ranks, like n$",
        answer.headline,
    )
    assert answer.details[-1] == "wrong results in 1 of 9 runs (1K)"
    assert (answer.level, answer.counts) == ("bad", {"wrong": 1})


def test_what_growth_would_have_been_found():
    """Two runs, 1 % apart from the mean, on each of four numbers of ranks: no growth over 10 % is
    missed. With a factor of 2 between them nothing is known.
    """
    answer = found(grown(lambda n: 1000)).answer
    assert re.fullmatch(
        r"time does not grow from 2 to 16 ranks \(a growth of 1\d % would have been found\)",
        answer.headline,
    )
    assert (answer.level, answer.certainty) == ("good", "certain")
    noisy = [launch(n, {1024: 1000 * f}) for n in (2, 4, 8, 16) for f in (0.5, 2)]
    answer = found(noisy).answer
    assert answer.headline.startswith("Cannot tell whether time grows from 2 to 16 ranks (")
    assert (answer.level, answer.next_step) == (
        "doubt",
        "make 8 runs on each number of ranks instead of 2",
    )
    assert answer.details[0] == "measured: 1.000x the time on 16 ranks as on 2"


def test_single_runs_whose_intervals_lie_above_1_are_no_growth_of_any_size():
    us = {4: (40.0, 29.8), 8: (50.4, 30.1), 16: (59.7, 30.3)}
    runs = [
        launch(n, {1024: small * 1e3, 1 << 30: large * 1e6}, hosts=n)
        for n, (small, large) in us.items()
    ]
    result = found(runs)
    assert result.answer.headline == (
        "Probably time of all_reduce 1K grows 1.49x from 40.0 us on 4 to 59.7 us on 16 ranks"
    )
    details = " ".join(result.answer.details)
    assert "any size" not in details and "1 run on each number of ranks does not prove" in details
    assert not [note for note in result.notes if "hosts" in note]
    for member in runs[2].members:
        member["host"] = f"b{member['host']}"
    assert any("not alike in hosts" in note for note in found(runs).notes)
    unlike = [launch(n, {1024: t}) for n, t in ((4, 50_000), (8, 40_000), (16, 65_000))]
    assert found(unlike).answer.headline.startswith("Cannot tell whether time grows")


def test_two_numbers_of_ranks_cannot_tell():
    answer = found(grown(lambda n: 1000, ranks=(2, 4))).answer
    assert answer.headline == (
        "Cannot tell whether the time grows with the ranks (measured on 2 and 4 ranks, and 3 "
        "numbers are needed)"
    )
    assert "--axis ranks=2,4,8" in answer.next_step


def test_figures_of_others_have_times_but_no_starts():
    runs = [run(given(1000 * n, n), ranks=n, source={"tool": "osu"}) for n in (2, 4, 8)]
    result = found(runs)
    assert ([p.time_ns for p in result.curves[0].points], result.starts) == (
        [2000, 4000, 8000],
        [],
    )
    assert [fit.figure for fit in result.curves[0].fits] == ["time"]


def test_nothing_to_show():
    osu = run(given(1000, 0), ranks=0, source={"tool": "osu"})
    with pytest.raises(
        UsageError,
        match=error_text(
            "cases", "no usable one among 1 case", ".* Left out: 1 without a number of r"
        ),
    ):
        found([osu])
    with pytest.raises(UsageError, match=error_text("cases", "no usable one among 1 case")):
        found([osu], 1024)


def impossible(ranks, ns=2000):
    """256 MiB in 2 us between two hosts, by links of 450 GB/s a rank."""
    case = measured(ns, ranks, size_bytes=1 << 28, device="cuda", backend="nccl", cold_ns=[])
    return run(case, ranks=ranks, labels={"link_gbps": "450"}, hosts=["a", "b"])


def test_what_is_not_possible_is_named():
    with pytest.raises(
        UsageError,
        match=r"2 implausible \(busbw beyond what the stated links carry between hosts\)",
    ):
        found([impossible(2), impossible(4)])
    result = found([launch(2, {1024: 1000}), launch(4, {1024: 1000}), impossible(8)])
    assert result.notes[0].startswith(
        "in no curve: 1 case implausible (busbw beyond what the stated links carry"
    )


def test_first_calls_of_a_job_are_those_of_its_first_launch():
    # The second run of each job finds it warm: its first call takes 1 ms.
    runs = [
        start([first, 1, 1], ranks, job=str(ranks), utc=f"0{place}")
        for ranks in (2, 4, 8)
        for place, first in enumerate((100 * ranks, 1))
    ]
    result = found(runs)
    assert [point.first_ns for point in result.curves[0].points] == [
        pytest.approx(100 * ranks * MS) for ranks in (2, 4, 8)
    ]
    assert [[point.first_ns for point in curve.points] for curve in result.starts] == [
        [200 * MS, 400 * MS, 800 * MS],
        [MS] * 3,
    ]
    assert [curve.fits[0].subset for curve in result.starts] == [
        "run 1 of each job",
        "run 2 of each job",
    ]
    # One table, with the two runs of a job beside each other.
    assert scaling_grids(result)[1].rows == [
        ["2", "200.0 ms", "1.000 ms"],
        ["4", "400.0 ms", "1.000 ms"],
        ["8", "800.0 ms", "1.000 ms"],
    ]
    assert result.notes == [
        "3 of 6 runs came later in a job: their first calls are not in this table; `torchcoll "
        "cold` shows them"
    ]


def test_the_answer_says_what_its_curves_differ_in():
    """The second run of each job takes half as long, and grows alike; the sizes do too."""
    runs = [
        start([first * f, 1, 1], ranks, 1000, job=f"{ranks} {f}", utc=f"0{place}")
        for ranks in (2, 4, 8)
        for f in NOISE
        for place, first in enumerate((100 * ranks, 50 * ranks))
    ]
    started = replace(found(runs), curves=[])
    assert started.answer.headline.endswith(", like n in runs 1 and 2 of each job")
    sizes = [launch(n, {1024: 1000 * n * f, 2048: 2000 * n * f}) for n in (2, 4, 8) for f in NOISE]
    assert found(sizes).answer.headline.endswith(" on 8 ranks, like n at both sizes")


def test_growth_in_one_step_is_as_measured_with_its_step():
    """A law through a step would grow otherwise than its times: 434 us are 6.68 times 65 us."""
    times = {2: 65, 4: 95, 8: 115, 16: 358, 32: 393, 64: 434}
    result = found([launch(n, {1024: 1000 * us}) for n, us in times.items()])
    assert result.answer.headline == (
        "time grows 6.7x from 65.0 us on 2 to 434 us on 64 ranks, of which 3.1x from 8 to 16"
    )
    (row, *_) = scaling_grids(result)[-2].rows
    assert "6.677 (measured)" in row


def test_unlike_machines_are_in_no_common_curve():
    """16 ranks of two vendors are not one point of a curve, and no growth is judged over them."""
    runs = [
        launch(8, {1024: 9000}, device_name="NVIDIA GB200"),
        launch(16, {1024: 5780}, device_name="NVIDIA GB200"),
    ]
    runs += [
        launch(16, {1024: 12800}, device_name="AMD Instinct MI308X"),
        launch(4, {1024: 8000}, device_name=""),
    ]
    result = found(runs)
    assert [(p.ranks, p.runs) for curve in result.curves for p in curve.points] == [
        (8, 1),
        (16, 1),
        (16, 1),
        (4, 1),
    ]
    assert result.answer.text == (
        "Cannot tell whether the time grows with the ranks: the 4 runs are of unlike machines "
        "(NVIDIA GB200, AMD Instinct MI308X, others that are not recorded), which have no curve "
        "in common. Next: give the files of one machine"
    )


def test_runs_that_share_a_device_are_one_machine():
    """A second host adds another CPU: the sweep is still one curve."""
    (curve,) = found(
        [
            launch(2, {1024: 9000}, device_name="EPYC"),
            launch(4, {1024: 9500}, device_name="EPYC, Xeon"),
        ]
    ).curves
    assert [point.ranks for point in curve.points] == [2, 4]


def test_first_calls_alone_are_no_model(capsys):
    folder = RESULTS / "oneccl-cold-scaling"
    assert main(["model", "fit", str(folder)]) == 3
    assert capsys.readouterr().err.endswith(
        "cases: got no usable one among 140 cases, expected right ones with ranks, a size and a "
        "steady time. Left out: 140 of first calls alone.\n"
    )


def test_impossible_figures_are_refused_with_one_reason_and_what_to_check():
    with pytest.raises(UsageError) as refused:
        scaling(RESULTS / "a100-8gpu-baseline")
    text = str(refused.value)
    assert "Left out: 15 implausible (8 sizes follow 3.3 us" in text and text.count("follow") == 1
    assert "Check that all ranks took part" in text


def test_one_number_of_ranks_has_no_table(capsys):
    assert main(["scaling", str(RESULTS / "h200-8gpu-kernels")]) == 0
    answer, step = capsys.readouterr().out.splitlines()[:2]
    assert answer.startswith("Cannot tell whether the time grows with the ranks (measured on 8")
    assert step.startswith("Next: torchcoll matrix --axis ranks=2,4,8")


@pytest.mark.parametrize(
    ("times", "answer"),
    [
        (
            {2: [565], 3: [1584], 4: [6639]},
            "Cannot tell whether the time grows with the ranks: 3 ranks share 2 cores, 4 ranks "
            "share 2 cores",
        ),
        (
            {2: [995, 1005], 3: [1492, 1508], 4: [1990, 2010], 8: [3990, 4010]},
            "time grows 4.0x from 1.00 ms on 2 to 4.00 ms on 8 ranks, like n; 3 ranks share 2 "
            "cores, 4 ranks share 2 cores and 1 more",
        ),
    ],
)
def test_ranks_that_share_cores_are_in_the_first_sentence(times, answer):
    runs = [launch(n, {1024: us * 1000}) for n, all_us in times.items() for us in all_us]
    for each in runs:
        for member in each.members:
            member["affinity"] = "0-1"
    result = found(runs).answer
    assert result.headline == answer
    assert result.next_step.startswith("measure with a core for each rank")

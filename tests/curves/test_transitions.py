"""Transitions of runs: what is pooled, what the log says beside it, and the command."""

import dataclasses
import json
from pathlib import Path

import numpy
import pytest
from error_form import error_text
from made_runs import given, make_runs, measured, run

import torchcoll
from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.file import save
from torchcoll.core.result import Choice
from torchcoll.parts.curves.transitions import Transitions, transitions
from torchcoll.parts.curves.transitions_show import show_transitions, transition_records

SIZES = [1024 * 2**k for k in range(16)]
# 20 us + S / 100 GB/s up to 256K, then 60 us + S / 200 GB/s.
TIMES = {s: round(20_000 + s / 100) if s <= 1 << 18 else round(60_000 + s / 200) for s in SIZES}


def runs(count=1, **labels):
    found = make_runs([TIMES] * count)
    for one in found:
        one.header.setdefault("spec", {})["labels"] = labels
    return found


def named(run, change_at):
    for result in run.results:
        label = ("RING", "LL") if result.size_bytes <= change_at else ("RING", "SIMPLE")
        result.choices = [Choice(*label, channels=4)]
    return run


def found(*all_runs):
    return transitions(list(all_runs)).curves


def all_of(*curves):
    return Transitions([], list(curves))


def test_launches_are_pooled():
    (one,) = found(*runs(3))
    assert {point.runs for point in one.points} == {3}
    (change,) = one.transitions
    assert (change.low_bytes, change.high_bytes) == (1 << 18, 1 << 19)
    assert change.kind == "cliff"
    assert change.agreement == ""


def test_forced_cells_are_curves_of_their_own():
    ring, tree = runs(cell="ring"), runs(cell="tree")
    assert [one.common["cell"] for one in found(*ring, *tree)] == ["ring", "tree"]


def test_the_log_agrees():
    (one,) = found(named(*runs(), 1 << 18))
    (change,) = one.transitions
    assert (change.handover.before, change.handover.after) == ("RING/LL", "RING/SIMPLE")
    assert change.agreement == "the log agrees"
    assert transition_records(one)[0]["before"] == "RING/LL"


def test_the_log_names_a_change_elsewhere(capsys):
    (one,) = found(named(*runs(), 1 << 22))
    (change,) = one.transitions
    assert change.handover is None
    show_transitions([all_of(one)])
    text = capsys.readouterr().out
    assert "256K to 512K: jumps 2.6x" in text and "512K: the log names no change" in text
    assert "the log: RING/LL to RING/SIMPLE between 4M and 8M; the times show no change" in text


def test_launches_that_disagree_in_their_sizes(capsys):
    more = {s: TIMES[s] for s in SIZES[4:]}
    show_transitions([all_of(*found(*make_runs([TIMES, more])))])
    text = capsys.readouterr().out
    assert "the runs disagree in their sizes (1 from 1K, 2 from 16K): a step there may" in text


def test_what_was_varied_on_purpose_makes_curves_of_its_own():
    found_of_both = transitions([*runs(kernel="generic"), *runs(kernel="nvidia")])
    assert [one.common["label=kernel"] for one in found_of_both.curves] == ["generic", "nvidia"]
    assert found_of_both.notes == []


def test_unlike_machines_are_curves_of_their_own(capsys):
    """Both change twice; the second machine is half as fast. Their median would be of neither."""
    slow = {size: 2 * time for size, time in TIMES.items()}
    one = make_runs([TIMES], device_name="NVIDIA A100-SXM4-40GB")
    other = make_runs([slow], device_name="NVIDIA GH200 120GB")
    curves = found(*one, *other)
    assert [curve.points[0].time_ns for curve in curves] == [TIMES[1024], slow[1024]]
    show_transitions([all_of(*curves)])
    answer = capsys.readouterr().out.splitlines()[0]
    assert answer.startswith("NVIDIA A100-SXM4-40GB: time jumps up by 2.6x at once between")


def test_many_curves_that_only_bend_are_counted(capsys):
    """From 256K on four times the bandwidth, without a jump."""
    bend = {n: round(20_000 + min(n, 1 << 18) / 100 + max(0, n - (1 << 18)) / 400) for n in SIZES}
    curves = [curve for name in "ab" for curve in found(*make_runs([bend], labels={"k": name}))]
    show_transitions([all_of(*curves)])
    expected = "the slope changes without a jump between 128K and 512K in 2 of 2 curves\n"
    assert capsys.readouterr().out.startswith(expected)


def test_a_leap_of_the_time_leads_the_answer_of_curves_that_change_there(capsys):
    """A public run of 16 MI308X under RCCL, in us by size, out of place and in place (with its
    outlier at 1M): 8M takes 229.6 us where 4M takes 94.9, and 231.2 where 4M takes 93.6.
    """
    out_of_place = "40.9 43.4 45.4 46.0 46.5 47.8 50.3 55.8 64.2 78.7 70.2 81.9 94.9 229.6 335.9"
    in_place = "39.9 43.7 44.3 44.6 45.5 47.2 50.1 51.9 62.2 81.8 136.2 80.7 93.6 231.2 338.3"
    end = "431.3 673.5 1509.4 1748.4 3027.1 6397.1 12816"
    curves = []
    for texts in (out_of_place, in_place):
        times_us = map(float, f"{texts} {end}".split())
        times = {1024 << k: round(1000 * us) for k, us in enumerate(times_us)}
        curves += found(*make_runs([times]))
    show_transitions([all_of(*curves)])
    answer = capsys.readouterr().out
    assert answer.startswith("8M takes 2.4x to 2.5x the time of 4M in 2 of 2 curves; ")
    assert answer.count("4M to 8M: 2.4x the time") + answer.count("4M to 8M: 2.5x the time") == 2


def test_a_configuration_of_communicators_makes_curves_of_its_own():
    """A file that records none, as from gloo or an earlier version, has the default."""
    unrecorded, default, zero = runs(3)
    for one, config in ((default, "default"), (zero, "cta_policy=zero")):
        one.header["environment"] = one.environment | {"communicator_config": config}
    result = transitions([unrecorded, default, zero])
    curves = [(c.common["communicator_config"], c.points[0].runs) for c in result.curves]
    assert curves == [("default", 2), ("cta_policy=zero", 1)]
    assert result.notes == []
    (curve,) = transitions([unrecorded, default]).curves
    assert "communicator_config" not in curve.common


def test_what_pooled_launches_differ_in_is_said(capsys):
    first, second = runs(2)
    second.header["environment"] = first.header["environment"] | {"torch": "2.15.0"}
    torchcoll.show(transitions([first, second]))
    assert "hidden: the runs are not alike in torch" in capsys.readouterr().out


def test_show_prints_them(capsys):
    torchcoll.show(transitions(runs()), transitions(runs()))
    text = capsys.readouterr().out
    assert text.count("  256K to 512K: jumps 2.6x") == 2
    assert text.count("1K to 256K") == 2


def test_of_very_many_sizes_some_are_taken(capsys):
    # 2001 sizes: each third of them.
    (one,) = found(*make_runs([{64 * k: 20_000 + 64 * k // 100 for k in range(1, 2002)}]))
    assert (len(one.points), one.sizes, len(one.curve.ranges)) == (667, 2001, 1)
    assert one.points[1].size_bytes == 4 * 64
    show_transitions([all_of(one)])
    assert "667 of 2001 sizes (more are too many), 1 run" in capsys.readouterr().out


def test_sizes_that_narrow_a_transition():
    (one,) = found(*runs())
    assert all(1 << 18 < size < 1 << 19 for size in one.refining)
    assert len(one.refining) == 6


# The sweep of a plain run. From 8M on, 3 of these 13 sizes, it takes 1.3 times as long.
TIMES_OF_ONE_LAW = {8 * 4**k: round(25_000 + 8 * 4**k / 60) for k in range(13)}
FROM_8M = {s: round(t * (1 if s < 1 << 23 else 1.3)) for s, t in TIMES_OF_ONE_LAW.items()}


def test_a_change_near_the_end_is_told_without_law_and_jump(capsys):
    (one,) = found(*make_runs([FROM_8M]))
    show_transitions([all_of(one)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("8 to ")] == [["8", "to", "2M"]]
    assert lines[0].startswith("latency 25.0 us, algbw 60.0 GB/s from 8 B to 2M; the law changes ")
    assert any(line.endswith("  2M to 8M: changes") for line in lines)
    assert not any("no change" in line for line in lines)
    (record,) = transition_records(one)
    stated = ("kind", "low_bytes", "high_bytes", "jump", "after_latency_ns", "after_algbw_gbps")
    assert [record[name] for name in stated] == ["inconclusive", 1 << 21, 1 << 23, None, None, None]
    assert record["before_latency_ns"] == pytest.approx(25_000, rel=1e-4)


def test_a_change_near_the_beginning(capsys):
    times = {s: round(t / (1.3 if s < 512 else 1)) for s, t in TIMES_OF_ONE_LAW.items()}
    (one,) = found(*make_runs([times]))
    show_transitions([all_of(one)])
    text = capsys.readouterr().out
    assert "  128 B to 512 B: changes\n" in text
    # Below 128, down to a quarter of it would be 32: the sweep begins at 8, so 8 x 2, 8 x 8.
    # Between: 128 x 4^(k / 7) in steps of 4: 156, 190.2, 231.9, 282.7, 344.6, 420.
    assert text.replace("\n  ", " ").startswith(
        "latency 25.0 us, algbw 60.0 GB/s from 512 B on; the law changes between 128 B and 512 B, "
        "with too few sizes there to fit it\n"
        "Next: measure these sizes too: --sizes 16,64,156,192,232,284,344,420\n"
    )
    assert transition_records(one)[0]["before_latency_ns"] is None


def test_sizes_that_settle_a_change_near_the_end():
    (one,) = found(*make_runs([FROM_8M]))
    # Six between 2M and 8M; from 8M to 128M at even ratios 16M, 32M, 64M, 128M, two of them new.
    assert [s for s in one.refining if s > 1 << 23] == [1 << 24, 1 << 26]
    assert len([s for s in one.refining if 1 << 21 < s < 1 << 23]) == 6
    more = {s: round((25_000 + s / 60) * (1 if s < 1 << 23 else 1.3)) for s in one.refining}
    (again,) = found(*make_runs([FROM_8M | more]))
    (change,) = again.transitions
    assert change.high_bytes == 1 << 23
    assert change.low_bytes == max(s for s in more if s < 1 << 23)
    assert (change.kind, change.jump) == ("cliff", pytest.approx(1.3, rel=1e-3))


def test_sizes_beyond_the_last_one():
    # The last size alone is slow; its transition ends the sweep: up to four times 128M, at ratios
    # of the root of 2, in steps of 256 bytes.
    times = {s: t * (2 if s == 1 << 27 else 1) for s, t in TIMES_OF_ONE_LAW.items()}
    (one,) = found(*make_runs([times]))
    root = round(2**0.5 * (1 << 19)) * 256
    assert [s for s in one.refining if s > 1 << 27] == [root, 1 << 28, 2 * root, 1 << 29]


def test_two_changes_with_too_few_sizes_between(capsys):
    # Twice the time at 64K and 128K, three times from 256K on.
    factors = [1] * 6 + [2, 2] + [3] * 8
    times = {s: f * (20_000 + s // 100) for s, f in zip(SIZES, factors, strict=True)}
    (one,) = found(*make_runs([times]))
    show_transitions([all_of(one)])
    text = capsys.readouterr().out
    assert "  32K to 64K: changes; 128K to 256K: changes\n" in text
    # Between 64K and 128K at ratios of the fourth root of 2, in steps of 256 bytes.
    steps = [round(256 * 2 ** (k / 4)) * 256 for k in (1, 2, 3)]
    assert [s for s in one.refining if 1 << 16 < s < 1 << 17] == steps


def test_a_change_with_too_few_sizes_on_either_side(capsys):
    times = [20_000, 22_000, 26_400, 39_600, 47_500, 47_500, 47_500, 47_500]
    show_transitions([all_of(*found(*make_runs([dict(zip(SIZES, times, strict=False))])))])
    text = capsys.readouterr().out
    assert "  4K to 32K: changes\n" in text
    assert "\n     1 " not in text  # no law


def test_wrong_and_failed_cases_are_left_out():
    (run,) = runs()
    run.results = [dataclasses.replace(r, status="wrong") for r in run.results]
    with pytest.raises(UsageError, match="none with a time and a size"):
        found(run)


@pytest.mark.parametrize("format", ["table", "markdown", "csv", "json"])
def test_command(tmp_path, capsys, format):
    save(runs()[0], tmp_path / "a.jsonl")
    assert main(["curve", str(tmp_path), "--format", format]) == 0
    text = capsys.readouterr().out
    if format == "json":
        data = json.loads(text)
        assert [(r["low_bytes"], r["high_bytes"]) for r in data["rows"]] == [(262144, 524288)]
        assert data["curves"][0]["ranges"][0]["latency_ns"] == pytest.approx(20_000, rel=1e-3)
    elif format == "csv":
        head, *lines = text.splitlines()
        rows = [dict(zip(head.split(","), line.split(","), strict=True)) for line in lines]
        assert [row["row"] for row in rows] == ["range", "range", "transition"]
        assert [row["low_bytes"] for row in rows] == ["1024", "524288", "262144"]
        assert float(rows[0]["latency_ns"]) == pytest.approx(20_000, rel=1e-3)
    else:
        assert "between 256K and 512K" in text


def test_too_few_sizes_and_noise_are_said(capsys):
    few = make_runs([{s: TIMES[s] for s in SIZES[:5]}])
    show_transitions([all_of(*found(*few))])
    assert capsys.readouterr().out.startswith(
        "Cannot tell whether the behaviour changes (too few sizes to find a boundary: 5, and 4 on "
        "each side are needed; "
    )
    # Every other size four times as slow, in the second run the others: noise.
    first, second = (
        {s: TIMES[s] * (1 + 3 * ((k // 2 + turn) % 2)) for k, s in enumerate(SIZES)}
        for turn in (0, 1)
    )
    third = {s: TIMES[s] * (1 + 3 * (k % 3 == 1)) for k, s in enumerate(SIZES)}
    text = shown(capsys, *make_runs([first, second, third]))
    assert text.startswith("Cannot tell whether the behaviour changes (too noisy: times scatter by")
    # The same sizes in every run: no noise. Of one run nobody knows.
    text = shown(capsys, *make_runs([first, first, first]))
    assert "noisy" not in text and "repeat" not in text and "no change" not in text
    assert "x the fitted time (runs of one size scatter by 0.0 %)" in text
    text = shown(capsys, *make_runs([first]))
    assert "noisy" not in text
    assert "one run cannot tell noise from what each size takes: repeat it" in text


def test_calls_of_one_launch_may_show_that_it_is_noise(capsys):
    # Calls from a quarter to four times the median, and every other size four times as slow.
    def wild(ns, size_bytes):
        return measured(ns, size_bytes=size_bytes, time_ns={"host": [[ns // 4, ns, 4 * ns]] * 2})

    wide = run(*(wild(TIMES[s] * (1 + 3 * (k % 2)), s) for k, s in enumerate(SIZES)))
    text = shown(capsys, wide)
    assert "too noisy: times scatter by" in text
    assert "and calls of one size as much; repeat the runs" in text


def shown(capsys, *runs):
    show_transitions([all_of(*found(*runs))])
    return capsys.readouterr().out


# 40 us + S / 140 GB/s at nine sizes from 1M.
LAW = {1 << k: round(40_000 + (1 << k) / 140) for k in range(20, 29)}


@pytest.mark.parametrize("factor", [2, 3])
def test_a_slow_size_of_nine_is_named_and_no_noise(capsys, factor):
    text = shown(capsys, *make_runs([LAW | {1 << 24: factor * LAW[1 << 24]}]))
    assert f"16M takes {factor}.0x the fitted time" in text
    assert f"16M {factor}.0x slow" in text and "; no change of behaviour: " in text
    assert "nois" not in text


def test_at_an_end_another_law_may_begin(capsys):
    text = shown(capsys, *make_runs([LAW | {1 << 28: 2 * LAW[1 << 28]}]))
    assert "from 1M to 128M; no change" in text and "  256M 2.0x slow\n" in text


# The published hypercube and sendrecv of eight H200, us: neither follows one law.
QUARTERS = [1 << k for k in range(20, 36, 2)]
HYPERCUBE = (177.5, 220.3, 101.8, 275.8, 1046.2, 4135.4, 15850.9, 62739.5)
SENDRECV = (97.9, 65.7, 130.0, 477.9, 749.8, 2950.2, 11736.8, 46861.4)


def published(times_us, name):
    return run(
        *(
            given(1000 * us, 8, size_bytes=n, collective=name, op=None)
            for n, us in zip(QUARTERS, times_us, strict=True)
        ),
        source={"tool": "nccl-tests"},
        ranks=8,
    )


def test_one_law_that_does_not_fit_is_neither_noise_nor_one_range(capsys):
    text = shown(capsys, published(SENDRECV, "sendrecv"))
    assert "time falls at 4M" in text
    assert (
        "one law does not fit: 64M takes 1.85x the fitted time; too few sizes to say more" in text
    )
    assert "(1 run: whether that is noise is not known)" in text
    assert "repeat" not in text and "no change" not in text
    # The largest of the deviations stands beside its size.
    assert "85.2 % at 64M" in text


# Published by dstack: two hosts of eight H100, all_reduce from 8 bytes to 2G, us.
TWO_HOSTS = (36.5, 35.55, 35.49, 35.85, 37.36, 37.38, 51.05, 45.33, 38.67, 40.08, 42.13, 43.66)
TWO_HOSTS += (45.42, 44.59, 47.44, 66.68, 240.71, 115.58, 114.44, 118.25, 141.39, 186.86, 255.79)
TWO_HOSTS += (350.41, 596.75, 934.67, 1625.63, 2972.25, 5784.75)


def test_a_slow_size_inside_a_transition_is_in_no_law(capsys):
    times = {8 << k: round(1000 * us) for k, us in enumerate(TWO_HOSTS)}
    (one,) = found(*make_runs([times]))
    assert list(one.curve.slow_sizes) == [16]  # 512K
    assert [(r.first, r.last) for r in one.curve.ranges] == [(0, 15), (17, 28)]
    show_transitions([all_of(one)])
    # The law from 1M on: about 117 us + S / 341.
    assert "  512K 2.0x slow; " in capsys.readouterr().out


def test_a_law_that_does_not_fit_is_said_beside_a_change_too(capsys):
    # Two pairs of slow sizes are no stretch and no slow sizes; from 32M on there is another law.
    times = {s: round(20_000 + s / 100) for s in (1024 * 2**k for k in range(20))}
    times |= {s: 6 * ns for s, ns in times.items() if s >= 1 << 25}
    times |= {s: round(1.5 * times[s]) for s in (1 << 13, 1 << 14, 1 << 16, 1 << 17)}
    text = shown(capsys, *make_runs([times] * 2))
    assert "time jumps up by 6.3x at once between 8M and 32M" in text
    assert "the law of range 1 does not fit: 128K takes 1.3" in text


def test_a_line_that_meets_zero_at_a_size_has_no_latency(capsys):
    # 30 us + S / 4 up to 256K, then a byte a nanosecond: 95.5 us at 256K - 262.1 us + S.
    sizes = [1 << k for k in range(10, 27)]
    times = {s: 30_000 + s // 4 if s <= 1 << 18 else s - 166_608 for s in sizes}
    (one,) = found(*make_runs([times]))
    show_transitions([all_of(one)])
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if " 64M " in line]
    assert row[row.index("64M") + 1 :][:2] == ["-", "1.000"]
    (record,) = transition_records(one)
    assert record["after_latency_ns"] == pytest.approx(-166_608, rel=1e-6)


def test_a_law_after_two_sizes_that_have_none(capsys):
    text = shown(capsys, published(HYPERCUBE, "hypercube"))
    assert "  4M to 16M: changes; time falls at 16M\n" in text
    assert "repeat" not in text and "no change" not in text


def test_launches_that_agree_say_that_it_is_no_noise(capsys):
    sizes = dict(zip(QUARTERS, (round(1000 * us) for us in SENDRECV), strict=True))
    text = shown(capsys, *make_runs([sizes, {n: round(1.3 * ns) for n, ns in sizes.items()}]))
    assert "too few sizes to say more (runs of one size scatter by 0.0 %)" in text


# 20 us + S / 5 GB/s at 17 sizes from 1K; of each run 2 % noise, always the same.
MANY = [1 << k for k in range(10, 27)]


def noisy_launches(count, slow):
    random = numpy.random.default_rng(3)
    times = [
        {n: round((20_000 + n / 5) * numpy.exp(0.02 * random.standard_normal())) for n in MANY}
        for _ in range(count)
    ]
    times[1][1 << 20] = round(times[1][1 << 20] * slow)
    return make_runs(times)


@pytest.mark.parametrize("slow", [3, 8, 20])
def test_one_launch_that_was_slow_once_of_three_is_no_change(capsys, slow):
    text = shown(capsys, *noisy_launches(3, slow))
    assert "17 sizes, 3 runs (their median), " in text
    assert "; no change of behaviour: " in text
    assert " changes between " not in text and "slow size" not in text and "disagree" not in text


@pytest.mark.parametrize("slow", [3, 8, 20])
def test_of_two_launches_none_is_right_where_they_disagree(capsys, slow):
    (one,) = found(*noisy_launches(2, slow))
    assert (one.transitions, one.falls, len(one.curve.ranges)) == ([], [], 1)
    assert one.curve.ranges[0].bandwidth_gbps == pytest.approx(5, rel=0.02)
    show_transitions([all_of(one)])
    text = capsys.readouterr().out
    assert "runs disagree at 1M: repeat them; in the fit it weighs little" in text
    assert "; no change of behaviour: " in text


def test_hypercubes_algbw_is_that_of_nccl_tests(capsys):
    """It counts (n - 1) / n of the size: 100 GB/s of size / time are 87.5 on 8 ranks."""
    exact = [(20_000 + n / 100) / 1000 for n in QUARTERS]
    (one,) = found(published(exact, "hypercube"))
    assert one.algbw_gbps(one.curve.ranges[0]) == pytest.approx(87.5)
    (one,) = found(published(exact, "broadcast"))
    assert one.algbw_gbps(one.curve.ranges[0]) == pytest.approx(100)


def test_an_unknown_format(capsys, tmp_path):
    assert main(["curve", str(tmp_path), "--format", "xml"]) == 2
    assert error_text("format", "xml", "one of table") in capsys.readouterr().err


RESULTS = Path(__file__).parents[2] / "results"
A100 = RESULTS / "nccl-transitions" / "a100-8gpu.jsonl"


def test_a_curve_with_two_vague_changes_begins_with_what_is_known(capsys):
    """Published times of 8 A100: the latency before the changes and the bandwidth after them."""
    assert main(["curve", str(A100), "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)["answer"]
    assert answer["headline"] == "latency 35.1 us up to 512K, algbw 133 GB/s from 16M on"
    assert answer["details"] == [
        "the law changes between 512K and 2M, and between 4M and 16M, with too few sizes there to "
        "fit it"
    ]
    assert answer["next_step"].startswith("measure these sizes too: --sizes 639232,")


def test_noise_that_hides_a_change_is_not_called_no_change(capsys):
    """Six runs of two backends: broadcast on ccl is 31 % off its law at 16M, where runs vary."""
    assert main(["curve", str(RESULTS / "gloo-oneccl-2ranks"), "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)["answer"]
    assert answer["headline"].startswith("Cannot tell whether the behaviour changes in 5 of 8")
    assert answer["details"] == ["one law fits 3 curves within 12.7 %"]


@pytest.mark.parametrize(
    "folder, text",
    [
        ("pairs-6hosts", "got 67 with at most 2 sizes each, expected one with 3 sizes or more"),
        ("oneccl-cold-scaling", "Rows of -i 1 -w 0 are first calls: torchcoll cold reads them"),
    ],
)
def test_what_has_no_curve_is_refused(folder, text, capsys):
    assert main(["curve", str(RESULTS / folder)]) == 3
    assert text in capsys.readouterr().err

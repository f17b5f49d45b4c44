"""What must not pass for evidence: copies, wrong results, other clocks, gates that see nothing."""

import csv
import dataclasses
import io
import shutil

import pytest
from made_runs import given, in_turn, make_runs, measured, run

from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.file import save
from torchcoll.core.result import Reported
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.comparison.show import show_comparisons
from torchcoll.reading.inputs import load

SIZES = {1024: 10_000, 1 << 20: 20_000, 4 << 20: 50_000}
NOISE = (1.0, 1.01, 0.99, 1.005)


def side(scale=1.0, **changed):
    return make_runs(
        [{n: round(ns * scale * noise) for n, ns in SIZES.items()} for noise in NOISE], **changed
    )


def files(folder, runs):
    for number, each in enumerate(runs):
        save(each, folder / f"{number}.jsonl")
    return folder


def test_a_copy_is_no_further_launch(tmp_path):
    base, new = files(tmp_path / "base", side()), files(tmp_path / "new", side(2.0)[:2])
    for number in range(2):
        shutil.copy(new / f"{number}.jsonl", new / f"copy{number}.jsonl")
    found = compare(base, new)
    assert {row.judged.new for row in found.rows if row.pair.size_bytes == 1024} == {
        (20_000, 20_200)
    }
    problems = [text for each in found.new.runs for text in each.problems]
    assert problems == [f"{new}/copy{n}.jsonl holds the same run: left out" for n in range(2)]


def test_a_copy_on_the_other_side(tmp_path):
    base = files(tmp_path / "base", side())
    shutil.copytree(base, tmp_path / "new")
    with pytest.raises(
        UsageError, match="new: got the same 4 runs as base, expected a run that is"
    ):
        compare(base, tmp_path / "new")
    with pytest.raises(UsageError, match=r"new/1.jsonl, the same run as .*, expected a run"):
        compare(base, tmp_path / "new" / "1.jsonl")


def test_a_table_of_another_tool_on_both_sides(tmp_path):
    """Six sizes in times of their own: nobody measures the same ones twice."""
    table = "collective,size,time (us)\n"
    table += "".join(f"all_reduce,{8 << n},{31.7 + n * n:.1f}\n" for n in range(6))
    for name in ("mine.csv", "copy.csv"):
        (tmp_path / name).write_text(table)
    text = (
        "new: got copy.csv, the same run as mine.csv, expected a run that is not in base. Name two"
    )
    with pytest.raises(UsageError, match=text):
        compare(tmp_path / "mine.csv", tmp_path / "copy.csv")


def test_figures_of_others_that_are_one_launch():
    def imported(*times):
        cases = [given(ns, size_bytes=n) for ns, n in zip(times, (8, 16, 32), strict=True)]
        return run(*cases, source={"tool": "nccl-tests"})

    twice = [imported(10.5, 11.5, 12.5), imported(10.5, 11.5, 12.5)]
    found = compare(twice, [imported(10.5, 11.5, 12.6)])
    assert len(found.base.runs) == 1
    # Two figures alike may well be two runs.
    few = [imported(10.5, 10.5, 12.5), imported(10.5, 10.5, 12.5)]
    assert len(compare(few, [imported(10.5, 11.5, 12.6)]).base.runs) == 2


def test_an_issued_call_is_no_faster_operation():
    def issued(noise):
        one = given(1000 * noise)
        one.reported = dataclasses.replace(one.reported, clock="issue")
        return run(one, source={"tool": "nccl-tests"})

    (row,) = compare(side(), [issued(noise) for noise in NOISE], filter="size=1K").rows
    assert row.result == "not comparable"
    assert row.reason == "the issue clock in new alone: no operation's time"


def test_samples_among_means_are_read_as_means():
    mean = [run(given(100), source={"tool": "nccl-tests"})]
    found = compare(make_runs([100]), [*make_runs([101]), *mean])
    assert found.reading == "mean over calls, mean over ranks"
    assert [row.base for row in found.rows if row.base] == [75.0]  # ranks of 100 and 50 ns


def test_remarks_on_a_case_are_footnotes(capsys):
    slow = [run(measured(ns, warnings=["4 buffers in flight"])) for ns in (200, 202)]
    (row,) = compare(make_runs([100, 101]), slow).rows
    assert row.notes == ("new: 4 buffers in flight",)


def test_one_rank_and_fake_send_nothing():
    alone = [make_runs(times, ranks=1) for times in ([100], [110])]
    for runs in alone:
        for each in runs:
            each.results = [dataclasses.replace(r, ranks=1) for r in each.results]
    note = "one rank, no communication: the times are of the calls alone"
    assert note in compare(*alone).notes
    fakes = [run(measured(ns, backend="fake")) for ns in (100, 110)]
    note = "fake backend: nothing was communicated, the times are of the calls alone"
    assert note in compare(*fakes).notes


def test_a_duration_below_0_is_no_case(tmp_path):
    bad = run(measured(100), measured(50, size_bytes=8))
    bad.results[0].time_ns["host"][0][0] = -5
    save(bad, tmp_path / "bad.jsonl")
    loaded = load(tmp_path / "bad.jsonl")
    assert [result.case.size_bytes for result in loaded.results] == [8]
    assert "unusable record: ValueError: a duration below 0" in loaded.problems[0]


def test_a_launch_without_a_figure_is_counted():
    broken = run(measured(100))
    broken.results[0].time_ns = {"host": [[0] * 3] * 2}
    (row,) = compare(*in_turn(make_runs([100, 101]), [*make_runs([100, 102]), broken])).rows
    assert row.notes == ("1 of 3 runs of new left out: no figure",)


def test_csv_and_json_say_the_rest_on_stderr(in_tmp_path, capsys):
    save(make_runs([100])[0], in_tmp_path / "a.jsonl")
    ending = {"status": "failed", "reason": "x"}
    slow = run(measured(300, warnings=["hm"]), environment={"kernel": "6.2"}, end=ending)
    save(slow, in_tmp_path / "b.jsonl")
    assert main(["compare", "a.jsonl", "b.jsonl", "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    (row,) = csv.DictReader(io.StringIO(out))
    assert row["notes"] == "new: hm"
    warning = "torchcoll: warning: b.jsonl: failed: x"
    assert err.splitlines()[:2] == [warning, "torchcoll: differs: kernel: 6.1 -> 6.2"]
    assert main(["compare", "a.jsonl", "b.jsonl", "--format", "json"]) == 0
    assert capsys.readouterr().err.splitlines() == [warning]


def test_why_something_is_on_one_side_alone(in_tmp_path, capsys):
    both = [measured(100, mode=mode) for mode in ("synchronized", "back-to-back")]
    save(run(measured(100)), in_tmp_path / "a.jsonl")
    save(run(*both), in_tmp_path / "b.jsonl")
    assert main(["compare", "a.jsonl", "b.jsonl"]) == 0
    assert "; a lacks 1 of 2 cases (1K back-to-back)\n" in capsys.readouterr().out


def test_first_calls_stay_out_of_a_mean_of_launches():
    def imported(ns, **more):
        figure = Reported(ns, "mean", "mean", "host", **more)
        case = measured(0, cold_ns=[], time_ns={}, reported=figure, verification=None)
        return run(case, source={"tool": "oneCCL benchmark"})

    base = [imported(100, calls=20), imported(90_000, calls=1, first_call_ns=90_000)]
    (row,) = compare(base, [imported(150, calls=20)]).rows
    assert (row.ratio, row.judged.base) == (pytest.approx(1.5), pytest.approx((100,)))
    assert row.notes == ("1 of 2 runs of base left out: one cold call",)


def test_small_ratios_keep_their_digits_and_names_tell_the_placement(capsys):
    kinds = [(size, place) for place in (True, False) for size in (1024, 2048)]

    def launch(*ns):
        own = zip(ns, kinds, strict=True)
        return run(*(measured(t, size_bytes=size, in_place=place) for t, (size, place) in own))

    found = compare(launch(1000, 990, 2100, 990), launch(175_000, 1000, 175_000, 1000))
    show_comparisons([found], every=True)
    lines = capsys.readouterr().out.splitlines()
    # 1 / 175 and 2.1 / 175, each above 0.99: the points stand below each other.
    for small in ("0.00571", "0.0120"):
        place = next(n for n, line in enumerate(lines) if " 1K " in line and small in line)
        assert lines[place + 1].index("0.990") == lines[place].index(small)
    assert lines[0].startswith(
        "new looks 83x to 175x slower than base at 1K in and out of place; not proven: "
    )


def test_what_keeps_apart_is_unset():
    with pytest.raises(UsageError, match=r"NCCL_ALGO \(unset; Ring\)"):
        compare(make_runs([100]), make_runs([100], variables={"NCCL_ALGO": "Ring"}), by="NCCL_ALGO")

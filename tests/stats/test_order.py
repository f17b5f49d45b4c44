"""Runs in time, runs left out, and differences in how the sides were measured."""

import json
from dataclasses import replace

import pytest
from made_runs import given, in_turn, make_runs, measured, run

from torchcoll.cli import main
from torchcoll.core.file import save
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.comparison.conclusion_show import answer_of
from torchcoll.questions.comparison.show import show_comparisons
from torchcoll.stats.sides import start_of

NOISE = (0, 400, -300, 200, -400, 100)
STEP = "measured one after the other: a change of the machine between the sides would look the same"
UNKNOWN = "start times are not known of all runs: a drift would look like a difference"


def side(times=NOISE, scale=1.0, **changed):
    return make_runs([round(scale * (100_000 + noise)) for noise in times], **changed)


def minutes(runs, first):
    for number, one in enumerate(runs):
        one.header["start_utc"] = f"2026-03-01T00:{first + number:02}:00+00:00"
    return runs


def test_one_side_after_the_other_is_said_in_the_answer(capsys):
    for base, new in ((0, 10), (10, 0)):
        found = compare(minutes(side(), base), minutes(side(scale=1.2), new))
        assert answer_of(found).details == (STEP,)
    show_comparisons([found])
    assert capsys.readouterr().out.replace("\n  ", " ").splitlines()[0].endswith(f"; {STEP}")
    assert answer_of(compare(*in_turn(side(), side(scale=1.2)))).details == ()


def test_a_drift_over_both_sides_is_no_difference():
    """1 % a run: the second side is 6.2 % slower, and Welch's t was sure of it."""
    base = side([NOISE[i] + 1000 * i for i in range(6)])
    new = side([NOISE[-i] + 1000 * (i + 6) for i in range(6)])
    (row,) = compare(minutes(base, 0), minutes(new, 6)).rows
    assert row.new / row.base == pytest.approx(1.059, abs=0.002)
    assert row.result in ("same", "inconclusive")
    assert row.judged.ratio.low < 1 < row.judged.ratio.high


def test_unknown_start_times_are_said():
    source = {"tool": "osu"}
    sides = [[run(given(f * n), source=source) for n in (100, 101, 99)] for f in (1, 2)]
    for runs in sides:
        for one in runs:
            one.header.pop("start_utc")
    found = compare(*sides)
    assert UNKNOWN in found.notes
    assert found.rows[0].judged.ratio.degrees == pytest.approx(4, abs=0.01)  # 101 and 202
    assert found.rows[0].notes == ()
    # One that is unknown may be any of them.
    some = in_turn(side(), side())
    some[0][3].header["start_utc"] = "yesterday"
    assert UNKNOWN in compare(*some).notes
    assert UNKNOWN not in compare(*in_turn(side(), side())).notes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:01:00+00:00", 60),
        ("1970-01-01T00:01:00.500000Z", 60.5),
        ("1970-01-01T00:01:00", 60),
        ("1970-01-01T01:01:00+01:00", 60),
        ("never", None),
        ("", None),
        (None, None),
    ],
)
def test_when_a_launch_began(text, seconds):
    assert start_of(run(header={"start_utc": text})) == seconds


def test_an_outlying_launch_is_named_and_left_out_of_all_cases(in_tmp_path, capsys):
    for name, slow in (("before", None), ("after", 3)):
        runs = [
            run(*(measured(round((2 if n == slow else 1) * (100_000 + noise)), size_bytes=b)
                  for b in (8, 64)))
            for n, noise in enumerate(NOISE)
        ]  # fmt: skip
        for number, one in enumerate(runs):
            minute = 2 * number + (name == "after")
            one.header["start_utc"] = f"2026-03-01T00:{minute:02}:00+00:00"
            save(one, in_tmp_path / name / f"{number}.jsonl")
    assert main(["compare", "before", "after", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["left_out"] == ["after/3.jsonl"]
    assert [(r["new_runs"], r["result"]) for r in found["rows"]] == [(5, "same")] * 2
    # What is left out is not in the figures either: 100 us and not 112.
    assert found["rows"][0]["new"] == pytest.approx(100_000, rel=0.005)
    (note,) = [text for text in found["notes"] if text.startswith("left out")]
    assert note.startswith("left out of all cases: after/3.jsonl, 2.00")
    assert main(["compare", "before", "after"]) == 0
    assert note in capsys.readouterr().out


def test_a_case_that_only_the_launch_left_out_has():
    """64 B of the base is right in its slow run alone: without that there is no ratio."""
    base = [
        run(*(measured(round((2 if n == 0 else 1) * (100_000 + noise)), size_bytes=b)
              for b in (8, 16, 32)),
            measured(100_000, size_bytes=64, status="ok" if n == 0 else "unsupported",
                     **({} if n == 0 else {"time_ns": {}})))
        for n, noise in enumerate(NOISE)
    ]  # fmt: skip
    new = [
        run(*(measured(100_000 - noise, size_bytes=b) for b in (8, 16, 32, 64))) for noise in NOISE
    ]
    found = compare(*in_turn(base, new))
    assert len(found.left_out) == 1
    last = found.rows[-1]
    assert (last.result, last.reason) == ("not comparable", "base only in runs left out")
    assert (last.ratio, last.judged.p_value) == (None, None)
    assert [row.result for row in found.rows[:-1]] == ["same"] * 3


def test_differing_iterations_stop_reasons_and_lead_calls_are_named():
    def one(iters, stop, **changed):
        result = measured(100, stop=stop, batches=[2, 1], **changed)
        return run(result, header={"spec": {"iters": iters, "labels": {}}})

    found = compare(one(20, "count"), one(None, "precision"))
    assert [str(each) for each in found.differences] == [
        "iterations (-n): 20 -> until precise",
        "stopped by: count -> precision",
    ]
    assert compare(one(20, "count"), one(20, "count")).differences == []
    led = one(20, "count")
    led.results[0].ramp_up_ns = [[5, 5, 5, 5], [5, 5, 5, 5]]  # two before each of two batches
    (lead,) = compare(one(20, "count"), led).differences
    assert str(lead) == "ramp-up calls: none -> some"
    # Their number follows the duration of a call: it differs between two runs of one command.
    more = one(20, "count")
    more.results[0].ramp_up_ns = [[5, 5], [5, 5]]
    assert compare(more, led).differences == []
    # What another tool does not tell is no difference; what it tells is one.
    stated = given(100)
    assert "iterations" not in str(compare(one(20, "count"), run(stated, source={"tool": "x"})))
    stated.reported = type(stated.reported)(100, "mean", "mean", "device", calls=50)
    names = [
        str(d) for d in compare(one(20, "count"), run(stated, source={"tool": "x"})).differences
    ]
    assert "iterations (-n): 20 -> 50" in names


def test_a_difference_in_some_cases_says_in_how_many():
    def one(*stops):
        return run(*(measured(9, size_bytes=8 << n, stop=stop) for n, stop in enumerate(stops)))

    (found,) = compare(
        one("precision", "precision", "cap"), one("precision", "cap", "cap")
    ).differences
    assert str(found) == "stopped by: precision -> cap (in 1 of 3 cases)"


def test_a_difference_in_the_reuse_of_buffers_is_named():
    """nccl-tests walks through its largest buffer; a file that does not tell is unknown."""

    def one(reuse):
        result = measured(100)
        return run(replace(result, case=replace(result.case, buffer_reuse=reuse)))

    assert (
        "the sides also differ in: buffer_reuse (same -> rotate)"
        in compare(one("same"), one("rotate")).notes
    )
    assert any(
        "matched without buffer_reuse" in note
        for note in compare(one("unknown"), one("rotate")).notes
    )
    assert not any("buffer_reuse" in n for n in compare(one("same"), one("same")).notes)


def test_absurd_figures_in_files_are_compared(in_tmp_path, capsys):
    """The interval of 1 ns and 10^18 ns in turn is wider than a float."""
    for name, times in (("a", (1, 10**18, 1)), ("b", (10**18, 1, 10**18))):
        for number, one in enumerate(make_runs(times)):
            save(one, in_tmp_path / name / f"{number}.jsonl")
    for chosen in ("json", "table", "csv"):
        assert main(["compare", "a", "b", "--format", chosen]) == 0
        assert "inconclusive" in capsys.readouterr().out

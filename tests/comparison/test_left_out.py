"""What a comparison could not use: wrong results, hangs, failures, missing cases and outliers."""

import json
import math
import random
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from error_form import error_text
from made_runs import in_turn, make_runs, measured, run

from torchcoll.cli import main
from torchcoll.core.file import save
from torchcoll.core.result import Verification
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.comparison.conclusion_show import answer_of
from torchcoll.stats.sides import Side

SIZES = (8, 16, 32, 64, 128, 256)
STRICT = "slower,inconclusive"


def side(seed, bad=lambda launch, size: "", sizes=SIZES, launches=6, **changed):
    """Runs at 0.4 % noise; bad: the outcome of a case of a launch, counted from 1, '' for ok."""
    rng = random.Random(seed)
    runs = []
    for launch in range(1, launches + 1):
        cases = []
        for size in sizes:
            ns, fields = round(100_000 * math.exp(0.004 * rng.gauss(0, 1))), {}
            if (outcome := bad(launch, size)) == "wrong":
                fields = {"status": "wrong", "verification": Verification(8, 3)}
            elif outcome:
                fields = {"status": outcome, "reason": "no answer for 300 s", "time_ns": {}}
            cases.append(measured(ns, size_bytes=size, **fields))
        runs.append(run(*cases, **changed))
    return runs


def wrong_and_hung(launch, size):
    """Half of the launches hang at 128 and a third are wrong at 32."""
    return {(32, 2): "wrong", (32, 4): "wrong"}.get(
        (size, launch), "timeout" if size == 128 and launch in (1, 3, 5) else ""
    )


@pytest.fixture
def written(in_tmp_path):
    def write(base, new):
        for name, runs in zip(("base", "new"), in_turn(base, new), strict=True):
            for number, one in enumerate(runs):
                save(one, in_tmp_path / name / f"{number}.jsonl")

    return write


def gated(gate, capsys, *more):
    code = main(["compare", "base=base", "new=new", "--fail-on", gate, *more])
    return code, *capsys.readouterr()


def test_a_side_that_was_wrong_and_hung_is_never_as_fast(written, capsys):
    written(side(1), side(2, wrong_and_hung))
    code, out, err = gated(STRICT, capsys)
    assert (code, err) == (1, f"torchcoll: --fail-on {STRICT}: 1 wrong, 1 failed\n")
    assert out.replace("\n  ", " ").splitlines()[0] == (
        "wrong results in 2 of 6 runs of new (32); 3 of 6 timed out (128); the other cases are the "
        "same within 2 %"
    )
    code, out, _ = gated("slower", capsys, "--format", "json")
    data = json.loads(out)
    assert (code, data["answer"]["level"]) == (1, "bad")
    assert data["answer"]["counts"] == {"same": 4, "not comparable": 2, "wrong": 1, "failed": 1}
    assert data["faults"]["new"]["faults"] == [
        {"kind": "wrong", "runs": 2, "cases": ["32"]},
        {"kind": "timeout", "runs": 3, "cases": ["128"]},
    ]
    assert data["faults"]["base"]["faults"] == []
    reasons = {row["size_bytes"]: row["reason"] for row in data["rows"]}
    assert reasons[32] == "wrong in 2 of 6 runs of new"
    assert reasons[128] == "timeout in 3 of 6 runs of new"


def test_a_gate_fails_on_each_fault_unless_it_is_ignored(written, capsys):
    written(side(1), side(2, wrong_and_hung, sizes=SIZES[:-1]))
    line = "torchcoll: --fail-on {}: {}\n"
    for gate, tripped in (
        ("slower:90%", "1 wrong, 1 failed, 1 missing"),
        ("slower,ignore-wrong", "1 failed, 1 missing"),
        ("slower,ignore-wrong,ignore-missing", "1 failed"),
        ("ignore-failed,ignore-wrong", "1 missing"),
    ):
        code, _, err = gated(gate, capsys)
        assert (code, err) == (1, line.format(gate, tripped))
    code, _, err = gated("slower,ignore-wrong,ignore-failed,ignore-missing", capsys)
    assert code == 0
    assert "2 of 5 cases could not be judged" in err


def junit_of(gate, capsys):
    """The exit code, and name -> (result, message) of the tests that --junit wrote."""
    code, _, _ = gated(gate, capsys, "--junit", "compare.xml", "--force")
    (suite,) = ElementTree.parse("compare.xml").getroot()
    tests = {test.get("name"): test for test in suite}
    found = {}
    for name, test in tests.items():
        (child,) = test
        found[name] = (child.tag, child.get("message") or child.text)
    return code, found


def test_junit_fails_where_the_gate_does(written, capsys):
    written(side(1), side(2, wrong_and_hung, sizes=SIZES[:-1]))
    code, found = junit_of("slower:90%", capsys)
    failed = [name for name, (result, _) in found.items() if result == "failure"]
    assert (code, failed) == (1, ["fail-on slower:90%", "32", "128", str(SIZES[-1])])
    assert found["32"][1] == "wrong: wrong in 2 of 6 runs of new"
    assert found["fail-on slower:90%"][1].startswith("1 wrong, 1 failed, 1 missing: wrong results")
    assert found["8"][0] == "system-out" and found["8"][1].startswith("same: ")
    code, found = junit_of("slower,ignore-wrong,ignore-failed,ignore-missing", capsys)
    # What the gate allows is not judged either.
    results = {name: result for name, (result, _) in found.items()}
    assert code == 0 and "failure" not in results.values()
    assert results["32"] == results["128"] == "skipped"


def test_junit_without_a_gate(written, capsys):
    written(side(1), side(2))
    assert main(["compare", "base=base", "new=new", "--junit", "out.xml"]) == 2
    assert (
        error_text("junit", "out.xml", "a gate with it, such as --fail-on slower:5%")
        in capsys.readouterr().err
    )


def test_a_case_that_the_new_side_lacks(written, capsys):
    written(side(1), side(2, sizes=(8, 16, 64, 128)))
    code, out, err = gated("slower:5%", capsys)
    assert (code, err) == (1, "torchcoll: --fail-on slower:5%: 2 missing\n")
    first = out.splitlines()[0]
    assert first == "new lacks 2 of 6 cases (32, 256); the other cases are the same within 2 %"
    assert gated("slower:5%,ignore-missing", capsys)[0] == 0


def test_a_case_that_the_new_side_does_not_support_is_missing(written, capsys):
    written(side(1), side(2, lambda launch, size: "unsupported" if size == 64 else ""))
    assert gated("slower", capsys)[0] == 1
    assert answer_of(compare("base", "new")).headline == (
        "new lacks 1 of 6 cases (64); the other cases are the same within 2 %"
    )


def test_a_fault_of_the_base_is_said_and_is_not_the_new_sides(written, capsys):
    written(side(1, wrong_and_hung), side(2))
    code, out, _ = gated("slower", capsys)
    assert code == 0
    assert out.replace("\n  ", " ").splitlines()[0] == (
        "new is as fast as base: all 4 cases are the same within 2 %; wrong results in 2 of 6 runs "
        "of base (32); 3 of 6 timed out (128)"
    )
    answer = answer_of(compare("base", "new"))
    assert answer.level == "doubt"
    assert answer.counts == {"same": 4, "not comparable": 2}


def test_every_case_of_the_new_side_is_wrong():
    found = compare(*in_turn(side(1), side(2, lambda launch, size: "wrong")))
    answer = answer_of(found)
    assert answer.level == "bad"
    assert answer.headline == (
        "wrong results in 6 of 6 runs of new (8, 16, 32, ..., 256); none of 6 cases can be compared"
    )
    assert answer.details[0] == "wrong in new: 3 of 8"


def test_runs_that_ended_before_some_cases(written, capsys):
    """A run without an end record, as of a rank that died, has no case from 64 on."""
    new = side(2)
    new[3].results[3:] = []
    written(side(1), new)
    path = Path("new/3.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    code, out, err = gated("slower", capsys)
    assert code == 1 and "torchcoll: --fail-on slower: 3 missing" in err
    assert out.replace("\n  ", " ").startswith(
        "1 of 6 runs of new ended early (without 64, 128, 256); "
    )


def test_a_run_that_failed_was_not_asked_for_the_cases_of_other_runs():
    """Runs of two collectives are one side; one of the first ended with a wrong result."""
    sides = []
    for seed in (1, 2):
        gathers = side(seed + 2, launches=3)
        for one in gathers:
            one.results[:] = [
                measured(result.time_ns["host"][0][0], size_bytes=8, collective="all_gather")
                for result in one.results[:1]
            ]
        sides.append(side(seed, launches=3) + gathers)
    bad = sides[1][0]
    bad.results[0] = measured(1, size_bytes=8, status="wrong")
    bad.end = {"status": "failed", "exit_code": 1, "reason": "1 wrong of 6 cases"}
    headline = answer_of(compare(*in_turn(*sides))).headline
    assert headline.startswith("wrong results in 1 of 6 runs of new (all_reduce 8); ")
    assert "ended early" not in headline


def test_an_undecided_case_that_looks_far_slower_is_named():
    """No run of one side is as long as one of the other but for one of 9 ms: never 'no difference
    found'. The geometric means are 0.97 and 35 ms, before what drifts with time is taken out.
    """
    base = make_runs([290_000, 9_000_000, 350_000])
    answer = answer_of(compare(*in_turn(base, make_runs([8_000_000, 60_000_000, 90_000_000]))))
    assert answer.level == "doubt"
    assert re.fullmatch(
        r"Cannot tell whether new is slower than base: 1K [23]\dx slower, but 3 runs of each "
        "vary too much",
        answer.headline,
    )
    assert answer.next_step.startswith(("make ", "measure on a quieter machine"))


def test_a_slower_side_that_was_wrong_says_both():
    slow = side(2, lambda launch, size: "wrong" if size == 8 and launch == 6 else "")
    for one in slow:
        one.results[1] = measured(2 * one.results[1].time_ns["host"][0][0], size_bytes=16)
    found = answer_of(compare(*in_turn(side(1), slow)))
    assert found.headline.startswith(
        "wrong results in 1 of 6 runs of new (8); of the other 5 cases: new is 2.0x slower than "
        "base at 16 B (at least 1.9"
    )
    assert found.level == "bad"


def test_an_outlier_is_a_caveat(written, capsys):
    slow = make_runs([{s: round(1.4 * 100_000) for s in SIZES}])
    new = side(2)
    new[2] = slow[0]
    answer = answer_of(compare(*in_turn(side(1), new)))
    assert answer.headline == "new is as fast as base: all 6 cases are the same within 2 %"
    assert answer.details == ("1 of 6 runs of new is left out as an outlier (1.40x slower)",)
    assert answer.level == "good"
    written(side(1), new)
    assert gated("slower", capsys)[0] == 0


def test_a_gate_cannot_pass_a_new_side_that_was_far_slower_in_one_run(written, capsys):
    """One start of six is 50 times slower in every case: the judgement leaves it out."""
    new = side(2)
    new[2] = make_runs([dict.fromkeys(SIZES, 5_000_000)])[0]
    written(side(1), new)
    code, out, err = gated("slower:5%", capsys)
    text = "1 of 6 runs of new is left out as an outlier (50x slower)"
    assert code == 2
    assert err.endswith(f"torchcoll: --fail-on slower:5%: cannot tell: {text}\n")
    assert text in out.replace("\n  ", " ").splitlines()[0]
    assert answer_of(compare("base", "new")).level == "doubt"
    assert answer_of(compare("new", "base")).level == "good"


def test_a_run_that_ended_before_its_first_case(written, capsys):
    end = {"status": "aborted", "exit_code": 4}
    written(side(1), [*side(2, launches=5), run(end=end)])
    code, out, err = gated("slower", capsys)
    assert (code, err) == (1, "torchcoll: --fail-on slower: 6 missing\n")
    assert out.replace("\n  ", " ").splitlines()[0] == (
        "1 of 6 runs of new ended early (without 8, 16, 32, ..., 256); new is as fast as base: all "
        "6 cases are the same within 2 %"
    )


def test_one_after_the_other_is_in_the_sentence_the_json_and_the_gate(written, capsys):
    base, new = side(1), side(2)
    for number, one in enumerate([*base, *new]):
        one.header["start_utc"] = f"2026-03-01T00:{number:02}:00Z"
    for name, runs in (("base", base), ("new", new)):
        for number, one in enumerate(runs):
            save(one, f"{name}/{number}.jsonl")
    step = "measured one after the other: a change of the machine between the sides would look the "
    code, out, err = gated("slower", capsys)
    assert code == 0
    assert f"; {step}same" in out.replace("\n  ", " ").splitlines()[0]
    assert err == f"torchcoll: warning: --fail-on slower: {step}same\n"
    _, out, _ = gated("slower", capsys, "--format", "json")
    assert json.loads(out)["answer"]["details"] == [f"{step}same"]


def test_starts_in_two_modes_are_counted():
    """A start is 1.35x slow in all cases in 1 of 6 runs of one side and in 3 of 6 of the other."""
    base, new = side(1), side(2)
    for runs, slow in ((base, {2}), (new, {0, 3, 4})):
        for number in slow:
            runs[number].results[:] = [
                measured(round(1.35 * one.time_ns["host"][0][0]), size_bytes=one.case.size_bytes)
                for one in runs[number].results
            ]
    answer = answer_of(compare(*in_turn(base, new)))
    assert "new starts in the slow mode (1.35x) in 3 of 6 runs, base in 1 of 6" in answer.details
    assert compare(*in_turn(side(1), side(2))).modes is None


def test_what_is_not_decided_is_bounded_or_cannot_be_told():
    """Three runs at 20 % noise leave more than 1.5x open; at 2 % less."""
    noise = ((1, 1.2, 0.8), (1.1, 0.8, 1.2))
    wide = [make_runs([round(1e5 * each) for each in times]) for times in noise]
    answer = answer_of(compare(*in_turn(*wide)))
    assert answer.headline.startswith("Cannot tell whether new is slower than base: 1K 1.0")
    assert answer.headline.endswith("x slower, but 3 runs of each vary too much")
    assert (answer.level, answer.certainty) == ("doubt", "cannot tell")
    assert answer.detectable > 0.5
    narrow = [make_runs([round(1e5 * each**0.1) for each in times]) for times in noise]
    answer = answer_of(compare(*in_turn(*narrow)))
    assert answer.headline.startswith("no difference was found between base and new (a ")
    assert answer.headline.endswith(" % would have been found)")
    assert (answer.level, answer.certainty) == ("good", "certain")
    assert answer.detectable < 0.1


@pytest.mark.parametrize(
    ("power", "code", "text"),
    [(1, 2, "cannot tell: 1 case may be 1.50x slower or more (1K)"), (0.1, 0, "")],
)
def test_a_gate_cannot_pass_what_it_would_not_have_found(power, code, text, written, capsys):
    """Runs that differ by 20 % hide 1.5x; at 2 % they hide nothing that anyone acts on."""
    noise = ((1, 1.2, 0.8), (1.1, 0.8, 1.2))
    written(*(make_runs([round(1e5 * each**power) for each in times]) for times in noise))
    expected = f"torchcoll: --fail-on slower: {text}\n" if text else ""
    assert gated("slower", capsys)[::2] == (code, expected)


def test_all_cases_together_may_be_slower_than_anyone_accepts(written, capsys):
    """12 runs of each side are off by -13, 0 or 15 % in all cases. The spread of a run is 0.12, so
    that of a side 0.12 x sqrt(2 / 12) = 0.049, and its interval about 0.1: no case may be 1.5x
    slower, but all together 5 %.
    """
    base, new = (
        make_runs([{size: round(1e5 * each) for size in SIZES} for each in times * 4])
        for times in ((1, 1.15, 0.87), (1.15, 0.87, 1))
    )
    written(base, new)
    code, _, err = gated("slower", capsys)
    assert code == 2
    assert "cannot tell: all cases together may be " in err
    answer = answer_of(compare("base", "new"))
    assert re.fullmatch(
        r"Cannot tell whether new is slower than base \(only a difference of \d\d? % or more "
        r"over all 6 cases would have been found\)",
        answer.headline,
    )
    assert 0.05 < answer.detectable < 0.2


def test_a_gate_cannot_pass_what_looks_twice_as_slow(written, capsys):
    written(make_runs([100_000]), make_runs([8_500_000]))
    code, out, err = gated("slower", capsys)
    assert code == 2
    assert err.endswith(
        "torchcoll: --fail-on slower: cannot tell: 1 case looks 2x slower or more, undecided\n"
    )
    assert out.startswith("new looks 85x slower than base at 1K")
    assert gated("inconclusive", capsys)[0] == 1


def test_first_calls_that_became_slower_are_said():
    """Times to first result of 3 and 9 ms, within 1 %; the calls take as long as before."""
    noise = (1.0, 1.01, 0.99, 1.005, 0.995, 1.0)
    sides = [
        [
            run(measured(round(1e5 * each), cold_ns=[[round(first * each), 100_000]] * 2))
            for each in noise
        ]
        for first in (3_000_000, 9_000_000)
    ]
    answer = answer_of(compare(*in_turn(*sides)))
    assert answer.level == "doubt"
    assert answer.details == (
        "time to first result (connecting and first call): base 3.00 ms, new 9.00 ms",
    )
    answer = answer_of(compare(*in_turn(sides[1], sides[0])))
    assert answer.level == "good" and len(answer.details) == 1


def test_a_side_that_nobody_verified_is_a_note():
    def checked(runs, verification):
        for each in runs:
            for result in each.results:
                result.verification = verification
        return runs

    right = Verification(8, 0)
    note = "no result of new was verified; those of the base were"
    assert note in compare(checked(side(1), right), checked(side(2), None)).notes
    assert note not in compare(checked(side(1), right), checked(side(2), right)).notes
    assert note not in compare(checked(side(1), None), checked(side(2), None)).notes


def busy_runs(cores):
    """Runs during each of which other processes used so many cores."""
    runs = side(1, launches=len(cores))
    for one, used in zip(runs, cores, strict=True):
        text = f"vm: other processes used {used} of 2 cores during the run"
        one.events.append({"kind": "machine", "message": text})
    return runs


@pytest.mark.parametrize(
    ("base", "new", "line"),
    [
        ((0.51, 0.62, 0.53), (0.54, 0.71, 0.5), "on both sides, {} (5 more alike)"),
        ((0.51, 0.51, 0.51), (0.51, 0.51, 0.51), None),  # which slows neither side
        ((0.51, 0.62, 0.51), (), "in base, {} (2 more alike)"),
    ],
)
def test_disturbances_that_differ_in_figures_are_one_line(base, new, line):
    runs = busy_runs(base), busy_runs(new) if new else side(2, launches=3)
    details = compare(Side("base", runs[0]), Side("new", runs[1])).answer.details
    text = "vm: other processes used 0.51 of 2 cores during the run"
    expected = [line.format(text)] if line else []
    assert [each for each in details if "other processes" in each] == expected
